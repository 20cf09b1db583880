//! The recorded events of real vLLM engines, read in order, foretell the `cached_tokens` that they reported.
//!
//! Each recorded request goes the product's way (parse, render, tokenize, hash, pick) against the view that the
//! events before it made; only then its own events are applied. What cannot be foretold is listed by note, with
//! the reason, and held to the figure that the view gives: an exception that stops happening fails the test.

use std::sync::Arc;
use std::time::Instant;

use serde_json::Value as Json;
use warmpath::config;
use warmpath::feeds::kv_cursor::{Cursor, Step};
use warmpath::feeds::kv_wire;
use warmpath::routing::block::{Scope, Sequence};
use warmpath::routing::cache::{CacheView, FeedState};
use warmpath::routing::endpoint::{Endpoint, EndpointName, Report, ReportOutcome};
use warmpath::routing::model::{Model, RenderContext};
use warmpath::routing::request::{Api, Request};
use warmpath::routing::router::{Ask, Router};

use crate::golden_data::{qwen3, recording};

/// One recorded.
struct Recording {
    file: &'static str,
    version: (u32, u32),
    /// Requests that must have been compared, exceptions included.
    compared: usize,
    /// What cannot be foretold: note, cached tokens the view gives, and the engine's figure.
    exceptions: &'static [(&'static str, u64, u64)],
}

/// An engine clears its cache at once but says so only with its next step's events, and a restarted one says
/// nothing at all before its first own event: the first request afterwards is foretold from the old view.
const AFTER_RESET: &str = "after a reset: cold";

const RECORDINGS: [Recording; 4] = [
    Recording {
        file: "vllm-0.31-qwen3",
        version: (0, 31),
        compared: 29,
        exceptions: &[(AFTER_RESET, 416, 0)],
    },
    Recording {
        file: "qwen3-array-0.20",
        version: (0, 20),
        compared: 29,
        exceptions: &[(AFTER_RESET, 416, 0)],
    },
    Recording {
        file: "qwen3-lora",
        version: (0, 31),
        compared: 24,
        exceptions: &[(
            // The adapter's path is part of the engine's hash but of no event.
            "adapter late (v2, other path, replaced in place): cold or warm?",
            160,
            0,
        )],
    },
    Recording {
        file: "qwen3-restart",
        version: (0, 31),
        compared: 11,
        exceptions: &[
            (
                "life 2: the first request of life 1 again, cold (same hashes?)",
                160,
                0,
            ),
            ("life 3: cold again", 416, 0),
        ],
    },
];

#[test]
fn recorded_events_foretell_the_cached_tokens_that_engines_reported() {
    let model = Model::load(&qwen3()).unwrap();
    for recorded in &RECORDINGS {
        let mut observer = Observer::new(&model, recorded.version);
        let mut compared = 0;
        let mut wrong = Vec::new();
        for row in recording(recorded.file) {
            if let Some((foretold, reported)) = observer.request(&row) {
                compared += 1;
                if foretold != reported {
                    let note = row["note"].as_str().unwrap().to_owned();
                    wrong.push((note, foretold, reported));
                }
            }
            observer.frames(&row);
        }
        let expected: Vec<_> = recorded
            .exceptions
            .iter()
            .map(|(note, foretold, reported)| ((*note).to_owned(), *foretold, *reported))
            .collect();
        println!(
            "{}: {compared} requests, {} foretold exactly",
            recorded.file,
            compared - wrong.len()
        );
        assert_eq!(wrong, expected, "{}", recorded.file);
        assert_eq!(compared, recorded.compared, "{}", recorded.file);
    }
}

/// A picker's view of the one recorded engine.
struct Observer<'a> {
    model: &'a Model,
    context: RenderContext,
    router: Arc<Router>,
    view: CacheView,
    cursor: Cursor,
    now: Instant,
}

impl<'a> Observer<'a> {
    fn new(model: &'a Model, version: (u32, u32)) -> Self {
        let router = Router::new(config::Settings::default().router);
        let now = Instant::now();
        let id = router.join(Endpoint {
            name: EndpointName::new("default", "recorded"),
            address: "127.0.0.1:8000".parse().unwrap(),
            labels: Default::default(),
            incarnation: String::new(),
            rank: None,
        });
        router.set_ready(id, true);
        router.report(id, ReportOutcome::Fresh(Report::default()), now);
        let mut view = router.cache_view(id, 0);
        view.set_feed(FeedState::Live);
        Self {
            model,
            context: RenderContext {
                engine_version: Some(version),
                ..RenderContext::default()
            },
            router,
            view,
            cursor: Cursor::default(),
            now,
        }
    }

    /// Foretold and reported cached tokens of a row that is a served request with a report.
    fn request(&self, row: &Json) -> Option<(u64, u64)> {
        let api = Api::of_path(row["path"].as_str()?)?;
        row["prompt_tokens"].as_u64()?;
        let request = Request::parse(api, row["request"].to_string().as_bytes()).unwrap();
        let sequences = self
            .model
            .sequences(&request, &self.context)
            .unwrap_or_else(|error| panic!("{}: {error}", row["note"]));
        let sequences: Vec<_> = sequences.into_iter().map(Sequence::Tokens).collect();
        let adapter = request.model.filter(|model| model != "qwen3");
        let scope = Scope {
            adapter: adapter.map(Arc::from),
            salt: request.salt.map(Arc::from),
        };
        let prepared = self.router.prepare(&sequences, &scope);
        let ask = Ask {
            subset: None,
            alternates: 0,
            now: self.now,
            chance: 0,
        };
        let decision = self.router.pick(&prepared, &ask).unwrap();
        assert_eq!(Some(decision.prompt.get()), row["prompt_tokens"].as_u64());
        // An engine of 0.20 leaves the figure out when it is 0.
        let reported = row["cached_tokens"].as_u64().unwrap_or(0);
        Some((decision.cached.get(), reported))
    }

    /// Applies the live events that came with a row, as the follower would.
    fn frames(&mut self, row: &Json) {
        let replayed = row["path"]
            .as_str()
            .is_some_and(|path| path.starts_with("replay"));
        let Some(frames) = row["frames"].as_array().filter(|_| !replayed) else {
            return;
        };
        for frame in frames {
            let parts = frame.get("frames").unwrap_or(frame);
            let part = |index: usize| unhex(parts[index].as_str().unwrap());
            let seq = u64::from_be_bytes(part(1).try_into().unwrap());
            match self.cursor.observe_live(seq) {
                Step::Initial | Step::Contiguous => {}
                Step::Restarted => {
                    self.view.clear();
                    self.cursor.reset();
                    self.cursor.observe_live(seq);
                }
                step => panic!("{}: {step:?} at {seq}", row["note"]),
            }
            let batch = kv_wire::decode(&part(2)).unwrap();
            assert_eq!(batch.skipped.lost(), 0, "{}", row["note"]);
            self.view.apply(&batch.events);
        }
    }
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}
