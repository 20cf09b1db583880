//! The Responses and Messages APIs: what the engine makes chats of is foreseen as exactly as chats are.

use serde_json::{Value, json};

use super::warmth::cold_then_warm;
use super::{MESSAGES, RESPONSES, text, with};
use crate::support::fleet::{MODEL, Setup};

fn responses(input: impl Into<Value>) -> Value {
    json!({ "model": MODEL, "max_output_tokens": 2, "instructions": "You are brief.", "input": input.into() })
}

fn messages(content: impl Into<Value>) -> Value {
    json!({
        "model": MODEL, "max_tokens": 2, "system": [{ "type": "text", "text": "You are brief." }],
        "messages": [{ "role": "user", "content": content.into() }],
    })
}

fn streamed(body: Value) -> Value {
    with(body, json!({ "stream": true }))
}

/// A turn that thinks, calls a function and gets its answer, item by item.
fn items(topic: &str) -> Value {
    json!([
        { "role": "user", "content": [{ "type": "input_text", "text": text(topic, 40) }] },
        { "type": "reasoning", "summary": [], "content": [{ "type": "reasoning_text", "text": "Let me look." }] },
        { "type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{\"city\": \"Kassel\"}" },
        { "type": "function_call_output", "call_id": "c1", "output": text("The rain", 10) },
    ])
}

/// The same as blocks.
fn turns(topic: &str) -> Value {
    json!([
        { "role": "user", "content": text(topic, 40) },
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": "Let me look.", "signature": "s" },
            { "type": "tool_use", "id": "t1", "name": "weather", "input": { "city": "Kassel" } },
        ] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "t1", "content": [{ "type": "text", "text": text("The rain", 10) }] },
        ] },
    ])
}

fn flat_tool() -> Value {
    json!([{ "type": "function", "name": "weather", "description": "Tells it.", "strict": true,
        "parameters": { "type": "object", "properties": { "city": { "type": "string" } } } }])
}

fn tool() -> Value {
    json!([{ "name": "weather", "description": "Tells it.", "cache_control": { "type": "ephemeral" },
        "input_schema": { "type": "object", "properties": { "city": { "type": "string" } } } }])
}

#[tokio::test]
async fn bodies_that_engines_turn_into_chats_are_foreseen_exactly() {
    let setup = Setup::engines(2).with_tokenizer();
    setup
        .run(async |fleet| {
            let bodies = [
                (RESPONSES, responses(text("A response", 40))),
                (RESPONSES, streamed(responses(text("A stream", 40)))),
                (
                    RESPONSES,
                    with(responses(items("Items")), json!({ "tools": flat_tool() })),
                ),
                (
                    RESPONSES,
                    streamed(with(
                        responses(text("A quick one", 40)),
                        json!({ "reasoning": { "effort": "none" }, "cache_salt": "mine", "truncation": "auto" }),
                    )),
                ),
                (MESSAGES, messages(text("A message", 40))),
                (MESSAGES, streamed(messages(text("A river", 40)))),
                (
                    MESSAGES,
                    streamed(with(
                        messages(""),
                        json!({ "messages": turns("Turns"), "tools": tool(), "cache_salt": "mine" }),
                    )),
                ),
                (
                    MESSAGES,
                    with(
                        messages(text("A hurry", 40)),
                        json!({ "thinking": { "type": "disabled" } }),
                    ),
                ),
            ];
            for (path, body) in &bodies {
                cold_then_warm(fleet, path, body, "local").await;
            }
            let equal = r#"warmpath_predictions_total{result="equal"}"#;
            fleet.picker.metric_is(equal, 2.0 * 8.0).await;
        })
        .await;
}

#[tokio::test]
async fn a_model_without_files_has_them_tokenized_by_its_engine_as_chats() {
    let setup = Setup::engines(2);
    setup
        .run(async |fleet| {
            for (path, body) in [
                (RESPONSES, responses(items("Items"))),
                (MESSAGES, streamed(messages(text("A river", 40)))),
            ] {
                cold_then_warm(fleet, path, &body, "engine").await;
            }
        })
        .await;
}
