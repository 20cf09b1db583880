//! What may a client ask? The request bodies, as far as a simulated engine acts on them.

use serde::Deserialize;
use serde_json::Value;

/// A body of chat or plain completions. `null` means absent, as everywhere in this API.
#[derive(Debug, Default, Deserialize)]
pub(super) struct GenerateBody {
    pub(super) model: Option<String>,
    pub(super) messages: Option<Vec<Value>>,
    pub(super) prompt: Option<Prompt>,
    pub(super) add_special_tokens: Option<bool>,
    pub(super) max_tokens: Option<usize>,
    pub(super) max_completion_tokens: Option<usize>,
    pub(super) n: Option<usize>,
    pub(super) stream: Option<bool>,
    pub(super) stream_options: Option<StreamOptions>,
    pub(super) ignore_eos: Option<bool>,
    pub(super) cache_salt: Option<String>,
    pub(super) return_token_ids: Option<bool>,
    pub(super) echo: Option<bool>,
    pub(super) logprobs: Option<Value>,
    pub(super) prompt_logprobs: Option<Value>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(super) struct StreamOptions {
    pub(super) include_usage: Option<bool>,
    pub(super) continuous_usage_stats: Option<bool>,
}

/// One prompt or several, as text or as token ids.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "a prompt is a string, a list of strings, a list of token ids or a list of such lists"
)]
pub(super) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}

impl Prompt {
    /// The token ids of each prompt; `encode` makes them of texts.
    pub(super) fn token_lists(self, encode: impl Fn(&str) -> Vec<u32>) -> Vec<Vec<u32>> {
        match self {
            Self::Text(text) => vec![encode(&text)],
            Self::Tokens(tokens) => vec![tokens],
            Self::Texts(texts) => texts.iter().map(|text| encode(text)).collect(),
            Self::TokenLists(lists) => lists,
        }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct EmbedBody {
    pub(super) model: Option<String>,
    pub(super) input: Prompt,
    pub(super) cache_salt: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TokenizeBody {
    pub(super) model: Option<String>,
    pub(super) prompt: Option<String>,
    pub(super) messages: Option<Vec<Value>>,
    pub(super) add_special_tokens: Option<bool>,
    pub(super) return_token_strs: Option<bool>,
}

#[derive(Debug, Deserialize)]
pub(super) struct DetokenizeBody {
    pub(super) model: Option<String>,
    pub(super) tokens: Vec<u32>,
}
