//! Exchanges in every mode, from the gateway's side and from the pick's.

use prost_types::{Struct, value::Kind};
use warmpath::extproc::pick::Usage;
use warmpath::extproc::proto::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use warmpath::extproc::proto::envoy::service::ext_proc::v3::{
    CommonResponse, processing_response::Response,
};
use warmpath::routing::router::SubsetEntry;

use super::gateway::*;
use super::{DESTINATION, Event, Harness, Seen};

const HEADER: &str = "x-gateway-destination-endpoint";
const SSE: &[(&str, &str)] = &[(":status", "200"), ("content-type", "text/event-stream")];

/// The header mutation and the metadata both name the destination, and nothing else is changed.
fn assert_sent_on(common: &CommonResponse, metadata: Option<Struct>) {
    let mutation = common.header_mutation.as_ref().unwrap();
    assert_eq!(mutation.remove_headers.len(), 0);
    assert_eq!(mutation.set_headers.len(), 1);
    let header = mutation.set_headers[0].header.as_ref().unwrap();
    assert_eq!(header.key, HEADER);
    assert_eq!(header.value, "");
    assert_eq!(header.raw_value, DESTINATION);
    assert!(common.clear_route_cache);
    let lb = metadata.unwrap().fields.remove("envoy.lb").unwrap();
    let Some(Kind::StructValue(lb)) = lb.kind else {
        panic!("envoy.lb is no struct");
    };
    let expected = Kind::StringValue(DESTINATION.to_owned());
    assert_eq!(lb.fields[HEADER].kind, Some(expected));
}

#[tokio::test]
async fn a_full_duplex_exchange_passes_unchanged_and_is_told_to_the_flight() {
    let mut harness = Harness::start().await;
    let channel = connect(harness.address).await;
    let mut exchange = Exchange::open(&channel).await;
    let full = BodySendMode::FullDuplexStreamed;
    exchange.send(post().modes(full, full)).await;
    let sent: Vec<u8> = (0u8..=255).cycle().take(200_000).collect();
    exchange
        .send(request_body(sent[..150_000].to_vec(), false))
        .await;
    exchange
        .send(request_body(sent[150_000..].to_vec(), false))
        .await;
    exchange.send(request_body("", true)).await;

    let (common, metadata) = exchange.request_headers().await;
    assert_sent_on(&common, metadata);
    let chunks = exchange.body().await;
    assert!(chunks.iter().all(|chunk| chunk.len() <= 62_000));
    assert!(chunks.concat() == sent);
    let (head, seen) = harness.asked().await;
    assert_eq!(head.path, "/v1/chat/completions");
    assert_eq!(head.content_type.as_deref(), Some("application/json"));
    assert_eq!(head.request_id.as_deref(), Some("r-1"));
    assert_eq!(head.subset, None);
    assert!(seen == Seen::Whole(sent));

    let served = Kind::StringValue("10.0.0.2:8000".to_owned());
    let key = "x-gateway-destination-endpoint-served";
    exchange
        .send(response_headers(SSE, false).metadata("envoy.lb", key, served))
        .await;
    assert!(matches!(
        exchange.answer().await,
        Response::ResponseHeaders(_)
    ));
    assert_eq!(
        harness.event().await,
        Event::ServedBy("10.0.0.2:8000".parse().unwrap())
    );
    assert_eq!(harness.event().await, Event::Started(200));
    for piece in [
        ": hello\n\n",
        "data: {\"choices\":[]}\n\n",
        "data: {\"usage\":{\"prompt_tokens\":9,\"completion_",
        "tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\ndata: [DONE]\n\n",
    ] {
        exchange.send(response_body(piece, false)).await;
        let (echo, end) = exchange.chunk().await.unwrap();
        assert_eq!((echo.as_ref(), end), (piece.as_bytes(), false));
    }
    assert_eq!(harness.event().await, Event::FirstData);
    exchange.send(response_body("", true)).await;
    let (echo, end) = exchange.chunk().await.unwrap();
    assert_eq!((echo.len(), end), (0, true));
    let usage = Usage {
        prompt_tokens: Some(9),
        completion_tokens: Some(2),
        cached_tokens: Some(8),
    };
    assert_eq!(harness.event().await, Event::Usage(usage));
    assert_eq!(harness.event().await, Event::Completed);
    exchange.close().await;
    assert_eq!(harness.event().await, Event::Dropped);
    harness
        .await_metric("warmpath_streams_total", Some("completed"), 1.0)
        .await;
    harness
        .await_metric("warmpath_streams_in_flight", None, 0.0)
        .await;
    assert_eq!(
        harness.metric("warmpath_body_bytes_total", Some("request")),
        200_000.0
    );
}

#[tokio::test]
async fn nothing_is_answered_before_the_body_is_complete() {
    let mut harness = Harness::start().await;
    let channel = connect(harness.address).await;
    let mut exchange = Exchange::open(&channel).await;
    exchange.send(post()).await;
    exchange.send(request_body("{}", false)).await;
    // Both have arrived once a later stream on the same connection is done.
    let mut other = Exchange::open(&channel).await;
    other.send(get()).await;
    other.request_headers().await;
    assert_eq!(harness.asked().await.1, Seen::Unseen);
    assert!(exchange.is_silent());
    exchange.send(request_trailers()).await;
    assert_eq!(harness.asked().await.1, Seen::Whole(b"{}".to_vec()));
    exchange.request_headers().await;
    assert_eq!(exchange.chunk().await.unwrap(), ("{}".into(), false));
    assert!(matches!(
        exchange.answer().await,
        Response::RequestTrailers(_)
    ));
}

#[tokio::test]
async fn buffered_bodies_carry_the_destination_and_stay_with_the_gateway() {
    for (mode, end, expected) in [
        (BodySendMode::Buffered, true, Seen::Whole(b"{}".to_vec())),
        (
            BodySendMode::BufferedPartial,
            false,
            Seen::Partial(b"{}".to_vec()),
        ),
    ] {
        let mut harness = Harness::start().await;
        let channel = connect(harness.address).await;
        let mut exchange = Exchange::open(&channel).await;
        exchange
            .send(post().modes(mode, BodySendMode::Streamed))
            .await;
        let (common, metadata) = exchange.request_headers().await;
        assert_eq!(common.header_mutation, None);
        assert_eq!(metadata, None);
        exchange.send(request_body("{}", end)).await;
        let answer = exchange.next().await.unwrap();
        let Some(Response::RequestBody(body)) = answer.response else {
            panic!("not a body answer");
        };
        let common = body.response.unwrap();
        assert_eq!(common.body_mutation, None);
        assert_sent_on(&common, answer.dynamic_metadata);
        assert_eq!(harness.asked().await.1, expected);
        exchange.send(response_headers(SSE, false)).await;
        exchange.answer().await;
        exchange.send(response_body("data: x\n\n", false)).await;
        assert_eq!(exchange.chunk().await, None);
        assert_eq!(harness.event().await, Event::Started(200));
        assert_eq!(harness.event().await, Event::FirstData);
    }
}

#[tokio::test]
async fn streamed_and_hidden_bodies_are_picked_for_on_load() {
    for mode in [BodySendMode::Streamed, BodySendMode::None] {
        let mut harness = Harness::start().await;
        let channel = connect(harness.address).await;
        let mut exchange = Exchange::open(&channel).await;
        exchange.send(post().modes(mode, BodySendMode::None)).await;
        let (common, metadata) = exchange.request_headers().await;
        assert_sent_on(&common, metadata);
        assert_eq!(harness.asked().await.1, Seen::Unseen);
        if mode == BodySendMode::Streamed {
            exchange.send(request_body("{}", true)).await;
            assert_eq!(exchange.chunk().await, None);
        }
        // Envoy half-closes or resets, as it is configured.
        if mode == BodySendMode::Streamed {
            exchange.close().await;
        } else {
            drop(exchange);
        }
        assert_eq!(harness.event().await, Event::NoResponsePhase);
        let outcome = Some("no_response_phase");
        harness
            .await_metric("warmpath_streams_total", outcome, 1.0)
            .await;
    }
}

#[tokio::test]
async fn a_websocket_is_answered_at_its_headers() {
    let mut harness = Harness::start().await;
    let channel = connect(harness.address).await;
    let mut exchange = Exchange::open(&channel).await;
    let pairs = [
        (":method", "GET"),
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
    ];
    exchange.send(request_headers(&pairs, false)).await;
    exchange.request_headers().await;
    assert_eq!(harness.asked().await.1, Seen::Unseen);
    exchange.send(request_body("frame", false)).await;
    assert_eq!(exchange.chunk().await.unwrap(), ("frame".into(), false));
}

#[tokio::test]
async fn the_subset_hint_reaches_the_pick_from_headers_and_from_body_messages() {
    let mut harness = Harness::start().await;
    let channel = connect(harness.address).await;
    let (namespace, key) = (
        "envoy.lb.subset_hint",
        "x-gateway-destination-endpoint-subset",
    );
    let entries = ["10.0.0.1:8000", "nonsense", "10.0.0.2"];
    let expected = Some(vec![
        SubsetEntry::Endpoint("10.0.0.1:8000".parse().unwrap()),
        SubsetEntry::Address("10.0.0.2".parse().unwrap()),
    ]);

    let mut first = Exchange::open(&channel).await;
    first
        .send(get().metadata(namespace, key, list(&entries)))
        .await;
    assert_eq!(harness.asked().await.0.subset, expected);
    first.request_headers().await;

    let mut second = Exchange::open(&channel).await;
    second.send(post()).await;
    let string = Kind::StringValue(entries.join(","));
    second
        .send(request_body("{}", true).metadata(namespace, key, string))
        .await;
    second.request_headers().await;
    assert_eq!(harness.asked().await.0.subset, expected);

    let mut third = Exchange::open(&channel).await;
    third.send(get().metadata(namespace, key, list(&[]))).await;
    third.request_headers().await;
    assert_eq!(harness.asked().await.0.subset, Some(Vec::new()));
    assert_eq!(
        harness.metric("warmpath_subset_entries_unparsed_total", None),
        2.0
    );
}

#[tokio::test]
async fn a_json_answer_ends_by_trailers_or_by_its_last_chunk() {
    let mut harness = Harness::start().await;
    let channel = connect(harness.address).await;
    for trailed in [false, true] {
        let mut exchange = Exchange::open(&channel).await;
        exchange.send(get()).await;
        exchange.request_headers().await;
        harness.asked().await;
        let json = [(":status", "200"), ("content-type", "application/json")];
        exchange.send(response_headers(&json, false)).await;
        exchange.answer().await;
        let body = "{\"usage\":{\"prompt_tokens\":5}}";
        exchange.send(response_body(body, !trailed)).await;
        assert_eq!(exchange.chunk().await.unwrap(), (body.into(), !trailed));
        if trailed {
            exchange.send(response_trailers()).await;
            assert!(matches!(
                exchange.answer().await,
                Response::ResponseTrailers(_)
            ));
        }
        exchange.close().await;
        let usage = Usage {
            prompt_tokens: Some(5),
            ..Usage::default()
        };
        for expected in [
            Event::Started(200),
            Event::FirstData,
            Event::Usage(usage),
            Event::Completed,
            Event::Dropped,
        ] {
            assert_eq!(harness.event().await, expected);
        }
    }
}

#[tokio::test]
async fn compressed_answers_count_their_first_bytes_and_are_not_read() {
    let mut harness = Harness::start().await;
    let channel = connect(harness.address).await;
    let mut exchange = Exchange::open(&channel).await;
    exchange.send(get()).await;
    exchange.request_headers().await;
    harness.asked().await;
    let gzip = [
        (":status", "200"),
        ("content-type", "application/json"),
        ("content-encoding", "gzip"),
    ];
    exchange.send(response_headers(&gzip, false)).await;
    exchange.answer().await;
    exchange
        .send(response_body("{\"usage\":{\"prompt_tokens\":5}}", true))
        .await;
    exchange.chunk().await;
    for expected in [Event::Started(200), Event::FirstData, Event::Completed] {
        assert_eq!(harness.event().await, expected);
    }
}
