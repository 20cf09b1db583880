//! A body of `/v1/responses`, and the chat that the engine makes of it.
//!
//! Facts: vLLM's `vllm/entrypoints/openai/responses/{protocol,utils}.py` and `vllm/tool_parsers/utils.py`.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::body::Fields;
use super::chat::{Chat, template_kwargs};
use super::convert::{
    Assistant, Target, Version, field, function_tool, image_part, is_list_of_objects, message,
    text_field, tool_call, tool_message,
};
use super::prompts::{Side, Truncation, list, output, present};
use super::{Content, Inexact};

/// Since this version items that make one turn of the assistant are one message, in the way known here.
const MERGES_ITEMS: Version = (0, 22);
/// Since this version the same holds for an assistant's messages that are sent as a text or in a client's parts, and
/// calls may name a namespace.
const MERGES_PLAIN_MESSAGES: Version = (0, 25);
/// Since this version tools are shown as chat tools are, and tools that are no functions are left out.
const SHOWS_FUNCTIONS_ONLY: Version = (0, 27);
/// Since this version tools with free text are shown as functions with one argument.
const KNOWS_CUSTOM_TOOLS: Version = (0, 32);
/// Since this version `chat_template_kwargs` is read.
const READS_TEMPLATE_KWARGS: Version = (0, 22);
/// Older versions are few, and differ in small things (a template is shown an empty list of tools where there are none).
const OLDEST: Version = (0, 20);

/// A body of `/v1/responses`.
#[derive(Clone, Debug)]
pub struct Responses {
    instructions: Option<Value>,
    input: Value,
    tools: Option<Value>,
    reasoning_effort: Option<Value>,
    template_kwargs: Vec<(String, Value)>,
    truncation: Option<Truncation>,
}

/// Reads a body.
pub(super) fn read(fields: &mut Fields) -> Result<Content, Inexact> {
    for (name, value) in [
        ("previous_response_id", &fields.previous_response_id),
        ("conversation", &fields.conversation),
        ("prompt", &fields.prompt),
        ("previous_input_messages", &fields.previous_input_messages),
    ] {
        if present(value.as_ref()).is_some() {
            return Err(Inexact::EngineState(name));
        }
    }
    if fields.background.as_ref().is_some_and(Value::is_true) {
        // Its answer comes before it is computed, and says nothing of it.
        return Err(Inexact::EngineState("background"));
    }
    let instructions = match present(fields.instructions.as_ref()) {
        Some(text) if text.as_str().is_none() => return Err(shape("instructions", "a text")),
        text => text.filter(|text| text.is_true()).cloned(),
    };
    let effort = match present(fields.reasoning.as_ref()) {
        None => None,
        Some(reasoning) if reasoning.kind() == ValueKind::Map => field(reasoning, "effort"),
        Some(_) => return Err(shape("reasoning", "an object")),
    };
    if effort
        .as_ref()
        .is_some_and(|effort| effort.as_str().is_none())
    {
        return Err(shape("reasoning.effort", "a text"));
    }
    let tools = match present(fields.tools.as_ref()) {
        Some(tools) if !is_list_of_objects(tools) => return Err(shape("tools", "a list of tools")),
        tools => tools.filter(|tools| tools.is_true()).cloned(),
    };
    let kwargs = template_kwargs(fields.chat_template_kwargs.as_ref(), effort.is_some())?;
    let truncation = truncation(fields)?;
    let input = fields
        .input
        .take_if(|input| input.as_str().is_some() || is_list_of_objects(input))
        .ok_or(shape("input", "a text or a list of items"))?;
    let responses = Responses {
        instructions,
        input,
        tools,
        reasoning_effort: effort,
        template_kwargs: kwargs,
        truncation,
    };
    responses.check()?;
    Ok(Content::Responses(Box::new(responses)))
}

/// Anything but `"disabled"` (the default) cuts what does not fit.
fn truncation(fields: &Fields) -> Result<Option<Truncation>, Inexact> {
    match &fields.truncation {
        None => Ok(None),
        Some(value) if value.as_str() == Some("disabled") => Ok(None),
        Some(value) if value.is_none() || value.as_str() == Some("auto") => Ok(Some(Truncation {
            keep: None,
            side: None,
            output: output(present(fields.max_output_tokens.as_ref())),
        })),
        Some(_) => Err(shape("truncation", "\"auto\" or \"disabled\"")),
    }
}

const fn shape(field: &'static str, expected: &'static str) -> Inexact {
    Inexact::Shape { field, expected }
}

/// One message of the chat to be.
enum Draft {
    Assistant(Assistant),
    Other(Value),
}

/// The chat to be, and what its engine must be able to do.
#[derive(Default)]
struct Drafts {
    messages: Vec<Draft>,
    merges: bool,
    merges_plain: bool,
    custom: bool,
}

impl Responses {
    /// The texts in prompt order, for an estimate.
    pub(super) fn texts(&self) -> impl Iterator<Item = &Value> {
        let first = self.instructions.iter().chain(&self.tools);
        first.chain([&self.input])
    }

    /// What no version of the engine makes a chat of is found out at once.
    fn check(&self) -> Result<(), Inexact> {
        if list(&self.input).is_some_and(<[Value]>::is_empty) && self.instructions.is_none() {
            return Err(shape("input", "a text or a list that is not empty"));
        }
        self.drafts().map(drop)
    }

    /// The chat that an engine makes of it.
    ///
    /// # Errors
    /// Where that is not known: by the engine's version, or by what the body holds.
    pub fn chat(&self, target: &Target<'_>) -> Result<Chat, Inexact> {
        let drafts = self.drafts()?;
        if drafts.merges {
            target.since(MERGES_ITEMS, "items of the assistant in /v1/responses")?;
        }
        if drafts.merges_plain {
            let what = "an assistant's messages in /v1/responses";
            target.since(MERGES_PLAIN_MESSAGES, what)?;
        }
        if drafts.custom {
            target.since(KNOWS_CUSTOM_TOOLS, "custom tool calls in /v1/responses")?;
        }
        let tools = self.tools(target)?;
        let mut template_kwargs = Vec::new();
        if !self.template_kwargs.is_empty()
            && target.is_since(
                READS_TEMPLATE_KWARGS,
                "chat_template_kwargs in /v1/responses",
            )?
        {
            template_kwargs.clone_from(&self.template_kwargs);
        }
        if target.version.is_some_and(|version| version < OLDEST) {
            return Err(Inexact::OlderEngine("/v1/responses"));
        }
        let continues = self.continues()?;
        let messages = drafts.messages.into_iter().map(|draft| match draft {
            Draft::Assistant(assistant) => assistant.into_message(),
            Draft::Other(message) => message,
        });
        Ok(Chat {
            messages: messages.collect::<Vec<_>>().into(),
            tools,
            documents: None,
            template_kwargs,
            reasoning_effort: self.reasoning_effort.clone(),
            add_generation_prompt: !continues,
            continue_final_message: continues,
            add_special_tokens: false,
            truncation: self.truncation,
            default_side: Some(Side::Left),
        })
    }

    fn drafts(&self) -> Result<Drafts, Inexact> {
        let mut drafts = Drafts::default();
        if let Some(instructions) = &self.instructions {
            drafts.other(message("system", instructions.clone()));
        }
        let Some(items) = list(&self.input) else {
            drafts.other(message("user", self.input.clone()));
            return Ok(drafts);
        };
        for item in items {
            drafts.item(item)?;
        }
        Ok(drafts)
    }

    /// The last item is the beginning of an answer that is to be continued.
    fn continues(&self) -> Result<bool, Inexact> {
        let Some(last) = list(&self.input).and_then(<[Value]>::last) else {
            return Ok(false);
        };
        let status = field(last, "status");
        let unfinished = matches!(
            status.as_ref().and_then(Value::as_str),
            Some("in_progress" | "incomplete")
        );
        match kind(last)? {
            "message" | "reasoning" if !unfinished => Ok(false),
            "message" if is_output_message(last) => Ok(true),
            "message" => Err(shape("input[].status", "of a message with parts")),
            "reasoning" => Err(shape("input[].status", "that of a finished reasoning")),
            _ => Ok(false),
        }
    }

    /// The functions that a template is shown; an empty list where there are other tools only.
    fn tools(&self, target: &Target<'_>) -> Result<Option<Value>, Inexact> {
        let Some(tools) = self.tools.as_ref().and_then(list) else {
            return Ok(None);
        };
        target.since(SHOWS_FUNCTIONS_ONLY, "tools in /v1/responses")?;
        let mut shown = Vec::with_capacity(tools.len());
        for tool in tools {
            match field(tool, "type").as_ref().and_then(Value::as_str) {
                Some("function") => shown.push(flat_function(tool, None)?),
                Some("namespace") => {
                    let name = text_field(tool, "name");
                    let inner = field(tool, "tools");
                    let (Some(name), Some(inner)) = (name, inner.as_ref().and_then(list)) else {
                        return Err(shape("tools[].tools", "a list of functions"));
                    };
                    for function in inner {
                        if text_field(function, "type")
                            .is_some_and(|kind| kind.as_str() == Some("function"))
                        {
                            shown.push(flat_function(function, Some(&name))?);
                        }
                    }
                }
                Some("custom") => {
                    if target.is_since(KNOWS_CUSTOM_TOOLS, "custom tools in /v1/responses")? {
                        shown.push(custom_function(tool)?);
                    }
                }
                Some(_) => {}
                None => return Err(shape("tools[].type", "a text")),
            }
        }
        Ok(Some(Value::from(shown)))
    }
}

/// The type of an item; messages need not name theirs.
fn kind(item: &Value) -> Result<&'static str, Inexact> {
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

fn is_output_message(item: &Value) -> bool {
    let is = |name: &str, wanted: &str| {
        field(item, name).is_some_and(|value| value.as_str() == Some(wanted))
    };
    is("type", "message")
        && is("role", "assistant")
        && field(item, "content").is_some_and(|content| list(&content).is_some())
}

impl Drafts {
    fn other(&mut self, message: Value) {
        self.messages.push(Draft::Other(message));
    }

    fn item(&mut self, item: &Value) -> Result<(), Inexact> {
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

fn in_namespace(namespace: &Value, name: &Value) -> Value {
    let of = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Value::from(format!("{}__{}", of(namespace), of(name)))
}

fn flat_function(tool: &Value, namespace: Option<&Value>) -> Result<Value, Inexact> {
    let name = text_field(tool, "name").ok_or(shape("tools[].name", "a text"))?;
    let parameters = field(tool, "parameters");
    if parameters
        .as_ref()
        .is_some_and(|schema| schema.kind() != ValueKind::Map)
    {
        return Err(shape("tools[].parameters", "an object"));
    }
    let name = namespace.map_or(name.clone(), |namespace| in_namespace(namespace, &name));
    let absent = || Value::from(());
    let always = [
        ("name", name),
        (
            "description",
            field(tool, "description").unwrap_or_else(absent),
        ),
        ("parameters", parameters.unwrap_or_else(absent)),
    ];
    let given = ["strict", "defer_loading"].map(|name| Some((name, field(tool, name)?)));
    Ok(function_tool(
        always.into_iter().chain(given.into_iter().flatten()),
    ))
}

/// The function that stands for a tool which takes free text.
fn custom_function(tool: &Value) -> Result<Value, Inexact> {
    let name = text_field(tool, "name").ok_or(shape("tools[].name", "a text"))?;
    let format = field(tool, "format").and_then(|format| text_field(&format, "type"));
    if format.is_some_and(|format| format.as_str() == Some("grammar")) {
        return Err(Inexact::Foreign("custom tool with a grammar".to_owned()));
    }
    let text = |text: &'static str| Value::from(text);
    let input = Value::from_pairs([
        ("type", text("string")),
        ("description", text(CUSTOM_INPUT)),
    ]);
    let schema = Value::from_pairs([
        ("type", text("object")),
        ("properties", Value::from_pairs([("input", input)])),
        ("required", Value::from(vec![text("input")])),
        ("additionalProperties", Value::from(false)),
    ]);
    Ok(function_tool([
        ("name", name),
        (
            "description",
            field(tool, "description").unwrap_or_else(|| Value::from(())),
        ),
        ("parameters", schema),
    ]))
}

/// What the engine tells the model of that argument; the prompt has these very words.
const CUSTOM_INPUT: &str = "The freeform text payload for this tool.";
