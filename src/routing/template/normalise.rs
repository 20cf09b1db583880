//! From a request's messages and tools to those a template gets, as vLLM prepares them.
//!
//! Keys that no template is meant to see are dropped, contents get the shape the template
//! expects, tool arguments become objects, and the developer role follows the engine's version.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::content_format::ContentFormat;
use crate::routing::request::{is_python_object, json_value, list};

/// vLLM's version as (major, minor).
type Version = (u32, u32);

/// Since this version a developer's message becomes a system message where the template has
/// no case for it (measured on 0.31 and 0.20).
const DEVELOPER_BECOMES_SYSTEM: Version = (0, 23);
/// Since this version the line that Claude Code puts before its system prompt is dropped.
const BILLING_LINE_DROPPED: Version = (0, 32);
/// Since this version unknown fields of tools are dropped.
const UNKNOWN_TOOL_FIELDS_DROPPED: Version = (0, 24);
/// How that line starts; the rest differs with each request.
const BILLING_LINE: &str = "x-anthropic-billing-header";

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
}

/// The messages of a template.
pub fn conversation(messages: &Value, target: Target) -> Result<Vec<Value>, Unfit> {
    let messages = list(messages).ok_or(shape("messages", "a list"))?;
    let mut merges_system = false;
    let mut prepared = Vec::with_capacity(messages.len());
    for message in messages {
        let role = message.get_attr("role").unwrap_or_default();
        let role = role.as_str().ok_or(shape("messages[].role", "a string"))?;
        let becomes_system = role == "developer" && !target.names_developer && {
            let version = target
                .version
                .ok_or(Unfit::UnknownVersion("the role `developer`"))?;
            version >= DEVELOPER_BECOMES_SYSTEM
        };
        merges_system |= becomes_system;
        let role = if becomes_system { "system" } else { role };
        prepared.push((role == "system", prepare(message, role, target)?));
    }
    if merges_system {
        return merge_system(prepared, target.format);
    }
    Ok(prepared.into_iter().map(|(_, message)| message).collect())
}

fn prepare(message: &Value, role: &str, target: Target) -> Result<Value, Unfit> {
    let attr = |name: &str| {
        let value = message.get_attr(name).unwrap_or_default();
        (!value.is_undefined() && !value.is_none()).then_some(value)
    };
    let mut content = parts_of(attr("content").as_ref(), target.format)?;
    if role == "system" {
        drop_billing_line(&mut content, target.version)?;
    }
    let content = match (target.format, role) {
        // Templates handle a tool's answer as a string, whatever they do for other roles.
        (ContentFormat::Parts, "tool") => Value::from(joined(&content)),
        (ContentFormat::Parts, _) => content.into_iter().map(Part::into_value).collect(),
        (ContentFormat::String, _) => match content.as_slice() {
            [Part { text, .. }] => text.clone(),
            _ => Value::from(joined(&content)),
        },
    };
    let mut pairs = vec![("role", Value::from(role)), ("content", content)];
    if role == "assistant" {
        if let Some(calls) = attr("tool_calls")
            && let Some(calls) = tool_calls(&calls)?
        {
            pairs.push(("tool_calls", calls));
        }
        if let Some(reasoning) = attr("reasoning") {
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
    if role == "developer"
        && let Some(tools) = attr("tools")
    {
        pairs.push(("tools", tools));
    }
    Ok(Value::from_pairs(pairs))
}

/// A text part; `extra` are its fields that the API does not define.
struct Part {
    text: Value,
    extra: Vec<(Value, Value)>,
}

impl Part {
    fn plain(text: Value) -> Self {
        Self {
            text,
            extra: Vec::new(),
        }
    }

    fn as_str(&self) -> &str {
        self.text.as_str().unwrap_or_default()
    }

    fn into_value(self) -> Value {
        let known = [
            (Value::from("type"), Value::from("text")),
            (Value::from("text"), self.text),
        ];
        Value::from_pairs(known.into_iter().chain(self.extra))
    }
}

fn joined(parts: &[Part]) -> String {
    parts
        .iter()
        .map(Part::as_str)
        .collect::<Vec<_>>()
        .join("\n")
}

/// The text parts of a content: one for a string, none for `null`.
fn parts_of(content: Option<&Value>, format: ContentFormat) -> Result<Vec<Part>, Unfit> {
    let Some(content) = content else {
        return Ok(Vec::new());
    };
    let parts = if content.as_str().is_some() {
        vec![Part::plain(content.clone())]
    } else {
        let items = list(content).ok_or(shape(
            "messages[].content",
            "a string or a list of content parts",
        ))?;
        let mut parts = Vec::with_capacity(items.len());
        for item in items {
            parts.extend(part(item)?);
        }
        parts
    };
    Ok(match format {
        // Empty texts leave no line of their own behind.
        ContentFormat::String => parts
            .into_iter()
            .filter(|part| !part.as_str().is_empty())
            .collect(),
        ContentFormat::Parts => parts,
    })
}

/// Fields of the content parts that the API defines: they are not passed on.
const PART_FIELDS: [&str; 18] = [
    "audio_embeds",
    "audio_url",
    "closed",
    "data",
    "detail",
    "file",
    "image_embeds",
    "image_pil",
    "image_url",
    "input_audio",
    "name",
    "prompt_embeds",
    "refusal",
    "text",
    "thinking",
    "type",
    "uuid",
    "video_url",
];

fn part(item: &Value) -> Result<Option<Part>, Unfit> {
    if item.as_str().is_some() {
        return Ok(Some(Part::plain(item.clone())));
    }
    let attr = |name: &str| item.get_attr(name).unwrap_or_default();
    let kind = attr("type");
    let kind = kind
        .as_str()
        .ok_or(shape("messages[].content[].type", "a string"))?;
    let text = match kind {
        "text" | "input_text" | "output_text" => attr("text"),
        "refusal" => attr("refusal"),
        "thinking" => attr("thinking"),
        other => return Err(Unfit::Media(other.to_owned())),
    };
    if (text.is_none() || text.is_undefined()) && matches!(kind, "text" | "refusal") {
        return Ok(None);
    }
    if text.as_str().is_none() {
        return Err(shape("messages[].content[].text", "a string"));
    }
    if !attr("uuid").is_undefined() && !attr("uuid").is_none() {
        return Err(Unfit::Unsure("a text part has a uuid"));
    }
    let pairs = item.as_object().and_then(|object| object.try_iter_pairs());
    let extra = pairs
        .into_iter()
        .flatten()
        .filter(|(key, _)| !PART_FIELDS.contains(&key.as_str().unwrap_or_default()))
        .collect();
    Ok(Some(Part { text, extra }))
}

/// Drops the first line of system texts that Claude Code changes with each request.
fn drop_billing_line(parts: &mut Vec<Part>, version: Option<Version>) -> Result<(), Unfit> {
    if !parts
        .iter()
        .any(|part| part.as_str().starts_with(BILLING_LINE))
    {
        return Ok(());
    }
    let version = version.ok_or(Unfit::UnknownVersion("the billing line of Claude Code"))?;
    if version < BILLING_LINE_DROPPED {
        return Ok(());
    }
    for part in parts.iter_mut() {
        if part.as_str().starts_with(BILLING_LINE) {
            let rest = part.as_str().split_once('\n').map_or("", |(_, rest)| rest);
            part.text = Value::from(rest);
        }
    }
    parts.retain(|part| !part.as_str().is_empty());
    Ok(())
}

/// An assistant's calls with their arguments as objects; `None` for an empty list.
fn tool_calls(calls: &Value) -> Result<Option<Value>, Unfit> {
    let calls = list(calls).ok_or(shape("messages[].tool_calls", "a list"))?;
    if calls.is_empty() {
        return Ok(None);
    }
    calls
        .iter()
        .map(tool_call)
        .collect::<Result<Value, _>>()
        .map(Some)
}

fn tool_call(call: &Value) -> Result<Value, Unfit> {
    let unknown = shape("messages[].tool_calls[]", "a call of a function");
    let kind = call.get_attr("type").unwrap_or_default();
    let function = call.get_attr("function").unwrap_or_default();
    if function.kind() != ValueKind::Map
        || !(kind.is_undefined() || kind.as_str() == Some("function"))
    {
        return Err(unknown);
    }
    let arguments = arguments(&function.get_attr("arguments").unwrap_or_default())?;
    let function = with_value(&function, "arguments", arguments);
    Ok(with_value(call, "function", function))
}

/// The arguments as an object; whatever is not one counts as empty, as in the engine.
fn arguments(given: &Value) -> Result<Value, Unfit> {
    let empty = || Value::from_pairs::<_, Value, Value>([]);
    if given.kind() == ValueKind::Map {
        return Ok(given.clone());
    }
    let Some(text) = given.as_str().filter(|text| !text.is_empty()) else {
        return Ok(empty());
    };
    match json_value(text) {
        Ok(value) if value.kind() == ValueKind::Map => Ok(value),
        Ok(_) => Ok(empty()),
        // Where Python reads an object that we do not, the template prints that object.
        Err(_) if is_python_object(text) => Err(Unfit::Unsure(
            "tool arguments use JSON that only Python's reader takes",
        )),
        Err(_) => Ok(empty()),
    }
}

/// A copy of an object in which one key, in its place, has another value.
fn with_value(object: &Value, key: &str, value: Value) -> Value {
    let pairs = object
        .as_object()
        .and_then(|object| object.try_iter_pairs());
    let mut pairs: Vec<(Value, Value)> = pairs.into_iter().flatten().collect();
    match pairs
        .iter_mut()
        .find(|(name, _)| name.as_str() == Some(key))
    {
        Some((_, old)) => *old = value,
        None => pairs.push((Value::from(key), value)),
    }
    Value::from_pairs(pairs)
}

/// All system messages as one at the front.
fn merge_system(messages: Vec<(bool, Value)>, format: ContentFormat) -> Result<Vec<Value>, Unfit> {
    if format == ContentFormat::Parts {
        return Err(Unfit::Unsure(
            "engine versions differ on developer messages for templates that take content parts",
        ));
    }
    let (system, others): (Vec<_>, Vec<_>) = messages.into_iter().partition(|(system, _)| *system);
    let texts: Vec<Value> = system
        .iter()
        .map(|(_, message)| message.get_attr("content").unwrap_or_default())
        .collect();
    let text = texts
        .iter()
        .filter_map(Value::as_str)
        .filter(|text| !text.is_empty())
        .collect::<Vec<_>>()
        .join("\n\n");
    let merged = Value::from_pairs([
        ("role", Value::from("system")),
        ("content", Value::from(text)),
    ]);
    Ok([merged]
        .into_iter()
        .chain(others.into_iter().map(|(_, message)| message))
        .collect())
}

/// The tools of a template: known fields in their order, absent descriptions as `null`.
pub fn tools(tools: &Value, version: Option<Version>) -> Result<Value, Unfit> {
    let tools = list(tools).ok_or(shape("tools", "a list"))?;
    tools.iter().map(|one| tool(one, version)).collect()
}

fn tool(tool: &Value, version: Option<Version>) -> Result<Value, Unfit> {
    let function = tool.get_attr("function").unwrap_or_default();
    let field = |name: &str| function.get_attr(name).unwrap_or_default();
    let or_null = |name: &str| match field(name) {
        value if value.is_undefined() => Value::from(()),
        value => value,
    };
    let mut inner = vec![
        (Value::from("name"), field("name")),
        (Value::from("description"), or_null("description")),
        (Value::from("parameters"), or_null("parameters")),
    ];
    for name in ["strict", "defer_loading"] {
        if !field(name).is_undefined() {
            inner.push((Value::from(name), field(name)));
        }
    }
    let unknown = |object: &Value, known: &[&str]| -> Vec<(Value, Value)> {
        let pairs = object
            .as_object()
            .and_then(|object| object.try_iter_pairs());
        pairs
            .into_iter()
            .flatten()
            .filter(|(key, _)| !known.contains(&key.as_str().unwrap_or_default()))
            .collect()
    };
    let in_function = unknown(
        &function,
        &[
            "name",
            "description",
            "parameters",
            "strict",
            "defer_loading",
        ],
    );
    let in_tool = unknown(tool, &["type", "function"]);
    let kind = tool.get_attr("type").unwrap_or_default();
    let kind = if kind.is_undefined() {
        Value::from("function")
    } else {
        kind
    };
    let mut outer = vec![(Value::from("type"), kind)];
    let keeps_unknown = match version {
        _ if in_function.is_empty() && in_tool.is_empty() => false,
        Some(version) => version < UNKNOWN_TOOL_FIELDS_DROPPED,
        None => return Err(Unfit::UnknownVersion("unknown fields of tools")),
    };
    if keeps_unknown {
        inner.extend(in_function);
    }
    outer.push((Value::from("function"), Value::from_pairs(inner)));
    if keeps_unknown {
        outer.extend(in_tool);
    }
    Ok(Value::from_pairs(outer))
}
