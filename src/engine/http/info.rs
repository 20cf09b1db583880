//! What does the engine say of itself? Models, version, event sources; and under `/sim` what only a test may ask.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::error::{ApiError, no_such_route};
use super::{App, unix_time};
use crate::engine::block_cache::CachedBlock;
use crate::engine::driver::Command;
use crate::engine::fault::Fault;

/// The release that brought `/kv_event_sources`.
const EVENT_SOURCES_SINCE: (u32, u32) = (0, 31);

pub(super) async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let settings = &app.settings;
    let root = settings.model_dir.as_ref().map_or_else(
        || settings.model.clone(),
        |directory| directory.display().to_string(),
    );
    let created = unix_time();
    let entry = |id: &str, root: &str, parent: Option<&str>, max_model_len: Option<usize>| {
        json!({
            "id": id, "object": "model", "created": created, "owned_by": "vllm", "root": root, "parent": parent,
            "max_model_len": max_model_len, "permission": [],
        })
    };
    let mut data = vec![entry(
        &settings.model,
        &root,
        None,
        Some(settings.core.max_model_len),
    )];
    data.extend(settings.adapters.iter().map(|adapter| {
        entry(
            adapter,
            &format!("{root}/adapters/{adapter}"),
            Some(&settings.model),
            None,
        )
    }));
    Json(json!({"object": "list", "data": data}))
}

pub(super) async fn version(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"version": app.settings.version.text}))
}

pub(super) async fn health() -> StatusCode {
    StatusCode::OK
}

/// vLLM's counter stays at zero unless it is told to count.
pub(super) async fn load() -> Json<Value> {
    Json(json!({"server_load": 0}))
}

/// By rank; this engine is rank 0 and has no others.
pub(super) async fn kv_event_sources(State(app): State<Arc<App>>) -> Response {
    if app.settings.version.number < EVENT_SOURCES_SINCE {
        return no_such_route().await;
    }
    let (Some(events), Some((live, replay))) = (&app.settings.events, &app.event_addresses) else {
        return Json(json!({})).into_response();
    };
    Json(json!({"0": {
        "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": live, "replay_endpoint": replay,
        "buffer_steps": events.buffer_steps, "hwm": 100_000, "max_queue_size": 100_000, "topic": events.topic,
    }}))
    .into_response()
}

/// 200 whether or not the cache could be reset (it is not while requests run), as vLLM answers.
pub(super) async fn reset_prefix_cache(
    State(app): State<Arc<App>>,
) -> Result<StatusCode, ApiError> {
    if !app.ask(Command::Reset).await? {
        tracing::debug!("the cache is in use and was not reset");
    }
    Ok(StatusCode::OK)
}

pub(super) async fn blocks(
    State(app): State<Arc<App>>,
) -> Result<Json<Vec<CachedBlock>>, ApiError> {
    Ok(Json(app.ask(Command::Dump).await?))
}

pub(super) async fn faults(State(app): State<Arc<App>>) -> String {
    let lines = app
        .faults
        .active()
        .into_iter()
        .map(|fault| format!("{fault}\n"));
    lines.collect()
}

/// The body is a fault a line, or `none` to end them all.
pub(super) async fn set_faults(State(app): State<Arc<App>>, body: String) -> Response {
    for line in body.split_whitespace() {
        if line == "none" {
            app.faults.clear();
            *app.stale_page.lock() = None;
            continue;
        }
        match line.parse::<Fault>() {
            Ok(fault) => app.faults.set(fault),
            Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
        }
    }
    faults(State(app)).await.into_response()
}

impl App {
    /// Asks the driver something and waits for its answer.
    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, ApiError> {
        let (reply, answer) = oneshot::channel();
        self.commands
            .send(command(reply))
            .await
            .map_err(|_| ApiError::Stopped)?;
        answer.await.map_err(|_| ApiError::Stopped)
    }
}
