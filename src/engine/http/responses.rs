//! What does `/v1/responses` answer? Events or one document, in the shapes of vLLM 0.33.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use super::converted::{Answering, Tokens, Wish, event};
use super::error::ApiError;
use super::{App, unix_time};
use crate::routing::request::Api;

#[derive(Debug, Deserialize)]
struct ResponsesBody {
    model: Option<String>,
    stream: Option<bool>,
    max_output_tokens: Option<usize>,
    cache_salt: Option<String>,
    ignore_eos: Option<bool>,
}

pub(super) async fn responses(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    raw: Bytes,
) -> Result<Response, ApiError> {
    let body: ResponsesBody = serde_json::from_slice(&raw)?;
    let wish = Wish {
        model: body.model.as_deref(),
        salt: body.cache_salt.as_deref(),
        max_tokens: body.max_output_tokens,
        ignore_eos: body.ignore_eos.unwrap_or(false),
    };
    let answering = app
        .answer_converted(Api::Responses, &headers, &raw, wish)
        .await?;
    let Answering { rank, tokens } = answering;
    let answer = Answer {
        id: App::answer_id("resp_", &headers),
        item: format!("msg_{:016x}", fastrand::u64(..)),
        created: unix_time(),
        model: body.model.unwrap_or_else(|| app.settings.model.clone()),
        tokens,
        text: String::new(),
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
    item: String,
    created: u64,
    model: String,
    tokens: Tokens,
    /// What was answered so far.
    text: String,
    app: Arc<App>,
}

impl Answer {
    async fn whole(mut self) -> Result<Response, ApiError> {
        let mut ids = Vec::new();
        while let Some(token) = self.tokens.next().await? {
            ids.push(token);
        }
        self.text = self.app.tokenizer.decode(&ids);
        Ok(Json(self.response(Some(self.status()))).into_response())
    }

    fn status(&self) -> &'static str {
        if self.tokens.ended_by_length() {
            "incomplete"
        } else {
            "completed"
        }
    }

    /// The response as it stands: still under way without a status.
    fn response(&self, status: Option<&str>) -> Value {
        let output = status.map(|status| self.item(status));
        let incomplete =
            (status == Some("incomplete")).then(|| json!({"reason": "max_output_tokens"}));
        json!({
            "id": self.id, "created_at": self.created, "incomplete_details": incomplete, "instructions": null,
            "metadata": null, "model": self.model, "object": "response", "output": output.as_slice(),
            "parallel_tool_calls": true, "temperature": 1.0, "tool_choice": "auto", "tools": [], "top_p": 1.0,
            "background": false, "status": status.unwrap_or("in_progress"),
            "usage": status.map(|_| self.usage()),
        })
    }

    fn usage(&self) -> Value {
        let counts = self.tokens.counts;
        json!({
            "input_tokens": counts.prompt,
            "input_tokens_details": {
                "cached_tokens": counts.cached, "cache_write_tokens": counts.created,
                "input_tokens_per_turn": [counts.prompt], "cached_tokens_per_turn": [counts.cached],
            },
            "output_tokens": counts.completion,
            "output_tokens_details": {
                "reasoning_tokens": 0, "tool_output_tokens": 0, "output_tokens_per_turn": [counts.completion],
                "tool_output_tokens_per_turn": [0],
            },
            "total_tokens": counts.prompt + counts.completion,
        })
    }

    fn item(&self, status: &str) -> Value {
        json!({"id": self.item, "type": "message", "role": "assistant", "status": status, "content": [self.part()]})
    }

    fn part(&self) -> Value {
        json!({"type": "output_text", "text": self.text, "annotations": [], "logprobs": null})
    }
}

/// Two announcements at once, the rest as the tokens come.
fn stream(answer: Answer) -> Response {
    let mut stream = Stream {
        answer,
        ready: VecDeque::new(),
        number: 0,
        begun: false,
        done: false,
    };
    let response = stream.answer.response(None);
    stream.push("response.created", json!({"response": response}));
    stream.push("response.in_progress", json!({"response": response}));
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
    number: usize,
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
            let item = json!({"id": self.answer.item, "type": "message", "role": "assistant", "content": [],
                "status": "in_progress"});
            self.push(
                "response.output_item.added",
                json!({"item": item, "output_index": 0}),
            );
            let part = self.answer.part();
            self.push_of_item("response.content_part.added", "part", part);
        }
        let text = self.answer.app.tokenizer.decode(&[token]);
        self.answer.text.push_str(&text);
        self.push_of_item("response.output_text.delta", "delta", json!(text));
    }

    fn end(&mut self) {
        self.done = true;
        let status = self.answer.status();
        if self.begun {
            let text = json!(self.answer.text);
            self.push_of_item("response.output_text.done", "text", text);
            let part = self.answer.part();
            self.push_of_item("response.content_part.done", "part", part);
            let item = self.answer.item(status);
            self.push(
                "response.output_item.done",
                json!({"item": item, "output_index": 0}),
            );
        }
        let response = self.answer.response(Some(status));
        self.push(&format!("response.{status}"), json!({"response": response}));
    }

    fn push_of_item(&mut self, name: &str, field: &str, value: Value) {
        let data = json!({"content_index": 0, field: value, "item_id": self.answer.item, "output_index": 0});
        self.push(name, data);
    }

    fn push(&mut self, name: &str, mut data: Value) {
        if let Some(fields) = data.as_object_mut() {
            fields.insert("sequence_number".to_owned(), self.number.into());
            fields.insert("type".to_owned(), name.into());
        }
        self.number += 1;
        self.ready.push_back(event(name, &data));
    }
}
