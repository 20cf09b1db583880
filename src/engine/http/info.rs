//! What does the engine say of itself? Models, version, event sources; and under `/sim` what only a test may ask.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::error::{ApiError, no_such_route};
use super::{App, unix_time};
use crate::engine::block_cache::CachedBlock;
use crate::engine::driver::Command;
use crate::engine::fault::RankFault;
use crate::engine::ranks::Rank;

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

/// By rank, those of this server.
pub(super) async fn kv_event_sources(State(app): State<Arc<App>>) -> Response {
    if app.settings.version.number < EVENT_SOURCES_SINCE {
        return no_such_route().await;
    }
    let Some(events) = &app.settings.events else {
        return Json(json!({})).into_response();
    };
    let source = |rank: &Rank| {
        let (live, replay) = rank.event_addresses.as_ref()?;
        let source = json!({
            "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": live, "replay_endpoint": replay,
            "buffer_steps": events.buffer_steps, "hwm": 100_000, "max_queue_size": events.max_queue_size,
            "topic": events.topic,
        });
        Some((rank.number.to_string(), source))
    };
    let sources: serde_json::Map<_, _> = app.ranks.iter().filter_map(source).collect();
    Json(sources).into_response()
}

/// What is to be reset besides the pool.
#[derive(Deserialize)]
pub(super) struct Reset {
    /// What lies beneath it.
    #[serde(default)]
    reset_external: bool,
}

/// 200 whether or not the caches could be reset (one is not while its requests run), as vLLM answers.
pub(super) async fn reset_prefix_cache(
    State(app): State<Arc<App>>,
    Query(reset): Query<Reset>,
) -> Result<StatusCode, ApiError> {
    for rank in app.ranks.iter() {
        if reset.reset_external {
            ask(rank, Command::ResetLower).await?;
        }
        if !ask(rank, Command::Reset).await? {
            tracing::debug!(rank = rank.number, "the cache is in use and was not reset");
        }
    }
    Ok(StatusCode::OK)
}

/// Whose blocks are asked for; the first rank's without a word.
#[derive(Deserialize)]
pub(super) struct OfRank {
    rank: Option<u32>,
}

pub(super) async fn blocks(
    State(app): State<Arc<App>>,
    Query(of): Query<OfRank>,
) -> Result<Json<Vec<CachedBlock>>, ApiError> {
    let rank = app.rank(of.rank)?;
    Ok(Json(ask(rank, Command::Dump).await?))
}

/// One a line; those of the first rank and of the server do not name one.
pub(super) async fn faults(State(app): State<Arc<App>>) -> String {
    let mut lines = String::new();
    for (at, rank) in app.ranks.iter().enumerate() {
        for fault in rank.faults.active() {
            let rank = (at > 0).then_some(rank.number);
            lines += &format!("{}\n", RankFault { fault, rank });
        }
    }
    lines
}

/// The body is a fault a line, or `none` to end them all.
pub(super) async fn set_faults(State(app): State<Arc<App>>, body: String) -> Response {
    let refusal = |error: &dyn std::error::Error| {
        (StatusCode::BAD_REQUEST, error.to_string()).into_response()
    };
    for line in body.split_whitespace() {
        if line == "none" {
            app.ranks.iter().for_each(|rank| rank.faults.clear());
            *app.stale_page.lock() = None;
            continue;
        }
        let RankFault { fault, rank } = match line.parse() {
            Ok(fault) => fault,
            Err(error) => return refusal(&error),
        };
        match app.rank(rank) {
            Ok(rank) => rank.faults.set(fault),
            Err(error) => return refusal(&error),
        }
    }
    faults(State(app)).await.into_response()
}

impl App {
    /// The rank of a number, or the first.
    fn rank(&self, number: Option<u32>) -> Result<&Rank, ApiError> {
        let Some(number) = number else {
            return Ok(self.ranks.first());
        };
        let rank = self.ranks.numbered(number);
        rank.ok_or(ApiError::NoSuchRank(number))
    }
}

/// Asks a rank's driver something and waits for its answer.
pub(super) async fn ask<T>(
    rank: &Rank,
    command: impl FnOnce(oneshot::Sender<T>) -> Command,
) -> Result<T, ApiError> {
    let (reply, answer) = oneshot::channel();
    rank.commands
        .send(command(reply))
        .await
        .map_err(|_| ApiError::Stopped)?;
    answer.await.map_err(|_| ApiError::Stopped)
}
