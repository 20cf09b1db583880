//! Token ids for requests: the model's own tokenizer here, else the engine's, else an estimate.

use std::sync::Arc;

use crate::routing::block::Sequence;

/// Which of the three ways made a request's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenSource {
    /// Tokenizer and template in this process.
    Local,
    /// The engine's `/tokenize`.
    Engine,
    /// A length estimate, served by the approximate index.
    Estimate,
}

/// A request's prompts.
#[derive(Clone, Debug)]
pub struct Tokenized {
    /// One a prompt.
    pub sequences: Vec<Sequence>,
    /// The adapter the request's model is, if it is one.
    pub adapter: Option<Arc<str>>,
    /// How they were made.
    pub source: TokenSource,
    /// Why not by the best way, for logs and a bounded metric label.
    pub degraded: Option<&'static str>,
}

/// Where a model's files come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// A folder with `tokenizer.json` and friends.
    Directory(std::path::PathBuf),
    /// A hub id, optionally `id@revision`.
    Hub(String),
}

/// How tokens are made.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Sources by the model name that requests use.
    pub models: std::collections::BTreeMap<String, ModelSource>,
    /// A folder whose sub-folders are models (named like the model or like its root's last part).
    pub directory: Option<std::path::PathBuf>,
    /// Whether model roots that engines name may be fetched from the hub.
    pub hub: bool,
    /// Where downloaded files are kept.
    pub cache_directory: Option<std::path::PathBuf>,
    /// Bytes of token ids kept for text pieces seen before, over all models.
    pub cache_bytes: usize,
    /// Longest wait for an engine's `/tokenize`.
    pub engine_timeout: std::time::Duration,
    /// `/tokenize` calls at once.
    pub engine_concurrency: usize,
    /// Bytes a token, for the estimate.
    pub bytes_per_token: f64,
}

/// One entry of an engine's `/v1/models`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedModel {
    /// The name requests use.
    pub id: String,
    /// Path or hub id of the weights.
    pub root: Option<String>,
    /// The base model, if this is an adapter.
    pub parent: Option<String>,
    /// Context length.
    pub max_model_len: Option<u32>,
}

/// Makes token ids for requests. One value serves all streams.
pub struct Tokens {}

impl Tokens {
    /// Nothing is loaded yet; `run` loads in the background.
    pub fn new(
        _settings: Settings,
        _metrics: Arc<crate::metrics::token_sources::TokenMetrics>,
    ) -> Arc<Self> {
        Arc::new(Self {})
    }

    /// An engine told what it serves (asked by the feeds when it joins and now and then).
    pub fn observe(
        &self,
        _engine: std::net::SocketAddr,
        _models: Vec<ServedModel>,
        _version: Option<(u32, u32)>,
    ) {
    }

    /// An engine left.
    pub fn forget(&self, _engine: std::net::SocketAddr) {}

    /// Loads (and downloads) what configuration and engines name, off the request path, until `stop`.
    pub async fn run(self: Arc<Self>, stop: tokio_util::sync::CancellationToken) {
        stop.cancelled().await;
    }

    /// A request's token ids by the best way available. Never fails: it degrades and says so.
    /// `body` is the raw body (for the estimate), `authorization` the client's header (for the engine's `/tokenize`).
    pub async fn tokenize(
        &self,
        _request: &crate::routing::request::Request,
        body: &[u8],
        _authorization: Option<&str>,
    ) -> Tokenized {
        Tokenized {
            sequences: vec![Sequence::Estimate {
                tokens: crate::routing::tokens::TokenCount::of(body),
                text: body.to_vec(),
            }],
            adapter: None,
            source: TokenSource::Estimate,
            degraded: Some("stub"),
        }
    }
}
