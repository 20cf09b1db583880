//! What is each engine: which models it serves, its version, where it publishes KV events.
//!
//! Asked when an endpoint joins (until everything is answered), when it answers again after
//! a silence, and every minute: engines load adapters and restart with other settings.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tracing::debug;

use super::client::{Answer, Ask};
use super::kv_events::Source;
use crate::routing::endpoint::EndpointName;
use crate::tokens::ServedModel;
use sources::{read_server_info, read_sources};

mod sources;

const DEADLINE: Duration = Duration::from_secs(2);
const INTERVAL: Duration = Duration::from_secs(60);
/// However often it is said to be back: each rank of it says so, and each gap in its events.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// An engine takes half a minute to start: growing pauses up to this cost it nothing and lose little.
const MAX_BACKOFF: Duration = Duration::from_secs(5);
const MIN_BACKOFF: Duration = Duration::from_millis(250);
/// An engine that tells its models and fails so often in a row to tell where its events are will not tell (some 17 s).
const FAILURES_OF_UNTOLD: u32 = 8;

/// What an engine told of itself. Parts that it would not tell are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Its models and adapters.
    pub models: Vec<ServedModel>,
    /// Major and minor version.
    pub version: Option<(u32, u32)>,
    /// Where its events are; `None` until it answered.
    pub events: Option<Events>,
}

/// Where an engine's KV events are to be found, by rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Events {
    /// It told, for each rank, or why that rank cannot be followed.
    Told(BTreeMap<u32, Result<Source, String>>),
    /// It told that it publishes none.
    Off,
    /// It does not know the question: the usual ports are tried.
    Untold,
}

/// Asks one engine, for as long as it is polled.
pub struct ProbeLoop<A> {
    /// Its name, for logs.
    pub name: EndpointName,
    /// Its address, which stands for wildcards in what it tells.
    pub address: SocketAddr,
    /// The engine.
    pub engine: A,
    /// Rung when it answers after a silence.
    pub came_back: Arc<Notify>,
    /// Where its profile goes.
    pub profile: watch::Sender<Profile>,
}

impl<A: Ask> ProbeLoop<A> {
    /// Asks without end; drop it to stop. `unheard` is called after each round that left a question unanswered.
    pub async fn run(self, unheard: impl Fn()) {
        let mut backoff = MIN_BACKOFF;
        let mut failures = 0;
        loop {
            let asked = Instant::now();
            let complete = self.ask_once(&mut failures).await;
            let pause = if complete {
                backoff = MIN_BACKOFF;
                INTERVAL
            } else {
                unheard();
                let pause = backoff;
                backoff = (backoff * 2).min(MAX_BACKOFF);
                pause
            };
            let next = Instant::now() + pause.mul_f64(0.9 + 0.2 * fastrand::f64());
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                () = self.came_back.notified() => {
                    tokio::time::sleep_until(next.min(asked + MIN_INTERVAL)).await;
                }
            }
        }
    }

    /// Whether each question was answered. What was answered is published all the same. `failures` counts the rounds in
    /// a row that left open only where its events are.
    async fn ask_once(&self, failures: &mut u32) -> bool {
        let models = self.question("/v1/models", read_models).await;
        let version = self.question("/version", read_version).await;
        let sources = self.sources().await;
        let complete = [models.is_silent(), version.is_silent(), sources.is_silent()]
            .iter()
            .all(|silent| !silent);
        *failures = match sources.is_silent() && !models.is_silent() {
            true => failures.saturating_add(1),
            false => 0,
        };
        let is_known = self.profile.borrow().events.is_some();
        let events = match sources {
            Heard::Told(events) => Some(events),
            Heard::NotTold => Some(Events::Untold),
            Heard::Silence if *failures >= FAILURES_OF_UNTOLD && !is_known => Some(Events::Untold),
            Heard::Silence => None,
        };
        self.profile.send_if_modified(|profile| {
            let mut next = profile.clone();
            if let Heard::Told(models) = models {
                next.models = models;
            }
            if let Heard::Told(version) = version {
                next.version = version;
            }
            if let Some(events) = events {
                next.events = Some(events);
            }
            let differs = *profile != next;
            *profile = next;
            differs
        });
        complete
    }

    /// Where its events are: vLLM has a question for that. SGLang tells it among many other things,
    /// so its is asked only where the first one is unknown.
    async fn sources(&self) -> Heard<Events> {
        let engine = self.address.ip();
        let vllm = self.question("/kv_event_sources", |body| read_sources(body, engine));
        match vllm.await {
            Heard::NotTold => {
                let sglang = self.question("/server_info", |body| read_server_info(body, engine));
                sglang.await
            }
            heard => heard,
        }
    }

    async fn question<T>(&self, path: &str, read: impl Fn(&[u8]) -> Option<T>) -> Heard<T> {
        let endpoint = &self.name;
        let status = match self.engine.get(path, DEADLINE).await {
            Ok(Answer { status: 200, body }) => match read(&body) {
                Some(told) => return Heard::Told(told),
                None => 200,
            },
            Ok(Answer { status, .. }) => status,
            Err(error) => {
                debug!(%endpoint, %error, "engine was not heard");
                return Heard::Silence;
            }
        };
        debug!(%endpoint, path, status, "engine does not tell");
        // An engine that starts or is overloaded answers later; another answer is its last word.
        match status {
            429 | 500.. => Heard::Silence,
            _ => Heard::NotTold,
        }
    }
}

enum Heard<T> {
    /// The answer.
    Told(T),
    /// It answered, but not this question.
    NotTold,
    /// No answer yet: ask again soon.
    Silence,
}

impl<T> Heard<T> {
    const fn is_silent(&self) -> bool {
        matches!(self, Self::Silence)
    }
}

/// Reads `/v1/models`; entries without an id are left out.
pub(crate) fn read_models(body: &[u8]) -> Option<Vec<ServedModel>> {
    #[derive(Deserialize)]
    struct Models {
        data: Vec<Model>,
    }
    #[derive(Deserialize)]
    struct Model {
        id: Option<String>,
        root: Option<String>,
        parent: Option<String>,
        max_model_len: Option<u32>,
    }
    let models: Models = serde_json::from_slice(body).ok()?;
    let served = |model: Model| {
        Some(ServedModel {
            id: model.id?,
            root: model.root,
            parent: model.parent,
            max_model_len: model.max_model_len,
        })
    };
    Some(models.data.into_iter().filter_map(served).collect())
}

/// Reads `/version`; the inner `None` is a version we cannot read, such as `dev`.
fn read_version(body: &[u8]) -> Option<Option<(u32, u32)>> {
    #[derive(Deserialize)]
    struct Version {
        version: String,
    }
    let told: Version = serde_json::from_slice(body).ok()?;
    // What a build from a clone without tags calls itself, of whatever age it is.
    if told.version.starts_with("0.1.dev") {
        return Some(None);
    }
    let mut numbers = told
        .version
        .trim_start_matches('v')
        .split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse().ok();
    Some(number().zip(number()))
}

#[cfg(test)]
mod tests;
