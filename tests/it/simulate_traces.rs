//! Real traces, replayed: as many requests, and as much that was seen before, as was counted when they were collected.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustc_hash::FxHashSet;
use serde_json::Value as Json;
use warmpath::simulate::workload::{Arrival, Format, Loop, Spec, Trace};

use crate::golden_data::{bytes, shared};

/// What was counted in an open loop.
#[derive(Debug, Default)]
struct Counted {
    requests: u64,
    tokens: u64,
    seen: u64,
    hits: u64,
    output: u64,
    seconds: f64,
    sessions: FxHashSet<u64>,
}

impl Counted {
    /// Share of prompt tokens in leading segments of whole blocks that an earlier request had, in per cent.
    fn seen_share(&self) -> f64 {
        100.0 * self.seen as f64 / self.tokens as f64
    }

    fn input_mean(&self) -> f64 {
        self.tokens as f64 / self.requests as f64
    }
}

/// Replays a trace by its times and counts, blocks being segments of `block` tokens.
fn count(trace: &Trace, block: u32) -> Counted {
    let mut load = Spec::Trace(trace.clone()).open(1, Loop::Open).unwrap();
    let most = load.len_hint().unwrap();
    let mut seen = FxHashSet::default();
    let mut counted = Counted::default();
    let mut last = Duration::ZERO;
    while let Some(Arrival {
        at,
        prompt,
        output,
        session,
        ..
    }) = load.next()
    {
        assert!(at >= last, "{at:?} after {last:?}");
        last = at;
        let known = prompt.segments().iter();
        let known: Vec<_> = known
            .take_while(|segment| seen.contains(*segment))
            .collect();
        let whole = known.iter().filter(|one| one.tokens == block);
        counted.hits += u64::from(!known.is_empty());
        counted.seen += whole.map(|one| u64::from(one.tokens)).sum::<u64>();
        seen.extend(prompt.segments().iter().copied());
        counted.requests += 1;
        counted.tokens += u64::from(prompt.tokens());
        counted.output += u64::from(output);
        counted.sessions.insert(session);
    }
    counted.seconds = last.as_secs_f64();
    assert_eq!(counted.requests, most);
    counted
}

#[track_caller]
fn near(found: f64, wanted: f64, tolerance: f64) {
    assert!(
        (found - wanted).abs() <= tolerance,
        "{found} is not within {tolerance} of {wanted}"
    );
}

/// The folder of an unpacked archive of the shared data.
fn unpacked(archive: &str) -> Option<tempfile::TempDir> {
    let path = shared(archive)?;
    let folder = tempfile::tempdir().unwrap();
    let mut tar = Command::new("tar");
    let status = tar
        .arg("xf")
        .arg(path)
        .arg("-C")
        .arg(folder.path())
        .status();
    assert!(status.expect("`tar` unpacks the shared data").success());
    Some(folder)
}

fn trace(path: &Path) -> Trace {
    Trace::new(path.to_owned())
}

fn mooncake(file: &str) -> Option<PathBuf> {
    shared(&format!("data/traces/{file}"))
}

#[test]
fn mooncakes_traces_share_what_was_counted_in_them() {
    for (file, requests, mean, seen, hits, seconds) in [
        (
            "mooncake/conversation_trace.jsonl",
            12_031,
            12_035.0,
            37.4,
            100.0,
            3_537.0,
        ),
        (
            "mooncake/synthetic_trace.jsonl",
            3_993,
            15_325.0,
            65.1,
            44.6,
            1_022.0,
        ),
        (
            "dynamo/mooncake_trace_1000.jsonl",
            1_000,
            9_792.0,
            39.1,
            99.7,
            177.0,
        ),
    ] {
        let Some(path) = mooncake(file) else { return };
        let counted = count(&trace(&path), 512);
        println!("{file}: {} conversations", counted.sessions.len());
        assert_eq!(counted.requests, requests, "{file}");
        near(counted.input_mean(), mean, 1.0);
        near(counted.seen_share(), seen, 0.1);
        near(100.0 * counted.hits as f64 / requests as f64, hits, 0.1);
        near(counted.seconds, seconds, 1.0);
        assert!(
            (counted.sessions.len() as u64) < requests,
            "some requests go on with others"
        );
    }
}

/// All requests of a closed loop with answers of so many seconds, by conversation.
fn closed(trace: &Trace, service: Duration) -> HashMap<u64, Vec<Arrival>> {
    let mut load = Spec::Trace(trace.clone()).open(1, Loop::Closed).unwrap();
    let mut sessions = HashMap::new();
    while let Some(first) = load.next() {
        let session = first.session;
        let mut ended = first.at + service;
        let mut turns = vec![first];
        while let Some(next) = load.follow(session, ended) {
            assert!(next.at >= ended);
            ended = next.at + service;
            turns.push(next);
        }
        assert!(sessions.insert(session, turns).is_none());
    }
    sessions
}

#[test]
fn a_closed_loop_asks_what_the_open_one_asks_and_waits_for_answers() {
    let Some(path) = mooncake("mooncake/conversation_trace.jsonl") else {
        return;
    };
    let sessions = closed(&trace(&path), Duration::from_secs(1_000));
    let requests: usize = sessions.values().map(Vec::len).sum();
    assert_eq!(requests, 12_031);
    assert!(sessions.values().any(|turns| turns.len() > 3));
    for turns in sessions.values() {
        for two in turns.windows(2) {
            // All but the last, partial block of the prompt comes again.
            let whole = two[0].prompt.tokens() as usize / 512;
            assert!(whole > 0);
            assert_eq!(
                two[0].prompt.segments()[..whole],
                two[1].prompt.segments()[..whole]
            );
            assert!(two[1].at >= two[0].at + Duration::from_secs(1_000));
        }
    }
}

#[test]
fn speed_and_limit_make_a_trace_faster_and_shorter() {
    let Some(path) = mooncake("mooncake/conversation_trace.jsonl") else {
        return;
    };
    let mut faster = trace(&path);
    faster.speed = 4.0;
    near(count(&faster, 512).seconds, 3_537.0 / 4.0, 1.0);
    faster.limit = Some(1_000);
    assert_eq!(count(&faster, 512).requests, 1_000);
    let mut wrong = trace(&path);
    wrong.block = Some(16);
    let error = Spec::Trace(wrong)
        .open(1, Loop::Open)
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("conversation_trace.jsonl:1: ") && error.contains("--trace-block"),
        "{error}"
    );
}

/// Requests of a conversation of Claude Code and of its sub-agents: when each came, its length and its blocks.
fn naive_requests(entries: &Json, start: f64, into: &mut Vec<(f64, u64, Vec<u64>)>) {
    for entry in entries.as_array().unwrap() {
        let at = start + entry["t"].as_f64().unwrap();
        if entry["type"] == "subagent" {
            let ran = entry["duration_ms"].as_f64().unwrap() / 1000.0;
            naive_requests(&entry["requests"], at - ran, into);
        } else {
            let ids = entry["hash_ids"].as_array().unwrap().iter();
            let ids = ids.map(|id| id.as_u64().unwrap()).collect();
            into.push((at, entry["in"].as_u64().unwrap(), ids));
        }
    }
}

/// Requests, tokens, and tokens of leading blocks that an earlier request of the conversation had.
fn naive_count(files: &[PathBuf]) -> (u64, u64, u64) {
    let (mut count, mut tokens, mut seen) = (0, 0, 0);
    for file in files {
        let read: Json = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let mut requests = Vec::new();
        naive_requests(&read["requests"], 0.0, &mut requests);
        requests.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut known = FxHashSet::default();
        for (_, length, ids) in requests {
            count += 1;
            tokens += length;
            seen += 64 * ids.iter().take_while(|id| known.contains(*id)).count() as u64;
            known.extend(ids);
        }
    }
    (count, tokens, seen)
}

#[test]
fn claude_codes_sessions_have_the_requests_and_the_sharing_of_a_naive_count() {
    let Some(folder) = unpacked("data/traces/claude-code-weka/traces-710.tar.zst") else {
        return;
    };
    let entries = std::fs::read_dir(folder.path().join("traces")).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 710);
    // One in fourteen: all of them take minutes in a build for tests.
    let chosen: Vec<PathBuf> = files.into_iter().step_by(14).collect();
    let part = tempfile::tempdir().unwrap();
    for file in &chosen {
        std::fs::copy(file, part.path().join(file.file_name().unwrap())).unwrap();
    }
    let mut all = trace(part.path());
    let counted = count(&all, 64);
    let found = (counted.requests, counted.tokens, counted.seen);
    assert_eq!(found, naive_count(&chosen));
    assert_eq!(counted.sessions.len(), chosen.len());
    // All 710 share 96.3 %.
    near(counted.seen_share(), 96.3, 1.5);
    let turns = closed(&all, Duration::from_secs(5));
    let requests: usize = turns.values().map(Vec::len).sum();
    assert_eq!(requests as u64, counted.requests);

    // With a head in common, conversations share that as well, and only that.
    all.common_head = 15_000;
    let headed = count(&all, 64);
    assert_eq!(headed.tokens, counted.tokens);
    let more = headed.seen - counted.seen;
    let others = chosen.len() as u64 - 1;
    assert!(more > others * 4_000 && more <= others * 15_000, "{more}");

    all.sessions = Some(5);
    assert_eq!(count(&all, 64).sessions.len(), 5);
}

#[test]
fn agent_logs_have_the_calls_and_about_the_sharing_of_their_texts() {
    // A tokenizer counts other tokens than four bytes each; shares hardly differ.
    for (name, calls, sessions, seen, within) in [
        ("miniswe", 402, 20, 93.4, 1.0),
        ("magagent", 746, 25, 84.2, 1.5),
        // One of its 25 files is empty.
        ("taubench", 471, 24, 81.7, 1.0),
    ] {
        let Some(folder) = unpacked(&format!("data/traces/lmcache-agent/{name}.tar.zst")) else {
            return;
        };
        let counted = count(&trace(folder.path()), 16);
        println!(
            "{name}: {} calls, {:.1} % seen",
            counted.requests,
            counted.seen_share()
        );
        assert_eq!(
            (counted.requests, counted.sessions.len()),
            (calls, sessions),
            "{name}"
        );
        near(counted.seen_share(), seen, within);
        let closed = closed(&trace(folder.path()), Duration::from_secs(1));
        assert_eq!(closed.len(), sessions);
    }
}

#[test]
fn token_ids_and_tables_have_the_lengths_that_were_counted() {
    let Some(text) = bytes("data/traces/llmservingsim/sharegpt-qwen3-32b-300-sps10.jsonl.zst")
    else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sharegpt.jsonl");
    std::fs::write(&path, text).unwrap();
    let counted = count(&trace(&path), 16);
    assert_eq!(counted.requests, 300);
    near(counted.input_mean(), 862.0, 1.0);
    near(counted.output as f64 / 300.0, 665.0, 1.0);
    near(counted.seen_share(), 7.9, 0.1);

    for (file, rows, mean, seconds) in [
        ("code", 8_819, 2_048.0, 3_436.0),
        ("conv", 19_366, 1_155.0, 3_502.0),
    ] {
        let path = shared(&format!(
            "data/traces/azure/AzureLLMInferenceTrace_{file}.csv"
        ))
        .unwrap();
        let counted = count(&trace(&path), 16);
        assert_eq!((counted.requests, counted.seen), (rows, 0));
        near(counted.input_mean(), mean, 1.0);
        near(counted.seconds, seconds, 1.0);
    }
    let packed =
        shared("data/traces/llmservingsim/sharegpt-qwen3-32b-300-sps10.jsonl.zst").unwrap();
    let mut packed = trace(&packed);
    packed.format = Some(Format::ServingSim);
    let error = Spec::Trace(packed)
        .open(1, Loop::Open)
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("unpack"), "{error}");
}
