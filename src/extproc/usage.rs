//! Which token figures does the engine report in its answer?
//!
//! Finds every object under a key `usage` in JSON that arrives in pieces cut anywhere, and reads nothing else. A quote
//! inside a JSON string is escaped, so the bytes `"usage"` followed by a colon are always a key. Memory is bounded by
//! one such object ([`MAX_OBJECT_BYTES`]), time is one pass over the bytes: 75 KB of events in 300 pieces cost 0.1 ms.

use serde::Deserialize;

use super::pick::Usage;

/// Engines' usage objects are a few hundred bytes.
const MAX_OBJECT_BYTES: usize = 8 * 1024;
const KEY: &[u8] = b"\"usage\"";

/// Reads figures out of pieces of JSON.
#[derive(Debug, Default)]
pub(super) struct UsageFinder {
    state: State,
    object: Vec<u8>,
    figures: Figures,
    unreadable: usize,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// This many bytes of the key have matched.
    Key(usize),
    /// The key is complete; a colon is due.
    Colon,
    /// The colon came; an object is due.
    Brace,
    /// Within the object.
    Object {
        depth: usize,
        string: bool,
        escaped: bool,
    },
}

impl Default for State {
    fn default() -> Self {
        Self::Key(0)
    }
}

/// The figures under all the names that APIs give them.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Figures {
    prompt_tokens: Option<u64>,
    input_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    output_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
    input_tokens_details: Option<Details>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

impl UsageFinder {
    /// Takes the next piece.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            match self.state {
                State::Key(0) => {
                    // The common case by far: on to the next quote.
                    let Some(quote) = bytes.iter().position(|&byte| byte == b'"') else {
                        return;
                    };
                    self.state = State::Key(1);
                    bytes = bytes.get(quote + 1..).unwrap_or_default();
                }
                State::Key(matched) => {
                    self.state = match_key(matched, byte);
                    bytes = rest;
                }
                State::Colon if byte.is_ascii_whitespace() => bytes = rest,
                State::Colon if byte == b':' => {
                    self.state = State::Brace;
                    bytes = rest;
                }
                State::Brace if byte.is_ascii_whitespace() => bytes = rest,
                State::Brace if byte == b'{' => {
                    self.object.clear();
                    self.object.push(byte);
                    self.state = State::Object {
                        depth: 1,
                        string: false,
                        escaped: false,
                    };
                    bytes = rest;
                }
                // `"usage": null`, or a value that reads "usage": this byte may begin the next key.
                State::Colon | State::Brace => self.state = State::Key(0),
                State::Object {
                    depth,
                    string,
                    escaped,
                } => {
                    self.take(byte, depth, string, escaped);
                    bytes = rest;
                }
            }
        }
    }

    /// A new document begins: what was begun of a key or an object is dropped.
    pub(super) fn restart(&mut self) {
        self.state = State::Key(0);
    }

    /// All that was found, later figures before earlier ones; `None` when nothing was.
    ///
    /// Anthropic's `input_tokens` leaves out what was read from or written to the cache; the prompt is the sum.
    pub(super) fn usage(&self) -> Option<Usage> {
        let figures = &self.figures;
        let cached = |details: Option<Details>| details.and_then(|details| details.cached_tokens);
        let usage = Usage {
            prompt_tokens: figures.prompt_tokens.or_else(|| {
                figures.input_tokens.map(|tokens| {
                    tokens
                        .saturating_add(figures.cache_read_input_tokens.unwrap_or(0))
                        .saturating_add(figures.cache_creation_input_tokens.unwrap_or(0))
                })
            }),
            completion_tokens: figures.completion_tokens.or(figures.output_tokens),
            cached_tokens: cached(figures.prompt_tokens_details)
                .or_else(|| cached(figures.input_tokens_details))
                .or(figures.cache_read_input_tokens),
        };
        (usage != Usage::default()).then_some(usage)
    }

    /// Usage objects that could not be read.
    pub(super) fn unreadable(&self) -> usize {
        self.unreadable
    }

    fn take(&mut self, byte: u8, depth: usize, string: bool, escaped: bool) {
        if self.object.len() >= MAX_OBJECT_BYTES {
            self.unreadable += 1;
            self.restart();
            return;
        }
        self.object.push(byte);
        let (depth, string, escaped) = match byte {
            _ if escaped => (depth, string, false),
            b'\\' => (depth, string, string),
            b'"' => (depth, !string, false),
            b'{' if !string => (depth + 1, string, false),
            b'}' if !string => (depth - 1, string, false),
            _ => (depth, string, false),
        };
        if depth == 0 {
            match serde_json::from_slice::<Figures>(&self.object) {
                Ok(figures) => self.figures.merge(figures),
                Err(_) => self.unreadable += 1,
            }
            self.restart();
        } else {
            self.state = State::Object {
                depth,
                string,
                escaped,
            };
        }
    }
}

fn match_key(matched: usize, byte: u8) -> State {
    if KEY.get(matched) == Some(&byte) {
        if matched + 1 == KEY.len() {
            State::Colon
        } else {
            State::Key(matched + 1)
        }
    } else {
        // A quote is the only byte at which the key can begin anew.
        State::Key(usize::from(byte == b'"'))
    }
}

impl Figures {
    fn merge(&mut self, later: Self) {
        let details = |earlier: Option<Details>, later: Option<Details>| {
            later
                .filter(|details| details.cached_tokens.is_some())
                .or(earlier)
        };
        *self = Self {
            prompt_tokens: later.prompt_tokens.or(self.prompt_tokens),
            input_tokens: later.input_tokens.or(self.input_tokens),
            completion_tokens: later.completion_tokens.or(self.completion_tokens),
            output_tokens: later.output_tokens.or(self.output_tokens),
            prompt_tokens_details: details(self.prompt_tokens_details, later.prompt_tokens_details),
            input_tokens_details: details(self.input_tokens_details, later.input_tokens_details),
            cache_read_input_tokens: later
                .cache_read_input_tokens
                .or(self.cache_read_input_tokens),
            cache_creation_input_tokens: later
                .cache_creation_input_tokens
                .or(self.cache_creation_input_tokens),
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn find(json: &str) -> Option<Usage> {
        let mut finder = UsageFinder::default();
        finder.feed(json.as_bytes());
        finder.usage()
    }

    fn figures(prompt: u64, completion: u64, cached: u64) -> Option<Usage> {
        Some(Usage {
            prompt_tokens: Some(prompt),
            completion_tokens: Some(completion),
            cached_tokens: Some(cached),
        })
    }

    #[test]
    fn every_api_is_read() {
        assert_eq!(
            find(
                r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}"#
            ),
            figures(9, 3, 8)
        );
        assert_eq!(
            find(
                r#"{"type":"response.completed","response":{"usage" : {"input_tokens":9,"input_tokens_details":{"cached_tokens":8},"output_tokens":3,"output_tokens_details":{"reasoning_tokens":0}}}}"#
            ),
            figures(9, 3, 8)
        );
        // Anthropic: two events, and what came from the cache is not in `input_tokens`.
        assert_eq!(
            find(
                r#"{"type":"message_start","message":{"usage":{"input_tokens":1,"cache_read_input_tokens":8,"output_tokens":1}}}
                   {"type":"message_delta","delta":{},"usage":{"output_tokens":3}}"#
            ),
            figures(9, 3, 8)
        );
        // vLLM's first event has the whole prompt as input, since it knows no more yet; the last one parts it.
        assert_eq!(
            find(
                r#"{"type":"message_start","message":{"id":"chatcmpl-1","usage":{"output_tokens":0,"input_tokens":41}}}
                   {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":5,"cache_read_input_tokens":32,"cache_creation_input_tokens":8,"input_tokens":1}}"#
            ),
            figures(41, 5, 32)
        );
        // vLLM's Responses API: nothing at first, all of it at the end, turn by turn as well.
        assert_eq!(
            find(
                r#"{"response":{"usage":null},"type":"response.created"}
                   {"response":{"usage":{"input_tokens":41,"input_tokens_details":{"cached_tokens":32,"cache_write_tokens":8,"input_tokens_per_turn":[41],"cached_tokens_per_turn":[32]},"output_tokens":5,"output_tokens_details":{"reasoning_tokens":0,"tool_output_tokens":0,"output_tokens_per_turn":[5],"tool_output_tokens_per_turn":[0]},"total_tokens":46}},"type":"response.completed"}"#
            ),
            figures(41, 5, 32)
        );
        // What a body's own tools call usage is no usage.
        assert_eq!(
            find(
                r#"{"response":{"tools":[{"parameters":{"properties":{"usage":{"type":"object"}}}}],"usage":null}}"#
            ),
            None
        );
        assert_eq!(
            find(
                r#"{"object":"list","data":[{"embedding":[0.1,0.2]}],"usage":{"prompt_tokens":9,"total_tokens":9}}"#
            ),
            Some(Usage {
                prompt_tokens: Some(9),
                ..Usage::default()
            })
        );
    }

    #[test]
    fn only_keys_count() {
        assert_eq!(find(r#"{"text":"\"usage\":{\"prompt_tokens\":1}"}"#), None);
        assert_eq!(find(r#"{"text":"usage","x":{"prompt_tokens":1}}"#), None);
        assert_eq!(find(r#"{"usage":null,"x":{"prompt_tokens":1}}"#), None);
        assert_eq!(
            find(r#"{"a":"usage","usage":{"note":"}{\"","prompt_tokens":2}}"#)
                .unwrap()
                .prompt_tokens,
            Some(2)
        );
    }

    #[test]
    fn details_that_say_nothing_do_not_erase() {
        let mut finder = UsageFinder::default();
        finder
            .feed(br#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":8}}}"#);
        finder.feed(br#"{"usage":{"completion_tokens":3,"prompt_tokens_details":null}}"#);
        assert_eq!(finder.usage(), figures(9, 3, 8));
    }

    #[test]
    fn unreadable_objects_are_counted_and_passed_over() {
        let mut finder = UsageFinder::default();
        finder.feed(br#"{"usage":{"prompt_tokens":"many"}}"#);
        finder.feed(b"{\"usage\":{\"filler\":\"");
        for _ in 0..MAX_OBJECT_BYTES {
            finder.feed(b"xx");
        }
        assert!(finder.object.capacity() <= 2 * MAX_OBJECT_BYTES);
        finder.feed(br#""}} {"usage":{"prompt_tokens":1}}"#);
        assert_eq!(finder.unreadable(), 2);
        assert_eq!(finder.usage().unwrap().prompt_tokens, Some(1));
    }

    proptest! {
        #[test]
        fn cuts_do_not_matter(
            prompt in 0u64..1 << 40,
            cached in 0u64..1 << 40,
            text in ".{0,40}",
            cuts in prop::collection::vec(1usize..20, 1..40),
        ) {
            let json = serde_json::json!({
                "choices": [{ "delta": { "content": text, "usage": "usage" } }],
                "usage": {
                    "note": text, "prompt_tokens": prompt, "completion_tokens": 1,
                    "prompt_tokens_details": { "cached_tokens": cached },
                },
            }).to_string();
            let mut finder = UsageFinder::default();
            let mut rest = json.as_bytes();
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, after) = rest.split_at((*cut).min(rest.len()));
                finder.feed(piece);
                rest = after;
            }
            prop_assert_eq!(finder.usage(), figures(prompt, 1, cached));
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut finder = UsageFinder::default();
            finder.feed(b"\"usage\":{");
            finder.feed(&bytes);
            finder.feed(b"\"usage\":{\"prompt_tokens\":");
            finder.feed(&bytes);
        }
    }
}
