//! `warmpath simulate`: every policy, in every loop the load allows; then the report.

use std::io::{Stderr, Write as _};
use std::time::Instant;

use anyhow::Context as _;
use parking_lot::Mutex;

use super::args::Args;
use super::fleet::Progress;
use super::goal::Goal;
use super::outcome::Outcome;
use super::parallel;
use super::report;
use super::scenario::{Scenario, ScenarioError};
use super::workload::{Loop, OpenError};
use super::writable;

/// Runs what the flags ask for, and prints it.
///
/// # Errors
/// When a flag names what does not exist, a trace cannot be read, or a file cannot be written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let policies = args.policies()?;
    let scenarios = scenarios(args)?;
    if let Some(path) = &args.html {
        writable::check(path)?;
    }
    let mut runs = Vec::new();
    for (kind, scenario) in scenarios {
        let outcomes = all_policies(args, &policies, &scenario)?;
        let mut setup = setup(args, kind, &scenario);
        setup.notes.extend(report::why_failed(
            &outcomes,
            scenario.fleet.engine.max_model_len,
        ));
        setup.notes.extend(unmet(args, &outcomes));
        runs.push((kind, outcomes, setup));
    }
    // A page that cannot be written takes nothing from what was computed.
    let written = match &args.html {
        None => Ok(()),
        Some(path) => std::fs::write(path, page(&runs))
            .with_context(|| format!("cannot write {}", path.display())),
    };
    let texts: Vec<String> = runs
        .iter()
        .map(|(_, outcomes, setup)| match args.json {
            true => report::json(outcomes, setup),
            false => report::table(outcomes, setup),
        })
        .collect();
    let text = if args.json {
        format!("[{}]", texts.join(","))
    } else {
        texts.join("\n")
    };
    writeln!(std::io::stdout(), "{}", text.trim_end()).context("cannot write the report")?;
    written
}

/// One page, with a part for each loop.
fn page(runs: &[(Loop, Vec<Outcome>, report::Setup)]) -> String {
    let parts = runs.iter().map(|(kind, outcomes, setup)| report::Part {
        name: match kind {
            Loop::Open => "Open loop",
            Loop::Closed => "Closed loop",
        },
        setup,
        outcomes,
    });
    report::html(&parts.collect::<Vec<_>>())
}

/// One scenario for each loop: the one asked for, else all that the load allows.
fn scenarios(args: &Args) -> anyhow::Result<Vec<(Loop, Scenario)>> {
    if let Some(kind) = args.kind {
        return Ok(vec![(kind, args.scenario(kind)?)]);
    }
    let mut scenarios = Vec::new();
    for kind in [Loop::Open, Loop::Closed] {
        let scenario = args.scenario(kind)?;
        match scenario.load.open(scenario.seed, kind) {
            Ok(_) => scenarios.push((kind, scenario)),
            Err(OpenError::NoClosedLoop { .. }) if kind == Loop::Closed => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(scenarios)
}

fn all_policies(
    args: &Args,
    policies: &[String],
    scenario: &Scenario,
) -> anyhow::Result<Vec<Outcome>> {
    let expected = scenario.load.open(scenario.seed, scenario.kind)?.len_hint();
    let total = expected
        .filter(|_| args.replicas_for.is_none())
        .map(|requests| requests.saturating_mul(policies.len() as u64));
    let done = Mutex::new(Done::new(total));
    let outcomes = parallel::each(policies, args.threads(scenario), |policy| {
        let mut before = 0;
        let mut told = |progress: Progress| {
            // A search begins again with each fleet.
            let more = progress.ended.checked_sub(before).unwrap_or(progress.ended);
            before = progress.ended;
            done.lock().more(more);
        };
        let most = usize::from(args.max_replicas);
        one_policy(args.replicas_for, most, scenario, policy, &mut told)
    });
    done.into_inner().end();
    let named = outcomes.into_iter().zip(policies);
    named
        .map(|(outcome, policy)| outcome.with_context(|| format!("policy {policy}")))
        .collect()
}

/// Requests that have ended in all runs so far, shown on standard error.
struct Done {
    bar: report::Progress<Stderr>,
    requests: u64,
}

impl Done {
    fn new(total: Option<u64>) -> Self {
        Self {
            bar: report::Progress::on_stderr("simulating", total, Instant::now()),
            requests: 0,
        }
    }

    fn more(&mut self, requests: u64) {
        self.requests += requests;
        // Nobody may be looking, and the run goes on all the same.
        self.bar.update(self.requests, Instant::now()).ok();
    }

    fn end(self) {
        self.bar.finish(self.requests, Instant::now()).ok();
    }
}

fn one_policy(
    goal: Option<Goal>,
    most: usize,
    scenario: &Scenario,
    policy: &str,
    told: &mut dyn FnMut(Progress),
) -> Result<Outcome, ScenarioError> {
    match goal {
        None => scenario.run(policy, scenario.fleet.replicas, told),
        Some(goal) => {
            let found = scenario.smallest(policy, goal, most, told)?;
            let mut outcome = found.run;
            outcome.goal_met = Some(found.replicas.is_some());
            Ok(outcome)
        }
    }
}

fn setup(args: &Args, kind: Loop, scenario: &Scenario) -> report::Setup {
    let engine = &scenario.fleet.engine;
    let constants = args.engine.profile.as_ref().unwrap_or(&args.engine.preset);
    let fleet = match args.replicas_for {
        None => format!("{} replicas", args.replicas),
        Some(goal) => format!(
            "the smallest of at most {} replicas for {goal}",
            args.max_replicas
        ),
    };
    let tokens = engine.blocks.saturating_sub(1) * engine.block_size.get() as usize;
    let line = |name: &str, value: String| (name.to_owned(), value);
    report::Setup {
        title: "Simulated fleet".to_owned(),
        lines: vec![
            line("load", load_text(args)),
            line(
                "loop",
                match kind {
                    Loop::Open => "open: requests come at their times".to_owned(),
                    Loop::Closed => {
                        "closed: the next turn comes after the thinking time".to_owned()
                    }
                },
            ),
            line("fleet", fleet),
            line(
                "engine",
                format!(
                    "{constants}: {tokens} tokens of KV in blocks of {}, {} tokens and {} requests a step",
                    engine.block_size.get(),
                    engine.max_num_batched_tokens,
                    engine.max_num_seqs
                ),
            ),
            line(
                "late",
                format!(
                    "events by {:?}, reports by {:?}",
                    scenario.fleet.event_delay, scenario.fleet.report_delay
                ),
            ),
            line("seed", scenario.seed.to_string()),
            line("warmpath", env!("CARGO_PKG_VERSION").to_owned()),
        ],
        notes: Vec::new(),
    }
}

/// Says which policies no fleet was enough for.
fn unmet(args: &Args, outcomes: &[Outcome]) -> Option<String> {
    let unmet = outcomes
        .iter()
        .filter(|outcome| outcome.goal_met == Some(false));
    let names: Vec<&str> = unmet.map(|outcome| outcome.policy.as_str()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "No fleet of at most {} replicas meets the goal under {}: their figures are those of the largest.",
            args.max_replicas,
            names.join(", ")
        )
    })
}

/// The load, as it was asked for.
fn load_text(args: &Args) -> String {
    match (&args.load.trace.trace, &args.load.workload) {
        (Some(trace), _) => format!("trace {}", trace.display()),
        (None, Some(name)) => name.clone(),
        (None, None) => "reference".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Flags {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_page_that_cannot_be_written_is_told_before_anything_is_simulated() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("none/x.html");
        // So many requests would take hours.
        let flags = ["simulate", "--requests", "1000000000", "--html"].map(str::to_owned);
        let words = flags.into_iter().chain([page.display().to_string()]);
        let flags = <Flags as clap::Parser>::try_parse_from(words).unwrap();
        let error = run(&flags.args).unwrap_err();
        assert!(error.to_string().contains("none/x.html"), "{error}");
    }
}
