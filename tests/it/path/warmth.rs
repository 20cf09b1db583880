//! Cold and warm: which tokens an engine has cached is known exactly, and a repeat goes where they are.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, chat, completion, ids, text, with};
use crate::support::fleet::{ADAPTER, Exchange, Fleet, MODEL, Setup};

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
pub(super) async fn cold_then_warm(fleet: &Fleet, path: &str, body: &Value, token_source: &str) {
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

/// Two claims on one fleet, because loading the tokenizer three times takes seconds in an unoptimized build.
#[tokio::test]
async fn repeats_go_to_their_owner_and_its_cached_tokens_are_foreseen_exactly() {
    let setup = Setup::engines(2).with_tokenizer();
    setup
        .run(async |fleet| {
            repeats_are_foreseen(fleet).await;
            a_growing_conversation_is_foreseen(fleet).await;
        })
        .await;
}

async fn repeats_are_foreseen(fleet: &Fleet) {
    let salted = |body| with(body, json!({ "cache_salt": "mine" }));
    let adapted = |body| with(body, json!({ "model": ADAPTER }));
    for (path, body) in [
        (CHAT, chat(&text("A chat", 40))),
        (CHAT, streamed(chat(&text("A stream", 40)))),
        // The same text again and again: salt and adapter keep caches apart.
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
    let equal = r#"warmpath_predictions_total{result="equal"}"#;
    fleet.picker.metric_is(equal, 22.0).await;
}

async fn a_growing_conversation_is_foreseen(fleet: &Fleet) {
    let mut body = with(chat(&text("A question", 20)), json!({ "max_tokens": 40 }));
    let mut foreseen = Vec::new();
    for turn in 0..4 {
        let exchange = fleet.ask(CHAT, &body).await;
        assert_exact(&exchange, "local");
        foreseen.push(exchange.predicted());
        let said = exchange.answer.json()["choices"][0]["message"]["content"].clone();
        let messages = body["messages"].as_array_mut().unwrap();
        messages.push(json!({ "role": "assistant", "content": said }));
        let next = text(&format!("Turn {turn}"), 10);
        messages.push(json!({ "role": "user", "content": next }));
        fleet.events_arrived().await;
    }
    assert!(foreseen.is_sorted_by(|a, b| a < b), "{foreseen:?}");
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

#[tokio::test]
async fn predictions_stay_exact_while_caches_overflow() {
    // Each engine has room for two of the longest prompts, so blocks go as fast as they come.
    let setup = Setup::engines(2).engine_options(&["--kv-blocks", "50", "--max-model-len", "700"]);
    setup
        .run(async |fleet| {
            let mut random = fastrand::Rng::with_seed(11);
            let mut hits = 0;
            for _ in 0..60 {
                // Three beginnings, each with three ends.
                let [topic, end] = [1, 100].map(|first| first + random.u32(..3));
                let mut prompt = ids(topic, random.u32(1..200));
                prompt.extend(ids(end, random.u32(1..120)));
                let exchange = fleet.ask(COMPLETIONS, &completion(prompt)).await;
                assert_exact(&exchange, "engine");
                hits += u32::from(exchange.predicted() > 0);
                fleet.events_arrived().await;
            }
            assert!((10..60).contains(&hits), "{hits} of 60 were warm");
        })
        .await;
}

/// Before 0.31 an engine does not tell where its events are, and before 0.24 it writes them as arrays.
#[tokio::test]
async fn older_engines_are_found_at_the_usual_ports_and_foreseen_exactly() {
    let options = ["--version", "0.20.0", "--kv-events-encoding", "array"];
    let setup = Setup::engines(2).usual_event_ports();
    setup
        .engine_options(&options)
        .run(async |fleet| {
            let body = completion(ids(1, 300));
            let cold = fleet.ask(COMPLETIONS, &body).await;
            // A cold prompt's details are left out there.
            assert_eq!((cold.predicted(), cold.reported()), (0, None));
            fleet.events_arrived().await;
            let warm = fleet.ask(COMPLETIONS, &body).await;
            assert_exact(&warm, "engine");
            assert_eq!(warm.endpoint(), cold.endpoint());
            assert_eq!(warm.predicted(), 288);
        })
        .await;
}

#[tokio::test]
async fn engines_of_different_block_sizes_and_without_events_live_in_one_pool() {
    for options in [&["--block-size", "48"], &["--kv-events", "none"]] {
        let setup = Setup::engines(2).second_engine_options(options);
        setup
            .run(async |fleet| {
                let mut owners = BTreeSet::new();
                for topic in 1..20 {
                    let body = completion(ids(topic, 500));
                    let cold = fleet.ask(COMPLETIONS, &body).await;
                    assert_exact(&cold, "engine");
                    fleet.events_arrived().await;
                    let warm = fleet.ask(COMPLETIONS, &body).await;
                    assert_exact(&warm, "engine");
                    assert_eq!(warm.endpoint(), cold.endpoint());
                    owners.insert((warm.endpoint().to_owned(), warm.predicted()));
                }
                let second = if options[0] == "--block-size" {
                    480
                } else {
                    496
                };
                let both = [("default/engine-0", 496), ("default/engine-1", second)];
                assert_eq!(
                    owners,
                    BTreeSet::from(both.map(|(name, cached)| (name.to_owned(), cached)))
                );
            })
            .await;
    }
}

#[tokio::test]
async fn embeddings_go_to_their_owner_though_it_reports_no_cached_tokens() {
    let setup = Setup::engines(3);
    setup
        .run(async |fleet| {
            let body = json!({ "model": MODEL, "input": text("An input", 40) });
            let cold = fleet.ask("/v1/embeddings", &body).await;
            assert_eq!(cold.answer.status, 200);
            fleet.events_arrived().await;
            let warm = fleet.ask("/v1/embeddings", &body).await;
            assert_eq!(warm.endpoint(), cold.endpoint());
            assert!(warm.predicted() > 200, "{}", warm.decision);
            assert_eq!(warm.reported(), None);
        })
        .await;
}
