//! An exchange as tests and the fuzzer play it, what went out in short, and the promises that hold for any messages.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "compiled for tests and the fuzzer alone: what is missing here is a finding"
)]

use super::*;
use crate::extproc::metadata::DESTINATION;
use crate::extproc::proto::envoy::service::ext_proc::v3::{
    BodyResponse, CommonResponse, body_mutation::Mutation, processing_response::Response,
};

/// Longest body that is taken.
pub(super) const CAP: usize = 300_000;

/// What went out, in order and in short.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Out {
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
pub(super) enum Seen {
    Unseen,
    Whole(Bytes),
    Partial(Bytes),
}

pub(super) struct Driver {
    pub(super) exchange: Exchange,
    pub(super) out: Vec<Out>,
    pub(super) refuse: bool,
    pub(super) rank: Option<u32>,
    pub(super) metadata: usize,
}

impl Driver {
    #[cfg(test)]
    pub(super) fn new(mode: BodyMode) -> Self {
        Self::with(mode, TestHeaders::Ignored)
    }

    pub(super) fn with(mode: BodyMode, test_headers: TestHeaders) -> Self {
        Self {
            exchange: Exchange::new(mode, CAP, test_headers),
            out: Vec::new(),
            refuse: false,
            rank: None,
            metadata: 0,
        }
    }

    #[cfg(test)]
    pub(super) fn play(mode: BodyMode, messages: Vec<ProcessingRequest>) -> Vec<Out> {
        let mut driver = Self::new(mode);
        for message in messages {
            driver.receive(message);
        }
        driver.out
    }

    pub(super) fn receive(&mut self, message: ProcessingRequest) {
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

/// All body modes.
pub(super) const MODES: [BodyMode; 5] = [
    BodyMode::None,
    BodyMode::Streamed,
    BodyMode::Buffered,
    BodyMode::BufferedPartial,
    BodyMode::FullDuplexStreamed,
];

/// How many steps are such.
pub(super) fn count(out: &[Out], wanted: impl Fn(&Out) -> bool) -> usize {
    out.iter().filter(|out| wanted(out)).count()
}

/// The bytes handed back one way, and how often their end was told.
pub(super) fn echoed(out: &[Out], direction: Direction) -> (Vec<u8>, usize) {
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

/// The bytes that came one way, and whether their end was told.
pub(super) fn received(messages: &[ProcessingRequest], direction: Direction) -> (Vec<u8>, bool) {
    let (mut bytes, mut end) = (Vec::new(), false);
    for message in messages {
        let ((Some(Request::RequestBody(body)), Direction::Request)
        | (Some(Request::ResponseBody(body)), Direction::Response)) = (&message.request, direction)
        else {
            continue;
        };
        bytes.extend_from_slice(&body.body);
        end |= body.end_of_stream;
    }
    (bytes, end)
}

/// Plays these messages and checks what must hold whatever they are.
pub(super) fn keeps_its_promises(
    mode: BodyMode,
    test_headers: TestHeaders,
    refuse: bool,
    messages: &[ProcessingRequest],
) {
    let mut driver = Driver::with(mode, test_headers);
    driver.refuse = refuse;
    for message in messages {
        driver.receive(message.clone());
    }
    let out = &driver.out;
    for direction in [Direction::Request, Direction::Response] {
        assert!(count(out, |o| matches!(o, Out::Headers(d, _) if *d == direction)) <= 1);
        assert!(count(out, |o| *o == Out::Trailers(direction)) <= 1);
        let (sent, ends) = echoed(out, direction);
        let (came, ended) = received(messages, direction);
        assert!(came.starts_with(&sent));
        assert!(ends == 0 || ended);
        // A body answer of either kind goes to a message, or was cut from one.
        if mode != BodyMode::FullDuplexStreamed {
            assert!(sent.is_empty());
        }
    }
    assert!(count(out, |o| matches!(o, Out::Pick(_))) <= 1);
    assert!(count(out, |o| *o == Out::Tell(News::FirstData)) <= 1);
    assert!(count(out, |o| *o == Out::Tell(News::Completed)) <= 1);
    assert_eq!(
        driver.metadata,
        usize::from(!refuse && count(out, |o| matches!(o, Out::Pick(_))) == 1)
    );
    if let Some(end) = out.iter().position(|o| matches!(o, Out::End(_))) {
        assert_eq!(end + 1, out.len());
        assert!(matches!(out[end - 1], Out::Immediate(_)));
    }
}

/// What [`super::fuzz`] does.
#[cfg(fuzzing)]
pub(super) fn fuzz(input: &[u8]) {
    use prost::Message as _;

    let Some((&first, mut rest)) = input.split_first() else {
        return;
    };
    let mode = MODES[usize::from(first) % MODES.len()];
    let test_headers = if first & 0x40 == 0 {
        TestHeaders::Ignored
    } else {
        TestHeaders::Obeyed
    };
    let mut messages = Vec::new();
    while let Some((length, behind)) = rest.split_at_checked(2) {
        let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
        let (message, behind) = behind.split_at(length.min(behind.len()));
        messages.extend(ProcessingRequest::decode(message));
        rest = behind;
    }
    keeps_its_promises(mode, test_headers, first & 0x80 != 0, &messages);
}
