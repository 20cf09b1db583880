//! The whole path with a real Envoy in front: client, Envoy, picker, engines.
//!
//! One file of claims a subject. Every test has a fleet of its own, which costs half a second on an idle machine,
//! and ends with nothing booked anywhere.

mod bodies;
mod conformance;
mod converted;
mod departures;
mod guards;
mod lasting;
mod modes;
mod parity;
mod pool;
mod ranks;
mod refusals;
mod replicas;
mod restarts;
mod rollout;
mod spread;
mod subsets;
mod truth;
mod tunnels;
mod unpicked;
mod warmth;

use serde_json::{Value, json};

use crate::support::fleet::MODEL;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

/// A text of about six tokens a word; texts of different topics share no block.
fn text(topic: &str, words: usize) -> String {
    (0..words)
        .map(|word| format!("{topic} has {word} parts. "))
        .collect()
}

/// Token ids of a prompt; those of different topics share no block.
fn ids(topic: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|token| 1000 * topic + token).collect()
}

/// A chat body.
fn chat(content: &str) -> Value {
    json!({
        "model": MODEL, "max_tokens": 2,
        "messages": [
            { "role": "system", "content": "You are brief." },
            { "role": "user", "content": content },
        ],
    })
}

/// A body of plain completions.
fn completion(prompt: impl Into<Value>) -> Value {
    json!({ "model": MODEL, "prompt": prompt.into(), "max_tokens": 2 })
}

/// `body` with `more` fields.
fn with(mut body: Value, more: Value) -> Value {
    let (Some(fields), Value::Object(more)) = (body.as_object_mut(), more) else {
        panic!("two objects are needed");
    };
    fields.extend(more);
    body
}
