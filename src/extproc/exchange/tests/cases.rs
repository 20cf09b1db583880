//! Exchanges as gateways play them.

use super::*;

#[test]
fn full_duplex_answers_headers_only_when_the_body_is_complete() {
    let messages = vec![
        request_headers(false),
        request_body("{\"a\":", false),
        request_body("1}", false),
        request_body("", true),
    ];
    assert_eq!(
        Driver::play(BodyMode::FullDuplexStreamed, messages),
        [whole("{\"a\":1}"), SENT, chunk("{\"a\":1}", true)]
    );
}

#[test]
fn trailers_end_a_body_and_no_chunk_is_marked_as_the_last() {
    let messages = vec![
        request_headers(false),
        request_body("{}", false),
        request_trailers(),
    ];
    assert_eq!(
        Driver::play(BodyMode::FullDuplexStreamed, messages),
        [
            whole("{}"),
            SENT,
            chunk("{}", false),
            Out::Trailers(Direction::Request)
        ]
    );
}

#[test]
fn an_empty_body_goes_back_as_one_empty_last_chunk() {
    let messages = vec![request_headers(false), request_body("", true)];
    assert_eq!(
        Driver::play(BodyMode::FullDuplexStreamed, messages),
        [whole(""), SENT, chunk("", true)]
    );
    let messages = vec![request_headers(false), request_trailers()];
    assert_eq!(
        Driver::play(BodyMode::FullDuplexStreamed, messages),
        [whole(""), SENT, Out::Trailers(Direction::Request)]
    );
}

// https://github.com/envoyproxy/envoy/issues/46237
#[test]
fn a_last_chunk_that_comes_twice_goes_back_once() {
    let messages = vec![
        request_headers(false),
        request_body("{}", true),
        request_body("{}", true),
        response_headers("200", false),
    ];
    assert_eq!(
        Driver::play(BodyMode::FullDuplexStreamed, messages),
        [
            whole("{}"),
            SENT,
            chunk("{}", true),
            Out::Odd(Oddity::DuplicateEnd),
            Out::Tell(News::Started(200)),
            Out::Headers(Direction::Response, false),
        ]
    );
}

#[test]
fn a_request_without_body_is_picked_for_at_its_headers_in_every_mode() {
    for mode in MODES {
        assert_eq!(
            Driver::play(mode, vec![request_headers(true)]),
            [UNSEEN, SENT]
        );
    }
}

#[test]
fn buffered_answers_headers_at_once_and_sends_the_destination_with_the_body() {
    for (mode, end) in [
        (BodyMode::Buffered, true),
        (BodyMode::Buffered, false),
        (BodyMode::BufferedPartial, true),
    ] {
        let messages = vec![
            request_headers(false),
            request_body("{}", end),
            request_trailers(),
        ];
        assert_eq!(
            Driver::play(mode, messages),
            [
                HELD_BACK,
                whole("{}"),
                Out::Body(Direction::Request, true),
                Out::Trailers(Direction::Request)
            ]
        );
    }
}

#[test]
fn a_body_cut_off_by_the_gateway_is_partial() {
    let messages = vec![request_headers(false), request_body("{\"a", false)];
    assert_eq!(
        Driver::play(BodyMode::BufferedPartial, messages),
        [
            HELD_BACK,
            Out::Pick(Seen::Partial(Bytes::from_static(b"{\"a"))),
            Out::Body(Direction::Request, true)
        ]
    );
}

/// What the answers to a request set besides the destination, and with which action.
fn set_beside_destination(mode: BodyMode, rank: Option<u32>) -> Vec<(String, Bytes, i32)> {
    let mut driver = Driver::new(mode);
    driver.rank = rank;
    let mut set = Vec::new();
    for message in [request_headers(false), request_body("{}", true)] {
        driver.exchange.receive(message);
        while let Some(step) = driver.exchange.next_step() {
            match step {
                Step::Pick(..) => driver.exchange.picked(Destination {
                    addresses: "10.0.0.1:8000",
                    rank,
                }),
                Step::Answer(answer) => {
                    let common = match answer.response.unwrap() {
                        Response::RequestHeaders(headers) => headers.response,
                        Response::RequestBody(body) => body.response,
                        other => panic!("{other:?}"),
                    };
                    let mutation = common.unwrap().header_mutation.unwrap_or_default();
                    set.extend(mutation.set_headers.into_iter().map(|option| {
                        let header = option.header.unwrap();
                        assert!(header.value.is_empty());
                        (header.key, header.raw_value, option.append_action)
                    }));
                }
                other => panic!("{other:?}"),
            }
        }
    }
    set.retain(|(key, ..)| key != DESTINATION);
    set
}

#[test]
fn the_rank_goes_with_the_destination_in_every_mode_and_overwrites_a_clients_own() {
    let overwrite = 2; // OVERWRITE_IF_EXISTS_OR_ADD
    for mode in MODES {
        let pinned = set_beside_destination(mode, Some(1));
        let expected = ("x-data-parallel-rank".to_owned(), "1".into(), overwrite);
        assert_eq!(pinned, [expected], "{mode:?}");
        assert_eq!(set_beside_destination(mode, None), [], "{mode:?}");
    }
}

#[test]
fn a_client_that_writes_its_own_destination_loses_it_before_the_pick() {
    let mut driver = Driver::new(BodyMode::Buffered);
    let pairs = [(":method", "POST"), (DESTINATION, "6.6.6.6:6")];
    driver
        .exchange
        .receive(message(Request::RequestHeaders(headers(&pairs, false))));
    let Some(Step::Answer(answer)) = driver.exchange.next_step() else {
        panic!("no answer to the headers");
    };
    let Some(Response::RequestHeaders(answer)) = answer.response else {
        panic!("no answer to the headers");
    };
    let common = answer.response.unwrap();
    assert!(common.clear_route_cache);
    let mutation = common.header_mutation.unwrap();
    assert_eq!(mutation.remove_headers, [DESTINATION]);
    assert_eq!(mutation.set_headers, []);
}

#[test]
fn streamed_bodies_are_picked_for_on_load_and_each_chunk_is_answered() {
    let messages = vec![
        request_headers(false),
        request_body("{", false),
        request_body("}", true),
    ];
    const KEPT: Out = Out::Body(Direction::Request, false);
    assert_eq!(
        Driver::play(BodyMode::Streamed, messages),
        [UNSEEN, SENT, KEPT, KEPT]
    );
}

#[test]
fn the_gateways_own_word_on_modes_overrules_the_setting() {
    let mut first = request_headers(false);
    first.protocol_config = Some(ProtocolConfiguration {
        request_body_mode: BodySendMode::Buffered.into(),
        response_body_mode: BodySendMode::Streamed.into(),
        ..ProtocolConfiguration::default()
    });
    let messages = vec![
        first,
        request_body("{}", true),
        response_headers("200", false),
        response_body("data: x\n\n", false),
    ];
    let out = Driver::play(BodyMode::FullDuplexStreamed, messages);
    assert_eq!(out[0], HELD_BACK);
    assert_eq!(out.last().unwrap(), &Out::Body(Direction::Response, false));
}

#[test]
fn tunnels_are_answered_at_their_headers_and_pass_through() {
    for pairs in [
        [(":method", "GET"), ("upgrade", "websocket")],
        [(":method", "CONNECT"), (":path", "/")],
    ] {
        let messages = vec![
            message(Request::RequestHeaders(headers(&pairs, false))),
            request_body("ping", false),
            response_headers("101", false),
            response_body("pong", false),
            request_body("bye", true),
            response_body("bye", true),
        ];
        assert_eq!(
            Driver::play(BodyMode::FullDuplexStreamed, messages),
            [
                UNSEEN,
                SENT,
                chunk("ping", false),
                Out::Tell(News::Started(101)),
                Out::Headers(Direction::Response, false),
                back("pong", false),
                chunk("bye", true),
                back("bye", true),
                Out::Tell(News::Completed),
            ]
        );
    }
}

#[test]
fn a_response_is_echoed_and_read() {
    let messages = vec![
        request_headers(true),
        response_headers("200", false),
        response_body(": wait\n\n", false),
        response_body("data: {\"choices\":[]}\n\n", false),
        response_body(": still here\n\n", false),
        response_body("data: {\"usage\":{\"prompt_tok", false),
        response_body("ens\":7}}\n\ndata: [DONE]\n\n", false),
        response_body("", true),
    ];
    assert_eq!(
        Driver::play(BodyMode::FullDuplexStreamed, messages)[2..],
        [
            Out::Tell(News::Started(200)),
            Out::Headers(Direction::Response, false),
            back(": wait\n\n", false),
            Out::Tell(News::FirstData),
            back("data: {\"choices\":[]}\n\n", false),
            back(": still here\n\n", false),
            Out::Tell(News::MoreData),
            back("data: {\"usage\":{\"prompt_tok", false),
            Out::Tell(News::MoreData),
            back("ens\":7}}\n\ndata: [DONE]\n\n", false),
            back("", true),
            Out::Tell(News::Usage(Usage {
                prompt_tokens: Some(7),
                ..Usage::default()
            })),
            Out::Tell(News::Completed),
        ]
    );
}

#[test]
fn a_refusal_is_told_before_its_status_and_after_who_served() {
    let refused = |headers: &[(&str, &str)]| {
        let messages = vec![
            request_headers(true),
            message(Request::ResponseHeaders(self::headers(headers, true))),
        ];
        Driver::play(BodyMode::FullDuplexStreamed, messages).remove(2)
    };
    let told = |retry_after| Out::Tell(News::Refused(retry_after));
    let seconds = |n| Some(Duration::from_secs(n));
    assert_eq!(refused(&[(":status", "503")]), told(None));
    let later = |value| refused(&[("retry-after", value), (":status", "429")]);
    assert_eq!(later("7"), told(seconds(7)));
    assert_eq!(later("Fri, 31 Dec 1999 23:59:59 GMT"), told(None));
    let started = |status| Out::Tell(News::Started(status));
    let envoys = [(":status", "503"), ("x-envoy-overloaded", "true")];
    assert_eq!(refused(&envoys), started(503), "a limit of the gateway's");
    assert_eq!(
        refused(&[(":status", "500"), ("retry-after", "7")]),
        started(500)
    );
}

#[test]
fn an_engines_error_is_no_first_data() {
    let messages = vec![
        request_headers(true),
        response_headers("500", false),
        response_body("data: {\"detail\":\"out of memory\"}\n\n", true),
    ];
    let out = Driver::play(BodyMode::FullDuplexStreamed, messages);
    assert!(!out.contains(&Out::Tell(News::FirstData)));
    assert!(out.contains(&Out::Tell(News::Completed)));
}

#[test]
fn response_trailers_end_a_response_without_a_last_chunk() {
    let messages = vec![
        request_headers(true),
        response_headers("200", false),
        response_body("data: x\n\n", false),
        response_trailers(),
    ];
    assert_eq!(
        Driver::play(BodyMode::FullDuplexStreamed, messages)[5..],
        [
            back("data: x\n\n", false),
            Out::Trailers(Direction::Response),
            Out::Tell(News::Completed)
        ]
    );
}

#[test]
fn a_response_before_the_request_is_complete_ends_the_request() {
    let messages = vec![
        request_headers(false),
        request_body("{", false),
        response_headers("408", true),
        request_body("}", true),
    ];
    assert_eq!(
        Driver::play(BodyMode::FullDuplexStreamed, messages),
        [
            Out::Tell(News::Started(408)),
            Out::Headers(Direction::Response, false),
            Out::Tell(News::Completed),
            Out::Odd(Oddity::OutOfOrder),
        ]
    );
}

#[test]
fn a_body_over_the_cap_is_refused_once() {
    let big = || {
        message(Request::RequestBody(HttpBody {
            body: Bytes::from(vec![b'x'; CAP / 2 + 1]),
            end_of_stream: false,
        }))
    };
    let messages = vec![request_headers(false), big(), big(), big()];
    assert_eq!(
        Driver::play(BodyMode::FullDuplexStreamed, messages),
        [Out::Immediate(413), Out::End(Reason::TooLarge)]
    );
}

#[test]
fn an_end_means_what_was_shown() {
    let ends = |mode, messages: &[ProcessingRequest]| {
        let mut driver = Driver::new(mode);
        for message in messages {
            driver.receive(message.clone());
        }
        [End::HalfClose, End::Reset].map(|end| driver.exchange.close(end))
    };
    let duplex = BodyMode::FullDuplexStreamed;
    let sent_on = [request_headers(false), request_body("{}", true)];
    let with = |more: ProcessingRequest| [sent_on.to_vec(), vec![more]].concat();
    assert_eq!(ends(duplex, &[]), [Close::Cancelled; 2]);
    assert_eq!(ends(duplex, &sent_on[..1]), [Close::Cancelled; 2]);
    for mode in [duplex, BodyMode::Buffered] {
        assert_eq!(
            ends(mode, &sent_on),
            [Close::NoResponsePhase, Close::Cancelled]
        );
    }
    assert_eq!(
        ends(duplex, &with(response_headers("200", false))),
        [Close::Cancelled; 2]
    );
    assert_eq!(
        ends(duplex, &with(response_headers("204", true))),
        [Close::Completed; 2]
    );
    let hidden = |more: Option<ProcessingRequest>| {
        let messages: Vec<_> = [request_headers(false)].into_iter().chain(more).collect();
        ends(BodyMode::None, &messages)
    };
    assert_eq!(hidden(None), [Close::NoResponsePhase; 2]);
    assert_eq!(
        hidden(Some(response_headers("200", false))),
        [Close::NoResponsePhase; 2]
    );
    assert_eq!(
        hidden(Some(response_headers("404", false))),
        [Close::Completed; 2]
    );
}
