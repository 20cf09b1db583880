//! The endpoints file changes under load: who joins gets traffic, who leaves gets none, and nobody notices.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::{COMPLETIONS, completion, ids};
use crate::support::fleet::traffic::{Asked, Traffic, assert_all_served};
use crate::support::fleet::{Fleet, Setup, endpoints_text};
use crate::support::http;
use crate::support::picker::feed_is;

/// Requests by their id and where they were sent.
async fn sent(fleet: &Fleet, asked: &[Asked]) -> BTreeSet<String> {
    let wanted: BTreeSet<_> = asked
        .iter()
        .map(|asked| asked.request_id.as_str())
        .collect();
    let decisions = fleet.picker.decisions().await;
    let ours = decisions.iter().filter(|decision| {
        decision["request_id"]
            .as_str()
            .is_some_and(|id| wanted.contains(id))
    });
    ours.map(|decision| decision["endpoint"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn endpoints_join_and_leave_under_load_without_a_failed_request() {
    let setup = Setup::engines(2).and_unlisted(1);
    setup
        .run(async |fleet| {
            let prompts: Vec<_> = (0..200).map(|topic| ids(topic, 100)).collect();
            let to = fleet.envoy.picked();
            let all = fleet.endpoints();
            let traffic = Traffic::start(to, 3, &prompts);

            fleet.files.write_endpoints(&endpoints_text(&all));
            fleet.picker.feed_is("engine-2", "live").await;
            let picks = r#"warmpath_picks_total{endpoint="default/engine-2"}"#;
            fleet.picker.metric_reaches(picks, 5.0).await;

            // A broken version changes nothing, and is told.
            fleet.files.write_endpoints("endpoints: [{name: engine-9}]");
            let refused = r#"warmpath_endpoints_file_loads_total{outcome="refused"}"#;
            fleet.picker.metric_is(refused, 1.0).await;
            assert_eq!(fleet.picker.endpoints().await.len(), 3);
            let told = fleet.picker.page("/readyz").await;
            assert!(told.contains("endpoints file"), "{told}");

            fleet.files.write_endpoints(&endpoints_text(&all[1..]));
            fleet
                .picker
                .sees("the first endpoint has left", |endpoints| {
                    endpoints.len() == 2
                })
                .await;
            assert_all_served(&traffic.stop().await);

            let traffic = Traffic::start(to, 3, &prompts);
            for left in ["engine-1", "engine-2"] {
                let picks = format!(r#"warmpath_picks_total{{endpoint="default/{left}"}}"#);
                let before = fleet.picker.metric(&picks).await;
                fleet.picker.metric_reaches(&picks, before + 20.0).await;
            }
            let asked = traffic.stop().await;
            assert_all_served(&asked);
            let left = ["default/engine-1", "default/engine-2"].map(str::to_owned);
            assert_eq!(sent(fleet, &asked).await, BTreeSet::from(left));
            let told = fleet.picker.page("/readyz").await;
            assert!(!told.contains("endpoints file"), "{told}");
        })
        .await;
}

#[tokio::test]
async fn endpoints_that_change_names_are_as_warm_as_before_and_an_empty_pool_fills_again() {
    let setup = Setup::engines(2);
    setup
        .run(async |fleet| {
            let body = completion(ids(1, 300));
            let first = fleet.ask(COMPLETIONS, &body).await;
            fleet.events_arrived().await;
            let [(a, at_a), (b, at_b)] = fleet.endpoints().try_into().unwrap();
            let owner = first.decision["address"].clone();

            // Each has the address that the other had.
            let swapped = [(b.clone(), at_a), (a.clone(), at_b)];
            let warm_again = async |fleet: &Fleet, endpoints: &[(String, SocketAddr)]| {
                fleet.files.write_endpoints(&endpoints_text(endpoints));
                let names: Vec<_> = endpoints
                    .iter()
                    .map(|(name, at)| (format!("default/{name}"), at.to_string()))
                    .collect();
                let what = format!("{names:?} are known again");
                fleet
                    .picker
                    .sees(&what, |seen| {
                        seen.len() == names.len()
                            && names.iter().all(|(name, at)| {
                                seen.iter().any(|seen| {
                                    seen["name"] == *name
                                        && seen["address"] == *at
                                        && feed_is(seen, "live")
                                        && seen["engine"]["models"].is_array()
                                })
                            })
                    })
                    .await;
                let warm = fleet.ask(COMPLETIONS, &body).await;
                assert_eq!(warm.decision["address"], owner);
                assert_eq!((warm.predicted(), warm.reported()), (288, Some(288)));
            };
            warm_again(fleet, &swapped).await;

            fleet.files.write_endpoints(&endpoints_text(&[]));
            fleet.picker.sees("nobody is left", <[_]>::is_empty).await;
            let refused = http::post_json(fleet.envoy.picked(), COMPLETIONS, &body).await;
            assert_eq!(refused.status, 503);
            warm_again(fleet, &[("new".to_owned(), at_a), (b, at_b)]).await;
        })
        .await;
}
