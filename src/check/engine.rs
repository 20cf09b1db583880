//! Asks one engine over HTTP.

use std::net::SocketAddr;
use std::time::Duration;

use reqwest::RequestBuilder;
use serde_json::Value;

use super::Context;

/// Why there is no answer to work with, in words for the user.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unanswered {
    /// Nothing came.
    #[error("{path}: {cause}")]
    Silent { path: &'static str, cause: String },
    /// An answer that is no success.
    #[error("{path} answers {status}{}", shortened(.text))]
    Status {
        path: &'static str,
        status: u16,
        text: String,
    },
}

impl Unanswered {
    pub(super) const fn status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } => Some(*status),
            Self::Silent { .. } => None,
        }
    }
}

fn shortened(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() {
        return String::new();
    }
    let start: String = text.chars().take(200).collect();
    let more = if start.len() < text.len() { "…" } else { "" };
    format!(": {start}{more}")
}

/// One engine.
pub(super) struct Engine {
    http: reqwest::Client,
    address: SocketAddr,
    api_key: Option<String>,
    timeout: Duration,
}

impl Engine {
    pub(super) fn new(context: &Context, address: SocketAddr) -> Self {
        Self {
            http: context.http.clone(),
            address,
            api_key: context.api_key.clone(),
            timeout: context.timeout,
        }
    }

    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Longest wait for an answer.
    pub(super) const fn patience(&self) -> Duration {
        self.timeout
    }

    /// The text at `path`.
    pub(super) async fn get(&self, path: &'static str) -> Result<String, Unanswered> {
        let url = format!("http://{}{path}", self.address);
        self.text(path, self.http.get(url)).await
    }

    /// The answer to a JSON body, pinned to a rank where that is asked for.
    pub(super) async fn post(
        &self,
        path: &'static str,
        body: &Value,
        rank: Option<u32>,
    ) -> Result<String, Unanswered> {
        let url = format!("http://{}{path}", self.address);
        let mut call = self.http.post(url).json(body);
        if let Some(rank) = rank {
            call = call.header("x-data-parallel-rank", rank);
        }
        self.text(path, call).await
    }

    async fn text(
        &self,
        path: &'static str,
        mut call: RequestBuilder,
    ) -> Result<String, Unanswered> {
        if let Some(key) = &self.api_key {
            call = call.bearer_auth(key);
        }
        let silent = |error: reqwest::Error| {
            let late = format!("no answer within {} s", self.timeout.as_secs_f64());
            let cause = match error.is_timeout() {
                true => late,
                false => innermost(&error),
            };
            Unanswered::Silent { path, cause }
        };
        let answer = call.timeout(self.timeout).send().await.map_err(silent)?;
        let status = answer.status();
        let text = answer.text().await.map_err(silent)?;
        if status.is_success() {
            return Ok(text);
        }
        Err(Unanswered::Status {
            path,
            status: status.as_u16(),
            text,
        })
    }
}

/// The error at the bottom says what happened; those above repeat the URL.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
