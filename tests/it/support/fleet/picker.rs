//! A picker in a thread and runtime of its own: it can be stopped, or killed as a process is.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;

use clap::Parser as _;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use warmpath::app::{self, Addresses};
use warmpath::args::{self, Args};
use warmpath::telemetry::{self, Format};

use super::{Files, tail, until};
use crate::support::cluster::guarded::Guarded;
use crate::support::http;

/// Every decision that is kept, and those that are looked through for a request of a moment ago.
const ALL: &str = "/debug/decisions?n=100000";
const LAST: &str = "/debug/decisions?n=100";

/// A running picker.
pub(crate) struct Picker {
    pub(crate) addresses: Addresses,
    signals: mpsc::Sender<()>,
    kill: CancellationToken,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
    /// Instead of a thread.
    process: Option<Guarded>,
    log: PathBuf,
}

fn serve_args(files: &Files, secure: bool, ports: [u16; 3]) -> args::Serve {
    let (endpoints, settings) = (files.endpoints(), files.settings());
    let [grpc, health, metrics] = ports.map(|port| port.to_string());
    let secure = format!("--secure-serving={secure}");
    let line = [
        "warmpath",
        "serve",
        "--bind",
        "127.0.0.1",
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

impl Picker {
    /// Starts one that reads these files; it listens when this returns.
    pub(crate) async fn start(files: &Files, secure: bool) -> Self {
        Self::at(files, secure, [0; 3]).await
    }

    /// Starts one at the ports of another that has ended.
    pub(crate) async fn in_place_of(old: Addresses, files: &Files, secure: bool) -> Self {
        let ports = [old.grpc, old.health, old.metrics].map(|address| address.port());
        Self::at(files, secure, ports).await
    }

    async fn at(files: &Files, secure: bool, ports: [u16; 3]) -> Self {
        let serve = serve_args(files, secure, ports);
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
            addresses,
            signals,
            kill,
            thread: Some(thread),
            process: None,
            log,
        }
    }

    /// Starts `command` as a process of its own, which is told to listen at these addresses; it lives when this returns.
    pub(crate) async fn process(command: &Command, addresses: Addresses, log: PathBuf) -> Self {
        let (signals, _nobody) = mpsc::channel(1);
        let mut picker = Self {
            addresses,
            signals,
            kill: CancellationToken::new(),
            thread: None,
            process: Some(Guarded::start(command, &log)),
            log,
        };
        let client = reqwest::Client::new();
        let livez = format!("http://{}/livez", addresses.metrics);
        until("the picker lives", async || {
            let ended = picker.process.as_mut().and_then(Guarded::ended);
            assert!(ended.is_none(), "the picker ended: {ended:?}");
            client.get(&livez).send().await.ok()
        })
        .await;
        picker
    }

    /// What it logged.
    pub(crate) fn logged(&self) -> String {
        std::fs::read_to_string(&self.log).expect("the log is there")
    }

    /// Ends it at once, whatever is under way.
    pub(crate) async fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            drop(process);
            return;
        }
        self.kill.cancel();
        self.joined().await;
    }

    /// Tells it to leave, and waits until it has.
    pub(crate) async fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.terminate();
            let ended = until("the picker has left", async || process.ended()).await;
            assert!(ended.success(), "the picker ends in good order: {ended}");
            return;
        }
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

    /// A page; it must be there.
    pub(crate) async fn page(&self, path: &str) -> String {
        if let Some(thread) = &self.thread {
            assert!(!thread.is_finished(), "the picker ended by itself");
        }
        let answer = http::get(self.addresses.metrics, path).await;
        assert_eq!(answer.status, 200, "{path}");
        String::from_utf8(answer.body.to_vec()).expect("a page is text")
    }

    async fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.page(path).await).expect("a page of JSON")
    }

    /// All endpoints as it sees them.
    pub(crate) async fn endpoints(&self) -> Vec<Value> {
        let state = self.json("/debug/state").await;
        state["endpoints"].as_array().expect("a list").clone()
    }

    /// One endpoint as it sees it; it must be there.
    pub(crate) async fn endpoint(&self, name: &str) -> Value {
        let found = self.find_endpoint(name).await;
        found.unwrap_or_else(|| panic!("no endpoint {name}"))
    }

    async fn find_endpoint(&self, name: &str) -> Option<Value> {
        let endpoints = self.endpoints().await;
        endpoints.into_iter().find(|endpoint| {
            endpoint["name"]
                .as_str()
                .is_some_and(|full| full.ends_with(name))
        })
    }

    /// Waits until all endpoints together are as `holds` wants them.
    pub(crate) async fn sees(&self, what: &str, mut holds: impl FnMut(&[Value]) -> bool) {
        until(what, async || holds(&self.endpoints().await).then_some(())).await;
    }

    /// Waits until so many engines have reported and told their models, and so many doubles have no report page.
    pub(super) async fn knows(&self, engines: usize, echoes: usize) {
        let told = |endpoint: &&Value| {
            let models = endpoint["engine"]["models"].as_array();
            endpoint["report"]["age_ms"].is_u64() && models.is_some_and(|models| !models.is_empty())
        };
        let silent = |endpoint: &&Value| endpoint["report"]["no_page"] == true;
        let what = format!("{engines} engines and {echoes} doubles are known");
        self.sees(&what, |endpoints| {
            endpoints.iter().filter(told).count() == engines
                && endpoints.iter().filter(silent).count() == echoes
        })
        .await;
    }

    /// Waits until an endpoint is there and has event feeds, all of them in this state.
    pub(crate) async fn feed_is(&self, name: &str, state: &str) {
        let what = format!("the feeds of {name} are {state}");
        until(&what, async || {
            let endpoint = self.find_endpoint(name).await?;
            feed_is(&endpoint, state).then_some(())
        })
        .await;
    }

    /// The sample of a metric, its labels as they are written.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let page = self.page("/metrics").await;
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().expect("a number"))
    }

    /// Waits until a metric has a value.
    pub(crate) async fn metric_is(&self, name: &str, value: f64) {
        let what = format!("{name} is {value}");
        until(&what, async || {
            (self.metric(name).await == value).then_some(())
        })
        .await;
    }

    /// The last decisions, newest first.
    pub(crate) async fn decisions(&self) -> Vec<Value> {
        self.list(ALL).await
    }

    async fn list(&self, path: &str) -> Vec<Value> {
        match self.json(path).await {
            Value::Array(list) => list,
            other => panic!("{path} is no list: {other}"),
        }
    }

    /// The decision on a request, once the pick was made.
    pub(crate) async fn picked(&self, request_id: &str) -> Value {
        self.decision(request_id, |_| true).await
    }

    /// The decision on a request, once its exchange has ended.
    pub(crate) async fn ended(&self, request_id: &str) -> Value {
        self.decision(request_id, |decision| {
            !decision["outcome"]["ended"].is_null()
        })
        .await
    }

    async fn decision(&self, request_id: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        until(&format!("a decision on {request_id}"), async || {
            let decisions = self.list(LAST).await;
            decisions
                .into_iter()
                .find(|decision| decision["request_id"] == request_id && is_wanted(decision))
        })
        .await
    }

    /// Asserts what must hold after every test: no tokens are booked and nothing is in flight, anywhere.
    pub(crate) async fn nothing_is_booked(&self) {
        self.metric_is("warmpath_streams_in_flight", 0.0).await;
        self.sees("nothing is booked or in flight", |endpoints| {
            endpoints
                .iter()
                .all(|endpoint| endpoint["queued_tokens"] == 0 && endpoint["in_flight"] == 0)
        })
        .await;
    }
}

/// An endpoint has event feeds, and all of them are in this state.
pub(crate) fn feed_is(endpoint: &Value, state: &str) -> bool {
    let feeds = endpoint["feeds"].as_array().expect("a list");
    !feeds.is_empty() && feeds.iter().all(|feed| feed["state"] == state)
}

impl Drop for Picker {
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
