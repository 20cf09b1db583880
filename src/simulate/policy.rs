//! By which rule is an endpoint chosen? One trait, and a file for each rule.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::routing::block::BlockKey;
use crate::routing::router::{Decision, Prepared, Refusal};

use super::workload::Arrival;

// The code that serves, and what it is held against: without a look into caches, by a key, with it.
mod least_prefill;

mod least_queued;
mod least_requests;
mod power_of_two;
mod random;
mod round_robin;

mod consistent_hash;
mod session_affinity;

mod dynamo;
mod lmetric;
mod sticky;
mod weighted_blend;

mod least_prefill_terms;

mod choose;

#[cfg(test)]
mod tests;

/// The name of every rule, in the order of tables.
pub const ALL: &[&str] = &[
    "least-prefill",
    "round-robin",
    "random",
    "least-requests",
    "least-queued",
    "power-of-two",
    "consistent-hash",
    "consistent-hash-bounded",
    "session-affinity",
    "sticky-until-saturated",
    "weighted-blend",
    "dynamo",
    "lmetric",
];

/// Variants of the rule that serves, for the study; not in tables of all.
pub const VARIANTS: &[&str] = &[
    "least-prefill-plain",
    "least-prefill-step",
    "least-prefill-load",
];

/// What a rule may know of the fleet when it is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Context {
    /// Replicas; their numbers are below this.
    pub replicas: usize,
    /// Token budget of an engine's step.
    pub max_num_batched_tokens: u32,
    /// What decoding costs.
    pub decode: DecodeCost,
    /// For rules that place something at random once, as a hash ring.
    pub seed: u64,
}

/// What decoding costs an engine, in prompt tokens computed in the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DecodeCost {
    /// A step in which any request decodes.
    pub step: f64,
    /// Each token in the contexts of those that decode.
    pub context_token: f64,
}

/// No rule has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy {name:?}; there are {}, {}", ALL.join(", "), VARIANTS.join(", "))]
pub struct UnknownPolicy {
    /// What was asked for.
    pub name: String,
}

/// Refuses a name that no rule has.
///
/// # Errors
/// When it is one.
pub fn check(name: &str) -> Result<(), UnknownPolicy> {
    if ALL.contains(&name) || VARIANTS.contains(&name) {
        return Ok(());
    }
    Err(UnknownPolicy {
        name: name.to_owned(),
    })
}

/// Makes a rule that has seen nothing yet.
///
/// # Errors
/// When no rule has this name.
pub fn by_name(name: &str, context: &Context) -> Result<Box<dyn Policy>, UnknownPolicy> {
    use consistent_hash::{Bound, ConsistentHash};
    use least_prefill_terms::{Term, WithTerm};
    Ok(match name {
        "least-prefill" => Box::new(least_prefill::LeastPrefill),
        "round-robin" => Box::new(round_robin::RoundRobin::default()),
        "random" => Box::new(random::Random),
        "least-requests" => Box::new(least_requests::LeastRequests),
        "least-queued" => Box::new(least_queued::LeastQueued),
        "power-of-two" => Box::new(power_of_two::PowerOfTwo),
        "consistent-hash" => Box::new(ConsistentHash::new(context, Bound::None)),
        "consistent-hash-bounded" => Box::new(ConsistentHash::new(context, Bound::OverMean)),
        "session-affinity" => Box::new(session_affinity::SessionAffinity::default()),
        "sticky-until-saturated" => Box::new(sticky::StickyUntilSaturated),
        "weighted-blend" => Box::new(weighted_blend::WeightedBlend::default()),
        "dynamo" => Box::new(dynamo::Dynamo::new(context)),
        "lmetric" => Box::new(lmetric::LMetric),
        "least-prefill-plain" => Box::new(WithTerm::new(context, Term::Plain)),
        "least-prefill-step" => Box::new(WithTerm::new(context, Term::Step)),
        "least-prefill-load" => Box::new(WithTerm::new(context, Term::Load)),
        _ => {
            return Err(UnknownPolicy {
                name: name.to_owned(),
            });
        }
    })
}

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

    /// A request that this rule booked on a replica is over: answered or given up. Not called for those that were lost
    /// with their replica, of which [`Policy::replica_changed`] tells.
    fn ended(&mut self, _replica: usize, _keys: &Arc<[BlockKey]>) {}

    /// A replica has died, or has come back with an empty cache.
    fn replica_changed(&mut self, _replica: usize, _ready: bool) {}
}
