//! What the picker answers instead of an engine: the status, the reason, and a text that helps.

use serde_json::json;

use super::{CHAT, COMPLETIONS, chat, completion, ids, with};
use crate::support::fleet::Setup;
use crate::support::http::{self, Raw};

#[tokio::test]
async fn malformed_json_on_a_known_path_is_refused_with_what_is_wrong() {
    let setup = Setup::engines(1);
    setup
        .run(async |fleet| {
            let to = fleet.envoy.picked();
            let json = [("content-type", "application/json")];
            for (path, body) in [
                (CHAT, r#"{"model": "qwen3", "messages": [}"#),
                (CHAT, r#"{"model": "qwen3""#),
                (COMPLETIONS, "[1, 2]"),
            ] {
                let answer = http::post(to, path, &json, body).await;
                assert_eq!(answer.status, 400, "{body:?}");
                assert_eq!(answer.header("x-warmpath-rejected"), Some("malformed"));
                assert_eq!(answer.header("content-type"), Some("application/json"));
                let error = answer.json()["error"].clone();
                assert_eq!(error["type"], "invalid_request_error");
                let message = error["message"].as_str().unwrap();
                assert!(message.contains("JSON"), "{message}");
            }
            // Elsewhere bodies are nobody's business but the engine's.
            let answer = http::post(to, "/detokenize", &json, "{").await;
            assert_eq!(answer.status, 400);
            assert_eq!(answer.header("x-warmpath-rejected"), None);
        })
        .await;
}

#[tokio::test]
async fn a_pool_with_nobody_ready_is_answered_with_503() {
    let setup = Setup::engines(0);
    setup
        .run(async |fleet| {
            let to = fleet.envoy.picked();
            let answer = http::post_json(to, CHAT, &chat("Is anybody there?")).await;
            assert_eq!(answer.status, 503);
            let message = &answer.json()["error"]["message"];
            assert_eq!(message, "no endpoint of the pool is ready");
            assert_eq!(http::get(to, "/v1/models").await.status, 503);
        })
        .await;
}

#[tokio::test]
async fn bodies_over_the_cap_are_refused_and_those_below_are_not() {
    let setup = Setup::echoes(1);
    setup
        .settings(json!({ "limits": { "max_body": "100KiB" } }))
        .run(async |fleet| {
            let to = fleet.envoy.picked();
            for (bytes, status) in [(100 << 10, 200), ((100 << 10) + 1, 413), (3 << 20, 413)] {
                let answer = http::post(to, "/echo", &[], vec![b'x'; bytes]).await;
                assert_eq!(answer.status, status, "{bytes}");
                if status == 413 {
                    let message = answer.json()["error"]["message"].clone();
                    assert_eq!(message, "the request body is over 102400 bytes");
                }
            }
        })
        .await;
}

#[tokio::test]
async fn an_engines_own_refusal_passes_and_frees_its_booking() {
    let setup = Setup::engines(1).engine_options(&["--max-model-len", "100"]);
    setup
        .run(async |fleet| {
            let exchange = fleet.ask(COMPLETIONS, &completion(ids(1, 500))).await;
            assert_eq!(exchange.answer.status, 400);
            assert_eq!(exchange.answer.header("x-warmpath-rejected"), None);
            assert_eq!(exchange.answer.json()["error"]["param"], "input_tokens");
            assert_eq!(exchange.decision["outcome"]["status"], 400);
            assert_eq!(exchange.decision["outcome"]["ended"], "completed");
        })
        .await;
}

#[tokio::test]
async fn a_body_that_stalls_is_refused_in_time_and_too_many_requests_at_once_are_too() {
    let setup = Setup::engines(1);
    setup
        .settings(json!({ "limits": { "body_timeout": "300ms", "max_exchanges": 2 } }))
        .run(async |fleet| {
            let to = fleet.envoy.picked();
            let headers = [("content-type", "application/json")];
            let mut stalled = Raw::post_chunked(to, CHAT, &headers).await;
            stalled.chunk(b"{").await;
            let answer = stalled.answer().await;
            assert!(
                answer.starts_with("HTTP/1.1 408 Request Timeout\r\n"),
                "{answer}"
            );
            assert!(
                answer.contains("x-warmpath-rejected: body_timeout"),
                "{answer}"
            );

            let endless = json!({ "stream": true, "max_tokens": 20_000, "ignore_eos": true });
            let body = with(completion(ids(1, 100)), endless);
            let first = http::stream_json(to, COMPLETIONS, &body).await;
            let second = http::stream_json(to, COMPLETIONS, &body).await;
            assert_eq!((first.status(), second.status()), (200, 200));
            let third = http::post_json(to, COMPLETIONS, &body).await;
            assert_eq!(third.status, 429);
            assert_eq!(third.header("x-warmpath-rejected"), Some("overloaded"));
            drop((first, second));
        })
        .await;
}
