//! Plays exchanges and writes down in short what goes out.

mod any_order;
mod cases;

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
    rank: Option<u32>,
    metadata: usize,
}

impl Driver {
    fn new(mode: BodyMode) -> Self {
        Self::with(mode, TestHeaders::Ignored)
    }

    fn with(mode: BodyMode, test_headers: TestHeaders) -> Self {
        Self {
            exchange: Exchange::new(mode, CAP, test_headers),
            out: Vec::new(),
            refuse: false,
            rank: None,
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
                        self.exchange.picked(Destination {
                            addresses: "10.0.0.1:8000",
                            rank: self.rank,
                        });
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
                assert_eq!(common.clear_route_cache, common.header_mutation.is_some());
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

const MODES: [BodyMode; 5] = [
    BodyMode::None,
    BodyMode::Streamed,
    BodyMode::Buffered,
    BodyMode::BufferedPartial,
    BodyMode::FullDuplexStreamed,
];
