//! The index for endpoints without events: what was sent where, bounded by what fits there.
//!
//! It is the same prefix index, written at picks instead of by events. Every endpoint
//! has a list of what was sent to it, least recently sent first, cut to the tokens
//! that its KV pool holds. Requests without token ids use it on every endpoint, with
//! text keys.

use std::time::Instant;

use parking_lot::Mutex;

use super::block::BlockKey;
use super::index::{PrefixIndex, SourceId};
use super::tokens::TokenCount;

use lru::Lru;

mod lru;
#[cfg(test)]
mod tests;

/// What an endpoint is taken to hold until a report tells its capacity: about what an
/// 8B model has left on a 24 GB card. Too small forgets hits, too large invents them.
pub const DEFAULT_CAPACITY: TokenCount = TokenCount::new(100_000);

/// What was sent to one endpoint, most recent last.
///
/// The lock is held while one request's keys are touched (about 30 ns a key), by that
/// request alone: it is not the ledger's, and every endpoint has its own.
#[derive(Debug)]
pub struct Recent {
    source: SourceId,
    sent: Mutex<Sent>,
}

/// What was sent, and the clock by which its times count.
#[derive(Debug, Default)]
struct Sent {
    blocks: Lru,
    began: Option<Instant>,
    /// The last tick noted: requests are noted in the order in which they come here, which
    /// may differ a little from the order of their picks.
    latest: u32,
    /// The engine has been another process since: what was picked for the former is not noted.
    since: u32,
}

impl Sent {
    /// A moment as the list notes it: 16 ms a tick, so that 32 bits last for two years. A
    /// request of the same tick as a restart counts as sent after it.
    fn tick(&mut self, moment: Instant) -> u32 {
        let began = *self.began.get_or_insert(moment);
        let ticks = moment.saturating_duration_since(began).as_millis() / 16;
        u32::try_from(ticks).unwrap_or(u32::MAX)
    }
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
        let tick = sent.tick(now);
        if tick < sent.since {
            return;
        }
        let tick = tick.max(sent.latest);
        sent.latest = tick;
        let sent = &mut sent.blocks;
        let mut stored = Vec::new();
        // Last block first, so that a prompt loses its tail before its head: an
        // engine evicts in that order, and a head alone still serves a prefix.
        for &key in keys.iter().rev() {
            if sent.touch(key, tokens_a_block, tick) {
                stored.push(key);
            }
        }
        let mut evicted = Vec::new();
        while sent.tokens() > capacity.get()
            && let Some(key) = sent.pop_oldest()
        {
            evicted.push(key);
        }
        let Some(mut writer) = index.write(self.source) else {
            return;
        };
        for key in stored {
            writer.store(key);
        }
        for key in evicted {
            writer.remove(key);
        }
    }

    /// Forgets everything: the endpoint's cache was dropped.
    pub fn clear(&self, index: &PrefixIndex) {
        let mut sent = self.sent.lock();
        if let Some(mut writer) = index.write(self.source) {
            for key in sent.blocks.keys() {
                writer.remove(key);
            }
        }
        sent.blocks = Lru::default();
    }

    /// Forgets what was last sent before `moment`: another process has run there since.
    pub fn forget_before(&self, index: &PrefixIndex, moment: Instant) {
        let mut sent = self.sent.lock();
        let tick = sent.tick(moment);
        sent.since = sent.since.max(tick);
        let mut forgotten = Vec::new();
        while let Some(key) = sent.blocks.pop_older_than(tick) {
            forgotten.push(key);
        }
        let Some(mut writer) = index.write(self.source) else {
            return;
        };
        for key in forgotten {
            writer.remove(key);
        }
    }
}
