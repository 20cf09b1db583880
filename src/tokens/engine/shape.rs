//! What a request's prompts look like as `/tokenize` payloads.
//!
//! vLLM's `/tokenize` renders a chat with the same code as `/v1/chat/completions`, but it does not know
//! `documents`, `reasoning_effort` and truncation: the first two are handed over as the template arguments that
//! the chat API makes of them, the last is done here.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::metrics::token_sources::Degradation;
use crate::routing::request::Api;
use crate::tokens::catalog::Entry;

/// Prompts in one request that are asked for one by one; a longer list is estimated.
const MAX_PROMPTS: usize = 16;

/// The first version whose chat API turns `reasoning_effort` into `enable_thinking`.
const EFFORT_SETS_THINKING: (u32, u32) = (0, 22);

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
    fn new(truncate: Option<i64>, side: Option<&str>, max_model_len: Option<u32>) -> Self {
        let keep = match truncate {
            // -1 asks for all that fits beside one generated token.
            Some(-1) => max_model_len.map(|len| i64::from(len) - 1),
            other => other,
        };
        Self {
            keep: keep.and_then(|keep| usize::try_from(keep).ok()),
            from_start: side == Some("right"),
        }
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
        Api::Completions => completions(entry, body)?,
        // An embedding request has either an input or, for chat models, messages.
        Api::Embeddings => match completions(entry, body) {
            Err(Degradation::NoEngineForm) => vec![chat(entry, body)?],
            other => other?,
        },
        Api::Responses | Api::Messages => return Err(Degradation::NoEngineForm),
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
        entry.max_model_len,
    );
    let mut arguments = chat.chat_template_kwargs.unwrap_or_default();
    if let Some(effort) = chat.reasoning_effort {
        if entry
            .version
            .is_some_and(|version| version >= EFFORT_SETS_THINKING)
        {
            arguments
                .entry("enable_thinking")
                .or_insert_with(|| Value::Bool(effort != "none"));
        }
        arguments.insert("reasoning_effort".into(), Value::String(effort));
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

/// A completion's `prompt`, or an embedding's `input`.
#[derive(Deserialize)]
struct Completion {
    #[serde(alias = "input")]
    prompt: Prompts,
    add_special_tokens: Option<bool>,
    truncate_prompt_tokens: Option<i64>,
    truncation_side: Option<String>,
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

fn completions(entry: &Entry, body: &[u8]) -> Result<Vec<Prompt>, Degradation> {
    let completion: Completion =
        serde_json::from_slice(body).map_err(|_error| Degradation::NoEngineForm)?;
    let cut = Cut::new(
        completion.truncate_prompt_tokens,
        completion.truncation_side.as_deref(),
        entry.max_model_len,
    );
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
