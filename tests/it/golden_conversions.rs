//! Bodies of `/v1/responses` and `/v1/messages` become the chats that vLLM makes of them, version by version.
//!
//! `tests/data/conversions.jsonl` has bodies written for this test, and what the conversion code of vLLM's releases
//! (`vllm/entrypoints/openai/responses`, `vllm/entrypoints/anthropic`) made of each when it was run over them.

use std::collections::BTreeMap;

use minijinja::Value;
use serde_json::{Value as Json, json};
use warmpath::routing::request::{
    Api, Chat, Content, ConversionTarget, Inexact, Request, TemplateFacts, to_json,
};

/// A template as the recorded runs had it.
struct Facts {
    system_first: bool,
}

impl TemplateFacts for Facts {
    fn mentions(&self, _name: &str) -> bool {
        true
    }

    fn system_first(&self) -> bool {
        self.system_first
    }

    fn effort_without_thinking(&self) -> &'static str {
        "none"
    }
}

fn converted(
    api: Api,
    body: &str,
    version: Option<(u32, u32)>,
    system_first: bool,
) -> Result<Chat, Inexact> {
    let facts = Facts { system_first };
    let target = ConversionTarget {
        version,
        template: Some(&facts),
    };
    match Request::parse(api, body.as_bytes()).unwrap().content {
        Content::Responses(body) => body.chat(&target),
        Content::Messages(body) => body.chat(&target),
        Content::Inexact { why, .. } => Err(why),
        other => panic!("{other:?}"),
    }
}

/// A content as the list of its texts, with a word for each picture and tool.
fn texts(content: &Json) -> Json {
    match content {
        Json::Null => json!([]),
        Json::String(text) => json!([text]),
        parts => parts
            .as_array()
            .unwrap()
            .iter()
            .map(|part| match (part.get("text"), part.get("name")) {
                (Some(text), _) => text.clone(),
                (None, Some(name)) => json!({"tool": name}),
                (None, None) => json!({"media": part["type"]}),
            })
            .collect(),
    }
}

/// Arguments as the object that templates get.
fn arguments(given: &Json) -> Json {
    let parsed = match given {
        Json::String(text) => serde_json::from_str(text).unwrap_or(Json::Null),
        other => other.clone(),
    };
    if parsed.is_object() {
        parsed
    } else {
        json!({})
    }
}

fn message(message: &Json) -> Json {
    let mut plain = json!({"role": message["role"], "content": texts(&message["content"])});
    let fields = plain.as_object_mut().unwrap();
    if let Some(reasoning) = message.get("reasoning") {
        fields.insert("reasoning".to_owned(), reasoning.clone());
    }
    if let Some(calls) = message["tool_calls"].as_array() {
        let call = |call: &Json| {
            let function = &call["function"];
            json!([
                call["id"],
                function["name"],
                arguments(&function["arguments"])
            ])
        };
        fields.insert("tool_calls".to_owned(), calls.iter().map(call).collect());
    }
    if message["role"] == "tool" {
        fields.insert("id".to_owned(), message["tool_call_id"].clone());
    }
    plain
}

fn plain(value: &Value) -> Json {
    to_json(value)
}

/// What the recorded runs tell of a chat.
fn outcome(api: Api, chat: &Chat, body: &Json) -> Json {
    let messages = plain(&chat.messages);
    let messages: Vec<Json> = messages.as_array().unwrap().iter().map(message).collect();
    let mut kwargs: serde_json::Map<String, Json> = chat
        .template_kwargs
        .iter()
        .map(|(name, value)| (name.clone(), plain(value)))
        .collect();
    let effort = chat.reasoning_effort.as_ref().map(plain);
    let tools = chat.tools.as_ref().map(plain);
    if api == Api::Messages {
        return json!({"messages": messages, "tools": tools, "effort": effort, "kwargs": kwargs,
            "salt": body.get("cache_salt")});
    }
    kwargs.insert(
        "add_generation_prompt".to_owned(),
        json!(chat.add_generation_prompt),
    );
    kwargs.insert(
        "continue_final_message".to_owned(),
        json!(chat.continue_final_message),
    );
    if let Some(effort) = effort {
        kwargs.insert("reasoning_effort".to_owned(), effort);
    }
    let truncation = chat.truncation.map(|cut| cut.keep.map_or(-1, i64::from));
    json!({"messages": messages, "tools": tools, "kwargs": kwargs, "truncation": truncation})
}

/// `enable_thinking` follows from the effort when the template's arguments are put together, not here.
fn without_thinking(mut expected: Json, body: &Json) -> Json {
    let explicit = body["chat_template_kwargs"]
        .get("enable_thinking")
        .is_some();
    if let (Some(kwargs), false) = (expected["kwargs"].as_object_mut(), explicit) {
        kwargs.remove("enable_thinking");
    }
    expected
}

fn version_of(text: &str) -> (u32, u32) {
    let (major, minor) = text.split_once('.').unwrap();
    (major.parse().unwrap(), minor.parse().unwrap())
}

fn rows() -> Vec<Json> {
    let text = include_str!("../data/conversions.jsonl");
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn api_of(row: &Json) -> Api {
    match row["api"].as_str().unwrap() {
        "responses" => Api::Responses,
        _ => Api::Messages,
    }
}

#[test]
fn what_is_converted_is_what_that_version_of_vllm_makes_of_it() {
    let mut counts: BTreeMap<(&str, String), [usize; 3]> = BTreeMap::new();
    let rows = rows();
    for row in &rows {
        let api = api_of(row);
        let body = row["body"].to_string();
        let system_first = row["merge"].as_bool().unwrap_or(true);
        for group in row["outcomes"].as_array().unwrap() {
            for version in group["versions"].as_array().unwrap() {
                let version = version.as_str().unwrap();
                let ours = converted(api, &body, Some(version_of(version)), system_first);
                let is_known = group["out"].is_object();
                let [exact, left, refused] = counts
                    .entry((row["api"].as_str().unwrap(), version.to_owned()))
                    .or_default();
                match ours {
                    Ok(chat) if is_known => {
                        let expected = without_thinking(group["out"].clone(), &row["body"]);
                        assert_eq!(
                            outcome(api, &chat, &row["body"]),
                            expected,
                            "{version}: {body}"
                        );
                        *exact += 1;
                    }
                    Err(why) if is_known => {
                        if version == "0.33" {
                            println!("{}: {body}", why.reason());
                        }
                        *left += 1;
                    }
                    _ => *refused += 1,
                }
            }
        }
    }
    for ((api, version), [exact, left, refused]) in counts {
        println!(
            "{api} {version}: {exact} exact, {left} left to the engine, {refused} that it refuses"
        );
        // Newer engines are known through and through; what is left there is told by name below.
        assert!(
            version_of(&version) < (0, 28) || left <= LEFT_TO_NEW_ENGINES,
            "{api} {version}: {left}"
        );
    }
}

/// A continued reasoning, an unfinished message that is no answer's, and the like.
const LEFT_TO_NEW_ENGINES: usize = 8;

#[test]
fn without_a_version_nothing_is_exact_that_versions_differ_on() {
    for row in &rows() {
        let api = api_of(row);
        let body = row["body"].to_string();
        let system_first = row["merge"].as_bool().unwrap_or(true);
        let Ok(chat) = converted(api, &body, None, system_first) else {
            continue;
        };
        for group in row["outcomes"].as_array().unwrap() {
            if group["out"].is_object() {
                let expected = without_thinking(group["out"].clone(), &row["body"]);
                let versions = &group["versions"];
                assert_eq!(
                    outcome(api, &chat, &row["body"]),
                    expected,
                    "{versions}: {body}"
                );
            }
        }
    }
}
