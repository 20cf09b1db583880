//! Two pickers at work at once in front of the same engines: each reads all events, and knows only its own bookings.

use serde_json::{Value, json};

use super::rollout::{Gateway, SHIPPED_DELAY};
use super::{COMPLETIONS, completion, ids};
use crate::support::fleet::traffic::{Traffic, assert_all_served};
use crate::support::fleet::{Fleet, Setup, request_id};
use crate::support::http;
use crate::support::picker::Pages;
use crate::support::waiting::until;

/// What a picker holds of each engine, by name.
async fn cached_blocks(picker: &Pages) -> Vec<(String, u64)> {
    let of = |endpoint: &Value| {
        let name = endpoint["name"].as_str().unwrap().to_owned();
        (name, endpoint["cached_blocks"].as_u64().unwrap())
    };
    let mut blocks: Vec<_> = picker.endpoints().await.iter().map(of).collect();
    blocks.sort();
    blocks
}

/// Waits until both hold exactly what the engines have cached.
async fn same_view(fleet: &Fleet, gateway: &Gateway) {
    until(
        "both pickers hold what the engines have cached",
        async || {
            let mut cached = Vec::new();
            for engine in &fleet.engines {
                let blocks = engine.running().dump().await?.len() as u64;
                cached.push((format!("default/{}", engine.name), blocks));
            }
            cached.sort();
            for picker in &gateway.pickers {
                if cached_blocks(picker).await != cached {
                    return None;
                }
            }
            Some(())
        },
    )
    .await;
}

/// The decision on a request, by whichever picker made it, and by which that was.
async fn decision(gateway: &Gateway, id: &str) -> (usize, Value) {
    until(&format!("a decision on {id}"), async || {
        for (number, picker) in gateway.pickers.iter().enumerate() {
            if let Some(decision) = picker.find_ended(id).await {
                return Some((number, decision));
            }
        }
        None
    })
    .await
}

#[tokio::test]
async fn two_pickers_come_to_the_same_view_and_foresee_what_the_other_one_warmed() {
    Setup::engines(3)
        .run(async |fleet| {
            let mut gateway = Gateway::start(fleet, [SHIPPED_DELAY; 2]).await;
            gateway.pickers[1].start().await;
            gateway.asks(2).await;
            let prompts: Vec<_> = (0..30).map(|topic| ids(topic, 300)).collect();
            let traffic = Traffic::start(gateway.envoy.picked(), 6, &prompts);
            for picker in &gateway.pickers {
                let ended = r#"warmpath_streams_total{outcome="completed"}"#;
                // More than 6 × 29 in all, so that one of the clients has come to each prompt.
                picker.metric_reaches(ended, 90.0).await;
            }
            let asked = traffic.stop().await;
            assert_all_served(&asked);

            let ask = async |prompt: &[u32]| {
                let id = request_id();
                let headers = [("content-type", "application/json"), ("x-request-id", &id)];
                let body = completion(json!(prompt)).to_string();
                let answer = http::post(gateway.envoy.picked(), COMPLETIONS, &headers, body).await;
                assert_eq!(answer.status, 200);
                decision(&gateway, &id).await
            };
            // Traffic takes its prompts by chance, and may have left one out.
            for prompt in &prompts {
                ask(prompt).await;
            }
            same_view(fleet, &gateway).await;

            let mut by_picker = [0, 0];
            for prompt in prompts.iter().chain(&prompts) {
                let (picker, decision) = ask(prompt).await;
                let reported = &decision["outcome"]["cached_tokens"];
                assert_eq!(
                    (&decision["cached_tokens"], reported),
                    (&json!(288), &json!(288))
                );
                by_picker[picker] += 1;
            }
            assert!(by_picker.iter().all(|&picks| picks > 0), "{by_picker:?}");
            same_view(fleet, &gateway).await;
        })
        .await;
}
