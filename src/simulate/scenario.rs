//! A workload and a fleet: all of a run but the policy and the number of replicas.

use super::fleet::{self, Progress, RunError};
use super::goal::Goal;
use super::outcome::Outcome;
use super::policy;
use super::search::{self, Found};
use super::workload::{Loop, OpenError, Spec};
use crate::engine::model;

/// Everything that runs have in common which are to be compared.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What comes.
    pub load: Spec,
    /// How a trace is replayed.
    pub kind: Loop,
    /// The fleet; its number of replicas is that of a single run.
    pub fleet: fleet::Settings,
    /// Equal seeds give equal runs.
    pub seed: u64,
}

/// Why a scenario cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// There is no such workload.
    #[error(transparent)]
    Workload(#[from] OpenError),
    /// There is no such policy.
    #[error(transparent)]
    Policy(#[from] policy::UnknownPolicy),
    /// The fleet cannot work.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl Scenario {
    /// Runs it once.
    ///
    /// # Errors
    /// When the workload cannot be read, the policy is unknown, or the engines cannot work.
    pub fn run(
        &self,
        policy: &str,
        replicas: usize,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Outcome, ScenarioError> {
        self.run_for(None, policy, replicas, progress)
    }

    /// Runs it, but only as long as a goal is within reach, if one is given.
    fn run_for(
        &self,
        goal: Option<Goal>,
        policy: &str,
        replicas: usize,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Outcome, ScenarioError> {
        let engine = &self.fleet.engine;
        let context = policy::Context {
            replicas,
            max_num_batched_tokens: u32::try_from(engine.max_num_batched_tokens)
                .unwrap_or(u32::MAX),
            decode: decode_cost(engine),
            seed: self.seed,
        };
        let mut rule = policy::by_name(policy, &context)?;
        let mut load = self.load.open(self.seed, self.kind)?;
        let requests = load.len_hint();
        let mut fleet = self.fleet.clone();
        fleet.replicas = replicas;
        if let (Some(goal), Some(requests)) = (goal, requests) {
            fleet.give_up = goal.out_of_reach(requests);
        }
        let mut outcome = fleet::run(&fleet, load.as_mut(), rule.as_mut(), self.seed, progress)?;
        policy.clone_into(&mut outcome.policy);
        Ok(outcome)
    }

    /// Searches the smallest fleet of at most `most` replicas that meets a goal, among those that have every replica
    /// that an outage names.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn smallest(
        &self,
        policy: &str,
        goal: Goal,
        most: usize,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Found<Outcome>, ScenarioError> {
        let named = self.fleet.outages.iter();
        let least = named.map(|outage| outage.replica.saturating_add(1)).max();
        let least = least.unwrap_or(1);
        search::smallest(self.fleet.replicas, least, most, |replicas| {
            // The largest fleet is run to its end: its figures are shown where none is enough.
            let until = (replicas < most).then_some(goal);
            let outcome = self.run_for(until, policy, replicas, progress)?;
            let verdict = goal.verdict(&outcome);
            Ok((outcome, verdict))
        })
    }
}

fn decode_cost(engine: &model::Settings) -> policy::DecodeCost {
    let prefill = engine.prefill_per_token.as_secs_f64();
    if prefill <= 0.0 {
        return policy::DecodeCost::default();
    }
    policy::DecodeCost {
        step: (engine.step_base + engine.decode_per_step).as_secs_f64() / prefill,
        context_token: engine.decode_ns_per_context_token * 1e-9 / prefill,
    }
}
