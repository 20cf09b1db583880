//! Which blocks must an endpoint have cached, though no event told of them?
//!
//! What an engine stored before its replay begins is not told by anybody. But it shows: the engine reports more
//! cached tokens than were foreseen, or stores the continuation of a prompt whose beginning it never stored for us.
//! Such blocks are credited: held in the index column of the endpoint's events as one more reason, so that lookups need
//! no second walk. Nobody tells when they are evicted either, so a credit is the weakest of reasons: an event about
//! the block takes its place, a contrary report or a clear drops it, and so does age once the engine's pool has no room for it
//! beside what events tell: a full pool evicts the blocks that were not used for longest.
//!
//! Reports come on streams and credits are counted here; the engine's own names of blocks are known to the cache view
//! alone, in another task. What a report means for that is left here as a `Note` until the view's next batch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::super::block::BlockKey;
use super::super::index::{PrefixIndex, SourceId};
use super::super::lru::Lru;
use super::super::ticks::Ticks;
use super::super::tokens::TokenCount;

/// Notes kept until the view reads them; the oldest go first. They are hints, and an idle source may not read for long.
const MAX_NOTES: usize = 64;

/// Keys written under one lock of the index: about 20 µs.
const WRITES_A_LOCK: usize = 512;

/// What a report means for the cache view.
#[derive(Clone, Debug)]
pub(in crate::routing) enum Note {
    /// So many blocks of this chain are cached: orphans that continue it are its children.
    Known(Arc<[BlockKey]>, usize),
    /// These blocks were believed and are not there: each has a reference too many.
    Missing(Vec<BlockKey>),
}

/// One life of what a source has cached: an answer to a request of a former one gives no credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::routing) struct Life(SourceId, u64);

/// The credits of one event source. The index's lock is taken under this one, never the other way.
#[derive(Debug)]
pub(in crate::routing) struct Credits {
    source: SourceId,
    /// Counts the times that all was dropped. Written under the lock, and read without it at each pick.
    drops: AtomicU64,
    /// There is a credit or a note. Mostly there is none, and then a batch of events takes no lock for them.
    any: AtomicBool,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    blocks: Lru,
    ticks: Ticks,
    notes: VecDeque<Note>,
}

impl Credits {
    /// None, for a column of the exact index.
    pub(in crate::routing) fn new(source: SourceId) -> Self {
        Self {
            source,
            drops: AtomicU64::new(0),
            any: AtomicBool::new(false),
            held: Mutex::default(),
        }
    }

    /// The present life of what is cached there.
    pub(in crate::routing) fn life(&self) -> Life {
        Life(self.source, self.drops.load(Ordering::Acquire))
    }

    /// How many blocks are credited.
    pub(in crate::routing) fn len(&self) -> u64 {
        self.held.lock().blocks.len() as u64
    }

    /// The blocks credited, in no order.
    pub(in crate::routing) fn keys(&self) -> Vec<BlockKey> {
        self.held.lock().blocks.keys().collect()
    }

    /// Whether a block is held for this reason.
    pub(in crate::routing) fn contains(&self, key: BlockKey) -> bool {
        self.held.lock().blocks.contains(key)
    }

    /// Credits the blocks of a prompt's beginning that no event holds, the last one first so that
    /// it is the first to go. `at` is when the request was picked, in life `life`. Returns how
    /// many are new.
    pub(in crate::routing) fn give(
        &self,
        index: &PrefixIndex,
        life: Life,
        keys: &[BlockKey],
        tokens_a_block: u64,
        capacity: TokenCount,
        at: Instant,
    ) -> u64 {
        let held = &mut *self.held.lock();
        if self.life() != life {
            return 0;
        }
        let Some(tick) = held.ticks.note(at) else {
            return 0;
        };
        let mut given = 0;
        for keys in keys.rchunks(WRITES_A_LOCK) {
            let Some(mut writer) = index.write(self.source) else {
                // The source is closed, and all its blocks with it.
                return given;
            };
            for &key in keys.iter().rev() {
                if held.blocks.contains(key) {
                    held.blocks.touch(key, tokens_a_block, tick);
                } else if writer.store(key) {
                    held.blocks.touch(key, tokens_a_block, tick);
                    given += 1;
                } else {
                    // Events hold it and will tell when it goes.
                    writer.remove(key);
                }
            }
        }
        self.cut(held, index, tokens_a_block, capacity);
        self.note_any(held);
        given
    }

    /// Drops the oldest credits for which the pool has no room beside what events tell by now.
    pub(in crate::routing) fn bound(
        &self,
        index: &PrefixIndex,
        tokens_a_block: u64,
        capacity: TokenCount,
    ) {
        let held = &mut *self.held.lock();
        self.cut(held, index, tokens_a_block, capacity);
        self.note_any(held);
    }

    /// There is a credit or a note.
    pub(in crate::routing) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// The engine had these: those of them that are credited are as good as new.
    pub(in crate::routing) fn confirm(&self, keys: &[BlockKey], tokens_a_block: u64, at: Instant) {
        if !self.any() {
            return;
        }
        let held = &mut *self.held.lock();
        let Some(tick) = held.ticks.note(at) else {
            return;
        };
        for &key in keys.iter().rev() {
            if held.blocks.contains(key) {
                held.blocks.touch(key, tokens_a_block, tick);
            }
        }
    }

    /// Drops the credits of these blocks; how many there were.
    pub(in crate::routing) fn drop_all_of(&self, index: &PrefixIndex, keys: &[BlockKey]) -> u64 {
        if !self.any() {
            return 0;
        }
        let held = &mut *self.held.lock();
        let dropped = keys.iter().filter(|key| held.blocks.remove(**key));
        let dropped: Vec<BlockKey> = dropped.copied().collect();
        self.remove(index, &dropped);
        self.note_any(held);
        dropped.len() as u64
    }

    /// Drops all: what the engine had is gone, or cannot be known any more.
    pub(in crate::routing) fn clear(&self, index: &PrefixIndex) {
        let held = &mut *self.held.lock();
        let dropped: Vec<BlockKey> = held.blocks.keys().collect();
        self.remove(index, &dropped);
        held.blocks = Lru::default();
        held.notes.clear();
        self.note_any(held);
        self.drops.fetch_add(1, Ordering::AcqRel);
    }

    /// Drops what was last credited to a process of before `moment`.
    pub(in crate::routing) fn forget_before(&self, index: &PrefixIndex, moment: Instant) {
        let held = &mut *self.held.lock();
        let tick = held.ticks.cut(moment);
        let mut dropped = Vec::new();
        while let Some(key) = held.blocks.pop_older_than(tick) {
            dropped.push(key);
        }
        self.remove(index, &dropped);
    }

    /// Leaves word for the view.
    pub(in crate::routing) fn leave(&self, life: Life, note: Note) {
        let held = &mut *self.held.lock();
        if self.life() != life {
            return;
        }
        held.notes.push_back(note);
        if held.notes.len() > MAX_NOTES {
            held.notes.pop_front();
        }
        self.note_any(held);
    }

    /// Hands over what was left, oldest first.
    pub(in crate::routing) fn take_notes(&self) -> VecDeque<Note> {
        if !self.any() {
            return VecDeque::new();
        }
        let held = &mut *self.held.lock();
        let notes = std::mem::take(&mut held.notes);
        self.note_any(held);
        notes
    }

    /// Called under the lock after each change.
    fn note_any(&self, held: &Held) {
        let any = held.blocks.len() > 0 || !held.notes.is_empty();
        self.any.store(any, Ordering::Release);
    }

    fn cut(&self, held: &mut Held, index: &PrefixIndex, tokens_a_block: u64, capacity: TokenCount) {
        let blocks = index.blocks(self.source);
        let told = blocks.saturating_sub(held.blocks.len() as u64) * tokens_a_block;
        // Where more is told than fits, it is the capacity that is not known.
        let room = capacity
            .get()
            .checked_sub(told)
            .unwrap_or_else(|| capacity.get());
        let mut dropped = Vec::new();
        while held.blocks.tokens() > room
            && let Some(key) = held.blocks.pop_oldest()
        {
            dropped.push(key);
        }
        self.remove(index, &dropped);
    }

    fn remove(&self, index: &PrefixIndex, keys: &[BlockKey]) {
        for keys in keys.chunks(WRITES_A_LOCK) {
            let Some(mut writer) = index.write(self.source) else {
                return;
            };
            for &key in keys {
                writer.remove(key);
            }
        }
    }
}
