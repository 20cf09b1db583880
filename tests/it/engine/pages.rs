//! Claims about what the simulated engine says of itself: metrics, models, blocks, and what it does when told to fail.

use std::collections::BTreeSet;
use std::time::Duration;

use reqwest::StatusCode;
use serde_json::{Value, json};
use warmpath::routing::block::{BlockSize, Scope, prompt_keys};

use super::Engine;

#[tokio::test]
async fn engine_metrics_are_filtered_only_behind_the_slash() {
    let engine = Engine::start(&["--kv-blocks", "3000", "--model", "qwen3"]).await;
    engine.post("/v1/completions", json!({"prompt": "x"})).await;
    let filtered = engine
        .get("/metrics/?name[]=vllm:kv_cache_usage_perc&name%5B%5D=vllm%3Acache_config_info&name[]=nope")
        .await;
    let samples: Vec<_> = filtered
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    assert_eq!(samples.len(), 2);
    assert!(filtered.contains("vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"qwen3\"} 0.0\n"));
    for label in [
        "block_size=\"16\"",
        "num_gpu_blocks=\"3000\"",
        "kv_cache_size_tokens=\"48000\"",
    ] {
        assert!(filtered.contains(label), "{label}");
    }
    let whole = engine.get("/metrics?name[]=vllm:kv_cache_usage_perc").await;
    for name in [
        "vllm:num_requests_running{",
        "vllm:num_requests_waiting{",
        "vllm:prompt_tokens_total{",
        "vllm:request_success_total{engine=\"0\",model_name=\"qwen3\",finished_reason=\"length\"} 1.0",
        "vllm:time_to_first_token_seconds_bucket{engine=\"0\",model_name=\"qwen3\",le=\"+Inf\"} 1.0",
    ] {
        assert!(whole.contains(name), "{name}\n{whole}");
    }
}

#[tokio::test]
async fn engine_tells_its_models_version_and_event_sources() {
    let engine = Engine::start(&[
        "--model",
        "base",
        "--lora",
        "sql",
        "--lora",
        "legal",
        "--kv-topic",
        "t",
    ])
    .await;
    let models: Value = serde_json::from_str(&engine.get("/v1/models").await).unwrap();
    let seen: Vec<_> = models["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| {
            (
                model["id"].as_str().unwrap(),
                model["parent"].as_str(),
                model["max_model_len"].as_u64(),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("base", None, Some(32768)),
            ("sql", Some("base"), None),
            ("legal", Some("base"), None)
        ]
    );
    assert_eq!(engine.get("/version").await, r#"{"version":"0.33.0"}"#);
    assert_eq!(engine.get("/health").await, "");
    let sources: Value = serde_json::from_str(&engine.get("/kv_event_sources").await).unwrap();
    assert_eq!(
        sources["0"]["endpoint"].as_str(),
        engine.running.kv_events()
    );
    assert_eq!(
        sources["0"]["replay_endpoint"].as_str(),
        engine.running.kv_replay()
    );
    assert_eq!(sources["0"]["topic"], "t");
    let silent = Engine::start(&["--kv-events", "none"]).await;
    assert_eq!(silent.get("/kv_event_sources").await, "{}");
}

#[tokio::test]
async fn engine_shows_its_blocks_by_the_pickers_keys_and_forgets_them_when_reset() {
    let engine = Engine::start(&["--lora", "sql"]).await;
    let prompt: Vec<u32> = (0..33).collect();
    let body = json!({"prompt": prompt, "max_tokens": 1, "model": "sql", "cache_salt": "t"});
    engine.post("/v1/completions", body).await;
    let blocks: Value = serde_json::from_str(&engine.get("/sim/blocks").await).unwrap();
    assert_eq!(blocks.as_array().unwrap().len(), 2);
    let scope = Scope {
        adapter: Some("sql".into()),
        salt: Some("t".into()),
    };
    let keys = prompt_keys(&prompt, BlockSize::DEFAULT, &scope);
    let expected = keys.iter().map(|key| format!("{:016x}", key.0));
    let shown = |block: &Value| {
        assert_eq!(
            (&block["copies"], &block["medium"]),
            (&json!(1), &json!("GPU"))
        );
        block["key"].as_str().unwrap().to_owned()
    };
    let shown: BTreeSet<_> = blocks.as_array().unwrap().iter().map(shown).collect();
    assert_eq!(shown, expected.collect());
    engine.send("/reset_prefix_cache", &json!({})).await;
    assert_eq!(engine.get("/sim/blocks").await, "[]");
}

#[tokio::test]
async fn engine_loads_what_host_memory_holds_and_counts_it_as_cached() {
    // Two prompts of 31 blocks in a pool of 39.
    let options = [
        "--kv-blocks",
        "40",
        "--max-model-len",
        "600",
        "--cpu-blocks",
        "100",
    ];
    let engine = Engine::start(&options).await;
    let ask = async |first_id: u32| {
        let prompt: Vec<u32> = (first_id..first_id + 497).collect();
        let body = json!({"prompt": prompt, "max_tokens": 1});
        let answer = engine.post("/v1/completions", body).await;
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64()
    };
    let held = async |medium: &str| {
        let blocks: Value = serde_json::from_str(&engine.get("/sim/blocks").await).unwrap();
        let blocks = blocks.as_array().unwrap().iter();
        blocks.filter(|block| block["medium"] == medium).count()
    };
    assert_eq!(ask(0).await, Some(0));
    assert_eq!(ask(1000).await, Some(0));
    assert_eq!((held("GPU").await, held("CPU").await), (38, 24));
    assert_eq!(ask(0).await, Some(496));
    let page = engine.get("/metrics").await;
    assert!(
        page.contains("source=\"external_kv_transfer\"} 384.0"),
        "{page}"
    );
    engine.send("/reset_prefix_cache", &json!({})).await;
    assert_eq!(held("GPU").await, 0);
    assert!(held("CPU").await > 24);
    engine
        .send("/reset_prefix_cache?reset_external=true", &json!({}))
        .await;
    assert_eq!(engine.get("/sim/blocks").await, "[]");
}

#[tokio::test]
async fn engine_misbehaves_over_http_when_told_and_only_then() {
    let engine = Engine::start(&[]).await;
    let set = async |faults: &'static str| {
        let request = engine.client.post(engine.url("/sim/fault")).body(faults);
        request.send().await.unwrap().status()
    };
    let status = async |path: &str| {
        engine
            .client
            .get(engine.url(path))
            .send()
            .await
            .unwrap()
            .status()
    };
    assert_eq!(set("unplug").await, StatusCode::BAD_REQUEST);
    set("metrics-500").await;
    assert_eq!(status("/metrics").await, StatusCode::INTERNAL_SERVER_ERROR);
    set("none no-metrics").await;
    assert_eq!(status("/metrics/?name[]=x").await, StatusCode::NOT_FOUND);
    set("none stale-metrics").await;
    assert_eq!(
        engine.metric("vllm:generation_tokens_total").await,
        Some(0.0)
    );
    engine
        .post("/v1/completions", json!({"prompt": "x", "max_tokens": 2}))
        .await;
    assert_eq!(
        engine.metric("vllm:generation_tokens_total").await,
        Some(0.0)
    );
    set("none").await;
    assert_eq!(
        engine.metric("vllm:generation_tokens_total").await,
        Some(2.0)
    );
    set("hang-http").await;
    let hung = tokio::time::timeout(Duration::from_millis(100), status("/health")).await;
    assert!(hung.is_err());
    set("none").await;
    assert_eq!(status("/health").await, StatusCode::OK);
}
