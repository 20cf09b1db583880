//! Server-sent events that arrive in pieces cut anywhere: where does the data of each event begin and end?
//!
//! Nothing is kept but the name of the event and the first bytes of its data, which tell whether it is an answer or
//! something that an engine sends before or instead of one.

/// Bytes of an event's data (white space left out) that are enough to tell what it is.
const OPENING_BYTES: usize = 40;
/// Longer names than those we know are cut off.
const NAME_BYTES: usize = 32;

/// What a piece of a stream of events was found to hold.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// Data of the event at hand; a line feed stands between its lines.
    Data(&'a [u8]),
    /// The event ended.
    End,
}

/// Splits events.
#[derive(Debug, Default)]
pub(super) struct Splitter {
    line: Line,
    /// The line's field name so far, or the event's name so far.
    field: Vec<u8>,
    event: Vec<u8>,
    opening: Vec<u8>,
    has_data: bool,
    answers: bool,
    after_cr: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Line {
    /// Before the colon.
    #[default]
    Field,
    /// Just after the colon: one space is part of the syntax.
    Space(Value),
    /// After it.
    Value(Value),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Data,
    Event,
    Other,
}

impl Splitter {
    /// Takes the next piece and calls `part` with what is in it.
    pub(super) fn feed<'a>(&mut self, mut bytes: &'a [u8], mut part: impl FnMut(Part<'a>)) {
        while let Some((&first, rest)) = bytes.split_first() {
            if std::mem::take(&mut self.after_cr) && first == b'\n' {
                bytes = rest;
                continue;
            }
            if let Line::Space(value) = self.line {
                self.line = Line::Value(value);
                if first == b' ' {
                    bytes = rest;
                    continue;
                }
            }
            let stop = match self.line {
                Line::Field => bytes.iter().position(|b| matches!(b, b'\n' | b'\r' | b':')),
                Line::Space(_) | Line::Value(_) => {
                    bytes.iter().position(|b| matches!(b, b'\n' | b'\r'))
                }
            };
            let (text, after) = bytes.split_at(stop.unwrap_or(bytes.len()));
            self.text(text, &mut part);
            let Some((&end, after)) = after.split_first() else {
                return;
            };
            bytes = after;
            if end == b':' {
                self.colon(&mut part);
            } else {
                self.after_cr = end == b'\r';
                self.end_of_line(&mut part);
            }
        }
    }

    /// The first data of an answer has come: comments, errors, `[DONE]`, and what an engine says before it computes
    /// do not count.
    pub(super) fn answers(&self) -> bool {
        self.answers
    }

    fn text<'a>(&mut self, text: &'a [u8], part: &mut impl FnMut(Part<'a>)) {
        match self.line {
            Line::Field => keep(&mut self.field, text, NAME_BYTES),
            Line::Space(_) | Line::Value(Value::Other) => {}
            Line::Value(Value::Event) => keep(&mut self.event, text, NAME_BYTES),
            Line::Value(Value::Data) => {
                if !text.is_empty() {
                    self.look_at(text);
                    part(Part::Data(text));
                }
            }
        }
    }

    fn colon<'a>(&mut self, part: &mut impl FnMut(Part<'a>)) {
        let value = match self.field.as_slice() {
            b"data" => Value::Data,
            b"event" => Value::Event,
            // A comment has an empty name.
            _ => Value::Other,
        };
        match value {
            Value::Data if self.has_data => part(Part::Data(b"\n")),
            Value::Data => self.has_data = true,
            Value::Event => self.event.clear(),
            Value::Other => {}
        }
        self.line = Line::Space(value);
    }

    fn end_of_line<'a>(&mut self, part: &mut impl FnMut(Part<'a>)) {
        let blank = self.line == Line::Field && self.field.is_empty();
        self.field.clear();
        self.line = Line::Field;
        if blank {
            self.answers |= self.has_data && is_answer(&self.event, &self.opening);
            self.event.clear();
            self.opening.clear();
            if std::mem::take(&mut self.has_data) {
                part(Part::End);
            }
        }
    }

    /// An event that is long enough to be told need not be complete.
    fn look_at(&mut self, text: &[u8]) {
        if self.answers || self.opening.len() >= OPENING_BYTES {
            return;
        }
        let room = OPENING_BYTES - self.opening.len();
        let visible = text.iter().filter(|byte| !byte.is_ascii_whitespace());
        self.opening.extend(visible.take(room));
        if self.opening.len() >= OPENING_BYTES {
            self.answers = is_answer(&self.event, &self.opening);
        }
    }
}

fn keep(kept: &mut Vec<u8>, text: &[u8], most: usize) {
    let room = most.saturating_sub(kept.len());
    kept.extend(text.iter().take(room));
}

/// vLLM announces a response of the Responses API (`response.created`, `response.in_progress`) before the engine has
/// begun with it. The first event of the Messages API, `message_start`, it makes of the engine's first output, as with
/// chats, so that one does tell of a finished prefill.
fn is_answer(event: &[u8], opening: &[u8]) -> bool {
    const NOT_YET: [&[u8]; 6] = [
        b"error",
        b"ping",
        b"response.created",
        b"response.failed",
        b"response.in_progress",
        b"response.queued",
    ];
    const NO_ANSWER: [&[u8]; 8] = [
        b"[DONE]",
        br#"{"error""#,
        br#"{"object":"error""#,
        br#"{"type":"error""#,
        br#"{"type":"ping""#,
        br#"{"type":"response.created""#,
        br#"{"type":"response.in_progress""#,
        br#"{"type":"response.queued""#,
    ];
    // Without its name an event that begins with a whole response may be an announcement. An answer has other events.
    let unnamed_response = event.is_empty() && opening.starts_with(br#"{"response":{"#);
    !opening.is_empty()
        && !unnamed_response
        && !NOT_YET.contains(&event.trim_ascii())
        && !NO_ANSWER.iter().any(|start| opening.starts_with(start))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Events as a whole-text reader sees them.
    fn naive(text: &str) -> Vec<String> {
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let mut events = Vec::new();
        let mut data: Option<Vec<&str>> = None;
        // What follows the last line end is not a line yet.
        let lines = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
        for line in lines.split('\n').filter(|_| text.contains('\n')) {
            if line.is_empty() {
                events.extend(data.take().map(|lines| lines.join("\n")));
            } else if let Some(value) = line.strip_prefix("data:") {
                let value = value.strip_prefix(' ').unwrap_or(value);
                data.get_or_insert_default().push(value);
            }
        }
        events
    }

    fn split(pieces: &[&[u8]]) -> (Vec<String>, bool) {
        let mut splitter = Splitter::default();
        let mut events = Vec::new();
        let mut data = Vec::new();
        for piece in pieces {
            splitter.feed(piece, |part| match part {
                Part::Data(bytes) => data.extend_from_slice(bytes),
                Part::End => {
                    events.push(String::from_utf8_lossy(&std::mem::take(&mut data)).into_owned());
                }
            });
        }
        (events, splitter.answers())
    }

    fn answers(text: &str) -> bool {
        split(&[text.as_bytes()]).1
    }

    #[test]
    fn comments_errors_and_announcements_are_no_answer() {
        assert!(!answers(": keep-alive\n\n"));
        assert!(!answers(
            "data: {\"error\": {\"message\": \"no room left in the cache\"}}\n\n"
        ));
        assert!(!answers(
            "data: {\"object\": \"error\", \"message\": \"no room left\"}\n\n"
        ));
        assert!(!answers(
            "event: error\ndata: {\"message\":\"no room left in the cache at all\"}\n\n"
        ));
        assert!(!answers(
            "event: response.created\ndata: {\"sequence_number\":0,\"response\":{\"id\":\"r\"}}\n\n"
        ));
        assert!(!answers("data: [DONE]\n\n"));
        assert!(!answers("data:\n\n"));
        assert!(!answers("event: message\n\n"));
    }

    #[test]
    fn the_first_data_event_is_an_answer_as_soon_as_it_can_be_told() {
        assert!(answers("data: {\"id\":\"chatcmpl-1\"}\n\n"));
        assert!(!answers("data: {\"id\":\"chatcmpl-1\"}\n"));
        assert!(answers(
            "data: {\"id\":\"chatcmpl-0123456789-0123456789-0123456789\",\"cho"
        ));
        assert!(answers(
            ": hello\n\nevent: ping\ndata: {}\n\nevent: message_start\ndata: {}\n\n"
        ));
    }

    /// The first events of both APIs, as vLLM's `vllm/entrypoints/openai/responses/serving.py` and
    /// `vllm/entrypoints/anthropic/serving.py` send them.
    #[test]
    fn announcements_of_a_response_are_told_from_its_first_token() {
        let created = "event: response.created\ndata: {\"response\":{\"id\":\"resp_1\",\"created_at\":1},\"sequence_number\":0,\"type\":\"response.created\"}\n\n";
        let progress = created
            .replace("created\"", "in_progress\"")
            .replace(".created\n", ".in_progress\n");
        let queued = created.replace(".created", ".queued");
        let added = "event: response.output_item.added\ndata: {\"item\":{\"id\":\"msg_1\"},\"output_index\":0}\n\n";
        let completed = created.replace(".created", ".completed");
        let announced = format!("{created}{queued}{progress}");
        assert!(!answers(&announced));
        assert!(answers(&format!("{announced}{added}")));
        // An answer without a token.
        assert!(answers(&format!("{announced}{completed}")));
        // Some proxies drop the names.
        let unnamed = |text: &str| {
            text.lines()
                .filter(|line| !line.starts_with("event"))
                .fold(String::new(), |all, line| all + line + "\n")
        };
        assert!(!answers(&unnamed(&announced)));
        assert!(answers(&unnamed(&format!("{announced}{added}"))));
        let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"chatcmpl-1\"}}\n\n";
        assert!(!answers(
            ": keep-alive\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n"
        ));
        assert!(answers(&format!(": keep-alive\n\n{start}")));
        assert!(!answers(
            "event: response.failed\ndata: {\"response\":{\"id\":\"resp_1\",\"error\":{}}}\n\n"
        ));
    }

    proptest! {
        #[test]
        fn cuts_do_not_matter(
            lines in prop::collection::vec(
                prop::sample::select(vec![
                    "", "", "data: {\"a\":1}", "data:x", "data:  y", "data", "data:", ":c", ": c",
                    "event: e", "id: 1", "datax: 1", "retry:1",
                ]), 0..30),
            end in prop::sample::select(vec!["\n", "\r\n", "\r"]),
            tail in prop::sample::select(vec!["", "data: unfinished"]),
            cut in 1usize..9,
        ) {
            let mut text: String = lines.iter().flat_map(|line| [*line, end]).collect();
            text.push_str(tail);
            let expected = naive(&text);
            let whole = split(&[text.as_bytes()]);
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(cut).collect();
            prop_assert_eq!(&whole.0, &expected);
            prop_assert_eq!(split(&pieces), whole);
        }
    }
}
