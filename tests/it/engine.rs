//! Claims about the simulated engine's HTTP side. They share our code on both ends and so prove the plumbing only.

mod converted;
mod faults;
mod pages;
mod ranks;
mod sleep;

use reqwest::StatusCode;
use serde_json::{Value, json};
use warmpath::engine::{Running, Settings, start};

use crate::support::fleet::INSTANT;
use crate::support::waiting::{PATIENCE, until};

struct Engine {
    running: Running,
    client: reqwest::Client,
}

impl Engine {
    async fn start(options: &[&str]) -> Self {
        let settings = Settings::local(&[&INSTANT, options].concat()).unwrap();
        Self {
            running: start(settings).await.unwrap(),
            client: reqwest::Client::new(),
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.running.http())
    }

    async fn send(&self, path: &str, body: &Value) -> reqwest::Response {
        let request = self.client.post(self.url(path)).json(body);
        tokio::time::timeout(PATIENCE, request.send())
            .await
            .unwrap()
            .unwrap()
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let response = self.send(path, &body).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        response.json().await.unwrap()
    }

    async fn get(&self, path: &str) -> String {
        let response = self.client.get(self.url(path)).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        response.text().await.unwrap()
    }

    async fn events(&self, path: &str, body: Value) -> Vec<Value> {
        let response = self.send(path, &body).await;
        let kind = response.headers()["content-type"].to_str().unwrap();
        assert_eq!(kind, "text/event-stream; charset=utf-8");
        let text = response.text().await.unwrap();
        let mut events: Vec<_> = text.split_terminator("\n\n").collect();
        assert_eq!(events.pop(), Some("data: [DONE]"));
        events
            .iter()
            .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
            .collect()
    }

    async fn metric(&self, name: &str) -> Option<f64> {
        let page = self.get("/metrics").await;
        let line = page.lines().find(|line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with('{'))
        })?;
        line.rsplit(' ').next().unwrap().parse().ok()
    }

    async fn wait_for(&self, name: &str, value: f64) {
        until(&format!("{name} is {value}"), async || {
            (self.metric(name).await == Some(value)).then_some(())
        })
        .await;
    }
}

fn chat(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}], "max_tokens": 3})
}

fn with(mut body: Value, more: Value) -> Value {
    let fields = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

#[tokio::test]
async fn engine_answers_a_chat_in_vllms_shape() {
    let engine = Engine::start(&["--name", "seven"]).await;
    let request = engine
        .client
        .post(engine.url("/v1/chat/completions"))
        .header("x-request-id", "mine");
    let response = request
        .json(&with(chat("hello"), json!({"return_token_ids": true})))
        .send()
        .await
        .unwrap();
    assert_eq!(response.headers()["x-warmpath-engine"], "seven");
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["id"], "chatcmpl-mine");
    assert_eq!(body["object"], "chat.completion");
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["token_ids"].as_array().unwrap().len(), 3);
    let text = engine
        .post("/detokenize", json!({"tokens": choice["token_ids"]}))
        .await;
    assert_eq!(text["prompt"], choice["message"]["content"]);
    let prompt = engine.post("/tokenize", chat("hello")).await;
    assert_eq!(body["prompt_token_ids"], prompt["tokens"]);
    let usage = &body["usage"];
    assert_eq!(usage["prompt_tokens"], prompt["count"]);
    assert_eq!(usage["completion_tokens"], 3);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
}

#[tokio::test]
async fn engine_reports_the_cached_tokens_of_a_repeat_by_salt_and_adapter() {
    let engine = Engine::start(&["--lora", "sql"]).await;
    let prompt: Vec<u32> = (0..100).collect();
    let cached = async |more: Value| {
        let body = with(json!({"prompt": prompt, "max_tokens": 1}), more);
        let answer = engine.post("/v1/completions", body).await;
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64()
    };
    for more in [
        json!({}),
        json!({"cache_salt": "t"}),
        json!({"model": "sql"}),
    ] {
        assert_eq!(cached(more.clone()).await, Some(0), "{more}");
        assert_eq!(cached(more.clone()).await, Some(96), "{more}");
    }
    assert_eq!(cached(json!({"prompt_logprobs": 1})).await, Some(0));
    assert_eq!(
        engine.metric("vllm:prefix_cache_hits_total").await,
        Some(288.0)
    );
}

#[tokio::test]
async fn engine_before_0_24_leaves_out_details_of_a_cold_prompt() {
    let engine = Engine::start(&["--version", "0.23.0"]).await;
    let prompt: Vec<u32> = (0..100).collect();
    let mut details = Vec::new();
    for _ in 0..2 {
        let answer = engine
            .post("/v1/completions", json!({"prompt": prompt}))
            .await;
        details.push(answer["usage"].get("prompt_tokens_details").cloned());
    }
    assert_eq!(details, [None, Some(json!({"cached_tokens": 96}))]);
    let sources = engine
        .client
        .get(engine.url("/kv_event_sources"))
        .send()
        .await;
    assert_eq!(sources.unwrap().status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn engine_streams_role_tokens_usage_and_done() {
    let engine = Engine::start(&[]).await;
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let chunks = engine
        .events("/v1/chat/completions", with(chat("hello"), options))
        .await;
    assert_eq!(chunks.len(), 1 + 3 + 1);
    let choice = |at: usize| &chunks[at]["choices"][0];
    assert_eq!(
        choice(0)["delta"],
        json!({"role": "assistant", "content": ""})
    );
    assert_eq!(chunks[0]["prompt_token_ids"], Value::Null);
    assert!(chunks[0].get("prompt_token_ids").is_some());
    let reasons: Vec<_> = (0..4)
        .map(|at| choice(at)["finish_reason"].as_str())
        .collect();
    assert_eq!(reasons, [None, None, None, Some("length")]);
    assert_eq!(chunks[4]["choices"], json!([]));
    let usage = &chunks[4]["usage"];
    let details = json!({"cached_tokens": 0, "created_cache_tokens": 0});
    assert_eq!(usage["prompt_tokens_details"], details);
    assert_eq!(
        usage["total_tokens"].as_u64(),
        usage["prompt_tokens"].as_u64().map(|prompt| prompt + 3)
    );
    assert!(chunks[..4].iter().all(|chunk| chunk.get("usage").is_none()));
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"]));
}

#[tokio::test]
async fn engine_streams_completions_with_text_in_every_chunk() {
    let engine = Engine::start(&[]).await;
    let body = json!({"prompt": "a b", "max_tokens": 2, "stream": true, "return_token_ids": true});
    let chunks = engine.events("/v1/completions", body).await;
    assert_eq!(chunks.len(), 2);
    assert_eq!(chunks[0]["object"], "text_completion");
    let prompt = engine.post("/tokenize", json!({"prompt": "a b"})).await;
    assert_eq!(
        chunks[0]["choices"][0]["prompt_token_ids"],
        prompt["tokens"]
    );
    assert_eq!(chunks[1]["choices"][0]["prompt_token_ids"], Value::Null);
    assert!(
        chunks[1]["choices"][0]["text"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
    );
}

#[tokio::test]
async fn engine_sends_headers_before_the_prefill_and_stops_for_a_client_that_left() {
    let engine = Engine::start(&[
        "--prefill-us-per-token",
        "20000",
        "--decode-ms-per-step",
        "1",
    ])
    .await;
    let body = json!({
        "prompt": vec![1; 50], "max_tokens": 30_000, "ignore_eos": true, "stream": true,
    });
    let mut response = engine.send("/v1/completions", &body).await;
    // A second of prefill lies ahead: no token is there, and the gauges know of nothing yet.
    assert_eq!(
        engine.metric("vllm:generation_tokens_total").await,
        Some(0.0)
    );
    assert!(response.chunk().await.unwrap().is_some());
    engine.wait_for("vllm:num_requests_running", 1.0).await;
    drop(response);
    engine.wait_for("vllm:num_requests_running", 0.0).await;
    let generated = engine.metric("vllm:generation_tokens_total").await.unwrap();
    assert!(generated < 30_000.0);
    assert_eq!(engine.metric("vllm:kv_cache_usage_perc").await, Some(0.0));
}

#[tokio::test]
async fn engine_stops_for_a_client_that_left_before_its_whole_answer() {
    let engine = Engine::start(&["--decode-ms-per-step", "1"]).await;
    let body = json!({"prompt": "x", "max_tokens": 30_000, "ignore_eos": true});
    let url = engine.url("/v1/completions");
    let asking = engine.client.post(url).json(&body).send();
    tokio::select! {
        answer = asking => panic!("answered too soon: {answer:?}"),
        () = engine.wait_for("vllm:num_requests_running", 1.0) => {}
    }
    engine.wait_for("vllm:num_requests_running", 0.0).await;
    let answered = engine.metric("vllm:request_success_total").await;
    assert_eq!(answered, Some(0.0));
}

#[tokio::test]
async fn engine_takes_every_kind_of_prompt_and_several_answers() {
    let engine = Engine::start(&[]).await;
    for (prompt, answers) in [
        (json!("one text"), 1),
        (json!(["two", "texts"]), 2),
        (json!([1, 2, 3]), 1),
        (json!([[1, 2], [3, 4], [5]]), 3),
    ] {
        let body = json!({"prompt": prompt, "max_tokens": 2, "n": 2, "return_token_ids": true});
        let whole = engine.post("/v1/completions", body.clone()).await;
        let choices = whole["choices"].as_array().unwrap();
        assert_eq!(choices.len(), answers * 2, "{prompt}");
        assert_eq!(choices[0]["token_ids"], choices[1]["token_ids"], "{prompt}");
        assert_eq!(whole["usage"]["completion_tokens"], answers * 4, "{prompt}");
        let chunks = engine
            .events("/v1/completions", with(body, json!({"stream": true})))
            .await;
        let ends = chunks
            .iter()
            .filter(|chunk| !chunk["choices"][0]["finish_reason"].is_null());
        assert_eq!(ends.count(), answers * 2, "{prompt}");
    }
}

#[tokio::test]
async fn engine_embeds_each_input() {
    let engine = Engine::start(&[]).await;
    let body = json!({"input": ["one", "two", "one"]});
    let answer = engine.post("/v1/embeddings", body).await;
    let vectors: Vec<_> = answer["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| &d["embedding"])
        .collect();
    assert_eq!(vectors.len(), 3);
    assert_eq!(vectors[0], vectors[2]);
    assert_ne!(vectors[0], vectors[1]);
}

#[tokio::test]
async fn engine_refuses_in_vllms_error_shape() {
    let engine = Engine::start(&["--max-model-len", "100"]).await;
    let refusal = async |path: &str, body: Value| {
        let response = engine.send(path, &body).await;
        let status = response.status().as_u16();
        let error = response.json::<Value>().await.unwrap()["error"].clone();
        assert_eq!(error["code"], status);
        assert!(
            error["message"]
                .as_str()
                .is_some_and(|text| !text.is_empty())
        );
        (
            status,
            error["type"].as_str().unwrap().to_owned(),
            error["param"].clone(),
        )
    };
    let bad = |param: Value| (400, "BadRequestError".to_owned(), param);
    let missing = (404, "NotFoundError".to_owned(), json!("model"));
    let completions = "/v1/completions";
    let chats = "/v1/chat/completions";
    assert_eq!(
        refusal(chats, with(chat("x"), json!({"model": "nope"}))).await,
        missing
    );
    assert_eq!(
        refusal("/tokenize", json!({"model": "nope", "prompt": "x"})).await,
        missing
    );
    let long = json!({"prompt": vec![1; 99], "max_tokens": 2});
    assert_eq!(refusal(completions, long).await, bad(json!("input_tokens")));
    for body in [
        json!({}),
        json!({"prompt": {}}),
        json!({"prompt": [1, "x"]}),
        json!({"prompt": []}),
        json!({"prompt": "x", "n": 0}),
        json!({"prompt": "x", "n": u64::MAX}),
        json!({"prompt": "x", "max_tokens": 0}),
        json!({"prompt": "x", "cache_salt": ""}),
        json!([]),
    ] {
        assert_eq!(
            refusal(completions, body.clone()).await,
            bad(Value::Null),
            "{body}"
        );
    }
    assert_eq!(
        refusal(chats, json!({"messages": [{}]})).await,
        bad(Value::Null)
    );
    assert_eq!(
        refusal(chats, json!({"messages": []})).await,
        bad(Value::Null)
    );
    let lost = engine.send("/v1/rerank", &json!({})).await;
    assert_eq!(lost.status(), StatusCode::NOT_FOUND);
}
