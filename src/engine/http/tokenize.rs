//! Which token ids would a prompt have? `/tokenize` for texts and chats, `/detokenize` back.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use serde_json::{Value, json};

use super::App;
use super::body::{DetokenizeBody, TokenizeBody};
use super::error::ApiError;

pub(super) async fn tokenize(
    State(app): State<Arc<App>>,
    raw: Bytes,
) -> Result<Json<Value>, ApiError> {
    let body: TokenizeBody = serde_json::from_slice(&raw)?;
    app.scope(body.model.as_deref(), None)?;
    let tokens = match (&body.prompt, &body.messages) {
        (Some(text), None) => app
            .tokenizer
            .encode(text, body.add_special_tokens.unwrap_or(true)),
        (None, Some(messages)) => app.chat_tokens(&raw, messages)?,
        _ => return Err(ApiError::Shape("either a prompt or messages are needed")),
    };
    let strings = (body.return_token_strs == Some(true)).then(|| {
        tokens
            .iter()
            .map(|&id| app.tokenizer.decode(&[id]))
            .collect::<Vec<_>>()
    });
    Ok(Json(json!({
        "count": tokens.len(),
        "max_model_len": app.settings.core.max_model_len,
        "tokens": tokens,
        "token_strs": strings,
    })))
}

pub(super) async fn detokenize(
    State(app): State<Arc<App>>,
    raw: Bytes,
) -> Result<Json<Value>, ApiError> {
    let body: DetokenizeBody = serde_json::from_slice(&raw)?;
    app.scope(body.model.as_deref(), None)?;
    Ok(Json(json!({"prompt": app.tokenizer.decode(&body.tokens)})))
}
