//! A request body, understood: which prompt the engine will prefill.
//!
//! The rule for odd bodies: only what no engine can accept (not JSON, or JSON that is not an
//! object) is refused. Everything else that we do not fully understand is [`Content::Inexact`]
//! with the reason, so that an estimate is routed and the engine gives its own verdict.
//!
//! Cost, measured (`benches/tokens.rs`, one core of two): 8 µs for a chat of 39 KB and 8,000 tokens, 43 µs
//! for one of 220 KB.

mod body;
mod chat;
mod convert;
mod json;
mod messages;
mod prompts;
mod python_json;
mod responses;
mod text;

use minijinja::Value;

pub use chat::Chat;
pub use convert::{Target as ConversionTarget, TemplateFacts, Version};
pub use json::to_json;
pub(in crate::routing) use json::value_of as json_value;
pub use messages::Messages;
pub(in crate::routing) use prompts::list;
pub use prompts::{Prompt, Prompts, Side, Truncation};
pub(in crate::routing) use python_json::is_object as is_python_object;
pub use responses::Responses;

/// Which API a path belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Api {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/embeddings`
    Embeddings,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages`
    Messages,
}

/// No two of them can end the same path.
const PATHS: [(&str, Api); 5] = [
    ("/v1/chat/completions", Api::Chat),
    ("/v1/completions", Api::Completions),
    ("/v1/embeddings", Api::Embeddings),
    ("/v1/responses", Api::Responses),
    ("/v1/messages", Api::Messages),
];

impl Api {
    /// The API of a request path, if we know it. Query, fragment and trailing slashes are
    /// ignored, and anything a gateway may have put before `/v1/…` is allowed.
    pub fn of_path(path: &str) -> Option<Self> {
        let end = path.find(['?', '#']).unwrap_or(path.len());
        let path = path.get(..end)?.trim_end_matches('/');
        PATHS
            .iter()
            .find(|(suffix, _)| path.ends_with(suffix))
            .map(|(_, api)| *api)
    }
}

/// What the picker needs to know of a body.
#[derive(Clone, Debug)]
pub struct Request {
    /// The API it came by.
    pub api: Api,
    /// The model named, if any.
    pub model: Option<String>,
    /// `cache_salt`.
    pub salt: Option<String>,
    /// The client asked for a stream.
    pub stream: bool,
    /// The engine will look into its cache for it (false: `prompt_logprobs`, echo with logprobs).
    pub reads_cache: bool,
    /// The prompt, as far as it is understood.
    pub content: Content,
}

/// What a body holds for the engine to prefill.
#[derive(Clone, Debug)]
pub enum Content {
    /// Messages that a chat template renders (chat completions, chat-shaped embeddings).
    Chat(Box<Chat>),
    /// A body of the Responses API, which the engine turns into a chat.
    Responses(Box<Responses>),
    /// A body of the Messages API, which the engine turns into a chat.
    Messages(Box<Messages>),
    /// Texts or token ids (completions, embeddings).
    Prompts(Prompts),
    /// No exact token ids from here; the values that hold its text, in prompt order, are
    /// what an estimate goes by.
    Inexact {
        /// Why.
        why: Inexact,
        /// Values with the prompt's text; empty when the body could not be read in detail.
        texts: Vec<Value>,
    },
}

/// Why a body that an engine may accept has no exact token ids here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Inexact {
    /// A part of the prompt is kept by the engine and named only.
    #[error("`{0}` stands for what only the engine has")]
    EngineState(&'static str),
    /// The reasoning of an earlier turn, in a form that its maker alone reads.
    #[error("reasoning is encrypted")]
    EncryptedReasoning,
    /// An item, block or tool that vLLM does not know.
    #[error("`{0}` is nothing that vLLM knows")]
    Foreign(String),
    /// Engine versions convert it differently, and this one's is not known.
    #[error("engine versions differ on {0}, and this engine's version is not known")]
    UnknownVersion(&'static str),
    /// This engine's version converts it in a way that is not reproduced here.
    #[error("this engine's version has another way with {0}")]
    OlderEngine(&'static str),
    /// The conversion depends on the model's template.
    #[error("the conversion depends on the model's template, which is not at hand")]
    NoTemplateAtHand,
    /// The request brings its own chat template.
    #[error("the request brings its own chat template")]
    RequestTemplate,
    /// `prompt_embeds`: there are no tokens.
    #[error("the prompt is given as embeddings")]
    PromptEmbeds,
    /// A chat template argument that changes what the engine does around the template.
    #[error("chat_template_kwargs has `{0}`, which the engine treats in its own way")]
    TemplateArgument(String),
    /// JSON that Python reads and strict JSON does not have (NaN, lone surrogates, deep
    /// nesting), or a number that loses digits here.
    #[error("the body uses JSON that only Python's reader takes: {0}")]
    PythonJson(&'static str),
    /// A field is not of a shape we know.
    #[error("`{field}` is not {expected}")]
    Shape {
        /// Which field.
        field: &'static str,
        /// What we know how to read there.
        expected: &'static str,
    },
}

impl Inexact {
    /// A label of a closed set, for metrics.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::EngineState(_) => "engine_state",
            Self::EncryptedReasoning => "encrypted_reasoning",
            Self::Foreign(_) => "foreign_feature",
            Self::UnknownVersion(_) => "unknown_engine_version",
            Self::OlderEngine(_) => "unsure",
            Self::NoTemplateAtHand => "no_template",
            Self::RequestTemplate => "request_template",
            Self::PromptEmbeds => "prompt_embeds",
            Self::TemplateArgument(_) => "template_argument",
            Self::PythonJson(_) => "python_json",
            Self::Shape { .. } => "unknown_shape",
        }
    }
}

/// Why a body on a known path is refused. The texts are for the client.
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    /// Not JSON.
    #[error("the request body is not valid JSON: {0}")]
    Json(#[source] serde_json::Error),
    /// JSON, but not an object.
    #[error("the request body must be a JSON object, but it is {0}")]
    NotAnObject(&'static str),
    /// Nothing at all.
    #[error("the request body is empty: a JSON object was expected")]
    Empty,
}

impl Request {
    /// Reads a body.
    ///
    /// # Errors
    /// When it is not JSON, or JSON other than an object. Any other oddity gives a request
    /// with [`Content::Inexact`].
    pub fn parse(api: Api, body: &[u8]) -> Result<Self, Malformed> {
        let mut fields = body::Fields::read(body)?;
        let truncation = Truncation::read(&fields, api);
        let content = match (api, truncation) {
            _ if fields.python_only.is_some() => Err(Inexact::PythonJson(
                fields
                    .python_only
                    .unwrap_or("a number with more digits than fit"),
            )),
            (Api::Chat, Ok(truncation)) => chat::read(&mut fields, truncation),
            (Api::Completions, Ok(truncation)) => prompts::completions(&mut fields, truncation),
            (Api::Embeddings, Ok(truncation)) => prompts::embeddings(&mut fields, truncation),
            (Api::Responses, _) => responses::read(&mut fields),
            (Api::Messages, _) => messages::read(&mut fields),
            (_, Err(why)) => Err(why),
        };
        let content = content.unwrap_or_else(|why| Content::Inexact {
            why,
            texts: fields.take_texts(),
        });
        Ok(Self {
            api,
            model: fields
                .model
                .as_ref()
                .and_then(Value::as_str)
                .map(str::to_owned),
            salt: fields
                .cache_salt
                .as_ref()
                .and_then(Value::as_str)
                .map(str::to_owned),
            stream: fields.stream.as_ref().is_some_and(Value::is_true),
            reads_cache: fields.reads_cache(),
            content,
        })
    }

    /// The prompts' token ids where the body gives them itself, so that no tokenizer is needed.
    pub fn token_ids(&self) -> Option<Vec<Vec<u32>>> {
        match &self.content {
            Content::Prompts(prompts) if prompts.truncation.is_none() => prompts
                .items
                .iter()
                .map(|prompt| match prompt {
                    Prompt::Ids(ids) => Some(ids.clone()),
                    Prompt::Text(_) => None,
                })
                .collect(),
            _ => None,
        }
    }

    /// The prompt's text in order, for a length estimate and the approximate index. Media
    /// (data URLs, base64 payloads) are left out. `None` when the body holds no text that we
    /// can point at: then the raw body is all there is.
    pub fn text(&self) -> Option<Vec<u8>> {
        text::of(&self.content)
    }
}

#[cfg(test)]
mod tests;
