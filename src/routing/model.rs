//! A model's tokenizer and chat template together: from a request to the token ids its engine prefills.

use super::request::Request;

/// The files of a model folder that matter here, as bytes (reading them is the shell's work).
#[derive(Clone, Debug, Default)]
pub struct ModelFiles {
    /// `tokenizer.json`
    pub tokenizer: Vec<u8>,
    /// `tokenizer_config.json`
    pub tokenizer_config: Option<Vec<u8>>,
    /// `chat_template.jinja`, or `chat_template.json`'s template
    pub chat_template: Option<String>,
    /// `config.json`
    pub config: Option<Vec<u8>>,
}

/// The engine's side of rendering: what differs between its versions and moments.
#[derive(Clone, Debug, Default)]
pub struct RenderContext {
    /// vLLM's version as (major, minor), if known: the developer role depends on it.
    pub engine_version: Option<(u32, u32)>,
    /// Unix time in seconds, for templates that print today's date.
    pub unix_time: i64,
    /// The engine's context length, for truncation.
    pub max_model_len: Option<u32>,
}

/// Why a model folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The tokenizer.
    #[error("tokenizer.json cannot be read: {0}")]
    Tokenizer(String),
}

/// Why this request's tokens cannot be made here (the engine is asked instead).
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// No chat template.
    #[error("the model has no chat template")]
    NoTemplate,
}

impl TokensError {
    /// A label of a closed set, for logs and metrics.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NoTemplate => "no_template",
        }
    }
}

/// A loaded model. Cheap to share; `sequences` takes `&self` from many threads.
pub struct Model {}

impl Model {
    /// Loads tokenizer and template.
    ///
    /// # Errors
    /// When the tokenizer or the template cannot be understood.
    pub fn load(_files: &ModelFiles) -> Result<Self, LoadError> {
        Ok(Self {})
    }

    /// The same with a bound for the cache of text pieces, in bytes (0: none).
    ///
    /// # Errors
    /// When the tokenizer or the template cannot be understood.
    pub fn load_with_cache(files: &ModelFiles, _cache_bytes: usize) -> Result<Self, LoadError> {
        Self::load(files)
    }

    /// The token ids of each prompt of a request, in order.
    ///
    /// # Errors
    /// When the template refuses the messages, or content has no text form here (images).
    pub fn sequences(
        &self,
        _request: &Request,
        _context: &RenderContext,
    ) -> Result<Vec<Vec<u32>>, TokensError> {
        Err(TokensError::NoTemplate)
    }

    /// Token ids of a plain text.
    pub fn encode(&self, _text: &str, _add_special_tokens: bool) -> Vec<u32> {
        Vec::new()
    }

    /// The text of token ids (for the simulated engine).
    pub fn decode(&self, _ids: &[u32]) -> String {
        String::new()
    }
}
