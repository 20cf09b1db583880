//! A body of `/v1/responses`, and the chat that the engine makes of it.
//!
//! Facts: vLLM's `vllm/entrypoints/openai/responses/{protocol,utils}.py` and `vllm/tool_parsers/utils.py`.

mod items;
mod tools;

use minijinja::Value;
use minijinja::value::ValueKind;

use super::body::Fields;
use super::chat::{Chat, template_kwargs};
use super::convert::{Target, Version, field, is_list_of_objects, message, shape};
use super::prompts::{Side, Truncation, list, output, present};
use super::{Content, Inexact};
use items::{Draft, Drafts, is_output_message, kind};
use tools::KNOWS_CUSTOM_TOOLS;

/// Since this version items that make one turn of the assistant are one message, in the way known here.
const MERGES_ITEMS: Version = (0, 22);
/// Since this version the same holds for an assistant's messages that are sent as a text or in a client's parts, and
/// calls may name a namespace.
const MERGES_PLAIN_MESSAGES: Version = (0, 25);
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

impl Responses {
    /// The texts in prompt order, for an estimate.
    pub(super) fn texts(&self) -> impl Iterator<Item = &Value> {
        let first = self.instructions.iter().chain(&self.tools);
        first.chain([&self.input])
    }

    /// The chat that an engine makes of it.
    ///
    /// # Errors
    /// Where that is not known: by the engine's version, or by what the body holds.
    pub fn chat(&self, target: &Target<'_>) -> Result<Chat, Inexact> {
        let drafts = self.drafts()?;
        if drafts.messages.is_empty() {
            return Err(shape("input", "a text or a list that is not empty"));
        }
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
        let tools = self.tools.as_ref().and_then(list);
        let tools = tools.map(|tools| tools::shown(tools, target)).transpose()?;
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
}

/// The name of a namespace's function.
fn in_namespace(namespace: &Value, name: &Value) -> Value {
    let of = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Value::from(format!("{}__{}", of(namespace), of(name)))
}
