//! The canaries: a few requests whose token ids are compared, and what this process makes of each.

use serde_json::{Value, json};

use crate::routing::model::{Model, RenderContext, TokensError};
use crate::routing::request::{Api, Request};

/// One request that nobody sent.
#[derive(Clone, Debug)]
pub(super) struct Canary {
    /// Its word in logs and on pages.
    pub(super) name: &'static str,
    pub(super) api: Api,
    pub(super) body: Vec<u8>,
}

/// The one that engines of different versions read differently though their tokenizers are the same.
pub(super) const DEVELOPER: &str = "developer";
/// The one that a short context length may refuse.
pub(super) const LONG: &str = "long";

const TEXT: &str = "The quick brown fox\n\n\tjumps over 1234567890 lazy dogs: naïve café, 北京, 🦊👩‍👩‍👧, e\u{301}.  fn main() {}";

/// All of them, the simplest first: what differs first is what is told.
pub(super) fn canaries() -> Vec<Canary> {
    let mut all = vec![Canary {
        name: "text",
        api: Api::Completions,
        body: json!({ "prompt": TEXT }).to_string().into_bytes(),
    }];
    all.extend(
        chats()
            .into_iter()
            .map(|(name, messages, tools)| chat(name, messages, tools)),
    );
    all
}

fn chat(name: &'static str, messages: Value, tools: Option<Value>) -> Canary {
    let mut body = json!({ "messages": messages });
    if let (Some(tools), Some(fields)) = (tools, body.as_object_mut()) {
        fields.insert("tools".to_owned(), tools);
    }
    Canary {
        name,
        api: Api::Chat,
        body: body.to_string().into_bytes(),
    }
}

fn chats() -> Vec<(&'static str, Value, Option<Value>)> {
    let said = |role: &str, content: &str| json!({"role": role, "content": content});
    let question = "What will the weather be in Zürich?";
    let system = said("system", "You are a terse assistant.");
    let part = |text: &str| json!({"type": "text", "text": text});
    vec![
        ("user", json!([said("user", question)]), None),
        (
            "system",
            json!([
                system,
                said("user", question),
                said("assistant", "Rain."),
                said("user", "Sure?")
            ]),
            None,
        ),
        (
            "parts",
            json!([{"role": "user", "content": [part("One."), part("Two.")]}]),
            None,
        ),
        ("unicode", json!([said("user", TEXT)]), None),
        ("tools", tool_history(question), Some(tools())),
        (
            DEVELOPER,
            json!([said("developer", "Be terse."), said("user", question)]),
            None,
        ),
        (
            LONG,
            json!([said("system", &long()), said("user", question)]),
            None,
        ),
    ]
}

fn tool_history(question: &str) -> Value {
    json!([
        {"role": "user", "content": question},
        {"role": "assistant", "content": null, "tool_calls": [{
            "id": "call00001", "type": "function",
            "function": {"name": "weather", "arguments": r#"{"city": "Zürich", "days": 2}"#},
        }]},
        {"role": "tool", "tool_call_id": "call00001", "content": r#"{"celsius": 21.5}"#},
        {"role": "assistant", "content": "21.5 degrees."},
        {"role": "user", "content": "And tomorrow?"},
    ])
}

fn tools() -> Value {
    json!([{"type": "function", "function": {
        "name": "weather",
        "description": "The weather of the next days",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
            "required": ["city"],
        },
    }}])
}

/// Some 6 KB that do not repeat.
fn long() -> String {
    (1..=120)
        .map(|n| {
            format!(
                "{n}. Rule {} of {} holds for case <{:x}>.\n",
                n * 37 % 101,
                n * n,
                n * 7919
            )
        })
        .collect()
}

/// What this process makes of a canary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ours {
    /// Its token ids.
    Ids(Vec<u32>),
    /// The template refuses it.
    Refused,
    /// Requests of its kind are not tokenized here anyway, or not twice in the same way.
    Apart(&'static str),
}

/// Renders and tokenizes a canary as a request that came now.
pub(super) fn ours(model: &Model, canary: &Canary, context: &RenderContext) -> Ours {
    if canary.name == DEVELOPER && context.engine_version.is_none() {
        return Ours::Apart("unknown_engine_version");
    }
    let now = made(model, canary, context);
    let in_a_second = RenderContext {
        unix_time: context.unix_time + 1,
        ..context.clone()
    };
    // A prompt with seconds in it is never the same twice. One with a date is, but for midnight.
    if model.tells_time() && made(model, canary, &in_a_second) != now {
        return Ours::Apart("time");
    }
    match now {
        Ours::Ids(ids) if !fits(ids.len(), context) => Ours::Apart("context_length"),
        other => other,
    }
}

fn made(model: &Model, canary: &Canary, context: &RenderContext) -> Ours {
    let Ok(request) = Request::parse(canary.api, &canary.body) else {
        return Ours::Apart("malformed");
    };
    match model.sequences(&request, context) {
        Ok(sequences) => Ours::Ids(sequences.into_iter().flatten().collect()),
        Err(TokensError::Template(_)) => Ours::Refused,
        Err(error) => Ours::Apart(error.reason()),
    }
}

fn fits(tokens: usize, context: &RenderContext) -> bool {
    let limit = context.max_model_len.and_then(|len| len.try_into().ok());
    limit.is_none_or(|limit: usize| tokens < limit)
}
