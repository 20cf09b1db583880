//! The main job on one machine in one command: engines, the picker, a real Envoy, and traffic through them.
//!
//! ```text
//! traffic ─▶ Envoy ─▶ engines        1. round robin: Envoy's own
//!              └ ext-proc ─▶ picker  2. least prefill: the same requests at the same times, caches cold again
//! ```
//!
//! Engines and picker run in this process, started as tests start them: their addresses come back as values, so no
//! port is fixed, guessed or read out of a log. What crosses between them is the same as anywhere: HTTP, KV events
//! over ZMQ and ext-proc over TLS, all through real sockets. Envoy is a child process.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::signal::unix::{SignalKind, signal};

use crate::config::units::{Positive, Span, Whole};
use crate::telemetry::LogControl;

mod client;
mod envoy;
mod envoy_config;
mod folder;
mod hot;
mod operator;
mod phase;
mod picker;
pub mod program;
mod prose;
mod report;
mod screen;
mod stack;
mod table;
mod workload;

use operator::Operator;
use phase::{Phase, Policy};
use report::Comparison;
use screen::Screen;
use stack::{Plan, Stack};
use workload::Workload;

/// Requests a second for each engine. Under round robin, with 40 % of the prompt tokens computed at 71 µs each and a
/// decode beside them, this keeps an engine busy for about three quarters of the time.
const RATE_PER_ENGINE: f64 = 7.5;
/// How often the stack is looked at while it is kept.
const KEEP_CHECK: Duration = Duration::from_millis(500);

/// Flags of `warmpath demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Length of the traffic under each policy
    #[arg(long, value_name = "DURATION", default_value = "15s")]
    duration: Span,
    /// Requests a second [default: 7.5 for each engine]
    #[arg(long, value_name = "REQUESTS")]
    rate: Option<Positive>,
    /// Simulated engines
    #[arg(long, value_name = "N", default_value = "3")]
    engines: Whole<1, 16>,
    /// Customers, prompts and arrival times depend on this alone
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// The Envoy program [default: the one in the tools folder, then on PATH; `make demo` installs it]
    #[arg(long, value_name = "FILE", env = "WARMPATH_ENVOY")]
    envoy: Option<PathBuf>,
    /// Prints the result as JSON on standard output, and all else on standard error
    #[arg(long)]
    json: bool,
    /// Leaves everything running after the comparison, until Ctrl-C
    #[arg(long)]
    keep: bool,
}

/// Runs the demo. Whatever ends it (the comparison, an error, a signal), everything it started ends and the files
/// it wrote are removed.
///
/// # Errors
/// When something does not start, requests failed, or a signal came before the comparison.
pub async fn run(args: Args, log: LogControl) -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    // The terminal was closed.
    let mut hangup = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
    let mut screen = Screen::open(args.json);
    let mut kept = false;
    let signalled = tokio::select! {
        // A signal of the terminal reaches Envoy as well; what then fails is no news.
        biased;
        _ = interrupt.recv() => true,
        _ = terminate.recv() => true,
        _ = hangup.recv() => true,
        ended = show(&args, log, &mut screen, &mut kept) => {
            ended?;
            false
        }
    };
    if signalled && !kept {
        bail!("interrupted before there was anything to compare");
    }
    Ok(())
}

/// Starts, compares, tells; sets `kept` when nothing is left to do but to wait.
async fn show(
    args: &Args,
    log: LogControl,
    screen: &mut Screen,
    kept: &mut bool,
) -> anyhow::Result<()> {
    let engines = args.engines.as_usize();
    let rate = args
        .rate
        .map_or(RATE_PER_ENGINE * engines as f64, |rate| rate.0);
    let workload = Workload::generate(args.seed, args.duration.0, rate);
    if workload.arrivals.is_empty() {
        bail!(
            "no request falls within {} at {rate} requests a second",
            args.duration
        );
    }
    let program = program::find(args.envoy.as_deref())?;
    screen.line(&format!(
        "Starting {engines} simulated engines, the picker and an Envoy:"
    ))?;
    screen.line(&format!("  {}", program.display()))?;
    let plan = Plan { engines, program };
    let mut stack = Stack::start(plan, log).await?;
    screen.line(&format!(
        "{} customers with system prompts of 2,000 to 4,000 tokens send {} requests,",
        workload.customers.len(),
        workload.arrivals.len(),
    ))?;
    screen.line(&format!(
        "{rate} a second, {} of them from one hot customer. Under each policy the same.",
        workload.of_hot_customer(),
    ))?;

    let comparison = compare(&workload, args.duration.0, &mut stack, screen).await?;
    screen.line("")?;
    for line in comparison.table() {
        screen.line(&line)?;
    }
    screen.line("")?;
    for line in comparison.words() {
        screen.line(&line)?;
    }
    if args.json {
        screen::json(&comparison.json())?;
    }
    comparison.check()?;
    if args.keep {
        *kept = true;
        keep(&mut stack, screen).await?;
    }
    Ok(())
}

/// The same traffic under both policies, each with cold caches.
async fn compare(
    workload: &Workload,
    duration: Duration,
    stack: &mut Stack,
    screen: &mut Screen,
) -> anyhow::Result<Comparison> {
    let operator = Operator::new(stack.addresses().metrics)?;
    let hot = hot::learn(workload, stack).await?;
    let phase = |policy| Phase {
        policy,
        workload,
        duration,
        operator: &operator,
        hot: &hot,
    };
    Ok(Comparison {
        round_robin: phase(Policy::RoundRobin).run(stack, screen).await?,
        least_prefill: phase(Policy::LeastPrefill).run(stack, screen).await?,
    })
}

/// Says what there is to try, and waits for the signal that ends it.
async fn keep(stack: &mut Stack, screen: &mut Screen) -> anyhow::Result<()> {
    for line in stack.things_to_try() {
        screen.line(&line)?;
    }
    loop {
        tokio::time::sleep(KEEP_CHECK).await;
        stack.check()?;
    }
}
