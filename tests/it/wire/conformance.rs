//! The headers of the gateway conformance suite: obeyed when asked for, else headers like any other.

use prost_types::value::Kind;
use tonic::transport::Channel;
use warmpath::extproc::metadata::{
    DESTINATION, LB_NAMESPACE, SERVED, SUBSET, SUBSET_NAMESPACE, TEST_SELECTION, TEST_SERVED,
};
use warmpath::extproc::proto::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use warmpath::extproc::proto::envoy::service::ext_proc::v3::processing_response::Response;
use warmpath::routing::router::SubsetEntry;

use super::gateway::{
    Exchange, Say, connect, list, request_body, request_headers, response_headers,
};
use super::*;

async fn obeying(behaviour: Behaviour) -> Harness {
    let settings = Settings {
        test_headers: TestHeaders::Obeyed,
        ..settings()
    };
    Harness::with(behaviour, settings, Security::Plain).await
}

fn selecting(list: &str, end: bool) -> Say {
    let head = [
        (":method", "POST"),
        (":path", "/v1/completions"),
        ("Test-EPP-Endpoint-Selection", list),
    ];
    request_headers(&head, end)
}

/// Whom the pick was restricted to.
async fn restricted_to(
    harness: &mut Harness,
    channel: &Channel,
    selection: &str,
) -> Option<Vec<SubsetEntry>> {
    let mut exchange = Exchange::open(channel).await;
    exchange.send(selecting(selection, true)).await;
    exchange.request_headers().await;
    asked(harness).await
}

/// Whom the next pick was restricted to; what is told of exchanges before it is passed over.
async fn asked(harness: &mut Harness) -> Option<Vec<SubsetEntry>> {
    loop {
        if let Event::Asked(head, _) = harness.event().await {
            return head.subset;
        }
    }
}

/// The value of the suite's header in the answer to response headers.
async fn told(exchange: &mut Exchange) -> Option<String> {
    let Response::ResponseHeaders(headers) = exchange.answer().await else {
        panic!("not response headers");
    };
    let mutation = headers.response.unwrap().header_mutation?;
    assert_eq!(mutation.remove_headers, Vec::<String>::new());
    let [option] = mutation.set_headers.as_slice() else {
        panic!("{mutation:?}");
    };
    let header = option.header.as_ref().unwrap();
    assert_eq!(
        (header.key.as_str(), header.value.as_str()),
        (TEST_SERVED, "")
    );
    Some(String::from_utf8(header.raw_value.to_vec()).unwrap())
}

#[tokio::test]
async fn the_selection_is_one_address_or_several_with_a_port_or_without() {
    let mut harness = obeying(Behaviour::Choose).await;
    let channel = connect(harness.address).await;
    let endpoint = |text: &str| SubsetEntry::Endpoint(text.parse().unwrap());
    let address = |text: &str| SubsetEntry::Address(text.parse().unwrap());
    let cases = [
        ("10.0.0.1:3000", vec![endpoint("10.0.0.1:3000")]),
        ("10.0.0.1", vec![address("10.0.0.1")]),
        (
            "10.0.0.1:3000, 10.0.0.2 ,[fd00::1]:3000,[fd00::2]",
            vec![
                endpoint("10.0.0.1:3000"),
                address("10.0.0.2"),
                endpoint("[fd00::1]:3000"),
                address("fd00::2"),
            ],
        ),
        // Nobody, rather than everybody.
        ("engine-0:3000", Vec::new()),
    ];
    for (selection, expected) in cases {
        let subset = restricted_to(&mut harness, &channel, selection).await;
        assert_eq!(subset, Some(expected), "{selection}");
    }
    let unparsed = harness.metric("warmpath_subset_entries_unparsed_total", None);
    assert_eq!(unparsed, 1.0);
    // As if it were not there.
    assert_eq!(restricted_to(&mut harness, &channel, "").await, None);
}

#[tokio::test]
async fn the_selection_counts_more_than_the_gateways_hint_in_every_message() {
    let mut harness = obeying(Behaviour::Choose).await;
    let channel = connect(harness.address).await;
    let mut exchange = Exchange::open(&channel).await;
    let hint = || list(&["10.0.0.9:1"]);
    let head = selecting("10.0.0.1", false);
    exchange
        .send(head.metadata(SUBSET_NAMESPACE, SUBSET, hint()))
        .await;
    let body = request_body("{}", true);
    exchange
        .send(body.metadata(SUBSET_NAMESPACE, SUBSET, hint()))
        .await;
    exchange.request_headers().await;
    let expected = vec![SubsetEntry::Address("10.0.0.1".parse().unwrap())];
    assert_eq!(harness.asked().await.0.subset, Some(expected));
}

#[tokio::test]
async fn who_served_is_told_in_every_mode_or_what_is_missing() {
    let harness = obeying(Behaviour::Choose).await;
    let channel = connect(harness.address).await;
    let string = |text: &str| Kind::StringValue(text.to_owned());
    for mode in [
        BodySendMode::None,
        BodySendMode::Streamed,
        BodySendMode::Buffered,
        BodySendMode::BufferedPartial,
        BodySendMode::FullDuplexStreamed,
    ] {
        let cases = [
            (Some((LB_NAMESPACE, SERVED)), "[fd00::1]:3000"),
            (
                Some((LB_NAMESPACE, DESTINATION)),
                "fail: missing destination endpoint served metadata",
            ),
            (Some(("other", SERVED)), "fail: missing envoy lb metadata"),
            (None, "fail: missing envoy lb metadata"),
        ];
        for (said, expected) in cases {
            let mut exchange = Exchange::open(&channel).await;
            exchange
                .send(selecting("10.0.0.1", true).modes(mode, mode))
                .await;
            exchange.request_headers().await;
            let mut response = response_headers(&[(":status", "200"), (TEST_SERVED, "mine")], true);
            if let Some((namespace, key)) = said {
                response = response.metadata(namespace, key, string("[fd00::1]:3000"));
            }
            exchange.send(response).await;
            assert_eq!(
                told(&mut exchange).await.as_deref(),
                Some(expected),
                "{mode:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_selection_that_matches_nobody_is_503() {
    let refusal = Rejection::Unavailable("no endpoint of the requested subset is ready".to_owned());
    let harness = obeying(Behaviour::Refuse(refusal)).await;
    let channel = connect(harness.address).await;
    let mut exchange = Exchange::open(&channel).await;
    exchange.send(selecting("10.9.9.9", true)).await;
    assert_eq!(exchange.refused().await.status.unwrap().code, 503);
}

#[tokio::test]
async fn unless_asked_for_they_are_headers_like_any_other() {
    let mut harness = Harness::start().await;
    let channel = connect(harness.address).await;
    let mut exchange = Exchange::open(&channel).await;
    exchange.send(selecting("10.0.0.1", true)).await;
    exchange.request_headers().await;
    assert_eq!(harness.asked().await.0.subset, None);
    let response = response_headers(&[(":status", "200")], true);
    let served = Kind::StringValue("10.0.0.1:8000".to_owned());
    exchange
        .send(response.metadata(LB_NAMESPACE, SERVED, served))
        .await;
    assert_eq!(told(&mut exchange).await, None);

    let mut hinted = Exchange::open(&channel).await;
    let hint = list(&["10.0.0.9:1"]);
    let head = selecting("10.0.0.1", true);
    hinted
        .send(head.metadata(SUBSET_NAMESPACE, SUBSET, hint))
        .await;
    hinted.request_headers().await;
    let expected = vec![SubsetEntry::Endpoint("10.0.0.9:1".parse().unwrap())];
    assert_eq!(asked(&mut harness).await, Some(expected));
    assert_eq!(TEST_SELECTION, "test-epp-endpoint-selection");
}
