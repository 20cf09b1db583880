//! An engine's own tokenizer over HTTP: `POST /tokenize`, bounded in time and number, with a memory.
//!
//! What the engine gets is taken out of the request's body as it stands (images and all); only the model's name
//! is replaced by one the engine knows. The shapes are in `engine/shape.rs`, the memory in `engine/memory.rs`.

mod memory;
mod shape;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use parking_lot::Mutex;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use rustc_hash::FxHashMap;
use tokio::sync::Semaphore;
use tokio::time::timeout_at;
use tracing::debug;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use self::memory::Memory;
use self::shape::{Prompt, prompts};
use super::catalog::Entry;
use super::unix_time;
use crate::metrics::token_sources::{Degradation, EngineCall, TokenMetrics};
use crate::routing::request::Api;

/// Token ids remembered (4 bytes each): some hundred long prompts. The engine's answer costs it
/// milliseconds, a client's retry or a second picker's spill need not cost it twice.
const MEMORY_TOKENS: usize = 4 << 20;

/// Bytes of an answer. A million token ids take 7 MB; more is not a prompt.
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// How long an engine that failed is left alone: a request waits for a dead engine only now and then.
const PAUSE: Duration = Duration::from_secs(5);

/// How long an engine may take for a canary: nobody waits for it.
const CANARY_PATIENCE: Duration = Duration::from_secs(5);

/// For so long an answer is remembered at most, since a template may print the date. It changes at midnight in the
/// engine's time zone, and those differ by quarters of an hour.
const SAME_DAY_SECONDS: i64 = 900;

/// Asks engines.
pub(super) struct EngineTokenizer {
    client: reqwest::Client,
    permits: Semaphore,
    timeout: Duration,
    memory: Mutex<Memory>,
    paused: Mutex<FxHashMap<SocketAddr, Instant>>,
    metrics: Arc<TokenMetrics>,
}

/// What an engine says.
#[derive(serde::Deserialize)]
struct Answer {
    tokens: Vec<u32>,
}

impl EngineTokenizer {
    pub(super) fn new(concurrency: usize, timeout: Duration, metrics: Arc<TokenMetrics>) -> Self {
        // Pods are reached directly, whatever proxy the environment names for the world outside.
        let client = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .unwrap_or_default();
        Self {
            client,
            permits: Semaphore::new(concurrency),
            timeout,
            memory: Mutex::new(Memory::new(MEMORY_TOKENS)),
            paused: Mutex::default(),
            metrics,
        }
    }

    /// Forgets all answers: an engine said something new, and a name may mean another tokenizer now.
    pub(super) fn forget_answers(&self) {
        *self.memory.lock() = Memory::new(MEMORY_TOKENS);
    }

    /// The token ids of each prompt of a request, from an engine that serves its model.
    ///
    /// # Errors
    /// The reason why there are none.
    pub(super) async fn sequences(
        &self,
        entry: &Entry,
        api: Api,
        body: &[u8],
        authorization: Option<&str>,
    ) -> Result<Vec<Vec<u32>>, Degradation> {
        let prompts = prompts(api, entry, body)?;
        let mut sequences = Vec::with_capacity(prompts.len());
        for prompt in prompts {
            sequences.push(match prompt {
                Prompt::Ids(ids) => ids,
                Prompt::Ask(payload, cut) => {
                    let outcome = self.tokens(entry, payload, authorization).await;
                    self.metrics.engine_call(match &outcome {
                        Ok((_, call)) => *call,
                        Err(_) => EngineCall::Failed,
                    });
                    cut.apply(&outcome?.0)
                }
            });
        }
        Ok(sequences)
    }

    /// The token ids of one payload, remembered or asked for.
    async fn tokens(
        &self,
        entry: &Entry,
        payload: Vec<u8>,
        authorization: Option<&str>,
    ) -> Result<(Arc<[u32]>, EngineCall), Degradation> {
        let quarter = unix_time() / SAME_DAY_SECONDS;
        let key = xxh3_128_with_seed(&payload, quarter.unsigned_abs());
        if let Some(tokens) = self.memory.lock().get(key) {
            return Ok((tokens, EngineCall::Cached));
        }
        let engine = self.choose(&entry.engines)?;
        // The wait for a place counts as well: the time is the request's, whoever takes it.
        let deadline = tokio::time::Instant::now() + self.timeout;
        let Ok(Ok(_permit)) = timeout_at(deadline, self.permits.acquire()).await else {
            return Err(Degradation::EngineBusy);
        };
        let outcome = timeout_at(deadline, self.ask(engine, payload, authorization))
            .await
            .unwrap_or(Err(Degradation::EngineTimeout));
        match outcome {
            Ok(tokens) => {
                let tokens: Arc<[u32]> = tokens.into();
                self.memory.lock().insert(key, Arc::clone(&tokens));
                Ok((tokens, EngineCall::Answered))
            }
            Err(reason) => {
                if is_engines_fault(reason) {
                    self.paused.lock().insert(engine, Instant::now());
                }
                Err(reason)
            }
        }
    }

    /// What an engine would be asked for a request of one prompt.
    ///
    /// # Errors
    /// When `/tokenize` takes no such request.
    pub(super) fn payload(
        &self,
        entry: &Entry,
        api: Api,
        body: &[u8],
    ) -> Result<Vec<u8>, Degradation> {
        match prompts(api, entry, body)?.into_iter().next() {
            Some(Prompt::Ask(payload, _cut)) => Ok(payload),
            Some(Prompt::Ids(_)) | None => Err(Degradation::NoEngineForm),
        }
    }

    /// A certain engine's ids of a payload, with more patience than requests have; neither its places nor its
    /// memory are theirs.
    ///
    /// # Errors
    /// The reason why there are none.
    pub(super) async fn canary(
        &self,
        engine: SocketAddr,
        payload: Vec<u8>,
    ) -> Result<Vec<u32>, Degradation> {
        tokio::time::timeout(CANARY_PATIENCE, self.ask(engine, payload, None))
            .await
            .unwrap_or(Err(Degradation::EngineTimeout))
    }

    /// One of the engines that did not fail a moment ago, by chance.
    fn choose(&self, engines: &[SocketAddr]) -> Result<SocketAddr, Degradation> {
        if engines.is_empty() {
            return Err(Degradation::NoEngine);
        }
        let mut paused = self.paused.lock();
        paused.retain(|_, since| since.elapsed() < PAUSE);
        let asked: Vec<SocketAddr> = engines
            .iter()
            .copied()
            .filter(|engine| !paused.contains_key(engine))
            .collect();
        drop(paused);
        fastrand::choice(asked).ok_or(Degradation::EnginePaused)
    }

    async fn ask(
        &self,
        engine: SocketAddr,
        payload: Vec<u8>,
        authorization: Option<&str>,
    ) -> Result<Vec<u32>, Degradation> {
        let mut call = self
            .client
            .post(format!("http://{engine}/tokenize"))
            .header(CONTENT_TYPE, "application/json")
            .body(payload);
        // A value that is no header value is not worth the engine's answer; it must not look like its fault.
        if let Some(value) = authorization.and_then(|text| HeaderValue::from_str(text).ok()) {
            call = call.header(AUTHORIZATION, value);
        }
        let response = call.send().await.map_err(|error| {
            debug!(%engine, %error, "engine not reached for tokens");
            Degradation::EngineUnreachable
        })?;
        let status = response.status();
        if !status.is_success() {
            debug!(%engine, status = status.as_u16(), "engine gives no tokens");
            return Err(match status.as_u16() {
                404 | 405 => Degradation::EngineWithoutTokenize,
                401 | 403 => Degradation::EngineDenied,
                // It is too slow or too busy, which says nothing of the request.
                408 | 429 => Degradation::EngineFailed,
                400..=499 => Degradation::EngineRefused,
                500..=599 => Degradation::EngineFailed,
                _ => Degradation::EngineUnreadable,
            });
        }
        let mut answer = Vec::new();
        let mut chunks = response.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|_error| Degradation::EngineUnreachable)?;
            if answer.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Err(Degradation::EngineUnreadable);
            }
            answer.extend_from_slice(&chunk);
        }
        let answer: Answer = serde_json::from_slice(&answer).map_err(|error| {
            debug!(%engine, %error, "engine's tokens not understood");
            Degradation::EngineUnreadable
        })?;
        Ok(answer.tokens)
    }
}

/// Whether asking that engine the next thing is likely to fail as well. A refusal is the request's fault.
fn is_engines_fault(reason: Degradation) -> bool {
    matches!(
        reason,
        Degradation::EngineTimeout
            | Degradation::EngineUnreachable
            | Degradation::EngineWithoutTokenize
            | Degradation::EngineFailed
            | Degradation::EngineUnreadable
    )
}
