//! Any bytes as the body of a request, for each API: read or refused, never more text than there was.

#![no_main]

use libfuzzer_sys::fuzz_target;
use warmpath::routing::request::{Api, Request};

const APIS: [Api; 5] = [
    Api::Chat,
    Api::Completions,
    Api::Embeddings,
    Api::Responses,
    Api::Messages,
];

fuzz_target!(|input: &[u8]| {
    let Some((&first, body)) = input.split_first() else {
        return;
    };
    let api = APIS[usize::from(first) % APIS.len()];
    match Request::parse(api, body) {
        Ok(request) => {
            if let Some(text) = request.text() {
                // A number of a few bytes is taken with 24 digits at most; separators come in between.
                assert!(text.len() <= 8 * body.len() + 64, "{} of {}", text.len(), body.len());
            }
            if let Some(prompts) = request.token_ids() {
                let ids: usize = prompts.iter().map(Vec::len).sum();
                assert!(ids <= body.len());
            }
        }
        Err(refused) => assert_ne!(refused.to_string(), ""),
    }
});
