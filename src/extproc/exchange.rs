//! What happens in one HTTP exchange? A state machine: messages of the gateway in, steps out.
//!
//! Pure: it neither waits nor counts. Whoever drives it takes every step before the next message, and after
//! `Step::Pick` calls `Exchange::picked` or `Exchange::refuse` first. For any messages in any order it holds:
//! each phase is answered at most once, body bytes go back exactly as they came, `end_of_stream` goes back once and
//! only where it came, and after a refusal nothing is said.

mod request;
mod response;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use self::request::RequestSide;
use self::response::ResponseSide;
use super::pick::{Destination, RequestBody, RequestHead, Usage};
use super::proto::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use super::proto::envoy::service::ext_proc::v3::{
    ProcessingRequest, ProcessingResponse, processing_request::Request,
};
use super::reply::{self, MAX_CHUNK_BYTES};
use crate::metrics::wire::{Direction, Oddity, Reason};

/// How the gateway hands over a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyMode {
    /// Nothing is sent.
    None,
    /// Chunks, each answered at once.
    Streamed,
    /// One message with the whole body.
    Buffered,
    /// One message with the body or its beginning.
    BufferedPartial,
    /// Chunks, answered when we like.
    FullDuplexStreamed,
}

/// Whether the headers of the gateway conformance suite have a meaning. They let any client choose its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestHeaders {
    /// They are headers like any other.
    Ignored,
    /// One restricts the pick, another tells who served.
    Obeyed,
}

/// What is to be done next.
#[derive(Debug)]
pub(super) enum Step {
    /// Send this to the gateway.
    Answer(ProcessingResponse),
    /// Make the pick.
    Pick(RequestHead, RequestBody),
    /// Tell the flight, if there is one.
    Tell(News),
    /// Count this.
    Odd(Oddity),
    /// Count that many entries of a subset hint that could not be read.
    UnparsedSubset(usize),
    /// We refused: end the stream.
    End(Reason),
}

/// What the response phase tells.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Response headers came with this status.
    Started(u16),
    /// The endpoint takes no requests for now.
    Refused(Option<Duration>),
    /// The gateway says who served.
    ServedBy(SocketAddr),
    /// The first data of the answer came.
    FirstData,
    /// More data of the answer came.
    MoreData,
    /// The engine's own figures.
    Usage(Usage),
    /// The answer passed in full.
    Completed,
}

/// How the gateway ends a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It half-closes: in good order.
    HalfClose,
    /// It resets the stream.
    Reset,
}

/// What it means that the gateway ends the stream.
///
/// Envoy leaves as soon as it has the last answer that its configuration asks for, which is before the prefill when it
/// shows us nothing of the response. It half-closes with `ext_proc_graceful_grpc_close`, and resets by default (seen
/// with 1.40); a client that leaves makes it reset as well. So after a request that went on, a half-close before any
/// response means that none will be shown, and so does a reset where the response's body mode is NONE; where a
/// response was to be shown, a reset means that the client left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Close {
    /// All is done.
    Completed,
    /// The request went on, and no data of the response was or will be shown.
    NoResponsePhase,
    /// In the middle of something.
    Cancelled,
}

/// The state of one exchange.
#[derive(Debug)]
pub(super) struct Exchange {
    request: RequestSide,
    response: ResponseSide,
    steps: VecDeque<Step>,
    refused: bool,
}

impl Exchange {
    /// Nothing came yet; `mode` holds for both bodies unless the gateway says otherwise.
    pub(super) fn new(mode: BodyMode, max_body_bytes: usize, test_headers: TestHeaders) -> Self {
        Self {
            request: RequestSide::new(mode, max_body_bytes, test_headers),
            response: ResponseSide::new(mode, test_headers),
            steps: VecDeque::new(),
            refused: false,
        }
    }

    /// Takes a message.
    pub(super) fn receive(&mut self, message: ProcessingRequest) {
        if self.refused {
            return;
        }
        let steps = &mut self.steps;
        if let Some(config) = message.protocol_config {
            set_mode(&mut self.request.mode, config.request_body_mode, steps);
            set_mode(&mut self.response.mode, config.response_body_mode, steps);
        }
        let metadata = message.metadata_context;
        match message.request {
            Some(Request::RequestHeaders(headers)) => {
                self.request.headers(headers, &metadata, steps);
            }
            Some(Request::RequestBody(body)) => {
                if let Err(error) = self.request.body(body, &metadata, steps) {
                    self.refuse(Reason::TooLarge, &error.to_string());
                }
            }
            Some(Request::RequestTrailers(_)) => self.request.trailers(steps),
            Some(Request::ResponseHeaders(headers)) => {
                self.request.abandon();
                self.response.headers(headers, &metadata, steps);
            }
            Some(Request::ResponseBody(body)) => {
                self.request.abandon();
                self.response.body(body, &metadata, steps);
            }
            Some(Request::ResponseTrailers(_)) => {
                self.request.abandon();
                self.response.trailers(&metadata, steps);
            }
            None => steps.push_back(Step::Odd(Oddity::Empty)),
        }
    }

    /// The pick was made: the request goes to `destination`.
    pub(super) fn picked(&mut self, destination: Destination<'_>) {
        self.request.picked(destination, &mut self.steps);
    }

    /// Answers the client instead of an engine, and ends the stream.
    pub(super) fn refuse(&mut self, reason: Reason, message: &str) {
        self.request.abandon();
        self.refused = true;
        self.steps
            .push_back(Step::Answer(reply::refusal(reason, message)));
        self.steps.push_back(Step::End(reason));
    }

    /// What to do next, in order; `None`: wait for the next message.
    pub(super) fn next_step(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// The rest of a request body is due, and what came of it is held.
    pub(super) fn gathers(&self) -> bool {
        self.request.gathers()
    }

    /// The next body message would be held for the pick.
    pub(super) fn would_hold_body(&self) -> bool {
        self.request.would_hold_body()
    }

    /// A refusal still has a meaning: no response was shown.
    pub(super) fn may_refuse(&self) -> bool {
        !self.refused && !self.response.began()
    }

    /// What it means that the gateway ends the stream now.
    pub(super) fn close(&self, end: End) -> Close {
        let hidden = match end {
            End::HalfClose => !self.response.began() || self.response.keeps_body(),
            End::Reset => self.response.mode == BodyMode::None,
        };
        if self.response.ended() {
            Close::Completed
        } else if hidden && self.request.sent_on() {
            Close::NoResponsePhase
        } else {
            Close::Cancelled
        }
    }
}

fn set_mode(mode: &mut BodyMode, told: i32, steps: &mut VecDeque<Step>) {
    match BodySendMode::try_from(told) {
        Ok(BodySendMode::None) => *mode = BodyMode::None,
        Ok(BodySendMode::Streamed) => *mode = BodyMode::Streamed,
        Ok(BodySendMode::Buffered) => *mode = BodyMode::Buffered,
        Ok(BodySendMode::BufferedPartial) => *mode = BodyMode::BufferedPartial,
        Ok(BodySendMode::FullDuplexStreamed) => *mode = BodyMode::FullDuplexStreamed,
        Err(_) => steps.push_back(Step::Odd(Oddity::UnknownMode)),
    }
}

/// Hands a body back in chunks that Envoy takes; an empty one only to say that it ended.
fn hand_back(
    direction: Direction,
    mut body: Bytes,
    end_of_stream: bool,
    steps: &mut VecDeque<Step>,
) {
    while body.len() > MAX_CHUNK_BYTES {
        let chunk = body.split_to(MAX_CHUNK_BYTES);
        steps.push_back(Step::Answer(reply::chunk(direction, chunk, false)));
    }
    if end_of_stream || !body.is_empty() {
        steps.push_back(Step::Answer(reply::chunk(direction, body, end_of_stream)));
    }
}
