//! The seam between the wire and the decision: what the wire hands over, and what it gets back.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use crate::routing::router::SubsetEntry;

/// A request's headers, as far as a pick needs them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHead {
    /// `:method`
    pub method: String,
    /// `:path` with its query
    pub path: String,
    /// `content-type`, lower case, without parameters
    pub content_type: Option<String>,
    /// `content-encoding`, lower case
    pub content_encoding: Option<String>,
    /// `x-request-id`, for logs only
    pub request_id: Option<String>,
    /// `authorization`, handed on when an engine is asked to tokenize
    pub authorization: Option<String>,
    /// The subset hint: `None` when absent, `Some(empty)` when present and empty
    pub subset: Option<Vec<SubsetEntry>>,
}

/// What is known of the body when the pick is made.
#[derive(Clone, Debug, Default)]
pub enum RequestBody {
    /// The mode in force does not show it, or there is none: load only.
    #[default]
    Unseen,
    /// The whole body.
    Whole(Bytes),
    /// The beginning of a body that the gateway cut off (BUFFERED_PARTIAL): load only, never an error.
    Partial(Bytes),
}

/// Why a request is answered by us instead of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// 400 with this text.
    Malformed(String),
    /// 503: nothing that may be chosen is ready.
    Unavailable(String),
    /// 429: over our own limits.
    Overloaded(String),
    /// 413: the body is over this many bytes.
    TooLarge(usize),
}

/// Token figures an engine reported in its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// `usage.prompt_tokens`
    pub prompt_tokens: Option<u64>,
    /// `usage.completion_tokens`
    pub completion_tokens: Option<u64>,
    /// `usage.prompt_tokens_details.cached_tokens` (or the API's name for it)
    pub cached_tokens: Option<u64>,
}

/// Where the gateway is to send a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination<'a> {
    /// `ip:port`, or an ordered comma list.
    pub addresses: &'a str,
    /// The data-parallel rank to pin it to.
    pub rank: Option<u32>,
}

/// A pick and what the wire tells it afterwards. Dropped when the stream ends, however it ends.
pub trait Flight: Send + 'static {
    /// Where the gateway should send it: `ip:port`, or an ordered comma list.
    fn destination(&self) -> &str;
    /// The data-parallel rank that the engine there is to compute it on; `None` leaves that to the engine.
    fn rank(&self) -> Option<u32> {
        None
    }
    /// The response headers that arrived are a refusal of the endpoint's, which takes no requests for now; it may say
    /// when to come again. Told before their status.
    fn refused(&mut self, _retry_after: Option<Duration>) {}
    /// Response headers arrived with this status.
    fn response_started(&mut self, status: u16);
    /// The gateway says who served it.
    fn served_by(&mut self, address: SocketAddr);
    /// The first data of the answer arrived: its prefill is done.
    fn first_data(&mut self);
    /// More data of the answer arrived; called for every message with some.
    fn more_data(&mut self) {}
    /// The engine's own figures.
    fn usage(&mut self, usage: Usage);
    /// The answer ended in full.
    fn completed(&mut self);
    /// The stream ended without a response phase ever having been offered.
    fn no_response_phase(self);
}

/// Makes picks. One value serves all streams.
pub trait Pick: Send + Sync + 'static {
    /// What lives as long as the stream.
    type Flight: Flight;

    /// Picks an endpoint and books the request's tokens there.
    fn pick(
        &self,
        head: RequestHead,
        body: RequestBody,
    ) -> impl Future<Output = Result<Self::Flight, Rejection>> + Send;
}
