//! Bodies of any length and kind arrive, and answers come back, byte for byte.

use std::io::Write as _;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, chat, completion, ids, text, with};
use crate::support::fleet::echo::{ANSWER_AS, HEAD, PIECES, TRAILERS};
use crate::support::fleet::{Setup, request_id};
use crate::support::http::{self, Raw};

/// Bytes that no other position has in the same order.
fn noise(bytes: usize) -> Bytes {
    let mut random = fastrand::Rng::with_seed(7);
    std::iter::repeat_with(|| random.u8(..))
        .take(bytes)
        .collect()
}

#[tokio::test]
async fn bodies_of_one_and_ten_megabytes_arrive_and_come_back_unchanged() {
    let setup = Setup::echoes(2);
    setup
        .run(async |fleet| {
            let to = fleet.envoy.picked();
            for bytes in [0, 1, 62_000, 1_000_000, 10_000_000] {
                let body = noise(bytes);
                let answer = http::post(to, "/upload", &[], body.clone()).await;
                assert_eq!(answer.status, 200, "{bytes}");
                assert!(answer.body == body, "{bytes} bytes changed");
            }
            // The same on a path whose bodies are read.
            for words in [40_000, 400_000] {
                let body = chat(&text("Long", words)).to_string();
                let id = request_id();
                let headers = [("content-type", "application/json"), ("x-request-id", &id)];
                let answer = http::post(to, CHAT, &headers, body.clone()).await;
                assert_eq!(answer.status, 200, "{words}");
                assert!(answer.body == body, "{words} words changed");
                let decision = fleet.picker.ended(&id).await;
                assert_eq!(decision["request"]["token_source"], "estimate");
            }
        })
        .await;
}

#[tokio::test]
async fn a_compressed_body_is_routed_on_load_and_passes_unchanged() {
    let setup = Setup::echoes(1);
    setup
        .run(async |fleet| {
            let mut packed = GzEncoder::new(Vec::new(), Compression::default());
            packed
                .write_all(chat("hello").to_string().as_bytes())
                .unwrap();
            let packed = packed.finish().unwrap();
            let id = request_id();
            let headers = [
                ("content-type", "application/json"),
                ("content-encoding", "gzip"),
                ("x-request-id", &id),
            ];
            let answer = http::post(fleet.envoy.picked(), CHAT, &headers, packed.clone()).await;
            assert_eq!(answer.status, 200);
            assert_eq!(answer.body, packed);
            let head: Value = serde_json::from_str(answer.header(HEAD).unwrap()).unwrap();
            assert_eq!(head["content-encoding"], "gzip");
            let decision = fleet.picker.ended(&id).await;
            assert_eq!(decision["request"], json!({ "load_only": "encoding" }));
        })
        .await;
}

#[tokio::test]
async fn requests_that_end_with_trailers_are_routed_by_content_and_keep_them() {
    let setup = Setup::engines(1);
    setup
        .envoy(|envoy| {
            envoy.http1_trailers = true;
            // See `EnvoyConfig::retries`.
            envoy.retries = false;
        })
        .run(async |fleet| {
            let id = request_id();
            let headers = [("content-type", "application/json"), ("x-request-id", &id)];
            let mut raw = Raw::post_chunked(fleet.envoy.picked(), COMPLETIONS, &headers).await;
            let body = completion(ids(1, 300)).to_string();
            for chunk in body.as_bytes().chunks(100) {
                raw.chunk(chunk).await;
            }
            raw.end(&[("x-checksum", "abc")]).await;
            let answer = raw.answer().await;
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            let decision = fleet.picker.ended(&id).await;
            assert_eq!(decision["prompt_tokens"], 300);
            assert_eq!(decision["outcome"]["prompt_tokens"], 300);
        })
        .await;
}

/// As curl sends bodies of more than a megabyte.
#[tokio::test]
async fn a_client_that_waits_for_leave_to_send_its_body_gets_it() {
    let setup = Setup::echoes(1);
    setup
        .run(async |fleet| {
            let to = fleet.envoy.picked();
            let mut raw = Raw::post_chunked(to, CHAT, &[("expect", "100-continue")]).await;
            let leave = raw.head().await;
            assert!(leave.starts_with("HTTP/1.1 100 Continue\r\n"), "{leave}");
            raw.chunk(chat("Is this allowed?").to_string().as_bytes())
                .await;
            raw.end(&[]).await;
            let answer = raw.answer().await;
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            assert!(answer.contains("Is this allowed?"), "{answer}");
        })
        .await;
}

#[tokio::test]
async fn trailers_and_chunks_of_a_request_reach_the_engine() {
    let setup = Setup::echoes(1);
    setup
        .envoy(|envoy| {
            envoy.http1_trailers = true;
            // See `EnvoyConfig::retries`.
            envoy.retries = false;
        })
        .run(async |fleet| {
            let mut raw = Raw::post_chunked(fleet.envoy.picked(), "/upload", &[]).await;
            let body = "0123456789".repeat(20_000);
            for chunk in body.as_bytes().chunks(7_000) {
                raw.chunk(chunk).await;
            }
            raw.end(&[("x-checksum", "abc")]).await;
            let answer = raw.answer().await;
            let (head, _) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
            assert!(
                head.contains(&format!(r#"{TRAILERS}: {{"x-checksum":"abc"}}"#)),
                "{head}"
            );
            let echoed = answer.matches("0123456789").count();
            assert!(echoed > 19_900, "{echoed} of 20000 came back");
        })
        .await;
}

#[tokio::test]
async fn event_streams_pass_byte_for_byte_however_they_are_cut() {
    let setup = Setup::echoes(1);
    setup
        .run(async |fleet| {
            let events = concat!(
                ": a comment\r\n\r\n",
                "event: message\ndata: {\"choices\":[{\"text\":\"grüße 🌍\"}]}\n\n",
                "data: {\"choices\":[],\ndata: \"usage\":{\"prompt_tokens\":9,\n",
                "data: \"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n",
                "data: [DONE]\n\nno end of line",
            );
            for pieces in ["1", "7", "1000"] {
                let id = request_id();
                let headers = [
                    ("content-type", "text/plain"),
                    (ANSWER_AS, "text/event-stream"),
                    (PIECES, pieces),
                    ("x-request-id", &id),
                ];
                let answer = http::post(fleet.envoy.picked(), COMPLETIONS, &headers, events).await;
                assert_eq!(answer.status, 200);
                assert_eq!(answer.header("content-type"), Some("text/event-stream"));
                assert_eq!(answer.body, events.as_bytes(), "pieces of {pieces}");
                let decision = fleet.picker.ended(&id).await;
                assert_eq!(decision["outcome"]["ended"], "completed");
                assert_eq!(decision["outcome"]["prompt_tokens"], 9);
                assert_eq!(decision["outcome"]["cached_tokens"], 4);
            }
        })
        .await;
}

#[tokio::test]
async fn an_engines_stream_is_the_same_through_the_picker_as_without_it() {
    let setup = Setup::engines(1).engine_options(&["--decode-ms-per-step", "1"]);
    setup
        .run(async |fleet| {
            let stream = json!({
                "stream": true, "max_tokens": 50, "stream_options": { "include_usage": true },
            });
            let body = with(chat("Tell a story."), stream).to_string();
            let headers = [
                ("content-type", "application/json"),
                ("x-request-id", "the-same"),
            ];
            let asked = async |to| {
                let answer = http::post(to, CHAT, &headers, body.clone()).await;
                assert_eq!(answer.status, 200);
                let text = String::from_utf8(answer.body.to_vec()).unwrap();
                let data = text
                    .split("\n\n")
                    .next()
                    .and_then(|event| event.strip_prefix("data: "));
                let first: Value = serde_json::from_str(data.unwrap()).unwrap();
                let created = format!("\"created\":{}", first["created"]);
                // The one thing that may differ: the second in which the engine answered.
                text.replace(&created, "\"created\":0")
            };
            // The first fills the cache, so that the others report the same usage.
            asked(fleet.engines[0].address()).await;
            let direct = asked(fleet.engines[0].address()).await;
            let through = asked(fleet.envoy.picked()).await;
            assert_eq!(direct, through);
            assert!(direct.ends_with("data: [DONE]\n\n"));
            assert!(direct.matches("\n\n").count() >= 52, "{direct}");
        })
        .await;
}
