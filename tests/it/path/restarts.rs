//! Engines die and come back, pickers are replaced: what is foreseen afterwards is what is there.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{COMPLETIONS, completion, ids, with};
use crate::support::fleet::traffic::{Asked, Traffic, assert_all_served};
use crate::support::fleet::{Fleet, Setup};
use crate::support::http;
use crate::support::waiting::until;
use warmpath::engine::Fault;

/// The decisions on these requests, by request id.
async fn decisions(fleet: &Fleet, asked: &[Asked]) -> Vec<Value> {
    let all = fleet.picker.decisions().await;
    let by_id: BTreeMap<_, _> = all
        .iter()
        .filter_map(|decision| Some((decision["request_id"].as_str()?, decision)))
        .collect();
    let ours = asked
        .iter()
        .filter_map(|asked| by_id.get(asked.request_id.as_str()));
    ours.map(|decision| (*decision).clone()).collect()
}

/// No pick foresaw more than the engine found.
fn assert_no_phantoms(decisions: &[Value]) {
    let mut compared = 0;
    for decision in decisions {
        let Some(reported) = decision["outcome"]["cached_tokens"].as_u64() else {
            continue;
        };
        let predicted = decision["cached_tokens"].as_u64().unwrap();
        assert!(predicted <= reported, "{decision}");
        compared += 1;
    }
    assert!(compared > 0, "nothing could be compared");
}

#[tokio::test]
async fn an_engine_killed_and_restarted_under_traffic_leaves_no_phantom_blocks() {
    let setup = Setup::engines(2).settings(json!({ "decisions": 20_000 }));
    setup
        .run(async |fleet| {
            let prompts: Vec<_> = (0..20).map(|topic| ids(topic, 200)).collect();
            let to = fleet.envoy.picked();
            let traffic = Traffic::start(to, 3, &prompts);
            fleet
                .picker
                .sees("both engines are warm", |endpoints| {
                    endpoints
                        .iter()
                        .all(|endpoint| endpoint["cached_blocks"].as_u64() > Some(60))
                })
                .await;
            fleet.engines[0].kill().await;
            fleet.engines[0].restart().await;
            let restarts =
                r#"warmpath_kv_event_restarts_total{endpoint="default/engine-0",rank="0"}"#;
            until("the restart is noticed and caught up with", async || {
                let noticed = fleet.picker.metric(restarts).await >= 1.0;
                let endpoint = fleet.picker.endpoint("engine-0").await;
                (noticed && endpoint["feeds"][0]["state"] == "live").then_some(())
            })
            .await;
            traffic.stop().await;

            // One client at a time: a sibling in flight would be foreseen as cached, and might be overtaken.
            let prompts: Vec<_> = (0..60).map(|topic| ids(topic, 200)).collect();
            let traffic = Traffic::start(to, 1, &prompts);
            let picks = r#"warmpath_picks_total{endpoint="default/engine-0"}"#;
            let before = fleet.picker.metric(picks).await;
            fleet.picker.metric_reaches(picks, before + 20.0).await;
            let asked = traffic.stop().await;
            assert_all_served(&asked);
            fleet.events_arrived().await;
            assert_no_phantoms(&decisions(fleet, &asked).await);
        })
        .await;
}

#[tokio::test]
async fn an_engine_restarted_while_idle_is_cold_to_the_next_request() {
    let setup = Setup::engines(2);
    setup
        .run(async |fleet| {
            let body = completion(ids(1, 300));
            let first = fleet.ask(COMPLETIONS, &body).await;
            fleet.events_arrived().await;
            let owner = fleet
                .engines
                .iter_mut()
                .find(|engine| first.endpoint().ends_with(&engine.name))
                .unwrap();
            owner.kill().await;
            owner.restart().await;
            // Nothing is held of it and nothing is cached there.
            fleet.events_arrived().await;
            let second = fleet.ask(COMPLETIONS, &body).await;
            assert_eq!(second.answer.status, 200);
            assert_eq!((second.predicted(), second.reported()), (0, Some(0)));
        })
        .await;
}

#[tokio::test]
async fn a_new_picker_gets_the_whole_state_back_by_replay() {
    let setup = Setup::engines(2);
    setup
        .run(async |fleet| {
            let bodies: Vec<_> = (1..9).map(|topic| completion(ids(topic, 300))).collect();
            let mut owners = Vec::new();
            for body in &bodies {
                owners.push(fleet.ask(COMPLETIONS, body).await.endpoint().to_owned());
            }
            fleet.events_arrived().await;
            fleet.replace_picker().await;
            fleet.settled().await;
            fleet.events_arrived().await;
            for (body, owner) in bodies.iter().zip(&owners) {
                let warm = fleet.ask(COMPLETIONS, body).await;
                assert_eq!(warm.answer.status, 200, "{:?}", warm.answer.body);
                assert_eq!(warm.endpoint(), owner);
                assert_eq!((warm.predicted(), warm.reported()), (288, Some(288)));
            }
        })
        .await;
}

#[tokio::test]
async fn a_picker_told_to_leave_lets_streams_in_flight_pass_to_their_end() {
    let setup = Setup::engines(1).engine_options(&["--decode-ms-per-step", "5"]);
    setup
        .run(async |fleet| {
            let stream = json!({ "stream": true, "max_tokens": 100, "ignore_eos": true });
            let body = with(completion(ids(1, 300)), stream);
            let to = fleet.envoy.picked();
            let mut events = http::stream_json(to, COMPLETIONS, &body).await;
            events.next().await.expect("an event");
            let ((), read) = tokio::join!(fleet.picker.stop(), async {
                let mut read = 1;
                while events.next().await.is_some() {
                    read += 1;
                }
                read
            });
            // One event a token, and the mark of the end.
            assert_eq!(read, 101);
            fleet.start_picker().await;
            fleet.settled().await;
        })
        .await;
}

#[tokio::test]
async fn events_that_were_lost_on_the_way_are_fetched_again() {
    let setup = Setup::engines(1);
    setup
        .run(async |fleet| {
            fleet.ask(COMPLETIONS, &completion(ids(1, 300))).await;
            fleet.events_arrived().await;
            fleet.engines[0].running().set_fault(Fault::DropEvents(2));
            for topic in 2..5 {
                fleet.ask(COMPLETIONS, &completion(ids(topic, 300))).await;
            }
            fleet.events_arrived().await;
            let gaps = r#"warmpath_kv_event_gaps_total{endpoint="default/engine-0",rank="0"}"#;
            assert!(fleet.picker.metric(gaps).await >= 1.0);
            for topic in 1..5 {
                let warm = fleet.ask(COMPLETIONS, &completion(ids(topic, 300))).await;
                assert_eq!((warm.predicted(), warm.reported()), (288, Some(288)));
            }
        })
        .await;
}

#[tokio::test]
async fn while_there_is_no_picker_requests_are_refused_and_none_hangs() {
    let setup = Setup::engines(1).engine_options(&["--decode-ms-per-step", "5"]);
    setup
        .run(async |fleet| {
            let to = fleet.envoy.picked();
            let endless = json!({ "stream": true, "max_tokens": 20_000, "ignore_eos": true });
            let body = with(completion(ids(1, 300)), endless);
            let client = reqwest::Client::new();
            let request = client.post(format!("http://{to}{COMPLETIONS}")).json(&body);
            let mut answer = request.send().await.unwrap();
            assert!(answer.chunk().await.unwrap().is_some());
            fleet.picker.kill().await;
            // The stream in flight ends, one way or the other; its engine is free again.
            while let Ok(Some(_)) = answer.chunk().await {}
            let engine = &fleet.engines[0];
            engine.metric_is("vllm:num_requests_running", 0.0).await;
            for _ in 0..3 {
                let answer = http::post_json(to, COMPLETIONS, &completion(ids(1, 300))).await;
                assert_eq!(answer.status, 503);
            }
            fleet.start_picker().await;
            fleet.settled().await;
            let exchange = fleet.ask(COMPLETIONS, &completion(ids(1, 300))).await;
            assert_eq!(exchange.answer.status, 200);
        })
        .await;
}

#[tokio::test]
async fn an_engine_that_starts_after_the_picker_is_found_and_soon_as_good_as_any() {
    let setup = Setup::engines(2);
    setup
        .run(async |fleet| {
            fleet.engines[0].kill().await;
            fleet.replace_picker().await;
            // Envoy has to notice the new picker.
            until("requests are served", async || {
                let body = completion(ids(1, 300));
                let answer = http::post_json(fleet.envoy.picked(), COMPLETIONS, &body).await;
                (answer.status == 200).then_some(())
            })
            .await;
            fleet.engines[0].restart().await;
            fleet.settled().await;
            let mut served = BTreeSet::new();
            for topic in 2..20 {
                let body = completion(ids(topic, 300));
                let cold = fleet.ask(COMPLETIONS, &body).await;
                fleet.events_arrived().await;
                let warm = fleet.ask(COMPLETIONS, &body).await;
                assert_eq!(warm.endpoint(), cold.endpoint());
                assert_eq!((warm.predicted(), warm.reported()), (288, Some(288)));
                served.insert(warm.endpoint().to_owned());
            }
            assert_eq!(served.len(), 2);
        })
        .await;
}
