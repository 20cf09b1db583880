//! Which fields stand where in an answer? The JSON of vLLM 0.31, as it was recorded.

use serde::Serialize;
use serde_json::{Value, json};

/// Token counts of one HTTP request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Prompt tokens, each prompt once.
    pub(super) prompt: usize,
    /// Generated tokens.
    pub(super) completion: usize,
    /// Cached prompt tokens of the last prompt (of several, vLLM reports that one's).
    pub(super) cached: usize,
    /// Full prompt blocks newly stored, in tokens.
    pub(super) created: usize,
}

#[derive(Serialize)]
pub(super) struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
    completion_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens_details: Option<Value>,
}

/// The API a request came by, where the shapes differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Chat,
    Completions,
}

impl Kind {
    /// The beginning of answers' ids.
    pub(super) const fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl-",
            Self::Completions => "cmpl-",
        }
    }
}

/// When is told how many prompt tokens were cached?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Details {
    /// Since 0.24.
    Always,
    /// Before: not where nothing was.
    WhenCached,
    /// Without `--enable-prompt-tokens-details`.
    Never,
}

/// What all chunks of an answer (or the whole of it) say first.
pub(super) struct Head {
    pub(super) kind: Kind,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) fingerprint: String,
    /// Token ids are shown.
    pub(super) with_ids: bool,
    pub(super) details: Details,
}

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [Value],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Option<&'a [u32]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system_fingerprint: Option<&'a str>,
}

impl Head {
    /// Usage with the cached tokens told.
    pub(super) fn usage(&self, counts: Counts) -> Usage {
        let details = match self.kind {
            Kind::Chat => {
                json!({"cached_tokens": counts.cached, "created_cache_tokens": counts.created})
            }
            Kind::Completions => json!({"cached_tokens": counts.cached}),
        };
        let told = match self.details {
            Details::Always => true,
            Details::WhenCached => counts.cached > 0,
            Details::Never => false,
        };
        Usage {
            prompt_tokens_details: told.then_some(details),
            ..running_usage(counts)
        }
    }

    /// One chunk of a stream. `prompt` is told with the first.
    pub(super) fn chunk(
        &self,
        choices: &[Value],
        usage: Option<Usage>,
        prompt: Option<&[u32]>,
        is_first: bool,
        is_last: bool,
    ) -> serde_json::Result<String> {
        let first_of_chat = is_first && self.kind == Kind::Chat;
        serde_json::to_string(&Chunk {
            id: &self.id,
            object: match self.kind {
                Kind::Chat => "chat.completion.chunk",
                Kind::Completions => "text_completion",
            },
            created: self.created,
            model: &self.model,
            choices,
            usage,
            prompt_token_ids: first_of_chat.then_some(prompt.filter(|_| self.with_ids)),
            system_fingerprint: is_last.then_some(self.fingerprint.as_str()),
        })
    }

    /// The whole answer at once.
    pub(super) fn whole(&self, choices: Vec<Value>, counts: Counts, prompt: &[u32]) -> Value {
        let object = match self.kind {
            Kind::Chat => "chat.completion",
            Kind::Completions => "text_completion",
        };
        let ids = (self.with_ids && self.kind == Kind::Chat).then_some(prompt);
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices,
            "service_tier": null, "system_fingerprint": self.fingerprint, "usage": self.usage(counts),
            "prompt_logprobs": null, "prompt_token_ids": ids, "kv_transfer_params": null,
        })
    }
}

/// Usage as it stands in the middle of a stream.
pub(super) const fn running_usage(counts: Counts) -> Usage {
    Usage {
        prompt_tokens: counts.prompt,
        total_tokens: counts.prompt + counts.completion,
        completion_tokens: counts.completion,
        prompt_tokens_details: None,
    }
}

/// The choice of a chat's first chunk.
pub(super) fn role_choice(index: usize) -> Value {
    json!({"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null})
}
