//! The whole decision behind one door: endpoints join, report and store blocks; requests are prepared and picked.
//!
//! Two locks: the index's (lookups share it) and the ledger's (picks, events, reports
//! and ends of requests take turns). Neither is ever taken while the other is held. A
//! pick looks its prompts up first; the overlay of blocks in flight, the choice and the
//! booking are then one critical section of the ledger.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::approximate::Recent;
use super::block::{BlockKey, BlockSize, Scope, Sequence};
use super::cache::CacheView;
use super::cost::Tiers;
use super::endpoint::{Endpoint, EndpointId, EndpointName, Ours, ReportOutcome};
use super::index::PrefixIndex;
use super::ledger::credit::Credits;
use super::ledger::{FeedId, Ledger, Prefill, Sent, Wanted};
use super::tokens::TokenCount;

pub use super::ledger::{DoubtCause, FirstBlockStored, TrustChange};
pub use compared::{Agreement, Compared};
pub use contents::Contents;
pub use reservation::{FirstBlock, Reservation};

use prompts::Prompts;

mod compared;
mod contents;
pub(super) mod prompts;
mod reservation;
#[cfg(test)]
mod tests;

/// By what an endpoint is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Least queued + uncached tokens, the latter at their price.
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
    /// What cached blocks on slower tiers cost.
    pub tiers: Tiers,
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
    prompts: Arc<Prompts>,
    prefill: Prefill,
}

impl Prepared {
    /// A request of one prompt whose block keys are known already: those of [`super::block::prompt_keys`], in a pool
    /// whose blocks have this size.
    pub fn of_keys(keys: Arc<[BlockKey]>, prompt: TokenCount, size: BlockSize) -> Self {
        Self {
            prompt,
            prompts: Arc::new(Prompts::of_keys(keys, prompt, size)),
            prefill: Prefill::Uncached,
        }
    }

    /// The engine will not look into its cache for this request (`prompt_logprobs`,
    /// echo with logprobs): it costs its full length everywhere.
    #[must_use]
    pub fn bypassing_cache(mut self) -> Self {
        self.prefill = Prefill::Whole;
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
    /// Nobody listened at its address when it was last asked.
    Unreachable,
    /// It sleeps: it cannot answer.
    Asleep,
    /// It has just refused a request.
    Refusing,
    /// It was given work, and nothing has come of it for too long.
    Stalled,
}

/// One endpoint as a pick saw it.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Which.
    pub id: EndpointId,
    /// This request's tokens it has cached (or will have, being prefilled for a sibling).
    pub cached: TokenCount,
    /// Of these, what comes from a slower tier (the host's memory, storage).
    pub cached_below: TokenCount,
    /// Prompt tokens booked there and not yet prefilled.
    pub queued: TokenCount,
    /// Requests of ours in flight there.
    pub in_flight: u32,
    /// queued + price · (uncached + what bringing the part on a slower tier costs).
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
    /// The data-parallel rank to pin the request to, where one server stands before several.
    pub rank: Option<u32>,
    /// Further choices, best first. Each address is named once, and with a rank only addresses
    /// that have the same one.
    pub alternates: Vec<SocketAddr>,
    /// Tokens of the request.
    pub prompt: TokenCount,
    /// Tokens foreseen to be cached at the chosen endpoint.
    pub cached: TokenCount,
    /// Of these, what comes from a slower tier (the host's memory, storage).
    pub cached_below: TokenCount,
    /// Tokens queued there before this request.
    pub queued: TokenCount,
    /// What a token of work cost, in tokens: 1 while some endpoint is free (`routing::price`).
    pub price: f64,
    /// Every guard excluded every ready endpoint, and the least cost was taken all the same.
    pub guards_overruled: bool,
    /// The chosen endpoint was idle before: whoever asks for reports should ask now.
    pub woke: bool,
    /// Whether what is asked of the chosen endpoint still fits there, if that has changed and the
    /// approximate index serves it; for the log.
    pub overflow: Option<bool>,
    /// All endpoints as they were seen.
    pub considered: Vec<Candidate>,
    /// Holds the tokens booked; gives back what is left when dropped.
    pub reservation: Reservation,
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
    /// Why its events are not believed, though there are such.
    pub doubt: Option<String>,
    /// The approximate index serves it, and what is asked for again and again does not fit into
    /// its pool: that index then foresees wrongly.
    pub approximate_overflow: bool,
    /// Blocks credited to it of which no event told.
    pub credited_blocks: u64,
    /// Tokens a block, as learnt.
    pub block_size: Option<BlockSize>,
    /// Blocks known to be cached.
    pub blocks: u64,
    /// Blocks kept aside until their parent comes.
    pub orphans: u64,
    /// Learnt prefill time, microseconds a token.
    pub prefill_us_per_token: Option<f64>,
}

/// What the router, its views and its reservations share.
pub(super) struct State {
    pub(super) settings: Settings,
    /// What events say.
    pub(super) index: PrefixIndex,
    /// What was sent where.
    pub(super) approximate: PrefixIndex,
    /// All that a pick reads and writes besides; held for microseconds.
    pub(super) ledger: Mutex<Ledger>,
}

impl State {
    fn look_up(&self, prepared: &Prepared) -> prompts::Found {
        match prepared.prefill {
            Prefill::Uncached => prepared.prompts.look_up(&self.index, &self.approximate),
            Prefill::Whole => prompts::Found::default(),
        }
    }

    /// Notes in the approximate index that a request was sent to an endpoint.
    fn note_sent(&self, prepared: &Prepared, sent: &Sent, now: Instant) {
        for chain in prepared.prompts.of_size(sent.block_size) {
            if chain.text || sent.approximate {
                let (keys, tokens) = (&chain.keys, chain.tokens_a_block);
                sent.recent
                    .touch(&self.approximate, keys, tokens, sent.capacity, now);
            }
        }
    }
}

impl Prepared {
    fn wanted<'a>(&'a self, found: &'a prompts::Found) -> Wanted<'a> {
        Wanted {
            prompts: &self.prompts,
            found,
            prompt: self.prompt,
            prefill: self.prefill,
        }
    }
}

/// The decision's whole state. All methods take `&self`; locks are held for microseconds.
pub struct Router {
    state: Arc<State>,
}

impl Router {
    /// A router without endpoints.
    pub fn new(settings: Settings) -> Arc<Self> {
        let state = State {
            settings,
            index: PrefixIndex::new(),
            approximate: PrefixIndex::new(),
            ledger: Mutex::new(Ledger::new()),
        };
        Arc::new(Self {
            state: Arc::new(state),
        })
    }

    /// An endpoint joins, not ready and cold.
    pub fn join(&self, endpoint: Endpoint) -> EndpointId {
        let recent = Arc::new(Recent::new(self.state.approximate.open()));
        self.state.ledger.lock().join(endpoint, recent)
    }

    /// It left: its cache is forgotten, its bookings come to nothing.
    pub fn leave(&self, id: EndpointId) {
        self.leave_all(&[id]);
    }

    /// They left. Nobody is sent to them from the first moment on; that their caches are
    /// forgotten takes a sweep over both indexes, one for all of them.
    pub fn leave_all(&self, ids: &[EndpointId]) {
        let mut exact = Vec::new();
        let mut approximate = Vec::new();
        for &id in ids {
            let left = self.state.ledger.lock().leave(id);
            if let Some((feeds, recent)) = left {
                exact.extend(feeds);
                approximate.push(recent);
            }
        }
        self.state.index.close_all(&exact);
        self.state.approximate.close_all(&approximate);
    }

    /// It may (or may no longer) take requests.
    pub fn set_ready(&self, id: EndpointId, ready: bool) {
        self.state.ledger.lock().set_ready(id, ready);
    }

    /// Discovery gives it other labels. Its life goes on.
    pub fn set_labels(&self, id: EndpointId, labels: BTreeMap<String, String>) {
        self.state.ledger.lock().set_labels(id, labels);
    }

    /// The engine's process has been another one since `since`. What was sent there before is no
    /// longer taken to be cached (KV events tell for themselves), bookings of before of whose
    /// end nobody will tell are over, and a report of before says nothing any more. What came
    /// after `since` stays.
    pub fn restarted(&self, id: EndpointId, since: Instant, now: Instant) {
        let noted = self.state.ledger.lock().restarted(id, since, now);
        let Some((recent, credits)) = noted else {
            return;
        };
        recent.forget_before(&self.state.approximate, since);
        for credits in credits {
            credits.forget_before(&self.state.index, since);
        }
    }

    /// What came of asking it for a report.
    pub fn report(&self, id: EndpointId, outcome: ReportOutcome, now: Instant) {
        self.state.ledger.lock().report(id, outcome, now);
    }

    /// Something is booked, in flight or, as it last reported, running there, so its
    /// report must be young.
    pub fn is_busy(&self, id: EndpointId) -> bool {
        self.state.ledger.lock().is_busy(id)
    }

    /// What this picker has there; of one that left, nothing that can be called idle.
    pub fn ours(&self, id: EndpointId) -> Ours {
        self.state.ledger.lock().ours(id)
    }

    /// The writer's end for one event source (one rank) of an endpoint. A second view
    /// for the same rank starts cold and puts an end to the first one.
    pub fn cache_view(&self, id: EndpointId, rank: u32) -> CacheView {
        let feed = FeedId {
            endpoint: id,
            rank,
            source: self.state.index.open(),
        };
        let credits = Arc::new(Credits::new(feed.source));
        let replaced = self.state.ledger.lock().attach(feed, Arc::clone(&credits));
        if let Some(source) = replaced {
            self.state.index.close(source);
        }
        CacheView::new(Arc::clone(&self.state), feed, credits)
    }

    /// The blocks that an endpoint is credited with, of which no event told; in no order.
    pub fn credited(&self, id: EndpointId) -> Vec<BlockKey> {
        let credits = self.state.ledger.lock().credits(id);
        credits.iter().flat_map(|credits| credits.keys()).collect()
    }

    /// An endpoint has no such rank any more: its view's blocks and its state are forgotten.
    pub fn end_feed(&self, id: EndpointId, rank: u32) {
        let ended = self.state.ledger.lock().detach_feed(id, rank);
        if let Some(source) = ended {
            self.state.index.close(source);
        }
    }

    /// Every endpoint with all that a pick uses of it, for pages and gauges.
    pub fn endpoints(&self, now: Instant) -> Vec<EndpointView> {
        let seen = self.state.ledger.lock().views(&self.state.settings, now);
        // The index is asked with the ledger's lock given back.
        seen.into_iter()
            .map(|(mut view, sources)| {
                view.blocks = sources
                    .iter()
                    .map(|&source| self.state.index.blocks(source))
                    .sum();
                view
            })
            .collect()
    }

    /// Hashes a request's prompts into the keys of every block size in the pool.
    pub fn prepare(&self, sequences: &[Sequence], scope: &Scope) -> Prepared {
        let sizes = self.state.ledger.lock().block_sizes();
        let prompt = sequences
            .iter()
            .map(|sequence| match sequence {
                Sequence::Tokens(ids) => TokenCount::of(ids),
                Sequence::Estimate { tokens, .. } => *tokens,
            })
            .sum();
        Prepared {
            prompt,
            prompts: Arc::new(Prompts::new(sequences, scope, &sizes)),
            prefill: Prefill::Uncached,
        }
    }

    /// Every endpoint as a pick would see it for this request; nothing is booked.
    pub fn survey(&self, prepared: &Prepared, ask: &Ask<'_>) -> Vec<Candidate> {
        let found = self.state.look_up(prepared);
        let wanted = prepared.wanted(&found);
        let mut ledger = self.state.ledger.lock();
        ledger.survey(&self.state.settings, wanted, ask)
    }

    /// Learnt prefill time a token, the middle of the pool's endpoints; `None` while nothing is known.
    pub fn prefill_per_token(&self) -> Option<Duration> {
        let us = self.state.ledger.lock().learnt_prefill_us_per_token()?;
        Duration::try_from_secs_f64(us / 1e6).ok()
    }

    /// Picks and books in one critical section.
    ///
    /// # Errors
    /// When nothing that may be chosen is ready.
    pub fn pick(self: &Arc<Self>, prepared: &Prepared, ask: &Ask<'_>) -> Result<Decision, Refusal> {
        let found = self.state.look_up(prepared);
        let wanted = prepared.wanted(&found);
        let chosen = self
            .state
            .ledger
            .lock()
            .choose(&self.state.settings, wanted, ask)?;
        let state = Arc::clone(&self.state);
        let sent = chosen.sent;
        let overflow = sent
            .approximate
            .then(|| sent.recent.overflow_change())
            .flatten();
        let prepared = prepared.clone();
        let reservation = Reservation::new(state, chosen.booking, prepared, sent, ask.now);
        Ok(Decision {
            id: chosen.id,
            name: chosen.name,
            address: chosen.address,
            rank: chosen.rank,
            alternates: chosen.alternates,
            prompt: reservation.prepared.prompt,
            cached: chosen.cached,
            cached_below: chosen.cached_below,
            queued: chosen.queued,
            price: chosen.price,
            guards_overruled: chosen.guards_overruled,
            woke: chosen.woke,
            overflow,
            considered: chosen.considered,
            reservation,
        })
    }
}
