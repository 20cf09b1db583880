//! Which policy does how well under which load? Every policy over every load, and the tables of docs/policies.md.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;

use super::goal::Goal;
use super::parallel;
use super::policy;
use super::scenario::Scenario;
use super::workload::Spec;
use super::writable;
use cases::Case;
use tables::{Row, Sheet};

pub mod cases;
pub mod document;
pub mod tables;

/// How much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Extent {
    /// Minutes: the first requests of each load.
    Quick,
    /// Hours: the whole of each.
    Full,
}

/// Flags of `warmpath study`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// How much of each load
    #[arg(value_enum, default_value = "quick")]
    pub extent: Extent,
    /// Folder with the unpacked traces (scripts/study.sh makes it); without it only generated loads are run
    #[arg(long, value_name = "DIR")]
    pub traces: Option<PathBuf>,
    /// Put the tables into this document instead of printing them
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Only loads with these names, with commas between them
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub load: Vec<String>,
    /// Only these policies, with commas between them [default: all, and the variants of least-prefill]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub policy: Vec<String>,
    /// Do not search the smallest fleets, which takes most of the time
    #[arg(long)]
    pub no_search: bool,
    /// Equal seeds give equal results
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Runs at the same time [default: as many as there are cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

/// One policy under one load in one loop.
struct Job<'a> {
    case: &'a Case,
    scenario: Scenario,
    goal: Option<Duration>,
    policy: &'a str,
}

/// Runs the study.
///
/// # Errors
/// When a load cannot be had or a document cannot be written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let policies: Vec<String> = match args.policy.as_slice() {
        [] => {
            let all = policy::ALL.iter().chain(policy::VARIANTS);
            all.map(|&name| name.to_owned()).collect()
        }
        named => named.to_vec(),
    };
    for name in &policies {
        policy::check(name)?;
    }
    let cases = chosen(args)?;
    if let Some(path) = &args.write {
        check_document(args, &cases, path)?;
    }
    let mut jobs = Vec::new();
    for case in &cases {
        for &kind in case.loops {
            let scenario = case.scenario(kind, args)?;
            if let Spec::Trace(trace) = &scenario.load {
                let path = &trace.path;
                std::fs::metadata(path)
                    .with_context(|| format!("load {}: no trace {}", case.name, path.display()))?;
            }
            for policy in &policies {
                jobs.push(Job {
                    case,
                    scenario: scenario.clone(),
                    goal: case.goal.filter(|_| !args.no_search),
                    policy,
                });
            }
        }
    }
    let threads = args.threads.unwrap_or_else(parallel::cores);
    let results = parallel::each(&jobs, threads, |job| {
        let row = row(job);
        // Nobody may look, and the study goes on all the same.
        writeln!(
            std::io::stderr(),
            "{} ({:?}): {}",
            job.case.name,
            job.scenario.kind,
            job.policy
        )
        .ok();
        row
    });
    let mut sheets: Vec<(String, Sheet)> = Vec::new();
    for (job, row) in jobs.iter().zip(results) {
        let row = row.with_context(|| format!("load {}, policy {}", job.case.name, job.policy))?;
        let name = job.case.sheet_name(job.scenario.kind);
        match sheets.last_mut() {
            Some((last, sheet)) if *last == name => sheet.rows.push(row),
            _ => {
                let title = job.case.title(&job.scenario);
                sheets.push((
                    name,
                    Sheet {
                        title,
                        rows: vec![row],
                        most: job.case.most,
                    },
                ));
            }
        }
    }
    show(args, &cases, &sheets, &policies)
}

fn chosen(args: &Args) -> anyhow::Result<Vec<Case>> {
    let mut cases = cases::all();
    if let Some(unknown) = args
        .load
        .iter()
        .find(|name| !cases.iter().any(|case| case.name == **name))
    {
        let names: Vec<&str> = cases.iter().map(|case| case.name).collect();
        anyhow::bail!(
            "there is no load {unknown:?}; there are {}",
            names.join(", ")
        );
    }
    cases.retain(|case| args.load.is_empty() || args.load.iter().any(|name| name == case.name));
    if args.traces.is_none() {
        let (generated, traces): (Vec<_>, Vec<_>) =
            cases.into_iter().partition(|case| !case.is_trace());
        if let Some(first) = traces.first() {
            writeln!(
                std::io::stderr(),
                "without --traces {} loads are left out, {} among them",
                traces.len(),
                first.name
            )
            .ok();
        }
        cases = generated;
    }
    Ok(cases)
}

/// Whether the document has a place for every table that will come.
fn check_document(args: &Args, cases: &[Case], path: &Path) -> anyhow::Result<()> {
    let names = cases.iter().map(|case| case.name);
    let names = names.chain(["regret"]);
    let names = names.chain((!args.no_search).then_some("fleets"));
    let empty: Vec<_> = names.map(|name| (name.to_owned(), String::new())).collect();
    fill(path, &empty)?;
    writable::check(path)
}

/// The document, with the tables in their places.
fn fill(path: &Path, tables: &[(String, String)]) -> anyhow::Result<String> {
    let document =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    document::fill(&document, tables).with_context(|| path.display().to_string())
}

fn row(job: &Job<'_>) -> anyhow::Result<Row> {
    let replicas = job.scenario.fleet.replicas;
    let outcome = job.scenario.run(job.policy, replicas, &mut |_| {})?;
    let smallest = match job.goal {
        None => None,
        Some(limit) => {
            let goal = Goal::p90_ttft(limit);
            let found = job
                .scenario
                .smallest(job.policy, goal, job.case.most, &mut |_| {})?;
            Some(found.replicas)
        }
    };
    Ok(Row {
        policy: job.policy.to_owned(),
        outcome,
        smallest,
    })
}

fn show(
    args: &Args,
    cases: &[Case],
    sheets: &[(String, Sheet)],
    policies: &[String],
) -> anyhow::Result<()> {
    let mut texts: Vec<(String, String)> = Vec::new();
    for case in cases {
        let of_case = sheets.iter().filter(|(name, _)| case.owns(name));
        let text: Vec<String> = of_case.map(|(_, sheet)| sheet.markdown()).collect();
        texts.push((case.name.to_owned(), text.join("\n")));
    }
    texts.push(("regret".to_owned(), tables::overview(sheets, policies)));
    if !args.no_search {
        texts.push(("fleets".to_owned(), tables::fleets(sheets, policies)));
    }
    match &args.write {
        Some(path) => {
            let filled = fill(path, &texts)?;
            std::fs::write(path, filled).with_context(|| format!("cannot write {}", path.display()))
        }
        None => {
            let mut out = std::io::stdout();
            for (name, text) in &texts {
                writeln!(out, "## {name}\n\n{text}")?;
            }
            Ok(())
        }
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

    /// The error of a full study, which would take hours if it began.
    #[track_caller]
    fn refused(flags: &[&str]) -> String {
        let words = ["study", "full"].iter().chain(flags);
        let flags = <Flags as clap::Parser>::try_parse_from(words).unwrap();
        format!("{:#}", run(&flags.args).unwrap_err())
    }

    #[test]
    fn what_a_study_cannot_do_is_told_before_anything_is_run() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = folder.path().join("nowhere").display().to_string();
        let error = refused(&["--policy", "random,nonsense"]);
        assert!(error.contains("nonsense"), "{error}");
        for flag in ["--write", "--traces"] {
            let error = refused(&[flag, &nowhere]);
            assert!(error.contains("nowhere"), "{error}");
        }
        let document = folder.path().join("x.md");
        std::fs::write(&document, "<!-- study: reference -->\n<!-- end -->\n").unwrap();
        let path = document.display().to_string();
        let error = refused(&["--write", &path, "--load", "reference"]);
        assert!(
            error.contains("x.md") && error.contains("\"regret\""),
            "{error}"
        );
    }
}
