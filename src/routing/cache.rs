//! An endpoint's cache as its events tell it: engine hashes, reference counts, orphans.

use super::event::KvEvent;

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
    /// Blocks that cannot be keyed (opaque tokens, other groups, unknown extra keys).
    pub skipped: u64,
}

/// The writer's end of one event source (one rank of one endpoint). Owned by its
/// subscriber task; dropping it forgets nothing, `clear` does.
#[derive(Debug)]
pub struct CacheView {}

impl CacheView {
    /// Applies one batch and releases the bookings that its stores cover.
    pub fn apply(&mut self, _events: &[KvEvent]) -> Applied {
        Applied::default()
    }

    /// Forgets every block of this source (restart, unrecoverable loss).
    pub fn clear(&mut self) {}

    /// Says how far the feed can be trusted.
    pub fn set_feed(&mut self, _state: FeedState) {}
}
