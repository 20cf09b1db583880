//! How do the APIs that are turned into chats get their prompts and tokens? What `responses` and `messages` share.

use axum::body::Bytes;
use axum::http::HeaderMap;
use serde_json::Value;
use tokio::sync::mpsc;

use super::App;
use super::error::ApiError;
use crate::engine::driver::Answered;
use crate::engine::model::{FinishReason, Request};
use crate::engine::ranks::Rank;
use crate::engine::tokenizer::{ChatError, Tokenizer};
use crate::routing::block::Scope;
use crate::routing::model::{RenderContext, TokensError};
use crate::routing::request::{
    self, Api, Content, ConversionTarget, Inexact, TemplateFacts, to_json,
};

/// One answer in the making.
pub(super) struct Answering<'a> {
    pub(super) rank: &'a Rank,
    pub(super) tokens: Tokens,
}

/// The tokens of one answer as they come, and their counts.
pub(super) struct Tokens {
    outputs: mpsc::Receiver<Answered>,
    pub(super) counts: Counts,
    pub(super) finished: Option<FinishReason>,
    block_size: usize,
}

/// What usage tells.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) prompt: usize,
    pub(super) completion: usize,
    pub(super) cached: usize,
    /// Full prompt blocks newly stored, in tokens.
    pub(super) created: usize,
}

impl Tokens {
    /// The next token; `None` after the last one.
    ///
    /// # Errors
    /// When the engine stops before.
    pub(super) async fn next(&mut self) -> Result<Option<u32>, ApiError> {
        if self.finished.is_some() {
            return Ok(None);
        }
        let answered = self.outputs.recv().await.ok_or(ApiError::Stopped)?;
        let output = answered.output;
        self.counts.completion += usize::from(output.token.is_some());
        self.finished = output.finished;
        if let Some(prefilled) = output.prefilled {
            let full = self.counts.prompt / self.block_size * self.block_size;
            self.counts.cached = prefilled.cached_tokens;
            self.counts.created = full.saturating_sub(prefilled.cached_tokens);
        }
        // An answer that is aborted ends without a token.
        Ok(output.token)
    }

    /// The answer ended for want of room.
    pub(super) fn ended_by_length(&self) -> bool {
        self.finished == Some(FinishReason::Length)
    }
}

/// What a request asks of the model beside its prompt.
pub(super) struct Wish<'a> {
    pub(super) model: Option<&'a str>,
    pub(super) salt: Option<&'a str>,
    pub(super) max_tokens: Option<usize>,
    pub(super) ignore_eos: bool,
}

impl App {
    /// Converts, tokenizes and submits one body.
    ///
    /// # Errors
    /// When the engine refuses it.
    pub(super) async fn answer_converted(
        &self,
        api: Api,
        headers: &HeaderMap,
        raw: &Bytes,
        wish: Wish<'_>,
    ) -> Result<Answering<'_>, ApiError> {
        let scope: Scope = self.scope(wish.model, wish.salt)?;
        let prompt = prompt(&self.tokenizer, api, raw, &self.render_context())?;
        let rank = self.ranks.choose(headers)?;
        let counts = Counts {
            prompt: prompt.len(),
            ..Counts::default()
        };
        let request = Request {
            prompt,
            scope,
            max_tokens: wish.max_tokens,
            ignore_eos: wish.ignore_eos,
            reads_cache: true,
            answer: Vec::new(),
        };
        let outputs = self.submit(rank, vec![request]).await?;
        let tokens = Tokens {
            outputs,
            counts,
            finished: None,
            block_size: self.settings.core.block_size.get() as usize,
        };
        Ok(Answering { rank, tokens })
    }
}

/// The token ids of a body.
fn prompt(
    tokenizer: &Tokenizer,
    api: Api,
    raw: &[u8],
    context: &RenderContext,
) -> Result<Vec<u32>, ChatError> {
    let request = request::Request::parse(api, raw)?;
    if let Tokenizer::Model(model) = tokenizer {
        return Ok(model
            .sequences(&request, context)?
            .pop()
            .unwrap_or_default());
    }
    let target = ConversionTarget {
        version: context.engine_version,
        template: Some(&NoTemplate),
    };
    let chat = match &request.content {
        Content::Responses(body) => body.chat(&target),
        Content::Messages(body) => body.chat(&target),
        Content::Inexact { why, .. } => Err(why.clone()),
        _ => Err(Inexact::NoTemplateAtHand),
    };
    let chat = chat.map_err(TokensError::from)?;
    let messages = to_json(&chat.messages);
    let messages = messages.as_array().map(Vec::as_slice).unwrap_or_default();
    tokenizer.chat(raw, messages, context)
}

/// The built-in tokenizer writes each message as it comes.
struct NoTemplate;

impl TemplateFacts for NoTemplate {
    fn mentions(&self, _name: &str) -> bool {
        false
    }

    fn system_first(&self) -> bool {
        false
    }

    fn effort_without_thinking(&self) -> &'static str {
        "none"
    }
}

/// An event with its name, as both APIs send it.
pub(super) fn event(name: &str, data: &Value) -> Bytes {
    Bytes::from(format!("event: {name}\ndata: {data}\n\n"))
}
