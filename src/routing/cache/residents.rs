//! Which engine hashes are resident, how often, and which key each means.
//!
//! What a hash means depends on the content alone, so what one pool learns of it holds in all.
//! Blocks whose removal cannot be counted on (those of slower tiers, those without a key) are
//! bounded in number for each pool; the oldest are forgotten first.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::super::block::BlockKey;
use super::super::event::{EngineHash, Medium};

/// Blocks of a slower tier that are remembered for each source and cache group, and blocks without
/// a key on the accelerator likewise. 4.2 million tokens at 16 a block are 512 GiB of an 8B model,
/// the memory of a large host for one engine; at about 100 bytes a block it costs 26 MB at most,
/// where a connector that never tells of removals (LMCache's multi-process mode, a reset of vLLM's)
/// would otherwise cost more every day.
pub(super) const MAX_AGED: usize = 1 << 18;

/// Pools of one source: groups times media. Models have a handful of groups.
const MAX_POOLS: usize = 16;

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
    /// It has no key, nor have its children.
    Unkeyed,
    /// Blocks of different content go by its name (hashes that do not cover what stands before
    /// the block, as in SGLang 0.5.4), so a removal does not say which of them is gone.
    Ambiguous,
}

/// What came of something for one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A block there got its key.
    Keyed(BlockKey),
    /// A block there has this key no longer, because it is gone or ambiguous.
    Lost(BlockKey),
}

/// How a block entered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entered {
    /// What is known of it now.
    pub(super) place: Place,
    /// A block was forgotten for it, because the pool is full.
    pub(super) forgot: bool,
}

#[derive(Debug)]
struct Resident {
    place: Place,
    references: u32,
    /// Names its entry in the order of age; fits where the layout has a gap anyway.
    number: u32,
}

/// The blocks of one pool.
#[derive(Debug)]
struct Blocks {
    pool: Pool,
    by_hash: FxHashMap<EngineHash, Resident>,
    /// Blocks that are bounded, oldest first. An entry whose number is not the block's is void.
    by_age: VecDeque<(EngineHash, u32)>,
    /// Blocks that are bounded.
    aged: usize,
    next: u32,
}

impl Blocks {
    fn new(pool: Pool) -> Self {
        Self {
            pool,
            by_hash: FxHashMap::default(),
            by_age: VecDeque::new(),
            aged: 0,
            next: 0,
        }
    }

    fn is_aged(&self, place: Place) -> bool {
        self.pool.medium != Medium::Gpu || !matches!(place, Place::Keyed(_))
    }

    fn get(&self, hash: EngineHash) -> Option<Place> {
        self.by_hash.get(&hash).map(|resident| resident.place)
    }

    fn insert(&mut self, hash: EngineHash, place: Place) {
        let resident = Resident {
            place,
            references: 1,
            number: 0,
        };
        self.by_hash.insert(hash, resident);
        if self.is_aged(place) {
            self.note_age(hash);
        }
    }

    fn note_age(&mut self, hash: EngineHash) {
        self.aged += 1;
        self.next = self.next.wrapping_add(1);
        if let Some(resident) = self.by_hash.get_mut(&hash) {
            resident.number = self.next;
        }
        self.by_age.push_back((hash, self.next));
        // Void entries are swept out before they outnumber the others.
        if self.by_age.len() > 2 * self.aged + 1024 {
            let mut by_age = std::mem::take(&mut self.by_age);
            by_age.retain(|&(hash, number)| self.is_current(hash, number));
            self.by_age = by_age;
        }
    }

    fn is_current(&self, hash: EngineHash, number: u32) -> bool {
        let resident = self.by_hash.get(&hash);
        resident.is_some_and(|here| here.number == number && self.is_aged(here.place))
    }

    /// Changes what is known of a block that is resident.
    fn set_place(&mut self, hash: EngineHash, place: Place) {
        let Some(resident) = self.by_hash.get_mut(&hash) else {
            return;
        };
        let before = std::mem::replace(&mut resident.place, place);
        match (self.is_aged(before), self.is_aged(place)) {
            (true, false) => self.aged -= 1,
            (false, true) => self.note_age(hash),
            _ => {}
        }
    }

    fn take(&mut self, hash: EngineHash) -> Option<Place> {
        let resident = self.by_hash.remove(&hash)?;
        self.aged -= usize::from(self.is_aged(resident.place));
        Some(resident.place)
    }

    /// Forgets the oldest block, if there are too many.
    fn bound(&mut self, limit: usize) -> Option<Place> {
        while self.aged > limit {
            let (hash, number) = self.by_age.pop_front()?;
            if self.is_current(hash, number) {
                return self.take(hash);
            }
        }
        None
    }
}

/// The resident blocks of one source. It has one or two pools, so they are a list.
#[derive(Debug)]
pub(super) struct Residents {
    pools: Vec<Blocks>,
    limit: usize,
}

impl Default for Residents {
    fn default() -> Self {
        Self {
            pools: Vec::new(),
            limit: MAX_AGED,
        }
    }
}

impl Residents {
    /// Bounds the blocks of a pool whose removal cannot be counted on.
    #[cfg(test)]
    pub(super) fn set_limit(&mut self, blocks: usize) {
        self.limit = blocks;
    }

    /// One more reference. What is known best of the block stays or becomes its place, here and
    /// wherever else it is resident.
    pub(super) fn enter(
        &mut self,
        pool: Pool,
        hash: EngineHash,
        place: Place,
        changes: &mut Vec<(Medium, Change)>,
    ) -> Entered {
        let limit = self.limit;
        // Without a place among the pools a block is nowhere, so nothing of it is kept.
        let Some(blocks) = self.pool(pool) else {
            return Entered {
                place: Place::Unkeyed,
                forgot: false,
            };
        };
        if let Some(resident) = blocks.by_hash.get_mut(&hash) {
            resident.references = resident.references.saturating_add(1);
            let known = resident.place;
            let place = self.learn(hash, known, place, changes);
            let forgot = false;
            return Entered { place, forgot };
        }
        blocks.insert(hash, place);
        if let Place::Keyed(key) = place {
            changes.push((pool.medium, Change::Keyed(key)));
        }
        let forgotten = blocks.bound(limit);
        if let Some(Place::Keyed(key)) = forgotten {
            changes.push((pool.medium, Change::Lost(key)));
        }
        let place = if self.pools.len() > 1 {
            self.learn_of_others(hash, place, changes)
        } else {
            place
        };
        Entered {
            place,
            forgot: forgotten.is_some(),
        }
    }

    /// A block that is resident as `known` is stored again as `place`.
    fn learn(
        &mut self,
        hash: EngineHash,
        known: Place,
        place: Place,
        changes: &mut Vec<(Medium, Change)>,
    ) -> Place {
        match (known, place) {
            (Place::Keyed(here), Place::Keyed(told)) if here != told => {
                self.set_everywhere(hash, Place::Ambiguous, changes);
                Place::Ambiguous
            }
            (Place::Pending | Place::Unkeyed, Place::Keyed(_)) => {
                self.set_everywhere(hash, place, changes);
                place
            }
            _ => known,
        }
    }

    /// A block that is new in one pool may be known in another.
    fn learn_of_others(
        &mut self,
        hash: EngineHash,
        place: Place,
        changes: &mut Vec<(Medium, Change)>,
    ) -> Place {
        let mut place = place;
        for at in 0..self.pools.len() {
            if let Some(known) = self.pools.get(at).and_then(|blocks| blocks.get(hash)) {
                place = self.learn(hash, known, place, changes);
            }
        }
        place
    }

    fn set_everywhere(
        &mut self,
        hash: EngineHash,
        place: Place,
        changes: &mut Vec<(Medium, Change)>,
    ) {
        for blocks in &mut self.pools {
            let Some(before) = blocks.get(hash).filter(|before| *before != place) else {
                continue;
            };
            let medium = blocks.pool.medium;
            if let Place::Keyed(key) = before {
                changes.push((medium, Change::Lost(key)));
            }
            if let Place::Keyed(key) = place {
                changes.push((medium, Change::Keyed(key)));
            }
            blocks.set_place(hash, place);
        }
    }

    /// One reference less; the block's place when that was the last one.
    pub(super) fn leave(&mut self, pool: Pool, hash: EngineHash) -> Option<Place> {
        let blocks = self.pools.iter_mut().find(|blocks| blocks.pool == pool)?;
        let resident = blocks.by_hash.get_mut(&hash)?;
        resident.references -= 1;
        if resident.references > 0 {
            return None;
        }
        blocks.take(hash)
    }

    /// A block that waited gets its place wherever it is; false when it is gone or has one by now.
    pub(super) fn settle(
        &mut self,
        hash: EngineHash,
        place: Place,
        changes: &mut Vec<(Medium, Change)>,
    ) -> bool {
        let mut waited = false;
        for blocks in &mut self.pools {
            if blocks.get(hash) != Some(Place::Pending) {
                continue;
            }
            waited = true;
            blocks.set_place(hash, place);
            if let Place::Keyed(key) = place {
                changes.push((blocks.pool.medium, Change::Keyed(key)));
            }
        }
        waited
    }

    /// What is known of a hash in any pool: first a key, then that it waits.
    pub(super) fn place_of(&self, hash: EngineHash) -> Option<Place> {
        let mut best = None;
        for blocks in &self.pools {
            match blocks.get(hash) {
                Some(Place::Keyed(key)) => return Some(Place::Keyed(key)),
                Some(Place::Pending) => best = Some(Place::Pending),
                Some(place) if best.is_none() => best = Some(place),
                Some(_) | None => {}
            }
        }
        best
    }

    /// The keys of all blocks on a medium; one that several hashes mean comes several times.
    pub(super) fn keys_in(&self, medium: Medium) -> impl Iterator<Item = BlockKey> {
        self.pools
            .iter()
            .filter(move |blocks| blocks.pool.medium == medium)
            .flat_map(|blocks| blocks.by_hash.values())
            .filter_map(|resident| match resident.place {
                Place::Keyed(key) => Some(key),
                Place::Pending | Place::Unkeyed | Place::Ambiguous => None,
            })
    }

    /// Forgets all blocks.
    pub(super) fn clear(&mut self) {
        self.pools.clear();
    }

    /// Blocks remembered, and entries of the order of age.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        let blocks = self.pools.iter().map(|blocks| blocks.by_hash.len()).sum();
        let ages = self.pools.iter().map(|blocks| blocks.by_age.len()).sum();
        (blocks, ages)
    }

    fn pool(&mut self, pool: Pool) -> Option<&mut Blocks> {
        let found = self.pools.iter().position(|blocks| blocks.pool == pool);
        let at = match found {
            Some(at) => at,
            None if self.pools.len() < MAX_POOLS => {
                self.pools.push(Blocks::new(pool));
                self.pools.len() - 1
            }
            None => return None,
        };
        self.pools.get_mut(at)
    }
}
