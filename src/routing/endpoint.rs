//! An endpoint as the decision sees it: who it is and what it last reported.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use super::tokens::TokenCount;

/// One life of one endpoint: a dense slot, and the generation that last took it.
///
/// A slot is used again after its endpoint left; the generation then differs, so a
/// late event, report or reservation of the old life never touches the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId {
    /// Dense, from 0: an index into tables.
    pub slot: u32,
    /// Counts the lives of that slot.
    pub generation: u32,
}

/// `namespace/name`, unique in a pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointName(Arc<str>);

impl EndpointName {
    /// Joins the two parts.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(format!("{namespace}/{name}").into())
    }

    /// The name of one data-parallel rank behind an endpoint of this name, such as `namespace/name@1`.
    /// No name of a pod or of an endpoints file has an `@`, so none can clash with it.
    #[must_use]
    pub fn of_rank(&self, rank: u32) -> Self {
        Self(format!("{self}@{rank}").into())
    }

    /// `namespace/name`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EndpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What discovery knows of an endpoint. Name, address and incarnation make a life; labels may change in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its name in the pool.
    pub name: EndpointName,
    /// Where the gateway sends requests; formats with brackets for IPv6.
    pub address: SocketAddr,
    /// Pod labels, as discovery gave them.
    pub labels: BTreeMap<String, String>,
    /// What distinguishes this life from another at the same address (the pod's UID); empty for a file.
    pub incarnation: String,
    /// The data-parallel rank it stands for, where one server stands before several ranks: the
    /// gateway is then told to pin the request to it. `None`: the server is one engine.
    pub rank: Option<u32>,
}

/// What an engine's metrics page says of its state.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Share of the KV pool in use, 0 to 1; the greatest of its ranks.
    pub kv_usage: f64,
    /// Requests being computed.
    pub running: u64,
    /// Requests waiting for a place.
    pub waiting: u64,
    /// Tokens a block, if the page tells.
    pub block_size: Option<u32>,
    /// Tokens the KV pool of one rank holds, if the page tells.
    pub kv_capacity: Option<TokenCount>,
    /// Requests it has finished since it started, if the page tells.
    pub finished: Option<u64>,
    /// Prompt and output tokens it has computed since it started, if the page tells: it grows while the engine
    /// makes progress.
    pub computed: Option<u64>,
    /// Those of them that were not found in its cache, if the page tells: prompt tokens are counted here when
    /// they are scheduled, output tokens when they are computed.
    pub fresh: Option<u64>,
    /// It sleeps: its KV cache is gone and it takes no requests.
    pub asleep: bool,
}

impl Report {
    /// The engine has requests, whoever sent them.
    pub fn is_busy(&self) -> bool {
        self.running > 0 || self.waiting > 0
    }
}

/// What this picker has on an endpoint, as two looks at it are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ours {
    /// Requests booked there so far.
    pub booked: u64,
    /// None of them is in flight or has tokens booked.
    pub idle: bool,
}

/// How the last attempt to get a report ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReportOutcome {
    /// The page was read.
    Fresh(Report),
    /// The endpoint has no such page at all: the guards do not apply to it.
    NoPage,
    /// Nobody listens at its address.
    Refused,
    /// Asked, and not answered in time or not readable.
    Failed,
}
