//! The model against a recorded run of a real vLLM 0.31.0: equal cached tokens, batches, stores and evictions.

use std::collections::HashMap;
use std::io::BufRead;

use serde_json::Value;

use super::super::*;
use super::{Bench, request, settings};
use crate::engine::unpack::{numbers, unpack};
use crate::routing::block::BlockSize;
use crate::routing::event::KvEvent;

/// An event with hashes replaced by what they stand for, so that two engines can be compared.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    Stored {
        parent: Option<String>,
        blocks: Vec<String>,
    },
    Removed(String),
    Cleared,
}

/// Names for hashes: the whole content up to the block.
#[derive(Default)]
struct Names(HashMap<u64, String>);

impl Names {
    fn stored(
        &mut self,
        hashes: &[u64],
        parent: Option<u64>,
        tokens: &[u32],
        scope: (Option<&str>, Option<&str>),
    ) -> Seen {
        let parent = parent.map(|hash| self.0[&hash].clone());
        let mut before = parent
            .clone()
            .unwrap_or_else(|| format!("adapter and salt {scope:?}"));
        let size = tokens.len() / hashes.len();
        let blocks = hashes
            .iter()
            .zip(tokens.chunks(size))
            .map(|(&hash, tokens)| {
                // Long texts are folded; a collision would only hide a difference.
                let folded = xxhash_rust::xxh3::xxh3_64(format!("{before}{tokens:?}").as_bytes());
                before = format!("{folded:x}");
                self.0.insert(hash, before.clone());
                before.clone()
            })
            .collect();
        Seen::Stored { parent, blocks }
    }
}

fn unhex(hex: &str) -> Vec<u8> {
    let digit = |digit: &u8| char::from(*digit).to_digit(16).unwrap();
    let byte = |pair: &[u8]| u8::try_from(digit(&pair[0]) << 4 | digit(&pair[1])).unwrap();
    hex.as_bytes().chunks(2).map(byte).collect()
}

/// The frames of a batch stand alone or with the time of their arrival.
fn payload(frame: &Value) -> &str {
    frame.get("frames").unwrap_or(frame)[2].as_str().unwrap()
}

/// Adapter and salt: of the first block's untagged keys, the adapter's name is the first if there is one.
fn recorded_scope(event: &Value) -> (Option<&str>, Option<&str>) {
    let adapter = event["lora_name"].as_str();
    let salt = &event["extra_keys"][0][usize::from(adapter.is_some())];
    (adapter, salt.as_str())
}

fn recorded_batch(names: &mut Names, hex: &str) -> Vec<Seen> {
    let batch = unpack(&mut unhex(hex).as_slice());
    let events = batch[1].as_array().unwrap().iter();
    events
        .map(|event| match event["type"].as_str().unwrap() {
            "BlockStored" => names.stored(
                &numbers(&event["block_hashes"]),
                event["parent_block_hash"].as_u64(),
                &numbers(&event["token_ids"]),
                recorded_scope(event),
            ),
            "BlockRemoved" => {
                Seen::Removed(names.0[&numbers::<u64>(&event["block_hashes"])[0]].clone())
            }
            _ => Seen::Cleared,
        })
        .collect()
}

fn model_batch(names: &mut Names, events: &[KvEvent]) -> Vec<Seen> {
    events
        .iter()
        .map(|event| match event {
            KvEvent::Stored(stored) => names.stored(
                &stored.hashes.iter().map(|hash| hash.0).collect::<Vec<_>>(),
                stored.parent.map(|hash| hash.0),
                &stored.tokens,
                (
                    stored.lora_name.as_deref(),
                    stored
                        .extras
                        .first()
                        .and_then(|extra| extra.salt.as_deref()),
                ),
            ),
            KvEvent::Removed(removed) => Seen::Removed(names.0[&removed.hashes[0].0].clone()),
            KvEvent::Cleared => Seen::Cleared,
        })
        .collect()
}

/// The line's one prompt with its answer; two prompts in one body are recorded by their first only.
fn recorded_request(line: &Value) -> Request {
    let mut request = request(numbers(&line["prompt_token_ids"]), 1);
    request.answer = numbers(&line["completion_token_ids"]);
    request.max_tokens = line["request"]["max_tokens"]
        .as_u64()
        .map(|n| usize::try_from(n).unwrap());
    request.ignore_eos = true;
    let model = line["request"]["model"].as_str();
    request.scope.adapter = model.filter(|name| *name != "qwen3").map(Into::into);
    request.scope.salt = line["request"]["cache_salt"].as_str().map(Into::into);
    request
}

/// The second of two prompts: its full blocks stand in the second event, its last tokens are not recorded.
fn second_request(line: &Value, first: &Request) -> Request {
    let batch = unpack(&mut unhex(payload(&line["frames"][1])).as_slice());
    let mut request = request(numbers(&batch[1][0]["token_ids"]), 2);
    let both = usize::try_from(line["prompt_tokens"].as_u64().unwrap()).unwrap();
    request.prompt.resize(both - first.prompt.len(), 0);
    request
}

/// Plays the recorded requests to the model, up to the first that `is_end`; how many there were,
/// and how many evictions among them. `None` without recordings.
fn replay(file: &str, blocks: usize, is_end: fn(&Value) -> bool) -> Option<(usize, usize)> {
    let Some(shared) = std::env::var_os("WARMPATH_SHARED") else {
        println!("left out: WARMPATH_SHARED is not set, so there is no recording to compare with");
        return None;
    };
    let path = std::path::Path::new(&shared)
        .join("data/captures")
        .join(file);
    let lines = std::io::BufReader::new(std::fs::File::open(path).unwrap()).lines();
    let lines = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let mut bench = Bench::new(Settings {
        block_size: BlockSize::new(32).unwrap(),
        blocks,
        max_num_batched_tokens: 2048,
        max_model_len: 12000,
        ..settings()
    });
    let (mut ours, mut theirs) = (Names::default(), Names::default());
    let (mut compared, mut removals) = (0, 0);
    for line in lines.take_while(|line| !is_end(line)) {
        let note = &line["note"];
        if line["path"] == "/reset_prefix_cache" {
            assert!(bench.model.reset_prefix_cache());
        }
        if line["completion_tokens"].is_null() {
            continue;
        }
        let frames = line["frames"].as_array().unwrap().iter();
        let expected: Vec<_> = frames
            .map(|frame| recorded_batch(&mut theirs, payload(frame)))
            .collect();
        let (cached, batches) = run(&mut bench, &mut ours, &line);
        assert_eq!(cached, line["cached_tokens"].as_u64(), "{note}");
        assert_eq!(batches, expected, "{note}");
        let is_removal = |seen: &&Seen| matches!(seen, Seen::Removed(_));
        removals += expected.iter().flatten().filter(is_removal).count();
        compared += 1;
    }
    Some((compared, removals))
}

/// The first request's cached tokens, and what was published until the model was idle.
fn run(bench: &mut Bench, names: &mut Names, line: &Value) -> (Option<u64>, Vec<Vec<Seen>>) {
    let first = recorded_request(line);
    let mut second =
        (line["note"] == "two prompts in one request").then(|| second_request(line, &first));
    bench.submit(first);
    let (mut cached, mut batches) = (None, Vec::new());
    while let Some((_, outcome)) = bench.step() {
        let mut first = outcome.outputs.iter().filter_map(|o| o.prefilled);
        cached = cached.or_else(|| Some(first.next()?.cached_tokens as u64));
        if !outcome.events.is_empty() {
            batches.push(model_batch(names, &outcome.events));
        }
        // The real engine had begun with the first prompt when the second came.
        if let Some(second) = second.take() {
            bench.submit(second);
        }
    }
    (cached, batches)
}

#[test]
fn the_model_does_what_a_recorded_vllm_did() {
    if let Some(seen) = replay("vllm-0.31-qwen3.jsonl", 400, |_| false) {
        assert_eq!(seen, (29, 65));
    }
}

#[test]
fn the_model_keeps_adapters_and_salts_apart_as_a_recorded_vllm_did() {
    // An adapter replaced in place has other blocks under the same name, which the model does not know of.
    let replaced = |line: &Value| line["request"]["load_inplace"] == true;
    if let Some(seen) = replay("qwen3-lora.jsonl", 1000, replaced) {
        assert_eq!(seen, (20, 0));
    }
}
