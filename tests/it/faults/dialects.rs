//! Every dialect of events, under evictions, after a loss, and to a picker that comes later.

use serde_json::json;
use warmpath::engine::Fault;

use super::Case;
use crate::support::http;

const ENCODINGS: [&str; 8] = [
    "map",
    "array",
    "vllm-0.20",
    "vllm-0.10",
    "vllm-0.9",
    "sglang-map",
    "sglang-array",
    "trtllm",
];

/// Engines with these options, each with room for a few prompts.
async fn are_followed(fault: &'static str, options: &[Vec<&'static str>]) {
    let small = ["--kv-blocks", "60", "--max-model-len", "700"];
    let all: Vec<Vec<&'static str>> = options
        .iter()
        .map(|own| [&small[..], own].concat())
        .collect();
    let all: Vec<&[&'static str]> = all.iter().map(Vec::as_slice).collect();
    let mut case = Case::with(fault, &all, json!({})).await;
    let topics = 1..4 * u32::try_from(all.len()).unwrap();
    // Each has a part, wherever the rest goes.
    for (engine, topic) in case.stage.engines.iter().zip(300..) {
        http::post_json(engine.address(), super::COMPLETIONS, &super::prompt(topic)).await;
    }
    for topic in topics.clone() {
        case.ask(topic).await;
    }
    for engine in &case.stage.engines {
        engine.running().set_fault(Fault::DropEvents(1));
    }
    for topic in topics {
        case.meanwhile([100 + topic]).await;
    }
    // By now each has lost one, or does with the first of these two; it shows with the next.
    for (engine, topic) in case.stage.engines.iter().zip(200..) {
        for topic in [topic, topic + 50] {
            http::post_json(engine.address(), super::COMPLETIONS, &super::prompt(topic)).await;
        }
    }
    case.stage.views_are_equal("after a loss").await;
    case.stage.replace_picker().await;
    case.stage.settle().await;
    case.ends_equal([250, 251]).await;
}

#[tokio::test]
async fn every_dialect_is_followed() {
    let options: Vec<_> = ENCODINGS
        .iter()
        .map(|encoding| vec!["--kv-events-encoding", encoding])
        .collect();
    are_followed("every dialect: a loss, then another picker", &options).await;
}

#[tokio::test]
async fn digests_groups_tiers_and_block_sizes_are_followed() {
    let options = [
        vec!["--kv-events-hashes", "bytes"],
        vec!["--kv-groups", "3"],
        vec!["--cpu-blocks", "100"],
        vec!["--cpu-blocks", "100", "--cpu-describes"],
        vec!["--block-size", "20"],
    ];
    are_followed("digests, groups, tiers: a loss, another picker", &options).await;
}
