//! Recorded bodies of real clients: none is refused, none panics, and each either has exact
//! ids or says why not.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use warmpath::routing::model::{Model, RenderContext};
use warmpath::routing::request::{Api, Content, Request};

use crate::golden_data::{lines, model_files};

fn api_of(row: &Json, default: Option<Api>) -> Option<Api> {
    let path = row["path"].as_str().or_else(|| row["uri"].as_str());
    path.and_then(|path| Api::of_path(&format!("/v1/{}", path.trim_start_matches('/'))))
        .or(default)
}

fn body_of(row: &Json) -> String {
    let raw = row.get("body_raw").or_else(|| row.get("raw"));
    match raw.and_then(Json::as_str) {
        Some(raw) => raw.to_owned(),
        None => row["body"].to_string(),
    }
}

#[test]
fn recorded_bodies_are_understood_or_say_why_not() {
    let Some(files) = model_files("qwen3", None) else {
        return;
    };
    let model = Model::load(&files).unwrap();
    let context = RenderContext {
        engine_version: Some((0, 31)),
        max_model_len: Some(32_768),
        ..RenderContext::default()
    };
    // Of the Responses and Messages bodies vLLM itself takes 397 and 273: the rest is for other servers.
    for (file, default, least) in [
        ("recorded/chat_completions.jsonl", Some(Api::Chat), 809),
        ("recorded/completions.jsonl", Some(Api::Completions), 17),
        ("recorded/responses.jsonl", Some(Api::Responses), 358),
        (
            "recorded/anthropic_messages.jsonl",
            Some(Api::Messages),
            261,
        ),
        ("recorded/large_bodies.jsonl.zst", None, 4),
        ("odd/from_issues.jsonl", Some(Api::Chat), 3),
    ] {
        let rows = lines(&format!("data/requests/{file}")).unwrap();
        let mut outcomes: BTreeMap<&'static str, usize> = BTreeMap::new();
        for row in &rows {
            let Some(api) = api_of(row, default) else {
                *outcomes.entry("(another API)").or_default() += 1;
                continue;
            };
            let body = body_of(row);
            let outcome = match Request::parse(api, body.as_bytes()) {
                Err(malformed) => panic!("{file}: {malformed}: {body:.300}"),
                Ok(request) => {
                    check_estimate(&request, &body);
                    match model.sequences(&request, &context) {
                        Ok(sequences) => {
                            assert!(sequences.iter().all(|ids| !ids.is_empty()));
                            "exact"
                        }
                        Err(why) => {
                            if matches!(why.reason(), "unknown_shape" | "unsure") {
                                println!("{file}: {why}");
                            }
                            why.reason()
                        }
                    }
                }
            };
            *outcomes.entry(outcome).or_default() += 1;
        }
        println!("{file}: {} bodies: {outcomes:?}", rows.len());
        let exact = outcomes.get("exact").copied().unwrap_or_default();
        assert!(exact >= least, "{file}: {exact} exact, {least} before");
    }
}

/// An estimate has something to go by, and media do not count.
fn check_estimate(request: &Request, body: &str) {
    let text = request.text();
    if matches!(request.content, Content::Chat(_)) {
        assert!(text.is_some());
    }
    if let Some(text) = text {
        assert!(
            text.len() <= body.len() * 2,
            "{} of {}",
            text.len(),
            body.len()
        );
    }
}
