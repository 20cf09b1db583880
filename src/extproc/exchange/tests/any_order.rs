//! Exchanges as gateways might play them, and as none should.

use proptest::prelude::*;

use super::*;

fn any_message() -> impl Strategy<Value = ProcessingRequest> {
    let bytes = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..50),
        (0usize..150_000).prop_map(|size| (0u8..=250).cycle().take(size).collect()),
    ];
    let body = (bytes, any::<bool>()).prop_map(|(body, end_of_stream)| HttpBody {
        body: body.into(),
        end_of_stream,
    });
    prop_oneof![
        2 => any::<bool>().prop_map(request_headers),
        1 => any::<bool>().prop_map(|end| message(Request::RequestHeaders(
            headers(&[(":method", "CONNECT")], end)))),
        4 => body.clone().prop_map(|body| message(Request::RequestBody(body))),
        1 => Just(request_trailers()),
        2 => any::<bool>().prop_map(|end| response_headers("200", end)),
        4 => body.prop_map(|body| message(Request::ResponseBody(body))),
        1 => Just(response_trailers()),
        1 => prop::collection::vec(any::<u8>(), 0..20).prop_map(|noise| ProcessingRequest {
            metadata_context: noise.into(),
            ..request_headers(false)
        }),
        1 => Just(ProcessingRequest::default()),
    ]
}

proptest! {
    #[test]
    fn no_order_of_messages_breaks_the_promises(
        mode in prop::sample::select(MODES.to_vec()),
        messages in prop::collection::vec(any_message(), 0..12),
        refuse in any::<bool>(),
        test_headers in prop::sample::select(vec![TestHeaders::Ignored, TestHeaders::Obeyed]),
    ) {
        keeps_its_promises(mode, test_headers, refuse, &messages);
    }

    #[test]
    fn bodies_pass_unchanged_in_both_directions(
        request in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..90_000), 0..4),
        response in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..90_000), 0..4),
        request_trailed in any::<bool>(),
        response_trailed in any::<bool>(),
    ) {
        let mut messages = vec![request_headers(false)];
        let bodies = |chunks: Vec<Vec<u8>>, trailed: bool| {
            let last = chunks.len();
            let ends = if trailed { last } else { last + 1 };
            let mut chunks: Vec<Bytes> = chunks.into_iter().map(Bytes::from).collect();
            chunks.resize(ends, Bytes::new());
            chunks.into_iter().enumerate().map(move |(at, body)| HttpBody {
                body,
                end_of_stream: at == last,
            })
        };
        messages.extend(bodies(request, request_trailed).map(|b| message(Request::RequestBody(b))));
        if request_trailed {
            messages.push(request_trailers());
        }
        messages.push(response_headers("200", false));
        messages.extend(bodies(response, response_trailed).map(|b| message(Request::ResponseBody(b))));
        if response_trailed {
            messages.push(response_trailers());
        }
        let mut driver = Driver::new(BodyMode::FullDuplexStreamed);
        messages.clone().into_iter().for_each(|message| driver.receive(message));
        for (direction, trailed) in [
            (Direction::Request, request_trailed),
            (Direction::Response, response_trailed),
        ] {
            let (sent, ends) = echoed(&driver.out, direction);
            prop_assert!(sent == received(&messages, direction).0);
            prop_assert_eq!(ends, usize::from(!trailed));
            // Headers, then body, then trailers.
            let rank = |out: &Out| match out {
                Out::Headers(d, _) if *d == direction => Some(0),
                Out::Chunk(d, _, _) if *d == direction => Some(1),
                Out::Trailers(d) if *d == direction => Some(2),
                _ => None,
            };
            prop_assert!(driver.out.iter().filter_map(rank).is_sorted());
            prop_assert_eq!(
                count(&driver.out, |o| *o == Out::Trailers(direction)),
                usize::from(trailed)
            );
        }
        prop_assert_eq!(driver.metadata, 1);
        prop_assert_eq!(driver.exchange.close(End::HalfClose), Close::Completed);
    }
}
