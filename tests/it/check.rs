//! Claims about `warmpath check`: what it finds, what it advises, and its exit code.

use std::net::SocketAddr;
use std::process::Output;

use serde_json::{Value, json};
use tokio::process::Command;
use warmpath::engine::{Running, Settings, start};

use crate::support::fleet::{INSTANT, MODEL, qwen3};
use crate::support::ports::Refusing;

async fn engine(options: &[&str]) -> Running {
    let settings = Settings::local(&[&INSTANT, options].concat()).expect("options of an engine");
    start(settings).await.expect("an engine starts")
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

async fn check(options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_warmpath"))
        .arg("check")
        .args(options)
        .env_remove("WARMPATH_API_KEY")
        .env_remove("RUST_LOG")
        .kill_on_drop(true)
        .output()
        .await
        .expect("the program runs")
}

/// What one engine's examination says, and whether the exit code is that of success.
struct Said {
    json: Value,
    success: bool,
}

impl Said {
    async fn of(engine: &Running, options: &[&str]) -> Self {
        let url = url(engine.http());
        Self::by(&[&["--json", "--url", &url], options].concat()).await
    }

    async fn by(options: &[&str]) -> Self {
        let output = check(options).await;
        let json = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            let told = String::from_utf8_lossy(&output.stderr);
            panic!("no JSON ({error}); {told}");
        });
        Self {
            json,
            success: output.status.success(),
        }
    }

    fn level(&self, topic: &str) -> &str {
        self.finding(topic)["level"].as_str().expect("a level")
    }

    fn finding(&self, topic: &str) -> &Value {
        let findings = self.json["endpoints"][0]["findings"].as_array();
        findings
            .expect("findings")
            .iter()
            .find(|finding| finding["check"] == topic)
            .unwrap_or_else(|| panic!("nothing about {topic} in {:#}", self.json))
    }

    fn advice(&self, topic: &str) -> &str {
        self.finding(topic)["advice"].as_str().expect("advice")
    }
}

#[tokio::test]
async fn a_healthy_engine_passes_every_check_that_needs_no_tokenizer() {
    let engine = engine(&[]).await;
    let said = Said::of(&engine, &[]).await;
    assert!(said.success, "{:#}", said.json);
    assert_eq!(said.json["passed"], true);
    for topic in [
        "reachable",
        "version",
        "model",
        "state-report",
        "prefix-caching",
        "hash-algorithm",
        "event-sources",
        "events",
        "block-size",
        "replay",
        "cached-tokens",
    ] {
        assert_eq!(said.level(topic), "ok", "{topic}: {:#}", said.json);
    }
}

#[tokio::test]
async fn tokens_are_held_against_the_engines_where_there_is_a_tokenizer() {
    let folder = qwen3::folder().join(MODEL);
    let model_dir = folder.to_str().expect("a path in UTF-8");
    let mut config = tempfile::NamedTempFile::new().expect("a file");
    let models = json!({"tokenizers": {"models": {MODEL: {"directory": model_dir}}, "hub": false}});
    std::io::Write::write_all(&mut config, models.to_string().as_bytes()).expect("written");
    let config = config.path().to_str().expect("a path in UTF-8");

    let same = engine(&["--model", MODEL, "--model-dir", model_dir]).await;
    let said = Said::of(&same, &["--config", config]).await;
    assert_eq!(said.level("tokenizer"), "ok", "{:#}", said.json);

    let other = engine(&[
        "--model",
        MODEL,
        "--model-dir",
        model_dir,
        "--fault",
        "wrong-tokens",
    ])
    .await;
    let said = Said::of(&other, &["--config", config]).await;
    assert!(!said.success);
    assert_eq!(said.level("tokenizer"), "failed", "{:#}", said.json);
    assert!(said.advice("tokenizer").contains("--chat-template"));

    let unknown = engine(&[]).await;
    let said = Said::of(&unknown, &[]).await;
    assert_eq!(said.level("tokenizer"), "warning", "{:#}", said.json);
    assert!(said.advice("tokenizer").contains("tokenizers.models"));
}

#[tokio::test]
async fn the_table_names_each_check_and_ends_with_the_totals() {
    let engine = engine(&[]).await;
    let output = check(&["--url", &url(engine.http())]).await;
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{text}");
    assert!(text.contains("ok        replay "), "{text}");
    let last = text.trim_end().lines().last().expect("a line");
    assert!(
        last.starts_with("1 endpoint: ") && last.contains(" 0 failed"),
        "{last}"
    );
}

#[tokio::test]
async fn an_engine_without_events_fails_with_the_flag_to_set() {
    let engine = engine(&["--kv-events", "none", "--kv-replay", "none"]).await;
    let said = Said::of(&engine, &["--timeout", "1s"]).await;
    assert!(!said.success);
    assert_eq!(said.json["passed"], false);
    assert_eq!(said.level("event-sources"), "failed");
    assert!(said.advice("event-sources").contains("--kv-events-config"));
    assert_eq!(said.level("cached-tokens"), "ok", "{:#}", said.json);
}

#[tokio::test]
async fn an_engine_without_replay_fails_that_check_alone() {
    let engine = engine(&["--kv-replay", "none"]).await;
    let said = Said::of(&engine, &[]).await;
    assert!(!said.success);
    assert_eq!(said.level("replay"), "failed");
    assert!(said.advice("replay").contains("replay_endpoint"));
    assert_eq!(said.level("events"), "ok");
}

#[tokio::test]
async fn a_publisher_that_stays_silent_is_noticed() {
    let engine = engine(&["--fault", "silent-publisher"]).await;
    let said = Said::of(&engine, &["--timeout", "1s"]).await;
    assert!(!said.success);
    assert_eq!(said.level("events"), "failed");
    assert!(said.advice("events").contains("tcp://*:5557"));
}

#[tokio::test]
async fn each_rank_is_examined_by_a_request_of_its_own() {
    let engine = engine(&["--data-parallel-size", "2"]).await;
    let said = Said::of(&engine, &[]).await;
    assert!(said.success, "{:#}", said.json);
    let findings = said.json["endpoints"][0]["findings"]
        .as_array()
        .expect("findings");
    let of_events = findings
        .iter()
        .filter(|finding| finding["check"] == "events");
    let said: Vec<&str> = of_events
        .filter_map(|finding| finding["saw"].as_str())
        .collect();
    assert_eq!(said.len(), 2);
    assert!(
        said[0].starts_with("rank 0: ") && said[1].starts_with("rank 1: "),
        "{said:?}"
    );
}

#[tokio::test]
async fn where_nobody_listens_the_rest_is_left_out() {
    let nobody = Refusing::new();
    let said = Said::by(&["--json", "--timeout", "1s", "--url", &url(nobody.address())]).await;
    assert!(!said.success);
    assert_eq!(said.level("reachable"), "failed");
    assert_eq!(said.level("events"), "left-out");
}

#[tokio::test]
async fn engines_of_a_file_are_compared_with_each_other() {
    let engines = [engine(&[]).await, engine(&["--version", "0.31.0"]).await];
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    let mut text = "endpoints:\n".to_owned();
    for (n, engine) in engines.iter().enumerate() {
        let address = engine.http();
        text += &format!(
            "  - {{name: e{n}, address: {}, port: {}}}\n",
            address.ip(),
            address.port()
        );
    }
    std::io::Write::write_all(&mut file, text.as_bytes()).expect("written");
    let path = file.path().to_str().expect("a path in UTF-8");
    let said = Said::by(&["--json", "--endpoints-file", path]).await;
    assert!(said.success, "{:#}", said.json);
    let fleet = said.json["fleet"].as_array().expect("differences");
    assert_eq!(fleet.len(), 1, "{fleet:?}");
    let line = fleet[0].as_str().expect("a line");
    assert!(
        line.starts_with("versions differ") && line.contains("0.31.0 (default/e1)"),
        "{line}"
    );
}

#[tokio::test]
async fn what_is_no_engines_address_is_a_usage_error_in_plain_words() {
    for (given, told) in [
        ("10.0.0.1:8000", "is no URL such as http://10.0.0.1:8000"),
        ("https://10.0.0.1:8000", "plain HTTP"),
        ("http://10.0.0.1:8000/v1", "without a path"),
    ] {
        let output = check(&["--url", given]).await;
        assert!(!output.status.success());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(told), "{given}: {error}");
    }
    let output = check(&[]).await;
    assert_eq!(output.status.code(), Some(2));
}
