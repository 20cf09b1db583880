//! What would a fleet cost, with and without affinity, and is affinity worth having? Sums on paper, before any GPU.
//!
//! ```text
//! presets, file, trace, flags ─▶ inputs ─▶ sums ─▶ verdict ─▶ report, JSON
//! ```
//!
//! Everything is worked out from a dozen figures by the formulas in [`sums`]; nothing is measured and nothing queues.
//! `warmpath simulate` plays the same constants in virtual time ([`Inputs::engine`]).

mod engine;
mod given;
pub mod inputs;
mod keeping;
pub mod measure;
mod popularity;
pub mod presets;
mod report;
mod resolve;
pub mod reuse;
pub mod sums;
#[cfg(test)]
mod tests;
pub mod verdict;

use std::io::Write as _;

use anyhow::Context as _;

use crate::simulate::workload::{Loop, Spec, TraceArgs};

pub use engine::MOST_BLOCKS;
pub use given::Given;
pub use inputs::{Inputs, InputsError};
pub use measure::{Measured, Recorded, measure};
pub use resolve::{Origin, Resolved, resolve};
pub use reuse::Reuse;
pub use sums::{Sums, SumsError};
pub use verdict::{Choice, Verdict};

/// The seed that `warmpath simulate` takes as well where none is given, so that equal flags describe one load.
const SEED: u64 = 1;

/// Flags of `warmpath plan`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// YAML file of inputs, by the names of the flags with underscores; flags override it
    #[arg(long, value_name = "FILE")]
    config: Option<std::path::PathBuf>,
    /// The inputs.
    #[command(flatten)]
    given: Given,
    /// The recording whose requests are measured.
    #[command(flatten)]
    trace: TraceArgs,
    /// Which conversations --sessions takes, and when they begin where the trace does not tell, as for simulate; equal
    /// seeds measure the same load
    #[arg(long, value_name = "SEED", default_value_t = SEED)]
    seed: u64,
    /// Whether the names of presets, models and GPUs are listed with their sources, and nothing else is done
    #[arg(long)]
    list: bool,
    /// Whether the result is printed as JSON
    #[arg(long)]
    json: bool,
}

/// Works everything out and prints it.
///
/// # Errors
/// When an input is missing or out of its bounds, the model does not fit, or the result cannot be printed.
pub fn run(args: Args) -> anyhow::Result<()> {
    let text = if args.list {
        presets::listing()
    } else {
        let file = args.config.as_deref().map(given::read_file).transpose()?;
        let recorded = recorded(&args.trace, args.seed)?;
        planned(args.given, file, recorded.as_ref(), args.json)?
    };
    writeln!(std::io::stdout(), "{text}").context("cannot print the result")
}

/// What the recording has, if one was named. It is counted as it came, whatever a fleet would have done.
fn recorded(trace: &TraceArgs, seed: u64) -> anyhow::Result<Option<Recorded>> {
    let Some(trace) = trace.spec() else {
        return Ok(None);
    };
    let path = trace.path.display().to_string();
    let mut workload = Spec::Trace(trace).open(seed, Loop::Open)?;
    let recorded = measure(workload.as_mut());
    anyhow::ensure!(
        recorded.measured.requests > 0,
        "{path} has no requests to measure"
    );
    Ok(Some(recorded))
}

/// The report of these inputs.
fn planned(
    flags: Given,
    file: Option<Given>,
    recorded: Option<&Recorded>,
    json: bool,
) -> anyhow::Result<String> {
    let resolved = resolve(flags, recorded.map(|recorded| &recorded.measured), file)?;
    let reuse = recorded.and_then(|recorded| recorded.reuse_for(&resolved.inputs));
    let sums = Sums::with(&resolved.inputs, reuse)?;
    let mut verdict = verdict::judge(&resolved.inputs, &sums, reuse.is_some());
    let short = recorded.and_then(|of| verdict::too_short(of.measured.requests, &sums));
    verdict.notes.extend(short);
    let plan = report::Plan {
        resolved: &resolved,
        measured: recorded.map(|recorded| &recorded.measured),
        found: reuse.map(|reuse| report::Found::of(reuse, &sums)),
        sums: &sums,
        verdict: &verdict,
    };
    Ok(if json {
        report::json(&plan)
    } else {
        report::text(&plan)
    })
}
