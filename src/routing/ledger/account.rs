//! One endpoint in the ledger: who it is, how it is, and what is promised to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::approximate::{DEFAULT_CAPACITY, Recent};
use super::super::block::BlockSize;
use super::super::cache::FeedState;
use super::super::candidates::Health;
use super::super::endpoint::{Endpoint, EndpointId, ReportOutcome};
use super::super::index::SourceId;
use super::super::router::{EndpointView, Exclusion, Settings};
use super::super::tokens::TokenCount;
use super::compare::{Removals, is_absent};
use super::credit::Credits;
use super::flights::Flights;
use super::parity::Roots;
use super::progress::Progress;
use super::refusals::Refusals;
use super::trust::Trust;
use super::{DEFAULT_PREFILL_US_PER_TOKEN, Ledger};

/// Bookings of fewer tokens teach nothing of the prefill speed: what they take is
/// mostly the way there and back.
const LEAST_WORK_TO_LEARN: u64 = 256;

/// How much of a new sample enters the running estimate.
const LEARNING_RATE: f64 = 0.125;

/// Longest step of the estimate at one sample, as a factor: an outlier (a pause, a
/// burst of another picker's) moves it little.
const LONGEST_STEP: f64 = 2.0;

/// One event source of an endpoint.
#[derive(Debug)]
pub(super) struct Feed {
    pub(super) source: SourceId,
    pub(super) state: FeedState,
    pub(super) orphans: u64,
    /// What a token costs from the slower tiers that it tells of, as a share of computing it.
    pub(super) tier: Option<f64>,
    pub(super) credits: Arc<Credits>,
}

/// One endpoint.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) id: EndpointId,
    /// How many joined before it.
    pub(super) joined: u64,
    pub(super) endpoint: Endpoint,
    pub(super) ready: bool,
    pub(super) health: Health,
    /// Learnt from events.
    pub(super) block_size: Option<BlockSize>,
    pub(super) feeds: BTreeMap<u32, Feed>,
    pub(super) recent: Arc<Recent>,
    /// Always the sum of the flights' charges and the bookings' tails here.
    pub(super) queued: u64,
    pub(super) in_flight: u32,
    /// Those of them of whose end nobody will tell.
    pub(super) detached: u32,
    /// Requests ever booked here.
    pub(super) booked: u64,
    pub(super) flights: Flights,
    pub(super) prefill_us_per_token: Option<f64>,
    pub(super) progress: Progress,
    pub(super) refusals: Refusals,
    pub(super) removals: Removals,
    pub(super) trust: Trust,
    pub(super) roots: Roots,
}

impl Account {
    pub(super) fn new(
        id: EndpointId,
        endpoint: Endpoint,
        recent: Arc<Recent>,
        joined: u64,
    ) -> Self {
        Self {
            id,
            joined,
            endpoint,
            ready: false,
            health: Health::default(),
            block_size: None,
            feeds: BTreeMap::new(),
            recent,
            queued: 0,
            in_flight: 0,
            detached: 0,
            booked: 0,
            flights: Flights::default(),
            prefill_us_per_token: None,
            progress: Progress::default(),
            refusals: Refusals::default(),
            removals: Removals::default(),
            trust: Trust::default(),
            roots: Roots::default(),
        }
    }

    pub(super) fn queued(&self) -> TokenCount {
        TokenCount::new(self.queued)
    }

    /// Nothing of ours is booked or in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.queued == 0
    }

    /// Ours or, as it last reported, others' requests are there.
    pub(super) fn is_busy(&self) -> bool {
        let reported = self.health.report;
        !self.is_idle() || reported.is_some_and(|(report, _)| report.is_busy())
    }

    /// Notes the moment at which it becomes busy, or that it no longer is.
    pub(super) fn note_busy(&mut self, now: Instant) {
        if !self.is_busy() {
            self.health.busy_since = None;
        } else if self.health.busy_since.is_none() {
            self.health.busy_since = Some(now);
        }
    }

    /// The same where no time is known: it can only have become idle.
    pub(super) fn note_released(&mut self) {
        if !self.is_busy() {
            self.health.busy_since = None;
        }
    }

    /// Its last report says that it sleeps.
    pub(super) fn is_asleep(&self) -> bool {
        self.health.report.is_some_and(|(report, _)| report.asleep)
    }

    /// Why it is left out of a pick, if it is.
    pub(super) fn exclusion(&self, settings: &Settings, now: Instant) -> Option<Exclusion> {
        let guard = self.health.guard(settings, now);
        if !self.ready {
            Some(Exclusion::NotReady)
        } else if self.is_asleep() {
            Some(Exclusion::Asleep)
        } else if guard == Some(Exclusion::Unreachable) {
            guard
        } else if self.refusals.hold(now) {
            Some(Exclusion::Refusing)
        } else if self.progress.may_be_tried(now) {
            guard
        } else {
            Some(Exclusion::Stalled)
        }
    }

    pub(super) fn note_report(&mut self, outcome: ReportOutcome, now: Instant) {
        self.compare_report(&outcome, now);
        match outcome {
            ReportOutcome::Fresh(_) | ReportOutcome::NoPage => self.health.refused = false,
            ReportOutcome::Refused => self.health.refused = true,
            // A hang is no proof that nobody listens, nor that somebody does.
            ReportOutcome::Failed => {}
        }
        match outcome {
            ReportOutcome::Fresh(report) => {
                self.health.report = Some((report, now));
                self.health.no_page = false;
            }
            ReportOutcome::NoPage => {
                self.health.report = None;
                self.health.no_page = true;
            }
            ReportOutcome::Refused | ReportOutcome::Failed => {}
        }
        self.health.known_since.get_or_insert(now);
        self.note_busy(now);
    }

    /// Forgets a report of before `since`. The next one is owed from now on.
    pub(super) fn forget_report(&mut self, since: Instant, now: Instant) {
        if self.health.report.is_some_and(|(_, at)| at < since) {
            self.health.report = None;
            self.health.known_since = Some(now);
            self.note_released();
        }
    }

    /// Served by the approximate index: no source tells what it caches, or none that can be believed.
    pub(super) fn is_approximate(&self) -> bool {
        !self.is_told() || self.trust.doubt().is_some()
    }

    /// Some source tells what it caches.
    pub(super) fn is_told(&self) -> bool {
        self.feeds.values().any(|feed| !is_absent(&feed.state))
    }

    /// What a token from beneath a source costs, as a share of computing it.
    pub(super) fn tier_factor(&self, source: SourceId) -> f64 {
        let mut feeds = self.feeds.values();
        let feed = feeds.find(|feed| feed.source == source);
        feed.and_then(|feed| feed.tier).unwrap_or(1.0)
    }

    /// The block size that events or else the last report told.
    pub(super) fn known_block_size(&self) -> Option<BlockSize> {
        let reported = || BlockSize::new(self.health.report?.0.block_size?);
        self.block_size.or_else(reported)
    }

    /// Tokens its KV pools hold, for the approximate index.
    pub(super) fn capacity(&self) -> TokenCount {
        let ranks = self.feeds.len().max(1) as u64;
        self.reported_capacity().map_or(DEFAULT_CAPACITY, |tokens| {
            TokenCount::new(tokens.get().saturating_mul(ranks))
        })
    }

    /// Tokens the KV pool of one of its ranks holds.
    pub(super) fn rank_capacity(&self) -> TokenCount {
        self.reported_capacity().unwrap_or(DEFAULT_CAPACITY)
    }

    fn reported_capacity(&self) -> Option<TokenCount> {
        self.health.report?.0.kv_capacity
    }

    /// All that a pick uses of it; its blocks are to be counted in the columns named.
    pub(super) fn view(
        &mut self,
        settings: &Settings,
        now: Instant,
    ) -> (EndpointView, Vec<SourceId>) {
        self.health.known_since.get_or_insert(now);
        self.look(now);
        // That a probe would be let in is no news worth a change of state.
        let stalled = self.progress.is_stalled().then_some(Exclusion::Stalled);
        let report = self.health.report;
        let view = EndpointView {
            id: self.id,
            endpoint: self.endpoint.clone(),
            ready: self.ready,
            queued: self.queued(),
            in_flight: self.in_flight,
            report: report.map(|(report, at)| (report, now.saturating_duration_since(at))),
            no_report_page: self.health.no_page,
            excluded: self.exclusion(settings, now).or(stalled),
            feeds: self
                .feeds
                .iter()
                .map(|(&rank, feed)| (rank, feed.state.clone()))
                .collect(),
            approximate: self.is_approximate(),
            doubt: self.trust.doubt().map(str::to_owned),
            approximate_overflow: self.is_approximate() && self.recent.is_overflowing(),
            credited_blocks: self.feeds.values().map(|feed| feed.credits.len()).sum(),
            block_size: self.known_block_size(),
            blocks: 0,
            orphans: self.feeds.values().map(|feed| feed.orphans).sum(),
            prefill_us_per_token: self.prefill_us_per_token,
        };
        (view, self.feeds.values().map(|feed| feed.source).collect())
    }

    /// Learns from a prefill of `work` tokens, the queue ahead of it included.
    pub(super) fn learn_prefill(&mut self, work: u64, took: Duration) {
        if work < LEAST_WORK_TO_LEARN {
            return;
        }
        let sample = took.as_secs_f64() * 1e6 / work as f64;
        let learnt = self.prefill_us_per_token.map_or(sample, |before| {
            let bounded = sample.clamp(before / LONGEST_STEP, before * LONGEST_STEP);
            before + LEARNING_RATE * (bounded - before)
        });
        // Zero would never grow again; no engine is that fast.
        self.prefill_us_per_token = Some(learnt.max(0.1));
    }

    pub(super) fn take_charge(&mut self, tokens: u64) {
        debug_assert!(tokens <= self.queued, "more released than booked");
        self.queued = self.queued.saturating_sub(tokens);
    }
}

impl Ledger {
    /// The middle of what is learnt in the pool, or what is assumed.
    pub(super) fn typical_prefill_us_per_token(&self) -> f64 {
        self.learnt_prefill_us_per_token()
            .unwrap_or(DEFAULT_PREFILL_US_PER_TOKEN)
    }

    /// The middle of what is learnt in the pool.
    pub(in crate::routing) fn learnt_prefill_us_per_token(&self) -> Option<f64> {
        let mut learnt: Vec<f64> = self
            .accounts
            .iter()
            .flatten()
            .filter_map(|account| account.prefill_us_per_token)
            .collect();
        learnt.sort_unstable_by(f64::total_cmp);
        learnt.get(learnt.len() / 2).copied()
    }
}
