//! The index for endpoints without events: what was sent where, bounded by what fits there.
//!
//! It is the same prefix index, written at picks instead of by events. Every endpoint
//! has a list of what was sent to it, least recently sent first, cut to the tokens
//! that its KV pool holds. Requests without token ids use it on every endpoint, with
//! text keys.
//!
//! Where everything fits, this is as good as events. Where it does not, the engine's order of
//! eviction differs from ours in ways that nothing tells, and the list notices that what it has to
//! forget is asked for again (`overflow`).

use std::time::Instant;

use parking_lot::Mutex;

use super::block::BlockKey;
use super::index::{PrefixIndex, SourceId};
use super::lru::Lru;
use super::ticks::Ticks;
use super::tokens::TokenCount;

use overflow::Overflow;

mod overflow;
#[cfg(test)]
mod tests;

/// What an endpoint is taken to hold until a report tells its capacity: about what an
/// 8B model has left on a 24 GB card. Too small forgets hits, too large invents them.
pub const DEFAULT_CAPACITY: TokenCount = TokenCount::new(100_000);

/// Keys written under one lock of the index, for which lookups wait: about 20 µs. A list of blocks of one token is
/// as long as a pool has tokens.
const WRITES_A_LOCK: usize = 512;

/// What was sent to one endpoint, most recent last.
///
/// The lock is held while one request's keys are touched (about 30 ns a key), by that
/// request alone: it is not the ledger's, and every endpoint has its own.
#[derive(Debug)]
pub struct Recent {
    source: SourceId,
    sent: Mutex<Sent>,
}

/// What was sent, the clock by which its times count, and whether it fits.
#[derive(Debug, Default)]
struct Sent {
    blocks: Lru,
    ticks: Ticks,
    overflow: Overflow,
}

impl Recent {
    /// An endpoint to which nothing was sent, with its column in the approximate index.
    pub fn new(source: SourceId) -> Self {
        Self {
            source,
            sent: Mutex::default(),
        }
    }

    /// Its column in the approximate index.
    pub fn source(&self) -> SourceId {
        self.source
    }

    /// Notes that a prompt with these keys was sent now, and forgets what no longer fits.
    pub fn touch(
        &self,
        index: &PrefixIndex,
        keys: &[BlockKey],
        tokens_a_block: u64,
        capacity: TokenCount,
        now: Instant,
    ) {
        let mut sent = self.sent.lock();
        let Sent {
            blocks,
            ticks,
            overflow,
        } = &mut *sent;
        let Some(tick) = ticks.note(now) else {
            return;
        };
        let mut stored = Vec::new();
        // Last block first, so that a prompt loses its tail before its head: an
        // engine evicts in that order, and a head alone still serves a prefix.
        for &key in keys.iter().rev() {
            if blocks.touch(key, tokens_a_block, tick) {
                stored.push(key);
            }
        }
        overflow.asked(keys.len(), &stored);
        let mut evicted = Vec::new();
        while blocks.tokens() > capacity.get()
            && let Some(key) = blocks.pop_oldest()
        {
            evicted.push(key);
        }
        overflow.evicted(&evicted, blocks.len());
        for keys in stored.chunks(WRITES_A_LOCK) {
            let Some(mut writer) = index.write(self.source) else {
                return;
            };
            for &key in keys {
                writer.store(key);
            }
        }
        self.remove(index, &evicted);
    }

    /// What is asked for again and again does not fit: much of what it forgot was wanted.
    pub fn is_overflowing(&self) -> bool {
        self.sent.lock().overflow.holds()
    }

    /// Whether that has changed since it was last asked here, for a line in the log.
    pub fn overflow_change(&self) -> Option<bool> {
        self.sent.lock().overflow.take_change()
    }

    /// Forgets everything: the endpoint's cache was dropped.
    pub fn clear(&self, index: &PrefixIndex) {
        let mut sent = self.sent.lock();
        let forgotten: Vec<BlockKey> = sent.blocks.keys().collect();
        self.remove(index, &forgotten);
        sent.blocks = Lru::default();
        sent.overflow.forget();
    }

    /// Forgets what was last sent before `moment`: another process has run there since.
    pub fn forget_before(&self, index: &PrefixIndex, moment: Instant) {
        let mut sent = self.sent.lock();
        let tick = sent.ticks.cut(moment);
        let mut forgotten = Vec::new();
        while let Some(key) = sent.blocks.pop_older_than(tick) {
            forgotten.push(key);
        }
        // What went with the process went for no want of room.
        sent.overflow.forget();
        self.remove(index, &forgotten);
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
