//! The whole decision behind one door: endpoints join, report and store blocks; requests are prepared and picked.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::block::{Scope, Sequence};
use super::endpoint::{Endpoint, EndpointId, EndpointName, ReportOutcome};
use super::tokens::TokenCount;

/// By what an endpoint is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Least queued + uncached tokens.
    LeastPrefill,
    /// Least queued tokens; the cache is not looked at (its state is still kept and reported).
    LeastQueued,
}

/// Settings of the decision; durations and limits are checked by `config`.
#[derive(Clone, Debug)]
pub struct Settings {
    /// By what an endpoint is chosen.
    pub policy: Policy,
    /// KV usage (0 to 1) above which an endpoint is left out.
    pub kv_usage_limit: f64,
    /// Age of the last report beyond which a busy endpoint is left out.
    pub report_age_limit: Duration,
    /// The same for an idle endpoint: three unanswered rounds of its longer interval.
    pub idle_report_age_limit: Duration,
}

/// Restricts a pick to some endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubsetEntry {
    /// One endpoint.
    Endpoint(SocketAddr),
    /// Every port of an address.
    Address(IpAddr),
}

/// A request ready to be picked for: its length and block keys for each block size in the pool.
#[derive(Clone, Debug, Default)]
pub struct Prepared {
    /// Tokens of all its prompts.
    pub prompt: TokenCount,
}

impl Prepared {
    /// The engine will not look into its cache for this request (`prompt_logprobs`,
    /// echo with logprobs): it costs its full length everywhere.
    #[must_use]
    pub fn bypassing_cache(self) -> Self {
        self
    }
}

/// What a pick may choose from, and when.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    /// `None`: all endpoints. `Some(&[])`: nobody.
    pub subset: Option<&'a [SubsetEntry]>,
    /// How many further choices to name, in order.
    pub alternates: usize,
    /// The time.
    pub now: Instant,
    /// A random number, for chance between equals.
    pub chance: u64,
}

/// Why no endpoint can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nothing is ready.
    #[error("no endpoint of the pool is ready")]
    NothingReady,
    /// The subset is empty, or none of it is ready.
    #[error("no endpoint of the requested subset is ready")]
    EmptySubset,
}

/// Why an endpoint was left out of a pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exclusion {
    /// Not ready.
    NotReady,
    /// Not in the subset.
    Subset,
    /// Its KV pool is nearly full.
    KvUsage,
    /// Its last report is too old.
    ReportAge,
}

/// One endpoint as a pick saw it.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Which.
    pub id: EndpointId,
    /// This request's tokens it has cached (or will have, being prefilled for a sibling).
    pub cached: TokenCount,
    /// Prompt tokens booked there and not yet prefilled.
    pub queued: TokenCount,
    /// Requests of ours in flight there.
    pub in_flight: u32,
    /// queued + uncached.
    pub cost: TokenCount,
    /// Why it was left out, if it was.
    pub excluded: Option<Exclusion>,
}

/// A pick with every number it used, and the booking that goes with it.
#[derive(Debug)]
pub struct Decision {
    /// The endpoint chosen.
    pub id: EndpointId,
    /// Its name.
    pub name: EndpointName,
    /// Its address.
    pub address: SocketAddr,
    /// Further choices, best first.
    pub alternates: Vec<SocketAddr>,
    /// Tokens of the request.
    pub prompt: TokenCount,
    /// Tokens foreseen to be cached at the chosen endpoint.
    pub cached: TokenCount,
    /// Tokens queued there before this request.
    pub queued: TokenCount,
    /// Every guard excluded every ready endpoint, and the least cost was taken all the same.
    pub guards_overruled: bool,
    /// The chosen endpoint was idle before: whoever asks for reports should ask now.
    pub woke: bool,
    /// All endpoints as they were seen.
    pub considered: Vec<Candidate>,
    /// Holds the tokens booked; gives back what is left when dropped.
    pub reservation: Reservation,
}

/// Tokens booked on an endpoint for one request. Dropping it returns whatever is still booked.
#[derive(Debug)]
pub struct Reservation {}

impl Reservation {
    /// The first data of the answer arrived: the prompt is prefilled.
    pub fn prefilled(&mut self, _now: Instant) {}

    /// The gateway says another endpoint served: the booking moves there.
    pub fn served_by(&mut self, _address: SocketAddr, _now: Instant) {}

    /// There will be no response phase: the booking stays until KV events cover it,
    /// or until the prefill time learnt for that endpoint has passed.
    pub fn detach(self, _now: Instant) {}
}

/// An endpoint as pages and gauges show it.
#[derive(Clone, Debug)]
pub struct EndpointView {
    /// Which.
    pub id: EndpointId,
    /// What discovery knows.
    pub endpoint: Endpoint,
    /// It may take requests.
    pub ready: bool,
    /// Prompt tokens booked and not yet prefilled.
    pub queued: TokenCount,
    /// Requests of ours in flight.
    pub in_flight: u32,
    /// The last report, and how old it is.
    pub report: Option<(super::endpoint::Report, Duration)>,
    /// It has no report page: the guards do not apply.
    pub no_report_page: bool,
    /// The guard that leaves it out now, if one does.
    pub excluded: Option<Exclusion>,
    /// State of each event source, by rank.
    pub feeds: Vec<(u32, super::cache::FeedState)>,
    /// Served by the approximate index.
    pub approximate: bool,
    /// Tokens a block, as learnt.
    pub block_size: Option<super::block::BlockSize>,
    /// Blocks known to be cached.
    pub blocks: u64,
    /// Blocks kept aside until their parent comes.
    pub orphans: u64,
    /// Learnt prefill time, microseconds a token.
    pub prefill_us_per_token: Option<f64>,
}

/// The decision's whole state. All methods take `&self`; locks are held for microseconds.
pub struct Router {
    settings: Settings,
}

impl Router {
    /// A router without endpoints.
    pub fn new(settings: Settings) -> Arc<Self> {
        Arc::new(Self { settings })
    }

    /// An endpoint joins, not ready and cold.
    pub fn join(&self, _endpoint: Endpoint) -> EndpointId {
        EndpointId {
            slot: 0,
            generation: 0,
        }
    }

    /// It left: its cache is forgotten, its bookings come to nothing.
    pub fn leave(&self, _id: EndpointId) {}

    /// It may (or may no longer) take requests.
    pub fn set_ready(&self, _id: EndpointId, _ready: bool) {}

    /// What came of asking it for a report.
    pub fn report(&self, _id: EndpointId, _outcome: ReportOutcome, _now: Instant) {}

    /// Something is booked or in flight there, so its report must be young.
    pub fn is_busy(&self, _id: EndpointId) -> bool {
        false
    }

    /// The writer's end for one event source (one rank) of an endpoint.
    pub fn cache_view(&self, _id: EndpointId, _rank: u32) -> super::cache::CacheView {
        super::cache::CacheView {}
    }

    /// Every endpoint with all that a pick uses of it, for pages and gauges.
    pub fn endpoints(&self, _now: Instant) -> Vec<EndpointView> {
        Vec::new()
    }

    /// Hashes a request's prompts into the keys of every block size in the pool.
    pub fn prepare(&self, _sequences: &[Sequence], _scope: &Scope) -> Prepared {
        Prepared::default()
    }

    /// Picks and books in one critical section.
    ///
    /// # Errors
    /// When nothing that may be chosen is ready.
    pub fn pick(
        self: &Arc<Self>,
        _prepared: &Prepared,
        _ask: &Ask<'_>,
    ) -> Result<Decision, Refusal> {
        let _ = self.settings.policy;
        Err(Refusal::NothingReady)
    }
}
