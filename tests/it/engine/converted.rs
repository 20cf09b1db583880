//! `/v1/responses` and `/v1/messages` of the simulated engine: which events come when, and what usage tells.

use serde_json::{Value, json};

use super::Engine;

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

fn responses(more: Value) -> Value {
    super::with(
        json!({"input": "word ".repeat(100), "max_output_tokens": 2}),
        more,
    )
}

fn messages(more: Value) -> Value {
    let message = json!({"role": "user", "content": "word ".repeat(100)});
    let model = warmpath::engine::Settings::local(&[]).unwrap().model;
    super::with(
        json!({"model": model, "messages": [message], "max_tokens": 2}),
        more,
    )
}

/// Names and data of the events of a stream.
async fn named_events(engine: &Engine, path: &str, body: Value) -> Vec<(String, Value)> {
    let text = engine.send(path, &body).await.text().await.unwrap();
    text.split_terminator("\n\n")
        .map(|event| {
            let (name, data) = event.split_once('\n').unwrap();
            let name = name.strip_prefix("event: ").unwrap();
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(data["type"], name);
            (name.to_owned(), data)
        })
        .collect()
}

fn names(events: &[(String, Value)]) -> Vec<&str> {
    events.iter().map(|(name, _)| name.as_str()).collect()
}

#[tokio::test]
async fn a_response_is_announced_and_then_streamed_with_usage_at_the_end() {
    let engine = Engine::start(&[]).await;
    let events = named_events(&engine, RESPONSES, responses(json!({"stream": true}))).await;
    let delta = "response.output_text.delta";
    assert_eq!(
        names(&events),
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            delta,
            delta,
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.incomplete",
        ]
    );
    let numbers = events
        .iter()
        .map(|(_, data)| data["sequence_number"].as_u64().unwrap());
    assert!(numbers.eq(0..10));
    assert_eq!(events[0].1["response"]["usage"], Value::Null);
    let cold = &events[9].1["response"]["usage"];
    assert_eq!(cold["input_tokens_details"]["cached_tokens"], 0);
    assert_eq!(cold["output_tokens"], 2);
    let whole = engine.post(RESPONSES, responses(json!({}))).await;
    assert_eq!(whole["status"], "incomplete");
    let warm = &whole["usage"];
    assert_eq!(warm["input_tokens"], cold["input_tokens"]);
    assert_eq!(
        warm["input_tokens_details"]["cached_tokens"],
        cold["input_tokens_details"]["cache_write_tokens"]
    );
}

#[tokio::test]
async fn a_message_is_streamed_from_the_first_token_on_with_the_prompt_parted_at_the_end() {
    let engine = Engine::start(&[]).await;
    let events = named_events(&engine, MESSAGES, messages(json!({"stream": true}))).await;
    assert_eq!(
        names(&events),
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    let prompt = events[0].1["message"]["usage"]["input_tokens"]
        .as_u64()
        .unwrap();
    let sum = |usage: &Value| {
        [
            "input_tokens",
            "cache_creation_input_tokens",
            "cache_read_input_tokens",
        ]
        .map(|name| usage[name].as_u64().unwrap())
        .iter()
        .sum::<u64>()
    };
    let cold = &events[5].1["usage"];
    assert_eq!(
        (sum(cold), &cold["cache_read_input_tokens"]),
        (prompt, &json!(0))
    );
    assert_eq!(events[5].1["delta"]["stop_reason"], "max_tokens");
    let whole = engine.post(MESSAGES, messages(json!({}))).await;
    let warm = &whole["usage"];
    assert_eq!(sum(warm), prompt);
    assert_eq!(
        warm["cache_read_input_tokens"],
        cold["cache_creation_input_tokens"]
    );
}

/// What a gateway sees of a prefill that lasts a second: announcements of a response, nothing of a message.
#[tokio::test]
async fn only_announcements_come_before_the_prefill() {
    let slow = ["--prefill-us-per-token", "5000"];
    let engine = Engine::start(&slow).await;
    let mut response = engine
        .send(RESPONSES, &responses(json!({"stream": true})))
        .await;
    let mut first = String::new();
    while first.matches("\n\n").count() < 2 {
        let chunk = response.chunk().await.unwrap().unwrap();
        first.push_str(&String::from_utf8_lossy(&chunk));
    }
    assert!(
        first.contains("response.in_progress") && !first.contains("output_item"),
        "{first}"
    );
    assert_eq!(
        engine.metric("vllm:generation_tokens_total").await,
        Some(0.0)
    );
    let mut message = engine
        .send(MESSAGES, &messages(json!({"stream": true})))
        .await;
    assert_eq!(
        engine.metric("vllm:generation_tokens_total").await,
        Some(0.0)
    );
    let chunk = message.chunk().await.unwrap().unwrap();
    assert!(chunk.starts_with(b"event: message_start"));
    assert!(engine.metric("vllm:generation_tokens_total").await > Some(0.0));
}

#[tokio::test]
async fn older_engines_say_less_of_the_cache() {
    for (version, told) in [("0.23.0", (None, None)), ("0.25.0", (Some(0), Some(0)))] {
        let engine = Engine::start(&["--version", version]).await;
        let usage = engine.post(MESSAGES, messages(json!({}))).await["usage"].take();
        let of = |name: &str| usage[name].as_u64();
        assert_eq!(
            (
                of("cache_read_input_tokens"),
                of("cache_creation_input_tokens")
            ),
            told
        );
        assert!(of("input_tokens") > Some(50));
    }
}

#[tokio::test]
async fn what_cannot_be_converted_is_refused() {
    let engine = Engine::start(&[]).await;
    for (path, body) in [
        (RESPONSES, responses(json!({"previous_response_id": "r"}))),
        (
            RESPONSES,
            json!({"input": [{"type": "item_reference", "id": "i"}]}),
        ),
        (
            MESSAGES,
            messages(json!({"messages": [{"role": "user", "content": [{"type": "document"}]}]})),
        ),
    ] {
        let status = engine.send(path, &body).await.status();
        assert_eq!(status, reqwest::StatusCode::BAD_REQUEST, "{body}");
    }
}
