//! The whole process on port 0: what answers where, how it leaves, how it fails to start.

use std::path::Path;
use std::process::{Command, Output};

use clap::Parser;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use warmpath::app::{self, Addresses};
use warmpath::args::{self, Args};
use warmpath::telemetry::{self, Format};

use crate::support::picker::process::PickerProcess;
use crate::support::waiting::{PATIENCE, until};

fn serve_args(flags: &[&str]) -> args::Serve {
    let line = [
        "warmpath",
        "serve",
        "--bind",
        "127.0.0.1",
        "--grpc-port",
        "0",
    ];
    let more = ["--grpc-health-port", "0", "--metrics-port", "0"];
    let command = Args::parse_from(line.iter().chain(&more).chain(flags)).command;
    let serve = match command {
        args::Command::Serve(serve) => Some(serve),
        _other => None,
    };
    serve.unwrap()
}

fn endpoints_file(folder: &Path) -> String {
    let path = folder.join("endpoints.yaml");
    let text = "endpoints:\n  - {name: vllm-0, address: 127.0.0.1, port: 1}\n";
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A picker that runs in this process.
struct Running {
    addresses: Addresses,
    signals: mpsc::Sender<()>,
    task: JoinSet<anyhow::Result<()>>,
    _folder: tempfile::TempDir,
    _subscriber: Box<dyn tracing::Subscriber + Send + Sync>,
}

async fn start(flags: &[&str]) -> Running {
    let folder = tempfile::tempdir().unwrap();
    let file = endpoints_file(folder.path());
    let (subscriber, log) =
        telemetry::subscriber(Format::Text, "info", std::io::sink, false).unwrap();
    let mut all = vec!["--endpoints-file", &file, "--secure-serving=false"];
    all.extend(flags);
    let bound = app::build(&serve_args(&all), log).await.unwrap();
    let addresses = bound.addresses;
    let (signals, received) = mpsc::channel(2);
    let mut task = JoinSet::new();
    task.spawn(bound.run(received));
    Running {
        addresses,
        signals,
        task,
        _folder: folder,
        _subscriber: Box::new(subscriber),
    }
}

impl Running {
    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addresses.metrics)
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let response = reqwest::get(self.url(path)).await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    async fn until_ready(&self) {
        until("it is ready", async || {
            (self.get("/readyz").await.0 == 200).then_some(())
        })
        .await;
    }

    async fn ended(&mut self) -> anyhow::Result<()> {
        let ended = tokio::time::timeout(PATIENCE, self.task.join_next()).await;
        ended.unwrap().unwrap().unwrap()
    }
}

#[tokio::test]
async fn every_page_answers_and_both_grpc_ports_are_open() {
    let running = start(&[]).await;
    running.until_ready().await;
    assert_eq!(running.get("/livez").await, (200, "ok\n".to_owned()));

    let (status, metrics) = running.get("/metrics").await;
    assert_eq!(status, 200);
    for name in [
        "warmpath_build_info{",
        "process_resident_memory_bytes ",
        "warmpath_reports_total{",
    ] {
        assert!(metrics.contains(name), "{metrics}");
    }
    let (_, state) = running.get("/debug/state").await;
    let state: Value = serde_json::from_str(&state).unwrap();
    assert_eq!(state["settings"]["guards"]["report_age_limit"], "500ms");
    assert_eq!(state["readiness"]["ready"], true);
    assert!(state["endpoints"].is_array());

    let (status, decisions) = running.get("/debug/decisions?n=5").await;
    assert_eq!((status, decisions.starts_with('[')), (200, true));
    assert_eq!(running.get("/debug/decisions?n=many").await.0, 400);
    assert!(running.get("/").await.1.contains("<title>warmpath</title>"));

    for address in [running.addresses.grpc, running.addresses.health] {
        TcpStream::connect(address).await.unwrap();
    }
}

#[tokio::test]
async fn the_log_level_can_be_put_and_a_bad_one_is_refused() {
    let running = start(&[]).await;
    let put = async |filter: &'static str| {
        let request = reqwest::Client::new()
            .put(running.url("/log-level"))
            .body(filter);
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    };
    assert_eq!(put("warn,warmpath=debug").await.0, 204);
    let (status, told) = put("warmpath=loud").await;
    assert_eq!(status, 400);
    assert!(
        told.contains("`warmpath=loud` is not a log filter"),
        "{told}"
    );
    assert_eq!(running.get("/log-level").await.1, "warmpath=debug,warn\n");
}

#[tokio::test]
async fn after_a_signal_it_is_not_ready_but_still_accepts_and_then_ends() {
    let mut running = start(&["--drain-delay", "400ms"]).await;
    running.until_ready().await;
    running.signals.send(()).await.unwrap();
    let detail = until("it is not ready", async || {
        let (status, detail) = running.get("/readyz").await;
        (status == 503).then_some(detail)
    })
    .await;
    assert!(detail.contains("\"leaving\":true"), "{detail}");
    assert_eq!(running.get("/livez").await.0, 200);
    TcpStream::connect(running.addresses.grpc).await.unwrap();
    running.ended().await.unwrap();
    assert!(TcpStream::connect(running.addresses.grpc).await.is_err());
}

#[tokio::test]
async fn a_second_signal_aborts_at_once() {
    let mut running = start(&["--drain-delay", "1h"]).await;
    // Those that come right after the first count as one with it; then one more ends it.
    while running.signals.send(()).await.is_ok() {}
    let error = running.ended().await.unwrap_err();
    assert_eq!(error.to_string(), "aborted by a second signal");
}

fn warmpath(flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath"));
    command.args(flags).env_remove("RUST_LOG").output().unwrap()
}

fn error_of(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn errors_at_start_are_one_line_with_code_1_and_usage_errors_have_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let file = endpoints_file(folder.path());
    let bad = folder.path().join("bad.yaml");
    std::fs::write(&bad, "endpoints:\n  - {name: a, address: vllm, port: 1}\n").unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();

    let cases = [
        (
            vec!["--endpoints-file", bad.to_str().unwrap()],
            "bad.yaml:2:24: endpoint default/a: address `vllm`",
        ),
        (
            vec!["--endpoints-file", "/no/file"],
            "cannot read the endpoints file /no/file: No such file",
        ),
        (
            vec![
                "--endpoints-file",
                &file,
                "--bind",
                "127.0.0.1",
                "--grpc-port",
                &port,
            ],
            "(--grpc-port): Address already in use",
        ),
        (
            vec![
                "--endpoints-file",
                &file,
                "--secure-serving=false",
                "--cert-path",
                "/c",
            ],
            "--cert-path makes no sense with --secure-serving=false",
        ),
    ];
    for (flags, expected) in cases {
        let line: Vec<&str> = ["serve"].into_iter().chain(flags).collect();
        let output = warmpath(&line);
        let error = error_of(&output);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(
            error.starts_with("warmpath: ") && error.contains(expected),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let usage = warmpath(&["serve", "--endpoints-file", &file, "--drain-timeout", "30"]);
    assert_eq!(usage.status.code(), Some(2));
    assert!(error_of(&usage).contains("`30` is not a duration"));
    let version = warmpath(&["version"]);
    assert_eq!(version.status.code(), Some(0));
    assert_eq!(
        version.stdout,
        format!("warmpath {}\n", env!("CARGO_PKG_VERSION")).into_bytes()
    );
}

/// Tells a picker to leave: once, or until it does.
async fn exit_code_after_signals(delay: &str, once: bool) -> Option<i32> {
    let folder = tempfile::tempdir().unwrap();
    let mut command = PickerProcess::command();
    command.args(["--endpoints-file", &endpoints_file(folder.path())]);
    command.args(["--secure-serving=false", "--drain-delay", delay]);
    let mut picker = PickerProcess::started(command).await;
    picker.signal("-TERM");
    picker.logs("leaving").await;
    if once {
        return picker.end().await.code;
    }
    // Those that come right after the first count as one with it.
    until("it ends", async || {
        let end = picker.look_for_end();
        if end.is_none() {
            picker.signal("-TERM");
        }
        end
    })
    .await
    .code
}

#[tokio::test]
async fn sigterm_ends_with_code_0_and_a_second_one_with_code_1() {
    assert_eq!(exit_code_after_signals("0s", true).await, Some(0));
    assert_eq!(exit_code_after_signals("1h", false).await, Some(1));
}
