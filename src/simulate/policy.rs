//! By which rule is an endpoint chosen? One trait, and a file for each rule.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::routing::block::BlockKey;
use crate::routing::router::{Decision, Prepared, Refusal};

use super::workload::Arrival;

/// A request as a policy sees it.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    /// The request.
    pub arrival: &'a Arrival,
    /// Ready to be looked up.
    pub prepared: &'a Prepared,
    /// The names of its whole blocks, in order.
    pub keys: &'a Arc<[BlockKey]>,
    /// Tokens a block.
    pub block_size: u32,
    /// The time.
    pub now: Instant,
    /// A random number, for chance between equals.
    pub chance: u64,
}

/// An endpoint as every policy may see it. What a picker counts itself is never late; what engines report is as old as
/// reports are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// The replica's number; a replica that restarted keeps it.
    pub replica: usize,
    /// It may be chosen.
    pub ready: bool,
    /// Tokens of this request that it has cached, as far as events tell.
    pub cached: u64,
    /// Prompt tokens booked there and not yet prefilled, uncached ones only.
    pub queued: u64,
    /// Requests of this picker in flight there.
    pub in_flight: u32,
    /// Tokens in the contexts of these: their prompts (shared parts counted for each), and what was generated.
    pub context: u64,
    /// As last reported: share of the KV pool held by running requests, 0 to 1.
    pub kv_usage: f64,
    /// As last reported: requests running.
    pub running: u64,
    /// As last reported: requests waiting.
    pub waiting: u64,
}

/// What a policy may look at and where it books: the router that serves, filled with what events and reports have told
/// so far.
pub trait Knowledge {
    /// Every replica in order of its number, ready or not, as it stands for this request.
    fn survey(&self, asked: &Asked<'_>) -> Vec<Seen>;

    /// The same without looking into the cache: `cached` is 0. Far cheaper.
    fn survey_load(&self, asked: &Asked<'_>) -> Vec<Seen>;

    /// Books the request on a replica.
    ///
    /// # Errors
    /// When it is not ready.
    fn book(&self, asked: &Asked<'_>, replica: usize) -> Result<Decision, Refusal>;

    /// What `warmpath serve` does: pick and book.
    ///
    /// # Errors
    /// When nothing is ready.
    fn pick(&self, asked: &Asked<'_>) -> Result<Decision, Refusal>;

    /// Learnt prefill time a token; `None` while nothing is known.
    fn prefill_per_token(&self) -> Option<Duration>;
}

/// A rule.
pub trait Policy {
    /// Chooses a replica for a request and books it there.
    ///
    /// # Errors
    /// When no replica is ready.
    fn pick(&mut self, asked: &Asked<'_>, fleet: &dyn Knowledge) -> Result<Decision, Refusal>;

    /// A replica has died, or has come back with an empty cache.
    fn replica_changed(&mut self, _replica: usize, _ready: bool) {}
}
