//! How does the request get its destination, in each body mode?
//!
//! | mode | pick | destination goes with |
//! | --- | --- | --- |
//! | FULL_DUPLEX_STREAMED | body complete (its end, or trailers) | the headers answer, held until then |
//! | BUFFERED, BUFFERED_PARTIAL | the one body message | the body answer: headers must be answered before it comes |
//! | STREAMED, NONE | headers | the headers answer |
//! | any, without a body or as a tunnel | headers | the headers answer |

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::{BodyMode, Step, TestHeaders, hand_back};
use crate::extproc::metadata::Subset;
use crate::extproc::pick::{Destination, RequestBody, RequestHead};
use crate::extproc::proto::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, ProcessingResponse,
};
use crate::extproc::{head, metadata, reply};
use crate::metrics::wire::{Direction, Oddity};

/// The body is over the cap.
#[derive(Debug, thiserror::Error)]
#[error("the request body is over {0} bytes")]
pub(super) struct TooLarge(usize);

#[derive(Debug)]
pub(super) struct RequestSide {
    pub(super) mode: BodyMode,
    max_body_bytes: usize,
    test_headers: TestHeaders,
    /// The conformance suite said whom the pick is restricted to, and the gateway's own hint counts no more.
    selected: bool,
    phase: Phase,
    trailers_answered: bool,
}

#[derive(Debug)]
enum Phase {
    /// Nothing came.
    Expected,
    /// The body is gathered for the pick.
    Gathering {
        head: RequestHead,
        chunks: Vec<Bytes>,
        bytes: usize,
        headers_owed: bool,
    },
    /// The pick is being made; these answers wait for it.
    Picking(Owed),
    /// Picked; what still comes of the request passes through.
    Passing { ended: bool },
    /// The request ended without a pick: refused, or the response began before it was complete.
    Abandoned,
}

#[derive(Debug, Default)]
struct Owed {
    headers: bool,
    body: OwedBody,
    trailers: bool,
    /// The request is complete; nothing of it follows.
    ended: bool,
}

#[derive(Debug, Default)]
enum OwedBody {
    #[default]
    Nothing,
    /// Envoy keeps it: it goes on unchanged.
    Kept,
    /// Envoy did not keep it: it goes back, with the mark of its end if that came.
    Held { bytes: Bytes, end_of_stream: bool },
}

impl RequestSide {
    pub(super) fn new(mode: BodyMode, max_body_bytes: usize, test_headers: TestHeaders) -> Self {
        Self {
            mode,
            max_body_bytes,
            test_headers,
            selected: false,
            phase: Phase::Expected,
            trailers_answered: false,
        }
    }

    pub(super) fn headers(
        &mut self,
        headers: HttpHeaders,
        metadata: &Bytes,
        steps: &mut VecDeque<Step>,
    ) {
        if !matches!(self.phase, Phase::Expected) {
            steps.push_back(Step::Odd(Oddity::OutOfOrder));
            return;
        }
        let head::Request {
            mut head,
            tunnel,
            client_destination,
            test_selection,
        } = head::request(headers.headers);
        match test_selection {
            Some(list) if self.test_headers == TestHeaders::Obeyed => {
                self.selected = true;
                restrict(&mut head, metadata::test_selection(&list), steps);
            }
            _ => read_subset(&mut head, metadata, steps),
        }
        let no_body = headers.end_of_stream || matches!(self.mode, BodyMode::None);
        if no_body || tunnel || matches!(self.mode, BodyMode::Streamed) {
            let owed = Owed {
                headers: true,
                ended: headers.end_of_stream || (no_body && !tunnel),
                ..Owed::default()
            };
            self.pick(head, RequestBody::Unseen, owed, steps);
            return;
        }
        let held = matches!(self.mode, BodyMode::FullDuplexStreamed);
        if !held {
            steps.push_back(Step::Answer(reply::headers_before_pick(client_destination)));
        }
        self.phase = Phase::Gathering {
            head,
            chunks: Vec::new(),
            bytes: 0,
            headers_owed: held,
        };
    }

    pub(super) fn body(
        &mut self,
        body: HttpBody,
        metadata: &Bytes,
        steps: &mut VecDeque<Step>,
    ) -> Result<(), TooLarge> {
        match &self.phase {
            Phase::Expected => {
                // The gateway skips request headers: all we know is the body.
                self.phase = Phase::Gathering {
                    head: RequestHead::default(),
                    chunks: Vec::new(),
                    bytes: 0,
                    headers_owed: false,
                };
                self.gather(body, metadata, steps)
            }
            Phase::Gathering { .. } => self.gather(body, metadata, steps),
            Phase::Picking(_) => {
                steps.push_back(Step::Odd(Oddity::OutOfOrder));
                Ok(())
            }
            Phase::Passing { ended } => {
                let ended = *ended;
                self.pass(body, ended, steps);
                Ok(())
            }
            Phase::Abandoned => {
                steps.push_back(Step::Odd(Oddity::OutOfOrder));
                Ok(())
            }
        }
    }

    pub(super) fn trailers(&mut self, steps: &mut VecDeque<Step>) {
        if std::mem::replace(&mut self.trailers_answered, true) {
            steps.push_back(Step::Odd(Oddity::OutOfOrder));
            return;
        }
        match std::mem::replace(&mut self.phase, Phase::Abandoned) {
            Phase::Expected => {
                let owed = Owed {
                    trailers: true,
                    ended: true,
                    ..Owed::default()
                };
                self.pick(RequestHead::default(), RequestBody::Unseen, owed, steps);
            }
            Phase::Gathering {
                head,
                chunks,
                headers_owed,
                ..
            } => {
                let bytes = join(chunks);
                let seen = match self.mode {
                    BodyMode::FullDuplexStreamed => RequestBody::Whole(bytes.clone()),
                    // The body message that would show it never came.
                    _ => RequestBody::Unseen,
                };
                let owed = Owed {
                    headers: headers_owed,
                    body: OwedBody::Held {
                        bytes,
                        end_of_stream: false,
                    },
                    trailers: true,
                    ended: true,
                };
                self.pick(head, seen, owed, steps);
            }
            Phase::Passing { .. } => {
                self.phase = Phase::Passing { ended: true };
                steps.push_back(Step::Answer(reply::trailers(Direction::Request)));
            }
            // The driver sends nothing while a pick is made; an abandoned request needs no answer.
            phase @ (Phase::Picking(_) | Phase::Abandoned) => {
                self.phase = phase;
                steps.push_back(Step::Odd(Oddity::OutOfOrder));
            }
        }
    }

    /// Answers what waited for the pick: headers, body, trailers, the destination with the first that can carry it.
    pub(super) fn picked(&mut self, destination: Destination<'_>, steps: &mut VecDeque<Step>) {
        let Phase::Picking(owed) = &mut self.phase else {
            return;
        };
        let owed = std::mem::take(owed);
        self.phase = Phase::Passing { ended: owed.ended };
        let first = steps.len();
        if owed.headers {
            steps.push_back(Step::Answer(reply::headers_to(destination)));
        }
        match owed.body {
            OwedBody::Nothing => {}
            OwedBody::Kept => steps.push_back(Step::Answer(reply::body_to(destination))),
            OwedBody::Held {
                bytes,
                end_of_stream,
            } => hand_back(Direction::Request, bytes, end_of_stream, steps),
        }
        if owed.trailers {
            steps.push_back(Step::Answer(reply::trailers(Direction::Request)));
        }
        if let Some(Step::Answer(answer)) = steps.get_mut(first) {
            ensure_metadata(answer, destination);
        }
    }

    /// The response began, or we refused: what was held is let go.
    pub(super) fn abandon(&mut self) {
        if !matches!(self.phase, Phase::Passing { .. }) {
            self.phase = Phase::Abandoned;
        }
    }

    pub(super) fn gathers(&self) -> bool {
        matches!(self.phase, Phase::Gathering { .. })
    }

    pub(super) fn would_hold_body(&self) -> bool {
        matches!(self.phase, Phase::Gathering { .. } | Phase::Expected)
    }

    /// It went to an engine in full.
    pub(super) fn sent_on(&self) -> bool {
        matches!(self.phase, Phase::Passing { ended: true })
    }

    fn gather(
        &mut self,
        body: HttpBody,
        metadata: &Bytes,
        steps: &mut VecDeque<Step>,
    ) -> Result<(), TooLarge> {
        let Phase::Gathering {
            head,
            chunks,
            bytes,
            headers_owed,
        } = &mut self.phase
        else {
            return Ok(());
        };
        if !self.selected {
            read_subset(head, metadata, steps);
        }
        *bytes = bytes.saturating_add(body.body.len());
        if *bytes > self.max_body_bytes {
            return Err(TooLarge(self.max_body_bytes));
        }
        if !body.body.is_empty() {
            chunks.push(body.body);
        }
        let ended = body.end_of_stream;
        if self.mode == BodyMode::FullDuplexStreamed && !ended {
            return Ok(());
        }
        let headers = *headers_owed;
        let (head, whole) = (std::mem::take(head), join(std::mem::take(chunks)));
        let (seen, body) = match self.mode {
            BodyMode::FullDuplexStreamed => {
                let held = OwedBody::Held {
                    bytes: whole.clone(),
                    end_of_stream: true,
                };
                (RequestBody::Whole(whole), held)
            }
            // Envoy marks no end when trailers follow, so a buffered body without it is whole all the same.
            BodyMode::Buffered => (RequestBody::Whole(whole), OwedBody::Kept),
            BodyMode::BufferedPartial if ended => (RequestBody::Whole(whole), OwedBody::Kept),
            BodyMode::BufferedPartial => (RequestBody::Partial(whole), OwedBody::Kept),
            BodyMode::Streamed | BodyMode::None => (RequestBody::Unseen, OwedBody::Kept),
        };
        let owed = Owed {
            headers,
            body,
            trailers: false,
            // A buffered body is all that the gateway shows, whether trailers follow or not.
            ended: ended || self.mode != BodyMode::Streamed,
        };
        self.pick(head, seen, owed, steps);
        Ok(())
    }

    /// Body after the pick: of a tunnel, in STREAMED mode, or the last chunk once more (envoy#46237).
    fn pass(&mut self, body: HttpBody, ended: bool, steps: &mut VecDeque<Step>) {
        if self.mode != BodyMode::FullDuplexStreamed {
            // Envoy keeps the chunk and waits for exactly one answer to each.
            steps.push_back(Step::Answer(reply::body(Direction::Request)));
        } else if ended {
            steps.push_back(Step::Odd(Oddity::DuplicateEnd));
            return;
        } else {
            hand_back(Direction::Request, body.body, body.end_of_stream, steps);
        }
        self.phase = Phase::Passing {
            ended: ended || body.end_of_stream,
        };
    }

    fn pick(
        &mut self,
        head: RequestHead,
        body: RequestBody,
        owed: Owed,
        steps: &mut VecDeque<Step>,
    ) {
        self.phase = Phase::Picking(owed);
        steps.push_back(Step::Pick(head, body));
    }
}

/// The gateway repeats its metadata with every message; a later hint replaces an earlier one.
fn read_subset(head: &mut RequestHead, metadata: &Bytes, steps: &mut VecDeque<Step>) {
    match metadata::subset(metadata) {
        Ok(Some(subset)) => restrict(head, subset, steps),
        Ok(None) => {}
        Err(oddity) => steps.push_back(Step::Odd(oddity)),
    }
}

fn restrict(head: &mut RequestHead, subset: Subset, steps: &mut VecDeque<Step>) {
    if subset.unparsed > 0 {
        steps.push_back(Step::UnparsedSubset(subset.unparsed));
    }
    head.subset = Some(subset.entries);
}

/// One message is the usual case and costs nothing; several are copied once.
fn join(mut chunks: Vec<Bytes>) -> Bytes {
    if chunks.len() < 2 {
        return chunks.pop().unwrap_or_default();
    }
    let mut whole = BytesMut::with_capacity(chunks.iter().map(Bytes::len).sum());
    for chunk in chunks {
        whole.extend_from_slice(&chunk);
    }
    whole.freeze()
}

fn ensure_metadata(answer: &mut ProcessingResponse, destination: Destination<'_>) {
    if answer.dynamic_metadata.is_none() {
        reply::add_metadata(answer, destination);
    }
}
