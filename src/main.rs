//! The `warmpath` command.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::warn;
use warmpath::args::{Args, Command, Note, OtherPickers, Serve};
use warmpath::config::endpoint_picker;
use warmpath::telemetry::{self, LogControl};
use warmpath::{app, bench, check, demo, engine, plan, simulate};

/// Measured beside glibc's on two shared cores (docs/performance.md): a loaded tokenizer holds 121 MiB at rest instead
/// of 296, 100 requests a second of 100,000 tokens 560 MiB instead of 710 at 10 % less CPU time; with small requests
/// there is no difference. mimalloc came near in memory and was slower with large bodies. Its background threads give
/// memory back when no request does. (An arm64 kernel with pages over 4 KiB needs a build with
/// `JEMALLOC_SYS_WITH_LG_PAGE=16`.)
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let args = match Args::read(std::env::args_os()) {
        Ok(args) => args,
        Err(usage) => {
            // Help and version are "errors" with code 0; usage errors have code 2.
            usage.print().ok();
            return ExitCode::from(u8::try_from(usage.exit_code()).unwrap_or(2));
        }
    };
    match run(args) {
        Ok(code) => code,
        Err(error) => {
            // Not a log line: it must be seen at any log level. If standard error is closed, nobody looks.
            writeln!(std::io::stderr(), "warmpath: {error:#}").ok();
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> anyhow::Result<ExitCode> {
    if matches!(args.command, Command::Version) {
        writeln!(std::io::stdout(), "warmpath {}", env!("CARGO_PKG_VERSION"))?;
        return Ok(ExitCode::SUCCESS);
    }
    // They compute on threads of their own: no runtime.
    match &args.command {
        Command::Plan(plan) => return done(plan::run((**plan).clone())),
        Command::Simulate(simulate) => return done(simulate::run(simulate)),
        Command::Study(study) => return done(simulate::study::run(study)),
        _ => {}
    }
    let log = telemetry::init(args.log_format(), args.log_level())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let ended = runtime.block_on(async {
        match args.command {
            Command::Serve(serve) => run_serve(&serve, log).await?,
            Command::Engine(engine) => run_engine(engine).await?,
            Command::Demo(demo) => demo::run(demo, log).await?,
            Command::Bench(bench) => bench::run(*bench).await?,
            // Scripts read the result off the code: 1 as for any failure.
            Command::Check(check) => {
                if !check::run(check).await? {
                    return Ok(ExitCode::FAILURE);
                }
            }
            // Done above.
            Command::Plan(_) | Command::Simulate(_) | Command::Study(_) | Command::Version => {}
        }
        Ok(ExitCode::SUCCESS)
    });
    // A file read that hangs must not keep the process.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

fn done(ended: anyhow::Result<()>) -> anyhow::Result<ExitCode> {
    ended.map(|()| ExitCode::SUCCESS)
}

async fn run_serve(args: &Serve, log: LogControl) -> anyhow::Result<()> {
    tell_of_other_pickers(&args.other_pickers)?;
    let mut asked = Asked::listen()?;
    // Two signals are told apart; a third adds nothing.
    let (send, signals) = mpsc::channel(2);
    let forward = async {
        loop {
            asked.again().await;
            send.try_send(()).ok();
        }
    };
    let serving = async { app::build(args, log).await?.run(signals).await };
    tokio::select! {
        ended = serving => ended,
        () = forward => Ok(()),
    }
}

/// Says of each flag and each part of a file that was made for another endpoint picker what happens here instead.
fn tell_of_other_pickers(args: &OtherPickers) -> anyhow::Result<()> {
    for Note { flag, instead } in args.notes() {
        warn!(%flag, instead, "flag has no meaning here");
    }
    let parts = match (&args.config_file, &args.config_text) {
        (Some(file), _) => endpoint_picker::load(file)?,
        (None, Some(text)) => endpoint_picker::parse(text, "--config-text")?,
        (None, None) => Vec::new(),
    };
    for endpoint_picker::Note { part, instead } in parts {
        let instead = instead.unwrap_or("nothing takes its place");
        warn!(%part, instead, "part of the EndpointPickerConfig has no meaning here");
    }
    Ok(())
}

async fn run_engine(args: engine::Args) -> anyhow::Result<()> {
    let mut asked = Asked::listen()?;
    let stop = CancellationToken::new();
    let running = engine::run(args, stop.clone());
    tokio::pin!(running);
    tokio::select! {
        ended = &mut running => ended,
        () = asked.again() => {
            stop.cancel();
            running.await
        }
    }
}

/// The signals that ask a process to end. They are listened for from `listen` on, so that one which comes
/// while the process still starts does not kill it.
struct Asked {
    terminate: Signal,
    interrupt: Signal,
}

impl Asked {
    fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?,
        })
    }

    async fn again(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
