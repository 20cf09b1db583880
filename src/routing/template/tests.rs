//! Templates: Python's printing, the special blocks, and the preparation of messages.

mod by_version;

use proptest::prelude::*;
use serde_json::Value as Json;

use super::*;
use crate::routing::request::json_value;

fn variables(messages: Vec<Value>) -> Variables<'static> {
    Variables {
        messages,
        tools: None,
        documents: None,
        special_tokens: &[],
        kwargs: Vec::new(),
        add_generation_prompt: false,
        continue_final_message: false,
        unix_time: 1_768_435_200,
    }
}

fn render_with(template: &str, name: &str, value: &str) -> Result<String, TemplateError> {
    ChatTemplate::new(template)?.render(Variables {
        kwargs: vec![(name.to_owned(), json_value(value).unwrap())],
        ..variables(Vec::new())
    })
}

fn target(source: &str, version: Option<(u32, u32)>) -> Target {
    let template = ChatTemplate::new(source).unwrap();
    Target {
        format: template.content_format(),
        names_developer: template.names_developer(),
        version,
        reading: Reading::AsSent,
    }
}

const STRING: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}";
const PARTS: &str =
    "{% for m in messages %}{% for part in m['content'] %}{{ part.text }}{% endfor %}{% endfor %}";

/// Messages as a template of that source gets them, printed as JSON.
fn prepared(source: &str, version: Option<(u32, u32)>, messages: &str) -> Result<Json, Unfit> {
    let messages = conversation(&json_value(messages).unwrap(), target(source, version))?;
    let printed = render_json(&Value::from(messages));
    Ok(serde_json::from_str(&printed).unwrap())
}

fn render_json(value: &Value) -> String {
    let template = ChatTemplate::new("{{ v | tojson }}").unwrap();
    template
        .render(Variables {
            kwargs: vec![("v".to_owned(), value.clone())],
            ..variables(Vec::new())
        })
        .unwrap()
}

#[test]
fn values_are_printed_as_python_prints_them() {
    for (value, printed) in [
        ("true", "True"),
        ("null", "None"),
        ("[1, \"a\", null]", "[1, 'a', None]"),
        ("{\"a\": {\"b\": false}}", "{'a': {'b': False}}"),
        (
            "[\"it's\", \"\\\"\", \"'\\\"\"]",
            "[\"it's\", '\"', '\\'\"']",
        ),
        ("[\"\\n\\u0007\\u200bé\"]", "['\\n\\x07\\u200bé']"),
        ("1.0", "1.0"),
        ("1e16", "1e+16"),
        ("123456789012345.5", "123456789012345.5"),
        ("0.0001", "0.0001"),
        ("0.00001", "1e-05"),
    ] {
        assert_eq!(
            render_with("{{ v }}", "v", value).unwrap(),
            printed,
            "{value}"
        );
    }
    assert_eq!(python::float(-1.5e300), "-1.5e+300");
    assert_eq!(python::float(f64::NEG_INFINITY), "-inf");
}

#[test]
fn tojson_is_pythons() {
    let value = r#"{"b": [1, 2.50, "<é>"], "a": {}, "c": []}"#;
    for (template, printed) in [
        (
            "{{ v|tojson }}",
            r#"{"b": [1, 2.5, "<é>"], "a": {}, "c": []}"#,
        ),
        (
            "{{ v|tojson(ensure_ascii=true) }}",
            r#"{"b": [1, 2.5, "<\u00e9>"], "a": {}, "c": []}"#,
        ),
        (
            "{{ v|tojson(sort_keys=true) }}",
            r#"{"a": {}, "b": [1, 2.5, "<é>"], "c": []}"#,
        ),
        (
            "{{ v|tojson(separators=(',', ':')) }}",
            r#"{"b":[1,2.5,"<é>"],"a":{},"c":[]}"#,
        ),
        (
            "{{ v|tojson(indent=2) }}",
            "{\n  \"b\": [\n    1,\n    2.5,\n    \"<é>\"\n  ],\n  \"a\": {},\n  \"c\": []\n}",
        ),
    ] {
        assert_eq!(
            render_with(template, "v", value).unwrap(),
            printed,
            "{template}"
        );
    }
    assert!(render_with("{{ missing|tojson }}", "v", "1").is_err());
}

#[test]
fn generation_blocks_open_a_scope_and_print_what_is_inside() {
    let template = "{% set a = 1 %}{%- generation -%} x{% set a = 2 %}{{ a }} {%- endgeneration %}{{ a }}\
        {# {% generation %} #}{% raw %}{% generation %}{% endraw %}";
    assert_eq!(
        render_with(template, "v", "1").unwrap(),
        "x21{% generation %}"
    );
}

#[test]
fn the_date_is_that_of_the_context() {
    let template = "{{ strftime_now('%Y') }} {{ strftime_now('%B') }}";
    assert_eq!(render_with(template, "v", "1").unwrap(), "2026 January");
}

#[test]
fn a_template_that_never_ends_runs_out_of_fuel() {
    let template =
        "{% for a in range(9999) %}{% for b in range(9999) %}{{ a * b }}{% endfor %}{% endfor %}";
    assert!(matches!(
        render_with(template, "v", "1"),
        Err(TemplateError::Engine(_))
    ));
}

#[test]
fn a_template_can_refuse() {
    let error = render_with("{{ raise_exception('roles must alternate') }}", "v", "1").unwrap_err();
    assert!(
        error.to_string().contains("roles must alternate"),
        "{error}"
    );
}

#[test]
fn the_final_message_is_continued() {
    let continued = |source: &str, content: &str| {
        let message = json_value(&format!(r#"{{"role": "assistant", "content": {content}}}"#));
        ChatTemplate::new(source).unwrap().render(Variables {
            continue_final_message: true,
            ..variables(vec![message.unwrap()])
        })
    };
    assert_eq!(continued(STRING, r#""so ""#).unwrap(), "assistant:so ");
    let trims = "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}";
    assert_eq!(continued(trims, r#""so ""#).unwrap(), "<so");
    let parts = r#"[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]"#;
    assert_eq!(continued(PARTS, parts).unwrap(), "ab");
    assert!(continued("{% for m in messages %}content{% endfor %}", r#""so""#).is_err());
    assert!(continued(STRING, "null").is_err());
}

#[test]
fn the_content_format_is_found_in_the_syntax_tree() {
    for (source, format) in [
        (STRING, ContentFormat::String),
        (PARTS, ContentFormat::Parts),
        ("{{ messages[0].content }}", ContentFormat::String),
        (
            "{% set loop_messages = messages[1:] %}{% for m in loop_messages %}\
             {% for p in m.content | list %}{% endfor %}{% endfor %}",
            ContentFormat::Parts,
        ),
        (
            "{% macro show(content) %}{% for p in content %}{% endfor %}{% endmacro %}\
             {% for m in messages %}{{ show(m.content) }}{% endfor %}",
            ContentFormat::Parts,
        ),
        (
            "{% for m in messages %}{% for p in m.tool_calls %}{% endfor %}{% endfor %}",
            ContentFormat::String,
        ),
        (
            "{% for a, b in messages %}{% endfor %}",
            ContentFormat::String,
        ),
        ("{% broken", ContentFormat::String),
    ] {
        assert_eq!(ContentFormat::detect(source), format, "{source}");
    }
}

#[test]
fn messages_are_prepared_as_the_engine_does() {
    let messages = r#"[
        {"role": "system", "content": [{"type": "text", "text": "a"}, "", {"type": "text", "text": "b", "cache_control": 1}]},
        {"role": "user", "content": "x", "name": "n", "unknown": 1},
        {"role": "assistant", "content": null, "reasoning": "r", "refusal": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}},
            {"id": "2", "type": "function", "function": {"name": "g", "arguments": "oops"}}]},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "t"}]},
        {"role": "assistant", "content": "", "tool_calls": []}]"#;
    let of_string = prepared(STRING, None, messages).unwrap();
    let expected: Json = serde_json::from_str(
        r#"[
        {"role": "system", "content": "a\nb"},
        {"role": "user", "content": "x", "name": "n"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": 2}}},
            {"id": "2", "type": "function", "function": {"name": "g", "arguments": {}}}],
            "reasoning": "r", "reasoning_content": "r"},
        {"role": "tool", "content": "t", "tool_call_id": "1"},
        {"role": "assistant", "content": ""}]"#,
    )
    .unwrap();
    assert_eq!(of_string.to_string(), expected.to_string());

    let of_parts = prepared(PARTS, None, messages).unwrap();
    assert_eq!(
        of_parts[0]["content"].to_string(),
        r#"[{"type":"text","text":"a"},{"type":"text","text":""},{"type":"text","text":"b","cache_control":1}]"#
    );
    assert_eq!(of_parts[2]["content"].to_string(), "[]");
    assert_eq!(of_parts[3]["content"], "t");
}

#[test]
fn the_developer_role_follows_template_and_version() {
    let messages = r#"[{"role": "user", "content": "x"}, {"role": "system", "content": "s"},
        {"role": "developer", "content": "d"}]"#;
    let roles = |version, source: &str| -> Result<String, Unfit> {
        let messages = prepared(source, version, messages)?;
        Ok(messages
            .as_array()
            .unwrap()
            .iter()
            .map(|m| {
                format!(
                    "{}={} ",
                    m["role"].as_str().unwrap(),
                    m["content"].as_str().unwrap()
                )
            })
            .collect())
    };
    let unchanged = "user=x system=s developer=d ";
    assert_eq!(
        roles(Some((0, 31)), STRING).unwrap(),
        "system=s\n\nd user=x "
    );
    assert_eq!(roles(Some((0, 20)), STRING).unwrap(), unchanged);
    assert!(matches!(roles(None, STRING), Err(Unfit::UnknownVersion(_))));
    let knows = format!("{STRING}{{% if messages[0].role == 'developer' %}}{{% endif %}}");
    assert_eq!(roles(None, &knows).unwrap(), unchanged);
}

#[test]
fn the_billing_line_of_claude_code_goes_where_the_engine_drops_it() {
    let messages = r#"[{"role": "system", "content": [
        {"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
        {"type": "text", "text": "x-anthropic-billing-header: cch=1;\nrest"}]}]"#;
    let content = |version| -> Result<Json, Unfit> {
        Ok(prepared(STRING, version, messages)?[0]["content"].clone())
    };
    assert_eq!(content(Some((0, 32))).unwrap(), "rest");
    assert!(
        content(Some((0, 31)))
            .unwrap()
            .as_str()
            .unwrap()
            .contains("cch=1")
    );
    assert!(matches!(content(None), Err(Unfit::UnknownVersion(_))));
}

#[test]
fn media_and_unknown_shapes_are_left_to_the_engine() {
    for (messages, media) in [
        (
            r#"[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]"#,
            true,
        ),
        (
            r#"[{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]"#,
            true,
        ),
        (r#"[{"role": "user", "content": 7}]"#, false),
        (
            r#"[{"role": "user", "content": [{"text": "no type"}]}]"#,
            false,
        ),
        (r#"[{"content": "no role"}]"#, false),
        (
            r#"[{"role": "assistant", "content": "", "tool_calls": [{"type": "custom"}]}]"#,
            false,
        ),
    ] {
        let unfit = prepared(STRING, None, messages).unwrap_err();
        assert_eq!(
            matches!(unfit, Unfit::Media(_)),
            media,
            "{messages}: {unfit}"
        );
    }
}

#[test]
fn tools_get_their_known_fields_in_order() {
    let list =
        |version, list: &str| tools(&json_value(list).unwrap(), version).map(|t| render_json(&t));
    let plain =
        r#"[{"function": {"parameters": {"b": 1, "a": 2}, "name": "f"}, "type": "function"}]"#;
    assert_eq!(
        list(None, plain).unwrap(),
        r#"[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"b": 1, "a": 2}}}]"#
    );
    let extra = r#"[{"type": "function", "function": {"name": "f", "strict": true, "x": 1}}]"#;
    assert!(
        list(Some((0, 31)), extra)
            .unwrap()
            .ends_with(r#""parameters": null, "strict": true}}]"#)
    );
    assert!(
        list(Some((0, 20)), extra)
            .unwrap()
            .ends_with(r#""strict": true, "x": 1}}]"#)
    );
    assert!(list(None, extra).is_err());
}

fn json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        ".{0,12}".prop_map(Json::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Json::from),
            prop::collection::vec((".{0,4}", inner), 0..5)
                .prop_map(|entries| Json::Object(entries.into_iter().collect())),
        ]
    })
}

proptest! {
    /// serde_json is the naive twin: it reads what `tojson` wrote, keys in their order.
    #[test]
    fn tojson_writes_what_reads_back_equal(value in json()) {
        let ours = render_json(&json_value(&value.to_string()).unwrap());
        let back: Json = serde_json::from_str(&ours).unwrap();
        prop_assert_eq!(back.to_string(), value.to_string());
    }

    #[test]
    fn floats_print_the_shortest_digits_that_read_back(number in any::<f64>()) {
        prop_assume!(number.is_finite());
        let printed = python::float(number);
        prop_assert_eq!(printed.parse::<f64>().unwrap().to_bits(), number.to_bits());
    }

    #[test]
    fn any_messages_are_answered(value in json()) {
        let message = Json::from(vec![value]);
        let messages = json_value(&message.to_string()).unwrap();
        for source in [STRING, PARTS] {
            let _answer = conversation(&messages, target(source, Some((0, 31))));
        }
    }
}

#[test]
fn tojson_refuses_what_refers_to_too_much() {
    let mut value = Value::from(1);
    for _ in 0..1000 {
        value = Value::from(vec![value]);
    }
    let template = ChatTemplate::new("{{ v | tojson }}").unwrap();
    let kwargs = vec![("v".to_owned(), value)];
    assert!(
        template
            .render(Variables {
                kwargs,
                ..variables(Vec::new())
            })
            .is_err()
    );
}
