//! Cold and warm: which tokens an engine has cached is known exactly, and a repeat goes where they are.

use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, chat, completion, ids, text, with};
use crate::support::fleet::{ADAPTER, Exchange, Fleet, Setup};

/// The pick foresaw exactly what the engine found.
fn assert_exact(exchange: &Exchange, token_source: &str) {
    let decision = &exchange.decision;
    assert_eq!(exchange.answer.status, 200, "{:?}", exchange.answer.body);
    assert_eq!(decision["request"]["token_source"], token_source);
    assert_eq!(
        Some(exchange.predicted()),
        exchange.reported(),
        "{decision}"
    );
    let outcome = &decision["outcome"];
    assert_eq!(decision["prompt_tokens"], outcome["prompt_tokens"]);
    assert_eq!(outcome["ended"], "completed");
    let served = exchange.answer.header("x-served-by");
    assert_eq!(served, decision["address"].as_str());
}

/// Sends a request twice: cold anywhere, then warm at its owner.
async fn cold_then_warm(fleet: &Fleet, path: &str, body: &Value, token_source: &str) {
    let cold = fleet.ask(path, body).await;
    assert_exact(&cold, token_source);
    fleet.events_arrived().await;
    let warm = fleet.ask(path, body).await;
    assert_exact(&warm, token_source);
    assert!(warm.predicted() > cold.predicted(), "{}", warm.decision);
    assert_eq!(warm.endpoint(), cold.endpoint(), "{}", warm.decision);
    fleet.events_arrived().await;
}

/// A streamed answer that reports its usage.
fn streamed(body: Value) -> Value {
    let stream = json!({ "stream": true, "stream_options": { "include_usage": true } });
    with(body, stream)
}

#[tokio::test]
async fn repeats_go_to_their_owner_and_its_cached_tokens_are_foreseen_exactly() {
    let setup = Setup::engines(2).with_tokenizer();
    setup
        .run(async |fleet| {
            let salted = |body| with(body, json!({ "cache_salt": "mine" }));
            let adapted = |body| with(body, json!({ "model": ADAPTER }));
            for (path, body) in [
                (CHAT, chat(&text("A chat", 40))),
                (CHAT, streamed(chat(&text("A stream", 40)))),
                // The same text three times over: salt and adapter keep caches apart.
                (CHAT, salted(chat(&text("A chat", 40)))),
                (CHAT, adapted(chat(&text("A chat", 40)))),
                (CHAT, streamed(salted(adapted(chat(&text("A chat", 40)))))),
                (COMPLETIONS, completion(text("A text", 40))),
                (COMPLETIONS, streamed(completion(text("A river", 40)))),
                (COMPLETIONS, completion(ids(1, 300))),
                (COMPLETIONS, salted(adapted(completion(ids(1, 300))))),
                (COMPLETIONS, completion(vec![text("A list", 40)])),
                (COMPLETIONS, completion(vec![ids(2, 300)])),
            ] {
                cold_then_warm(fleet, path, &body, "local").await;
            }
            let all_equal = r#"warmpath_predictions_total{result="equal"}"#;
            fleet.picker.metric_is(all_equal, 22.0).await;
        })
        .await;
}

#[tokio::test]
async fn without_a_models_files_the_engines_tokenize_and_predictions_stay_exact() {
    let setup = Setup::engines(2);
    setup
        .run(async |fleet| {
            cold_then_warm(fleet, CHAT, &chat(&text("A chat", 40)), "engine").await;
            let body = streamed(completion(text("A text", 40)));
            cold_then_warm(fleet, COMPLETIONS, &body, "engine").await;
        })
        .await;
}

/// vLLM reports the cached tokens of the last prompt alone, so its figure says nothing of the whole.
#[tokio::test]
async fn several_prompts_go_to_their_owner_together_and_are_not_compared() {
    let setup = Setup::engines(2);
    setup
        .run(async |fleet| {
            let lists = completion(vec![ids(1, 100), ids(2, 200)]);
            let texts = completion(vec![text("One", 20), text("Another", 20)]);
            for body in [lists, texts] {
                let cold = fleet.ask(COMPLETIONS, &body).await;
                fleet.events_arrived().await;
                let warm = fleet.ask(COMPLETIONS, &body).await;
                assert_eq!(warm.endpoint(), cold.endpoint());
                let prompt = warm.decision["prompt_tokens"].as_u64().unwrap();
                // Of each prompt all but its last, partly filled block.
                assert!(warm.predicted() >= prompt - 2 * 16, "{}", warm.decision);
                assert!(warm.reported() < Some(warm.predicted()));
            }
            let metric = |result| format!(r#"warmpath_predictions_total{{result="{result}"}}"#);
            assert_eq!(fleet.picker.metric(&metric("too_high")).await, 0.0);
            assert_eq!(fleet.picker.metric(&metric("several_prompts")).await, 4.0);
        })
        .await;
}

#[tokio::test]
async fn without_events_the_approximate_index_finds_the_owner_and_the_page_says_why() {
    let setup = Setup::engines(3).engine_options(&["--kv-events", "none"]);
    setup
        .run(async |fleet| {
            for topic in 1..5 {
                let body = completion(ids(topic, 300));
                let cold = fleet.ask(COMPLETIONS, &body).await;
                let warm = fleet.ask(COMPLETIONS, &body).await;
                assert_exact(&warm, "engine");
                assert_eq!(warm.endpoint(), cold.endpoint());
                assert_eq!(warm.predicted(), 288);
            }
            for endpoint in fleet.picker.endpoints().await {
                assert_eq!(endpoint["approximate"], true);
                assert_eq!(endpoint["feeds"][0]["state"], "absent");
                let cause = endpoint["feeds"][0]["cause"].as_str().unwrap();
                assert!(cause.contains("publishes no KV events"), "{cause}");
            }
        })
        .await;
}
