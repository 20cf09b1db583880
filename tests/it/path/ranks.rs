//! Several data-parallel ranks behind one server: a request goes to the rank that has its prefix, and to no other.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{COMPLETIONS, completion, ids};
use crate::support::fleet::echo::HEAD;
use crate::support::fleet::traffic::{Traffic, assert_all_served};
use crate::support::fleet::{Exchange, Fleet, Setup};

/// The header by which a simulated engine says which rank served.
const SERVED_RANK: &str = "x-warmpath-engine-rank";

/// Asks, and checks that the rank picked is the rank that served and that its cached tokens were foreseen.
async fn ask(fleet: &Fleet, body: &Value) -> Exchange {
    let exchange = fleet.ask(COMPLETIONS, body).await;
    let decision = &exchange.decision;
    assert_eq!(exchange.answer.status, 200, "{:?}", exchange.answer.body);
    let rank = decision["rank"].as_u64().expect("a rank").to_string();
    let served = exchange.answer.header(SERVED_RANK);
    assert_eq!(served, Some(rank.as_str()), "{decision}");
    assert!(exchange.endpoint().ends_with(&format!("@{rank}")));
    let at = exchange.answer.header("x-served-by");
    assert_eq!(at, decision["address"].as_str());
    let foreseen = Some(exchange.predicted());
    assert_eq!(foreseen, exchange.reported(), "{decision}");
    exchange
}

#[tokio::test]
async fn prompt_families_stay_with_the_rank_that_has_them() {
    let setup = Setup::engines(2).engine_options(&["--data-parallel-size", "2"]);
    setup
        .run(async |fleet| {
            let mut owners = BTreeMap::new();
            for topic in 1..9 {
                let cold = ask(fleet, &completion(ids(topic, 300))).await;
                assert_eq!(cold.predicted(), 0);
                fleet.events_arrived().await;
                owners.insert(topic, cold.endpoint().to_owned());
            }
            for _ in 0..2 {
                for (topic, owner) in &owners {
                    let mut prompt = ids(*topic, 300);
                    prompt.extend(ids(100 + topic, 20));
                    let warm = ask(fleet, &completion(prompt)).await;
                    assert_eq!(warm.endpoint(), owner);
                    assert!(warm.predicted() >= 288, "{}", warm.decision);
                    fleet.events_arrived().await;
                }
            }
            let used: BTreeSet<_> = owners.values().collect();
            assert!(used.len() > 1, "cold prompts spread: {owners:?}");
            let equal = r#"warmpath_predictions_total{result="equal"}"#;
            fleet.picker.metric_is(equal, 24.0).await;
        })
        .await;
}

#[tokio::test]
async fn requests_at_once_are_booked_and_computed_by_rank() {
    let setup = Setup::engines(1).engine_options(&["--data-parallel-size", "3"]);
    setup
        .run(async |fleet| {
            let prompts: Vec<_> = (1..7).map(|topic| ids(topic, 200)).collect();
            let traffic = Traffic::start(fleet.envoy.picked(), 6, &prompts);
            for rank in 0..3 {
                let picks =
                    format!(r#"warmpath_picks_total{{endpoint="default/engine-0@{rank}"}}"#);
                fleet.picker.metric_reaches(&picks, 10.0).await;
            }
            let asked = traffic.stop().await;
            assert_all_served(&asked);
        })
        .await;
}

#[tokio::test]
async fn a_clients_own_rank_is_overwritten_where_the_picker_chooses_and_left_alone_elsewhere() {
    let setup = Setup::engines(1).engine_options(&["--data-parallel-size", "2"]);
    setup
        .run(async |fleet| {
            let body = completion(ids(1, 300));
            let first = ask(fleet, &body).await;
            fleet.events_arrived().await;
            let other = 1 - first.decision["rank"].as_u64().unwrap();
            let own = [("x-data-parallel-rank", other.to_string())];
            let own = own.each_ref().map(|(name, value)| (*name, value.as_str()));
            let pinned = fleet.ask_with(&fleet.envoy, COMPLETIONS, &own, &body).await;
            assert_eq!(pinned.endpoint(), first.endpoint());
            assert_eq!((pinned.predicted(), pinned.reported()), (288, Some(288)));
        })
        .await;
    let setup = Setup::echoes(1);
    setup
        .run(async |fleet| {
            let own = [("x-data-parallel-rank", "7")];
            let envoy = &fleet.envoy;
            let exchange = fleet
                .ask_with(envoy, COMPLETIONS, &own, &completion(ids(1, 300)))
                .await;
            let head = exchange.answer.header(HEAD).expect("what arrived");
            assert!(head.contains(r#""x-data-parallel-rank":"7""#), "{head}");
        })
        .await;
}

#[tokio::test]
async fn an_engine_that_comes_back_with_its_ranks_is_cold_on_each() {
    let setup = Setup::engines(1).engine_options(&["--data-parallel-size", "2"]);
    setup
        .run(async |fleet| {
            for topic in 1..5 {
                ask(fleet, &completion(ids(topic, 300))).await;
                fleet.events_arrived().await;
            }
            fleet.engines[0].kill().await;
            fleet.engines[0].restart().await;
            fleet.settled().await;
            fleet.events_arrived().await;
            for topic in 1..5 {
                let body = completion(ids(topic, 300));
                assert_eq!(ask(fleet, &body).await.predicted(), 0);
                fleet.events_arrived().await;
                assert_eq!(ask(fleet, &body).await.predicted(), 288);
                fleet.events_arrived().await;
            }
        })
        .await;
}
