//! The messages of a Messages body, block by block, as messages of a chat.

use minijinja::Value;
use minijinja::value::ValueKind;

use crate::routing::request::Inexact;
use crate::routing::request::convert::{
    Assistant, field, image_part, is_list_of_objects, message, shape, text_field, tool_call,
    tool_message,
};
use crate::routing::request::prompts::list;

/// How system blocks of Claude Code begin that differ with each request.
pub(super) const BILLING_LINE: &str = "x-anthropic-billing-header";

/// The text of a system block, unless it has none.
pub(super) fn text_of(block: &Value) -> Result<Option<Value>, Inexact> {
    if block_kind(block)? != "text" {
        return Ok(None);
    }
    Ok(text_field(block, "text").filter(Value::is_true))
}

/// The type of a block that vLLM knows.
fn block_kind(block: &Value) -> Result<&'static str, Inexact> {
    const KINDS: [&str; 7] = [
        "text",
        "image",
        "tool_use",
        "tool_result",
        "tool_reference",
        "thinking",
        "redacted_thinking",
    ];
    let kind = text_field(block, "type").ok_or(shape("content[].type", "a text"))?;
    let kind = kind.as_str().unwrap_or_default();
    KINDS
        .into_iter()
        .find(|known| *known == kind)
        .ok_or_else(|| Inexact::Foreign(kind.to_owned()))
}

/// One message of the chat to be.
#[derive(Debug)]
pub(super) enum Turn {
    /// A system message among the others.
    System(String),
    /// What tools' answers leave of the message that brought them.
    EmptyUser,
    /// Names of tools in a tool's answer.
    References(Value),
    Message(Value),
}

/// The chat to be, and what engines make something else of.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    pub(super) turns: Vec<Turn>,
    pub(super) system_within: bool,
    pub(super) empty_user: bool,
    pub(super) tool_results: bool,
}

impl Conversation {
    pub(super) fn message(&mut self, one: &Value) -> Result<(), Inexact> {
        let content = field(one, "content").unwrap_or_default();
        let blocks = list(&content);
        if content.as_str().is_none() && !is_list_of_objects(&content) {
            return Err(shape("messages[].content", "a text or a list of blocks"));
        }
        match text_field(one, "role").as_ref().and_then(Value::as_str) {
            Some("system") => self.system(&content, blocks),
            Some("user") => {
                let Some(blocks) = blocks else {
                    self.turns.push(Turn::Message(message("user", content)));
                    return Ok(());
                };
                let parts = self.user(blocks)?;
                self.turns.push(match parts {
                    Some(parts) => Turn::Message(message("user", parts)),
                    None => {
                        self.empty_user = true;
                        Turn::EmptyUser
                    }
                });
                Ok(())
            }
            Some("assistant") => {
                let assistant = match blocks {
                    Some(blocks) => assistant(blocks)?,
                    None => Assistant {
                        content: Some(content),
                        ..Assistant::default()
                    },
                };
                self.turns.push(Turn::Message(assistant.into_message()));
                Ok(())
            }
            _ => Err(shape("messages[].role", "user, assistant or system")),
        }
    }

    fn system(&mut self, content: &Value, blocks: Option<&[Value]>) -> Result<(), Inexact> {
        self.system_within = true;
        let mut text = String::new();
        let is_billing = |piece: &str| piece.starts_with(BILLING_LINE);
        if let Some(whole) = content.as_str().filter(|whole| !is_billing(whole)) {
            text.push_str(whole);
        }
        for block in blocks.unwrap_or_default() {
            if let Some(piece) = text_of(block)?
                && let Some(piece) = piece.as_str().filter(|piece| !is_billing(piece))
            {
                text.push_str(piece);
            }
        }
        self.turns.push(Turn::System(text));
        Ok(())
    }

    /// A user's blocks: tools' answers become messages of their own before it.
    fn user(&mut self, blocks: &[Value]) -> Result<Option<Value>, Inexact> {
        let mut parts = Vec::with_capacity(blocks.len());
        for block in blocks {
            match block_kind(block)? {
                "text" => parts.extend(text_part(block)),
                "image" => parts.push(picture(block)?),
                "tool_result" => self.tool_result(block)?,
                "redacted_thinking" | "tool_reference" => {}
                _ => return Err(shape("messages[].content[]", "a block of a user")),
            }
        }
        Ok(content_of(parts))
    }

    fn tool_result(&mut self, block: &Value) -> Result<(), Inexact> {
        self.tool_results = true;
        let id = text_field(block, "tool_use_id").unwrap_or_else(|| Value::from(""));
        let content = field(block, "content");
        let (mut texts, mut pictures, mut references) = (Vec::new(), Vec::new(), Vec::new());
        if let Some(text) = content
            .as_ref()
            .filter(|content| content.as_str().is_some())
        {
            texts.push(text.as_str().unwrap_or_default().to_owned());
        } else if let Some(content) = content {
            if !is_list_of_objects(&content) {
                return Err(shape(
                    "messages[].content[].content",
                    "a text or a list of blocks",
                ));
            }
            for item in list(&content).unwrap_or_default() {
                match text_field(item, "type").as_ref().and_then(Value::as_str) {
                    Some("text") => {
                        let text = text_field(item, "text")
                            .ok_or(shape("messages[].content[].content[].text", "a text"))?;
                        texts.push(text.as_str().unwrap_or_default().to_owned());
                    }
                    Some("image") => pictures.push(picture(item)?),
                    Some("tool_reference") => references.extend(reference(item)),
                    // The engine passes over the rest.
                    _ => {}
                }
            }
        }
        let text = Value::from(texts.join("\n"));
        self.turns
            .push(Turn::Message(tool_message(id.clone(), text)));
        if !pictures.is_empty() {
            let pictures = message("user", Value::from(pictures));
            self.turns.push(Turn::Message(pictures));
        }
        if !references.is_empty() {
            let references = tool_message(id, Value::from(references));
            self.turns.push(Turn::References(references));
        }
        Ok(())
    }
}

fn assistant(blocks: &[Value]) -> Result<Assistant, Inexact> {
    let mut parts = Vec::with_capacity(blocks.len());
    let mut reasoning: Option<String> = None;
    let mut tool_calls = Vec::new();
    for block in blocks {
        match block_kind(block)? {
            "text" => parts.extend(text_part(block)),
            "image" => parts.push(picture(block)?),
            "thinking" => {
                if let Some(text) = text_field(block, "thinking") {
                    let whole = reasoning.get_or_insert_default();
                    whole.push_str(text.as_str().unwrap_or_default());
                }
            }
            "tool_use" => tool_calls.push(call(block)?),
            "redacted_thinking" | "tool_reference" => {}
            _ => return Err(shape("messages[].content[]", "a block of an assistant")),
        }
    }
    Ok(Assistant {
        content: content_of(parts),
        reasoning: reasoning.map(Value::from),
        tool_calls,
    })
}

fn call(block: &Value) -> Result<Value, Inexact> {
    let expected = shape("messages[].content[]", "a call with its id, name and input");
    let id = text_field(block, "id").filter(Value::is_true);
    let name = text_field(block, "name");
    let (Some(id), Some(name)) = (id, name) else {
        return Err(expected);
    };
    let input = match field(block, "input") {
        None => Value::from_pairs::<_, Value, Value>([]),
        Some(input) if input.kind() == ValueKind::Map => input,
        Some(_) => return Err(expected),
    };
    Ok(tool_call(id, name, input))
}

fn text_part(block: &Value) -> Option<Value> {
    let text = text_field(block, "text").filter(Value::is_true)?;
    Some(Value::from_pairs([
        ("type", Value::from("text")),
        ("text", text),
    ]))
}

fn picture(block: &Value) -> Result<Value, Inexact> {
    let expected = shape("messages[].content[].source", "a picture's data or address");
    let source = field(block, "source").ok_or_else(|| expected.clone())?;
    let of = |name: &str| text_field(&source, name);
    if of("type").is_some_and(|kind| kind.as_str() == Some("url")) {
        return of("url").map(image_part).ok_or(expected);
    }
    let data = of("data").ok_or(expected)?;
    let kind = of("media_type");
    let kind = kind
        .as_ref()
        .and_then(Value::as_str)
        .unwrap_or("image/jpeg");
    let data = data.as_str().unwrap_or_default();
    Ok(image_part(Value::from(format!(
        "data:{kind};base64,{data}"
    ))))
}

/// The name of a tool in a tool's answer.
fn reference(item: &Value) -> Option<Value> {
    let name = |field: &str| text_field(item, field).filter(Value::is_true);
    let name = name("tool_name").or_else(|| name("name"))?;
    let kind = Value::from("tool_reference");
    Some(Value::from_pairs([("type", kind), ("name", name)]))
}

/// One text alone is handed on as a text, more as parts, nothing as nothing.
fn content_of(mut parts: Vec<Value>) -> Option<Value> {
    if parts.len() > 1 {
        return Some(Value::from(parts));
    }
    let only = parts.pop()?;
    Some(text_field(&only, "text").unwrap_or_else(|| Value::from(vec![only])))
}
