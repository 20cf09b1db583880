//! Engines that refuse, stop, or break off, and requests that last or are twins: what is booked stays true.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{COMPLETIONS, completion, ids, with};
use crate::support::fleet::{Fleet, Setup, request_id};
use crate::support::http;
use crate::support::ports;
use crate::support::waiting::until;

/// What an engine's double does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Answers,
    Refuses,
    /// Its health and headers are fine, and nothing is ever computed.
    Stuck,
    /// It begins a stream and ends it with an error.
    BreaksOff,
}

/// A double that tells nothing of itself: no report, no models, no events.
struct Double {
    mood: watch::Sender<Mood>,
    address: SocketAddr,
    _server: JoinSet<()>,
}

const NAME: &str = "double";
const STREAM: [(&str, &str); 1] = [("content-type", "text/event-stream")];

impl Double {
    async fn start(mood: Mood) -> Self {
        let (listener, address) = ports::listener().await;
        let (sender, moods) = watch::channel(mood);
        let routes = Router::new().fallback(move |method: Method| answer(method, moods.clone()));
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, routes).await.expect("it serves") });
        Self {
            mood: sender,
            address,
            _server: server,
        }
    }

    fn beside(&self, setup: Setup) -> Setup {
        setup.and_double(NAME, self.address)
    }
}

async fn answer(method: Method, mut moods: watch::Receiver<Mood>) -> Response {
    if method != Method::POST {
        return StatusCode::NOT_FOUND.into_response();
    }
    let mood = *moods.borrow();
    match mood {
        Mood::Answers => axum::Json(json!({ "choices": [] })).into_response(),
        Mood::Refuses => (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "2")]).into_response(),
        Mood::BreaksOff => {
            let error = "data: {\"error\": {\"message\": \"no room\", \"code\": 503}}\n\n";
            (STREAM, error).into_response()
        }
        Mood::Stuck => {
            let waits = async move {
                moods.wait_for(|mood| *mood != Mood::Stuck).await.ok();
                Ok::<_, Infallible>("data: {\"choices\": []}\n\n")
            };
            // Comments come all the while, as from an engine that keeps its connections alive.
            let alive = futures_util::stream::iter([Ok(": still here\n\n")]);
            let body = futures_util::StreamExt::chain(alive, futures_util::stream::once(waits));
            (STREAM, Body::from_stream(body)).into_response()
        }
    }
}

/// A small request that nobody has cached.
fn small() -> Value {
    completion(ids(fastrand::u32(100..4_000_000), 20))
}

async fn excluded(fleet: &Fleet, guard: Option<&str>) {
    until(&format!("the double is excluded: {guard:?}"), async || {
        (fleet.picker.endpoint(NAME).await["excluded"] == json!(guard)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_engine_that_answers_503_is_left_alone_for_as_long_as_it_says() {
    let double = Double::start(Mood::Refuses).await;
    let setup = double.beside(Setup::engines(1));
    setup
        .run(async |fleet| {
            let mut refused = 0;
            until("the double was picked", async || {
                let exchange = fleet.ask(COMPLETIONS, &small()).await;
                refused += u32::from(exchange.answer.status == 503);
                (refused > 0).then_some(())
            })
            .await;
            excluded(fleet, Some("refusing")).await;
            for _ in 0..20 {
                let exchange = fleet.ask(COMPLETIONS, &small()).await;
                let seen = exchange.decision["candidates"].as_array().unwrap();
                if seen.iter().any(|seen| seen["excluded"] == "refusing") {
                    assert_eq!(exchange.answer.status, 200, "{}", exchange.decision);
                }
            }
            double.mood.send_replace(Mood::Answers);
            excluded(fleet, None).await;
            until("the double answers", async || {
                let exchange = fleet.ask(COMPLETIONS, &small()).await;
                assert_eq!(exchange.answer.status, 200);
                exchange.endpoint().ends_with(NAME).then_some(())
            })
            .await;
        })
        .await;
}

#[tokio::test]
async fn an_engine_that_has_stopped_is_stepped_around_until_a_probe_is_answered() {
    let double = Double::start(Mood::Stuck).await;
    let setup = double.beside(Setup::engines(1));
    setup
        .run(async |fleet| {
            let mut held = Vec::new();
            until("a client waits for the double", async || {
                let to = fleet.envoy.picked();
                // Another prompt each time: the other engine would keep one that it has.
                let streamed = with(small(), json!({ "stream": true }));
                held.push(http::stream_json(to, COMPLETIONS, &streamed).await);
                let double = fleet.picker.endpoint(NAME).await;
                (double["in_flight"] == 1).then_some(())
            })
            .await;
            excluded(fleet, Some("stalled")).await;
            // Its only client gives up: nobody is less busy, and nobody is sent there.
            held.clear();
            fleet.picker.nothing_is_booked().await;
            let exchange = fleet.ask(COMPLETIONS, &small()).await;
            assert_eq!(exchange.answer.status, 200);
            assert!(!exchange.endpoint().ends_with(NAME));
            assert_eq!(fleet.picker.endpoint(NAME).await["excluded"], "stalled");

            double.mood.send_replace(Mood::Answers);
            until("a probe is answered", async || {
                let exchange = fleet.ask(COMPLETIONS, &small()).await;
                assert_eq!(exchange.answer.status, 200);
                exchange.endpoint().ends_with(NAME).then_some(())
            })
            .await;
            excluded(fleet, None).await;
        })
        .await;
}

#[tokio::test]
async fn an_error_within_a_stream_is_no_prefill_and_leaves_nothing_booked() {
    let double = Double::start(Mood::BreaksOff).await;
    let setup = double.beside(Setup::engines(0));
    setup
        .run(async |fleet| {
            let body = with(completion(ids(1, 200)), json!({ "stream": true }));
            for _ in 0..3 {
                let exchange = fleet.ask(COMPLETIONS, &body).await;
                assert_eq!(exchange.answer.status, 200);
                let outcome = &exchange.decision["outcome"];
                assert!(outcome["first_data_ms"].is_null(), "{outcome}");
                assert_eq!(exchange.predicted(), 0, "it was never computed");
            }
            assert_eq!(fleet.picker.endpoint(NAME).await["excluded"], Value::Null);
        })
        .await;
}

#[tokio::test]
async fn requests_of_one_id_at_the_same_time_are_each_booked_and_ended() {
    let setup = Setup::engines(1).engine_options(&["--decode-ms-per-step", "20"]);
    setup
        .run(async |fleet| {
            let id = request_id();
            let endless = json!({ "stream": true, "max_tokens": 20_000, "ignore_eos": true });
            let headers = [("x-request-id", id.as_str())];
            let to = fleet.envoy.picked();
            let mut twins = Vec::new();
            for topic in [1, 1, 2] {
                let body = with(completion(ids(topic, 500)), endless.clone());
                let mut events = http::stream_json_with(to, COMPLETIONS, &headers, &body).await;
                events.next().await.expect("an event");
                twins.push(events);
            }
            for left in [3, 2, 1, 0] {
                let in_flight = format!("{left} are in flight, and prefilled");
                fleet
                    .picker
                    .sees(&in_flight, |endpoints| {
                        endpoints[0]["in_flight"] == left && endpoints[0]["queued_tokens"] == 0
                    })
                    .await;
                twins.pop();
            }
        })
        .await;
}

#[test]
fn the_shipped_gateways_cut_no_answer_however_long_it_takes() {
    for file in [
        include_str!("../../../deploy/static/envoy.yaml"),
        include_str!("../../../charts/warmpath/files/envoy.yaml"),
    ] {
        let managers = file.split("v3.HttpConnectionManager").skip(1);
        let serving = managers.filter(|manager| manager.contains("cluster: engines"));
        assert!(
            serving.clone().count() > 0,
            "a listener leads to the engines"
        );
        for manager in serving {
            let limits = |field: &str| manager.matches(field).count();
            assert_eq!(limits("stream_idle_timeout: 0s"), 1);
            // A route's own limit is 15 s where none is given.
            let routes = limits("cluster: engines");
            assert_eq!(limits(" timeout: 0s"), routes);
        }
        // A connection's age is no limit: it is only drained, and what is in flight on it goes on.
        for limit in ["max_stream_duration", "request_timeout", "per_try"] {
            assert!(!file.contains(limit), "{limit}");
        }
    }
    let values = include_str!("../../../charts/warmpath/values.yaml");
    assert!(values.contains("requestTimeout: 0s"));
}
