//! Which block holds which content? A hash table of block numbers that never grows, because a pool does not.
//!
//! Twenty simulated engines change 6,000 contents a virtual second, all over their tables, so what counts is how many
//! cache lines that takes: eight bytes a place, and [`ContentTable::touch`] to load the places of several contents at
//! once before they are looked at one by one. Instead of hashbrown's table: 125 → 100 µs a simulated request.

use super::free_list::BlockId;
use crate::routing::event::EngineHash;

/// Contents whose places are worth loading at once: about as many cache misses as a core has under way.
pub(super) const TOUCHED_AHEAD: usize = 16;

/// From place to place of a run: odd, so that a run comes by every place. The names of a simulated prompt's contents are
/// even or odd for 64 neighbours, which then have every other place of a few cache lines; where two such groups meet, a
/// content of the later one finds its place between those of the other, or passes a few of them. In steps of 1, 9 and 129 a
/// simulated request took 61, 57 and 60 µs (medians of six, in turns).
const STRIDE: u32 = 9;

/// `STRIDE * UNSTRIDE` is 1 in 32 bits: turns a way into the number of steps.
const UNSTRIDE: u32 = 0x38e3_8e39;

#[derive(Clone, Copy, Default)]
struct Place {
    /// Half of the hash: where its run begins, and mostly enough to tell it from others.
    tag: u32,
    /// The block's number and one; zero if the place is free.
    block: u32,
}

/// At most half full, linear probing, and removal shifts the run behind it back.
pub(super) struct ContentTable {
    places: Box<[Place]>,
    mask: u32,
}

#[expect(
    clippy::indexing_slicing,
    reason = "every place is masked by the capacity, a power of two"
)]
impl ContentTable {
    /// For a pool of so many blocks, each with one content at most.
    pub(super) fn new(blocks: usize) -> Self {
        let capacity = blocks.saturating_mul(2).max(2).next_power_of_two();
        Self {
            places: vec![Place::default(); capacity].into(),
            mask: u32::try_from(capacity - 1).unwrap_or(u32::MAX),
        }
    }

    /// Loads the place where a content's run begins, and nothing else.
    pub(super) fn touch(&self, hash: EngineHash) -> u32 {
        self.places[(tag(hash) & self.mask) as usize].block
    }

    /// The block with a content; `has` says whether a block has it.
    pub(super) fn get(&self, hash: EngineHash, has: impl Fn(BlockId) -> bool) -> Option<BlockId> {
        let place = self.find(tag(hash), has);
        block_of(self.places[place as usize])
    }

    /// Says which block has a content; the one that `has` it no longer stands for it.
    pub(super) fn set(&mut self, hash: EngineHash, block: BlockId, has: impl Fn(BlockId) -> bool) {
        let tag = tag(hash);
        let place = self.find(tag, has);
        self.places[place as usize] = Place {
            tag,
            block: block + 1,
        };
    }

    /// The block with a content, or `None`: then from now on this one has it.
    pub(super) fn get_or_set(
        &mut self,
        hash: EngineHash,
        block: BlockId,
        has: impl Fn(BlockId) -> bool,
    ) -> Option<BlockId> {
        let tag = tag(hash);
        let place = self.find(tag, has) as usize;
        let there = block_of(self.places[place]);
        if there.is_none() {
            self.places[place] = Place {
                tag,
                block: block + 1,
            };
        }
        there
    }

    /// Nobody has the content any more that this block stood for. False if another one stands for it, or none.
    pub(super) fn remove(&mut self, hash: EngineHash, block: BlockId) -> bool {
        let mut free = self.find(tag(hash), |other| other == block);
        if self.places[free as usize].block == 0 {
            return false;
        }
        let mut next = free;
        loop {
            next = (next + STRIDE) & self.mask;
            let place = self.places[next as usize];
            if place.block == 0 {
                break;
            }
            // It may move to the free place unless its run begins behind that.
            if self.steps(place.tag, next) >= self.steps(free, next) {
                self.places[free as usize] = place;
                free = next;
            }
        }
        self.places[free as usize] = Place::default();
        true
    }

    /// Every block that stands for a content, in no order.
    pub(super) fn blocks(&self) -> impl Iterator<Item = BlockId> {
        self.places.iter().copied().filter_map(block_of)
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.places.fill(Place::default());
    }

    /// From one place of a run to another.
    const fn steps(&self, from: u32, to: u32) -> u32 {
        to.wrapping_sub(from).wrapping_mul(UNSTRIDE) & self.mask
    }

    /// The content's place, or the free one that ends its run.
    fn find(&self, tag: u32, has: impl Fn(BlockId) -> bool) -> u32 {
        let mut at = tag & self.mask;
        loop {
            let place = self.places[at as usize];
            match block_of(place) {
                None => return at,
                Some(block) if place.tag == tag && has(block) => return at,
                Some(_) => at = (at + STRIDE) & self.mask,
            }
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "half of it is wanted")]
const fn tag(hash: EngineHash) -> u32 {
    hash.0 as u32
}

fn block_of(place: Place) -> Option<BlockId> {
    place.block.checked_sub(1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_holds_what_a_map_would_hold(
            changes in prop::collection::vec((0..3_u64, 0..6_u64, 0..16_u32), 1..200),
        ) {
            // Few tags, so that runs are long and several contents have one tag.
            let mut table = ContentTable::new(16);
            let mut twin: BTreeMap<u64, BlockId> = BTreeMap::new();
            for (tag, rest, block) in changes {
                let hash = (rest << 32) | (tag * 31);
                let before = twin.get(&hash).copied();
                let holder = |of: &BTreeMap<u64, BlockId>, block| {
                    of.iter().find(|(_, other)| **other == block).map(|(hash, _)| *hash)
                };
                prop_assert_eq!(
                    table.get(EngineHash(hash), |block| holder(&twin, block) == Some(hash)),
                    before
                );
                match (before, holder(&twin, block)) {
                    // A block stands for one content only.
                    (_, Some(other)) => {
                        prop_assert!(table.remove(EngineHash(other), block));
                        prop_assert!(!table.remove(EngineHash(other), block));
                        twin.remove(&other);
                    }
                    (_, None) => {
                        let has = |block| holder(&twin, block) == Some(hash);
                        if block % 2 == 0 {
                            table.set(EngineHash(hash), block, has);
                            twin.insert(hash, block);
                        } else {
                            prop_assert_eq!(table.get_or_set(EngineHash(hash), block, has), before);
                            twin.entry(hash).or_insert(block);
                        }
                    }
                }
                let mut blocks: Vec<_> = table.blocks().collect();
                let mut expected: Vec<_> = twin.values().copied().collect();
                blocks.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(blocks, expected);
            }
        }
    }
}
