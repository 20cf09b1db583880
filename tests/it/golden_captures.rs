//! Our token ids equal those that real vLLM engines report having prefilled.

use serde_json::Value as Json;
use warmpath::routing::model::{Model, RenderContext};
use warmpath::routing::request::{Api, Request};

use crate::golden_data::{qwen3, recording};

struct Capture {
    file: &'static str,
    version: (u32, u32),
    /// Requests whose ids are compared.
    compared: usize,
}

const CAPTURES: [Capture; 4] = [
    Capture {
        file: "vllm-0.31-qwen3",
        version: (0, 31),
        compared: 29,
    },
    Capture {
        file: "qwen3-array-0.20",
        version: (0, 20),
        compared: 29,
    },
    Capture {
        file: "qwen3-lora",
        version: (0, 31),
        compared: 24,
    },
    Capture {
        file: "qwen3-restart",
        version: (0, 31),
        compared: 11,
    },
];

#[test]
fn captured_requests_get_the_ids_that_engines_prefilled() {
    let model = Model::load(&qwen3()).unwrap();
    for capture in &CAPTURES {
        let rows = recording(capture.file);
        let context = RenderContext {
            engine_version: Some(capture.version),
            ..RenderContext::default()
        };
        let compared = rows
            .iter()
            .filter(|row| compare(&model, row, &context, capture.file))
            .count();
        println!("{}: {compared} requests with equal ids", capture.file);
        assert_eq!(compared, capture.compared, "{}", capture.file);
    }
}

/// Whether a row holds a request with ids; panics when they are not ours.
fn compare(model: &Model, row: &Json, context: &RenderContext, file: &str) -> bool {
    let (Some(path), Some(expected)) = (
        row["path"].as_str(),
        row["prompt_token_ids"]
            .as_array()
            .filter(|ids| !ids.is_empty()),
    ) else {
        return false;
    };
    let Some(api) = Api::of_path(path) else {
        return false;
    };
    let body = row["request"].to_string();
    let request = Request::parse(api, body.as_bytes()).unwrap();
    let sequences = model
        .sequences(&request, context)
        .unwrap_or_else(|error| panic!("{file} {}: {error}", row["note"]));
    let expected: Vec<u32> = expected
        .iter()
        .map(|id| u32::try_from(id.as_u64().unwrap()).unwrap())
        .collect();
    // Of several prompts in one body the engine reports the first one's ids.
    assert_eq!(sequences[0], expected, "{file} {}", row["note"]);
    let total: usize = sequences.iter().map(Vec::len).sum();
    assert_eq!(
        Some(total as u64),
        row["prompt_tokens"].as_u64(),
        "{file} {}",
        row["note"]
    );
    true
}
