//! The load generator against a server of our own, whose pick may be a bad one.

use std::net::SocketAddr;

use clap::Parser as _;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::*;
use crate::args::Command;
use crate::extproc::exchange::{BodyMode, TestHeaders};
use crate::extproc::pick::{Flight, Pick, Rejection, RequestBody, RequestHead, Usage};
use crate::extproc::server::{Security, Settings, serve};
use crate::metrics::wire::WireMetrics;

/// Sends everything to one place, or refuses.
struct Fixed(Option<&'static str>);

struct Nothing(&'static str);

impl Pick for Fixed {
    type Flight = Nothing;
    async fn pick(&self, _: RequestHead, body: RequestBody) -> Result<Nothing, Rejection> {
        assert!(matches!(body, RequestBody::Whole(_)));
        self.0
            .map(Nothing)
            .ok_or_else(|| Rejection::Unavailable("nobody".to_owned()))
    }
}

impl Flight for Nothing {
    fn destination(&self) -> &str {
        self.0
    }
    fn response_started(&mut self, status: u16) {
        assert_eq!(status, 200);
    }
    fn served_by(&mut self, _: SocketAddr) {}
    fn first_data(&mut self) {}
    fn usage(&mut self, usage: Usage) {
        assert_eq!(usage.prompt_tokens, Some(8000));
    }
    fn completed(&mut self) {}
    fn no_response_phase(self) {}
}

/// Measures a picker that picks so, with these flags besides the target.
async fn measured(pick: Fixed, security: Security, flags: &[&str]) -> anyhow::Result<Report> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = listener.local_addr().unwrap().to_string();
    let settings = Settings {
        max_body_bytes: 32 << 20,
        max_exchanges: 1000,
        max_buffered_bytes: 1 << 30,
        default_body_mode: BodyMode::Streamed,
        pick_timeout: std::time::Duration::from_secs(1),
        body_timeout: std::time::Duration::from_secs(60),
        test_headers: TestHeaders::Ignored,
    };
    let metrics = Arc::new(WireMetrics::register(&prometheus::Registry::new()).unwrap());
    let (_ready, readiness) = watch::channel(true);
    let mut server = JoinSet::new();
    server.spawn(serve(
        listener,
        security,
        settings,
        Arc::new(pick),
        readiness,
        metrics,
        CancellationToken::new(),
    ));
    let line = [
        "warmpath",
        "bench",
        "--target",
        &target,
        "--duration",
        "300ms",
    ];
    let line = line.iter().chain(&["--warm-up", "0s", "--prefixes", "3"]);
    let args = crate::args::Args::try_parse_from(line.chain(flags)).unwrap();
    let Command::Bench(args) = args.command else {
        panic!("not the bench");
    };
    measure(&args).await
}

#[tokio::test]
async fn a_closed_loop_measures_whole_exchanges() {
    let flags = ["--concurrency", "2", "--body-bytes", "150000", "--pid"];
    let pid = std::process::id().to_string();
    let flags: Vec<&str> = flags.into_iter().chain([pid.as_str()]).collect();
    let report = measured(Fixed(Some("10.0.0.1:8000")), Security::Plain, &flags)
        .await
        .unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    assert!(report.requests > 0);
    assert_eq!(report.endpoints, 1);
    assert_eq!(report.chunk_ms, None);
    let picker = report.picker.unwrap();
    assert!(picker.cpu_ms_per_request.is_some());
    assert!(picker.resident_mib > 1.0);
}

#[tokio::test]
async fn an_open_loop_streams_answers_through_tls() {
    let flags = "--rate 100 --tls --response-chunks 5 --chunk-interval 1ms --piece-bytes 10000";
    let flags: Vec<&str> = flags.split(' ').collect();
    let report = measured(Fixed(Some("[fd00::1]:80")), Security::SelfSigned, &flags)
        .await
        .unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    assert!((3..300).contains(&report.requests), "{}", report.requests);
    assert!(report.chunk_ms.is_some());
    assert!(report.lateness_ms.is_some());
}

#[tokio::test]
async fn refusals_are_errors_by_their_status() {
    let report = measured(Fixed(None), Security::Plain, &["--concurrency", "1"])
        .await
        .unwrap();
    assert_eq!(report.requests, 0);
    let kinds: Vec<&str> = report.errors.keys().map(String::as_str).collect();
    assert_eq!(kinds, ["refused with 503"]);
    assert!(report.to_string().contains("x refused with 503"));
}

#[tokio::test]
async fn a_picker_that_speaks_tls_is_told_apart_from_a_broken_one() {
    let flags = ["--concurrency", "1"];
    let pick = Fixed(Some("10.0.0.1:8000"));
    let error = measured(pick, Security::SelfSigned, &flags)
        .await
        .unwrap_err();
    assert!(
        format!("{error:#}").contains("speaks TLS: --tls"),
        "{error:#}"
    );
}

#[tokio::test]
async fn nobody_there_is_an_error_that_names_the_target() {
    let line = [
        "warmpath",
        "bench",
        "--rate",
        "1",
        "--target",
        "127.0.0.1:1",
    ];
    let args = crate::args::Args::try_parse_from(line).unwrap();
    let Command::Bench(args) = args.command else {
        panic!("not the bench");
    };
    let error = measure(&args).await.unwrap_err();
    assert!(error.to_string().contains("127.0.0.1:1"), "{error:#}");
}
