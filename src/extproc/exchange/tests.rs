//! Exchanges as gateways play them, and as no gateway should.

use proptest::prelude::*;

use super::*;
use crate::extproc::metadata::DESTINATION;
use crate::extproc::proto::envoy::config::core::v3::{HeaderMap, HeaderValue};
use crate::extproc::proto::envoy::service::ext_proc::v3::{
    BodyResponse, CommonResponse, HttpBody, HttpHeaders, HttpTrailers, ProtocolConfiguration,
    body_mutation::Mutation, processing_response::Response,
};

const CAP: usize = 300_000;

/// What went out, in order and in short.
#[derive(Debug, PartialEq, Eq)]
enum Out {
    /// Headers, and whether the destination was in them.
    Headers(Direction, bool),
    /// A body answer without a chunk, and whether the destination was in it.
    Body(Direction, bool),
    Chunk(Direction, Bytes, bool),
    Trailers(Direction),
    Immediate(i32),
    End(Reason),
    Pick(Seen),
    Tell(News),
    Odd(Oddity),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Unseen,
    Whole(Bytes),
    Partial(Bytes),
}

struct Driver {
    exchange: Exchange,
    out: Vec<Out>,
    refuse: bool,
    metadata: usize,
}

impl Driver {
    fn new(mode: BodyMode) -> Self {
        Self {
            exchange: Exchange::new(mode, CAP),
            out: Vec::new(),
            refuse: false,
            metadata: 0,
        }
    }

    fn play(mode: BodyMode, messages: Vec<ProcessingRequest>) -> Vec<Out> {
        let mut driver = Self::new(mode);
        for message in messages {
            driver.receive(message);
        }
        driver.out
    }

    fn receive(&mut self, message: ProcessingRequest) {
        self.exchange.receive(message);
        while let Some(step) = self.exchange.next_step() {
            let out = match step {
                Step::Answer(answer) => self.read(answer),
                Step::Pick(_, body) => {
                    if self.refuse {
                        self.exchange.refuse(Reason::Unavailable, "none");
                    } else {
                        self.exchange.picked("10.0.0.1:8000");
                    }
                    Out::Pick(match body {
                        RequestBody::Unseen => Seen::Unseen,
                        RequestBody::Whole(bytes) => Seen::Whole(bytes),
                        RequestBody::Partial(bytes) => Seen::Partial(bytes),
                    })
                }
                Step::Tell(news) => Out::Tell(news),
                Step::Odd(oddity) => Out::Odd(oddity),
                Step::UnparsedSubset(_) => continue,
                Step::End(reason) => Out::End(reason),
            };
            self.out.push(out);
        }
    }

    fn read(&mut self, answer: ProcessingResponse) -> Out {
        self.metadata += usize::from(answer.dynamic_metadata.is_some());
        let out = match answer.response.unwrap() {
            Response::RequestHeaders(headers) => {
                let common = headers.response.unwrap();
                assert!(common.clear_route_cache);
                Out::Headers(Direction::Request, sets_destination(&common))
            }
            Response::ResponseHeaders(_) => Out::Headers(Direction::Response, false),
            Response::RequestBody(body) => read_body(Direction::Request, body),
            Response::ResponseBody(body) => read_body(Direction::Response, body),
            Response::RequestTrailers(_) => Out::Trailers(Direction::Request),
            Response::ResponseTrailers(_) => Out::Trailers(Direction::Response),
            Response::ImmediateResponse(immediate) => {
                Out::Immediate(immediate.status.unwrap().code)
            }
        };
        if matches!(&out, Out::Headers(_, true) | Out::Body(_, true)) {
            assert!(answer.dynamic_metadata.is_some());
        }
        out
    }
}

fn sets_destination(common: &CommonResponse) -> bool {
    common.header_mutation.as_ref().is_some_and(|mutation| {
        mutation.set_headers.iter().any(|option| {
            let header = option.header.as_ref().unwrap();
            assert!(header.value.is_empty());
            header.key == DESTINATION && header.raw_value == "10.0.0.1:8000"
        })
    })
}

fn read_body(direction: Direction, body: BodyResponse) -> Out {
    let common = body.response.unwrap();
    match common.body_mutation.clone().and_then(|body| body.mutation) {
        Some(Mutation::StreamedResponse(chunk)) => {
            Out::Chunk(direction, chunk.body, chunk.end_of_stream)
        }
        Some(other) => panic!("a body was replaced: {other:?}"),
        None => Out::Body(direction, sets_destination(&common)),
    }
}

fn message(request: Request) -> ProcessingRequest {
    ProcessingRequest {
        request: Some(request),
        ..ProcessingRequest::default()
    }
}

fn headers(pairs: &[(&str, &str)], end_of_stream: bool) -> HttpHeaders {
    let headers = pairs
        .iter()
        .map(|(key, value)| HeaderValue {
            key: (*key).to_owned(),
            value: String::new(),
            raw_value: Bytes::copy_from_slice(value.as_bytes()),
        })
        .collect();
    HttpHeaders {
        headers: Some(HeaderMap { headers }),
        end_of_stream,
    }
}

fn request_headers(end: bool) -> ProcessingRequest {
    let pairs = [(":method", "POST"), (":path", "/v1/completions")];
    message(Request::RequestHeaders(headers(&pairs, end)))
}

fn request_body(body: &'static str, end_of_stream: bool) -> ProcessingRequest {
    message(Request::RequestBody(HttpBody {
        body: Bytes::from_static(body.as_bytes()),
        end_of_stream,
    }))
}

fn request_trailers() -> ProcessingRequest {
    message(Request::RequestTrailers(HttpTrailers::default()))
}

fn response_headers(status: &str, end: bool) -> ProcessingRequest {
    let pairs = [(":status", status), ("content-type", "text/event-stream")];
    message(Request::ResponseHeaders(headers(&pairs, end)))
}

fn response_body(body: &'static str, end_of_stream: bool) -> ProcessingRequest {
    message(Request::ResponseBody(HttpBody {
        body: Bytes::from_static(body.as_bytes()),
        end_of_stream,
    }))
}

fn response_trailers() -> ProcessingRequest {
    message(Request::ResponseTrailers(HttpTrailers::default()))
}

fn chunk(body: &'static str, end: bool) -> Out {
    Out::Chunk(Direction::Request, Bytes::from_static(body.as_bytes()), end)
}

fn back(body: &'static str, end: bool) -> Out {
    Out::Chunk(
        Direction::Response,
        Bytes::from_static(body.as_bytes()),
        end,
    )
}

fn whole(body: &'static str) -> Out {
    Out::Pick(Seen::Whole(Bytes::from_static(body.as_bytes())))
}

const SENT: Out = Out::Headers(Direction::Request, true);
const HELD_BACK: Out = Out::Headers(Direction::Request, false);
const UNSEEN: Out = Out::Pick(Seen::Unseen);

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
    let mutation = answer.response.unwrap().header_mutation.unwrap();
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
        response_body("data: {\"choices\":[]}\n\nda", false),
        response_body("ta: {\"usage\":{\"prompt_tok", false),
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
            back("data: {\"choices\":[]}\n\nda", false),
            back("ta: {\"usage\":{\"prompt_tok", false),
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
fn closing_means_what_was_shown() {
    let close = |mode, messages: Vec<ProcessingRequest>| {
        let mut driver = Driver::new(mode);
        messages
            .into_iter()
            .for_each(|message| driver.receive(message));
        driver.exchange.close()
    };
    let duplex = BodyMode::FullDuplexStreamed;
    let request = || vec![request_headers(false), request_body("{}", true)];
    let with = |more: Vec<ProcessingRequest>| [request(), more].concat();
    assert_eq!(close(duplex, vec![]), Close::Cancelled);
    assert_eq!(
        close(duplex, vec![request_headers(false)]),
        Close::Cancelled
    );
    assert_eq!(close(duplex, request()), Close::NoResponsePhase);
    assert_eq!(close(BodyMode::Buffered, request()), Close::NoResponsePhase);
    assert_eq!(
        close(BodyMode::None, vec![request_headers(false)]),
        Close::NoResponsePhase
    );
    assert_eq!(
        close(
            BodyMode::None,
            vec![request_headers(false), response_headers("200", false)]
        ),
        Close::NoResponsePhase
    );
    assert_eq!(
        close(
            BodyMode::None,
            vec![request_headers(false), response_headers("404", false)]
        ),
        Close::Completed
    );
    assert_eq!(
        close(duplex, with(vec![response_headers("200", false)])),
        Close::Cancelled
    );
    assert_eq!(
        close(duplex, with(vec![response_headers("204", true)])),
        Close::Completed
    );
}

const MODES: [BodyMode; 5] = [
    BodyMode::None,
    BodyMode::Streamed,
    BodyMode::Buffered,
    BodyMode::BufferedPartial,
    BodyMode::FullDuplexStreamed,
];

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

fn count(out: &[Out], wanted: impl Fn(&Out) -> bool) -> usize {
    out.iter().filter(|out| wanted(out)).count()
}

fn echoed(out: &[Out], direction: Direction) -> (Vec<u8>, usize) {
    let (mut bytes, mut ends) = (Vec::new(), 0);
    for piece in out {
        if let Out::Chunk(way, chunk, end) = piece
            && *way == direction
        {
            assert!(chunk.len() <= MAX_CHUNK_BYTES);
            assert_eq!(ends, 0, "a chunk after the last");
            bytes.extend_from_slice(chunk);
            ends += usize::from(*end);
        }
    }
    (bytes, ends)
}

fn received(messages: &[ProcessingRequest], direction: Direction) -> (Vec<u8>, bool) {
    let (mut bytes, mut end) = (Vec::new(), false);
    for message in messages {
        let body = match (&message.request, direction) {
            (Some(Request::RequestBody(body)), Direction::Request)
            | (Some(Request::ResponseBody(body)), Direction::Response) => body,
            _ => continue,
        };
        bytes.extend_from_slice(&body.body);
        end |= body.end_of_stream;
    }
    (bytes, end)
}

proptest! {
    #[test]
    fn no_order_of_messages_breaks_the_promises(
        mode in prop::sample::select(MODES.to_vec()),
        messages in prop::collection::vec(any_message(), 0..12),
        refuse in any::<bool>(),
    ) {
        let mut driver = Driver::new(mode);
        driver.refuse = refuse;
        for message in messages.clone() {
            driver.receive(message);
        }
        let out = &driver.out;
        for direction in [Direction::Request, Direction::Response] {
            prop_assert!(count(out, |o| matches!(o, Out::Headers(d, _) if *d == direction)) <= 1);
            prop_assert!(count(out, |o| *o == Out::Trailers(direction)) <= 1);
            let (sent, ends) = echoed(out, direction);
            let (came, ended) = received(&messages, direction);
            prop_assert!(came.starts_with(&sent));
            prop_assert!(ends == 0 || ended);
            // A body answer of either kind goes to a message, or was cut from one.
            if mode != BodyMode::FullDuplexStreamed {
                prop_assert!(sent.is_empty());
            }
        }
        prop_assert!(count(out, |o| matches!(o, Out::Pick(_))) <= 1);
        prop_assert!(count(out, |o| *o == Out::Tell(News::FirstData)) <= 1);
        prop_assert!(count(out, |o| *o == Out::Tell(News::Completed)) <= 1);
        prop_assert_eq!(driver.metadata, usize::from(!refuse && count(out, |o| matches!(o, Out::Pick(_))) == 1));
        if let Some(end) = out.iter().position(|o| matches!(o, Out::End(_))) {
            prop_assert_eq!(end + 1, out.len());
            prop_assert!(matches!(out[end - 1], Out::Immediate(_)));
        }
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
        prop_assert_eq!(driver.exchange.close(), Close::Completed);
    }
}
