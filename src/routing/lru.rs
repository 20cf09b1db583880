//! Blocks in the order of their last touch: touch one, drop the oldest.
//!
//! A list through one array, and a table of places in it. Blocks of one prompt are touched together and so lie
//! together, in the array and in the list; the table is small (8 bytes a place, at most five eighths full), so a touch
//! costs about one cache miss. A map of blocks with a queue of touches beside it took twice the memory and half as
//! much time again.

use super::block::BlockKey;

const NONE: u32 = u32::MAX;
const FIRST_CAPACITY: usize = 64;

/// Blocks by their last touch, with the tokens that each stands for.
#[derive(Debug)]
pub(super) struct Lru {
    entries: Vec<Entry>,
    /// First of the entries that hold no block, chained by `newer`.
    free: u32,
    /// A power of two; the hash's upper half chooses the place, the lower half tells blocks apart.
    places: Box<[Place]>,
    len: usize,
    newest: u32,
    oldest: u32,
    tokens: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: BlockKey,
    tokens: u32,
    /// When it was last touched, in the caller's unit.
    tick: u32,
    older: u32,
    newer: u32,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    tag: u32,
    /// `NONE`: free.
    entry: u32,
}

const FREE: Place = Place {
    tag: 0,
    entry: NONE,
};

impl Default for Lru {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            free: NONE,
            places: Box::default(),
            len: 0,
            newest: NONE,
            oldest: NONE,
            tokens: 0,
        }
    }
}

#[expect(
    clippy::indexing_slicing,
    reason = "places are masked by their number, a power of two; entries are named only by places and by one another"
)]
impl Lru {
    /// Tokens of all blocks.
    pub(super) const fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Whether a block is there.
    pub(super) fn contains(&self, key: BlockKey) -> bool {
        self.len > 0 && self.find(key).is_ok()
    }

    /// How many blocks there are.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Every block, in no order.
    pub(super) fn keys(&self) -> impl Iterator<Item = BlockKey> {
        let held = self.places.iter().filter(|place| place.entry != NONE);
        held.map(|place| self.entries[place.entry as usize].key)
    }

    /// Makes a block the newest; true if it was not there. Ticks must not fall for
    /// [`Lru::pop_older_than`] to find all.
    pub(super) fn touch(&mut self, key: BlockKey, tokens: u64, tick: u32) -> bool {
        if (self.len + 1) * 8 > self.places.len() * 5 {
            self.grow();
        }
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        let (entry, new) = match self.find(key) {
            Ok(place) => {
                let entry = self.places[place].entry;
                self.unlink(entry);
                self.tokens -= u64::from(self.entries[entry as usize].tokens);
                (entry, false)
            }
            Err(place) => {
                let entry = self.allocate(key);
                let tag = tag_of(key);
                self.places[place] = Place { tag, entry };
                self.len += 1;
                (entry, true)
            }
        };
        self.entries[entry as usize].tokens = tokens;
        self.entries[entry as usize].tick = tick;
        self.tokens += u64::from(tokens);
        self.link(entry);
        new
    }

    /// Takes the block that was touched longest ago.
    pub(super) fn pop_oldest(&mut self) -> Option<BlockKey> {
        let key = self.entries.get(self.oldest as usize)?.key;
        self.remove(key);
        Some(key)
    }

    /// Takes one block; false if it was not there.
    pub(super) fn remove(&mut self, key: BlockKey) -> bool {
        if self.len == 0 {
            return false;
        }
        let Ok(place) = self.find(key) else {
            return false;
        };
        let entry = self.places[place].entry;
        self.unlink(entry);
        self.tokens -= u64::from(self.entries[entry as usize].tokens);
        self.entries[entry as usize].newer = self.free;
        self.free = entry;
        self.vacate(place);
        true
    }

    /// Takes the block that was touched longest ago, if that was before `tick`.
    pub(super) fn pop_older_than(&mut self, tick: u32) -> Option<BlockKey> {
        let oldest = self.entries.get(self.oldest as usize)?;
        (oldest.tick < tick).then(|| self.pop_oldest()).flatten()
    }

    fn allocate(&mut self, key: BlockKey) -> u32 {
        let fresh = Entry {
            key,
            tokens: 0,
            tick: 0,
            older: NONE,
            newer: NONE,
        };
        if let Some(entry) = self.entries.get_mut(self.free as usize) {
            let at = self.free;
            self.free = entry.newer;
            *entry = fresh;
            return at;
        }
        if self.entries.len() == self.entries.capacity() {
            // By a quarter, not by half or the whole: there is one such list an endpoint, and its end is known.
            self.entries
                .reserve_exact(self.entries.len() / 4 + FIRST_CAPACITY);
        }
        self.entries.push(fresh);
        // So many blocks never fit into memory.
        u32::try_from(self.entries.len() - 1).unwrap_or(NONE)
    }

    fn link(&mut self, entry: u32) {
        let newest = self.newest;
        let here = &mut self.entries[entry as usize];
        (here.older, here.newer) = (newest, NONE);
        match self.entries.get_mut(newest as usize) {
            Some(before) => before.newer = entry,
            None => self.oldest = entry,
        }
        self.newest = entry;
    }

    fn unlink(&mut self, entry: u32) {
        let Entry { older, newer, .. } = self.entries[entry as usize];
        match self.entries.get_mut(older as usize) {
            Some(before) => before.newer = newer,
            None => self.oldest = newer,
        }
        match self.entries.get_mut(newer as usize) {
            Some(behind) => behind.older = older,
            None => self.newest = older,
        }
    }

    /// The block's place, or else the free one that ends its run. Needs a free place.
    fn find(&self, key: BlockKey) -> Result<usize, usize> {
        let mask = self.places.len() - 1;
        let tag = tag_of(key);
        let mut place = tag as usize & mask;
        loop {
            let here = self.places[place];
            if here.entry == NONE {
                return Err(place);
            }
            if here.tag == tag && self.entries[here.entry as usize].key == key {
                return Ok(place);
            }
            place = (place + 1) & mask;
        }
    }

    /// Frees a place, and moves back whatever of the run behind it may stand there.
    fn vacate(&mut self, place: usize) {
        let mask = self.places.len() - 1;
        let mut hole = place;
        let mut next = place;
        loop {
            next = (next + 1) & mask;
            let here = self.places[next];
            if here.entry == NONE {
                break;
            }
            // It may move back only as far as its home.
            let home = here.tag as usize & mask;
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(hole) & mask {
                self.places[hole] = here;
                hole = next;
            }
        }
        self.places[hole] = FREE;
        self.len -= 1;
    }

    fn grow(&mut self) {
        let capacity = (self.places.len() * 2).max(FIRST_CAPACITY);
        let old = std::mem::replace(&mut self.places, vec![FREE; capacity].into_boxed_slice());
        for held in old.iter().filter(|place| place.entry != NONE) {
            let mut place = held.tag as usize & (capacity - 1);
            while self.places[place].entry != NONE {
                place = (place + 1) & (capacity - 1);
            }
            self.places[place] = *held;
        }
    }
}

/// Keys are uniform hashes. The index uses their upper bits for its segments and the lower ones for places; here the
/// upper half serves for both.
fn tag_of(key: BlockKey) -> u32 {
    u32::try_from(key.0 >> 32).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The naive twin: a list, the oldest first.
    #[derive(Default)]
    struct List(Vec<(BlockKey, u64)>);

    impl List {
        fn touch(&mut self, key: BlockKey, tokens: u64) -> bool {
            let before = self.0.len();
            self.0.retain(|(here, _)| *here != key);
            self.0.push((key, tokens));
            self.0.len() > before
        }

        fn pop_oldest(&mut self) -> Option<BlockKey> {
            (!self.0.is_empty()).then(|| self.0.remove(0).0)
        }

        fn remove(&mut self, key: BlockKey) -> bool {
            let before = self.0.len();
            self.0.retain(|(here, _)| *here != key);
            self.0.len() < before
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Touch(BlockKey, u64),
        PopOldest,
        Remove(BlockKey),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (key(), 1_u64..100).prop_map(|(key, tokens)| Step::Touch(key, tokens)),
            2 => Just(Step::PopOldest),
            1 => key().prop_map(Step::Remove),
        ]
    }

    /// Few tags, so that runs collide, and keys that share one.
    fn key() -> impl Strategy<Value = BlockKey> {
        (0_u64..40, 0_u64..3).prop_map(|(tag, low)| BlockKey(((tag * tag) << 32) | low))
    }

    proptest! {
        #[test]
        fn it_answers_as_a_plain_list(
            steps in prop::collection::vec(step(), 0..400),
        ) {
            let (mut lru, mut list) = (Lru::default(), List::default());
            for step in steps {
                match step {
                    Step::Touch(key, tokens) => {
                        prop_assert_eq!(lru.touch(key, tokens, 0), list.touch(key, tokens));
                        prop_assert!(lru.contains(key));
                    }
                    Step::PopOldest => prop_assert_eq!(lru.pop_oldest(), list.pop_oldest()),
                    Step::Remove(key) => {
                        prop_assert_eq!(lru.remove(key), list.remove(key));
                        prop_assert!(!lru.contains(key));
                    }
                }
                prop_assert_eq!(lru.len(), list.0.len());
                prop_assert_eq!(lru.tokens(), list.0.iter().map(|(_, tokens)| tokens).sum::<u64>());
            }
            let mut held: Vec<BlockKey> = lru.keys().collect();
            let mut expected: Vec<BlockKey> = list.0.iter().map(|(key, _)| *key).collect();
            held.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(held, expected);
            while let Some(key) = list.pop_oldest() {
                prop_assert_eq!(lru.pop_oldest(), Some(key));
            }
            prop_assert_eq!(lru.pop_oldest(), None);
        }
    }

    #[test]
    fn places_and_entries_are_used_again() {
        let mut lru = Lru::default();
        for n in 0..100_000_u64 {
            lru.touch(BlockKey(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)), 16, 0);
            if n >= 1000 {
                lru.pop_oldest();
            }
        }
        assert!(lru.entries.capacity() < 2000);
        assert!(lru.places.len() <= 2048);
    }
}
