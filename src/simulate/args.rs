//! The flags of `warmpath simulate`, and what they make of a fleet.

use std::path::PathBuf;

use anyhow::Context as _;

use super::calibrate;
use super::fleet;
use super::goal::Goal;
use super::parallel;
use super::policy;
use super::scenario::Scenario;
use super::workload::{self, Loop};
use crate::engine::model;
use crate::plan;
use crate::routing::block::BlockSize;

/// Flags of `warmpath simulate`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// How a trace is replayed, where it allows it [default: both]
    #[arg(long = "loop", value_name = "LOOP", value_enum)]
    pub kind: Option<Loop>,
    /// Replicas of the fleet; with --replicas-for the first guess
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub replicas: u16,
    /// Policies to compare, with commas between them [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub policy: Vec<String>,
    /// Search the smallest fleet of each policy that meets a goal such as "p90 ttft < 1s"; with --outage among fleets
    /// that have the replica
    #[arg(long, value_name = "GOAL")]
    pub replicas_for: Option<Goal>,
    /// The largest fleet that is tried
    #[arg(
        long,
        value_name = "N",
        default_value_t = 96,
        value_parser = clap::value_parser!(u16).range(1..=4096),
        requires = "replicas_for"
    )]
    pub max_replicas: u16,
    /// Equal seeds give equal results
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print JSON instead of the table
    #[arg(long)]
    pub json: bool,
    /// Write a report with plots
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Runs at the same time [default: as many as there are cores, fewer of fleets beyond 128 million blocks]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    // Last, since a heading of the help holds for all that follows it.
    /// What comes
    #[command(flatten)]
    pub load: workload::Args,
    /// The engines
    #[command(flatten)]
    pub engine: EngineArgs,
    /// The fleet around them
    #[command(flatten)]
    pub fleet: fleet::Args,
}

/// Token budget of a step, and requests at once, of engines that no profile describes.
const STEP_TOKENS: usize = 8192;
const SEQS: usize = 256;

/// Blocks of all pools of the fleets that are simulated at once; each takes 70 bytes.
const MOST_FLEET_BLOCKS: u64 = 1 << 28;

/// Which engines.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Engines")]
pub struct EngineArgs {
    /// Constants worked out from a model and its hardware (as `warmpath plan` lists them)
    #[arg(
        long,
        value_name = "NAME",
        default_value = "llama-3.3-70b-h200",
        conflicts_with = "profile"
    )]
    pub preset: String,
    /// Constants fitted to a measured vLLM instead (docs/engine-model.md)
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Tokens a block; of a profile they are 16
    #[arg(
        long,
        value_name = "TOKENS",
        default_value_t = 16,
        value_parser = clap::value_parser!(u32).range(1..=4096),
        conflicts_with = "profile"
    )]
    pub block_size: u32,
    /// Token budget of a step [default: 8192, or the profile's]
    #[arg(long, value_name = "TOKENS")]
    pub max_num_batched_tokens: Option<usize>,
    /// Requests running at once on a replica [default: 256, or the profile's]
    #[arg(long, value_name = "N")]
    pub max_num_seqs: Option<usize>,
    /// Tokens the KV pool of a replica holds [default: what the preset or profile has]
    #[arg(long, value_name = "TOKENS")]
    pub kv_tokens: Option<u64>,
}

impl EngineArgs {
    /// The engine they name.
    ///
    /// # Errors
    /// When there is no such preset or profile, or nobody could simulate so large a pool.
    pub fn settings(&self) -> anyhow::Result<model::Settings> {
        let size = BlockSize::new(self.block_size).context("blocks must not be empty")?;
        let mut engine = match &self.profile {
            Some(name) => calibrate::Profile::by_name(name)
                .with_context(|| {
                    let profiles = calibrate::PROFILES.iter();
                    let names: Vec<&str> = profiles.map(|profile| profile.name).collect();
                    format!(
                        "there is no profile {name:?}; there are {}",
                        names.join(", ")
                    )
                })?
                .settings(),
            None => plan::Inputs::preset(&self.preset)?.engine(size, STEP_TOKENS, SEQS),
        };
        if let Some(tokens) = self.max_num_batched_tokens {
            engine.max_num_batched_tokens = tokens;
        }
        if let Some(requests) = self.max_num_seqs {
            engine.max_num_seqs = requests;
        }
        if let Some(tokens) = self.kv_tokens {
            let blocks = tokens / u64::from(engine.block_size.get());
            anyhow::ensure!(
                blocks <= plan::MOST_BLOCKS,
                "--kv-tokens {tokens}: that is {blocks} blocks, and a pool can have {} here",
                plan::MOST_BLOCKS
            );
            // One block of a pool is never used.
            engine.blocks = usize::try_from(blocks)?.saturating_add(1);
            let fits = usize::try_from(blocks * u64::from(engine.block_size.get()))?;
            engine.max_model_len = match &self.profile {
                // What was measured was started with a limit, which a larger pool does not lift.
                Some(_) => engine.max_model_len.min(fits),
                None => fits,
            };
        }
        Ok(engine)
    }
}

impl Args {
    /// The policies to compare, each once.
    ///
    /// # Errors
    /// When there is no policy of a name.
    pub fn policies(&self) -> Result<Vec<String>, policy::UnknownPolicy> {
        let mut policies: Vec<String> = Vec::new();
        for name in &self.policy {
            policy::check(name)?;
            if !policies.contains(name) {
                policies.push(name.clone());
            }
        }
        if policies.is_empty() {
            policies.extend(policy::ALL.iter().copied().map(str::to_owned));
        }
        Ok(policies)
    }

    /// Replicas of the largest fleet that may be simulated.
    const fn largest(&self) -> u16 {
        match self.replicas_for {
            None => self.replicas,
            Some(_) => self.max_replicas,
        }
    }

    /// How many fleets of the scenario to simulate at once: as asked for, else as many as there are cores and memory for.
    pub fn threads(&self, scenario: &Scenario) -> usize {
        self.threads.unwrap_or_else(|| {
            let blocks = u64::from(self.largest()) * scenario.fleet.engine.blocks as u64;
            let fit = MOST_FLEET_BLOCKS / blocks.max(1);
            parallel::cores()
                .min(usize::try_from(fit).unwrap_or(usize::MAX))
                .max(1)
        })
    }

    /// The scenario in one loop.
    ///
    /// # Errors
    /// When a flag names something that does not exist, or the fleet is too large.
    pub fn scenario(&self, kind: Loop) -> anyhow::Result<Scenario> {
        let mut fleet = fleet::Settings::new(usize::from(self.replicas), self.engine.settings()?);
        let replicas = self.largest();
        let blocks = u64::from(replicas).saturating_mul(fleet.engine.blocks as u64);
        anyhow::ensure!(
            blocks <= MOST_FLEET_BLOCKS,
            "{replicas} pools of {} blocks are more than the {MOST_FLEET_BLOCKS} that a fleet can have here: take fewer \
             replicas, smaller pools (--kv-tokens) or larger blocks (--block-size)",
            fleet.engine.blocks
        );
        self.fleet.apply(&mut fleet);
        Ok(Scenario {
            load: self.load.spec()?,
            kind,
            fleet,
            seed: self.seed,
        })
    }
}

#[cfg(test)]
mod tests;
