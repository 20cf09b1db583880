//! Which endpoint holds which block: store, remove, longest prefix of a prompt per endpoint.
//!
//! One row a block: its key and the number of a set of *sources* (an endpoint's rank)
//! that hold it. A lookup walks a prompt's keys and narrows the set of sources that
//! hold everything so far, so it is exact with any holes.
//!
//! Keys are uniform hashes, so the table needs no hasher; a row is 16 bytes whatever
//! the number of sources, so a block costs one cache miss. The rows are cut into 256
//! segments by the key's top bits, so that growing or sweeping never holds the lock
//! for longer than one segment takes.
//!
//! A source may hold a block for several reasons at once (two engine hashes of one
//! content, a credit beside an event); it holds it until the last of them is gone.
//!
//! A source may have a second column *beneath* it, for blocks on a slower tier. The engine
//! looks there only for what follows the blocks that it has at hand, so a lookup walks the
//! lower column on from where the upper one ends. It does so after the first walk, and only
//! in an index where somebody has such a column. Measured at 256 sources and 500 blocks (two
//! shared cores, in turns with the index before it knew lower columns): 0.98 times the time
//! without any (5.3 µs; the noise is larger), 1.5 to 1.9 times with one beneath every source.
//!
//! One `RwLock` guards all segments. Lookups share it; writers (one an event batch,
//! in chunks) hold it for tens of nanoseconds a block.

use parking_lot::{RwLock, RwLockWriteGuard};
use rustc_hash::FxHashMap;

use super::block::BlockKey;

use sets::{NOBODY, SetId, Sets};
use table::Table;

mod beneath;
#[cfg(test)]
mod naive;
mod sets;
pub(super) mod table;
#[cfg(test)]
mod tests;

const SEGMENT_BITS: u32 = 8;

/// Keys whose rows are loaded ahead of being looked at: about as many cache misses as
/// a core has under way at once.
pub const TOUCHED_AHEAD: usize = 16;

/// One life of one column of the index: a rank of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceId {
    /// Dense, from 0: the source's bit in every row.
    pub slot: u32,
    /// Counts the lives of that slot.
    pub generation: u32,
}

/// What a lookup found of one source; not both numbers are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Who holds the prefix.
    pub source: SourceId,
    /// How many blocks from the start it holds without a hole.
    pub blocks: u32,
    /// How many further blocks follow them in the column beneath it without a hole.
    pub beneath: u32,
}

#[derive(Clone, Debug)]
struct Source {
    generation: u32,
    open: bool,
    blocks: u64,
    /// Further reasons of blocks that are held for several; most have one.
    further: FxHashMap<BlockKey, u32>,
    level: Level,
}

/// Where a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    /// By itself, with the slot of the column beneath it, if it has one.
    Upper(Option<u32>),
    /// Beneath another one, and found only through it.
    Lower,
}

impl Source {
    fn new() -> Self {
        Self {
            generation: 0,
            open: true,
            blocks: 0,
            further: FxHashMap::default(),
            level: Level::Upper(None),
        }
    }

    /// Takes one of a block's further reasons away; false when there was none.
    fn drop_further(&mut self, key: BlockKey) -> bool {
        // Empty for most sources: then no hash is made.
        if self.further.is_empty() {
            return false;
        }
        let Some(further) = self.further.get_mut(&key) else {
            return false;
        };
        *further -= 1;
        if *further == 0 {
            self.further.remove(&key);
        }
        true
    }
}

struct Rows {
    segments: Vec<Table>,
    sets: Sets,
    sources: Vec<Source>,
    free: Vec<u32>,
    /// Upper slot and lower slot of every open source that has a column beneath it.
    pairs: Vec<(u32, u32)>,
}

/// Which source holds which block.
pub struct PrefixIndex {
    rows: RwLock<Rows>,
}

impl Default for PrefixIndex {
    fn default() -> Self {
        Self::new()
    }
}

impl PrefixIndex {
    /// Without sources and blocks.
    pub fn new() -> Self {
        let segments = (0..1_usize << SEGMENT_BITS)
            .map(|_| Table::default())
            .collect();
        Self {
            rows: RwLock::new(Rows {
                segments,
                sets: Sets::new(),
                sources: Vec::new(),
                free: Vec::new(),
                pairs: Vec::new(),
            }),
        }
    }

    /// A new source without blocks, in a free slot.
    pub fn open(&self) -> SourceId {
        self.rows.write().open()
    }

    /// The column beneath a source, new and empty if it has none yet; `None` once the source is
    /// closed, and for one that is itself beneath another. It ends with the source.
    pub fn open_beneath(&self, upper: SourceId) -> Option<SourceId> {
        let rows = &mut *self.rows.write();
        let Level::Upper(beneath) = rows.living(upper)?.level else {
            return None;
        };
        if let Some(slot) = beneath {
            let generation = rows.sources.get(slot as usize)?.generation;
            return Some(SourceId { slot, generation });
        }
        let lower = rows.open();
        if let Some(source) = rows.sources.get_mut(lower.slot as usize) {
            source.level = Level::Lower;
        }
        if let Some(source) = rows.sources.get_mut(upper.slot as usize) {
            source.level = Level::Upper(Some(lower.slot));
        }
        rows.pairs.push((upper.slot, lower.slot));
        Some(lower)
    }

    /// Ends a source's life, as [`PrefixIndex::close_all`] does.
    pub fn close(&self, id: SourceId) {
        self.close_all(&[id]);
    }

    /// Ends the lives of sources and of the columns beneath them: late writes under these ids do
    /// nothing from here on, their blocks are forgotten, and then their slots are free for others. All blocks of the index
    /// are swept over once, however many sources end: 50 of 100 sources with 20,000 blocks each took
    /// 0.09 s on a busy machine at once, and 4 s one by one.
    pub fn close_all(&self, ids: &[SourceId]) {
        let mut closing = Vec::new();
        let mut gone = Vec::new();
        {
            let rows = &mut *self.rows.write();
            for &id in ids {
                rows.end_life(id, &mut closing);
            }
        }
        for slot in &closing {
            let word = (slot / 64) as usize;
            gone.resize(gone.len().max(word + 1), 0_u64);
            if let Some(bits) = gone.get_mut(word) {
                *bits |= 1 << (slot % 64);
            }
        }
        if closing.is_empty() {
            return;
        }
        // Segment by segment, so that nobody waits for the whole sweep. The slots are
        // not free yet and their bits count for nobody: lookups skip closed sources.
        for segment in 0..1_usize << SEGMENT_BITS {
            let rows = &mut *self.rows.write();
            if let Some(table) = rows.segments.get_mut(segment) {
                table.clear_columns(&mut rows.sets, &gone);
            }
        }
        let rows = &mut *self.rows.write();
        for slot in closing {
            if let Some(source) = rows.sources.get_mut(slot as usize) {
                source.blocks = 0;
            }
            rows.free.push(slot);
        }
    }

    /// The right to write for one source; `None` once it is closed. Holds the lock.
    pub fn write(&self, id: SourceId) -> Option<Writer<'_>> {
        let rows = self.rows.write();
        let slot = rows.living(id).map(|_| id.slot)?;
        Some(Writer { rows, slot })
    }

    /// The longest prefix of `keys` that each source holds, and what follows it beneath; sources
    /// of which neither column has anything are not named.
    pub fn lookup(&self, keys: &[BlockKey]) -> Vec<Match> {
        let rows = self.rows.read();
        let held = rows.walk(keys);
        if rows.pairs.is_empty() {
            return held
                .into_iter()
                .filter_map(|(slot, blocks)| rows.found(slot, blocks, 0))
                .collect();
        }
        rows.walk_beneath(keys, &held)
    }

    /// Whether a source holds a block.
    pub fn holds(&self, id: SourceId, key: BlockKey) -> bool {
        let rows = self.rows.read();
        let source = rows.sources.get(id.slot as usize);
        let is_open = source.is_some_and(|s| s.open && s.generation == id.generation);
        let bits = rows.sets.bits(rows.set_of(key));
        let word = bits.get((id.slot / 64) as usize).copied().unwrap_or(0);
        is_open && word >> (id.slot % 64) & 1 == 1
    }

    /// Blocks that a source holds; zero once it is closed.
    pub fn blocks(&self, id: SourceId) -> u64 {
        let rows = self.rows.read();
        rows.living(id).map_or(0, |source| source.blocks)
    }

    /// The blocks that a source holds, in no order; none once it is closed. Segment by segment, so that
    /// writers wait for one of them at most (20 µs at a million blocks): what is written meanwhile may
    /// be in the list or not.
    pub fn keys(&self, id: SourceId) -> Vec<BlockKey> {
        let mut keys = Vec::new();
        for segment in 0..1_usize << SEGMENT_BITS {
            let rows = self.rows.read();
            let source = rows.sources.get(id.slot as usize);
            if source.is_none_or(|source| !source.open || source.generation != id.generation) {
                return Vec::new();
            }
            if let Some(table) = rows.segments.get(segment) {
                table.keys_of(&rows.sets, id.slot, &mut keys);
            }
        }
        keys
    }

    /// Distinct blocks over all sources.
    pub fn len(&self) -> usize {
        self.rows.read().segments.iter().map(Table::len).sum()
    }

    /// Nobody holds anything.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Rows {
    fn living(&self, id: SourceId) -> Option<&Source> {
        let source = self.sources.get(id.slot as usize)?;
        (source.open && source.generation == id.generation).then_some(source)
    }

    fn open(&mut self) -> SourceId {
        if let Some(slot) = self.free.pop()
            && let Some(source) = self.sources.get_mut(slot as usize)
        {
            source.open = true;
            source.level = Level::Upper(None);
            return SourceId {
                slot,
                generation: source.generation,
            };
        }
        let slot = u32::try_from(self.sources.len()).unwrap_or(u32::MAX);
        self.sources.push(Source::new());
        SourceId {
            slot,
            generation: 0,
        }
    }

    /// Closes a source and the column beneath it, and names their slots.
    fn end_life(&mut self, id: SourceId, closing: &mut Vec<u32>) {
        let Some(level) = self.living(id).map(|source| source.level) else {
            return;
        };
        let beneath = match level {
            Level::Upper(beneath) => beneath,
            // It ends with the source above it, which would walk into it otherwise.
            Level::Lower => return,
        };
        for slot in [Some(id.slot), beneath].into_iter().flatten() {
            if let Some(source) = self.sources.get_mut(slot as usize) {
                source.open = false;
                source.further = FxHashMap::default();
                source.generation = source.generation.wrapping_add(1);
                closing.push(slot);
            }
        }
        self.pairs.retain(|&(upper, _)| upper != id.slot);
    }

    /// How many blocks of a prompt each column holds, closed ones and lower ones too.
    fn walk(&self, keys: &[BlockKey]) -> Vec<(u32, u32)> {
        let first = keys.first().map_or(NOBODY, |&key| self.set_of(key));
        if first == NOBODY {
            return Vec::new();
        }
        let mut walk = Walk::new(first, self.sets.bits(first));
        let mut depth = 1;
        'walk: for ahead in keys.get(1..).unwrap_or_default().chunks(TOUCHED_AHEAD) {
            self.touch(ahead);
            for &key in ahead {
                let set = self.set_of(key);
                // Neighbours mostly have the same holders, who are narrowed to already.
                if set != walk.last && !walk.narrow(set, self.sets.bits(set), depth) {
                    break 'walk;
                }
                depth += 1;
            }
        }
        walk.finish(keys.len());
        walk.matches
    }

    fn found(&self, slot: u32, blocks: u32, beneath: u32) -> Option<Match> {
        let source = self.sources.get(slot as usize)?;
        source.open.then_some(Match {
            source: SourceId {
                slot,
                generation: source.generation,
            },
            blocks,
            beneath,
        })
    }

    fn set_of(&self, key: BlockKey) -> SetId {
        let table = self.segments.get(segment_of(key));
        table.map_or(NOBODY, |table| table.get(key))
    }

    fn touch(&self, keys: &[BlockKey]) {
        let loaded = keys.iter().fold(0, |loaded, &key| {
            loaded
                ^ self
                    .segments
                    .get(segment_of(key))
                    .map_or(0, |table| table.touch(key))
        });
        // Keeps the loads, which nobody else needs the result of.
        std::hint::black_box(loaded);
    }
}

/// The top bits choose the segment, the low bits the place in it.
fn segment_of(key: BlockKey) -> usize {
    usize::try_from(key.0 >> (64 - SEGMENT_BITS)).unwrap_or(0)
}

/// Writes for one source. Holds the index's lock, so live briefly.
pub struct Writer<'a> {
    rows: RwLockWriteGuard<'a, Rows>,
    slot: u32,
}

impl Writer<'_> {
    /// Says which keys are written next, a handful at a time, so that their cache
    /// misses overlap. Changes nothing.
    pub fn touch(&self, keys: &[BlockKey]) {
        self.rows.touch(keys);
    }

    /// The source holds this block, for one more reason; false if it held it already.
    pub fn store(&mut self, key: BlockKey) -> bool {
        let rows = &mut *self.rows;
        let new = rows
            .segments
            .get_mut(segment_of(key))
            .is_some_and(|table| table.set(&mut rows.sets, key, self.slot));
        if let Some(source) = rows.sources.get_mut(self.slot as usize) {
            source.blocks += u64::from(new);
            if !new {
                *source.further.entry(key).or_insert(0) += 1;
            }
        }
        new
    }

    /// One reason less to hold this block; true if that was the last one.
    pub fn remove(&mut self, key: BlockKey) -> bool {
        let rows = &mut *self.rows;
        let Some(source) = rows.sources.get_mut(self.slot as usize) else {
            return false;
        };
        if source.drop_further(key) {
            return false;
        }
        let gone = rows
            .segments
            .get_mut(segment_of(key))
            .is_some_and(|table| table.clear(&mut rows.sets, key, self.slot));
        source.blocks -= u64::from(gone);
        gone
    }
}

/// A lookup under way: who holds everything so far, and where the others fell out.
#[derive(Debug)]
struct Walk {
    alive: Vec<u64>,
    /// The set narrowed to last.
    last: SetId,
    matches: Vec<(u32, u32)>,
}

impl Walk {
    fn new(first: SetId, bits: &[u64]) -> Self {
        Self {
            alive: bits.to_vec(),
            last: first,
            matches: Vec::new(),
        }
    }

    /// Keeps who is in the set of the block at `depth` as well; false when nobody is left.
    fn narrow(&mut self, set: SetId, bits: &[u64], depth: usize) -> bool {
        self.last = set;
        let mut left = 0;
        for ((word, alive), bits) in self.alive.iter_mut().enumerate().zip(bits) {
            let kept = *alive & bits;
            if kept != *alive {
                fall_out(&mut self.matches, *alive & !kept, word, depth);
                *alive = kept;
            }
            left |= kept;
        }
        left != 0
    }

    /// A column joins before the block at `depth`; one that is wider than any set has no block.
    fn enter(&mut self, slot: u32, depth: u32) {
        let (word, mask) = sets::word_and_mask(slot);
        match self.alive.get_mut(word) {
            Some(alive) => *alive |= mask,
            None => self.matches.push((slot, depth)),
        }
    }

    fn finish(&mut self, depth: usize) {
        for (word, alive) in self.alive.iter().enumerate() {
            fall_out(&mut self.matches, *alive, word, depth);
        }
    }
}

fn fall_out(matches: &mut Vec<(u32, u32)>, mut gone: u64, word: usize, depth: usize) {
    let depth = u32::try_from(depth).unwrap_or(u32::MAX);
    let base = u32::try_from(word * 64).unwrap_or(u32::MAX);
    while gone != 0 {
        matches.push((base + gone.trailing_zeros(), depth));
        gone &= gone - 1;
    }
}
