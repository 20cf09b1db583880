//! A body of `/v1/messages`, and the chat that the engine makes of it.
//!
//! Facts: vLLM's `vllm/entrypoints/anthropic/{protocol,serving}.py`.

mod blocks;
mod tools;

use minijinja::Value;
use minijinja::value::ValueKind;

use super::body::Fields;
use super::chat::{Chat, template_kwargs};
use super::convert::{Target, Version, field, is_list_of_objects, message, shape, text_field};
use super::prompts::{Side, list, present};
use super::{Content, Inexact};
use blocks::{BILLING_LINE, Conversation, Turn, text_of};

/// Since this version blocks of the system prompt that begin with Claude Code's billing line are left out.
const BILLING_BLOCK_DROPPED: Version = (0, 18);
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
    Ok(Content::Messages(Box::new(Messages {
        system,
        messages,
        tools,
        effort,
        without_thinking,
        template_kwargs: kwargs,
        salted: present(fields.cache_salt.as_ref()).is_some(),
    })))
}

impl Messages {
    /// The texts in prompt order, for an estimate.
    pub(super) fn texts(&self) -> impl Iterator<Item = &Value> {
        self.system
            .iter()
            .chain(&self.tools)
            .chain([&self.messages])
    }

    /// The chat that an engine makes of it.
    ///
    /// # Errors
    /// Where that is not known: by the engine's version or the model's template, or by what the body holds.
    pub fn chat(&self, target: &Target<'_>) -> Result<Chat, Inexact> {
        if self.salted {
            target.since(READS_SALT, "cache_salt in /v1/messages")?;
        }
        let messages = self.placed(self.conversation()?, target)?;
        if messages.is_empty() {
            return Err(shape("messages", "a list that holds some content"));
        }
        let (reasoning_effort, template_kwargs) = (self.effort(target)?, self.kwargs(target)?);
        Ok(Chat {
            messages: messages.into(),
            tools: self.tools(target)?,
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

    /// The messages in their places, the system prompt first.
    fn placed(
        &self,
        conversation: Conversation,
        target: &Target<'_>,
    ) -> Result<Vec<Value>, Inexact> {
        if conversation.tool_results {
            target.since(READS_TOOL_RESULTS, "tools' answers in /v1/messages")?;
        }
        let keeps_empty = conversation.empty_user
            && !target.is_since(EMPTY_USER_DROPPED, "messages that hold tools' answers only")?;
        let merges = conversation.system_within && {
            target.since(PLACES_SYSTEM, "system messages in /v1/messages")?;
            target.template()?.system_first()
        };
        let mut system = self.system(target)?;
        let mut messages = Vec::with_capacity(conversation.turns.len() + 1);
        for turn in conversation.turns {
            match turn {
                Turn::System(text) if text.is_empty() => {}
                Turn::System(text) if merges => system.get_or_insert_default().push_str(&text),
                Turn::System(text) => messages.push(message("system", Value::from(text))),
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
        let system = system.map(|text| message("system", Value::from(text)));
        Ok(system.into_iter().chain(messages).collect())
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

    fn tools(&self, target: &Target<'_>) -> Result<Option<Value>, Inexact> {
        let Some(tools) = self.tools.as_ref().and_then(list) else {
            return Ok(None);
        };
        let shown = tools.iter().map(|tool| tools::shown(tool, target));
        shown
            .collect::<Result<Vec<_>, _>>()
            .map(|tools| Some(Value::from(tools)))
    }

    fn conversation(&self) -> Result<Conversation, Inexact> {
        let mut conversation = Conversation::default();
        for one in list(&self.messages).unwrap_or_default() {
            conversation.message(one)?;
        }
        Ok(conversation)
    }
}
