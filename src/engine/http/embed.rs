//! What does the engine answer to `/v1/embeddings`? Prompts are prefilled like any other; the vectors mean nothing.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::body::EmbedBody;
use super::error::ApiError;
use super::{App, unix_time};
use crate::engine::model::Request;

/// Numbers of a vector.
const DIMENSIONS: u32 = 8;

pub(super) async fn embeddings(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    raw: Bytes,
) -> Result<Response, ApiError> {
    let body: EmbedBody = serde_json::from_slice(&raw)?;
    let scope = app.scope(body.model.as_deref(), body.cache_salt.as_deref())?;
    let prompts = body
        .input
        .token_lists(|text| app.tokenizer.encode(text, true));
    if prompts.is_empty() {
        return Err(ApiError::Shape("at least one input is needed"));
    }
    let prompt_tokens: usize = prompts.iter().map(Vec::len).sum();
    let mut vectors = vec![Value::Null; prompts.len()];
    let request = |prompt| Request {
        prompt,
        scope: scope.clone(),
        max_tokens: Some(1),
        ignore_eos: false,
        reads_cache: true,
        answer: Vec::new(),
    };
    let rank = app.ranks.choose(&headers)?;
    let mut outputs = app
        .submit(rank, prompts.into_iter().map(request).collect())
        .await?;
    for _ in 0..vectors.len() {
        let answered = outputs.recv().await.ok_or(ApiError::Stopped)?;
        if let Some(vector) = vectors.get_mut(answered.choice) {
            *vector = json!(vector_of(answered.output.token.ok_or(ApiError::Stopped)?));
        }
    }
    let entry = |(index, vector): (usize, &Value)| json!({"index": index, "object": "embedding", "embedding": vector});
    let data: Vec<_> = vectors.iter().enumerate().map(entry).collect();
    let mut response = Json(json!({
        "id": App::answer_id("embd-", &headers),
        "object": "list",
        "created": unix_time(),
        "model": body.model.as_deref().unwrap_or(&app.settings.model),
        "data": data,
        "usage": {
            "prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens, "completion_tokens": 0,
            "prompt_tokens_details": null,
        },
    }))
    .into_response();
    app.tell_rank(rank, &mut response);
    Ok(response)
}

/// Equal prompts have equal vectors.
fn vector_of(token: u32) -> Vec<f64> {
    (0..DIMENSIONS)
        .map(|at| f64::from(token.rotate_left(at * 4) & 0xffff) / f64::from(0xffff))
        .collect()
}
