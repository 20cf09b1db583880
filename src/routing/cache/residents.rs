//! Which engine hashes are resident, how often, and which key each means.

use rustc_hash::{FxHashMap, FxHashSet};

use super::super::block::BlockKey;
use super::super::event::{EngineHash, Medium};

/// One pool of blocks with its own references: a cache group on a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pool {
    group: Option<u32>,
    pub(super) medium: Medium,
}

impl Pool {
    pub(super) fn new(group: Option<u32>, medium: Medium) -> Self {
        Self { group, medium }
    }
}

/// What is known of a resident block's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It has this key.
    Keyed(BlockKey),
    /// Its parent has not come yet.
    Pending,
    /// It will never have a key, nor will its children.
    Unkeyed,
}

/// How a block entered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entered {
    /// What is known of it now.
    pub(super) place: Place,
    /// It was not resident with that place before.
    pub(super) new: bool,
}

#[derive(Debug)]
struct Resident {
    place: Place,
    references: u32,
}

type Blocks = FxHashMap<EngineHash, Resident>;

/// The resident blocks of one source. It has one or two pools, so they are a list.
#[derive(Debug, Default)]
pub(super) struct Residents {
    pools: Vec<(Pool, Blocks)>,
}

impl Residents {
    /// One more reference. What is known best of the block stays or becomes its place.
    pub(super) fn enter(&mut self, pool: Pool, hash: EngineHash, place: Place) -> Entered {
        let mut new = false;
        let resident = self.pool(pool).entry(hash).or_insert_with(|| {
            new = true;
            Resident {
                place,
                references: 0,
            }
        });
        resident.references = resident.references.saturating_add(1);
        if let (Place::Keyed(_), Place::Pending | Place::Unkeyed) = (place, resident.place) {
            resident.place = place;
            new = true;
        }
        Entered {
            place: resident.place,
            new,
        }
    }

    /// One reference less; the block's place when that was the last one.
    pub(super) fn leave(&mut self, pool: Pool, hash: EngineHash) -> Option<Place> {
        let (_, blocks) = self.pools.iter_mut().find(|(here, _)| *here == pool)?;
        let resident = blocks.get_mut(&hash)?;
        resident.references -= 1;
        if resident.references > 0 {
            return None;
        }
        blocks.remove(&hash).map(|resident| resident.place)
    }

    /// Takes one reference from each block on a medium that has one of these keys; gives back the keys of those that
    /// are gone thereby, once for each. Looks at every block (0.5 ms for 100,000).
    pub(super) fn release(&mut self, medium: Medium, keys: &FxHashSet<BlockKey>) -> Vec<BlockKey> {
        let mut gone = Vec::new();
        let mut left = keys.clone();
        let pools = self
            .pools
            .iter_mut()
            .filter(|(pool, _)| pool.medium == medium);
        for (_, blocks) in pools {
            blocks.retain(|_, resident| {
                let Place::Keyed(key) = resident.place else {
                    return true;
                };
                if !left.remove(&key) {
                    return true;
                }
                resident.references -= 1;
                if resident.references == 0 {
                    gone.push(key);
                }
                resident.references > 0
            });
        }
        gone
    }

    /// A block that waited gets its place; false when it is gone or has one by now.
    pub(super) fn settle(&mut self, pool: Pool, hash: EngineHash, place: Place) -> bool {
        let waiting = self
            .pool(pool)
            .get_mut(&hash)
            .filter(|resident| resident.place == Place::Pending);
        let Some(resident) = waiting else {
            return false;
        };
        resident.place = place;
        true
    }

    /// What is known of a hash: a key from any pool, because the key depends on the
    /// content alone; else what this pool knows; else that it waits elsewhere.
    pub(super) fn place_of(&self, pool: Pool, hash: EngineHash) -> Option<Place> {
        let mut best = None;
        for (here, blocks) in &self.pools {
            match blocks.get(&hash).map(|resident| resident.place) {
                Some(Place::Keyed(key)) => return Some(Place::Keyed(key)),
                Some(Place::Pending) if best.is_none() => best = Some(Place::Pending),
                Some(place) if *here == pool => best = Some(place),
                Some(_) | None => {}
            }
        }
        best
    }

    /// The keys of all blocks on a medium; one that several hashes mean comes several times.
    pub(super) fn keys_in(&self, medium: Medium) -> impl Iterator<Item = BlockKey> {
        self.pools
            .iter()
            .filter(move |(pool, _)| pool.medium == medium)
            .flat_map(|(_, blocks)| blocks.values())
            .filter_map(|resident| match resident.place {
                Place::Keyed(key) => Some(key),
                Place::Pending | Place::Unkeyed => None,
            })
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "the position was found in, or is the end just pushed to, this very list"
    )]
    fn pool(&mut self, pool: Pool) -> &mut Blocks {
        let found = self.pools.iter().position(|(here, _)| *here == pool);
        let place = found.unwrap_or_else(|| {
            self.pools.push((pool, Blocks::default()));
            self.pools.len() - 1
        });
        &mut self.pools[place].1
    }
}
