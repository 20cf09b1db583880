//! What does an engine's answer tell while it passes: that its prefill is done, and its token figures?
//!
//! Reads along; the bytes themselves go on untouched.

use super::head::{Content, Response};
use super::pick::Usage;
use super::sse::{Part, Splitter};
use super::usage::UsageFinder;

/// What a piece of a response's body tells of its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Nothing.
    Nothing,
    /// The first data of the answer is in it.
    FirstData,
    /// More of it.
    MoreData,
}

/// Reads one response's body.
#[derive(Debug)]
pub(super) struct AnswerReader {
    content: Content,
    /// An engine's error says nothing of a prefill.
    failed: bool,
    first_data: bool,
    events: Splitter,
    finder: UsageFinder,
}

impl AnswerReader {
    /// For a response with these headers; without any (the gateway skips them) nothing but its first bytes counts.
    pub(super) fn new(head: Option<Response>) -> Self {
        Self {
            content: head.map_or(Content::Opaque, |head| head.content),
            failed: head.is_some_and(|head| head.status >= 400),
            first_data: false,
            events: Splitter::default(),
            finder: UsageFinder::default(),
        }
    }

    /// Takes the next piece.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Seen {
        let mut data = !bytes.is_empty();
        let answers = match self.content {
            Content::Events => {
                let finder = &mut self.finder;
                // Comments keep the connection alive, whatever has become of the engine.
                data = false;
                self.events.feed(bytes, |part| match part {
                    Part::Data(bytes) => {
                        data = true;
                        finder.feed(bytes);
                    }
                    Part::End => finder.restart(),
                });
                self.events.answers()
            }
            Content::Json => {
                self.finder.feed(bytes);
                bytes.iter().any(|byte| !byte.is_ascii_whitespace())
            }
            Content::Opaque => !bytes.is_empty(),
        };
        if self.failed || !answers {
            return Seen::Nothing;
        }
        if !std::mem::replace(&mut self.first_data, true) {
            Seen::FirstData
        } else if data {
            Seen::MoreData
        } else {
            Seen::Nothing
        }
    }

    /// The figures found so far.
    pub(super) fn usage(&self) -> Option<Usage> {
        self.finder.usage()
    }

    /// Usage objects that could not be read.
    pub(super) fn unreadable(&self) -> usize {
        self.finder.unreadable()
    }
}

#[cfg(test)]
mod tests;
