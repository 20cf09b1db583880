//! The items of a Responses body, one by one, as messages of a chat. What one turn of the assistant left is one message.

use minijinja::Value;

use super::in_namespace;
use crate::routing::request::Inexact;
use crate::routing::request::convert::{
    Assistant, field, image_part, message, shape, text_field, tool_call, tool_message,
};
use crate::routing::request::prompts::list;

/// One message of the chat to be.
pub(super) enum Draft {
    Assistant(Assistant),
    Other(Value),
}

/// The chat to be, and what its engine must be able to do.
#[derive(Default)]
pub(super) struct Drafts {
    pub(super) messages: Vec<Draft>,
    /// Items made one message.
    pub(super) merges: bool,
    /// So did plain messages, or a call names a namespace.
    pub(super) merges_plain: bool,
    /// There are calls with free text.
    pub(super) custom: bool,
}

/// The type of an item; messages need not name theirs.
pub(super) fn kind(item: &Value) -> Result<&'static str, Inexact> {
    const KINDS: [&str; 6] = [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
    ];
    let given = field(item, "type");
    match given.as_ref().map(Value::as_str) {
        None if field(item, "role").is_some() => Ok("message"),
        None | Some(Some("item_reference")) => Err(Inexact::EngineState("item_reference")),
        Some(Some(given)) => KINDS
            .into_iter()
            .find(|kind| *kind == given)
            .ok_or_else(|| Inexact::Foreign(given.to_owned())),
        Some(None) => Err(shape("input[].type", "a text")),
    }
}

pub(super) fn is_output_message(item: &Value) -> bool {
    let is = |name: &str, wanted: &str| {
        field(item, name).is_some_and(|value| value.as_str() == Some(wanted))
    };
    is("type", "message")
        && is("role", "assistant")
        && field(item, "content").is_some_and(|content| list(&content).is_some())
}

impl Drafts {
    pub(super) fn other(&mut self, message: Value) {
        self.messages.push(Draft::Other(message));
    }

    pub(super) fn item(&mut self, item: &Value) -> Result<(), Inexact> {
        let text = |name: &str| {
            text_field(item, name).ok_or(shape("input[]", "an item with its text fields"))
        };
        match kind(item)? {
            "message" => return self.message(item),
            "reasoning" => {
                let reasoning = reasoning(item)?;
                self.assistant(|message| {
                    let free = message.reasoning.is_none();
                    free.then(|| message.reasoning = Some(reasoning.clone()))
                        .is_some()
                });
            }
            "function_call" => {
                let mut name = text("name")?;
                if let Some(namespace) = text_field(item, "namespace").filter(Value::is_true) {
                    name = in_namespace(&namespace, &name);
                    self.merges_plain = true;
                }
                self.call(tool_call(text("call_id")?, name, text("arguments")?));
            }
            "custom_tool_call" => {
                self.custom = true;
                let arguments = Value::from_pairs([("input", text("input")?)]);
                self.call(tool_call(text("call_id")?, text("name")?, arguments));
            }
            // The answer to a call of either kind.
            other => {
                self.custom |= other == "custom_tool_call_output";
                self.merges = true;
                let output = field(item, "output").unwrap_or_default();
                let output = match list(&output) {
                    Some(parts) => input_parts(parts)?,
                    None if output.as_str().is_some() => output,
                    None => return Err(shape("input[].output", "a text or a list of parts")),
                };
                self.other(tool_message(text("call_id")?, output));
                return Ok(());
            }
        }
        self.merges = true;
        Ok(())
    }

    fn call(&mut self, call: Value) {
        self.assistant(|message| {
            message.tool_calls.push(call.clone());
            true
        });
    }

    /// Adds to the assistant's message at the end where `add` finds room, else to a new one.
    fn assistant(&mut self, mut add: impl FnMut(&mut Assistant) -> bool) {
        if let Some(Draft::Assistant(last)) = self.messages.last_mut()
            && add(last)
        {
            return;
        }
        let mut new = Assistant::default();
        add(&mut new);
        self.messages.push(Draft::Assistant(new));
    }

    fn message(&mut self, item: &Value) -> Result<(), Inexact> {
        let role = text_field(item, "role").ok_or(shape("input[].role", "a text"))?;
        let content = field(item, "content").unwrap_or_default();
        match role.as_str() {
            Some(role @ ("user" | "system" | "developer")) => {
                let content = match list(&content) {
                    Some(parts) => input_parts(parts)?,
                    None if content.as_str().is_some() => content,
                    None => return Err(shape("input[].content", "a text or a list of parts")),
                };
                self.other(message(role, content));
                Ok(())
            }
            Some("assistant") => {
                // A text alone, after somebody else's message, is read alike by all versions.
                let is_text = content.as_str().is_some();
                let follows = matches!(self.messages.last(), Some(Draft::Assistant(_)));
                if is_output_message(item) {
                    self.merges = true;
                } else {
                    self.merges_plain |= follows || !is_text;
                }
                let text = if is_text {
                    content
                } else {
                    first_text(item, &content)?
                };
                self.assistant(|message| {
                    let free = message.content.is_none();
                    free.then(|| message.content = Some(text.clone())).is_some()
                });
                Ok(())
            }
            _ => Err(shape(
                "input[].role",
                "user, assistant, system or developer",
            )),
        }
    }
}

/// Of an assistant's parts the engine takes the first one's text.
fn first_text(item: &Value, content: &Value) -> Result<Value, Inexact> {
    let parts = list(content).unwrap_or_default();
    let first = parts.first().ok_or(shape(
        "input[].content",
        "a text, or parts of which the first has one",
    ))?;
    let kind = text_field(first, "type");
    let kind = kind.as_ref().and_then(Value::as_str).unwrap_or_default();
    // Without its type the item is taken for another one, whose parts are all of a client's.
    let fits = match kind {
        "output_text" => is_output_message(item),
        "input_text" => true,
        _ => false,
    };
    text_field(first, "text").filter(|_| fits).ok_or(shape(
        "input[].content",
        "a text, or parts of which the first has one",
    ))
}

/// The content of a message or of a tool's answer; what its parts have beside their text is dropped.
fn input_parts(parts: &[Value]) -> Result<Value, Inexact> {
    let part = |part: &Value| {
        let kind = text_field(part, "type");
        match kind.as_ref().and_then(Value::as_str) {
            Some("input_text") => {
                let text =
                    text_field(part, "text").ok_or(shape("input[].content[].text", "a text"))?;
                Ok(Value::from_pairs([
                    ("type", Value::from("input_text")),
                    ("text", text),
                ]))
            }
            Some("input_image") => text_field(part, "image_url")
                .map(image_part)
                .ok_or(Inexact::EngineState("file_id")),
            Some(other) => Err(Inexact::Foreign(other.to_owned())),
            None => Err(shape("input[].content[].type", "a text")),
        }
    };
    parts
        .iter()
        .map(part)
        .collect::<Result<Vec<_>, _>>()
        .map(Value::from)
}

fn reasoning(item: &Value) -> Result<Value, Inexact> {
    if field(item, "encrypted_content").is_some_and(|content| content.is_true()) {
        return Err(Inexact::EncryptedReasoning);
    }
    let first = |name: &'static str| {
        let parts = field(item, name);
        match parts.as_ref().map(list) {
            None => Ok(None),
            Some(Some([])) => Ok(None),
            Some(Some([first, ..])) => text_field(first, "text")
                .map(Some)
                .ok_or(shape("input[].content[].text", "a text")),
            Some(None) => Err(shape("input[].content", "a list of parts")),
        }
    };
    if field(item, "summary").is_none() {
        return Err(shape("input[].summary", "a list"));
    }
    let text = match first("content")? {
        Some(text) => Some(text),
        None => first("summary")?,
    };
    Ok(text.unwrap_or_else(|| Value::from("")))
}
