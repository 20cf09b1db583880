//! A request body, understood: which prompt the engine will prefill.

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

impl Api {
    /// The API of a request path (query and trailing slash ignored), if we know it.
    pub fn of_path(_path: &str) -> Option<Self> {
        None
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
}

/// Why a body on a known path cannot be routed by content.
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    /// Not JSON.
    #[error("the request body is not valid JSON: {0}")]
    Json(#[source] serde_json::Error),
}

impl Request {
    /// Reads a body.
    ///
    /// # Errors
    /// When it is not JSON, or not of the API's shape.
    pub fn parse(_api: Api, _body: &[u8]) -> Result<Self, Malformed> {
        Err(Malformed::Json(
            <serde_json::Error as serde::de::Error>::custom("stub"),
        ))
    }
    /// The prompts' text in order, for an estimate; `None` when the body holds no text that we understand.
    pub fn text(&self) -> Option<Vec<u8>> {
        None
    }
}
