//! What a request's prompts look like as `/tokenize` payloads.
//!
//! vLLM's `/tokenize` renders a chat with the same code as `/v1/chat/completions`, but it does not know
//! `documents`, `reasoning_effort` and truncation: the first two are handed over as the template arguments that
//! the chat API makes of them, the last is done here. Bodies of the Responses and Messages APIs are turned into chats
//! as the engine does it, pictures and all; where that takes the model's template, they have no form.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::metrics::token_sources::Degradation;
use crate::routing::request::{self, Api, Content, ConversionTarget, Inexact, Truncation, to_json};
use crate::tokens::catalog::Entry;

/// Prompts in one request that are asked for one by one; a longer list is estimated.
const MAX_PROMPTS: usize = 16;

/// The first version whose chat API turns `reasoning_effort` into `enable_thinking`.
const EFFORT_SETS_THINKING: (u32, u32) = (0, 22);

/// vLLM's default for plain completions.
const DEFAULT_COMPLETION_TOKENS: u32 = 16;

/// One prompt.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    /// The client sent token ids: nothing to ask.
    Ids(Vec<u32>),
    /// The JSON to post, and what to do with the answer.
    Ask(Vec<u8>, Cut),
}

/// Truncation that `/tokenize` does not do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cut {
    /// Tokens kept.
    keep: Option<usize>,
    /// The first ones are kept; the default for generation is the last ones.
    from_start: bool,
}

impl Cut {
    /// The cut that `truncate_prompt_tokens` asks for, −1 for what the context takes.
    fn new(
        truncate: Option<i64>,
        side: Option<&str>,
        output: Option<u32>,
        entry: &Entry,
    ) -> Result<Self, Degradation> {
        let keep = match truncate {
            None => None,
            Some(-1) => Some(None),
            Some(keep) => u32::try_from(keep).ok().map(Some),
        };
        let truncation = keep.map(|keep| Truncation {
            keep,
            side: None,
            output,
        });
        Ok(Self {
            keep: Self::kept(truncation, entry)?,
            from_start: side == Some("right"),
        })
    }

    fn kept(truncation: Option<Truncation>, entry: &Entry) -> Result<Option<usize>, Degradation> {
        let Some(truncation) = truncation else {
            return Ok(None);
        };
        let kept = truncation.kept(entry.max_model_len, entry.version);
        let kept = kept.ok_or(Degradation::NoEngineForm)?;
        Ok(usize::try_from(kept).ok())
    }

    /// The ids that the engine will prefill.
    pub(super) fn apply(self, tokens: &[u32]) -> Vec<u32> {
        let keep = self.keep.unwrap_or(tokens.len()).min(tokens.len());
        let kept = if self.from_start {
            tokens.get(..keep)
        } else {
            tokens.get(tokens.len() - keep..)
        };
        kept.unwrap_or_default().to_vec()
    }
}

/// The prompts of a request's body.
///
/// # Errors
/// When the API or the body has no form that `/tokenize` takes.
pub(super) fn prompts(api: Api, entry: &Entry, body: &[u8]) -> Result<Vec<Prompt>, Degradation> {
    let prompts = match api {
        Api::Chat => vec![chat(entry, body)?],
        Api::Completions => completions(entry, body, api)?,
        // An embedding request has either an input or, for chat models, messages.
        Api::Embeddings => match completions(entry, body, api) {
            Err(Degradation::NoEngineForm) => vec![chat(entry, body)?],
            other => other?,
        },
        Api::Responses | Api::Messages => vec![converted(api, entry, body)?],
    };
    if prompts.is_empty() {
        return Err(Degradation::NoEngineForm);
    }
    Ok(prompts)
}

/// A chat's fields that make its prompt. Those of [`RawValue`] go on as the very bytes that came.
#[derive(Deserialize)]
struct Chat<'a> {
    #[serde(borrow)]
    messages: &'a RawValue,
    #[serde(borrow, default)]
    tools: Option<&'a RawValue>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    add_special_tokens: Option<bool>,
    #[serde(borrow, default)]
    chat_template: Option<&'a RawValue>,
    chat_template_kwargs: Option<Map<String, Value>>,
    #[serde(borrow, default)]
    mm_processor_kwargs: Option<&'a RawValue>,
    documents: Option<Value>,
    reasoning_effort: Option<String>,
    truncate_prompt_tokens: Option<i64>,
    truncation_side: Option<String>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
}

#[derive(Serialize)]
struct AskChat<'a> {
    model: &'a str,
    messages: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    add_generation_prompt: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    continue_final_message: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    add_special_tokens: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chat_template: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    chat_template_kwargs: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mm_processor_kwargs: Option<&'a RawValue>,
}

fn chat(entry: &Entry, body: &[u8]) -> Result<Prompt, Degradation> {
    let chat: Chat<'_> =
        serde_json::from_slice(body).map_err(|_error| Degradation::NoEngineForm)?;
    let cut = Cut::new(
        chat.truncate_prompt_tokens,
        chat.truncation_side.as_deref(),
        chat.max_completion_tokens.or(chat.max_tokens),
        entry,
    )?;
    let mut arguments = chat.chat_template_kwargs.unwrap_or_default();
    if let Some(effort) = chat.reasoning_effort {
        set_effort(&mut arguments, &effort, entry);
    }
    if let Some(documents) = chat.documents {
        arguments.insert("documents".into(), documents);
    }
    ask(
        &AskChat {
            model: &entry.served_as,
            messages: chat.messages,
            tools: chat.tools,
            add_generation_prompt: chat.add_generation_prompt,
            continue_final_message: chat.continue_final_message,
            add_special_tokens: chat.add_special_tokens,
            chat_template: chat.chat_template,
            chat_template_kwargs: arguments,
            mm_processor_kwargs: chat.mm_processor_kwargs,
        },
        cut,
    )
}

/// The arguments that an effort becomes.
fn set_effort(arguments: &mut Map<String, Value>, effort: &str, entry: &Entry) {
    if entry
        .version
        .is_some_and(|version| version >= EFFORT_SETS_THINKING)
    {
        arguments
            .entry("enable_thinking")
            .or_insert_with(|| Value::Bool(effort != "none"));
    }
    arguments.insert("reasoning_effort".into(), Value::String(effort.to_owned()));
}

/// A body of another API as the chat that the engine makes of it.
fn converted(api: Api, entry: &Entry, body: &[u8]) -> Result<Prompt, Degradation> {
    let no_form = |_: Inexact| Degradation::NoEngineForm;
    let request = request::Request::parse(api, body).map_err(|_error| Degradation::NoEngineForm)?;
    let target = ConversionTarget {
        version: entry.version,
        template: None,
    };
    let chat = match &request.content {
        Content::Responses(body) => body.chat(&target).map_err(no_form)?,
        Content::Messages(body) => body.chat(&target).map_err(no_form)?,
        _ => return Err(Degradation::NoEngineForm),
    };
    let mut messages = to_json(&chat.messages);
    for message in messages.as_array_mut().into_iter().flatten() {
        arguments_as_text(message);
    }
    let mut arguments: Map<String, Value> = chat
        .template_kwargs
        .iter()
        .map(|(name, value)| (name.clone(), to_json(value)))
        .collect();
    if let Some(effort) = chat
        .reasoning_effort
        .as_ref()
        .and_then(|effort| effort.as_str())
    {
        set_effort(&mut arguments, effort, entry);
    }
    let cut = Cut {
        keep: Cut::kept(chat.truncation, entry)?,
        from_start: false,
    };
    let payload = serde_json::json!({
        "model": entry.served_as, "messages": messages, "tools": chat.tools.as_ref().map(to_json),
        "add_generation_prompt": chat.add_generation_prompt,
        "continue_final_message": chat.continue_final_message, "chat_template_kwargs": arguments,
    });
    ask(&payload, cut)
}

/// The chat API has the arguments of calls as JSON in a text.
fn arguments_as_text(message: &mut Value) {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        if let Some(arguments) = call.pointer_mut("/function/arguments")
            && arguments.is_object()
        {
            *arguments = Value::String(arguments.to_string());
        }
    }
}

/// A completion's `prompt`, or an embedding's `input`.
#[derive(Deserialize)]
struct Completion {
    #[serde(alias = "input")]
    prompt: Prompts,
    add_special_tokens: Option<bool>,
    truncate_prompt_tokens: Option<i64>,
    truncation_side: Option<String>,
    max_tokens: Option<u32>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Prompts {
    Text(String),
    Ids(Vec<u32>),
    Texts(Vec<String>),
    IdLists(Vec<Vec<u32>>),
}

#[derive(Serialize)]
struct AskCompletion<'a> {
    model: &'a str,
    prompt: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    add_special_tokens: Option<bool>,
}

fn completions(entry: &Entry, body: &[u8], api: Api) -> Result<Vec<Prompt>, Degradation> {
    let completion: Completion =
        serde_json::from_slice(body).map_err(|_error| Degradation::NoEngineForm)?;
    let output = match api {
        Api::Embeddings => Some(0),
        _ => completion.max_tokens.or(Some(DEFAULT_COMPLETION_TOKENS)),
    };
    let cut = Cut::new(
        completion.truncate_prompt_tokens,
        completion.truncation_side.as_deref(),
        output,
        entry,
    )?;
    let ask_text = |text: &String| {
        ask(
            &AskCompletion {
                model: &entry.served_as,
                prompt: text,
                add_special_tokens: completion.add_special_tokens,
            },
            cut,
        )
    };
    match &completion.prompt {
        Prompts::Text(text) => Ok(vec![ask_text(text)?]),
        Prompts::Texts(texts) if texts.len() > MAX_PROMPTS => Err(Degradation::ManyPrompts),
        Prompts::Texts(texts) => texts.iter().map(ask_text).collect(),
        Prompts::Ids(ids) => Ok(vec![Prompt::Ids(cut.apply(ids))]),
        Prompts::IdLists(lists) => Ok(lists
            .iter()
            .map(|ids| Prompt::Ids(cut.apply(ids)))
            .collect()),
    }
}

fn ask(payload: &impl Serialize, cut: Cut) -> Result<Prompt, Degradation> {
    // Strings, numbers and parsed JSON always serialize; the error type only says that they might not.
    serde_json::to_vec(payload)
        .map(|payload| Prompt::Ask(payload, cut))
        .map_err(|_error| Degradation::NoEngineForm)
}

#[cfg(test)]
mod tests;
