//! Claims about an engine that is put to sleep, as vLLM's is in its development mode.

use serde_json::{Value, json};

use super::Engine;

/// How awake, offloaded and discarded the page says that the engine is.
async fn sleep_states(engine: &Engine) -> [f64; 3] {
    let page = engine.get("/metrics").await;
    ["awake", "weights_offloaded", "discard_all"].map(|state| {
        let label = format!("sleep_state=\"{state}\"");
        let of =
            |line: &&str| line.starts_with("vllm:engine_sleep_state{") && line.contains(&label);
        let line = page.lines().find(of).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    })
}

async fn is_sleeping(engine: &Engine) -> bool {
    let answer: Value = serde_json::from_str(&engine.get("/is_sleeping").await).unwrap();
    answer["is_sleeping"].as_bool().unwrap()
}

#[tokio::test]
async fn an_engine_asleep_says_so_has_no_cache_and_lets_requests_wait() {
    let engine = Engine::start(&["--data-parallel-size", "2"]).await;
    let body = json!({"prompt": (0..65).collect::<Vec<u32>>(), "max_tokens": 1});
    for _ in 0..2 {
        engine.post("/v1/completions", body.clone()).await;
    }
    assert_eq!(sleep_states(&engine).await, [1.0, 0.0, 0.0]);
    assert!(!is_sleeping(&engine).await);
    assert_eq!(engine.send("/sleep", &json!({})).await.status(), 200);
    assert!(is_sleeping(&engine).await);
    assert_eq!(sleep_states(&engine).await, [0.0, 1.0, 0.0]);
    for rank in [0, 1] {
        assert_eq!(engine.running.dump_of(rank).await, Some(Vec::new()));
    }
    let asking = engine.send("/v1/completions", &body);
    tokio::pin!(asking);
    tokio::select! {
        answer = &mut asking => panic!("answered: {answer:?}"),
        () = engine.wait_for("vllm:num_requests_waiting", 1.0) => {}
    }
    assert_eq!(engine.send("/wake_up", &json!({})).await.status(), 200);
    assert_eq!(asking.await.status(), 200);
    assert_eq!(sleep_states(&engine).await, [1.0, 0.0, 0.0]);
    engine.send("/sleep?level=2", &json!({})).await;
    assert_eq!(sleep_states(&engine).await, [0.0, 0.0, 1.0]);
}

#[tokio::test]
async fn a_pause_keeps_the_cache() {
    let engine = Engine::start(&[]).await;
    let body = json!({"prompt": (0..65).collect::<Vec<u32>>(), "max_tokens": 1});
    engine.post("/v1/completions", body).await;
    engine.send("/sleep?level=0", &json!({})).await;
    assert!(is_sleeping(&engine).await);
    assert_eq!(engine.running.dump().await.unwrap().len(), 4);
}

#[tokio::test]
async fn answers_in_the_making_end_as_aborted_when_the_engine_goes_to_sleep() {
    let engine = Engine::start(&["--decode-ms-per-step", "1"]).await;
    let body = json!({"prompt": "x", "max_tokens": 30_000, "ignore_eos": true});
    let asking = engine.post("/v1/completions", body.clone());
    let sleeping = async {
        engine.wait_for("vllm:num_requests_running", 1.0).await;
        engine.send("/sleep", &json!({})).await;
    };
    let (answer, ()) = tokio::join!(asking, sleeping);
    assert_eq!(answer["choices"][0]["finish_reason"], "abort");
    engine.send("/wake_up", &json!({})).await;
    assert_eq!(engine.running.dump().await.unwrap(), []);
}
