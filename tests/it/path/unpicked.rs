//! Requests that reach engines past the picker are noticed, and those that it sent are not taken for such.

use serde_json::json;

use super::{COMPLETIONS, completion, ids, with};
use crate::support::fleet::{Fleet, Setup};
use crate::support::http;
use crate::support::waiting::until;

fn finished(name: &str) -> String {
    format!("warmpath_engine_finished_requests_total{{endpoint=\"default/{name}\"}}")
}

fn unpicked(name: &str) -> String {
    format!("warmpath_unpicked_requests_total{{endpoint=\"default/{name}\"}}")
}

#[tokio::test]
async fn an_engines_requests_are_counted_and_those_past_the_picker_apart() {
    let setup = Setup::engines(2).settings(json!({ "reports": { "idle_interval": "100ms" } }));
    setup
        .run(async |fleet: &mut Fleet| {
            // Ours: five picks that finish as seven requests, since one has three prompts.
            for topic in 1..5 {
                fleet.ask(COMPLETIONS, &completion(ids(topic, 100))).await;
            }
            let three = with(
                completion("x"),
                json!({ "prompt": [ids(5, 50), ids(6, 50), ids(7, 50)] }),
            );
            fleet.ask(COMPLETIONS, &three).await;
            let both = async |name: fn(&str) -> String| {
                let mut sum = 0.0;
                for engine in &fleet.engines {
                    sum += fleet.picker.metric(&name(&engine.name)).await;
                }
                sum
            };
            until("seven requests are finished", async || {
                (both(finished).await == 7.0).then_some(())
            })
            .await;
            assert_eq!(both(unpicked).await, 0.0);

            // Past the picker, again and again: at first these may still be ours for all it knows, then no more.
            let bypass = async || {
                let body = completion(ids(fastrand::u32(100..4_000_000), 100)).to_string();
                let json = [("content-type", "application/json")];
                let answer = http::post(fleet.envoy.round_robin(), COMPLETIONS, &json, body).await;
                assert_eq!(answer.status, 200);
            };
            let mut sent = 0.0;
            until("each engine is seen to serve somebody else", async || {
                bypass().await;
                sent += 1.0;
                let [one, other] = [0, 1].map(|at| unpicked(&fleet.engines[at].name));
                let each = [
                    fleet.picker.metric(&one).await,
                    fleet.picker.metric(&other).await,
                ];
                (each.iter().all(|unpicked| *unpicked > 0.0)).then_some(())
            })
            .await;
            until("all of them are finished", async || {
                (both(finished).await == 7.0 + sent).then_some(())
            })
            .await;
            let before = both(unpicked).await;
            assert!(before <= sent);
            // From then on none is missed.
            for _ in 0..6 {
                bypass().await;
            }
            until("six more", async || {
                (both(unpicked).await == before + 6.0).then_some(())
            })
            .await;
            assert_eq!(both(finished).await, 7.0 + sent + 6.0);
        })
        .await;
}
