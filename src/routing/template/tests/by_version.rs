//! What engines of different versions hand to a template: tools, the developer role, names of tools.

use super::*;

/// As `FunctionDefinition` and `ChatCompletionToolsParam` of those releases print them.
#[test]
fn unusual_fields_of_tools_follow_the_engines_version() {
    let shown = |version, function: &str, beside: &str| {
        let list =
            format!(r#"[{{"type": "function", "function": {{"name": "f"{function}}}{beside}}}]"#);
        let shown = tools(&json_value(&list).unwrap(), version)
            .map(|t| render_json(&t))
            .ok()?;
        let (start, rest) = shown.split_once(r#""parameters": null"#).unwrap();
        assert_eq!(
            start,
            r#"[{"type": "function", "function": {"name": "f", "description": null, "#
        );
        Some(rest.to_owned())
    };
    let text = |text: &str| Some(text.to_owned());
    let strict_null = r#", "strict": null"#;
    assert_eq!(
        shown(Some((0, 23)), strict_null, ""),
        text(r#", "strict": null}}]"#)
    );
    assert_eq!(shown(Some((0, 24)), strict_null, ""), text("}}]"));
    assert_eq!(shown(None, strict_null, ""), None);
    assert_eq!(
        shown(None, r#", "strict": true"#, ""),
        text(r#", "strict": true}}]"#)
    );
    let mixed = r#", "x": 1, "strict": true"#;
    assert_eq!(
        shown(Some((0, 20)), mixed, ""),
        text(r#", "x": 1, "strict": true}}]"#)
    );
    assert_eq!(
        shown(Some((0, 26)), mixed, ""),
        text(r#", "strict": true, "x": 1}}]"#)
    );
    assert_eq!(
        shown(Some((0, 27)), mixed, ""),
        text(r#", "strict": true}}]"#)
    );
    let defers = r#", "defer_loading": true"#;
    let twice = r#", "defer_loading": true}, "defer_loading": true}]"#;
    assert_eq!(shown(Some((0, 31)), "", defers), text(twice));
    assert_eq!(
        shown(Some((0, 20)), "", defers),
        text(r#"}, "defer_loading": true}]"#)
    );
    assert_eq!(
        shown(Some((0, 26)), "", r#", "y": 2"#),
        text(r#"}, "y": 2}]"#)
    );
    assert_eq!(shown(Some((0, 27)), "", r#", "y": 2"#), text("}}]"));
}

/// As `vllm/renderers/hf.py` of 0.23 to 0.33 does it, for either kind of template.
#[test]
fn a_developer_at_the_front_stays_there_and_a_later_one_joins_the_system_message() {
    let new = Some((0, 31));
    let first = r#"[{"role": "developer", "name": "n", "content": [{"type": "text", "text": "d"}]},
        {"role": "user", "content": "x"}]"#;
    let parts = serde_json::json!([{"type": "text", "text": "d"}]);
    assert_eq!(
        prepared(STRING, new, first).unwrap()[0],
        serde_json::json!({"role": "system", "content": "d", "name": "n"})
    );
    assert_eq!(prepared(PARTS, new, first).unwrap()[0]["content"], parts);
    let later = r#"[{"role": "system", "content": ""}, {"role": "system", "content": "s"}, {"role": "user", "content": "x"},
        {"role": "developer", "content": [{"type": "text", "text": "d"}, {"type": "text", "text": "e"}]}]"#;
    let merged = serde_json::json!({"role": "system", "content": "s\n\nd\ne"});
    for source in [STRING, PARTS] {
        assert_eq!(prepared(source, new, later).unwrap()[0], merged);
    }
    // Where the template has a case for it, it is told that the message has no tools.
    let knows = format!("{STRING}{{% if messages[0].role == 'developer' %}}{{% endif %}}");
    let shown = prepared(&knows, new, first).unwrap();
    assert_eq!(
        shown[0],
        serde_json::json!({"role": "developer", "content": "d", "name": "n", "tools": null})
    );
    // A developer's billing line is nobody's business, and so are other parts.
    let billing = r#"[{"role": "developer", "content": "x-anthropic-billing-header: 1"},
        {"role": "user", "content": "x"}]"#;
    let content = prepared(STRING, Some((0, 33)), billing).unwrap()[0]["content"].take();
    assert_eq!(content, "x-anthropic-billing-header: 1");
    let input = r#"[{"role": "system", "content": [{"type": "input_text", "text": "x-anthropic-billing-header: 1"}]}]"#;
    let content = prepared(STRING, None, input).unwrap()[0]["content"].take();
    assert_eq!(content, "x-anthropic-billing-header: 1");
}

#[test]
fn names_of_tools_in_a_tools_answer_reach_the_template() {
    let messages = r#"[{"role": "tool", "tool_call_id": "t", "content": [{"type": "tool_reference", "name": "f"},
        {"type": "tool_reference", "name": "g"}]}]"#;
    assert_eq!(
        prepared(STRING, None, messages).unwrap()[0]["content"],
        "f\ng"
    );
    let references = serde_json::json!([{"type": "tool_reference", "name": "f"}, {"type": "tool_reference", "name": "g"}]);
    assert_eq!(
        prepared(PARTS, None, messages).unwrap()[0]["content"],
        references
    );
}
