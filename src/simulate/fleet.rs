//! How does a fleet of engines behind one picker fare under a load? An event loop in virtual time.
//!
//! ```text
//! arrival ─▶ policy ─▶ booking ─▶ engine steps ─▶ first token ─▶ last token ─▶ follow
//!                ▲                     │
//!                └── KV events, reports, both late ◀┘
//! ```
//!
//! The engines are [`model::Model`], what the picker knows is the router that serves, and bookings go the way they go
//! in `serve`: made with the pick, released block by block as events come, prefilled with the first token, given back
//! at the end. Nothing here reads a clock, and chance comes from the seed: equal arguments give equal outcomes.
//!
//! Engines call blocks by the index's keys and tell of them by key: no token id is looked at, which is most of a real
//! engine's and picker's work and no part of any decision. A test holds the outcome to that of token ids and real events.
//!
//! What is taken for simple: the way between gateway, picker and engine costs no time; the picker learns of a replica's
//! death and return at once; engines tell no cached tokens in their answers (`serve` learns from them what events lack).

mod agenda;
mod args;
mod course;
mod flights;
mod known;
mod names;
mod replica;
mod run;
mod tally;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::engine::model::{self, SettingsError};
use crate::routing::cost::Tiers;
use crate::routing::router;

use super::outcome::Outcome;
use super::policy::Policy;
use super::workload::Workload;

pub use args::{Args, BadOutage};

/// A fleet, and how it is observed.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Engines.
    pub replicas: usize,
    /// What kind of engines.
    pub engine: model::Settings,
    /// The picker. The age of a report counts from its receipt, as in `serve`, which cannot know how old its content
    /// is: a delay alone leaves nobody out.
    pub router: router::Settings,
    /// From the end of a step to the moment at which the picker knows its KV events.
    pub event_delay: Duration,
    /// From the moment that a report tells of to its receipt.
    pub report_delay: Duration,
    /// Between two reports of a replica.
    pub report_interval: Duration,
    /// Replicas that die.
    pub outages: Vec<Outage>,
    /// What does not count.
    pub warm_up: WarmUp,
    /// Intervals of the course: at least as many, and fewer than twice as many, unless the run is very short.
    pub intervals: usize,
    /// How long a request that nobody can take is offered again, once a second.
    pub patience: Duration,
    /// When the run is not worth going on with.
    pub give_up: Option<GiveUp>,
}

/// Ends a run early, before overload makes it long: more than `requests` that count have waited `ttft` or longer for
/// their first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GiveUp {
    /// Too late.
    pub ttft: Duration,
    /// So many may be.
    pub requests: u64,
}

/// A replica's death. Where several of one replica overlap, it is away until the last of them is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Its number, from 0.
    pub replica: usize,
    /// When it dies.
    pub at: Duration,
    /// For how long it is away. It comes back with an empty cache.
    pub lasts: Duration,
}

/// Requests at the beginning that do not enter the distributions. They are in the course all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmUp {
    /// So many.
    Requests(u64),
    /// Those that come within this time of the first one.
    Time(Duration),
}

impl Settings {
    /// A fleet observed as `serve` observes one by default, without delays: reports every 125 ms, guards at 95 % of the
    /// KV pool and 500 ms.
    pub fn new(replicas: usize, engine: model::Settings) -> Self {
        Self {
            replicas,
            engine,
            router: router::Settings {
                policy: router::Policy::LeastPrefill,
                kv_usage_limit: 0.95,
                report_age_limit: Duration::from_millis(500),
                idle_report_age_limit: Duration::from_secs(8),
                tiers: Tiers::default(),
            },
            event_delay: Duration::ZERO,
            report_delay: Duration::ZERO,
            report_interval: Duration::from_millis(125),
            outages: Vec::new(),
            warm_up: WarmUp::Requests(0),
            intervals: 120,
            patience: Duration::from_secs(60),
            give_up: None,
        }
    }
}

/// How far a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The virtual time.
    pub at: Duration,
    /// Requests that have come.
    pub arrived: u64,
    /// Of these, answered or given up.
    pub ended: u64,
    /// Requests there will be at most, if the workload knows.
    pub expected: Option<u64>,
}

/// Why there is no outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// Nobody to serve.
    #[error("a fleet needs at least one replica")]
    NoReplicas,
    /// No such engine.
    #[error("the engine cannot work")]
    Engine(#[from] SettingsError),
    /// An outage of nobody.
    #[error("an outage names replica {replica}, but the {replicas} replicas are numbered from 0")]
    NoSuchReplica {
        /// As named.
        replica: usize,
        /// Replicas there are.
        replicas: usize,
    },
    /// Reports without pause.
    #[error("the interval of reports must not be zero")]
    NoReportInterval,
    /// Nothing to run.
    #[error("the workload has no requests")]
    NoRequests,
    /// A workload that goes back in time.
    #[error("the workload is not in order of time: a request of {0:?} came after one of {1:?}")]
    OutOfOrder(Duration, Duration),
}

/// Runs a workload to the end of its last request. `progress` is called about every thousandth event of a request.
///
/// # Errors
/// When the settings or the workload make no sense.
pub fn run(
    settings: &Settings,
    workload: &mut dyn Workload,
    policy: &mut dyn Policy,
    seed: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome, RunError> {
    settings.check()?;
    // The tier beneath a pool tells of blocks by their tokens only.
    let told = if settings.engine.lower_blocks > 0 {
        run::Told::Events
    } else {
        run::Told::Keys
    };
    let mut run = run::Run::new(settings, workload, policy, seed, told)?;
    run.play(progress)?;
    Ok(run.outcome())
}

impl Settings {
    fn check(&self) -> Result<(), RunError> {
        if self.replicas == 0 {
            return Err(RunError::NoReplicas);
        }
        if self.report_interval.is_zero() {
            return Err(RunError::NoReportInterval);
        }
        let replicas = self.replicas;
        let unknown = self
            .outages
            .iter()
            .find(|outage| outage.replica >= replicas);
        match unknown {
            Some(&Outage { replica, .. }) => Err(RunError::NoSuchReplica { replica, replicas }),
            None => Ok(()),
        }
    }
}
