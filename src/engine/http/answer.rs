//! How do tokens become an answer? As a stream of server-sent events, or as one JSON document.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::App;
use super::body::StreamOptions;
use super::error::ApiError;
use super::shape::{Counts, Head, Kind, role_choice, running_usage};
use crate::engine::driver::Answered;
use crate::engine::model::FinishReason;
use crate::engine::tokenizer::Tokenizer;

/// An answer in the making.
pub(super) struct Answer {
    head: Head,
    prompts: Vec<Vec<u32>>,
    /// Answers a prompt.
    copies: usize,
    block_size: usize,
    outputs: mpsc::Receiver<Answered>,
    counts: Counts,
    /// Answers that have not ended.
    open: usize,
}

impl Answer {
    pub(super) fn new(
        head: Head,
        prompts: Vec<Vec<u32>>,
        copies: usize,
        block_size: usize,
        outputs: mpsc::Receiver<Answered>,
    ) -> Self {
        let counts = Counts {
            prompt: prompts.iter().map(Vec::len).sum(),
            ..Counts::default()
        };
        Self {
            open: prompts.len() * copies,
            head,
            prompts,
            copies,
            block_size,
            outputs,
            counts,
        }
    }

    fn prompt_of(&self, choice: usize) -> &[u32] {
        let prompt = choice
            .checked_div(self.copies)
            .and_then(|at| self.prompts.get(at));
        prompt.map_or(&[], Vec::as_slice)
    }

    /// Takes one token into the counts.
    fn count(&mut self, answered: &Answered) {
        self.counts.completion += usize::from(answered.output.token.is_some());
        self.open -= usize::from(answered.output.finished.is_some());
        let is_last_choice = answered.choice + 1 == self.prompts.len() * self.copies;
        if let (Some(prefilled), true) = (answered.output.prefilled, is_last_choice) {
            let full = self.prompt_of(answered.choice).len() / self.block_size * self.block_size;
            self.counts.cached = prefilled.cached_tokens;
            self.counts.created = full.saturating_sub(prefilled.cached_tokens);
        }
    }

    /// Waits for the end and answers in one piece.
    ///
    /// # Errors
    /// When the engine stops before.
    pub(super) async fn whole(mut self, tokenizer: &Tokenizer) -> Result<Response, ApiError> {
        let mut ids = vec![Vec::new(); self.open];
        let mut reasons = vec![None; self.open];
        while self.open > 0 {
            let answered = self.outputs.recv().await.ok_or(ApiError::Stopped)?;
            self.count(&answered);
            if let (Some(ids), Some(reason)) = (
                ids.get_mut(answered.choice),
                reasons.get_mut(answered.choice),
            ) {
                ids.extend(answered.output.token);
                *reason = answered.output.finished;
            }
        }
        let choices = ids.iter().zip(reasons).enumerate();
        let choices = choices
            .map(|(index, (ids, reason))| {
                self.whole_choice(index, ids, reason, &tokenizer.decode(ids))
            })
            .collect();
        let whole = self.head.whole(choices, self.counts, self.prompt_of(0));
        Ok(Json(whole).into_response())
    }

    fn whole_choice(
        &self,
        index: usize,
        ids: &[u32],
        reason: Option<FinishReason>,
        text: &str,
    ) -> Value {
        let shown = self.head.with_ids.then_some(ids);
        let reason = reason.map(reason_text);
        match self.head.kind {
            Kind::Chat => json!({
                "index": index,
                "message": {
                    "role": "assistant", "content": text, "refusal": null, "annotations": null, "audio": null,
                    "function_call": null, "reasoning": null,
                },
                "logprobs": null, "finish_reason": reason, "stop_reason": null, "token_ids": shown,
            }),
            Kind::Completions => json!({
                "index": index, "text": text, "logprobs": null, "finish_reason": reason, "stop_reason": null,
                "token_ids": shown, "prompt_logprobs": null,
                "prompt_token_ids": self.head.with_ids.then(|| self.prompt_of(index)),
            }),
        }
    }

    /// Answers at once with headers, and with tokens as they come.
    pub(super) fn stream(self, options: StreamOptions, app: Arc<App>) -> Response {
        let stream = Stream {
            answer: self,
            options,
            app,
            ready: VecDeque::new(),
            begun: false,
            done: false,
        };
        let events = futures_util::stream::try_unfold(stream, |mut stream| async move {
            Ok::<_, serde_json::Error>(stream.next().await?.map(|event| (event, stream)))
        });
        let kind = [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")];
        (kind, Body::from_stream(events)).into_response()
    }
}

/// A stream under way. Dropping it (the client left) closes the channel, which aborts the request.
struct Stream {
    answer: Answer,
    options: StreamOptions,
    app: Arc<App>,
    /// Events to be sent before the next token is waited for.
    ready: VecDeque<Bytes>,
    begun: bool,
    done: bool,
}

impl Stream {
    async fn next(&mut self) -> serde_json::Result<Option<Bytes>> {
        while self.ready.is_empty() && !self.done {
            // No more tokens before the end: the engine was stopped, and the stream just breaks off.
            let Some(answered) = self.answer.outputs.recv().await else {
                return Ok(None);
            };
            self.take(&answered)?;
        }
        Ok(self.ready.pop_front())
    }

    fn take(&mut self, answered: &Answered) -> serde_json::Result<()> {
        self.answer.count(answered);
        let is_first = !std::mem::replace(&mut self.begun, true);
        if is_first && self.answer.head.kind == Kind::Chat {
            self.push_roles()?;
        }
        let choice = self.token_choice(answered, is_first);
        let wants_usage = self.options.include_usage == Some(true);
        let is_last = answered.output.finished.is_some() && !wants_usage;
        let usage = self
            .is_continuous()
            .then(|| running_usage(self.answer.counts));
        self.push(
            &self
                .answer
                .head
                .chunk(&[choice], usage, None, false, is_last)?,
        );
        if self.answer.open == 0 {
            if wants_usage {
                let usage = self.answer.head.usage(self.answer.counts);
                self.push(
                    &self
                        .answer
                        .head
                        .chunk(&[], Some(usage), None, false, true)?,
                );
            }
            self.push("[DONE]");
            self.done = true;
        }
        Ok(())
    }

    /// vLLM sends the roles of all answers with the first token of any.
    fn push_roles(&mut self) -> serde_json::Result<()> {
        for index in 0..self.answer.copies {
            let counts = Counts {
                completion: 0,
                ..self.answer.counts
            };
            let usage = self.is_continuous().then(|| running_usage(counts));
            let prompt = self.answer.prompt_of(index);
            let chunk =
                self.answer
                    .head
                    .chunk(&[role_choice(index)], usage, Some(prompt), true, false)?;
            self.push(&chunk);
        }
        Ok(())
    }

    fn token_choice(&self, answered: &Answered, is_first: bool) -> Value {
        let output = &answered.output;
        let index = answered.choice;
        let ids = output.token.as_slice();
        let text = self.app.tokenizer.decode(ids);
        let ids = self.answer.head.with_ids.then_some(ids);
        let reason = output.finished.map(reason_text);
        match self.answer.head.kind {
            Kind::Chat => {
                let mut choice = json!({
                    "index": index, "delta": {"content": text}, "logprobs": null, "finish_reason": reason,
                });
                if let Some(fields) = choice.as_object_mut() {
                    if reason.is_some() {
                        fields.insert("stop_reason".to_owned(), Value::Null);
                    }
                    fields.insert("token_ids".to_owned(), json!(ids));
                }
                choice
            }
            Kind::Completions => {
                let shows_prompt =
                    self.answer.head.with_ids && (is_first || output.prefilled.is_some());
                let prompt = shows_prompt.then(|| self.answer.prompt_of(index));
                json!({
                    "index": index, "text": text, "logprobs": null, "finish_reason": reason, "stop_reason": null,
                    "prompt_token_ids": prompt, "token_ids": ids,
                })
            }
        }
    }

    fn is_continuous(&self) -> bool {
        self.options.include_usage == Some(true)
            && self.options.continuous_usage_stats == Some(true)
    }

    fn push(&mut self, data: &str) {
        self.ready
            .push_back(Bytes::from(format!("data: {data}\n\n")));
    }
}

const fn reason_text(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
    }
}
