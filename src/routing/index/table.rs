//! Rows of block key and bit set in one flat, open-addressed table.
//!
//! Linear probing from the key's low bits, at most half full; removal shifts
//! the run behind it back, so churn leaves no tombstones. A key of zero marks a free
//! place; the one block in 2^64 whose key is zero shares the place of key one.

use super::super::block::BlockKey;

const FIRST_CAPACITY: usize = 16;

/// Bit sets by block key. Every row has at least one bit.
#[derive(Debug)]
pub(in crate::routing) struct Table {
    /// `capacity` places of `1 + words` numbers: the key, then its bits.
    rows: Box<[u64]>,
    words: usize,
    capacity: usize,
    len: usize,
}

#[expect(
    clippy::indexing_slicing,
    reason = "every place is masked by the capacity, a power of two, and rows has capacity x stride numbers"
)]
impl Table {
    /// Empty, without memory.
    pub(in crate::routing) fn new() -> Self {
        Self {
            rows: Box::default(),
            words: 1,
            capacity: 0,
            len: 0,
        }
    }

    /// Rows.
    pub(in crate::routing) fn len(&self) -> usize {
        self.len
    }

    /// The bits of a key.
    pub(in crate::routing) fn row(&self, key: BlockKey) -> Option<&[u64]> {
        if self.len == 0 {
            return None;
        }
        let place = self.find(stored(key)).ok()?;
        let start = place * self.stride() + 1;
        Some(&self.rows[start..start + self.words])
    }

    /// Loads the place where a key's run begins, and nothing else. Asked for several
    /// keys before they are looked at one by one, the cache misses overlap; a probe
    /// alone cannot do that, because how it goes on depends on what was loaded.
    pub(in crate::routing) fn touch(&self, key: BlockKey) -> u64 {
        if self.len == 0 {
            return 0;
        }
        self.rows[self.home(stored(key)) * self.stride()]
    }

    /// Sets one bit; false if it was set.
    pub(in crate::routing) fn set(&mut self, key: BlockKey, bit: u32) -> bool {
        let (word, mask) = word_and_mask(bit);
        if word >= self.words {
            self.rebuild(
                self.capacity.max(FIRST_CAPACITY),
                (word + 1).next_power_of_two(),
            );
        } else if (self.len + 1) * 2 > self.capacity {
            self.rebuild((self.capacity * 2).max(FIRST_CAPACITY), self.words);
        }
        let key = stored(key);
        let place = match self.find(key) {
            Ok(place) => place,
            Err(free) => {
                let start = free * self.stride();
                self.rows[start] = key;
                self.len += 1;
                free
            }
        };
        let bits = &mut self.rows[place * (1 + self.words) + 1 + word];
        let new = *bits & mask == 0;
        *bits |= mask;
        new
    }

    /// Clears one bit, and drops the row when it was the last; false if it was not set.
    pub(in crate::routing) fn clear(&mut self, key: BlockKey, bit: u32) -> bool {
        let (word, mask) = word_and_mask(bit);
        if self.len == 0 || word >= self.words {
            return false;
        }
        let Ok(place) = self.find(stored(key)) else {
            return false;
        };
        self.clear_at(place, word, mask)
    }

    /// Clears one bit in every row.
    pub(in crate::routing) fn clear_column(&mut self, bit: u32) {
        let (word, mask) = word_and_mask(bit);
        if word >= self.words {
            return;
        }
        let mut place = 0;
        while place < self.capacity {
            let before = self.rows[place * self.stride()];
            self.clear_at(place, word, mask);
            // A dropped row makes room for one from behind, which has its turn now.
            if self.rows[place * self.stride()] == before || before == 0 {
                place += 1;
            }
        }
    }

    fn clear_at(&mut self, place: usize, word: usize, mask: u64) -> bool {
        let start = place * self.stride();
        let bits = &mut self.rows[start + 1 + word];
        if *bits & mask == 0 {
            return false;
        }
        *bits &= !mask;
        if self.rows[start + 1..start + self.stride()]
            .iter()
            .all(|bits| *bits == 0)
        {
            self.drop_row(place);
        }
        true
    }

    fn stride(&self) -> usize {
        1 + self.words
    }

    fn home(&self, key: u64) -> usize {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "only the low bits below the capacity are kept"
        )]
        let low = key as usize;
        low & (self.capacity - 1)
    }

    /// The key's place, or else the free place that ends its run. Needs a free place.
    fn find(&self, key: u64) -> Result<usize, usize> {
        let stride = self.stride();
        let mask = self.capacity - 1;
        let mut place = self.home(key);
        loop {
            let here = self.rows[place * stride];
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
        let stride = self.stride();
        let mask = self.capacity - 1;
        let mut hole = place;
        let mut next = place;
        loop {
            next = (next + 1) & mask;
            let key = self.rows[next * stride];
            if key == 0 {
                break;
            }
            // It may move back only as far as its home.
            let home = self.home(key);
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(hole) & mask {
                self.rows
                    .copy_within(next * stride..(next + 1) * stride, hole * stride);
                hole = next;
            }
        }
        self.rows[hole * stride..(hole + 1) * stride].fill(0);
        self.len -= 1;
    }

    fn rebuild(&mut self, capacity: usize, words: usize) {
        let old = std::mem::take(&mut self.rows);
        let old_stride = self.stride();
        self.capacity = capacity;
        self.words = words;
        self.rows = vec![0; capacity * self.stride()].into_boxed_slice();
        for row in old.chunks_exact(old_stride) {
            if row[0] != 0
                && let Err(free) = self.find(row[0])
            {
                let start = free * self.stride();
                self.rows[start..start + old_stride].copy_from_slice(row);
            }
        }
        // Widening alone can meet a table that is also due to grow.
        if (self.len + 1) * 2 > capacity {
            self.rebuild(capacity * 2, words);
        }
    }
}

fn stored(key: BlockKey) -> u64 {
    key.0.max(1)
}

fn word_and_mask(bit: u32) -> (usize, u64) {
    ((bit / 64) as usize, 1 << (bit % 64))
}
