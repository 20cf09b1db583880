//! Cold, warm, spilled: who is warm is known exactly, and where a request goes follows from it.

use serde_json::{Value, json};

use crate::support::fleet::{ADAPTER, Exchange, Fleet, MODEL, Setup};

/// Words that make a long prompt; texts of different topics share no block.
fn text(topic: &str, words: usize) -> String {
    (0..words)
        .map(|word| format!("{topic} has {word} parts. "))
        .collect()
}

fn chat(model: &str, content: &str) -> Value {
    json!({
        "model": model, "max_tokens": 2,
        "messages": [
            {"role": "system", "content": "You are brief."},
            {"role": "user", "content": content},
        ],
    })
}

/// The pick foresaw exactly what the engine found, with token ids made in the picker.
fn assert_exact(exchange: &Exchange) {
    assert_eq!(exchange.answer.status, 200, "{:?}", exchange.answer.body);
    assert_eq!(exchange.decision["request"]["token_source"], "local");
    assert_eq!(
        Some(exchange.predicted()),
        exchange.reported(),
        "{}",
        exchange.decision
    );
    let outcome = &exchange.decision["outcome"];
    assert_eq!(exchange.decision["prompt_tokens"], outcome["prompt_tokens"]);
    assert_eq!(outcome["ended"], "completed");
}

/// Sends a request twice: cold anywhere, then warm at its owner.
async fn cold_then_warm(fleet: &Fleet, path: &str, body: &Value) {
    let cold = fleet.ask(path, body).await;
    assert_exact(&cold);
    let warm = fleet.ask(path, body).await;
    assert_exact(&warm);
    assert!(warm.predicted() > cold.predicted(), "{}", warm.decision);
    assert_eq!(warm.endpoint(), cold.endpoint(), "{}", warm.decision);
}

#[tokio::test]
async fn a_repeated_prompt_goes_to_its_owner_and_the_cached_tokens_are_foreseen_exactly() {
    let setup = Setup::engines(3).with_tokenizer();
    setup
        .run(async |fleet| {
            let chats = "/v1/chat/completions";
            cold_then_warm(fleet, chats, &chat(MODEL, &text("A chat", 60))).await;
            cold_then_warm(fleet, chats, &chat(ADAPTER, &text("A chat", 60))).await;
        })
        .await;
}
