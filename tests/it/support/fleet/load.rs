//! Clients of every kind that keep asking while pickers come and go: what became of each request, and when.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::MODEL;

/// Pause of a client between an answer and its next question: traffic, not a load test.
const PAUSE: Duration = Duration::from_millis(20);
/// Longer than Envoy hands to the picker at once, and than it holds for a retry.
const LARGE_BYTES: usize = 1_000_000;

/// What a client asks for, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A short question with a short answer.
    Small,
    /// The same in a body of a megabyte.
    Large,
    /// A stream of so many tokens.
    Stream(usize),
}

/// One request and what became of it.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) kind: Kind,
    pub(crate) begun: Instant,
    /// What was wrong with the answer, if anything.
    pub(crate) outcome: Result<(), String>,
}

/// Clients at work until they are stopped.
pub(crate) struct Load {
    to: SocketAddr,
    stop: CancellationToken,
    clients: JoinSet<Vec<Done>>,
}

impl Load {
    /// Nobody asks yet.
    pub(crate) fn new(to: SocketAddr) -> Self {
        Self {
            to,
            stop: CancellationToken::new(),
            clients: JoinSet::new(),
        }
    }

    /// So many clients ask for this over and over.
    pub(crate) fn keep_asking(&mut self, clients: usize, kind: Kind) {
        for _ in 0..clients {
            let (to, stop) = (self.to, self.stop.clone());
            self.clients.spawn(async move {
                let client = reqwest::Client::new();
                let mut done = Vec::new();
                while !stop.is_cancelled() {
                    done.push(ask(&client, to, kind).await);
                    stop.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
                }
                done
            });
        }
    }

    /// So many clients ask once.
    pub(crate) fn ask_once(&mut self, clients: usize, kind: Kind) {
        for _ in 0..clients {
            let to = self.to;
            self.clients
                .spawn(async move { vec![ask(&reqwest::Client::new(), to, kind).await] });
        }
    }

    /// Lets every client have its last answer, and returns all.
    pub(crate) async fn stop(self) -> Vec<Done> {
        self.stop.cancel();
        let done = self.clients.join_all().await;
        done.into_iter().flatten().collect()
    }
}

async fn ask(client: &reqwest::Client, to: SocketAddr, kind: Kind) -> Done {
    let begun = Instant::now();
    let asked = exchange(client, to, kind).await;
    Done {
        kind,
        begun,
        outcome: asked.unwrap_or_else(|error| Err(format!("{error:?}"))),
    }
}

async fn exchange(
    client: &reqwest::Client,
    to: SocketAddr,
    kind: Kind,
) -> reqwest::Result<Result<(), String>> {
    let first_id = fastrand::u32(..1000) * 1000;
    let prompt: Vec<u32> = (first_id..first_id + 100).collect();
    let mut body = json!({ "model": MODEL, "prompt": prompt, "max_tokens": 2, "ignore_eos": true });
    match kind {
        Kind::Small => {}
        Kind::Large => body["metadata"] = "x".repeat(LARGE_BYTES).into(),
        Kind::Stream(tokens) => {
            body["stream"] = true.into();
            body["max_tokens"] = tokens.into();
        }
    }
    let request = client
        .post(format!("http://{to}/v1/completions"))
        .json(&body);
    let answer = request.send().await?;
    let status = answer.status();
    let body = answer.bytes().await?;
    if status != 200 {
        return Ok(Err(format!("{status}: {}", String::from_utf8_lossy(&body))));
    }
    Ok(whole(kind, &body))
}

/// An answer is whole if nothing of it is missing, not only if its transfer ended in good order.
fn whole(kind: Kind, body: &Bytes) -> Result<(), String> {
    let text = String::from_utf8_lossy(body);
    let is_whole = match kind {
        Kind::Small | Kind::Large => serde_json::from_slice(body)
            .is_ok_and(|answer: serde_json::Value| answer["usage"]["completion_tokens"] == 2),
        Kind::Stream(tokens) => {
            let events = text.matches("data: ").count();
            events == tokens + 1 && text.ends_with("data: [DONE]\n\n")
        }
    };
    is_whole.then_some(()).ok_or_else(|| format!("cut: {text}"))
}
