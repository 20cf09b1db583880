//! Bodies of the Responses and Messages APIs: what is known of the chat they become, and what is left to the engine.

use super::*;

/// What a conversion to a chat comes to, where no template is at hand.
fn why_not_converted(api: Api, body: &str, version: Option<Version>) -> Option<&'static str> {
    let target = ConversionTarget {
        version,
        template: None,
    };
    let converted = match parse(api, body).content {
        Content::Responses(body) => body.chat(&target),
        Content::Messages(body) => body.chat(&target),
        Content::Inexact { why, .. } => Err(why),
        other => panic!("{other:?}"),
    };
    converted.err().map(|why| why.reason())
}

#[test]
fn what_is_known_outside_of_other_apis_bodies_depends_on_the_engines_version() {
    let reasoning =
        r#"{"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}"#;
    let call =
        r#"{"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]}"#;
    let search = r#"{"input": [{"type": "web_search_call", "id": "w"}]}"#;
    let tools = r#"{"input": "a", "tools": [{"type": "web_search"}]}"#;
    let hi = r#""messages": [{"role": "user", "content": "a"}]"#;
    let with = |field: &str| format!("{{{hi}, {field}}}");
    let document = r#"{"messages": [{"role": "user", "content": [{"type": "document"}]}]}"#;
    let inline = r#"{"messages": [{"role": "system", "content": "a"}]}"#;
    let billing = r#""system": [{"type": "text", "text": "x-anthropic-billing-header: 1"}]"#;
    let (new, old) = (Some((0, 31)), Some((0, 18)));
    for (api, body, version, reason) in [
        (Api::Responses, r#"{"input": "a"}"#.to_owned(), None, None),
        (
            Api::Responses,
            r#"{"input": "a", "previous_response_id": "r"}"#.to_owned(),
            new,
            Some("engine_state"),
        ),
        (
            Api::Responses,
            r#"{"input": "a", "conversation": {"id": "c"}}"#.to_owned(),
            new,
            Some("engine_state"),
        ),
        (
            Api::Responses,
            r#"{"input": "a", "prompt": {"id": "p"}}"#.to_owned(),
            new,
            Some("engine_state"),
        ),
        (
            Api::Responses,
            r#"{"input": "a", "background": true}"#.to_owned(),
            new,
            Some("engine_state"),
        ),
        (
            Api::Responses,
            r#"{"input": "a", "background": false, "prompt": null}"#.to_owned(),
            new,
            None,
        ),
        (
            Api::Responses,
            r#"{"input": [{"type": "item_reference", "id": "i"}]}"#.to_owned(),
            new,
            Some("engine_state"),
        ),
        (
            Api::Responses,
            reasoning.to_owned(),
            new,
            Some("encrypted_reasoning"),
        ),
        (
            Api::Responses,
            search.to_owned(),
            new,
            Some("foreign_feature"),
        ),
        (Api::Responses, call.to_owned(), new, None),
        (
            Api::Responses,
            call.to_owned(),
            None,
            Some("unknown_engine_version"),
        ),
        (Api::Responses, call.to_owned(), old, Some("unsure")),
        (Api::Responses, tools.to_owned(), new, None),
        (
            Api::Responses,
            tools.to_owned(),
            None,
            Some("unknown_engine_version"),
        ),
        (
            Api::Responses,
            r#"{"input": 1}"#.to_owned(),
            new,
            Some("unknown_shape"),
        ),
        (Api::Messages, format!("{{{hi}}}"), None, None),
        (
            Api::Messages,
            document.to_owned(),
            new,
            Some("foreign_feature"),
        ),
        (
            Api::Messages,
            with(r#""tools": [{"type": "web_search_20250305", "name": "w"}]"#),
            new,
            Some("foreign_feature"),
        ),
        (
            Api::Messages,
            with(billing),
            None,
            Some("unknown_engine_version"),
        ),
        (Api::Messages, with(billing), new, None),
        (
            Api::Messages,
            with(r#""cache_salt": "s""#),
            None,
            Some("unknown_engine_version"),
        ),
        (
            Api::Messages,
            with(r#""cache_salt": "s""#),
            old,
            Some("unsure"),
        ),
        (
            Api::Messages,
            with(r#""thinking": {"type": "enabled"}"#),
            None,
            None,
        ),
        // These depend on the template.
        (
            Api::Messages,
            with(r#""thinking": {"type": "disabled"}"#),
            new,
            Some("no_template"),
        ),
        (Api::Messages, inline.to_owned(), new, Some("no_template")),
        (
            Api::Messages,
            r#"{"messages": []}"#.to_owned(),
            new,
            Some("unknown_shape"),
        ),
    ] {
        assert_eq!(
            why_not_converted(api, &body, version),
            reason,
            "{version:?} {body}"
        );
    }
}
