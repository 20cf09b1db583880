//! Claims about what goes wrong over HTTP when it is told to, and only then.

use serde_json::{Value, json};

use super::{Engine, chat, with};

async fn set(engine: &Engine, faults: &'static str) {
    let request = engine.client.post(engine.url("/sim/fault")).body(faults);
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 200, "{faults}");
}

async fn status(engine: &Engine) -> u16 {
    let answer = engine
        .send("/v1/completions", &json!({"prompt": "x"}))
        .await;
    let status = answer.status().as_u16();
    if status == 503 {
        let error = answer.json::<Value>().await.unwrap()["error"].clone();
        assert_eq!(
            (&error["code"], &error["type"]),
            (&json!(503), &json!("ServiceUnavailableError"))
        );
    }
    status
}

#[tokio::test]
async fn requests_are_refused_as_often_as_told_or_until_the_queue_is_no_longer_full() {
    let engine = Engine::start(&["--fault", "refuse=2"]).await;
    for expected in [503, 503, 200] {
        assert_eq!(status(&engine).await, expected);
    }
    set(&engine, "queue-full").await;
    for _ in 0..3 {
        assert_eq!(status(&engine).await, 503);
    }
    assert_eq!(engine.get("/health").await, "");
    set(&engine, "none").await;
    assert_eq!(status(&engine).await, 200);
}

#[tokio::test]
async fn more_requests_than_may_be_queued_are_refused_until_one_has_ended() {
    let engine = Engine::start(&["--max-num-queued-reqs", "2", "--decode-ms-per-step", "1"]).await;
    let endless = json!({"prompt": "x", "max_tokens": 30_000, "ignore_eos": true, "stream": true});
    let first = engine.send("/v1/completions", &endless).await;
    let two = json!({"prompt": "x", "n": 2});
    assert_eq!(engine.send("/v1/completions", &two).await.status(), 503);
    let second = engine.send("/v1/completions", &endless).await;
    assert_eq!(second.status(), 200);
    assert_eq!(status(&engine).await, 503);
    drop((first, second));
    engine.wait_for("vllm:num_requests_running", 0.0).await;
    assert_eq!(status(&engine).await, 200);
}

#[tokio::test]
async fn cached_tokens_are_not_told_without_usage_details() {
    let engine = Engine::start(&["--fault", "no-usage-details"]).await;
    let prompt: Vec<u32> = (0..100).collect();
    let usage = async || {
        let body = json!({"prompt": prompt, "max_tokens": 1});
        engine.post("/v1/completions", body).await["usage"].clone()
    };
    for _ in 0..2 {
        let told = usage().await;
        assert_eq!(told["prompt_tokens"], 100);
        assert_eq!(told.get("prompt_tokens_details"), None);
    }
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let body = with(chat("hello"), options);
    let chunks = engine.events("/v1/chat/completions", body).await;
    let last = chunks.last().unwrap();
    assert_eq!(last["usage"].get("prompt_tokens_details"), None);
    set(&engine, "none").await;
    assert_eq!(
        usage().await["prompt_tokens_details"]["cached_tokens"],
        json!(96)
    );
}

#[tokio::test]
async fn wrong_tokens_have_a_preamble_in_answers_and_in_tokenize_alike() {
    let engine = Engine::start(&[]).await;
    let right = engine.post("/tokenize", chat("hello")).await["tokens"].clone();
    set(&engine, "wrong-tokens").await;
    let wrong = engine.post("/tokenize", chat("hello")).await["tokens"].clone();
    let body = with(chat("hello"), json!({"return_token_ids": true}));
    let answered = engine.post("/v1/chat/completions", body).await["prompt_token_ids"].clone();
    assert_eq!(wrong, answered);
    let text = async |ids: &Value| {
        let answer = engine.post("/detokenize", json!({"tokens": ids})).await;
        answer["prompt"].as_str().unwrap().to_owned()
    };
    let [right, wrong] = [text(&right).await, text(&wrong).await];
    assert!(wrong.len() > right.len());
    assert!(wrong.ends_with(&right), "{wrong}");
}

#[tokio::test]
async fn a_stalled_engine_is_healthy_and_answers_nobody() {
    let engine = Engine::start(&["--fault", "stall"]).await;
    let body = json!({"prompt": "x", "max_tokens": 1});
    let asking = engine.send("/v1/completions", &body);
    tokio::pin!(asking);
    tokio::select! {
        answer = &mut asking => panic!("answered: {answer:?}"),
        () = engine.wait_for("vllm:num_requests_waiting", 1.0) => {}
    }
    assert_eq!(engine.get("/health").await, "");
    assert_eq!(engine.metric("vllm:num_requests_running").await, Some(0.0));
    assert_eq!(engine.metric("vllm:prompt_tokens_total").await, Some(0.0));
    set(&engine, "none").await;
    assert_eq!(asking.await.status(), 200);
    assert_eq!(
        engine.metric("vllm:generation_tokens_total").await,
        Some(1.0)
    );
}

#[tokio::test]
async fn a_stalled_engine_forgets_clients_that_leave() {
    let engine = Engine::start(&["--fault", "stall"]).await;
    let body = json!({"prompt": "x", "stream": true});
    let response = engine.send("/v1/completions", &body).await;
    engine.wait_for("vllm:num_requests_waiting", 1.0).await;
    drop(response);
    engine.wait_for("vllm:num_requests_waiting", 0.0).await;
}
