//! The operator's port: metrics, health, state, caches, decisions, log level.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Instant;

use axum::Router as Routes;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{Html, IntoResponse, Json, Response};
use axum::routing::{get, put};
use prometheus::{Encoder, Registry, TextEncoder};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::readiness::Readiness;
use crate::routing::endpoint::EndpointId;
use crate::routing::router::Router;
use crate::telemetry::LogControl;

pub mod access;
mod cache;
mod state;

use access::Access;

/// What the pages show.
pub struct Pages {
    /// What `/metrics` gathers.
    pub registry: Registry,
    /// What `/debug/state` and `/debug/cache` read.
    pub router: Arc<Router>,
    /// What `/readyz` tells.
    pub readiness: Readiness,
    /// What `/log-level` changes.
    pub log: LogControl,
    /// The settings in force.
    pub settings: Value,
    /// What an engine told of itself: models, version.
    pub engine: Box<dyn Fn(EndpointId) -> Value + Send + Sync>,
    /// Whose tokens each model's requests get, and why.
    pub tokens: Box<dyn Fn() -> Value + Send + Sync>,
    /// The last decisions, newest first, at most so many.
    pub decisions: Box<dyn Fn(usize) -> Value + Send + Sync>,
}

/// Serves the pages on `listener` until `stop`: to everybody, or to whom `access` lets. `/livez` and `/readyz` are
/// always open, since a kubelet has no token to show.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    pages: Arc<Pages>,
    access: Option<Arc<Access>>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let mut protected = Routes::new()
        .route("/", get(async || Html(include_str!("admin/page.html"))))
        .route("/metrics", get(metrics))
        .route("/debug/state", get(debug_state))
        .route("/debug/cache/{namespace}/{name}", get(debug_cache))
        .route("/debug/decisions", get(debug_decisions))
        .route("/log-level", put(set_log_level).get(log_level));
    if let Some(access) = access {
        protected = protected.route_layer(from_fn_with_state(access, access::guard));
    }
    let routes = protected
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .with_state(pages);
    axum::serve(listener, routes)
        .with_graceful_shutdown(stop.cancelled_owned())
        .into_future()
        .await
}

async fn readyz(State(pages): State<Arc<Pages>>) -> Response {
    let detail = pages.readiness.detail();
    let status = if detail.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(detail)).into_response()
}

async fn metrics(State(pages): State<Arc<Pages>>) -> Response {
    let encoder = TextEncoder::new();
    let mut page = Vec::new();
    match encoder.encode(&pages.registry.gather(), &mut page) {
        Ok(()) => {
            let content_type = encoder.format_type().to_owned();
            ([(header::CONTENT_TYPE, content_type)], page).into_response()
        }
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("metrics cannot be written: {error}\n"),
        )
            .into_response(),
    }
}

async fn debug_state(State(pages): State<Arc<Pages>>) -> Json<Value> {
    let endpoints: Vec<Value> = pages
        .router
        .endpoints(Instant::now())
        .iter()
        .map(|view| state::endpoint(view, (pages.engine)(view.id)))
        .collect();
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "readiness": pages.readiness.detail(),
        "settings": pages.settings,
        "endpoints": endpoints,
        "models": (pages.tokens)(),
    }))
}

async fn debug_cache(
    State(pages): State<Arc<Pages>>,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    let name = format!("{namespace}/{name}");
    match pages.router.contents(&name, Instant::now()) {
        Some(contents) => Json(cache::page(contents)).into_response(),
        None => (
            StatusCode::NOT_FOUND,
            format!("no endpoint {name}: /debug/state names them\n"),
        )
            .into_response(),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DecisionsQuery {
    n: Option<usize>,
}

async fn debug_decisions(
    State(pages): State<Arc<Pages>>,
    Query(query): Query<DecisionsQuery>,
) -> Json<Value> {
    Json((pages.decisions)(query.n.unwrap_or(20)))
}

async fn log_level(State(pages): State<Arc<Pages>>) -> Response {
    match pages.log.current() {
        Ok(filter) => format!("{filter}\n").into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

async fn set_log_level(State(pages): State<Arc<Pages>>, filter: String) -> Response {
    match pages.log.set(&filter) {
        Ok(()) => {
            info!(filter = filter.trim(), "log level changed");
            StatusCode::NO_CONTENT.into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    }
}
