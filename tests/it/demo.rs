//! The demo as a person runs it: the command itself, with a real Envoy, from start to clean end.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::support::http;
use crate::support::tools::tool;

/// An unoptimized build loads four tokenizers; on a busy machine that takes its time.
const PATIENCE: Duration = Duration::from_secs(300);

/// The command, with temporary files in a folder of the test's own.
fn demo(envoy: &Path, temporary: &TempDir, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath"));
    command
        .arg("demo")
        .args(flags)
        .env("WARMPATH_ENVOY", envoy)
        .env("TMPDIR", temporary.path())
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Nothing lies in the folder, and no process works in it.
fn assert_clean(temporary: &TempDir) {
    let left: Vec<_> = std::fs::read_dir(temporary.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(left.is_empty(), "{left:?}");
    // Envoy's working folder is in it; once removed, its name still begins with it.
    let working_here = |process: &std::fs::DirEntry| {
        std::fs::read_link(process.path().join("cwd"))
            .is_ok_and(|folder| folder.starts_with(temporary.path()))
    };
    let processes = std::fs::read_dir("/proc").unwrap().map(Result::unwrap);
    let left: Vec<_> = processes.filter(working_here).collect();
    assert!(left.is_empty(), "{left:?}");
}

async fn signal(child: &Child, name: &str) {
    let pid = child.id().unwrap().to_string();
    let sent = Command::new("kill").args([name, &pid]).status().await;
    assert!(sent.unwrap().success());
}

#[tokio::test]
async fn least_prefill_finds_more_in_caches_than_round_robin_and_foresees_it() {
    let Some(envoy) = tool("envoy") else { return };
    let temporary = tempfile::tempdir().unwrap();
    let mut command = demo(&envoy, &temporary, &["--duration", "3s", "--json"]);
    let output = timeout(PATIENCE, command.output()).await.unwrap().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert_clean(&temporary);

    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (turns, least) = (&result["round_robin"], &result["least_prefill"]);
    for outcome in [turns, least] {
        assert_eq!(outcome["errors"], 0, "{result}");
        assert!(outcome["requests"].as_u64().unwrap() > 30, "{result}");
        assert!(
            outcome["owners_of_hot_prefix"].as_u64().unwrap() >= 1,
            "{result}"
        );
        assert!(outcome["time_to_first_token_ms"]["p50"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(turns["requests"], least["requests"]);
    // Envoy's round robin is what it says.
    let by_engine: Vec<u64> = serde_json::from_value(turns["requests_by_engine"].clone()).unwrap();
    let spread = by_engine.iter().max().unwrap() - by_engine.iter().min().unwrap();
    assert!(by_engine.len() == 3 && spread <= 1, "{by_engine:?}");

    let share = |outcome: &Value| outcome["cached_share"].as_f64().unwrap();
    assert!(share(least) > share(turns) + 0.1, "{result}");
    let computed = |outcome: &Value| outcome["prefill_tokens_computed"].as_u64().unwrap();
    assert!(computed(least) < computed(turns), "{result}");
    // A block may still be evicted between a pick and its turn, in a pool that is this small: of 125 requests
    // two at most in 18 runs with other seeds, mostly none.
    let predictions = &least["predictions"];
    assert_eq!(predictions["not_compared"], 0, "{result}");
    let equal = predictions["equal"].as_u64().unwrap();
    assert!(equal + 2 >= least["requests"].as_u64().unwrap(), "{result}");
    assert_eq!(turns["predictions"], Value::Null);
    for line in ["time to first token, median", "fewer prompt tokens"] {
        assert!(told.contains(line), "{told}");
    }
}

#[tokio::test]
async fn kept_running_it_serves_the_line_it_prints_until_it_is_told_to_end() {
    let Some(envoy) = tool("envoy") else { return };
    let temporary = tempfile::tempdir().unwrap();
    let flags = ["--duration", "1s", "--engines", "2", "--keep"];
    let mut child = demo(&envoy, &temporary, &flags).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut printed = String::new();
    let reading = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            printed.push_str(&line);
            printed.push('\n');
            if line.starts_with("Ctrl-C ends") {
                return;
            }
        }
        panic!("it ended: {printed}");
    };
    timeout(PATIENCE, reading).await.unwrap();

    let between = |before: &str, after: &str| {
        let (_, rest) = printed.split_once(before).unwrap();
        rest.split_once(after).unwrap().0.to_owned()
    };
    let gateway = between("  curl -i http://", "/v1/chat/completions");
    let body = serde_json::from_str(&between(" -d '", "'\n")).unwrap();
    let path = "/v1/chat/completions";
    let answer = http::post_json(gateway.parse().unwrap(), path, &body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(
        answer
            .header("x-served-by")
            .unwrap()
            .starts_with("127.0.0.1:")
    );
    assert_eq!(answer.json()["usage"]["completion_tokens"], 16);

    signal(&child, "-INT").await;
    let status = timeout(PATIENCE, child.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(0));
    assert_clean(&temporary);
}

#[tokio::test]
async fn interrupted_before_the_comparison_it_fails_and_leaves_nothing() {
    let Some(envoy) = tool("envoy") else { return };
    let temporary = tempfile::tempdir().unwrap();
    let mut child = demo(&envoy, &temporary, &["--engines", "1"])
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first_answers = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.starts_with("round robin") {
                return;
            }
        }
        panic!("it ended");
    };
    timeout(PATIENCE, first_answers).await.unwrap();
    signal(&child, "-TERM").await;
    let mut told = String::new();
    let mut errors = child.stderr.take().unwrap();
    timeout(PATIENCE, errors.read_to_string(&mut told))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(child.wait().await.unwrap().code(), Some(1));
    assert_eq!(
        told,
        "warmpath: interrupted before there was anything to compare\n"
    );
    assert_clean(&temporary);
}

#[tokio::test]
async fn an_envoy_that_does_not_start_is_told_with_its_own_words() {
    let temporary = tempfile::tempdir().unwrap();
    let (programs, broken) = (tempfile::tempdir().unwrap(), "broken-envoy");
    let broken = programs.path().join(broken);
    std::fs::write(&broken, "#!/bin/sh\necho 'no such listener' >&2\nexit 3\n").unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&broken, executable).unwrap();
    let output = demo(&broken, &temporary, &["--engines", "1"]).output();
    let output = timeout(PATIENCE, output).await.unwrap().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("Envoy ended while it started"), "{told}");
    assert!(told.contains("no such listener"), "{told}");
    assert_clean(&temporary);

    let absent = Path::new("/no/envoy");
    let output = demo(absent, &temporary, &[]).output().await.unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert_eq!(
        told,
        "warmpath: /no/envoy is not a program (named by --envoy or WARMPATH_ENVOY)\n"
    );
}
