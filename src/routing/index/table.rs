//! Rows of block key and set in one flat, open-addressed table.
//!
//! Linear probing from the key's low bits, at most half full; removal shifts the run
//! behind it back, so churn leaves no tombstones. A key of zero marks a free place; the
//! one block in 2^64 whose key is zero shares the place of key one.

use super::super::block::BlockKey;
use super::sets::{NOBODY, SetId, Sets};

const FIRST_CAPACITY: usize = 16;

/// One block: 16 bytes, so four of a run share a cache line.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    key: u64,
    set: SetId,
}

/// Sets by block key. Every row's set has at least one member.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// A power of two of places, or none before the first row.
    rows: Box<[Row]>,
    len: usize,
}

#[expect(
    clippy::indexing_slicing,
    reason = "every place is masked by the capacity, a power of two"
)]
impl Table {
    /// Rows.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The set of a key; [`NOBODY`] when it has no row.
    pub(super) fn get(&self, key: BlockKey) -> SetId {
        if self.len == 0 {
            return NOBODY;
        }
        self.find(stored(key))
            .map_or(NOBODY, |place| self.rows[place].set)
    }

    /// Loads the place where a key's run begins, and nothing else. Asked for several
    /// keys before they are looked at one by one, the cache misses overlap; a probe
    /// alone cannot do that, because how it goes on depends on what was loaded.
    pub(super) fn touch(&self, key: BlockKey) -> u64 {
        if self.len == 0 {
            return 0;
        }
        self.rows[self.home(stored(key))].key
    }

    /// Adds one member to a key's set; false if it was in.
    pub(super) fn set(&mut self, sets: &mut Sets, key: BlockKey, bit: u32) -> bool {
        if (self.len + 1) * 2 > self.rows.len() {
            self.grow();
        }
        let key = stored(key);
        let place = match self.find(key) {
            Ok(place) => place,
            Err(free) => {
                self.rows[free] = Row { key, set: NOBODY };
                self.len += 1;
                free
            }
        };
        let before = self.rows[place].set;
        let after = sets.with(before, bit);
        self.rows[place].set = after;
        before != after
    }

    /// Takes one member out, and drops the row when it was the last; false if it was not in.
    pub(super) fn clear(&mut self, sets: &mut Sets, key: BlockKey, bit: u32) -> bool {
        if self.len == 0 {
            return false;
        }
        let Ok(place) = self.find(stored(key)) else {
            return false;
        };
        self.clear_at(sets, place, bit)
    }

    /// Takes these members (a bit each, in words) out of every row.
    pub(super) fn clear_columns(&mut self, sets: &mut Sets, gone: &[u64]) {
        let mut place = 0;
        while place < self.rows.len() {
            let Row { key, set } = self.rows[place];
            if key != 0 {
                let after = sets.without_all(set, gone);
                self.replace(place, after);
            }
            // A dropped row makes room for one from behind, which has its turn now.
            if self.rows[place].key == key {
                place += 1;
            }
        }
    }

    /// Appends the keys whose sets have this member to `keys`, in no order.
    pub(super) fn keys_of(&self, sets: &Sets, bit: u32, keys: &mut Vec<BlockKey>) {
        let held = self
            .rows
            .iter()
            .filter(|row| row.key != 0 && sets.has(row.set, bit));
        keys.extend(held.map(|row| BlockKey(row.key)));
    }

    fn clear_at(&mut self, sets: &mut Sets, place: usize, bit: u32) -> bool {
        let before = self.rows[place].set;
        let after = sets.without(before, bit);
        self.replace(place, after);
        before != after
    }

    fn replace(&mut self, place: usize, set: SetId) {
        if set == NOBODY {
            self.drop_row(place);
        } else {
            self.rows[place].set = set;
        }
    }

    fn home(&self, key: u64) -> usize {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "only the low bits below the capacity are kept"
        )]
        let low = key as usize;
        low & (self.rows.len() - 1)
    }

    /// The key's place, or else the free place that ends its run. Needs a free place.
    fn find(&self, key: u64) -> Result<usize, usize> {
        let mask = self.rows.len() - 1;
        let mut place = self.home(key);
        loop {
            let here = self.rows[place].key;
            if here == key {
                return Ok(place);
            }
            if here == 0 {
                return Err(place);
            }
            place = (place + 1) & mask;
        }
    }

    /// Empties a place and moves back whatever of the run behind it may stand there.
    fn drop_row(&mut self, place: usize) {
        let mask = self.rows.len() - 1;
        let mut hole = place;
        let mut next = place;
        loop {
            next = (next + 1) & mask;
            let row = self.rows[next];
            if row.key == 0 {
                break;
            }
            // It may move back only as far as its home.
            let home = self.home(row.key);
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(hole) & mask {
                self.rows[hole] = row;
                hole = next;
            }
        }
        self.rows[hole] = Row::default();
        self.len -= 1;
    }

    fn grow(&mut self) {
        let capacity = (self.rows.len() * 2).max(FIRST_CAPACITY);
        let old = std::mem::replace(&mut self.rows, vec![Row::default(); capacity].into());
        for row in old {
            if row.key != 0
                && let Err(free) = self.find(row.key)
            {
                self.rows[free] = row;
            }
        }
    }
}

/// A small table with its own sets, for the blocks in flight.
#[derive(Debug)]
pub(in crate::routing) struct BitTable {
    table: Table,
    sets: Sets,
}

impl BitTable {
    pub(in crate::routing) fn new() -> Self {
        Self {
            table: Table::default(),
            sets: Sets::new(),
        }
    }

    /// Rows.
    pub(in crate::routing) fn len(&self) -> usize {
        self.table.len()
    }

    /// The bits of a key.
    pub(in crate::routing) fn row(&self, key: BlockKey) -> Option<&[u64]> {
        match self.table.get(key) {
            NOBODY => None,
            set => Some(self.sets.bits(set)),
        }
    }

    /// Sets one bit.
    pub(in crate::routing) fn set(&mut self, key: BlockKey, bit: u32) {
        self.table.set(&mut self.sets, key, bit);
    }

    /// Clears one bit, and drops the row when it was the last.
    pub(in crate::routing) fn clear(&mut self, key: BlockKey, bit: u32) {
        self.table.clear(&mut self.sets, key, bit);
    }
}

fn stored(key: BlockKey) -> u64 {
    key.0.max(1)
}
