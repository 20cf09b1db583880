//! Sets of sources, each kept once however many blocks have it.
//!
//! Neighbouring blocks of a chain mostly have the same holders, and most blocks have
//! one holder. So a row carries a set's number instead of its bits: rows stay small, a
//! lookup compares numbers, and a store finds the next set where the last one did.

use rustc_hash::FxHashMap;

/// A set's number. [`NOBODY`] is the empty set.
pub(super) type SetId = u32;

/// The empty set: no row has it.
pub(super) const NOBODY: SetId = 0;

/// Last steps from set to set that are remembered, by a mix of their start.
const STEPS: usize = 64;

/// Sets that no row has any more are dropped once there are this many of them and
/// they outnumber the others.
const FEWEST_TO_SWEEP: usize = 1024;

/// One remembered step: with or without a bit, `from` becomes `to`.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    from: SetId,
    bit: u32,
    to: SetId,
}

/// All sets in use.
#[derive(Debug)]
pub(super) struct Sets {
    words: usize,
    /// `words` numbers a set.
    bits: Vec<u64>,
    /// Rows that have each set.
    rows: Vec<u32>,
    /// Sets of a single source, by source; never dropped.
    singles: Vec<SetId>,
    by_bits: FxHashMap<Box<[u64]>, SetId>,
    free: Vec<SetId>,
    unused: usize,
    steps: [Step; STEPS],
}

#[expect(
    clippy::indexing_slicing,
    reason = "set numbers come from this very list, and bits has words x sets numbers"
)]
impl Sets {
    pub(super) fn new() -> Self {
        Self {
            words: 1,
            bits: vec![0],
            rows: vec![0],
            singles: Vec::new(),
            by_bits: FxHashMap::default(),
            free: Vec::new(),
            unused: 0,
            steps: [Step::default(); STEPS],
        }
    }

    /// The bits of a set.
    pub(super) fn bits(&self, set: SetId) -> &[u64] {
        let start = set as usize * self.words;
        &self.bits[start..start + self.words]
    }

    pub(super) fn has(&self, set: SetId, bit: u32) -> bool {
        let (word, mask) = word_and_mask(bit);
        self.bits(set)
            .get(word)
            .is_some_and(|bits| bits & mask != 0)
    }

    /// A row's set with a bit more, or the same set when it has the bit. The row is
    /// counted over.
    pub(super) fn with(&mut self, from: SetId, bit: u32) -> SetId {
        if from == NOBODY {
            let single = self.single(bit);
            return self.count_over(from, single);
        }
        if self.has(from, bit) {
            return from;
        }
        let to = self.step(from, bit);
        self.count_over(from, to)
    }

    /// A row's set with a bit less. The row is counted over.
    pub(super) fn without(&mut self, from: SetId, bit: u32) -> SetId {
        if !self.has(from, bit) {
            return from;
        }
        let to = if self.singles.get(bit as usize) == Some(&from) {
            NOBODY
        } else {
            self.step(from, bit)
        };
        self.count_over(from, to)
    }

    /// A row's set without any of these bits (words as in [`Sets::bits`]). The row is counted over.
    pub(super) fn without_all(&mut self, mut from: SetId, gone: &[u64]) -> SetId {
        while let Some(bit) = self.first_common(from, gone) {
            from = self.without(from, bit);
        }
        from
    }

    fn first_common(&self, set: SetId, bits: &[u64]) -> Option<u32> {
        let common = self.bits(set).iter().zip(bits).map(|(a, b)| a & b);
        let (word, common) = (0..).zip(common).find(|(_, common)| *common != 0)?;
        Some(word * 64 + common.trailing_zeros())
    }

    fn count_over(&mut self, from: SetId, to: SetId) -> SetId {
        if to != NOBODY {
            self.unused -= usize::from(self.rows[to as usize] == 0);
            self.rows[to as usize] += 1;
        }
        if from != NOBODY {
            self.rows[from as usize] -= 1;
            self.unused += usize::from(self.rows[from as usize] == 0);
        }
        if self.unused > FEWEST_TO_SWEEP && self.unused * 2 > self.rows.len() {
            self.sweep();
        }
        to
    }

    /// The set that differs from `from` in one bit.
    fn step(&mut self, from: SetId, bit: u32) -> SetId {
        let place = (from.wrapping_mul(31) ^ bit) as usize % STEPS;
        let known = self.steps[place];
        if known.from == from && known.bit == bit && known.to != NOBODY {
            return known.to;
        }
        let (word, mask) = word_and_mask(bit);
        self.widen(word);
        let mut bits: Box<[u64]> = self.bits(from).into();
        bits[word] ^= mask;
        // A last member that never was a set's first one is not among the singles.
        if bits.iter().all(|bits| *bits == 0) {
            return NOBODY;
        }
        let to = self.intern(bits);
        self.steps[place] = Step { from, bit, to };
        to
    }

    fn single(&mut self, bit: u32) -> SetId {
        if let Some(&set) = self.singles.get(bit as usize)
            && set != NOBODY
        {
            return set;
        }
        let (word, mask) = word_and_mask(bit);
        self.widen(word);
        let mut bits = vec![0; self.words].into_boxed_slice();
        bits[word] = mask;
        let set = self.intern(bits);
        if self.singles.len() <= bit as usize {
            self.singles.resize(bit as usize + 1, NOBODY);
        }
        self.singles[bit as usize] = set;
        // One row more than there are, so that it is never unused.
        self.unused -= usize::from(self.rows[set as usize] == 0);
        self.rows[set as usize] += 1;
        set
    }

    fn intern(&mut self, bits: Box<[u64]>) -> SetId {
        if let Some(&set) = self.by_bits.get(&bits) {
            return set;
        }
        let set = self.free.pop().unwrap_or_else(|| {
            self.rows.push(0);
            self.bits.resize(self.rows.len() * self.words, 0);
            SetId::try_from(self.rows.len() - 1).unwrap_or(SetId::MAX)
        });
        let start = set as usize * self.words;
        self.bits[start..start + self.words].copy_from_slice(&bits);
        self.by_bits.insert(bits, set);
        self.unused += 1;
        set
    }

    /// Makes room for a word. Numbers stay; every set's bits move.
    fn widen(&mut self, word: usize) {
        if word < self.words {
            return;
        }
        let (old, new) = (self.words, (word + 1).next_power_of_two());
        let mut bits = vec![0; self.rows.len() * new];
        for (to, from) in bits.chunks_exact_mut(new).zip(self.bits.chunks_exact(old)) {
            to[..old].copy_from_slice(from);
        }
        self.bits = bits;
        self.words = new;
        let by_bits = std::mem::take(&mut self.by_bits);
        let sets = by_bits.into_values();
        self.by_bits = sets.map(|set| (self.bits(set).into(), set)).collect();
    }

    /// Drops the sets that no row has. Remembered steps may lead to one, so they go too.
    fn sweep(&mut self) {
        let rows = &self.rows;
        let free = &mut self.free;
        self.by_bits.retain(|_, set| {
            let used = rows[*set as usize] > 0;
            if !used {
                free.push(*set);
            }
            used
        });
        self.unused = 0;
        self.steps = [Step::default(); STEPS];
    }
}

pub(super) fn word_and_mask(bit: u32) -> (usize, u64) {
    ((bit / 64) as usize, 1 << (bit % 64))
}
