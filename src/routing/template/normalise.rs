//! From a request's messages and tools to those a template gets, as vLLM prepares them.
//!
//! Keys that no template is meant to see are dropped, contents get the shape the template
//! expects, tool arguments become objects, and the developer role follows the engine's version.

mod calls;
mod content;
mod tools;

use minijinja::Value;

use super::content_format::ContentFormat;
use crate::routing::request::list;
use content::{Part, joined};
pub use tools::tools;

/// vLLM's version as (major, minor).
type Version = (u32, u32);

/// Since this version a developer's message becomes a system message where the template has
/// no case for it (measured on 0.31 and 0.20).
const DEVELOPER_BECOMES_SYSTEM: Version = (0, 23);

/// Why messages or tools have no exact rendering here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// A part that is not text: its tokens depend on pixels or samples.
    #[error("the content has a part of type `{0}`, whose tokens only the engine can tell")]
    Media(String),
    /// A shape we do not know; the engine may.
    #[error("{field} is not {expected}")]
    Shape {
        /// Which field.
        field: &'static str,
        /// What we know how to read there.
        expected: &'static str,
    },
    /// Engines of different versions render it differently, and this one's is not known.
    #[error("engine versions differ on {0}, and this engine's version is not known")]
    UnknownVersion(&'static str),
    /// Known not to be reproduced here.
    #[error("{0}")]
    Unsure(&'static str),
}

const fn shape(field: &'static str, expected: &'static str) -> Unfit {
    Unfit::Shape { field, expected }
}

/// What the preparation depends on besides the messages.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The shape of contents.
    pub format: ContentFormat,
    /// The template has a case for the developer role.
    pub names_developer: bool,
    /// The engine's version, if known.
    pub version: Option<Version>,
    /// How the engine is taken to read what its versions read differently.
    pub reading: Reading,
}

/// Two readings of the messages, of which engine versions take one or the other; most
/// templates print the same for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Tool calls keep their keys in the body's order, `reasoning_content` is not looked at
    /// (vllm#38488).
    AsSent,
    /// Tool calls have the order of the API's schema and no other keys, and
    /// `reasoning_content` stands in for `reasoning`.
    BySchema,
}

/// Whether the two readings of these messages differ at all.
pub fn has_two_readings(messages: &Value) -> bool {
    let differs = |message: &Value| {
        let given = |name: &str| {
            let value = message.get_attr(name).unwrap_or_default();
            (!value.is_undefined() && !value.is_none()).then_some(value)
        };
        let only_reasoning_content =
            given("reasoning").is_none() && given("reasoning_content").is_some();
        only_reasoning_content || given("tool_calls").is_some_and(|calls| !calls::in_order(&calls))
    };
    list(messages).is_some_and(|messages| messages.iter().any(differs))
}

/// The messages of a template.
pub fn conversation(messages: &Value, target: Target) -> Result<Vec<Value>, Unfit> {
    let messages = list(messages).ok_or(shape("messages", "a list"))?;
    let mut becomes_system = false;
    let mut prepared = Vec::with_capacity(messages.len());
    for message in messages {
        let role = message.get_attr("role").unwrap_or_default();
        let role = role.as_str().ok_or(shape("messages[].role", "a string"))?;
        let converts = role == "developer" && !target.names_developer && {
            let version = target
                .version
                .ok_or(Unfit::UnknownVersion("the role `developer`"))?;
            version >= DEVELOPER_BECOMES_SYSTEM
        };
        becomes_system |= converts;
        let shown = if converts { "system" } else { role };
        prepared.push((shown == "system", prepare(message, role, shown, target)?));
    }
    if becomes_system {
        return Ok(merge_system(prepared));
    }
    Ok(prepared.into_iter().map(|(_, message)| message).collect())
}

/// One message, which has `role` in the body and is shown in the role `shown`.
fn prepare(message: &Value, role: &str, shown: &str, target: Target) -> Result<Value, Unfit> {
    let attr = |name: &str| {
        let value = message.get_attr(name).unwrap_or_default();
        (!value.is_undefined() && !value.is_none()).then_some(value)
    };
    let mut content = content::parts(attr("content").as_ref(), target.format)?;
    if role == "system" {
        content::drop_billing_line(&mut content, target.version)?;
    }
    let content = match (target.format, role) {
        // Templates handle a tool's answer as a string, whatever they do for other roles; names of tools they are
        // meant to look at.
        (ContentFormat::Parts, "tool") if !content.iter().any(|part| part.is_reference) => {
            Value::from(joined(&content))
        }
        (ContentFormat::Parts, _) => content.into_iter().map(Part::into_value).collect(),
        (ContentFormat::String, _) => match content.as_slice() {
            [Part { text, .. }] => text.clone(),
            _ => Value::from(joined(&content)),
        },
    };
    let mut pairs = vec![("role", Value::from(shown)), ("content", content)];
    if role == "assistant" {
        if let Some(calls) = attr("tool_calls")
            && let Some(calls) = calls::with_objects(&calls, target.reading)?
        {
            pairs.push(("tool_calls", calls));
        }
        let reasoning = attr("reasoning").or_else(|| {
            (target.reading == Reading::BySchema).then(|| attr("reasoning_content"))?
        });
        if let Some(reasoning) = reasoning {
            pairs.push(("reasoning", reasoning.clone()));
            pairs.push(("reasoning_content", reasoning));
        }
    } else if role == "tool"
        && let Some(id) = attr("tool_call_id")
    {
        pairs.push(("tool_call_id", id));
    }
    for name in ["name", "task"] {
        if let Some(value) = attr(name).filter(|value| value.as_str().is_some()) {
            pairs.push((name, value));
        }
    }
    if shown == "developer" {
        pairs.push(("tools", attr("tools").unwrap_or_else(|| Value::from(()))));
    }
    Ok(Value::from_pairs(pairs))
}

/// All system messages as one at the front, whose content is a text whatever the template takes; one that is there
/// already stays as it is.
fn merge_system(messages: Vec<(bool, Value)>) -> Vec<Value> {
    let is_in_place = messages.iter().skip(1).all(|(system, _)| !system);
    if is_in_place {
        return messages.into_iter().map(|(_, message)| message).collect();
    }
    let (system, others): (Vec<_>, Vec<_>) = messages.into_iter().partition(|(system, _)| *system);
    let texts = system.iter().map(|(_, message)| text_of(message));
    let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
    let merged = Value::from_pairs([
        ("role", Value::from("system")),
        ("content", Value::from(texts.join("\n\n"))),
    ]);
    [merged]
        .into_iter()
        .chain(others.into_iter().map(|(_, message)| message))
        .collect()
}

/// A prepared message's content as a text, one line a part.
fn text_of(message: &Value) -> String {
    let content = message.get_attr("content").unwrap_or_default();
    if let Some(text) = content.as_str() {
        return text.to_owned();
    }
    let parts = content.try_iter().into_iter().flatten();
    let texts = parts.map(|part| part.get_attr("text").unwrap_or_default());
    let texts: Vec<String> = texts
        .filter_map(|text| text.as_str().map(str::to_owned))
        .collect();
    texts.join("\n")
}
