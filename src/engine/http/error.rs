//! How is a request refused? One place turns what is wrong into vLLM's error JSON.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::engine::model::SubmitError;
use crate::engine::ranks::OutOfRange;
use crate::engine::tokenizer::ChatError;

/// Why a request gets no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    #[error("The model `{0}` does not exist.")]
    NoSuchModel(String),
    #[error("the body is not what this route takes: {0}")]
    Body(#[from] serde_json::Error),
    #[error("{0}")]
    Shape(&'static str),
    #[error("the messages cannot be rendered: {0}")]
    Chat(#[from] ChatError),
    #[error(transparent)]
    Submit(#[from] SubmitError),
    #[error(transparent)]
    Rank(#[from] OutOfRange),
    #[error("no rank {0} here")]
    NoSuchRank(u32),
    #[error("the engine has as many requests as it may have")]
    QueueFull,
    #[error("the engine has stopped")]
    Stopped,
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, kind, param) = match &self {
            Self::NoSuchModel(_) => (StatusCode::NOT_FOUND, "NotFoundError", Some("model")),
            Self::Submit(SubmitError::TooLong { .. }) => (
                StatusCode::BAD_REQUEST,
                "BadRequestError",
                Some("input_tokens"),
            ),
            Self::Body(_)
            | Self::Shape(_)
            | Self::Chat(_)
            | Self::Submit(_)
            | Self::Rank(_)
            | Self::NoSuchRank(_) => (StatusCode::BAD_REQUEST, "BadRequestError", None),
            Self::QueueFull => (
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailableError",
                None,
            ),
            Self::Stopped => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "InternalServerError",
                None,
            ),
        };
        let error = json!({"message": self.to_string(), "type": kind, "param": param, "code": status.as_u16()});
        (status, Json(json!({"error": error}))).into_response()
    }
}

/// As vLLM's web framework says it.
pub(super) async fn no_such_route() -> Response {
    (StatusCode::NOT_FOUND, Json(json!({"detail": "Not Found"}))).into_response()
}
