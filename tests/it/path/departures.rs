//! Clients that leave before the body is complete, during the pick, during the stream: nothing of theirs stays.

use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use warmpath::engine::Fault;

use super::{CHAT, COMPLETIONS, chat, completion, ids, with};
use crate::support::fleet::{Fleet, Setup, request_id};
use crate::support::http::{self, Raw};

const CANCELLED: &str = r#"warmpath_streams_total{outcome="cancelled"}"#;

/// No request was ever computed.
async fn assert_untouched(fleet: &Fleet) {
    for engine in &fleet.engines {
        assert_eq!(engine.metric("vllm:prompt_tokens_total").await, 0.0);
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_its_body_is_complete_is_forgotten() {
    let setup = Setup::engines(1);
    setup
        .run(async |fleet| {
            let headers = [("content-type", "application/json")];
            let mut raw = Raw::post_chunked(fleet.envoy.picked(), CHAT, &headers).await;
            raw.chunk(br#"{"model": "qwen3", "#).await;
            let received = r#"warmpath_body_bytes_total{direction="request"}"#;
            fleet.picker.metric_is(received, 19.0).await;
            drop(raw);
            fleet.picker.metric_is(CANCELLED, 1.0).await;
            fleet.picker.nothing_is_booked().await;
            assert!(fleet.picker.decisions().await.is_empty());
            assert_untouched(fleet).await;
        })
        .await;
}

#[tokio::test]
async fn a_client_that_leaves_during_the_pick_is_never_picked_for() {
    let setup = Setup::engines(1);
    setup
        .run(async |fleet| {
            // The engine makes the token ids, and takes its time: the pick waits.
            fleet.engines[0].running().set_fault(Fault::HangHttp);
            let body = chat("Is anybody there?").to_string();
            let (to, bytes) = (fleet.envoy.picked(), body.len());
            let mut client = JoinSet::new();
            client.spawn(async move {
                http::post(to, CHAT, &[("content-type", "application/json")], body).await
            });
            let received = r#"warmpath_body_bytes_total{direction="request"}"#;
            fleet.picker.metric_is(received, bytes as f64).await;
            client.shutdown().await;
            fleet.picker.metric_is(CANCELLED, 1.0).await;
            fleet.picker.nothing_is_booked().await;
            assert!(fleet.picker.decisions().await.is_empty());
            fleet.engines[0].running().clear_faults();
            assert_untouched(fleet).await;
        })
        .await;
}

#[tokio::test]
async fn a_client_that_leaves_during_the_prefill_or_the_stream_frees_its_engine() {
    let setup = Setup::engines(2).engine_options(&[
        "--prefill-us-per-token",
        "500",
        "--decode-ms-per-step",
        "2",
    ]);
    setup
        .run(async |fleet| {
            for events_read in [0, 1, 5] {
                let id = request_id();
                let endless = json!({ "stream": true, "max_tokens": 20_000, "ignore_eos": true });
                let body = with(completion(ids(events_read, 1000)), endless);
                let headers = [("x-request-id", id.as_str())];
                let to = fleet.envoy.picked();
                let mut events = http::stream_json_with(to, COMPLETIONS, &headers, &body).await;
                for _ in 0..events_read {
                    events.next().await.expect("an event");
                }
                let decision = fleet.picker.picked(&id).await;
                let engine = fleet.engine(decision["endpoint"].as_str().unwrap());
                drop(events);
                let decision = fleet.picker.ended(&id).await;
                assert_eq!(decision["outcome"]["ended"], "cut", "{decision}");
                assert_eq!(
                    decision["outcome"]["first_data_ms"].is_u64(),
                    events_read > 0
                );
                fleet.picker.nothing_is_booked().await;
                engine.metric_is("vllm:num_requests_running", 0.0).await;
                assert!(engine.metric("vllm:generation_tokens_total").await < 20_000.0);
            }
        })
        .await;
}

#[tokio::test]
async fn an_engine_that_dies_in_the_middle_of_a_stream_cuts_it_and_its_booking_goes() {
    let setup = Setup::engines(1).engine_options(&["--decode-ms-per-step", "2"]);
    setup
        .run(async |fleet| {
            let id = request_id();
            let endless = json!({ "stream": true, "max_tokens": 20_000, "ignore_eos": true });
            let body = with(completion(ids(1, 300)), endless);
            let request = reqwest::Client::new()
                .post(format!("http://{}{COMPLETIONS}", fleet.envoy.picked()))
                .header("x-request-id", &id)
                .json(&body);
            let mut answer = request.send().await.unwrap();
            assert!(answer.chunk().await.unwrap().is_some());
            fleet.engines[0].kill().await;
            // What was under way arrives; then the client is told that something is missing.
            while let Ok(chunk) = answer.chunk().await {
                assert!(chunk.is_some(), "half an answer looks like a whole one");
            }
            let decision = fleet.picker.ended(&id).await;
            assert_eq!(decision["outcome"]["ended"], "cut");
        })
        .await;
}

#[tokio::test]
async fn hundreds_of_requests_that_end_in_any_way_leave_nothing_behind() {
    let setup = Setup::engines(3).engine_options(&[
        "--prefill-us-per-token",
        "20",
        "--decode-ms-per-step",
        "1",
    ]);
    setup
        .run(async |fleet| {
            let to = fleet.envoy.picked();
            let mut clients = JoinSet::new();
            for client in 0..8 {
                clients.spawn(async move {
                    let mut random = fastrand::Rng::with_seed(client);
                    let mut whole = 0;
                    for _ in 0..40 {
                        let stream = json!({ "stream": random.bool(), "max_tokens": 5 });
                        let prompt = ids(random.u32(1..10), random.u32(1..500));
                        let body = with(completion(prompt), stream);
                        let ask = http::post_json(to, COMPLETIONS, &body);
                        let patience = Duration::from_millis(random.u64(1..60));
                        whole += u32::from(tokio::time::timeout(patience, ask).await.is_ok());
                    }
                    whole
                });
            }
            let whole: u32 = clients.join_all().await.into_iter().sum();
            fleet.picker.nothing_is_booked().await;
            let completed = r#"warmpath_streams_total{outcome="completed"}"#;
            assert!(fleet.picker.metric(completed).await >= f64::from(whole));
            // The state is still right: a repeat is foreseen exactly.
            fleet.events_arrived().await;
            let body = completion(ids(1, 400));
            let exchange = fleet.ask(COMPLETIONS, &body).await;
            assert_eq!(Some(exchange.predicted()), exchange.reported());
        })
        .await;
}
