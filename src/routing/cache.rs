//! An endpoint's cache as its events tell it: engine hashes, reference counts, orphans.
//!
//! The engine names blocks by its own hashes; the index knows only our keys. A view
//! keeps the map between the two for one event source, so that a removal or a
//! child's parent can be understood, and writes the difference into the index.
//!
//! - A block is stored as often as the engine says so (the same content computed
//!   twice is two physical blocks); it is gone when it was removed as often.
//! - Several engine hashes may mean one key (an adapter loaded again from another
//!   path): each is a reason of its own for the index to hold the key.
//! - Blocks on slower tiers stand in a column of their own beneath the source's in the index,
//!   one for all tiers that the settings count: a connector serves a run of blocks from
//!   whichever tier has each, and two columns would need a third walk to follow that. Each
//!   block there costs the factor of the dearest tier that the source tells of.
//! - A clear empties every tier, though the host's blocks may have survived it. The event does
//!   not tell, an offload tier that was reset sends no removals (vllm#57296, #41956), and a
//!   block believed in and not there costs more than one that is there and not known.
//! - A hash that comes with two contents is ambiguous: neither is believed in.
//! - A store whose parent is unknown waits for it, unless it continues the prompt of a request of
//!   ours (`learnt`); one that can never have a key
//!   (opaque tokens, unknown extra keys) is remembered by hash, so that its children
//!   are known to be unkeyable as well and do not wait for ever.

use std::fmt;
use std::sync::Arc;

use super::block::{BlockKey, BlockSize, block_key, root};
use super::event::{EngineHash, KvEvent, Medium, Removed, Stored};
use super::ledger::credit::Credits;
use super::ledger::{FeedId, Root, SHOWN_TOKENS};
use super::router::State;

use orphans::{Orphan, Orphans};
use residents::{Change, Place, Pool, Residents};
use write::Write;

mod keyed;
mod learnt;
mod orphans;
mod residents;
#[cfg(test)]
mod tests;
mod write;

/// Blocks of unknown parents kept aside for each source unless `limit_orphans` says
/// otherwise: one engine's whole cache of 1.6 million tokens at 16 a block.
pub const DEFAULT_MAX_ORPHANS: usize = 100_000;

/// Why an endpoint has no event feed that can be trusted, in words for the status page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedState {
    /// Events arrive and the view is whole since the last clear.
    Live,
    /// The connection was lost or a replay is under way: the view may be wrong.
    Suspect,
    /// Some batches are lost for good: the view may miss blocks.
    Incomplete(String),
    /// No events: the approximate index serves this endpoint.
    Absent(String),
}

/// What became of one batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Blocks stored and keyed.
    pub stored: u64,
    /// Blocks removed.
    pub removed: u64,
    /// Blocks kept aside until their parent comes.
    pub orphaned: u64,
    /// Blocks kept aside before and given up, because too many wait.
    pub orphans_dropped: u64,
    /// Blocks that cannot be keyed (opaque tokens, other groups, unknown extra keys).
    pub skipped: u64,
    /// Blocks forgotten because more are told of than are remembered (slower tiers, unkeyed blocks).
    pub forgotten: u64,
}

/// The writer's end of one event source (one rank of one endpoint). Owned by its
/// subscriber task; dropping it forgets nothing, `clear` does.
///
/// Once its endpoint left, or another view was made for the same rank, all it does
/// comes to nothing.
pub struct CacheView {
    state: Arc<State>,
    feed: FeedId,
    block_size: Option<BlockSize>,
    residents: Residents,
    orphans: Orphans,
    /// What is cached beside, in the same column.
    credits: Arc<Credits>,
    batch: Batch,
    /// The factor of the dearest tier that it told of since it last started over.
    tier: Option<f64>,
}

/// What one batch comes to; kept to reuse its memory.
#[derive(Debug, Default)]
struct Batch {
    applied: Applied,
    writes: Vec<Write>,
    /// The same for the column beneath.
    writes_beneath: Vec<Write>,
    stored: Vec<BlockKey>,
    changes: Vec<(Medium, Change)>,
    /// What left the accelerator or a tier that is counted.
    removed: Vec<BlockKey>,
    /// Of these, what was at hand without a store that told so.
    uncredited: Vec<BlockKey>,
    /// Of those stored, the first blocks of sequences, and the last one itself.
    roots: Vec<BlockKey>,
    last_root: Option<Root>,
}

impl fmt::Debug for CacheView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheView")
            .field("feed", &self.feed)
            .field("block_size", &self.block_size)
            .finish_non_exhaustive()
    }
}

impl CacheView {
    pub(super) fn new(state: Arc<State>, feed: FeedId, credits: Arc<Credits>) -> Self {
        Self {
            state,
            feed,
            block_size: None,
            residents: Residents::default(),
            orphans: Orphans::new(DEFAULT_MAX_ORPHANS),
            credits,
            batch: Batch::default(),
            tier: None,
        }
    }

    /// Bounds the blocks of unknown parents kept aside; the oldest go first.
    pub fn limit_orphans(&mut self, blocks: usize) {
        self.orphans.set_limit(blocks);
    }

    /// Applies one batch and releases the bookings that its stores cover.
    pub fn apply(&mut self, events: &[KvEvent]) -> Applied {
        self.batch.applied = Applied::default();
        let known = self.read_notes();
        let first_orphan = self.orphans.next();
        for event in events {
            match event {
                KvEvent::Stored(stored) => self.store(stored),
                KvEvent::Removed(removed) => self.remove(removed),
                KvEvent::Cleared => self.drop_cache(),
            }
        }
        let prefixes = self.find_parents(first_orphan, known);
        self.write();
        // Events tell of these themselves from now on, and of their end.
        let credits = &self.credits;
        credits.drop_all_of(&self.state.index, &self.batch.stored);
        credits.drop_all_of(&self.state.index, &self.batch.uncredited);
        self.credit(prefixes);
        self.bound_credits();
        self.tell_ledger(!events.is_empty());
        self.batch.stored.clear();
        self.batch.removed.clear();
        self.batch.uncredited.clear();
        self.batch.roots.clear();
        self.batch.applied
    }

    /// Tells the ledger what the batch came to.
    fn tell_ledger(&mut self, is_sign: bool) {
        let last_root = self.batch.last_root.take();
        let mut ledger = self.state.ledger.lock();
        if !ledger.is_attached(self.feed) {
            return;
        }
        ledger.stored(self.feed.endpoint, &self.batch.stored);
        if is_sign {
            ledger.stirred(self.feed);
        }
        ledger.removed(self.feed.endpoint, &self.batch.removed);
        ledger.set_orphans(self.feed, self.orphans.blocks());
        if let Some(last) = last_root {
            ledger.rooted(self.feed, &self.batch.roots, last);
        }
    }

    /// Forgets every block of this source (events were lost for good), its block
    /// size too, because the next engine may have another. What was sent to the endpoint
    /// is still taken to be there: only our knowledge of it is lost.
    pub fn clear(&mut self) {
        self.drop_blocks();
        self.block_size = None;
        self.tier = None;
        let mut ledger = self.state.ledger.lock();
        if ledger.is_attached(self.feed) {
            ledger.view_cleared(self.feed.endpoint);
            ledger.set_orphans(self.feed, 0);
        }
    }

    /// The engine is another process: what it had cached is gone, whoever knew of it.
    pub fn restarted(&mut self) {
        self.drop_cache();
        self.clear();
    }

    /// Says how far the feed can be trusted.
    pub fn set_feed(&mut self, state: FeedState) {
        let mut ledger = self.state.ledger.lock();
        ledger.set_feed(self.feed, state);
    }

    fn store(&mut self, event: &Stored) {
        if !event.indexable_group {
            self.batch.applied.skipped += event.hashes.len() as u64;
            return;
        }
        let pool = Pool::new(event.group, event.medium);
        if event.block_size == 0 || event.tokens.is_empty() {
            self.change_residency(pool, &event.hashes);
            return;
        }
        let Some(size) = self.keyable_size(event) else {
            self.place_all(pool, event, None);
            return;
        };
        match event.parent {
            None => self.place_all(pool, event, Some(root(size, event.lora_name.as_deref()))),
            Some(parent) if event.hashes.contains(&parent) => self.place_all(pool, event, None),
            Some(parent) => match self.residents.place_of(parent) {
                Some(Place::Keyed(key)) => self.place_all(pool, event, Some(key)),
                Some(Place::Unkeyed | Place::Ambiguous) => self.place_all(pool, event, None),
                Some(Place::Pending) | None => self.put_aside(pool, parent, event),
            },
        }
    }

    /// The size by which an event's blocks can be keyed; `None` when they cannot.
    fn keyable_size(&mut self, event: &Stored) -> Option<BlockSize> {
        let size = BlockSize::new(event.block_size)?.with_lookahead(lookahead(event)?);
        let whole = event.hashes.len().checked_mul(size.get() as usize) == Some(event.tokens.len());
        let extras_match = event.extras.is_empty() || event.extras.len() == event.hashes.len();
        if event.opaque_tokens || !whole || !extras_match {
            return None;
        }
        match self.block_size {
            // The partial tail of a hybrid model is smaller than its group's blocks: if one of
            // those came first, what is known stands under a size that nobody asks for.
            Some(learnt) if size.get() > learnt.get() && event.medium == Medium::Gpu => {
                self.drop_blocks();
                self.learn(size);
                Some(size)
            }
            // A smaller block, or an offload chunk, is never asked for: prompts are cut by the
            // size learnt.
            Some(learnt) => (learnt == size).then_some(size),
            None if event.medium == Medium::Gpu => {
                self.learn(size);
                Some(size)
            }
            None => None,
        }
    }

    fn learn(&mut self, size: BlockSize) {
        self.block_size = Some(size);
        self.state.ledger.lock().learn_block_size(self.feed, size);
    }

    /// Blocks known by hash entered another medium; nothing is said of their content.
    fn change_residency(&mut self, pool: Pool, hashes: &[EngineHash]) {
        for &hash in hashes {
            let place = self.residents.place_of(hash).unwrap_or(Place::Unkeyed);
            self.enter(pool, hash, place);
        }
    }

    /// Stores an event's blocks behind a key, or without keys, and then whatever
    /// waited for one of them, and so on.
    fn place_all(&mut self, pool: Pool, event: &Stored, parent: Option<BlockKey>) {
        let mut key = parent;
        for (i, &hash) in event.hashes.iter().enumerate() {
            key = next_key(key, event, i);
            if i == 0 && event.parent.is_none() {
                self.note_root(pool, key, event);
            }
            self.enter(pool, hash, key.map_or(Place::Unkeyed, Place::Keyed));
        }
        if self.orphans.is_empty() {
            return;
        }
        let mut found = Vec::new();
        self.adopt(event, parent, &mut found);
        self.settle_all(found);
    }

    /// Notes the beginning of a sequence, by which a prompt's tokens are held to the engine's.
    fn note_root(&mut self, pool: Pool, key: Option<BlockKey>, event: &Stored) {
        let size = BlockSize::new(event.block_size);
        let (Some(key), Some(size), Medium::Gpu) = (key, size, pool.medium) else {
            return;
        };
        let first = event.tokens.iter().copied();
        let block: Vec<u32> = first.take(size.get() as usize).collect();
        self.batch.roots.push(key);
        self.batch.last_root = Some(Root {
            plain: block_key(root(size, None), &block, None),
            tokens: block.into_iter().take(SHOWN_TOKENS).collect(),
        });
    }

    /// Places what waited, and what waited for that, and so on.
    fn settle_all(&mut self, mut found: Vec<(Orphan, Option<BlockKey>)>) {
        while let Some((orphan, parent)) = found.pop() {
            self.settle(&orphan, parent);
            self.adopt(&orphan.event, parent, &mut found);
        }
    }

    /// Takes the orphans of an event's blocks, each with its parent's key.
    fn adopt(
        &mut self,
        event: &Stored,
        parent: Option<BlockKey>,
        found: &mut Vec<(Orphan, Option<BlockKey>)>,
    ) {
        let mut key = parent;
        for (i, &hash) in event.hashes.iter().enumerate() {
            key = next_key(key, event, i);
            found.extend(
                self.orphans
                    .take_children(hash)
                    .into_iter()
                    .map(|orphan| (orphan, key)),
            );
        }
    }

    /// An orphan's parent came: those of its blocks that are still resident get their keys.
    fn settle(&mut self, orphan: &Orphan, parent: Option<BlockKey>) {
        let mut key = parent;
        for (i, &hash) in orphan.event.hashes.iter().enumerate() {
            key = next_key(key, &orphan.event, i);
            let place = key.map_or(Place::Unkeyed, Place::Keyed);
            let changes = &mut self.batch.changes;
            if self.residents.settle(hash, place, changes) {
                self.note_entered(orphan.pool, place);
            }
        }
    }

    fn put_aside(&mut self, pool: Pool, parent: EngineHash, event: &Stored) {
        for &hash in &event.hashes {
            // One that is keyed already (stored twice, once behind a known parent) stays so.
            self.enter(pool, hash, Place::Pending);
        }
        let lost = self.orphans.push(parent, Orphan::new(pool, event.clone()));
        for orphan in &lost {
            self.batch.applied.orphans_dropped += orphan.event.hashes.len() as u64;
        }
        self.settle_all(lost.into_iter().map(|orphan| (orphan, None)).collect());
    }

    /// One more physical block of this hash.
    fn enter(&mut self, pool: Pool, hash: EngineHash, place: Place) {
        let changes = &mut self.batch.changes;
        let entered = self.residents.enter(pool, hash, place, changes);
        self.batch.applied.forgotten += u64::from(entered.forgot);
        if let (Place::Keyed(key), true) = (entered.place, entered.new) {
            self.note_write(pool.medium, Write::Store(key));
        }
        self.note_entered(pool, entered.place);
    }

    /// Counts an entry, and keeps what the index has to be told.
    fn note_entered(&mut self, pool: Pool, place: Place) {
        let applied = &mut self.batch.applied;
        match place {
            Place::Pending => applied.orphaned += 1,
            Place::Unkeyed | Place::Ambiguous => applied.skipped += 1,
            Place::Keyed(key) => {
                applied.stored += 1;
                if pool.medium == Medium::Gpu {
                    // Told even of a copy: a block behind a hole is computed, and
                    // stored, again, and somebody booked it.
                    self.batch.stored.push(key);
                }
            }
        }
        if self.batch.changes.is_empty() {
            return;
        }
        let mut changes = std::mem::take(&mut self.batch.changes);
        for (medium, change) in changes.drain(..) {
            let write = match change {
                Change::Keyed(key) => Write::Store(key),
                Change::Lost(key) => Write::Remove(key),
            };
            self.note_write(medium, write);
        }
        self.batch.changes = changes;
    }

    fn remove(&mut self, event: &Removed) {
        let pool = Pool::new(event.group, event.medium);
        for &hash in &event.hashes {
            let Some(place) = self.residents.leave(pool, hash) else {
                self.note_unknown_left(pool, hash);
                continue;
            };
            self.batch.applied.removed += 1;
            if let Place::Keyed(key) = place {
                self.note_write(pool.medium, Write::Remove(key));
                let is_gpu = pool.medium == Medium::Gpu;
                if is_gpu || self.state.settings.tiers.factor(pool.medium).is_some() {
                    self.batch.removed.push(key);
                }
            }
        }
    }

    /// A block left of which no store was told. Another tier may have told what it is, and then it ends a credit.
    fn note_unknown_left(&mut self, pool: Pool, hash: EngineHash) {
        if pool.medium == Medium::Gpu
            && let Some(Place::Keyed(key)) = self.residents.place_of(hash)
        {
            self.batch.removed.push(key);
            self.batch.uncredited.push(key);
        }
    }

    /// The engine dropped its cache: nothing of what was sent to it is there any more.
    fn drop_cache(&mut self) {
        self.drop_blocks();
        let recent = self.state.ledger.lock().recent(self.feed);
        if let Some(recent) = recent {
            recent.clear(&self.state.approximate);
        }
    }

    /// Drops all blocks, those of every medium, those kept aside and those credited.
    fn drop_blocks(&mut self) {
        self.write();
        for medium in [Medium::Gpu, Medium::Cpu, Medium::Storage] {
            for key in self.residents.keys_in(medium) {
                let write = Write::Remove(key);
                if medium == Medium::Gpu {
                    self.batch.writes.push(write);
                } else if self.state.settings.tiers.factor(medium).is_some() {
                    self.batch.writes_beneath.push(write);
                }
            }
        }
        self.write();
        self.residents.clear();
        self.orphans.clear();
        self.credits.clear(&self.state.index);
        self.state.ledger.lock().cleared(self.feed);
    }
}

/// How many following tokens the hash of each of an event's blocks covers; `None` when they differ.
fn lookahead(event: &Stored) -> Option<u8> {
    let mut extras = event.extras.iter().map(|extra| extra.lookahead.len());
    let first = extras.next().unwrap_or(0);
    extras
        .all(|other| other == first)
        .then(|| u8::try_from(first).ok())
        .flatten()
}

/// The key of an event's block `i` behind `before`; once a block has none, nor have the rest.
fn next_key(before: Option<BlockKey>, event: &Stored, i: usize) -> Option<BlockKey> {
    let before = before?;
    let extra = event.extras.get(i);
    if extra.is_some_and(|extra| extra.unknown) {
        return None;
    }
    let size = event.block_size as usize;
    let tokens = event.tokens.get(i * size..(i + 1) * size)?;
    Some(block_key(before, tokens, extra))
}
