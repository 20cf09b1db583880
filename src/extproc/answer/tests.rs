//! Recorded answers of real engines and providers, read in pieces, held against a reader that takes them whole.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::*;
use crate::extproc::usage::UsageFinder;

/// The shared test data, if this machine has it.
fn shared(test: &str) -> Option<PathBuf> {
    let shared = std::env::var_os("WARMPATH_SHARED").map(PathBuf::from);
    if shared.is_none() {
        println!("{test}: left out, WARMPATH_SHARED is not set");
    }
    shared
}

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// The data of each event.
fn events(text: &str) -> Vec<String> {
    let data = |event: &str| {
        let lines = event.lines().filter_map(|line| line.strip_prefix("data:"));
        let lines: Vec<&str> = lines
            .map(|line| line.strip_prefix(' ').unwrap_or(line))
            .collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    };
    let text = text.replace("\r\n", "\n");
    text.split("\n\n").filter_map(data).collect()
}

fn number(usage: &Value, pointers: &[&str]) -> Option<u64> {
    pointers
        .iter()
        .find_map(|pointer| usage.pointer(pointer).and_then(Value::as_u64))
}

fn naive(usage: &Value) -> Usage {
    let anthropic = ["/cache_read_input_tokens", "/cache_creation_input_tokens"];
    let beside = anthropic
        .iter()
        .filter_map(|pointer| number(usage, &[pointer]));
    Usage {
        prompt_tokens: number(usage, &["/prompt_tokens"])
            .or_else(|| Some(number(usage, &["/input_tokens"])? + beside.sum::<u64>())),
        completion_tokens: number(usage, &["/completion_tokens", "/output_tokens"]),
        cached_tokens: number(
            usage,
            &[
                "/prompt_tokens_details/cached_tokens",
                "/input_tokens_details/cached_tokens",
                "/cache_read_input_tokens",
            ],
        ),
    }
}

#[test]
fn recorded_streams_are_read_alike_whole_and_in_pieces() {
    let Some(shared) = shared("recorded_streams_are_read_alike_whole_and_in_pieces") else {
        return;
    };
    let mut paths = Vec::new();
    files(&shared.join("data/requests/recorded-streams"), &mut paths);
    let (mut streams, mut with_usage) = (0, 0);
    for path in paths {
        let bytes = fs::read(&path).unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if !text.lines().any(|line| line.starts_with("data:")) {
            continue;
        }
        streams += 1;
        let usages: Vec<Value> = events(&text)
            .iter()
            .filter_map(|data| serde_json::from_str::<Value>(data).ok())
            .filter_map(|event| {
                event
                    .get("usage")
                    .filter(|usage| usage.is_object())
                    .cloned()
            })
            .collect();
        for piece in [1, 7, 250, bytes.len()] {
            let mut reader = AnswerReader::new(Some(Response {
                refusal: None,
                status: 200,
                content: Content::Events,
            }));
            let firsts = bytes
                .chunks(piece)
                .filter(|piece| reader.feed(piece) == Seen::FirstData)
                .count();
            assert_eq!(firsts, 1, "{}", path.display());
            assert_eq!(reader.unreadable(), 0);
            assert_eq!(
                reader.usage(),
                usages.last().map(naive),
                "{}",
                path.display()
            );
        }
        with_usage += usize::from(!usages.is_empty());
    }
    assert!(streams >= 20 && with_usage >= 4, "{streams} {with_usage}");
}

#[test]
fn usage_objects_of_every_recorded_provider_are_readable() {
    let Some(shared) = shared("usage_objects_of_every_recorded_provider_are_readable") else {
        return;
    };
    let mut read = 0;
    for file in [
        "chat_completions",
        "completions",
        "responses",
        "anthropic_messages",
    ] {
        let path = shared.join(format!("data/requests/recorded/{file}.jsonl"));
        for line in fs::read_to_string(path).unwrap().lines() {
            let row: Value = serde_json::from_str(line).unwrap();
            let Some(usage) = row.get("usage").filter(|usage| usage.is_object()) else {
                continue;
            };
            let mut finder = UsageFinder::default();
            finder.feed(
                serde_json::json!({ "id": 1, "usage": usage })
                    .to_string()
                    .as_bytes(),
            );
            assert_eq!(finder.unreadable(), 0, "{usage}");
            assert_eq!(finder.usage(), Some(naive(usage)), "{usage}");
            read += 1;
        }
    }
    assert!(read > 1700, "{read}");
}
