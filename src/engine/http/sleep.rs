//! How is the engine put to sleep? vLLM's routes of its development mode, which befall every rank.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::App;
use super::error::ApiError;
use super::info::ask;
use crate::engine::driver::Command;

/// How deep. From 1 on the KV cache is gone; 2 discards the weights as well.
#[derive(Deserialize)]
pub(super) struct Depth {
    level: Option<u8>,
}

pub(super) async fn sleep(
    State(app): State<Arc<App>>,
    Query(depth): Query<Depth>,
) -> Result<StatusCode, ApiError> {
    let level = depth.level.unwrap_or(1);
    for rank in app.ranks.iter() {
        ask(rank, |reply| Command::Sleep(level, reply)).await?;
    }
    Ok(StatusCode::OK)
}

pub(super) async fn wake_up(State(app): State<Arc<App>>) -> Result<StatusCode, ApiError> {
    for rank in app.ranks.iter() {
        ask(rank, Command::WakeUp).await?;
    }
    Ok(StatusCode::OK)
}

pub(super) async fn is_sleeping(State(app): State<Arc<App>>) -> Json<Value> {
    let mut ranks = app.ranks.iter();
    Json(json!({"is_sleeping": ranks.any(|rank| rank.observed.lock().asleep.is_some())}))
}
