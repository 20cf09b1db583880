//! What does `/v1/messages` answer? Events or one document, in the shapes of vLLM.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use super::App;
use super::converted::{Answering, Counts, Tokens, Wish, event};
use super::error::ApiError;
use crate::routing::request::Api;

/// Since this version usage tells what came from the cache.
const TELLS_CACHED: (u32, u32) = (0, 24);
/// Since this version it tells what was stored anew; before, that counted as input.
const TELLS_CREATED: (u32, u32) = (0, 26);

#[derive(Debug, Deserialize)]
struct MessagesBody {
    model: String,
    max_tokens: usize,
    stream: Option<bool>,
    cache_salt: Option<String>,
}

pub(super) async fn messages(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    raw: Bytes,
) -> Result<Response, ApiError> {
    let body: MessagesBody = serde_json::from_slice(&raw)?;
    let wish = Wish {
        model: Some(&body.model),
        salt: body.cache_salt.as_deref(),
        max_tokens: Some(body.max_tokens),
        ignore_eos: false,
    };
    let answering = app
        .answer_converted(Api::Messages, &headers, &raw, wish)
        .await?;
    let Answering { rank, tokens } = answering;
    let answer = Answer {
        id: App::answer_id("chatcmpl-", &headers),
        model: body.model,
        tokens,
        app: Arc::clone(&app),
    };
    let mut response = if body.stream == Some(true) {
        stream(answer)
    } else {
        answer.whole().await?
    };
    app.tell_rank(rank, &mut response);
    Ok(response)
}

struct Answer {
    id: String,
    model: String,
    tokens: Tokens,
    app: Arc<App>,
}

impl Answer {
    async fn whole(mut self) -> Result<Response, ApiError> {
        let mut ids = Vec::new();
        while let Some(token) = self.tokens.next().await? {
            ids.push(token);
        }
        let text = self.app.tokenizer.decode(&ids);
        let whole = json!({
            "id": self.id, "type": "message", "role": "assistant", "content": [{"type": "text", "text": text}],
            "model": self.model, "stop_reason": self.stop_reason(), "usage": self.usage(),
        });
        Ok(Json(whole).into_response())
    }

    fn stop_reason(&self) -> &'static str {
        if self.tokens.ended_by_length() {
            "max_tokens"
        } else {
            "end_turn"
        }
    }

    /// The prompt in up to three parts.
    fn usage(&self) -> Value {
        let Counts {
            prompt,
            completion,
            cached,
            created,
        } = self.tokens.counts;
        let version = self.app.settings.version.number;
        if version < TELLS_CACHED {
            return json!({"input_tokens": prompt, "output_tokens": completion});
        }
        let created = if version < TELLS_CREATED { 0 } else { created };
        json!({
            "input_tokens": prompt.saturating_sub(cached + created), "output_tokens": completion,
            "cache_creation_input_tokens": created, "cache_read_input_tokens": cached,
        })
    }
}

/// Nothing is sent before the first token.
fn stream(answer: Answer) -> Response {
    let stream = Stream {
        answer,
        ready: VecDeque::new(),
        begun: false,
        done: false,
    };
    let events = futures_util::stream::try_unfold(stream, |mut stream| async move {
        Ok::<_, ApiError>(stream.next().await?.map(|event| (event, stream)))
    });
    let kind = [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")];
    (kind, Body::from_stream(events)).into_response()
}

struct Stream {
    answer: Answer,
    /// Events to be sent before the next token is waited for.
    ready: VecDeque<Bytes>,
    begun: bool,
    done: bool,
}

impl Stream {
    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        while self.ready.is_empty() && !self.done {
            match self.answer.tokens.next().await? {
                Some(token) => self.token(token),
                None => self.end(),
            }
        }
        Ok(self.ready.pop_front())
    }

    fn token(&mut self, token: u32) {
        if !std::mem::replace(&mut self.begun, true) {
            // Of the cache the first event says nothing yet.
            let usage =
                json!({"input_tokens": self.answer.tokens.counts.prompt, "output_tokens": 0});
            let message = json!({
                "id": self.answer.id, "type": "message", "role": "assistant", "content": [], "model": self.answer.model,
                "stop_reason": null, "stop_sequence": null, "usage": usage,
            });
            self.push(
                "message_start",
                json!({"type": "message_start", "message": message}),
            );
            let block = json!({"type": "text", "text": ""});
            self.push(
                "content_block_start",
                json!({"type": "content_block_start", "content_block": block, "index": 0}),
            );
        }
        let text = self.answer.app.tokenizer.decode(&[token]);
        let delta = json!({"type": "text_delta", "text": text});
        self.push(
            "content_block_delta",
            json!({"type": "content_block_delta", "delta": delta, "index": 0}),
        );
    }

    fn end(&mut self) {
        self.done = true;
        if self.begun {
            self.push(
                "content_block_stop",
                json!({"type": "content_block_stop", "index": 0}),
            );
        }
        let delta = json!({"stop_reason": self.answer.stop_reason(), "stop_sequence": null});
        let usage = self.answer.usage();
        self.push(
            "message_delta",
            json!({"type": "message_delta", "delta": delta, "usage": usage}),
        );
        self.push("message_stop", json!({"type": "message_stop"}));
    }

    fn push(&mut self, name: &str, data: Value) {
        self.ready.push_back(event(name, &data));
    }
}
