//! The index for endpoints without events: what was sent where, bounded by what fits there.
//!
//! It is the same prefix index, written at picks instead of by events. Every endpoint
//! has a list of what was sent to it, least recently sent first, cut to the tokens
//! that its KV pool holds. Requests without token ids use it on every endpoint, with
//! text keys.

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
    sent: Mutex<Lru>,
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

    /// Notes that a prompt with these keys was sent, and forgets what no longer fits.
    pub fn touch(
        &self,
        index: &PrefixIndex,
        keys: &[BlockKey],
        tokens_a_block: u64,
        capacity: TokenCount,
    ) {
        let mut sent = self.sent.lock();
        let mut stored = Vec::new();
        // Last block first, so that a prompt loses its tail before its head: an
        // engine evicts in that order, and a head alone still serves a prefix.
        for &key in keys.iter().rev() {
            if sent.touch(key, tokens_a_block) {
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
            for key in sent.keys() {
                writer.remove(key);
            }
        }
        *sent = Lru::default();
    }
}
