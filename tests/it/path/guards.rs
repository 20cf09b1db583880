//! Engines that are full or silent are left out, however warm they are, and come back.

use serde_json::json;
use warmpath::engine::Fault;

use super::{COMPLETIONS, completion, ids, with};
use crate::support::fleet::{Fleet, Setup};
use crate::support::http;
use crate::support::waiting::until;

/// Waits until a guard leaves an endpoint out, or (`null`) none does.
async fn excluded(fleet: &Fleet, name: &str, guard: Option<&str>) {
    until(&format!("{name} is excluded: {guard:?}"), async || {
        (fleet.picker.endpoint(name).await["excluded"] == json!(guard)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_engine_with_a_full_kv_pool_is_left_out_until_there_is_room() {
    let setup = Setup::engines(2).engine_options(&["--kv-blocks", "40", "--max-model-len", "620"]);
    setup
        .settings(json!({ "guards": { "report_age_limit": "2s" }, "reports": { "idle_interval": "100ms" } }))
        .engine_options(&["--decode-ms-per-step", "500"])
        .run(async |fleet| {
            // It takes 38 of 39 usable blocks, and ten seconds to decode.
            let answer = json!({ "stream": true, "max_tokens": 20, "ignore_eos": true });
            let prompt = ids(1, 38 * 16 - 8);
            let body = with(completion(prompt.clone()), answer);
            let mut events = http::stream_json(fleet.envoy.picked(), COMPLETIONS, &body).await;
            events.next().await.expect("an event");
            let full = fleet.picker.decisions().await[0]["endpoint"].clone();
            let full = full.as_str().unwrap();
            excluded(fleet, full, Some("kv_usage")).await;

            // The smaller part of a prompt does not keep it in.
            let other = [&prompt[..160], &ids(2, 200)].concat();
            let exchange = fleet.ask(COMPLETIONS, &completion(other)).await;
            assert_ne!(exchange.endpoint(), full, "{}", exchange.decision);
            let candidates = exchange.decision["candidates"].as_array().unwrap();
            let left_out = candidates
                .iter()
                .find(|seen| seen["endpoint"] == full)
                .unwrap();
            assert_eq!(left_out["excluded"], "kv_usage");
            assert_eq!(left_out["cached_tokens"], 160);

            drop(events);
            excluded(fleet, full, None).await;
        })
        .await;
}

#[tokio::test]
async fn an_idle_engine_that_dies_is_picked_once_at_most() {
    // Idle endpoints are asked seldom: what tells is the refused connection after the first pick.
    let setup = Setup::engines(2).settings(json!({ "reports": { "idle_interval": "30s" } }));
    setup
        .run(async |fleet| {
            let warm = fleet.ask(COMPLETIONS, &completion(ids(1, 300))).await;
            fleet.events_arrived().await;
            let dead = warm.endpoint().to_owned();
            let place = fleet
                .engines
                .iter()
                .position(|engine| dead.ends_with(&engine.name));
            let place = place.expect("an engine of the fleet");
            fleet.engines[place].kill().await;
            // As many as it takes to be picked there, by its warm prefix or by chance, and one more.
            http::post_json(fleet.envoy.picked(), COMPLETIONS, &completion(ids(1, 300))).await;
            excluded(fleet, &dead, Some("unreachable")).await;
            for n in 0..20 {
                let exchange = fleet.ask(COMPLETIONS, &completion(ids(n, 300))).await;
                assert_eq!(exchange.answer.status, 200);
                assert_ne!(exchange.endpoint(), dead, "{}", exchange.decision);
            }
            fleet.engines[place].restart().await;
            excluded(fleet, &dead, None).await;
        })
        .await;
}

#[tokio::test]
async fn an_engine_that_hangs_is_left_out_and_comes_back() {
    let setup = Setup::engines(2).settings(json!({
        "guards": { "report_age_limit": "1500ms" },
        "reports": { "idle_interval": "100ms" },
    }));
    setup
        .run(async |fleet| {
            let body = completion(ids(1, 300));
            let warm = fleet.ask(COMPLETIONS, &body).await;
            fleet.events_arrived().await;
            let engine = fleet.engine(warm.endpoint());
            engine.running().set_fault(Fault::HangHttp);
            excluded(fleet, warm.endpoint(), Some("report_age")).await;
            let other = fleet.ask(COMPLETIONS, &body).await;
            assert_eq!(other.answer.status, 200);
            assert_ne!(other.endpoint(), warm.endpoint(), "{}", other.decision);
            engine.running().clear_faults();
            excluded(fleet, warm.endpoint(), None).await;
        })
        .await;
}
