//! A body of `/v1/messages`, and the chat that the engine makes of it.
//!
//! Facts: vLLM's `vllm/entrypoints/anthropic/{protocol,serving}.py`.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::body::Fields;
use super::chat::{Chat, template_kwargs};
use super::convert::{
    Assistant, Target, Version, field, function_tool, image_part, is_list_of_objects, message,
    text_field, tool_call, tool_message,
};
use super::prompts::{Side, list, present};
use super::{Content, Inexact};

/// Since this version blocks of the system prompt that begin with Claude Code's billing line are left out.
const BILLING_BLOCK_DROPPED: Version = (0, 18);
/// How they begin; the rest differs with each request.
const BILLING_LINE: &str = "x-anthropic-billing-header";
/// Since this version a message of the user that holds nothing but tools' answers leaves none behind.
const EMPTY_USER_DROPPED: Version = (0, 20);
/// Since this version `chat_template_kwargs` is read.
const READS_TEMPLATE_KWARGS: Version = (0, 20);
/// Older versions make something else of tools' answers.
const READS_TOOL_RESULTS: Version = (0, 17);
/// Since this version `defer_loading` of a tool is shown to the template, and so are names of such tools.
const SHOWS_DEFER_LOADING: Version = (0, 21);
/// Since this version `output_config.effort` counts, and an empty system prompt leaves no message behind.
const READS_OUTPUT_CONFIG: Version = (0, 23);
/// Since this version system messages among the others keep their place where the template allows it, and go to the
/// front where it does not.
const PLACES_SYSTEM: Version = (0, 24);
/// Since this version `strict` of a tool is shown to the template.
const SHOWS_STRICT: Version = (0, 24);
/// Since this version `cache_salt` is read.
const READS_SALT: Version = (0, 27);
/// Since this version `thinking` counts.
const READS_THINKING: Version = (0, 31);

/// A body of `/v1/messages`.
#[derive(Clone, Debug)]
pub struct Messages {
    system: Option<Value>,
    messages: Value,
    tools: Option<Value>,
    effort: Option<Value>,
    /// `thinking` is switched off.
    without_thinking: bool,
    template_kwargs: Vec<(String, Value)>,
    salted: bool,
}

const fn shape(field: &'static str, expected: &'static str) -> Inexact {
    Inexact::Shape { field, expected }
}

/// Reads a body.
pub(super) fn read(fields: &mut Fields) -> Result<Content, Inexact> {
    let system = present(fields.system.as_ref()).filter(|system| system.is_true());
    if system.is_some_and(|system| system.as_str().is_none() && !is_list_of_objects(system)) {
        return Err(shape("system", "a text or a list of blocks"));
    }
    let system = system.cloned();
    let effort = match present(fields.output_config.as_ref()) {
        None => None,
        Some(config) if config.kind() == ValueKind::Map => field(config, "effort"),
        Some(_) => return Err(shape("output_config", "an object")),
    };
    if effort
        .as_ref()
        .is_some_and(|effort| effort.as_str().is_none())
    {
        return Err(shape("output_config.effort", "a text"));
    }
    let thinking = match present(fields.thinking.as_ref()) {
        None => None,
        Some(thinking) if thinking.kind() == ValueKind::Map => text_field(thinking, "type"),
        Some(_) => return Err(shape("thinking", "an object")),
    };
    let without_thinking = match thinking.as_ref().map(Value::as_str) {
        None | Some(Some("enabled" | "adaptive")) => false,
        Some(Some("disabled")) => true,
        Some(_) => return Err(shape("thinking.type", "enabled, adaptive or disabled")),
    };
    let sets_effort = effort.is_some() || without_thinking;
    let kwargs = template_kwargs(fields.chat_template_kwargs.as_ref(), sets_effort)?;
    let tools = match present(fields.tools.as_ref()) {
        Some(tools) if !is_list_of_objects(tools) => return Err(shape("tools", "a list of tools")),
        tools => tools.cloned(),
    };
    let is_conversation = |messages: &Value| {
        list(messages).is_some_and(|all| !all.is_empty()) && is_list_of_objects(messages)
    };
    let messages = fields
        .messages
        .take_if(|messages| is_conversation(messages))
        .ok_or(shape("messages", "a list of messages that is not empty"))?;
    let body = Messages {
        system,
        messages,
        tools,
        effort,
        without_thinking,
        template_kwargs: kwargs,
        salted: present(fields.cache_salt.as_ref()).is_some(),
    };
    body.check()?;
    Ok(Content::Messages(Box::new(body)))
}

impl Messages {
    /// The texts in prompt order, for an estimate.
    pub(super) fn texts(&self) -> impl Iterator<Item = &Value> {
        self.system
            .iter()
            .chain(&self.tools)
            .chain([&self.messages])
    }

    /// What no version of the engine makes a chat of is found out at once.
    fn check(&self) -> Result<(), Inexact> {
        self.shown_tools(None)?;
        self.conversation().map(drop)
    }

    /// The chat that an engine makes of it.
    ///
    /// # Errors
    /// Where that is not known: by the engine's version or the model's template, or by what the body holds.
    pub fn chat(&self, target: &Target<'_>) -> Result<Chat, Inexact> {
        if self.salted {
            target.since(READS_SALT, "cache_salt in /v1/messages")?;
        }
        let mut conversation = self.conversation()?;
        if conversation.tool_results {
            target.since(READS_TOOL_RESULTS, "tools' answers in /v1/messages")?;
        }
        let keeps_empty = conversation.empty_user
            && !target.is_since(EMPTY_USER_DROPPED, "messages that hold tools' answers only")?;
        let merges = conversation.system_within && {
            target.since(PLACES_SYSTEM, "system messages in /v1/messages")?;
            target.template()?.system_first()
        };
        let mut messages: Vec<Value> = Vec::with_capacity(conversation.turns.len() + 1);
        let mut system = self.system(target)?;
        if merges {
            let inner = conversation.turns.iter().filter_map(|turn| match turn {
                Turn::System(text) => Some(text.as_str()),
                _ => None,
            });
            let inner: String = inner.collect();
            if conversation.system_text {
                system.get_or_insert_default().push_str(&inner);
            }
        }
        messages.extend(system.map(|text| message("system", Value::from(text))));
        for turn in conversation.turns.drain(..) {
            match turn {
                Turn::System(text) if !merges && !text.is_empty() => {
                    messages.push(message("system", Value::from(text)));
                }
                Turn::System(_) => {}
                Turn::EmptyUser if keeps_empty => {
                    messages.push(Value::from_pairs([("role", Value::from("user"))]));
                }
                Turn::EmptyUser => {}
                Turn::References(message) => {
                    if target.is_since(SHOWS_DEFER_LOADING, "tool_reference in /v1/messages")? {
                        messages.push(message);
                    }
                }
                Turn::Message(message) => messages.push(message),
            }
        }
        if messages.is_empty() {
            return Err(shape("messages", "a list that holds some content"));
        }
        let (reasoning_effort, template_kwargs) = (self.effort(target)?, self.kwargs(target)?);
        Ok(Chat {
            messages: messages.into(),
            tools: self.shown_tools(Some(target))?,
            documents: None,
            template_kwargs,
            reasoning_effort,
            add_generation_prompt: true,
            continue_final_message: false,
            add_special_tokens: false,
            truncation: None,
            default_side: Some(Side::Left),
        })
    }

    /// The system prompt of the body's own field.
    fn system(&self, target: &Target<'_>) -> Result<Option<String>, Inexact> {
        let Some(system) = &self.system else {
            return Ok(None);
        };
        if let Some(text) = system.as_str() {
            return Ok(Some(text.to_owned()));
        }
        let mut text = String::new();
        let mut kept = false;
        for block in list(system).unwrap_or_default() {
            let Some(piece) = text_of(block)? else {
                continue;
            };
            let piece = piece.as_str().unwrap_or_default();
            if piece.starts_with(BILLING_LINE)
                && target.is_since(BILLING_BLOCK_DROPPED, "the billing line of Claude Code")?
            {
                continue;
            }
            kept = true;
            text.push_str(piece);
        }
        let shown = kept || !target.is_since(READS_OUTPUT_CONFIG, "an empty system prompt")?;
        Ok(shown.then_some(text))
    }

    fn effort(&self, target: &Target<'_>) -> Result<Option<Value>, Inexact> {
        if self.without_thinking {
            let template = target.template()?;
            let seen =
                template.mentions("enable_thinking") || template.mentions("reasoning_effort");
            if seen && target.is_since(READS_THINKING, "`thinking` in /v1/messages")? {
                return Ok(Some(Value::from(template.effort_without_thinking())));
            }
        }
        match &self.effort {
            Some(effort)
                if target.is_since(READS_OUTPUT_CONFIG, "`output_config` in /v1/messages")? =>
            {
                Ok(Some(effort.clone()))
            }
            _ => Ok(None),
        }
    }

    fn kwargs(&self, target: &Target<'_>) -> Result<Vec<(String, Value)>, Inexact> {
        if self.template_kwargs.is_empty()
            || !target.is_since(
                READS_TEMPLATE_KWARGS,
                "chat_template_kwargs in /v1/messages",
            )?
        {
            return Ok(Vec::new());
        }
        Ok(self.template_kwargs.clone())
    }

    /// The tools as chat bodies have them; without a target only their shape is looked at.
    fn shown_tools(&self, target: Option<&Target<'_>>) -> Result<Option<Value>, Inexact> {
        let Some(tools) = self.tools.as_ref().and_then(list) else {
            return Ok(None);
        };
        tools
            .iter()
            .map(|one| tool(one, target))
            .collect::<Result<Vec<_>, _>>()
            .map(|tools| Some(Value::from(tools)))
    }

    fn conversation(&self) -> Result<Conversation, Inexact> {
        let mut conversation = Conversation::default();
        for one in list(&self.messages).unwrap_or_default() {
            conversation.message(one)?;
        }
        if let Some(blocks) = self.system.as_ref().and_then(list) {
            for block in blocks {
                block_kind(block)?;
            }
        }
        Ok(conversation)
    }
}

/// The text of a system block, unless it has none.
fn text_of(block: &Value) -> Result<Option<Value>, Inexact> {
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

fn tool(tool: &Value, target: Option<&Target<'_>>) -> Result<Value, Inexact> {
    let name = text_field(tool, "name").ok_or(shape("tools[].name", "a text"))?;
    let Some(schema) = field(tool, "input_schema") else {
        // A tool that Anthropic's own servers run.
        let kind = text_field(tool, "type").unwrap_or_else(|| name.clone());
        return Err(Inexact::Foreign(
            kind.as_str().unwrap_or_default().to_owned(),
        ));
    };
    if schema.kind() != ValueKind::Map {
        return Err(shape("tools[].input_schema", "an object"));
    }
    let schema = with_type(schema);
    let description = field(tool, "description").unwrap_or_else(|| Value::from(()));
    let mut function = vec![
        ("name", name),
        ("description", description),
        ("parameters", schema),
    ];
    if let Some(target) = target {
        for (name, since) in [
            ("strict", SHOWS_STRICT),
            ("defer_loading", SHOWS_DEFER_LOADING),
        ] {
            if let Some(value) = field(tool, name)
                && target.is_since(since, "`strict` or `defer_loading` in /v1/messages")?
            {
                function.push((name, value));
            }
        }
    }
    Ok(function_tool(function))
}

/// A schema without a type is one of an object.
fn with_type(schema: Value) -> Value {
    let has_type = schema
        .get_attr("type")
        .is_ok_and(|kind| !kind.is_undefined());
    if has_type {
        return schema;
    }
    let pairs = schema
        .as_object()
        .and_then(|object| object.try_iter_pairs());
    let kind = (Value::from("type"), Value::from("object"));
    Value::from_pairs(pairs.into_iter().flatten().chain([kind]))
}

/// One message of the chat to be.
#[derive(Debug)]
enum Turn {
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
struct Conversation {
    turns: Vec<Turn>,
    system_within: bool,
    system_text: bool,
    empty_user: bool,
    tool_results: bool,
}

impl Conversation {
    fn message(&mut self, one: &Value) -> Result<(), Inexact> {
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
        self.system_text |= !text.is_empty();
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
    let source = field(block, "source").ok_or(expected.clone())?;
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
