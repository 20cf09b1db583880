//! Every way in which a gateway may hand over bodies works, with and without a response phase.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::{COMPLETIONS, completion, ids};
use crate::support::envoy_config::{BodyMode, EnvoyConfig, Obeys};
use crate::support::fleet::{Exchange, Fleet, Setup, request_id};
use crate::support::http;

const MODES: [BodyMode; 5] = [
    BodyMode::None,
    BodyMode::Streamed,
    BodyMode::Buffered,
    BodyMode::BufferedPartial,
    BodyMode::FullDuplexStreamed,
];

/// The picker sees the body before it picks.
fn shows_body(mode: BodyMode) -> bool {
    !matches!(mode, BodyMode::None | BodyMode::Streamed)
}

/// One Envoy of a kind, asked twice for the same prompt.
async fn asked_twice(
    fleet: &Fleet,
    topic: u32,
    change: impl FnOnce(&mut EnvoyConfig),
) -> [Exchange; 2] {
    let envoy = fleet.another_envoy(change).await;
    let body = completion(ids(topic, 300));
    // A client's own idea of where to go counts for nothing.
    let own = [("x-gateway-destination-endpoint", "127.0.0.1:1")];
    let first = fleet.ask_with(&envoy, COMPLETIONS, &own, &body).await;
    fleet.events_arrived().await;
    let second = fleet.ask_with(&envoy, COMPLETIONS, &own, &body).await;
    fleet.events_arrived().await;
    for exchange in [&first, &second] {
        assert_eq!(exchange.answer.status, 200, "{:?}", exchange.answer.body);
        let served: SocketAddr = exchange
            .answer
            .header("x-served-by")
            .unwrap()
            .parse()
            .unwrap();
        assert_eq!(exchange.decision["address"], served.to_string());
        let text = exchange.answer.json()["choices"][0]["text"].clone();
        assert!(text.as_str().is_some_and(|text| !text.is_empty()));
    }
    [first, second]
}

/// What is known of the content and of the answer, by mode.
fn assert_known(mode: BodyMode, response: BodyMode, phase: bool, [first, second]: &[Exchange; 2]) {
    let what = format!("{mode:?}, {response:?}, {phase}: {}", second.decision);
    if shows_body(mode) {
        assert_eq!(second.endpoint(), first.endpoint(), "{what}");
        assert_eq!((first.predicted(), second.predicted()), (0, 288), "{what}");
    } else {
        let by_load = json!({ "load_only": "body_unseen" });
        assert_eq!(second.decision["request"], by_load, "{what}");
    }
    let outcome = &second.decision["outcome"];
    let sees_answer = phase && response != BodyMode::None;
    let ended = if sees_answer { "completed" } else { "unseen" };
    assert_eq!(outcome["ended"], ended, "{what}");
    assert_eq!(outcome["status"] == 200, phase, "{what}");
    assert_eq!(outcome["prompt_tokens"] == 300, sees_answer, "{what}");
    if sees_answer && shows_body(mode) {
        assert_eq!(second.reported(), Some(288), "{what}");
    }
}

#[tokio::test]
async fn every_body_mode_works_with_a_response_phase() {
    let setup = Setup::engines(2);
    setup
        .run(async |fleet| {
            for (topic, mode) in (1..).zip(MODES) {
                let twice = asked_twice(fleet, topic, |envoy| {
                    envoy.request_body = mode;
                    envoy.response_body = mode;
                });
                assert_known(mode, mode, true, &twice.await);
            }
        })
        .await;
}

#[tokio::test]
async fn every_body_mode_works_without_a_response_phase() {
    let setup = Setup::engines(2);
    setup
        .run(async |fleet| {
            for (topic, mode) in (1..).zip(MODES) {
                let twice = asked_twice(fleet, topic, |envoy| {
                    envoy.request_body = mode;
                    envoy.response_phase = false;
                });
                assert_known(mode, BodyMode::None, false, &twice.await);
            }
        })
        .await;
}

#[tokio::test]
async fn every_body_mode_works_where_the_header_alone_is_obeyed() {
    let setup = Setup::engines(2);
    setup
        .run(async |fleet| {
            for (topic, mode) in (1..).zip(MODES) {
                let twice = asked_twice(fleet, topic, |envoy| {
                    envoy.request_body = mode;
                    envoy.response_body = mode;
                    envoy.obeys = Obeys::Header;
                });
                assert_known(mode, mode, true, &twice.await);
            }
        })
        .await;
}

#[tokio::test]
async fn a_picker_without_tls_serves_as_well_and_modes_may_differ_by_direction() {
    let setup = Setup::engines(2).insecure();
    setup
        .run(async |fleet| {
            let pairs = [
                (BodyMode::FullDuplexStreamed, BodyMode::FullDuplexStreamed),
                (BodyMode::FullDuplexStreamed, BodyMode::Streamed),
                (BodyMode::FullDuplexStreamed, BodyMode::None),
                (BodyMode::Buffered, BodyMode::FullDuplexStreamed),
            ];
            for (topic, (request, response)) in (1..).zip(pairs) {
                let twice = asked_twice(fleet, topic, |envoy| {
                    envoy.request_body = request;
                    envoy.response_body = response;
                });
                assert_known(request, response, true, &twice.await);
            }
        })
        .await;
}

#[tokio::test]
async fn megabytes_pass_in_every_body_mode_and_a_cut_off_body_is_routed_on_load() {
    let setup = Setup::echoes(1);
    setup
        .run(async |fleet| {
            let body: Value = completion("word ".repeat(600_000));
            let body = body.to_string();
            for mode in MODES {
                let envoy = fleet
                    .another_envoy(|envoy| {
                        envoy.request_body = mode;
                        envoy.response_body = mode;
                        // Envoy holds whole bodies in this mode, and 1 MiB in the partial one.
                        if mode == BodyMode::Buffered {
                            envoy.buffer_limit_bytes = Some(40 << 20);
                        }
                    })
                    .await;
                let id = request_id();
                let headers = [("content-type", "application/json"), ("x-request-id", &id)];
                let answer = http::post(envoy.picked(), COMPLETIONS, &headers, body.clone()).await;
                assert_eq!(answer.status, 200, "{mode:?}");
                assert!(answer.body == body, "{mode:?} changed the body");
                let decision = fleet.picker.ended(&id).await;
                let why = match mode {
                    BodyMode::None | BodyMode::Streamed => json!("body_unseen"),
                    BodyMode::BufferedPartial => json!("body_partial"),
                    BodyMode::Buffered | BodyMode::FullDuplexStreamed => Value::Null,
                };
                assert_eq!(decision["request"]["load_only"], why, "{mode:?}");
            }
        })
        .await;
}
