//! What does it take to turn another API's body into a chat, as the engine does?
//!
//! vLLM converts `/v1/responses` and `/v1/messages` to chat messages before it renders them, and its versions differ
//! in how. So a body is kept as it came, and converted where the engine's version and the model's template are known.
//! What a version does was read from its sources, of 0.11 to 0.33.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::Inexact;
use super::prompts::list;

/// vLLM's version as (major, minor).
pub type Version = (u32, u32);

/// What a conversion asks of a model's template.
pub trait TemplateFacts {
    /// The template looks at a variable of that name.
    fn mentions(&self, name: &str) -> bool;
    /// It refuses a system message that is not the first one, so the engine moves such messages there.
    fn system_first(&self) -> bool;
    /// The effort with which the engine asks for no thinking.
    fn effort_without_thinking(&self) -> &'static str;
}

/// For whom a body is converted.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The engine's version, if known.
    pub version: Option<Version>,
    /// The model's template, if it is at hand.
    pub template: Option<&'a dyn TemplateFacts>,
}

impl Target<'_> {
    /// Only engines since `first` do this as we know it.
    ///
    /// # Errors
    /// For an older engine, and for one of unknown version.
    pub(super) fn since(&self, first: Version, what: &'static str) -> Result<(), Inexact> {
        if self.is_since(first, what)? {
            Ok(())
        } else {
            Err(Inexact::OlderEngine(what))
        }
    }

    /// Engines before and since `first` are known to differ: which one is it?
    ///
    /// # Errors
    /// Where the version is not known.
    pub(super) fn is_since(&self, first: Version, what: &'static str) -> Result<bool, Inexact> {
        let version = self.version.ok_or(Inexact::UnknownVersion(what))?;
        Ok(version >= first)
    }

    /// The template, where the conversion depends on it.
    ///
    /// # Errors
    /// Where it is not at hand.
    pub(super) fn template(&self) -> Result<&dyn TemplateFacts, Inexact> {
        self.template.ok_or(Inexact::NoTemplateAtHand)
    }
}

/// A shape that is not known.
pub(super) const fn shape(field: &'static str, expected: &'static str) -> Inexact {
    Inexact::Shape { field, expected }
}

/// A field of an object, unless it is absent or `null`.
pub(super) fn field(object: &Value, name: &str) -> Option<Value> {
    let value = object.get_attr(name).ok()?;
    (!value.is_undefined() && !value.is_none()).then_some(value)
}

/// A text field of an object.
pub(super) fn text_field(object: &Value, name: &str) -> Option<Value> {
    field(object, name).filter(|value| value.as_str().is_some())
}

/// Whether a value is a list of objects.
pub(super) fn is_list_of_objects(value: &Value) -> bool {
    list(value).is_some_and(|items| items.iter().all(|item| item.kind() == ValueKind::Map))
}

/// A call of a function as chat messages have it.
pub(super) fn tool_call(id: Value, name: Value, arguments: Value) -> Value {
    let function = Value::from_pairs([("name", name), ("arguments", arguments)]);
    Value::from_pairs([
        ("id", id),
        ("type", Value::from("function")),
        ("function", function),
    ])
}

/// A tool as chat bodies have it.
pub(super) fn function_tool(function: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    Value::from_pairs([
        ("type", Value::from("function")),
        ("function", Value::from_pairs(function)),
    ])
}

/// A part with a picture as chat messages have it.
pub(super) fn image_part(url: Value) -> Value {
    Value::from_pairs([
        ("type", Value::from("image_url")),
        ("image_url", Value::from_pairs([("url", url)])),
    ])
}

/// An assistant's message that may grow out of several items.
#[derive(Debug, Default)]
pub(super) struct Assistant {
    pub(super) content: Option<Value>,
    pub(super) reasoning: Option<Value>,
    pub(super) tool_calls: Vec<Value>,
}

impl Assistant {
    pub(super) fn into_message(self) -> Value {
        let calls = (!self.tool_calls.is_empty()).then(|| Value::from(self.tool_calls));
        let fields = [
            ("reasoning", self.reasoning),
            ("content", self.content),
            ("tool_calls", calls),
        ];
        let given = fields
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        Value::from_pairs(
            [("role", Value::from("assistant"))]
                .into_iter()
                .chain(given),
        )
    }
}

/// A message of anybody else.
pub(super) fn message(role: &str, content: Value) -> Value {
    Value::from_pairs([("role", Value::from(role)), ("content", content)])
}

/// A tool's answer.
pub(super) fn tool_message(call_id: Value, content: Value) -> Value {
    Value::from_pairs([
        ("role", Value::from("tool")),
        ("tool_call_id", call_id),
        ("content", content),
    ])
}
