//! A picker in a thread and runtime of its own: it can be stopped, or killed as a process is.

use std::fs::File;
use std::net::IpAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use clap::Parser as _;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use warmpath::app::{self, Addresses};
use warmpath::args::{self, Args};
use warmpath::telemetry::{self, Format};

use super::Pages;
use crate::support::fleet::{Files, tail};
use crate::support::ports::own_loopback;

/// A running picker.
pub(crate) struct PickerThread {
    pages: Pages,
    signals: mpsc::Sender<()>,
    kill: CancellationToken,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
    log: PathBuf,
}

fn serve_args(files: &Files, secure: bool, ip: IpAddr, ports: [u16; 3]) -> args::Serve {
    let (endpoints, settings) = (files.endpoints(), files.settings());
    let ip = ip.to_string();
    let [grpc, health, metrics] = ports.map(|port| port.to_string());
    let secure = format!("--secure-serving={secure}");
    let line = [
        "warmpath",
        "serve",
        "--bind",
        &ip,
        "--endpoints-file",
        endpoints.to_str().expect("a path in UTF-8"),
        "--config",
        settings.to_str().expect("a path in UTF-8"),
        "--grpc-port",
        &grpc,
        "--grpc-health-port",
        &health,
        "--metrics-port",
        &metrics,
        "--drain-delay",
        "0s",
        &secure,
    ];
    match Args::parse_from(line.iter().chain(&files.flags)).command {
        args::Command::Serve(serve) => serve,
        other => panic!("{other:?}"),
    }
}

impl PickerThread {
    /// Starts one that reads these files; it listens when this returns, on an address where nobody else takes its ports
    /// while it is away.
    pub(crate) async fn start(files: &Files, secure: bool) -> Self {
        Self::at(files, secure, own_loopback().into(), [0; 3]).await
    }

    /// Starts one at the addresses of another that has ended.
    pub(crate) async fn in_place_of(old: Addresses, files: &Files, secure: bool) -> Self {
        let ports = [old.grpc, old.health, old.metrics].map(|address| address.port());
        Self::at(files, secure, old.grpc.ip(), ports).await
    }

    async fn at(files: &Files, secure: bool, ip: IpAddr, ports: [u16; 3]) -> Self {
        let serve = serve_args(files, secure, ip, ports);
        let log = files.log();
        let file = Arc::new(File::create(&log).expect("a temporary file"));
        let (subscriber, control) = telemetry::subscriber(
            Format::Text,
            "debug,h2=info,hyper=info,zeromq=info",
            file,
            false,
        )
        .expect("a filter");
        let dispatch = tracing::Dispatch::new(subscriber);
        let workers = dispatch.clone();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .on_thread_start(move || {
                // For as long as the thread lives.
                std::mem::forget(tracing::dispatcher::set_default(&workers));
            })
            .build()
            .expect("a runtime");
        let (signals, received) = mpsc::channel(2);
        let kill = CancellationToken::new();
        let killed = kill.clone();
        let (tell, told) = oneshot::channel();
        let run = move || {
            let _log = tracing::dispatcher::set_default(&dispatch);
            runtime.block_on(async move {
                let bound = app::build(&serve, control).await?;
                tell.send(bound.addresses).ok();
                tokio::select! {
                    () = killed.cancelled() => Ok(()),
                    ended = bound.run(received) => ended,
                }
            })
        };
        let thread = std::thread::Builder::new()
            .name("picker".to_owned())
            .spawn(run)
            .expect("a thread");
        let Ok(addresses) = told.await else {
            panic!("the picker does not start: {:?}", thread.join());
        };
        Self {
            pages: Pages { addresses },
            signals,
            kill,
            thread: Some(thread),
            log,
        }
    }

    /// Ends it at once, whatever is under way.
    pub(crate) async fn kill(&mut self) {
        self.kill.cancel();
        self.joined().await;
    }

    /// Tells it to leave, and waits until it has.
    pub(crate) async fn stop(&mut self) {
        self.signals.send(()).await.expect("it runs");
        self.joined().await;
    }

    async fn joined(&mut self) {
        let thread = self.thread.take().expect("it was started");
        let ended = tokio::task::spawn_blocking(|| thread.join()).await;
        let ended = ended
            .expect("no panic in between")
            .expect("the picker does not panic");
        ended.expect("the picker ends in good order");
    }
}

impl Deref for PickerThread {
    type Target = Pages;

    fn deref(&self) -> &Pages {
        &self.pages
    }
}

impl Drop for PickerThread {
    fn drop(&mut self) {
        self.kill.cancel();
        if let Some(thread) = self.thread.take() {
            // What it ended with is of no interest any more; a failed test shows its log.
            drop(thread.join());
        }
        if std::thread::panicking() {
            println!("picker.log:\n{}", tail(&self.log, 80));
        }
    }
}
