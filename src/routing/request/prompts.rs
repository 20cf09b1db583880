//! Prompts given as text or token ids, and how they are cut.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::body::Fields;
use super::convert::Version;
use super::{Api, Content, Inexact, chat};

/// The prompts of a completions or embeddings body. Each is a request of its own to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompts {
    /// In the body's order.
    pub items: Vec<Prompt>,
    /// Whether texts get the tokenizer's special tokens (BOS and the like).
    pub add_special_tokens: bool,
    /// How long prompts are cut.
    pub truncation: Option<Truncation>,
    /// The side that is kept where the request does not say.
    pub default_side: Option<Side>,
}

/// One prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// To be tokenized.
    Text(String),
    /// Passed to the engine as they are.
    Ids(Vec<u32>),
}

/// Which end of a prompt is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The beginning goes, the end is kept.
    Left,
    /// The end goes.
    Right,
}

/// `truncate_prompt_tokens` with `truncation_side`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// Tokens to keep; `None` (the body's −1) is what the context takes.
    pub keep: Option<u32>,
    /// The side the request names.
    pub side: Option<Side>,
    /// Tokens of an answer that the request asks for, if it says: engines leave room for them, or for one.
    pub output: Option<u32>,
}

/// Since this version a prompt is cut to one token below the context (vLLM's `vllm/renderers/params.py`).
const LEAVES_ROOM_FOR_ONE: Version = (0, 32);
/// Since this version (older ones were not read), and before that, to what the answer leaves of it.
const LEAVES_ROOM_FOR_ALL: Version = (0, 20);

impl Truncation {
    /// How many tokens of a prompt an engine of that version keeps, given the context's length; `None` where that
    /// is not known.
    pub fn kept(&self, context: Option<u32>, version: Option<Version>) -> Option<u32> {
        if self.keep.is_some() {
            return self.keep;
        }
        let left_free = match (self.output, version) {
            (Some(0), _) => 0,
            (_, Some(version)) if version >= LEAVES_ROOM_FOR_ONE => 1,
            (output, Some(version)) if version >= LEAVES_ROOM_FOR_ALL => output.unwrap_or(0),
            (Some(1), _) => 1,
            _ => return None,
        };
        Some(context?.saturating_sub(left_free))
    }

    /// What the body asks for, `None` when it does not ask.
    pub(super) fn read(fields: &Fields, api: Api) -> Result<Option<Self>, Inexact> {
        let expected = "a number of tokens, or -1";
        let Some(keep) = present(fields.truncate_prompt_tokens.as_ref()) else {
            return Ok(None);
        };
        let keep = match keep.as_i64() {
            Some(-1) => None,
            keep => Some(
                keep.and_then(|keep| u32::try_from(keep).ok())
                    .ok_or(Inexact::Shape {
                        field: "truncate_prompt_tokens",
                        expected,
                    })?,
            ),
        };
        let side = match present(fields.truncation_side.as_ref()).map(Value::as_str) {
            None => None,
            Some(Some("left")) => Some(Side::Left),
            Some(Some("right")) => Some(Side::Right),
            Some(_) => {
                return Err(Inexact::Shape {
                    field: "truncation_side",
                    expected: "\"left\" or \"right\"",
                });
            }
        };
        let output = match api {
            Api::Embeddings => Some(0),
            Api::Completions if fields.max_tokens.is_none() => Some(DEFAULT_COMPLETION_TOKENS),
            _ => {
                let newer = present(fields.max_completion_tokens.as_ref());
                output(newer.or_else(|| present(fields.max_tokens.as_ref())))
            }
        };
        Ok(Some(Self { keep, side, output }))
    }
}

/// vLLM's default for plain completions.
const DEFAULT_COMPLETION_TOKENS: u32 = 16;

/// A number of tokens to answer with.
pub(super) fn output(field: Option<&Value>) -> Option<u32> {
    field
        .and_then(Value::as_i64)
        .and_then(|tokens| u32::try_from(tokens).ok())
}

/// A field that is there and not `null`.
pub(super) fn present(field: Option<&Value>) -> Option<&Value> {
    field.filter(|value| !value.is_none())
}

/// A boolean field.
pub(super) fn flag(
    field: &'static str,
    value: Option<&Value>,
    default: bool,
) -> Result<bool, Inexact> {
    match value {
        None => Ok(default),
        Some(value) if value.kind() == ValueKind::Bool => Ok(value.is_true()),
        Some(_) => Err(Inexact::Shape {
            field,
            expected: "true or false",
        }),
    }
}

/// `/v1/completions`.
pub(super) fn completions(
    fields: &mut Fields,
    truncation: Option<Truncation>,
) -> Result<Content, Inexact> {
    if present(fields.prompt_embeds.as_ref()).is_some() {
        return Err(Inexact::PromptEmbeds);
    }
    Ok(Content::Prompts(Prompts {
        items: items("prompt", fields.prompt.as_ref())?,
        add_special_tokens: flag(
            "add_special_tokens",
            fields.add_special_tokens.as_ref(),
            true,
        )?,
        truncation,
        // vLLM loads the tokenizer of a generating model with the left side.
        default_side: Some(Side::Left),
    }))
}

/// `/v1/embeddings`, whose body is shaped like a completion or like a chat.
pub(super) fn embeddings(
    fields: &mut Fields,
    truncation: Option<Truncation>,
) -> Result<Content, Inexact> {
    if fields.messages.is_some() {
        return chat::read_for_embedding(fields, truncation);
    }
    Ok(Content::Prompts(Prompts {
        items: items("input", fields.input.as_ref())?,
        add_special_tokens: flag(
            "add_special_tokens",
            fields.add_special_tokens.as_ref(),
            true,
        )?,
        truncation,
        default_side: None,
    }))
}

fn items(field: &'static str, value: Option<&Value>) -> Result<Vec<Prompt>, Inexact> {
    let unknown = || Inexact::Shape {
        field,
        expected: "a text, a list of texts, a list of token ids or a list of such lists",
    };
    let value = value.ok_or_else(unknown)?;
    if let Some(text) = value.as_str() {
        return Ok(vec![Prompt::Text(text.to_owned())]);
    }
    let list = list(value).ok_or_else(unknown)?;
    let first = list.first().ok_or_else(unknown)?;
    if first.is_number() {
        return Ok(vec![Prompt::Ids(ids(list).ok_or_else(unknown)?)]);
    }
    list.iter()
        .map(|item| match item.as_str() {
            Some(text) => Ok(Prompt::Text(text.to_owned())),
            None => self::list(item)
                .and_then(ids)
                .map(Prompt::Ids)
                .ok_or_else(unknown),
        })
        .collect()
}

/// The items of a list that came from JSON.
pub(in crate::routing) fn list(value: &Value) -> Option<&[Value]> {
    value.downcast_object_ref::<Vec<Value>>().map(Vec::as_slice)
}

fn ids(list: &[Value]) -> Option<Vec<u32>> {
    list.iter()
        .map(|id| {
            id.is_integer()
                .then(|| id.as_i64())
                .flatten()
                .and_then(|id| u32::try_from(id).ok())
        })
        .collect()
}
