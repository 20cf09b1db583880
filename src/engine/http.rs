//! What does the engine answer over HTTP? vLLM's routes, and a few under `/sim` for tests.

mod answer;
mod body;
mod converted;
mod embed;
mod error;
mod generate;
mod info;
mod messages;
mod metrics;
mod render;
mod responses;
mod shape;
mod sleep;
mod tokenize;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::HeaderValue;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use parking_lot::Mutex;

use super::args::Settings;
use super::fault::{Fault, Faults};
use super::observed::Observed;
use super::ranks::Ranks;
use super::tokenizer::Tokenizer;

/// What every route sees.
pub(super) struct App {
    pub(super) settings: Settings,
    pub(super) name: HeaderValue,
    pub(super) tokenizer: Tokenizer,
    pub(super) ranks: Ranks,
    /// What each rank had to show when the metrics page was told to go stale.
    pub(super) stale_page: Mutex<Option<Vec<Observed>>>,
}

impl App {
    /// The faults of the server, which are in the first rank's set.
    fn faults(&self) -> &Faults {
        &self.ranks.first().faults
    }
}

/// All routes.
pub(super) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(generate::chat))
        .route("/v1/completions", post(generate::completions))
        .route("/v1/embeddings", post(embed::embeddings))
        .route("/v1/messages", post(messages::messages))
        .route("/v1/responses", post(responses::responses))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/v1/models", get(info::models))
        .route("/version", get(info::version))
        .route("/health", get(info::health))
        .route("/load", get(info::load))
        .route("/kv_event_sources", get(info::kv_event_sources))
        .route("/reset_prefix_cache", post(info::reset_prefix_cache))
        .route("/sleep", post(sleep::sleep))
        .route("/wake_up", post(sleep::wake_up))
        .route("/is_sleeping", get(sleep::is_sleeping))
        .route("/metrics", get(metrics::whole))
        .route("/metrics/", get(metrics::filtered))
        .route("/sim/blocks", get(info::blocks))
        .route("/sim/fault", get(info::faults).post(info::set_faults))
        .fallback(error::no_such_route)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), around))
        // Prompts of a million tokens are bodies of several megabytes.
        .layer(DefaultBodyLimit::disable())
        .with_state(app)
}

/// Says who answered, and hangs if told to.
async fn around(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if app.faults().has(Fault::HangHttp) && !request.uri().path().starts_with("/sim/") {
        std::future::pending::<()>().await;
    }
    let mut response = next.run(request).await;
    response
        .headers_mut()
        .insert("x-warmpath-engine", app.name.clone());
    response
}

/// Seconds since the epoch, for `created` fields.
fn unix_time() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
