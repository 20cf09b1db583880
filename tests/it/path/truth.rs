//! The engines' own figures correct what the picker believes: late starts, silent publishers, pools too small.

use serde_json::json;

use super::{COMPLETIONS, completion, ids};
use crate::support::fleet::{Exchange, Fleet, Setup};
use warmpath::engine::Fault;

/// Asks for a prompt; the decision and its outcome.
async fn ask(fleet: &Fleet, topic: u32) -> Exchange {
    let exchange = fleet.ask(COMPLETIONS, &completion(ids(topic, 300))).await;
    assert_eq!(exchange.answer.status, 200, "{:?}", exchange.answer.body);
    exchange
}

/// A ring of four batches holds a small part of what eight prompts of a warm fleet have stored.
#[tokio::test]
async fn a_picker_that_comes_late_is_right_again_after_one_request_a_prefix() {
    let setup = Setup::engines(1).engine_options(&["--kv-buffer-steps", "4"]);
    setup
        .run(async |fleet| {
            for topic in 1..9 {
                ask(fleet, topic).await;
            }
            fleet.events_arrived().await;
            fleet.picker.kill().await;
            fleet.start_picker().await;
            fleet.picker.feed_is("engine-0", "incomplete").await;
            fleet
                .envoy
                .stat_reaches("cluster.picker.membership_healthy", 1)
                .await;
            let mut unforeseen = 0;
            for topic in 1..9 {
                let first = ask(fleet, topic).await;
                assert_eq!(first.reported(), Some(288), "{}", first.decision);
                unforeseen += u32::from(first.predicted() < 288);
                let again = ask(fleet, topic).await;
                let figures = (again.predicted(), again.reported());
                assert_eq!(figures, (288, Some(288)), "{}", again.decision);
                assert_eq!(again.decision["outcome"]["prediction"], "equal");
            }
            assert!(unforeseen >= 4, "the replay gave back nearly everything");
            let endpoint = fleet.picker.endpoint("engine-0").await;
            assert!(endpoint["credited_blocks"].as_u64() > Some(0), "{endpoint}");
            // It said itself that it did not know all.
            assert_eq!(endpoint["doubt"], json!(null));
        })
        .await;
}

/// Orphans show what stands before them while the request that brings them is still in flight.
#[tokio::test]
async fn a_late_picker_learns_of_a_long_prefix_from_the_first_request_that_continues_it() {
    let setup = Setup::engines(1).engine_options(&["--kv-buffer-steps", "1"]);
    setup
        .run(async |fleet| {
            let prefix = ids(1, 320);
            fleet.ask(COMPLETIONS, &completion(prefix.clone())).await;
            for topic in 2..5 {
                ask(fleet, topic).await;
            }
            fleet.events_arrived().await;
            fleet.picker.kill().await;
            fleet.start_picker().await;
            fleet.picker.feed_is("engine-0", "incomplete").await;
            fleet
                .envoy
                .stat_reaches("cluster.picker.membership_healthy", 1)
                .await;
            let prompt = [prefix, ids(50, 100)].concat();
            let first = fleet.ask(COMPLETIONS, &completion(prompt.clone())).await;
            assert_eq!(first.reported(), Some(320), "{}", first.decision);
            let longer = [prompt, ids(60, 40)].concat();
            let second = fleet.ask(COMPLETIONS, &completion(longer)).await;
            assert_eq!(
                Some(second.predicted()),
                second.reported(),
                "{}",
                second.decision
            );
            assert!(second.predicted() >= 416, "{}", second.decision);
            fleet
                .picker
                .sees("no orphan waits", |endpoints| {
                    endpoints
                        .iter()
                        .all(|endpoint| endpoint["orphan_blocks"] == 0)
                })
                .await;
        })
        .await;
}

#[tokio::test]
async fn a_publisher_that_is_silent_behind_a_live_socket_does_not_starve_its_engine() {
    let setup = Setup::engines(2).settings(json!({ "decisions": 2_000 }));
    setup
        .run(async |fleet| {
            fleet.engines[0].running().set_fault(Fault::SilentPublisher);
            fleet.picker.feed_is("engine-0", "live").await;
            // Cold prompts go to either; nothing that the first one computes is announced.
            let doubted = r#"warmpath_endpoint_doubted{endpoint="default/engine-0"}"#;
            let mut topic = 1;
            while fleet.picker.metric(doubted).await < 1.0 {
                assert!(topic < 90, "nobody noticed in {topic} requests");
                ask(fleet, topic).await;
                topic += 1;
                // An event may be late by a second before it counts as missing.
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
            let endpoint = fleet.picker.endpoint("engine-0").await;
            assert!(endpoint["doubt"].as_str().unwrap().contains("in no event"));
            assert_eq!(
                (&endpoint["approximate"], &endpoint["feeds"][0]["state"]),
                (&json!(true), &json!("live"))
            );
            assert_eq!(
                fleet.picker.endpoint("engine-1").await["doubt"],
                json!(null)
            );
            let doubts = r#"warmpath_endpoint_doubts_total{endpoint="default/engine-0"}"#;
            assert_eq!(fleet.picker.metric(doubts).await, 1.0);

            // What it computes from here on is known, so its traffic returns to it.
            let mut returned = 0;
            for topic in 100..116 {
                let cold = ask(fleet, topic).await;
                fleet.picker.nothing_is_booked().await;
                if cold.endpoint().ends_with("engine-1") {
                    continue;
                }
                let warm = ask(fleet, topic).await;
                assert_eq!(warm.endpoint(), cold.endpoint());
                assert_eq!((warm.predicted(), warm.reported()), (288, Some(288)));
                returned += 1;
            }
            assert!(returned > 0, "the silent engine was not picked at all");

            // It speaks again. What events tell is right from now on, and after a while it is believed.
            fleet.engines[0].running().clear_faults();
            let mut topic = 200;
            while fleet.picker.metric(doubted).await > 0.0 {
                assert!(topic < 300, "it was never believed again");
                let cold = ask(fleet, topic).await;
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                if cold.endpoint().ends_with("engine-0") {
                    for _ in 0..3 {
                        ask(fleet, topic).await;
                    }
                }
                topic += 1;
            }
            assert_eq!(
                fleet.picker.endpoint("engine-0").await["approximate"],
                false
            );
        })
        .await;
}

#[tokio::test]
async fn an_endpoint_without_events_whose_pool_is_too_small_says_so() {
    let options = [
        "--kv-events",
        "none",
        "--kv-blocks",
        "64",
        "--max-model-len",
        "900",
    ];
    let setup = Setup::engines(1).engine_options(&options);
    setup
        .run(async |fleet| {
            // 18 blocks each, 12 in turn: three and a half fit.
            for _ in 0..30 {
                for topic in 1..13 {
                    ask(fleet, topic).await;
                }
            }
            let endpoint = fleet.picker.endpoint("engine-0").await;
            assert_eq!(endpoint["approximate_overflow"], true, "{endpoint}");
            let log = std::fs::read_to_string(fleet.files.log()).unwrap();
            assert_eq!(
                log.matches("does not fit the endpoint's KV pool").count(),
                1
            );
        })
        .await;
}
