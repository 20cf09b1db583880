//! The last decisions with every number they used, and what came of each: the answer to "why there?".
//!
//! A pick costs one allocation, one move of what the decision holds anyway and one short lock (0.4 µs measured at
//! 100 endpoints on a busy machine); text is made only when somebody asks. The stream that owns a pick fills in the outcome as it learns it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::metrics::picks::{Ended, LoadOnly, Prediction};
use crate::routing::endpoint::{EndpointId, EndpointName};
use crate::routing::request::Api;
use crate::routing::router::{Candidate, Exclusion};
use crate::routing::tokens::TokenCount;
use crate::tokens::TokenSource;

/// Bytes of a client's text (model, request id) that are kept.
const MAX_TEXT_BYTES: usize = 128;

/// How a request was understood, as far as the log and the metrics care.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Understood {
    /// By its prompt.
    Content {
        /// The API it came by.
        api: Api,
        /// The model it names.
        model: Option<Box<str>>,
        /// Who made its tokens.
        source: TokenSource,
        /// Why not in the best way.
        degraded: Option<&'static str>,
        /// How many prompts it has.
        prompts: usize,
        /// The engine will look into its cache for it.
        reads_cache: bool,
    },
    /// Not at all: it is routed on load alone.
    LoadOnly(LoadOnly),
}

impl Understood {
    /// The engine will look into its cache for it, as far as is known.
    pub const fn reads_cache(&self) -> bool {
        match self {
            Self::Content { reads_cache, .. } => *reads_cache,
            Self::LoadOnly(_) => true,
        }
    }
}

/// One pick as it was made.
#[derive(Debug)]
pub struct Picked {
    /// When.
    pub at: SystemTime,
    /// The client's or gateway's id, for finding it in logs.
    pub request_id: Option<Box<str>>,
    /// What was known of the request.
    pub understood: Understood,
    /// The endpoint chosen.
    pub id: EndpointId,
    /// Its name.
    pub name: EndpointName,
    /// Its address.
    pub address: SocketAddr,
    /// The data-parallel rank it was pinned to there.
    pub rank: Option<u32>,
    /// The request's tokens.
    pub prompt: TokenCount,
    /// Of these, foreseen to be cached there.
    pub cached: TokenCount,
    /// Tokens queued there before.
    pub queued: TokenCount,
    /// What a token of work cost.
    pub price: f64,
    /// Every guard was overruled.
    pub guards_overruled: bool,
    /// Every endpoint as it was seen.
    pub considered: Vec<Candidate>,
    /// From the request's last byte to the pick.
    pub took: Duration,
}

/// What came of it, as far as is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The response's status.
    pub status: Option<u16>,
    /// Who served, if the gateway says it was another.
    pub served_by: Option<SocketAddr>,
    /// From the pick to the first data.
    pub first_data: Option<Duration>,
    /// `usage.prompt_tokens`.
    pub reported_prompt: Option<u64>,
    /// The cached ones of these.
    pub reported_cached: Option<u64>,
    /// How that compares with what was foreseen; `None` while it runs, and where the answer did not end well.
    pub prediction: Option<Prediction>,
    /// How it ended; `None` while it runs.
    pub ended: Option<Ended>,
}

/// A pick and its outcome.
#[derive(Debug)]
pub struct Record {
    /// The pick.
    pub picked: Picked,
    /// Written by the one stream that owns the pick, read by pages; held for a copy.
    outcome: Mutex<Outcome>,
}

impl Record {
    /// Notes something of the outcome.
    pub fn note(&self, note: impl FnOnce(&mut Outcome)) {
        note(&mut self.outcome.lock());
    }

    /// What is known by now.
    pub fn outcome(&self) -> Outcome {
        *self.outcome.lock()
    }
}

/// The last decisions, oldest first.
#[derive(Debug)]
pub struct Decisions {
    capacity: usize,
    /// Written at each pick, read by pages; held for one push or a copy of the pointers.
    records: Mutex<VecDeque<Arc<Record>>>,
}

impl Decisions {
    /// Keeps the last `capacity`; none for zero.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            records: Mutex::new(VecDeque::with_capacity(capacity)),
        }
    }

    /// Keeps one more.
    pub fn push(&self, picked: Picked) -> Arc<Record> {
        let record = Arc::new(Record {
            picked,
            outcome: Mutex::default(),
        });
        let mut records = self.records.lock();
        // Freed after the lock is: the candidates of a large pool take a while.
        let oldest = (records.len() >= self.capacity)
            .then(|| records.pop_front())
            .flatten();
        if self.capacity > 0 {
            records.push_back(Arc::clone(&record));
        }
        drop(records);
        drop(oldest);
        record
    }

    /// The last ones, newest first, at most `limit`.
    pub fn latest(&self, limit: usize) -> Vec<Arc<Record>> {
        let records = self.records.lock();
        records.iter().rev().take(limit).cloned().collect()
    }

    /// The same as JSON. `name` tells the name of an endpoint that is still there.
    pub fn to_json(
        &self,
        limit: usize,
        name: impl Fn(EndpointId) -> Option<EndpointName>,
    ) -> Value {
        self.latest(limit)
            .iter()
            .map(|record| record_json(record, &name))
            .collect()
    }
}

/// A client's text, cut to what is worth keeping.
pub fn shortened(text: &str) -> Box<str> {
    text.get(..text.floor_char_boundary(MAX_TEXT_BYTES))
        .unwrap_or_default()
        .into()
}

fn record_json(record: &Record, name: &impl Fn(EndpointId) -> Option<EndpointName>) -> Value {
    let picked = &record.picked;
    let candidate_json = |candidate: &Candidate| {
        let named = if candidate.id == picked.id {
            Some(picked.name.clone())
        } else {
            name(candidate.id)
        };
        json!({
            "endpoint": named.map_or_else(
                || format!("left ({}.{})", candidate.id.slot, candidate.id.generation),
                |name| name.to_string(),
            ),
            "cached_tokens": candidate.cached.get(),
            "cached_below_tokens": candidate.cached_below.get(),
            "queued_tokens": candidate.queued.get(),
            "in_flight": candidate.in_flight,
            "cost_tokens": candidate.cost.get(),
            "excluded": candidate.excluded.map(Exclusion::as_str),
        })
    };
    let chosen = picked.considered.iter().find(|seen| seen.id == picked.id);
    json!({
        "time": jiff::Timestamp::try_from(picked.at).ok().map(|time| time.to_string()),
        "request_id": picked.request_id,
        "request": understood_json(&picked.understood),
        "endpoint": picked.name.as_str(),
        "address": picked.address.to_string(),
        "rank": picked.rank,
        "prompt_tokens": picked.prompt.get(),
        "cached_tokens": picked.cached.get(),
        "cached_below_tokens": chosen.map(|chosen| chosen.cached_below.get()),
        "queued_tokens": picked.queued.get(),
        "price": picked.price,
        "guards_overruled": picked.guards_overruled,
        "pick_us": micros(picked.took),
        "outcome": outcome_json(&record.outcome()),
        "candidates": picked.considered.iter().map(candidate_json).collect::<Value>(),
    })
}

fn understood_json(understood: &Understood) -> Value {
    match understood {
        Understood::Content {
            api,
            model,
            source,
            degraded,
            prompts,
            reads_cache,
        } => json!({
            "api": api_str(*api),
            "model": model,
            "token_source": source.as_str(),
            "degraded": degraded,
            "prompts": prompts,
            "reads_cache": reads_cache,
        }),
        Understood::LoadOnly(reason) => json!({ "load_only": reason.as_str() }),
    }
}

fn outcome_json(outcome: &Outcome) -> Value {
    json!({
        "status": outcome.status,
        "served_by": outcome.served_by.map(|address| address.to_string()),
        "first_data_ms": outcome.first_data.map(|after| micros(after) / 1_000),
        "prompt_tokens": outcome.reported_prompt,
        "cached_tokens": outcome.reported_cached,
        "prediction": outcome.prediction.map(Prediction::as_str),
        "ended": outcome.ended.map(Ended::as_str),
    })
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

const fn api_str(api: Api) -> &'static str {
    match api {
        Api::Chat => "chat",
        Api::Completions => "completions",
        Api::Embeddings => "embeddings",
        Api::Responses => "responses",
        Api::Messages => "messages",
    }
}

#[cfg(test)]
mod tests;
