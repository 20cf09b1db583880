//! Who is promised how many tokens: bookings, their release, and the lock that makes a pick and its booking one.
//!
//! The ledger is everything a pick reads and writes, behind one `parking_lot::Mutex`
//! (in `router`): readiness, reports, queued tokens, requests and blocks in flight.
//! Picks, events, reports and ends of requests take it, each for microseconds: a pick
//! costs about 25 ns for every block that it books and 10 ns for every endpoint.
//!
//! Invariants, promised by the property tests: an endpoint's queued tokens are the sum
//! of what its bookings have left; they never fall below zero; when all requests have
//! ended nothing is left.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::approximate::Recent;
use super::block::{BlockKey, BlockSize};
use super::cache::FeedState;
use super::cost::Run;
use super::endpoint::{Endpoint, EndpointId, Ours, ReportOutcome};
use super::index::table::BitTable;
use super::index::{Match, SourceId};
use super::price::Busy;
use super::router::prompts::Found;
use super::router::{EndpointView, Settings};
use super::tokens::TokenCount;

use account::{Account, Feed};
use booking::Booking;
use refusals::Refusals;

mod account;
mod booking;
mod choose;
mod compare;
pub(super) mod credit;
mod flights;
mod parity;
mod progress;
mod refusals;
#[cfg(test)]
mod tests;
pub(super) mod trust;

pub(super) use choose::{Sent, Wanted};
pub(super) use compare::{Comparison, Reach, Standing};
use credit::Credits;
pub use parity::FirstBlockStored;
pub(super) use parity::{Root, SHOWN_TOKENS, Watch};
pub use trust::{DoubtCause, TrustChange};

/// Prefill speed while nothing is learnt anywhere: an 8B model on one older card.
const DEFAULT_PREFILL_US_PER_TOKEN: f64 = 71.3;

/// One request's booking. Never used again, so that a late end finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct BookingId(u64);

impl BookingId {
    fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// How much of a prompt the engine computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Prefill {
    /// What is not cached.
    #[default]
    Uncached,
    /// All of it: the request does not look into the cache.
    Whole,
}

/// One event source of an endpoint, in one life of its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FeedId {
    pub(super) endpoint: EndpointId,
    pub(super) rank: u32,
    pub(super) source: SourceId,
}

/// What became of the news that another endpoint served a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// It is the one that was picked.
    AsPicked,
    /// The booking is there now.
    Moved(EndpointId),
    /// No endpoint of the pool has that address: the booking was given back.
    Unknown,
}

/// The endpoint slot behind each column of an index, with the column's generation.
#[derive(Debug, Default)]
struct Columns(Vec<Option<(u32, u32)>>);

impl Columns {
    fn set(&mut self, source: SourceId, slot: u32) {
        let column = source.slot as usize;
        if self.0.len() <= column {
            self.0.resize(column + 1, None);
        }
        if let Some(place) = self.0.get_mut(column) {
            *place = Some((source.generation, slot));
        }
    }

    fn remove(&mut self, source: SourceId) {
        if self.slot(source).is_some()
            && let Some(place) = self.0.get_mut(source.slot as usize)
        {
            *place = None;
        }
    }

    fn slot(&self, source: SourceId) -> Option<u32> {
        let (generation, slot) = (*self.0.get(source.slot as usize)?)?;
        (generation == source.generation).then_some(slot)
    }
}

/// All that a pick reads and writes.
#[derive(Debug)]
pub(super) struct Ledger {
    /// By slot.
    accounts: Vec<Option<Account>>,
    /// The last generation of each slot.
    generations: Vec<u32>,
    exact_columns: Columns,
    approximate_columns: Columns,
    bookings: FxHashMap<BookingId, Booking>,
    next_booking: BookingId,
    /// Joins so far.
    joins: u64,
    /// Detached bookings by when they are over at the latest; some are over before.
    detached: BinaryHeap<Reverse<(Instant, BookingId)>>,
    /// Which endpoints have a block in flight: the overlay that a pick walks.
    flying: BitTable,
    /// How busy the pool has been.
    busy: Busy,
}

impl Ledger {
    pub(super) fn new() -> Self {
        Self {
            accounts: Vec::new(),
            generations: Vec::new(),
            exact_columns: Columns::default(),
            approximate_columns: Columns::default(),
            bookings: FxHashMap::default(),
            next_booking: BookingId(0),
            joins: 0,
            detached: BinaryHeap::new(),
            flying: BitTable::new(),
            busy: Busy::default(),
        }
    }

    pub(super) fn join(&mut self, endpoint: Endpoint, recent: Arc<Recent>) -> EndpointId {
        let slot = self
            .accounts
            .iter()
            .position(Option::is_none)
            .unwrap_or_else(|| {
                self.accounts.push(None);
                self.generations.push(0);
                self.accounts.len() - 1
            });
        let generation = self.generations.get_mut(slot).map_or(0, |generation| {
            *generation = generation.wrapping_add(1);
            *generation
        });
        let id = EndpointId {
            slot: u32::try_from(slot).unwrap_or(u32::MAX),
            generation,
        };
        self.approximate_columns.set(recent.source(), id.slot);
        if let Some(place) = self.accounts.get_mut(slot) {
            *place = Some(Account::new(id, endpoint, recent, self.joins));
            self.joins += 1;
        }
        id
    }

    /// Forgets an endpoint; its columns (exact ones, approximate one) are the caller's to close.
    pub(super) fn leave(&mut self, id: EndpointId) -> Option<(Vec<SourceId>, SourceId)> {
        self.account(id)?;
        let account = self.accounts.get_mut(id.slot as usize)?.take()?;
        for key in account.flights.keys() {
            self.flying.clear(key, id.slot);
        }
        let mut over = Vec::new();
        for (&booking_id, booking) in &mut self.bookings {
            if booking.endpoint() == Some(id) {
                booking.void();
                if booking.is_detached() {
                    over.push(booking_id);
                }
            }
        }
        for booking_id in over {
            self.end(booking_id);
        }
        let exact: Vec<SourceId> = account.feeds.values().map(|feed| feed.source).collect();
        for &source in &exact {
            self.exact_columns.remove(source);
        }
        let approximate = account.recent.source();
        self.approximate_columns.remove(approximate);
        Some((exact, approximate))
    }

    pub(super) fn set_ready(&mut self, id: EndpointId, ready: bool) {
        if let Some(account) = self.account_mut(id) {
            account.ready = ready;
        }
    }

    /// What discovery says of it besides name and address changed.
    pub(super) fn set_labels(&mut self, id: EndpointId, labels: BTreeMap<String, String>) {
        if let Some(account) = self.account_mut(id) {
            account.endpoint.labels = labels;
        }
    }

    /// The engine's process has been another one since `since`: what was noted of the former one
    /// goes, except for requests whose streams will still tell of their end. Gives back where
    /// what was sent and credited to it is noted, for the caller to cut.
    pub(super) fn restarted(
        &mut self,
        id: EndpointId,
        since: Instant,
        now: Instant,
    ) -> Option<(Arc<Recent>, Vec<Arc<Credits>>)> {
        let over: Vec<BookingId> = self
            .bookings
            .iter()
            .filter(|(_, booking)| booking.endpoint() == Some(id))
            .filter(|(_, booking)| booking.is_detached() && booking.was_made_before(since))
            .map(|(&booking_id, _)| booking_id)
            .collect();
        for booking_id in over {
            self.end(booking_id);
        }
        let account = self.account_mut(id)?;
        account.forget_report(since, now);
        account.progress.restarted(now);
        account.refusals = Refusals::default();
        Some((Arc::clone(&account.recent), account.credits()))
    }

    pub(super) fn report(&mut self, id: EndpointId, outcome: ReportOutcome, now: Instant) {
        self.expire(now);
        if let Some(account) = self.account_mut(id) {
            account.note_report(outcome, now);
        }
    }

    pub(super) fn is_busy(&self, id: EndpointId) -> bool {
        self.account(id).is_some_and(Account::is_busy)
    }

    pub(super) fn ours(&self, id: EndpointId) -> Ours {
        self.account(id).map_or_else(Ours::default, |account| Ours {
            booked: account.booked,
            idle: account.is_idle(),
        })
    }

    /// Makes `feed` the column of an endpoint's rank, with its credits. Returns the column to close:
    /// the rank's old one, or the new one itself when the endpoint is gone.
    pub(super) fn attach(&mut self, feed: FeedId, credits: Arc<Credits>) -> Option<SourceId> {
        let Some(account) = self.account_mut(feed.endpoint) else {
            return Some(feed.source);
        };
        let new = Feed {
            source: feed.source,
            state: FeedState::Suspect,
            orphans: 0,
            tier: None,
            credits,
        };
        account.trust.start_over();
        let old = account.feeds.insert(feed.rank, new).map(|old| old.source);
        if let Some(old) = old {
            self.exact_columns.remove(old);
        }
        self.exact_columns.set(feed.source, feed.endpoint.slot);
        old
    }

    /// Takes a rank's feed away; its column is the caller's to close.
    pub(super) fn detach_feed(&mut self, id: EndpointId, rank: u32) -> Option<SourceId> {
        let feed = self.account_mut(id)?.feeds.remove(&rank)?;
        self.exact_columns.remove(feed.source);
        Some(feed.source)
    }

    pub(super) fn set_feed(&mut self, feed: FeedId, state: FeedState) {
        if let Some(feed) = self.feed_mut(feed) {
            feed.state = state;
        }
    }

    pub(super) fn set_orphans(&mut self, feed: FeedId, blocks: u64) {
        if let Some(feed) = self.feed_mut(feed) {
            feed.orphans = blocks;
        }
    }

    /// A source tells of blocks on a slower tier, of which a token costs this share of computing it.
    pub(super) fn set_tier(&mut self, feed: FeedId, factor: f64) {
        if let Some(feed) = self.feed_mut(feed) {
            feed.tier = Some(factor);
        }
    }

    #[cfg(test)]
    pub(super) fn tier_factor(&self, feed: FeedId) -> f64 {
        let account = self.account(feed.endpoint);
        account.map_or(1.0, |account| account.tier_factor(feed.source))
    }

    pub(super) fn learn_block_size(&mut self, feed: FeedId, size: BlockSize) {
        if self.feed_mut(feed).is_some()
            && let Some(account) = self.account_mut(feed.endpoint)
        {
            account.block_size = Some(size);
        }
    }

    /// What was sent to a feed's endpoint; `None` when the feed is no longer its.
    pub(super) fn recent(&mut self, feed: FeedId) -> Option<Arc<Recent>> {
        self.feed_mut(feed)?;
        self.account(feed.endpoint)
            .map(|account| Arc::clone(&account.recent))
    }

    /// Tokens that the cache of one of an endpoint's ranks holds at most.
    pub(super) fn rank_capacity(&self, id: EndpointId) -> TokenCount {
        let account = self.account(id);
        account.map_or(TokenCount::ZERO, Account::rank_capacity)
    }

    /// The credits of all of an endpoint's sources.
    pub(super) fn credits(&self, id: EndpointId) -> Vec<Arc<Credits>> {
        self.account(id).map_or_else(Vec::new, Account::credits)
    }

    /// Every endpoint as pages show it, with the columns in which its blocks are to be counted.
    pub(super) fn views(
        &mut self,
        settings: &Settings,
        now: Instant,
    ) -> Vec<(EndpointView, Vec<SourceId>)> {
        self.expire(now);
        self.accounts
            .iter_mut()
            .flatten()
            .map(|account| account.view(settings, now))
            .collect()
    }

    /// Where an endpoint's blocks are: the column of each of its event sources, by rank, and that of what was sent
    /// to it.
    pub(super) fn columns(&self, id: EndpointId) -> Option<(Vec<(u32, SourceId)>, SourceId)> {
        let account = self.account(id)?;
        let feeds = account.feeds.iter();
        let exact = feeds.map(|(&rank, feed)| (rank, feed.source)).collect();
        Some((exact, account.recent.source()))
    }

    /// The block sizes of all endpoints, told or assumed.
    pub(super) fn block_sizes(&self) -> Vec<BlockSize> {
        let assumed = self.assumed_block_size();
        let mut sizes: Vec<BlockSize> = self
            .accounts
            .iter()
            .flatten()
            .map(|account| account.known_block_size().unwrap_or(assumed))
            .collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    fn feed_mut(&mut self, feed: FeedId) -> Option<&mut Feed> {
        self.account_mut(feed.endpoint)?
            .feeds
            .get_mut(&feed.rank)
            .filter(|here| here.source == feed.source)
    }

    fn account(&self, id: EndpointId) -> Option<&Account> {
        let account = self.accounts.get(id.slot as usize)?.as_ref()?;
        (account.id == id).then_some(account)
    }

    fn account_mut(&mut self, id: EndpointId) -> Option<&mut Account> {
        let account = self.accounts.get_mut(id.slot as usize)?.as_mut()?;
        (account.id == id).then_some(account)
    }

    /// The endpoint with an address: a new life may have joined before the old one left, then it
    /// is the newest; of several ranks it is the one asked for, if there is such a one.
    fn at_address(&self, address: SocketAddr, rank: Option<u32>) -> Option<EndpointId> {
        let here = |account: &&Account| account.endpoint.address == address;
        let fitness =
            |account: &&Account| (account.ready, account.endpoint.rank == rank, account.joined);
        let all = self.accounts.iter().flatten().filter(here);
        all.max_by_key(fitness).map(|account| account.id)
    }

    /// The block size to take for an endpoint.
    fn size_of(&self, account: &Account) -> BlockSize {
        account
            .known_block_size()
            .unwrap_or_else(|| self.assumed_block_size())
    }

    /// The size taken for endpoints that told none: the smallest one known in the pool,
    /// or vLLM's default when none is.
    fn assumed_block_size(&self) -> BlockSize {
        let known = self
            .accounts
            .iter()
            .flatten()
            .filter_map(Account::known_block_size);
        known.min().unwrap_or(BlockSize::DEFAULT)
    }

    /// What of each chain one endpoint has in the index that serves it.
    fn matches_at(&self, slot: u32, size: BlockSize, found: &Found) -> Vec<Run> {
        let Some(account) = self.accounts.get(slot as usize).and_then(Option::as_ref) else {
            return Vec::new();
        };
        let approximate = account.is_approximate();
        found
            .of_size(size)
            .iter()
            .map(|chain| {
                if approximate || chain.text {
                    self.run_at(slot, &self.approximate_columns, &chain.approximate)
                } else {
                    self.run_at(slot, &self.exact_columns, &chain.exact)
                }
            })
            .collect()
    }

    /// The best that one of an endpoint's columns holds.
    fn run_at(&self, slot: u32, columns: &Columns, matches: &[Match]) -> Run {
        let here = matches
            .iter()
            .filter(|found| columns.slot(found.source) == Some(slot));
        here.map(|found| self.run_of(slot, found))
            .fold(Run::default(), Run::better)
    }

    /// What an index found of one source of an endpoint.
    fn run_of(&self, slot: u32, found: &Match) -> Run {
        let account = self.accounts.get(slot as usize).and_then(Option::as_ref);
        Run {
            at_hand: u64::from(found.blocks),
            beneath: u64::from(found.beneath),
            factor: match found.beneath {
                0 => 1.0,
                _ => account.map_or(1.0, |account| account.tier_factor(found.source)),
            },
        }
    }

    /// How far a chain is cached at an endpoint when blocks in flight count, from `start` on.
    fn reach_at(&self, slot: u32, keys: &[BlockKey], start: usize) -> usize {
        let flying = |key: &&BlockKey| {
            self.flying.row(**key).is_some_and(|row| {
                row.get((slot / 64) as usize)
                    .is_some_and(|bits| bits >> (slot % 64) & 1 == 1)
            })
        };
        let further = keys.iter().skip(start).take_while(flying).count();
        start.min(keys.len()) + further
    }
}
