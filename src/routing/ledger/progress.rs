//! Does an endpoint get on with what it was given, or has it stopped?
//!
//! An engine whose scheduler is stuck answers its health checks, and once its clients have given up its queue is the
//! shortest of all. So the ledger watches for *signs of progress*: booked tokens that fall because they were computed,
//! KV events, bytes of an answer, computed tokens in the report that grow. That a client gave up is none.
//!
//! Time without a sign counts while work is outstanding, as a share of what it may take: at least [`LEAST_SILENCE`],
//! and [`QUEUE_TIMES`] the time that the queue should take. The share is kept when the work goes without a sign
//! (its clients gave up), and while nothing is outstanding it stands still. When it is full the endpoint is
//! *stalled*: left out by a guard until the next sign. It may have no more requests that could give one, so now and
//! then one request may go there as a probe, chosen like any other.
//!
//! Not every engine can give a sign all the time: one without events and report that computes an answer of 20 minutes in
//! one piece is silent, and so is one whose report counts tokens only at a request's end. Such a verdict is wrong,
//! and costs a few requests a little more; it does not last, because the next probe is answered. And it is not
//! repeated for long: a sign that comes while requests of before the verdict are still there says that they
//! were only long, and for [`PATIENCE_KEPT`] twice that silence is waited for, up to [`LONGEST_SILENCE`]. Where nothing
//! can give a sign at all (no events, no report with computed tokens, a gateway that shows no response), nothing is
//! held against the endpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::super::cache::FeedState;
use super::super::endpoint::{Report, ReportOutcome};
use super::account::Account;
use super::{BookingId, DEFAULT_PREFILL_US_PER_TOKEN, FeedId, Ledger};

/// An engine at work gives a sign in every step, and a step takes 2 s at most (a full budget on a CPU); a pause for
/// graph capture, for garbage or for a swap takes a few. Less would call those a stall, more would cost each
/// request that is sent there meanwhile that much.
const LEAST_SILENCE: Duration = Duration::from_secs(10);

/// How often the time of the queue may pass without a sign: the learnt speed is an average, and an engine without events
/// gives no sign before a prompt is prefilled to its end, beside the decoding of others.
const QUEUE_TIMES: f64 = 4.0;

/// Whatever was learnt, this is too long.
const LONGEST_SILENCE: Duration = Duration::from_secs(600);

/// A silence that proved to be work is taken for usual for so long.
const PATIENCE_KEPT: Duration = Duration::from_secs(3600);

/// From the verdict to the first probe: the guard has cost nobody anything yet, so it may soon be tried.
const FIRST_PROBE: Duration = Duration::from_secs(5);

/// Between probes in the long run. Each may cost a request its time: one in a thousand where 16 a second come.
const LONGEST_PROBE_PAUSE: Duration = Duration::from_secs(60);

/// Looked at more often than this nothing new is seen; between looks a pick costs a comparison only. `benches/pick.rs`,
/// with and without all of this in turn: 0.98, 1.03 and 1.01 of the time with 10, 100 and 256 endpoints, which is noise.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Whether there was a sign since the ledger last looked.
///
/// One an endpoint, shared by its requests in flight, so that a chunk of an answer tells without the ledger's lock: the
/// first since the last look writes, the others only read. Measured: 1.1 ns of processor time a chunk, as many on two
/// cores at once.
#[derive(Debug, Default)]
pub(in crate::routing) struct Pulse(AtomicBool);

impl Pulse {
    /// There was a sign.
    pub(in crate::routing) fn beat(&self) {
        if !self.0.load(Ordering::Relaxed) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    fn take(&self) -> bool {
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

/// What is outstanding at an endpoint.
#[derive(Clone, Copy, Debug)]
struct Outstanding {
    /// Requests in flight that could give a sign, or whose engine could.
    requests: u32,
    /// How long the queue should take.
    queue: Duration,
}

/// How an endpoint gets on.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pulse: Arc<Pulse>,
    looked: Option<Instant>,
    /// How much of the silence that may be has passed, 0 to 1.
    share: f64,
    /// How long work was outstanding without a sign.
    silent: Duration,
    stall: Option<Stall>,
    /// Longer silences have proved to be work: how long, and until when that is believed.
    patience: Option<(Duration, Instant)>,
    /// When the last stall ended.
    resumed: Option<Instant>,
}

/// An endpoint that has stopped.
#[derive(Clone, Copy, Debug)]
struct Stall {
    since: Instant,
    /// Requests of before that are still in flight.
    left: u32,
    next_probe: Instant,
    pause: Duration,
}

impl Progress {
    pub(super) fn pulse(&self) -> Arc<Pulse> {
        Arc::clone(&self.pulse)
    }

    /// No sign for too long.
    pub(super) fn is_stalled(&self) -> bool {
        self.stall.is_some()
    }

    /// It is not stalled, or a probe is due.
    pub(super) fn may_be_tried(&self, now: Instant) -> bool {
        self.stall.is_none_or(|stall| stall.next_probe <= now)
    }

    /// A request was sent there; if a probe was due, this is it.
    pub(super) fn booked(&mut self, now: Instant) {
        if let Some(stall) = self.stall.as_mut().filter(|stall| stall.next_probe <= now) {
            stall.pause = (stall.pause * 2).min(LONGEST_PROBE_PAUSE);
            stall.next_probe = now + stall.pause;
        }
    }

    /// A request that was sent there at `since` is over.
    pub(super) fn ended(&mut self, since: Instant) {
        if let Some(stall) = self.stall.as_mut().filter(|stall| since <= stall.since) {
            stall.left = stall.left.saturating_sub(1);
        }
    }

    /// There is a sign.
    pub(super) fn sign(&mut self, now: Instant) {
        if let Some(stall) = self.stall.take() {
            self.resumed = Some(now);
            if stall.left > 0 {
                self.patience = Some((self.silent * 2, now + PATIENCE_KEPT));
            }
        }
        self.pulse.take();
        self.looked = Some(now);
        self.share = 0.0;
        self.silent = Duration::ZERO;
    }

    /// What a request of `since` took says something of the endpoint's speed: no stall came between.
    pub(super) fn is_steady_since(&self, since: Instant) -> bool {
        self.stall.is_none() && self.resumed.is_none_or(|resumed| resumed <= since)
    }

    /// The engine is another process: what was seen of the former says nothing.
    pub(super) fn restarted(&mut self, now: Instant) {
        *self = Self {
            pulse: self.pulse(),
            looked: Some(now),
            resumed: self.stall.map(|_| now).or(self.resumed),
            ..Self::default()
        };
    }

    fn is_due(&self, now: Instant) -> bool {
        let passed = |looked| now.saturating_duration_since(looked) >= LOOK_EVERY;
        self.stall.is_some() || self.looked.is_none_or(passed)
    }

    /// Lets time pass up to `now`, in which so much was outstanding.
    fn look(&mut self, outstanding: Outstanding, now: Instant) {
        let looked = self.looked.replace(now).unwrap_or(now);
        let passed = now.saturating_duration_since(looked);
        if self.pulse.take() {
            self.sign(now);
        } else if outstanding.requests > 0 {
            self.silent += passed;
            self.share += passed.as_secs_f64() / self.limit(outstanding, now).as_secs_f64();
            if self.share >= 1.0 && self.stall.is_none() {
                self.stall = Some(Stall {
                    since: now,
                    left: outstanding.requests,
                    next_probe: now + FIRST_PROBE,
                    pause: FIRST_PROBE,
                });
            }
        }
    }

    /// How long there may be no sign.
    fn limit(&self, outstanding: Outstanding, now: Instant) -> Duration {
        let patience = self.patience.filter(|&(_, until)| now < until);
        let patience = patience.map_or(LEAST_SILENCE, |(silence, _)| silence);
        outstanding
            .queue
            .max(patience)
            .clamp(LEAST_SILENCE, LONGEST_SILENCE)
    }
}

/// The engine computed something between two reports.
fn advanced(before: &Report, after: &Report) -> bool {
    let awoke = before.asleep && !after.asleep;
    // Less than before: it is another process.
    let computed = before.computed.zip(after.computed);
    let counted = computed.is_some_and(|(before, after)| before != after);
    // Both fall when clients give up, and rise only when the scheduler takes up a request or more of it: the sign of a
    // long prefill, which is counted at its end.
    let taken_up = after.kv_usage > before.kv_usage || after.running > before.running;
    awoke || counted || taken_up
}

impl Account {
    /// Lets the time up to `now` count for or against it. To be called before anything else happens to it.
    pub(super) fn look(&mut self, now: Instant) {
        if self.progress.is_due(now) {
            let outstanding = self.outstanding();
            self.progress.look(outstanding, now);
        }
    }

    /// Takes a report as a sign, if it is one, before it becomes the last one.
    pub(super) fn compare_report(&mut self, outcome: &ReportOutcome, now: Instant) {
        match (&self.health.report, outcome) {
            (Some((before, _)), ReportOutcome::Fresh(after)) if advanced(before, after) => {
                self.progress.sign(now);
            }
            _ => self.look(now),
        }
    }

    /// One more request of whose end nobody will tell. Where nothing else can, the beginning of its answer is a sign.
    pub(super) fn note_detached(&mut self, answered: bool, now: Instant) {
        if answered && !self.has_witness() {
            self.progress.sign(now);
        } else {
            self.look(now);
        }
        self.detached += 1;
    }

    fn outstanding(&self) -> Outstanding {
        let requests = if self.is_asleep() {
            0
        } else if self.has_witness() {
            self.in_flight
        } else {
            // Of those whose answers we are not shown nobody could tell.
            self.in_flight.saturating_sub(self.detached)
        };
        let us_per_token = self
            .prefill_us_per_token
            .unwrap_or(DEFAULT_PREFILL_US_PER_TOKEN);
        let seconds = QUEUE_TIMES * us_per_token * self.queued as f64 / 1e6;
        let queue = Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST_SILENCE);
        Outstanding { requests, queue }
    }

    /// Something besides the answers would tell of its work: a report that counts tokens, or events that have told
    /// of blocks.
    fn has_witness(&self) -> bool {
        let reported = self.health.report;
        reported.is_some_and(|(report, _)| report.computed.is_some())
            || (self.block_size.is_some() && !self.is_approximate())
    }
}

impl Ledger {
    /// Events of an endpoint came as they happened. Those of a replay are old, and tell nothing.
    pub(in crate::routing) fn stirred(&mut self, feed: FeedId) {
        let fresh = matches!(
            self.feed_mut(feed).map(|feed| &feed.state),
            Some(FeedState::Live | FeedState::Incomplete(_))
        );
        if let Some(account) = self.account(feed.endpoint).filter(|_| fresh) {
            account.progress.pulse.beat();
        }
    }

    /// The request is over at `now`. The time until then counts.
    pub(in crate::routing) fn end_at(&mut self, booking_id: BookingId, now: Instant) {
        let id = self.bookings.get(&booking_id).and_then(|b| b.endpoint());
        if let Some(account) = id.and_then(|id| self.account_mut(id)) {
            account.look(now);
        }
        self.end(booking_id);
    }
}
