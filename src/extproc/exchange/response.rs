//! How does the response pass? Each message is answered as it comes, its bytes untouched, while we read along.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{BodyMode, News, Step, TestHeaders, hand_back};
use crate::extproc::answer::{AnswerReader, Seen};
use crate::extproc::head::Refusal;
use crate::extproc::proto::envoy::service::ext_proc::v3::{HttpBody, HttpHeaders};
use crate::extproc::{head, metadata, reply};
use crate::metrics::wire::{Direction, Oddity};

#[derive(Debug)]
pub(super) struct ResponseSide {
    pub(super) mode: BodyMode,
    test_headers: TestHeaders,
    phase: Phase,
    served_known: bool,
    trailers_answered: bool,
}

#[derive(Debug)]
enum Phase {
    Expected,
    Passing(Box<AnswerReader>),
    Over,
}

impl ResponseSide {
    pub(super) fn new(mode: BodyMode, test_headers: TestHeaders) -> Self {
        Self {
            mode,
            test_headers,
            phase: Phase::Expected,
            served_known: false,
            trailers_answered: false,
        }
    }

    pub(super) fn headers(
        &mut self,
        headers: HttpHeaders,
        metadata: &Bytes,
        steps: &mut VecDeque<Step>,
    ) {
        if self.began() {
            steps.push_back(Step::Odd(Oddity::OutOfOrder));
            return;
        }
        let head = head::response(headers.headers);
        self.phase = Phase::Passing(Box::new(AnswerReader::new(Some(head))));
        // First who served: the status says something of that endpoint.
        self.read_served(metadata, steps);
        if let Some(Refusal { retry_after }) = head.refusal {
            steps.push_back(Step::Tell(News::Refused(retry_after)));
        }
        steps.push_back(Step::Tell(News::Started(head.status)));
        steps.push_back(Step::Answer(match self.test_headers {
            TestHeaders::Ignored => reply::headers(Direction::Response),
            TestHeaders::Obeyed => reply::response_headers_with(
                metadata::TEST_SERVED,
                &metadata::test_served(metadata),
            ),
        }));
        // An error whose body we are not shown tells all there is to know by its status.
        if headers.end_of_stream || (self.mode == BodyMode::None && head.status >= 400) {
            self.finish(steps);
        }
    }

    pub(super) fn body(&mut self, body: HttpBody, metadata: &Bytes, steps: &mut VecDeque<Step>) {
        if !self.began() {
            // The gateway skips response headers.
            self.phase = Phase::Passing(Box::new(AnswerReader::new(None)));
        }
        self.read_served(metadata, steps);
        let duplex = self.mode == BodyMode::FullDuplexStreamed;
        if let Phase::Passing(reader) = &mut self.phase {
            match reader.feed(&body.body) {
                Seen::Nothing => {}
                Seen::FirstData => steps.push_back(Step::Tell(News::FirstData)),
                Seen::MoreData => steps.push_back(Step::Tell(News::MoreData)),
            }
        } else if duplex {
            steps.push_back(Step::Odd(Oddity::DuplicateEnd));
            return;
        }
        if duplex {
            hand_back(Direction::Response, body.body, body.end_of_stream, steps);
        } else {
            steps.push_back(Step::Answer(reply::body(Direction::Response)));
        }
        if body.end_of_stream {
            self.finish(steps);
        }
    }

    pub(super) fn trailers(&mut self, metadata: &Bytes, steps: &mut VecDeque<Step>) {
        if std::mem::replace(&mut self.trailers_answered, true) {
            steps.push_back(Step::Odd(Oddity::OutOfOrder));
            return;
        }
        if !self.began() {
            self.phase = Phase::Passing(Box::new(AnswerReader::new(None)));
        }
        self.read_served(metadata, steps);
        steps.push_back(Step::Answer(reply::trailers(Direction::Response)));
        self.finish(steps);
    }

    pub(super) fn began(&self) -> bool {
        !matches!(self.phase, Phase::Expected)
    }

    /// The response passed in full.
    pub(super) fn ended(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// The gateway shows the headers of this response and keeps its body from us.
    pub(super) fn keeps_body(&self) -> bool {
        self.mode == BodyMode::None && matches!(self.phase, Phase::Passing(_))
    }

    fn finish(&mut self, steps: &mut VecDeque<Step>) {
        let Phase::Passing(reader) = std::mem::replace(&mut self.phase, Phase::Over) else {
            return;
        };
        for _ in 0..reader.unreadable() {
            steps.push_back(Step::Odd(Oddity::Usage));
        }
        if let Some(usage) = reader.usage() {
            steps.push_back(Step::Tell(News::Usage(usage)));
        }
        steps.push_back(Step::Tell(News::Completed));
    }

    /// Envoy repeats its metadata with every message; it is looked at until it has told.
    fn read_served(&mut self, metadata: &Bytes, steps: &mut VecDeque<Step>) {
        if self.served_known {
            return;
        }
        match metadata::served(metadata) {
            Ok(Some(address)) => {
                self.served_known = true;
                steps.push_back(Step::Tell(News::ServedBy(address)));
            }
            Ok(None) => {}
            Err(oddity) => {
                // Once is enough: the same metadata would come with every chunk.
                self.served_known = true;
                steps.push_back(Step::Odd(oddity));
            }
        }
    }
}
