//! One request as a client makes it: a streamed chat, timed until its first data.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

/// Longest time for a whole answer.
const DEADLINE: Duration = Duration::from_secs(60);
/// Bytes of an error's text that are shown.
const SHOWN_BYTES: usize = 200;

/// What came of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    /// From sending to the first data: the time to first token.
    pub(super) first_data: Duration,
    /// `usage.prompt_tokens`.
    pub(super) prompt_tokens: u64,
    /// Of these, from the engine's cache.
    pub(super) cached_tokens: u64,
}

/// Why a request counts as failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    /// No answer, or a broken one.
    #[error("the connection failed")]
    Http(#[from] reqwest::Error),
    /// An answer, but not 200.
    #[error("status {status}: {text}")]
    Status {
        /// Which.
        status: u16,
        /// The beginning of its text.
        text: String,
    },
    /// Nobody says who served.
    #[error("the answer has no x-served-by header with an address")]
    NoServer,
    /// Data that is no chunk of a chat.
    #[error("an event of the answer is not a chunk of a chat")]
    BadEvent(#[from] serde_json::Error),
    /// The stream ended too early.
    #[error("the answer ended without {0}")]
    Incomplete(&'static str),
}

#[derive(Deserialize)]
struct Chunk {
    choices: Vec<serde::de::IgnoredAny>,
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: u64,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

/// Sends streamed chats to one address.
#[derive(Clone)]
pub(super) struct Client {
    http: reqwest::Client,
    url: String,
}

impl Client {
    /// One that sends to `gateway`.
    ///
    /// # Errors
    /// When no HTTP client can be set up.
    pub(super) fn new(gateway: SocketAddr) -> reqwest::Result<Self> {
        let http = reqwest::Client::builder().timeout(DEADLINE).build()?;
        let url = format!("http://{gateway}/v1/chat/completions");
        Ok(Self { http, url })
    }

    /// Asks and reads the answer to its end. `served` is told who answers as soon as the gateway says so.
    ///
    /// # Errors
    /// When the answer is not a whole chat with its usage.
    pub(super) async fn ask(
        &self,
        mut body: Value,
        served: impl FnOnce(SocketAddr),
    ) -> Result<Answered, RequestError> {
        if let Some(fields) = body.as_object_mut() {
            fields.insert("stream".to_owned(), json!(true));
            fields.insert(
                "stream_options".to_owned(),
                json!({ "include_usage": true }),
            );
        }
        let sent = Instant::now();
        let answer = self.http.post(&self.url).json(&body).send().await?;
        let status = answer.status().as_u16();
        if status != 200 {
            let text = answer.text().await?;
            let end = text.floor_char_boundary(SHOWN_BYTES);
            return Err(RequestError::Status {
                status,
                text: text.get(..end).unwrap_or_default().to_owned(),
            });
        }
        let server = answer.headers().get("x-served-by");
        let server = server.and_then(|value| value.to_str().ok()?.parse().ok());
        served(server.ok_or(RequestError::NoServer)?);
        read(answer, sent).await
    }
}

async fn read(mut answer: reqwest::Response, sent: Instant) -> Result<Answered, RequestError> {
    let mut unread = BytesMut::new();
    let (mut first_data, mut usage) = (None, None);
    while let Some(bytes) = answer.chunk().await? {
        unread.extend_from_slice(&bytes);
        while let Some(end) = unread.windows(2).position(|two| two == b"\n\n") {
            let event = unread.split_to(end + 2);
            let Some(data) = event.trim_ascii().strip_prefix(b"data: ") else {
                continue;
            };
            if data == b"[DONE]" {
                continue;
            }
            let chunk: Chunk = serde_json::from_slice(data)?;
            if !chunk.choices.is_empty() {
                first_data.get_or_insert_with(|| sent.elapsed());
            }
            usage = chunk.usage.or(usage);
        }
    }
    let usage = usage.ok_or(RequestError::Incomplete("its usage"))?;
    let details = usage.prompt_tokens_details;
    Ok(Answered {
        first_data: first_data.ok_or(RequestError::Incomplete("any token"))?,
        prompt_tokens: usage.prompt_tokens,
        cached_tokens: details
            .and_then(|details| details.cached_tokens)
            .ok_or(RequestError::Incomplete("its number of cached tokens"))?,
    })
}
