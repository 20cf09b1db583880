//! How fast is a picker? An ext-proc load generator that plays a gateway, checks every answer, and measures.
//!
//! ```text
//! workload ─▶ load ─▶ exchange ─▶ stream ─▶ connection ─▶ picker
//!                        └▶ tally ─▶ report ◀─ the picker's CPU time and memory
//! ```
//!
//! It runs against any picker that speaks full-duplex ext-proc; `docs/performance.md` says how.

// What is sent.
mod text;
mod workload;
// One exchange.
mod connection;
mod exchange;
mod messages;
mod stream;
// All of them, and what came of it.
mod load;
mod picker_process;
mod report;
mod tally;
// Something to pick from.
mod engines;

use std::io::Write as _;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use crate::config::units::{Span, SpanOrZero};
use connection::Connections;
use exchange::Script;
use load::{Generator, Pace};
use picker_process::Source;
use report::Report;
use workload::{Shape, Workload};

/// Bytes of English text and code a token, about, with current tokenizers.
const BYTES_PER_TOKEN: usize = 4;
/// Exchanges at once while caches are warmed.
const WARM_UP_LOOPS: usize = 8;

/// Flags of `warmpath bench`.
#[derive(Clone, Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["rate", "concurrency", "serve_engines"]))]
pub struct Args {
    /// The picker's ext-proc port
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9002")]
    target: String,
    /// Whether the picker speaks TLS; its certificate is not verified
    #[arg(
        long, value_enum, value_name = "HOW", num_args = 0..=1, require_equals = true,
        default_value = "off", default_missing_value = "insecure"
    )]
    tls: Tls,
    /// Open loop: requests a second, at random moments; 0 sends none and measures an idle picker
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// Closed loop: requests at once
    #[arg(long, value_name = "N")]
    concurrency: Option<NonZeroUsize>,
    /// How long is measured
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    duration: Span,
    /// How long the load runs before that, after each shared prompt was sent once
    #[arg(long, value_name = "DURATION", default_value = "2s")]
    warm_up: SpanOrZero,
    /// Tokens of a prompt, at 4 bytes each
    #[arg(long, value_name = "TOKENS", default_value_t = 8_000)]
    prompt_tokens: usize,
    /// Bytes of a prompt, instead of its tokens
    #[arg(long, value_name = "BYTES")]
    body_bytes: Option<usize>,
    /// Share of a prompt that others have as well, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.75)]
    shared: f64,
    /// Different shared prompts
    #[arg(long, value_name = "N", default_value_t = 200)]
    prefixes: usize,
    /// Largest piece of a request body; Envoy's is its buffer limit
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    piece_bytes: usize,
    /// Server-sent events of each answer; 0: one JSON document
    #[arg(long, value_name = "N", default_value_t = 0)]
    response_chunks: usize,
    /// Time between two of them
    #[arg(long, value_name = "DURATION", default_value = "10ms")]
    chunk_interval: SpanOrZero,
    /// The model that requests name
    #[arg(long, value_name = "NAME", default_value = "qwen3")]
    model: String,
    /// Connections; a gateway has one for each of its workers
    #[arg(long, value_name = "N", default_value_t = 2)]
    connections: usize,
    /// Longest wait for an exchange, its answer's own time not counted
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    timeout: Span,
    /// The same seed sends the same requests
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The picker's process on this machine, whose CPU time and memory are reported
    #[arg(long, value_name = "PID", conflicts_with = "metrics")]
    pid: Option<u32>,
    /// The picker's metrics page, for the same
    #[arg(long, value_name = "URL")]
    metrics: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Instead of a load: so many stub engines to pick from, until killed
    #[arg(long, value_name = "N", requires = "endpoints_file")]
    serve_engines: Option<u16>,
    /// The first stub engine's port; the others follow
    #[arg(long, value_name = "PORT", default_value_t = 18_000)]
    engines_port: u16,
    /// Where to list the stub engines, for the picker
    #[arg(long, value_name = "FILE")]
    endpoints_file: Option<PathBuf>,
}

/// How the picker's port is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Tls {
    /// Plain HTTP/2.
    Off,
    /// TLS; any certificate is taken.
    Insecure,
}

/// Runs a load and prints its figures, or serves stub engines.
///
/// # Errors
/// When the picker cannot be reached, or exchanges failed (after the figures were printed).
pub async fn run(args: Args) -> anyhow::Result<()> {
    if let (Some(count), Some(file)) = (args.serve_engines, &args.endpoints_file) {
        return engines::serve(count, args.engines_port, &args.model, file).await;
    }
    let report = measure(&args).await?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    } else {
        write!(out, "{report}")?;
    }
    let failed: u64 = report.errors.values().sum();
    anyhow::ensure!(failed == 0, "{failed} exchanges failed");
    Ok(())
}

async fn measure(args: &Args) -> anyhow::Result<Report> {
    let picker = args.picker()?;
    let pace = match (args.rate, args.concurrency) {
        (Some(rate), _) => Pace::Rate(rate),
        (None, loops) => Pace::Loops(loops.map_or(1, NonZeroUsize::get)),
    };
    let generator = Arc::new(Generator {
        connections: Connections::open(&args.target, args.tls, args.connections).await?,
        workload: Workload::new(args.shape(), &args.model, args.seed),
        script: Script {
            piece_bytes: args.piece_bytes,
            response_chunks: args.response_chunks,
            chunk_interval: args.chunk_interval.0,
        },
        timeout: args.timeout.0,
        tally: tally::Tally::default(),
        numbers: std::sync::atomic::AtomicU64::new(0),
        seed: args.seed,
    });
    if pace != Pace::Rate(0.0) {
        load::warm_up(&generator, WARM_UP_LOOPS).await;
    }
    let stop = CancellationToken::new();
    let loading = load::run(Arc::clone(&generator), pace, stop.clone());
    let watching = async {
        tokio::time::sleep(args.warm_up.0).await;
        let before = (picker.read().await?, picker_process::of_process("self")?);
        let started = Instant::now();
        generator.tally.start();
        tokio::time::sleep(args.duration.0).await;
        let results = generator.tally.stop();
        let seconds = started.elapsed().as_secs_f64();
        let after = (picker.read().await?, picker_process::of_process("self")?);
        stop.cancel();
        let mut report = Report::new(args.load(pace), seconds, results);
        report.generator_cores = (after.1.cpu_seconds - before.1.cpu_seconds) / seconds;
        anyhow::Ok(match (before.0, after.0) {
            (Some(before), Some(after)) => report.with_picker(before, after),
            _ => report,
        })
    };
    // An error of the watcher must not wait for the load, which it would have stopped.
    tokio::pin!(watching);
    tokio::select! {
        report = &mut watching => report,
        () = loading => watching.await,
    }
}

impl Args {
    fn shape(&self) -> Shape {
        let by_tokens = self.prompt_tokens.saturating_mul(BYTES_PER_TOKEN);
        Shape {
            text_bytes: self.body_bytes.unwrap_or(by_tokens),
            shared: self.shared,
            prefixes: self.prefixes,
        }
    }

    fn picker(&self) -> anyhow::Result<Source> {
        Ok(match (self.pid, &self.metrics) {
            (Some(pid), _) => Source::Pid(pid),
            (None, Some(url)) => {
                let client = reqwest::Client::builder().no_proxy().build();
                Source::Page(
                    client.context("cannot set up the HTTP client")?,
                    url.clone(),
                )
            }
            (None, None) => Source::Unknown,
        })
    }

    fn load(&self, pace: Pace) -> String {
        let pace = match pace {
            Pace::Rate(rate) => format!("{rate} requests a second"),
            Pace::Loops(loops) => format!("closed loop of {loops}"),
        };
        format!("{pace}, {} bytes of prompt", self.shape().text_bytes)
    }
}

#[cfg(test)]
mod tests;
