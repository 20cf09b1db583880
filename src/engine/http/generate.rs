//! How does a body become requests of the model? Parse, tokenize, submit, and leave the answering to `answer`.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use tokio::sync::{mpsc, oneshot};

use super::answer::Answer;
use super::body::GenerateBody;
use super::error::ApiError;
use super::shape::{Details, Head, Kind};
use super::{App, unix_time};
use crate::engine::driver::{Answered, Command};
use crate::engine::fault::Fault;
use crate::engine::model::Request;
use crate::engine::ranks::Rank;
use crate::routing::block::Scope;

/// vLLM's default for plain completions.
const DEFAULT_COMPLETION_TOKENS: usize = 16;
/// Answers of one HTTP request; vLLM's own default limit.
const MAX_ANSWERS: usize = 16_384;
/// Salts may be this long.
const MAX_SALT_CHARS: usize = 1024;

pub(super) async fn chat(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    raw: Bytes,
) -> Result<Response, ApiError> {
    let body: GenerateBody = serde_json::from_slice(&raw)?;
    let scope = app.scope(body.model.as_deref(), body.cache_salt.as_deref())?;
    let messages = body.messages.as_deref().unwrap_or_default();
    if messages.is_empty() {
        return Err(ApiError::Shape("messages must not be empty"));
    }
    let prompt = app.chat_tokens(&raw, messages)?;
    let max_tokens = body.max_completion_tokens.or(body.max_tokens);
    app.generate(Kind::Chat, &headers, &body, vec![prompt], scope, max_tokens)
        .await
}

pub(super) async fn completions(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    raw: Bytes,
) -> Result<Response, ApiError> {
    let mut body: GenerateBody = serde_json::from_slice(&raw)?;
    let scope = app.scope(body.model.as_deref(), body.cache_salt.as_deref())?;
    let prompt = body
        .prompt
        .take()
        .ok_or(ApiError::Shape("a prompt is needed"))?;
    let special = body.add_special_tokens.unwrap_or(true);
    let prompts = prompt.token_lists(|text| app.tokenizer.encode(text, special));
    let max_tokens = body.max_tokens.or(Some(DEFAULT_COMPLETION_TOKENS));
    app.generate(
        Kind::Completions,
        &headers,
        &body,
        prompts,
        scope,
        max_tokens,
    )
    .await
}

impl App {
    async fn generate(
        self: &Arc<Self>,
        kind: Kind,
        headers: &HeaderMap,
        body: &GenerateBody,
        prompts: Vec<Vec<u32>>,
        scope: Scope,
        max_tokens: Option<usize>,
    ) -> Result<Response, ApiError> {
        let copies = body.n.unwrap_or(1);
        let answers = copies.saturating_mul(prompts.len());
        if !(1..=MAX_ANSWERS).contains(&answers) {
            return Err(ApiError::Shape(
                "the number of answers must be between 1 and 16384",
            ));
        }
        let rank = self.ranks.choose(headers)?;
        let echoes_logprobs = body.echo == Some(true) && body.logprobs.is_some();
        let template = Request {
            prompt: Vec::new(),
            scope,
            max_tokens,
            ignore_eos: body.ignore_eos.unwrap_or(false),
            reads_cache: body.prompt_logprobs.is_none() && !echoes_logprobs,
            answer: Vec::new(),
        };
        let requests: Vec<_> = prompts
            .iter()
            .flat_map(|prompt| std::iter::repeat_n(prompt, copies))
            .map(|prompt| Request {
                prompt: prompt.clone(),
                ..template.clone()
            })
            .collect();
        let outputs = self.submit(rank, requests).await?;
        let head = self.head(kind, headers, body);
        let block_size = self.settings.core.block_size.get() as usize;
        let answer = Answer::new(head, prompts, copies, block_size, outputs);
        let mut response = if body.stream == Some(true) {
            answer.stream(body.stream_options.unwrap_or_default(), Arc::clone(self))
        } else {
            answer.whole(&self.tokenizer).await?
        };
        self.tell_rank(rank, &mut response);
        Ok(response)
    }

    /// vLLM never says which rank served; a test of several needs to know.
    pub(super) fn tell_rank(&self, rank: &Rank, response: &mut Response) {
        if self.ranks.len() > 1 {
            let headers = response.headers_mut();
            headers.insert("x-warmpath-engine-rank", rank.number.into());
        }
    }

    /// Queues prompts at a rank; their tokens come out of the channel. Dropping it aborts them.
    ///
    /// # Errors
    /// When the engine takes no more, or the model cannot compute one of them.
    pub(super) async fn submit(
        &self,
        rank: &Rank,
        requests: Vec<Request>,
    ) -> Result<mpsc::Receiver<Answered>, ApiError> {
        self.admit(requests.len())?;
        let limit = self.settings.core.max_model_len;
        let room = |request: &Request| request.max_tokens.unwrap_or(limit).min(limit);
        let tokens: usize = requests.iter().map(room).sum();
        let (outputs, receiver) = mpsc::channel(tokens.max(1));
        let (reply, taken) = oneshot::channel();
        let command = Command::Submit {
            requests,
            outputs,
            in_flight: rank.in_flight.clone(),
            reply,
        };
        rank.commands
            .send(command)
            .await
            .map_err(|_| ApiError::Stopped)?;
        taken.await.map_err(|_| ApiError::Stopped)??;
        Ok(receiver)
    }

    /// Says whether so many further answers may be asked for. As in vLLM, those of all ranks count together.
    ///
    /// # Errors
    /// When they may not.
    fn admit(&self, answers: usize) -> Result<(), ApiError> {
        let faults = self.faults();
        if faults.has(Fault::QueueFull) || faults.take_one(Fault::Refuse) {
            return Err(ApiError::QueueFull);
        }
        let in_flight: usize = self.ranks.iter().map(Rank::in_flight).sum();
        match self.settings.max_num_queued_reqs {
            Some(limit) if in_flight + answers > limit => Err(ApiError::QueueFull),
            _ => Ok(()),
        }
    }

    /// The adapter and salt of a request for `model`.
    ///
    /// # Errors
    /// When no such model is served, or the salt is not one.
    pub(super) fn scope(&self, model: Option<&str>, salt: Option<&str>) -> Result<Scope, ApiError> {
        if salt.is_some_and(|salt| salt.is_empty() || salt.chars().count() > MAX_SALT_CHARS) {
            return Err(ApiError::Shape(
                "cache_salt must be a text of 1 to 1024 characters",
            ));
        }
        let served = model.filter(|name| *name != self.settings.model);
        let adapter = served.map(|name| {
            let known = self
                .settings
                .adapters
                .iter()
                .find(|adapter| *adapter == name);
            known.ok_or_else(|| ApiError::NoSuchModel(name.to_owned()))
        });
        Ok(Scope {
            adapter: adapter.transpose()?.map(|name| name.as_str().into()),
            salt: salt.map(Into::into),
        })
    }

    /// The client's own id where it gives one, as in vLLM.
    pub(super) fn answer_id(prefix: &str, headers: &HeaderMap) -> String {
        let given = headers
            .get("x-request-id")
            .and_then(|value| value.to_str().ok());
        given.map_or_else(
            || format!("{prefix}{:016x}", fastrand::u64(..)),
            |id| format!("{prefix}{id}"),
        )
    }

    fn head(&self, kind: Kind, headers: &HeaderMap, body: &GenerateBody) -> Head {
        Head {
            kind,
            id: Self::answer_id(kind.id_prefix(), headers),
            created: unix_time(),
            model: body
                .model
                .clone()
                .unwrap_or_else(|| self.settings.model.clone()),
            fingerprint: format!("vllm-{}-sim00000", self.settings.version.text),
            with_ids: body.return_token_ids == Some(true),
            details: if self.faults().has(Fault::NoUsageDetails) {
                Details::Never
            } else if self.settings.version.number >= (0, 24) {
                Details::Always
            } else {
                Details::WhenCached
            },
        }
    }
}
