//! Claims about reading traces: what is told from their text, how errors speak, how tables make conversations.

use std::io::Write as _;
use std::time::Duration;

use super::*;
use crate::simulate::workload::{Arrival, Loop, Spec};

fn written(name: &str, text: &[u8]) -> (tempfile::TempDir, Trace) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    (folder, Trace::new(path))
}

fn all(trace: &Trace) -> Vec<Arrival> {
    let mut load = Spec::Trace(trace.clone()).open(1, Loop::Open).unwrap();
    std::iter::from_fn(|| load.next()).collect()
}

#[track_caller]
fn refused(name: &str, text: &str, kind: Loop, says: &str) {
    let (_folder, trace) = written(name, text.as_bytes());
    let error = Spec::Trace(trace).open(1, kind).err().unwrap().to_string();
    assert!(error.contains(says), "{error}");
}

const MOONCAKE: &str =
    r#"{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}"#;

#[test]
fn an_error_names_file_line_and_what_was_wrong() {
    let broken = format!("{MOONCAKE}\n\n{{\"timestamp\": 1}}\n");
    refused(
        "a.jsonl",
        &broken,
        Loop::Open,
        "a.jsonl:3: not a request of this format: missing field `input_length`",
    );
    let short = MOONCAKE.replace("[1, 2]", "[1]");
    refused(
        "a.jsonl",
        &short,
        Loop::Open,
        "a.jsonl:1: 600 tokens are 2 blocks of 512, and there are 1 `hash_ids`",
    );
    let table = "timestamp,input_tokens,output_tokens\n1,2,3\n1,x,3\n";
    refused(
        "a.csv",
        table,
        Loop::Open,
        "a.csv:3: `x` is not a number of tokens",
    );
    refused(
        "a.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\nsoon,1,1\n",
        Loop::Open,
        "a.csv:2: `soon` is not a time",
    );
    refused(
        "a.json",
        r#"{"block_size": 64, "requests": [{"t": 0, "in": 9999, "out": 1, "hash_ids": [1]}]}"#,
        Loop::Open,
        "request 1 (t 0): `in` is 9999",
    );
    refused("a.txt", "Dear diary", Loop::Open, "--trace-format");
    refused("a.csv", "", Loop::Open, "no requests in it");
    refused(
        "a.csv",
        "timestamp,input_tokens,output_tokens\n1,2,3\n",
        Loop::Closed,
        "no closed loop",
    );
}

#[test]
fn packed_and_plain_files_read_alike() {
    let two = format!(
        "{MOONCAKE}\n{}\n",
        MOONCAKE.replace("\"timestamp\": 0", "\"timestamp\": 2500")
    );
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(two.as_bytes()).unwrap();
    let (plain_folder, plain) = written("a.jsonl", two.as_bytes());
    let (_packed_folder, packed) = written("a.jsonl.gz", &packer.finish().unwrap());
    let found = all(&packed);
    assert_eq!(found, all(&plain));
    assert_eq!(found[1].at, Duration::from_millis(2_500));
    // A folder holds what lies in it, and nothing else.
    std::fs::write(plain_folder.path().join("README.md"), "about").unwrap();
    assert_eq!(all(&Trace::new(plain_folder.path().to_owned())), found);
}

#[test]
fn rows_of_a_session_go_on_with_each_other_and_their_prefix_is_shared() {
    let (_folder, trace) = written(
        "a.csv",
        b"arrival,input_tokens,output_tokens,prefix,prefix_tokens,session\n\
          10,100,20,acme,60,s1\n11,90,20,acme,60,s2\n20,150,20,acme,60,s1\n30,70,20,acme,60,s1\n",
    );
    let found = all(&trace);
    let segments: Vec<_> = found.iter().map(|one| one.prompt.segments()).collect();
    assert_eq!(found[0].at, Duration::ZERO);
    assert_eq!(segments[0][0], segments[1][0]);
    assert_ne!(segments[0][1].id, segments[1][1].id);
    // 150 tokens: the prompt of 100, its answer of 20, and 30 new ones.
    assert_eq!(segments[2][..2], *segments[0]);
    assert_eq!(segments[2][2], found[0].answer_segment());
    assert_eq!(found[2].prompt.tokens(), 150);
    // 70 tokens have no room for that: only the prefix is common.
    assert_eq!((segments[3][0], segments[3].len()), (segments[0][0], 2));
    let mut closed = Spec::Trace(trace).open(1, Loop::Closed).unwrap();
    let first = closed.next().unwrap();
    // 10 s between the two, less 0.5 s and 20 tokens of 30 ms.
    let next = closed
        .follow(first.session, Duration::from_secs(100))
        .unwrap();
    assert_eq!(next.at, Duration::from_millis(108_900));
    assert_eq!(next.prompt, found[2].prompt);
}

#[test]
fn sub_agents_come_at_their_times_and_long_thoughts_can_be_cut() {
    let (_folder, mut trace) = written(
        "a.json",
        br#"{"block_size": 64, "requests": [
            {"t": 0, "type": "n", "in": 130, "out": 5, "hash_ids": [1, 2], "api_time": 4},
            {"t": 30, "type": "subagent", "duration_ms": 20000, "requests": [
                {"t": 0, "in": 70, "out": 5, "hash_ids": [9], "api_time": 1},
                {"t": 8, "in": 128, "out": 5, "hash_ids": [9, 10], "api_time": 2, "think_time": 7}]},
            {"t": 100, "type": "n", "in": 192, "out": 5, "hash_ids": [1, 2, 3], "api_time": 2, "think_time": 96}]}"#,
    );
    let times = |trace: &Trace| {
        all(trace)
            .iter()
            .map(|one| one.at.as_secs())
            .collect::<Vec<_>>()
    };
    assert_eq!(times(&trace), [0, 10, 18, 100]);
    let found = all(&trace);
    assert_eq!(
        found[0].prompt.segments()[..2],
        found[3].prompt.segments()[..2]
    );
    // 80 s after the sub-agent's last answer become 10.
    trace.max_think = Some(Span(Duration::from_secs(10)));
    assert_eq!(times(&trace), [0, 10, 18, 30]);
    let mut closed = Spec::Trace(trace).open(1, Loop::Closed).unwrap();
    let first = closed.next().unwrap();
    assert!(closed.next().is_none());
    let mut ended = Duration::from_secs(50);
    let mut waits = Vec::new();
    while let Some(next) = closed.follow(first.session, ended) {
        waits.push((next.at - ended).as_secs());
        ended = next.at + Duration::from_secs(50);
    }
    assert_eq!(waits, [6, 7, 10]);
}

#[test]
fn what_no_engine_reads_and_nobody_waits_for_is_refused() {
    for (from, to) in [
        ("\"output_length\": 5", "\"output_length\": 4294967295"),
        ("\"timestamp\": 0", "\"timestamp\": 1.8e22"),
        ("\"timestamp\": 0", "\"timestamp\": 4e10"),
    ] {
        let second = MOONCAKE.replace(from, to);
        let says = if from.contains("output") {
            "4294967295 tokens"
        } else {
            "longer than a year"
        };
        refused(
            "a.jsonl",
            &format!("{MOONCAKE}\n{second}"),
            Loop::Open,
            says,
        );
    }
    let late = r#"{"block_size": 16, "requests": [{"t": 0, "in": 16, "out": 1, "hash_ids": [1]},
        {"t": 1e308, "in": 16, "out": 1, "hash_ids": [1]}]}"#;
    refused("a.json", late, Loop::Closed, "longer than a year");
    // A date is decades after 1970, which nobody waits for.
    let (_folder, dated) = written(
        "a.csv",
        b"timestamp,input_tokens,output_tokens,session\n2023-11-16 18:17:03,1,1,a\n2023-11-16 18:17:09,2,1,a\n",
    );
    assert_eq!(all(&dated).len(), 2);
    let (_folder, mut trace) = written("a.jsonl", MOONCAKE.as_bytes());
    trace.speed = 1e-300;
    let error = Spec::Trace(trace).open(1, Loop::Open).err().unwrap();
    assert!(error.to_string().contains("`speed`"), "{error}");
}

#[test]
fn a_line_without_end_is_not_read_to_its_end() {
    let (_folder, mut trace) = written("a.jsonl", b"");
    let file = std::fs::File::create(&trace.path).unwrap();
    file.set_len(files::MOST_BYTES * 4).unwrap();
    for format in [Format::Mooncake, Format::ClaudeCode, Format::Csv] {
        trace.format = Some(format);
        let error = Spec::Trace(trace.clone()).open(1, Loop::Open).err();
        let error = error.unwrap().to_string();
        assert!(error.contains("longer than 128 MiB"), "{error}");
    }
}

#[test]
fn what_can_be_read_only_once_is_no_recording() {
    let trace = Trace::new("/dev/null".into());
    let error = Spec::Trace(trace).open(1, Loop::Open).err().unwrap();
    assert!(
        error.to_string().contains("neither a file nor a folder"),
        "{error}"
    );
}

#[test]
fn a_reason_is_said_once() {
    let trace = Trace::new("/nonexistent".into());
    let error = Spec::Trace(trace).open(1, Loop::Open).err().unwrap();
    let said = format!("{:#}", anyhow::Error::new(error));
    assert_eq!(said.matches("No such file").count(), 1, "{said}");
}

#[test]
fn a_beginning_that_all_share_joins_no_conversations() {
    let row = |at: u32, tokens: u32, ids: &str| {
        format!(
            r#"{{"timestamp": {at}, "input_length": {tokens}, "output_length": 5, "hash_ids": [{ids}]}}"#
        )
    };
    let text = [
        row(0, 512, "0"),
        row(1_000, 600, "0, 1"),
        row(2_000, 1_100, "0, 2, 3"),
        row(3_000, 1_600, "0, 2, 4, 5"),
        row(4_000, 1_600, "0, 2, 6, 7"),
    ];
    let (_folder, trace) = written("a.jsonl", text.join("\n").as_bytes());
    let sessions: Vec<u64> = all(&trace).iter().map(|one| one.session).collect();
    // Only the fourth goes on with another; the last branches off earlier.
    assert_eq!(sessions, [0, 1, 2, 2, 3]);
}
