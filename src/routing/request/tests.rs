//! Bodies, plain and odd: what is understood, what is left to the engine, what is refused.

mod converted;

use proptest::prelude::*;

use super::*;

fn parse(api: Api, body: &str) -> Request {
    Request::parse(api, body.as_bytes()).unwrap()
}

fn why_inexact(api: Api, body: &str) -> &'static str {
    match parse(api, body).content {
        Content::Inexact { why, .. } => why.reason(),
        other => panic!("exact: {other:?}"),
    }
}

fn prompts(body: &str) -> Prompts {
    match parse(Api::Completions, body).content {
        Content::Prompts(prompts) => prompts,
        other => panic!("{other:?}"),
    }
}

fn chat(body: &str) -> Chat {
    match parse(Api::Chat, body).content {
        Content::Chat(chat) => *chat,
        other => panic!("{other:?}"),
    }
}

#[test]
fn paths_are_known_with_what_gateways_put_around_them() {
    for (path, api) in [
        ("/v1/chat/completions", Some(Api::Chat)),
        ("/v1/completions", Some(Api::Completions)),
        ("/v1/completions/", Some(Api::Completions)),
        (
            "/v1/embeddings?x=/v1/chat/completions",
            Some(Api::Embeddings),
        ),
        (
            "/team-a/openai/v1/chat/completions//?a=b#c",
            Some(Api::Chat),
        ),
        ("/v1/responses", Some(Api::Responses)),
        ("/v1/messages", Some(Api::Messages)),
        ("/v1/messages/count_tokens", None),
        ("/v1/chat/completions/render", None),
        ("/v1/models", None),
        ("/chat/completions", None),
        ("", None),
    ] {
        assert_eq!(Api::of_path(path), api, "{path}");
    }
}

#[test]
fn chat_fields_are_read() {
    let body = r#"{"model": "m", "cache_salt": "s", "stream": true, "messages": [{"role": "user",
        "content": "hi"}], "tools": [{"type": "function", "function": {"name": "f"}}],
        "chat_template_kwargs": {"enable_thinking": false, "none": null, "auto": "auto"},
        "add_generation_prompt": false, "continue_final_message": true,
        "truncate_prompt_tokens": 7, "truncation_side": "right", "unknown": [{}]}"#;
    let request = parse(Api::Chat, body);
    assert_eq!(request.model.as_deref(), Some("m"));
    assert_eq!(request.salt.as_deref(), Some("s"));
    assert!(request.stream && request.reads_cache);
    let chat = chat(body);
    assert!(!chat.add_generation_prompt && chat.continue_final_message);
    assert!(chat.tools.is_some() && !chat.add_special_tokens);
    let kwargs: Vec<&str> = chat
        .template_kwargs
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(kwargs, ["enable_thinking"]);
    let side = Some(Side::Right);
    assert_eq!(
        chat.truncation,
        Some(Truncation {
            keep: Some(7),
            side,
            output: None,
        })
    );
}

#[test]
fn prompts_are_read_in_all_four_forms() {
    let text = |text: &str| Prompt::Text(text.to_owned());
    for (body, items) in [
        (r#"{"prompt": "a\u00e9"}"#, vec![text("aé")]),
        (r#"{"prompt": ["a", "b"]}"#, vec![text("a"), text("b")]),
        (r#"{"prompt": [1, 2]}"#, vec![Prompt::Ids(vec![1, 2])]),
        (
            r#"{"prompt": [[1], [2, 3]]}"#,
            vec![Prompt::Ids(vec![1]), Prompt::Ids(vec![2, 3])],
        ),
    ] {
        assert_eq!(prompts(body).items, items);
    }
    let ids = parse(Api::Completions, r#"{"prompt": [[1], [2, 3]]}"#).token_ids();
    assert_eq!(ids, Some(vec![vec![1], vec![2, 3]]));
}

#[test]
fn embeddings_add_special_tokens_and_may_be_chats() {
    let Content::Prompts(prompts) = parse(Api::Embeddings, r#"{"input": "a"}"#).content else {
        panic!("a text is a prompt");
    };
    assert!(prompts.add_special_tokens);
    let body = r#"{"messages": [{"role": "user", "content": "a"}]}"#;
    let Content::Chat(chat) = parse(Api::Embeddings, body).content else {
        panic!("messages are a chat");
    };
    assert!(!chat.add_generation_prompt && !chat.add_special_tokens);
}

#[test]
fn log_probabilities_of_the_prompt_keep_the_engine_from_its_cache() {
    for (body, reads) in [
        (r#"{"prompt": "a"}"#, true),
        (r#"{"prompt": "a", "logprobs": 3}"#, true),
        (r#"{"prompt": "a", "echo": true}"#, true),
        (r#"{"prompt": "a", "echo": true, "logprobs": 0}"#, false),
        (r#"{"prompt": "a", "prompt_logprobs": 1}"#, false),
        (r#"{"prompt": "a", "prompt_logprobs": null}"#, true),
    ] {
        assert_eq!(parse(Api::Completions, body).reads_cache, reads, "{body}");
    }
}

#[test]
fn what_an_engine_may_accept_is_left_to_it_with_the_reason() {
    let message = r#""messages": [{"role": "user", "content": "a"}]"#;
    for (api, body, reason) in [
        (
            Api::Chat,
            format!(r#"{{{message}, "chat_template": "x"}}"#),
            "request_template",
        ),
        (
            Api::Chat,
            format!(r#"{{{message}, "chat_template_kwargs": {{"tools": []}}}}"#),
            "template_argument",
        ),
        // Even an empty one keeps the effort from setting it.
        (
            Api::Chat,
            format!(
                r#"{{{message}, "reasoning_effort": "none", "chat_template_kwargs": {{"enable_thinking": null}}}}"#
            ),
            "template_argument",
        ),
        (
            Api::Chat,
            format!(r#"{{{message}, "tools": [{{"type": "web"}}]}}"#),
            "unknown_shape",
        ),
        (
            Api::Chat,
            format!(r#"{{{message}, "continue_final_message": true}}"#),
            "unknown_shape",
        ),
        (Api::Chat, r#"{"messages": []}"#.to_owned(), "unknown_shape"),
        (
            Api::Chat,
            r#"{"messages": "hi"}"#.to_owned(),
            "unknown_shape",
        ),
        (Api::Chat, "{}".to_owned(), "unknown_shape"),
        (
            Api::Completions,
            r#"{"prompt_embeds": "AAAA"}"#.to_owned(),
            "prompt_embeds",
        ),
        (
            Api::Completions,
            r#"{"prompt": ["a", 1]}"#.to_owned(),
            "unknown_shape",
        ),
        (
            Api::Completions,
            r#"{"prompt": [1, -1]}"#.to_owned(),
            "unknown_shape",
        ),
        (
            Api::Completions,
            r#"{"prompt": [1.5]}"#.to_owned(),
            "unknown_shape",
        ),
        (
            Api::Completions,
            r#"{"prompt": "a", "truncate_prompt_tokens": -2}"#.to_owned(),
            "unknown_shape",
        ),
    ] {
        assert_eq!(why_inexact(api, &body), reason, "{body}");
    }
}

#[test]
fn json_that_only_python_reads_is_routed_by_an_estimate() {
    for odd in [
        r#"{"model": "m", "messages": [{"role": "user", "content": "\ud800"}]}"#,
        r#"{"model": "m", "temperature": NaN, "prompt": "a"}"#,
        r#"{"top_p": -Infinity, "model": "m"}"#,
        r#"{"model": "m", "prompt": 1e999}"#,
        r#"{"model": "m", "documents": [123456789012345678901234567890]}"#,
        r#"{"model": "m", "documents": [-0]}"#,
    ] {
        let request = parse(Api::Chat, odd);
        assert_eq!(request.model.as_deref(), Some("m"), "{odd}");
        assert_eq!(why_inexact(Api::Chat, odd), "python_json", "{odd}");
    }
    let deep = format!(
        r#"{{"model": "m", "tools": {}1{}}}"#,
        "[".repeat(500),
        "]".repeat(500)
    );
    assert_eq!(why_inexact(Api::Chat, &deep), "python_json");
    assert_eq!(parse(Api::Chat, &deep).model.as_deref(), Some("m"));
}

#[test]
fn the_last_of_two_equal_keys_counts() {
    let body = r#"{"prompt": "a", "model": "x", "prompt": "b", "model": "y"}"#;
    assert_eq!(prompts(body).items, [Prompt::Text("b".to_owned())]);
    assert_eq!(parse(Api::Completions, body).model.as_deref(), Some("y"));
}

#[test]
fn bodies_that_no_engine_takes_are_refused_with_a_text_for_the_client() {
    for (body, text) in [
        ("", "empty"),
        (" \n", "empty"),
        ("[1]", "an array"),
        ("\"a\"", "a string"),
        ("12", "a number"),
        ("null", "null"),
        ("{\"model\": ", "not valid JSON"),
        ("{\"a\": 1} x", "not valid JSON"),
        ("{'a': 1}", "not valid JSON"),
        ("<html>", "not valid JSON"),
        ("{\"a\": NaN, }", "not valid JSON"),
        ("{\"a\": \"\u{1}\"}", "not valid JSON"),
    ] {
        let error = Request::parse(Api::Chat, body.as_bytes()).unwrap_err();
        assert!(error.to_string().contains(text), "{body}: {error}");
    }
    let error = Request::parse(Api::Chat, b"{\"model\": \"\xff\"}").unwrap_err();
    assert!(matches!(error, Malformed::Json(_)));
}

#[test]
fn the_text_of_a_prompt_leaves_media_out() {
    let body = r#"{"messages": [{"role": "user", "content": [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]}"#;
    let text = String::from_utf8(parse(Api::Chat, body).text().unwrap()).unwrap();
    assert!(text.contains("look") && !text.contains("AAAA"), "{text}");
    let body = r#"{"system": "be brief", "messages": [{"role": "user", "content": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "BBBB"}},
        {"type": "text", "text": "what is it"}]}]}"#;
    let text = String::from_utf8(parse(Api::Messages, body).text().unwrap()).unwrap();
    assert!(
        text.starts_with("be brief") && text.contains("what is it"),
        "{text}"
    );
    assert!(!text.contains("BBBB"), "{text}");
    assert_eq!(parse(Api::Completions, r#"{"prompt": [1]}"#).text(), None);
}

fn apis() -> impl Strategy<Value = Api> {
    prop::sample::select(vec![
        Api::Chat,
        Api::Completions,
        Api::Embeddings,
        Api::Responses,
        Api::Messages,
    ])
}

/// JSON-like text: much of it valid, some of it nearly so.
fn nearly_json() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec![
        "1",
        "-0",
        "1e400",
        "0.5",
        "true",
        "null",
        "NaN",
        "\"a\"",
        "\"\\ud800\"",
        "\"\\u00e9\"",
        "\"user\"",
        "\"assistant\"",
        "\"reasoning\"",
        "\"function_call\"",
        "\"tool_result\"",
        "\"",
        "]",
        "}",
        "",
    ])
    .prop_map(str::to_owned);
    let keys = prop::sample::select(vec![
        "messages",
        "prompt",
        "input",
        "tools",
        "role",
        "content",
        "type",
        "text",
        "model",
        "chat_template_kwargs",
        "truncate_prompt_tokens",
        "system",
        "summary",
        "call_id",
        "arguments",
        "output",
    ]);
    leaf.prop_recursive(5, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5)
                .prop_map(|items| format!("[{}]", items.join(","))),
            prop::collection::vec((keys.clone(), inner), 0..5).prop_map(|entries| {
                let entries: Vec<String> = entries
                    .into_iter()
                    .map(|(key, value)| format!("\"{key}\": {value}"))
                    .collect();
                format!("{{{}}}", entries.join(","))
            }),
        ]
    })
}

proptest! {
    #[test]
    fn any_bytes_are_answered(api in apis(), body in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(request) = Request::parse(api, &body) {
            let _text = request.text();
        }
    }

    #[test]
    fn nearly_json_is_answered_and_never_refused_where_serde_reads_an_object(
        api in apis(),
        body in nearly_json(),
    ) {
        let parsed = Request::parse(api, body.as_bytes());
        if serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&body).is_ok() {
            prop_assert!(parsed.is_ok(), "{body}");
        }
        if let Ok(request) = parsed {
            let _text = request.text();
            let target = ConversionTarget { version: Some((0, 33)), template: None };
            let _chat = match &request.content {
                Content::Responses(body) => Some(body.chat(&target)),
                Content::Messages(body) => Some(body.chat(&target)),
                _ => None,
            };
        }
    }

    /// The tolerant scanner is only asked about what serde refuses; where both have a say
    /// (plain JSON) they must agree.
    #[test]
    fn the_tolerant_scanner_takes_all_that_serde_takes(body in nearly_json()) {
        let verdict = python_json::verdict(body.as_bytes());
        match serde_json::from_str::<serde_json::Value>(&body) {
            Ok(value) => prop_assert_eq!(
                matches!(verdict, python_json::Verdict::Object { .. }),
                value.is_object(),
                "{}", body
            ),
            Err(_) if body.contains("NaN") || body.contains("ud800") || body.contains("1e400") => {}
            Err(_) => prop_assert!(
                matches!(verdict, python_json::Verdict::Invalid | python_json::Verdict::Empty),
                "{}: {:?}", body, verdict
            ),
        }
    }
}

#[test]
fn numbers_of_few_bytes_do_not_blow_the_text_up() {
    let body = format!(r#"{{"prompt":[{}-77]}}"#, "1e308,".repeat(100));
    let request = Request::parse(Api::Completions, body.as_bytes()).unwrap();
    let text = request.text().unwrap();
    assert!(
        text.len() < 5 * body.len(),
        "{} of {}",
        text.len(),
        body.len()
    );
}
