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
pub mod measure;
mod popularity;
pub mod presets;
mod report;
mod resolve;
pub mod sums;
#[cfg(test)]
mod tests;
pub mod verdict;

use std::io::Write as _;

use anyhow::Context as _;

pub use given::Given;
pub use inputs::{Inputs, InputsError};
pub use measure::{Measured, measure};
pub use resolve::{Origin, Resolved, resolve};
pub use sums::{Sums, SumsError};
pub use verdict::{Choice, Verdict};

/// Flags of `warmpath plan`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// YAML file of inputs, by the names of the flags with underscores; flags override it
    #[arg(long, value_name = "FILE")]
    config: Option<std::path::PathBuf>,
    /// The inputs.
    #[command(flatten)]
    given: Given,
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
        planned(args.given, file, None, args.json)?
    };
    writeln!(std::io::stdout(), "{text}").context("cannot print the result")
}

/// The report of these inputs.
fn planned(
    flags: Given,
    file: Option<Given>,
    measured: Option<&Measured>,
    json: bool,
) -> anyhow::Result<String> {
    let resolved = resolve(flags, measured, file)?;
    let sums = Sums::of(&resolved.inputs)?;
    let verdict = verdict::judge(&resolved.inputs, &sums);
    let plan = report::Plan {
        resolved: &resolved,
        measured,
        sums: &sums,
        verdict: &verdict,
    };
    Ok(if json {
        report::json(&plan)
    } else {
        report::text(&plan)
    })
}
