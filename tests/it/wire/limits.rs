//! Refusals: whose fault it is, in which words, and that what was held is given back.

use std::time::Duration;

use warmpath::extproc::pick::Rejection;
use warmpath::extproc::proto::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use warmpath::extproc::proto::envoy::service::ext_proc::v3::ImmediateResponse;
use warmpath::extproc::server::{Security, Settings};

use super::gateway::*;
use super::{Behaviour, Event, Harness, Seen, settings};

async fn harness(behaviour: Behaviour, settings: Settings) -> Harness {
    Harness::with(behaviour, settings, Security::Plain).await
}

/// Status, reason header and code of the error, after checking the rest of its form.
fn read(refusal: &ImmediateResponse) -> (i32, String, String) {
    let headers = &refusal.headers.as_ref().unwrap().set_headers;
    let header = |name: &str| {
        let header = headers
            .iter()
            .filter_map(|option| option.header.as_ref())
            .find(|header| header.key == name)
            .unwrap();
        String::from_utf8(header.raw_value.to_vec()).unwrap()
    };
    assert_eq!(header("content-type"), "application/json");
    let body: serde_json::Value = serde_json::from_slice(&refusal.body).unwrap();
    let error = &body["error"];
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
    );
    assert!(error["type"].is_string());
    (
        refusal.status.unwrap().code,
        header("x-warmpath-rejected"),
        error["code"].as_str().unwrap().to_owned(),
    )
}

#[tokio::test]
async fn rejections_of_the_pick_become_answers_in_openais_form() {
    for (rejection, status, reason) in [
        (
            Rejection::Malformed("no \"prompt\"".to_owned()),
            400,
            "malformed",
        ),
        (
            Rejection::Unavailable("none ready".to_owned()),
            503,
            "unavailable",
        ),
        (
            Rejection::Overloaded("too much".to_owned()),
            429,
            "overloaded",
        ),
        (Rejection::TooLarge(7), 413, "too_large"),
    ] {
        let harness = harness(Behaviour::Refuse(rejection), settings()).await;
        let channel = connect(harness.address).await;
        let mut exchange = Exchange::open(&channel).await;
        exchange.send(post()).await;
        exchange.send(request_body("{}", true)).await;
        let (code, header, _) = read(&exchange.refused().await);
        assert_eq!((code, header.as_str()), (status, reason));
        assert_eq!(exchange.next().await, None);
        harness
            .await_metric("warmpath_rejections_total", Some(reason), 1.0)
            .await;
        harness
            .await_metric("warmpath_streams_total", Some("rejected"), 1.0)
            .await;
    }
}

#[tokio::test]
async fn exchanges_over_the_limit_are_refused_and_places_come_free() {
    let limits = Settings {
        max_exchanges: 1,
        ..settings()
    };
    let harness = harness(Behaviour::Choose, limits).await;
    let channel = connect(harness.address).await;
    let mut first = Exchange::open(&channel).await;
    first.send(get()).await;
    first.request_headers().await;
    let mut second = Exchange::open(&channel).await;
    second.send(get()).await;
    assert_eq!(read(&second.refused().await).0, 429);
    drop(second);
    drop(first);
    harness
        .await_metric("warmpath_streams_in_flight", None, 0.0)
        .await;
    let mut third = Exchange::open(&channel).await;
    third.send(get()).await;
    third.request_headers().await;
}

#[tokio::test]
async fn bodies_over_the_memory_limit_are_refused_and_memory_comes_free() {
    let limits = Settings {
        max_buffered_bytes: 1000,
        ..settings()
    };
    let harness = harness(Behaviour::Choose, limits).await;
    let channel = connect(harness.address).await;
    let mut first = Exchange::open(&channel).await;
    first.send(post()).await;
    first.send(request_body(vec![b'x'; 800], false)).await;
    harness
        .await_metric("warmpath_body_bytes_total", Some("request"), 800.0)
        .await;
    let mut second = Exchange::open(&channel).await;
    second.send(post()).await;
    second.send(request_body(vec![b'x'; 800], false)).await;
    assert_eq!(read(&second.refused().await).0, 429);
    first.send(request_body("", true)).await;
    first.request_headers().await;
    assert_eq!(first.body().await.concat().len(), 800);
    // The first still runs, but what it held has gone back.
    let mut third = Exchange::open(&channel).await;
    third.send(post()).await;
    third.send(request_body(vec![b'x'; 800], true)).await;
    third.request_headers().await;
}

#[tokio::test]
async fn bodies_over_the_cap_are_refused_in_pieces_and_in_one() {
    let limits = Settings {
        max_body_bytes: 5_000_000,
        ..settings()
    };
    let harness = harness(Behaviour::Choose, limits).await;
    let channel = connect(harness.address).await;
    let mut exchange = Exchange::open(&channel).await;
    exchange.send(post()).await;
    for _ in 0..6 {
        exchange
            .send(request_body(vec![b'x'; 1_000_000], false))
            .await;
    }
    assert_eq!(read(&exchange.refused().await).0, 413);
    // A buffered body just over the cap, and one over what gRPC takes in one message.
    for bytes in [5_000_001, 9_000_000] {
        let mut exchange = Exchange::open(&channel).await;
        exchange
            .send(post().modes(BodySendMode::Buffered, BodySendMode::None))
            .await;
        exchange.request_headers().await;
        exchange.send(request_body(vec![b'x'; bytes], true)).await;
        assert_eq!(read(&exchange.refused().await).0, 413);
    }
    let mut exchange = Exchange::open(&channel).await;
    exchange
        .send(post().modes(BodySendMode::Buffered, BodySendMode::None))
        .await;
    exchange.request_headers().await;
    exchange
        .send(request_body(vec![b'x'; 5_000_000], true))
        .await;
    assert_eq!(exchange.chunk().await, None);
}

#[tokio::test]
async fn a_body_that_does_not_end_is_refused_in_time() {
    let limits = Settings {
        body_timeout: Duration::from_millis(50),
        ..settings()
    };
    let harness = harness(Behaviour::Choose, limits).await;
    let channel = connect(harness.address).await;
    let mut exchange = Exchange::open(&channel).await;
    exchange.send(post()).await;
    exchange.send(request_body("{", false)).await;
    let (status, reason, _) = read(&exchange.refused().await);
    assert_eq!((status, reason.as_str()), (408, "body_timeout"));
}

#[tokio::test]
async fn a_pick_that_hangs_is_made_again_on_load_alone() {
    let limits = Settings {
        pick_timeout: Duration::from_millis(50),
        ..settings()
    };
    let mut harness = harness(Behaviour::HangOnBodies, limits).await;
    let channel = connect(harness.address).await;
    let mut exchange = Exchange::open(&channel).await;
    exchange.send(post()).await;
    exchange.send(request_body("{}", true)).await;
    exchange.request_headers().await;
    assert_eq!(exchange.chunk().await.unwrap(), ("{}".into(), true));
    assert_eq!(harness.asked().await.1, Seen::Whole(b"{}".to_vec()));
    assert_eq!(harness.asked().await.1, Seen::Unseen);
    assert_eq!(harness.metric("warmpath_pick_timeouts_total", None), 1.0);
}

#[tokio::test]
async fn a_pick_that_always_hangs_ends_in_503() {
    let limits = Settings {
        pick_timeout: Duration::from_millis(50),
        ..settings()
    };
    let harness = harness(Behaviour::Hang, limits).await;
    let channel = connect(harness.address).await;
    let mut exchange = Exchange::open(&channel).await;
    exchange.send(get()).await;
    let (status, reason, _) = read(&exchange.refused().await);
    assert_eq!((status, reason.as_str()), (503, "pick_timeout"));
}

#[tokio::test]
async fn a_client_that_leaves_drops_the_flight_and_what_was_held() {
    let mut harness = harness(Behaviour::Choose, settings()).await;
    let channel = connect(harness.address).await;
    let mut exchange = Exchange::open(&channel).await;
    exchange.send(get()).await;
    exchange.request_headers().await;
    harness.asked().await;
    drop(exchange);
    assert_eq!(harness.event().await, Event::Dropped);
    harness
        .await_metric("warmpath_streams_total", Some("cancelled"), 1.0)
        .await;
}

#[tokio::test]
async fn messages_that_make_no_sense_are_counted_and_passed_over() {
    let harness = harness(Behaviour::Choose, settings()).await;
    let channel = connect(harness.address).await;
    let mut exchange = Exchange::open(&channel).await;
    exchange
        .send(warmpath::extproc::proto::envoy::service::ext_proc::v3::ProcessingRequest::default())
        .await;
    exchange.send(get()).await;
    exchange.send(get()).await;
    exchange.request_headers().await;
    harness
        .await_metric("warmpath_message_oddities_total", Some("empty"), 1.0)
        .await;
    harness
        .await_metric("warmpath_message_oddities_total", Some("out_of_order"), 1.0)
        .await;
}
