//! The event loop: what happens to a request, a step, an event, a report, a replica.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::agenda::{Agenda, What};
use super::flights::{Flight, FlightId, Flights};
use super::known::Known;
use super::replica::{Ask, Replica};
use super::tally::Tally;
use super::{Outage, Progress, RunError, Settings, WarmUp};
use crate::engine::model::{Output, Prefilled, Request};
use crate::routing::block::Scope;
use crate::routing::endpoint::Report;
use crate::routing::event::{KeyChange, KvEvent};
use crate::routing::router::Decision;
use crate::simulate::outcome::Outcome;
use crate::simulate::policy::{Asked, Policy};
use crate::simulate::workload::{Arrival, Workload};

mod world;

/// Between two offers of a request that nobody could take.
const OFFER_AGAIN: Duration = Duration::from_secs(1);

/// Requests that come or end between two calls for progress.
const PROGRESS_EVERY: u64 = 1024;

/// Something on its way from a replica to the picker; of a life that is over, nobody listens to it.
struct Late<T> {
    replica: usize,
    life: u32,
    what: T,
}

/// How engines tell of their caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// By the index's keys.
    Keys,
    /// By events with token ids, as real engines do. The same outcome, many times slower.
    Events,
}

/// What a step told.
struct Batch {
    events: Vec<KvEvent>,
    changes: Vec<KeyChange>,
}

/// A run under way.
pub(super) struct Run<'a> {
    settings: &'a Settings,
    told: Told,
    workload: &'a mut dyn Workload,
    policy: &'a mut dyn Policy,
    /// What stands for the start of virtual time where an `Instant` is asked for; no result depends on which it is.
    base: Instant,
    now: Duration,
    agenda: Agenda,
    replicas: Vec<Replica>,
    known: Known,
    flights: Flights,
    /// All delays are alike, so what was sent first comes first.
    events: VecDeque<Late<Batch>>,
    reports: VecDeque<Late<Report>>,
    chance: Rng,
    tally: Tally,
    /// Until then nothing happens but reports of a fleet that is idle; found out when it is asked for.
    quiet: Option<Duration>,
    /// When the last request came whose time does not depend on the fleet.
    last_open: Duration,
    fault: Option<RunError>,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        settings: &'a Settings,
        workload: &'a mut dyn Workload,
        policy: &'a mut dyn Policy,
        seed: u64,
        told: Told,
    ) -> Result<Self, RunError> {
        let mut run = Self {
            settings,
            told,
            workload,
            policy,
            base: Instant::now(),
            now: Duration::ZERO,
            agenda: Agenda::default(),
            replicas: (0..settings.replicas).map(|_| Replica::new()).collect(),
            known: Known::new(&settings.router, settings.replicas),
            flights: Flights::default(),
            events: VecDeque::new(),
            reports: VecDeque::new(),
            chance: Rng::with_seed(seed),
            tally: Tally::new(settings.intervals),
            quiet: None,
            last_open: Duration::ZERO,
            fault: None,
        };
        run.next_open()?;
        if run.flights.is_empty() {
            return Err(RunError::NoRequests);
        }
        for replica in 0..settings.replicas {
            run.start(replica)?;
        }
        for &Outage { replica, at, lasts } in &settings.outages {
            run.agenda.note(at, What::Down(replica));
            run.agenda.note(at + lasts, What::Up(replica));
        }
        Ok(run)
    }

    pub(super) fn play(&mut self, progress: &mut dyn FnMut(Progress)) -> Result<(), RunError> {
        let mut told = 0;
        while !self.flights.is_empty() && !self.tally.given_up {
            let Some((at, what)) = self.agenda.next() else {
                break;
            };
            self.now = at;
            self.happen(what)?;
            if let Some(fault) = self.fault.take() {
                return Err(fault);
            }
            let done = (self.tally.arrived + self.tally.ended) / PROGRESS_EVERY;
            if done > told {
                told = done;
                progress(self.progress());
            }
        }
        // What came last is in no interval yet.
        self.end_interval();
        progress(self.progress());
        Ok(())
    }

    pub(super) fn outcome(&self) -> Outcome {
        let computed: Vec<u64> = self
            .replicas
            .iter()
            .map(|replica| replica.computed)
            .collect();
        let preemptions = self.replicas.iter().map(Replica::preemptions).sum();
        self.tally.outcome(&computed, preemptions)
    }

    /// Tokens and requests that are still booked.
    #[cfg(test)]
    pub(super) fn booked(&self) -> (u64, u64) {
        self.known.booked(self.instant())
    }

    /// Tokens still counted as contexts.
    #[cfg(test)]
    pub(super) fn contexts(&self) -> u64 {
        self.known.contexts()
    }

    fn progress(&self) -> Progress {
        Progress {
            at: self.now,
            arrived: self.tally.arrived,
            ended: self.tally.ended,
            expected: self.workload.len_hint(),
        }
    }

    fn instant(&self) -> Instant {
        self.base + self.now
    }

    fn happen(&mut self, what: What) -> Result<(), RunError> {
        if !matches!(what, What::AskReport(_) | What::Report) {
            self.quiet = None;
        }
        match what {
            What::Arrival { flight, next } => {
                self.arrive(flight);
                if next {
                    self.next_open()?;
                }
            }
            What::Offer(flight) => self.offer(flight),
            What::Step { replica, life } => self.end_step(replica, life),
            What::Events => self.receive_events(),
            What::AskReport(replica) => self.ask_report(replica),
            What::Report => self.receive_report(),
            What::Interval => {
                self.end_interval();
                self.note_interval();
            }
            What::Down(replica) => self.die(replica),
            What::Up(replica) => self.come_back(replica)?,
        }
        Ok(())
    }

    /// Notes the next request whose time does not depend on the fleet.
    fn next_open(&mut self) -> Result<(), RunError> {
        let Some(arrival) = self.workload.next() else {
            return Ok(());
        };
        if arrival.at < self.last_open {
            return Err(RunError::OutOfOrder(arrival.at, self.last_open));
        }
        self.last_open = arrival.at;
        self.expect(arrival, true);
        Ok(())
    }

    fn expect(&mut self, arrival: Arrival, next: bool) {
        let at = arrival.at;
        let flight = self.flights.add(Flight::new(arrival));
        self.agenda.note(at, What::Arrival { flight, next });
    }

    fn arrive(&mut self, id: FlightId) {
        let is_first = self.tally.arrived == 0;
        let counted = match self.settings.warm_up {
            WarmUp::Requests(requests) => self.tally.arrived >= requests,
            WarmUp::Time(time) => {
                !is_first && self.now >= self.tally.start() + time || time.is_zero()
            }
        };
        let Some(flight) = self.flights.get_mut(id) else {
            return;
        };
        flight.counted = counted;
        let fits = flight.fits(self.settings.engine.max_model_len);
        if fits {
            flight.cut(self.told, self.settings.engine.block_size);
        }
        self.tally.arrived(flight);
        if is_first {
            self.note_interval();
        }
        if fits {
            self.offer(id);
        } else {
            self.tally.too_long += 1;
            self.fail(id);
        }
    }

    /// Lets the policy choose, and sends the request there.
    pub(super) fn offer(&mut self, id: FlightId) {
        let now = self.instant();
        let Some(flight) = self.flights.get_mut(id) else {
            return;
        };
        let asked = Asked {
            arrival: &flight.arrival,
            prepared: &flight.prepared,
            keys: &flight.keys,
            block_size: self.settings.engine.block_size.get(),
            now,
            chance: self.chance.u64(..),
        };
        let decision = self.policy.pick(&asked, &self.known);
        let sent = decision
            .ok()
            .and_then(|decision| Some((self.known.replica_of(decision.id)?, decision)));
        if let Some((replica, decision)) = sent {
            self.send(id, replica, decision);
            return;
        }
        let until = *flight
            .patience
            .get_or_insert(self.now + self.settings.patience);
        if self.now < until {
            self.agenda.note(self.now + OFFER_AGAIN, What::Offer(id));
        } else {
            self.fail(id);
        }
    }

    fn send(&mut self, id: FlightId, replica: usize, decision: Decision) {
        let now = self.instant();
        let Some(flight) = self.flights.get_mut(id) else {
            return;
        };
        flight.foreseen = decision.cached.get();
        flight.reservation = Some(decision.reservation);
        flight.patience = None;
        let keys = Arc::clone(&flight.keys);
        let ask = match self.told {
            Told::Keys => Ask::Names(flight.named(self.settings.engine.block_size)),
            Told::Events => Ask::Tokens(request(&flight.arrival)),
        };
        let prompt = u64::from(flight.arrival.prompt.tokens());
        let engine = self.replicas.get_mut(replica).and_then(Replica::engine);
        // The router says that it is up, so there is one; whatever it refuses now it refuses for ever.
        let taken = engine.is_some_and(|engine| engine.submit(ask, id, now).is_ok());
        if taken {
            self.known.grew(replica, prompt);
            self.begin_step(replica);
        } else {
            self.policy.ended(replica, &keys);
            self.fail(id);
        }
    }

    fn begin_step(&mut self, replica: usize) {
        let now = self.instant();
        let Some(place) = self.replicas.get_mut(replica) else {
            return;
        };
        let life = place.life;
        let Some(engine) = place.engine().filter(|engine| !engine.in_step) else {
            return;
        };
        if let Some(plan) = engine.model.begin_step(now) {
            engine.in_step = true;
            let end = self.now + plan.duration;
            self.agenda.note(end, What::Step { replica, life });
        }
    }

    fn end_step(&mut self, replica: usize, life: u32) {
        let now = self.instant();
        let engine = self
            .replicas
            .get_mut(replica)
            .and_then(|it| it.engine_of(life));
        let Some(engine) = engine else {
            return;
        };
        engine.in_step = false;
        let outcome = engine.model.end_step(now);
        self.known.grew(replica, outcome.generated as u64);
        // Its events leave an engine with the step's tokens.
        let (events, changes) = (outcome.events, outcome.changes);
        if !events.is_empty() || !changes.is_empty() {
            self.tell(replica, life, Batch { events, changes });
        }
        for output in &outcome.outputs {
            self.give(replica, output);
        }
        self.begin_step(replica);
    }

    /// A token reaches its client; most change nothing here.
    fn give(&mut self, replica: usize, output: &Output) {
        if output.prefilled.is_none() && output.finished.is_none() {
            return;
        }
        let engine = self.replicas.get_mut(replica).and_then(Replica::engine);
        let Some(engine) = engine else {
            return;
        };
        let flight = if output.finished.is_some() {
            engine.requests.remove(&output.request)
        } else {
            engine.requests.get(&output.request).copied()
        };
        let Some(id) = flight else {
            return;
        };
        if let Some(prefilled) = output.prefilled {
            self.prefilled(id, replica, prefilled);
        }
        if output.finished.is_some() {
            self.finish(id, replica);
        }
    }

    fn prefilled(&mut self, id: FlightId, replica: usize, prefilled: Prefilled) {
        let (now, at) = (self.now, self.instant());
        let Some(flight) = self.flights.get_mut(id) else {
            return;
        };
        if let Some(reservation) = &mut flight.reservation {
            reservation.answered(200);
            reservation.prefilled(at);
        }
        let cached = prefilled.cached_tokens as u64;
        if flight.counted
            && let Some(replica) = self.replicas.get_mut(replica)
        {
            let prompt = u64::from(flight.arrival.prompt.tokens());
            replica.computed += prompt.saturating_sub(cached);
        }
        self.tally.prefilled(flight, replica, cached);
        if flight.first_token.is_none() {
            flight.first_token = Some(now);
            let ttft = now.saturating_sub(flight.arrival.at);
            let give_up = self.settings.give_up;
            self.tally.first_token(flight.counted, ttft, give_up);
        }
    }

    fn finish(&mut self, id: FlightId, replica: usize) {
        let at = self.instant();
        let Some(mut flight) = self.flights.take(id) else {
            return;
        };
        if let Some(reservation) = flight.reservation.take() {
            reservation.end(at);
        }
        let arrival = &flight.arrival;
        let context = u64::from(arrival.prompt.tokens()) + u64::from(arrival.output);
        self.known.shrank(replica, context);
        self.policy.ended(replica, &flight.keys);
        self.tally.answered(&flight, self.now);
        self.follow(arrival.session);
    }

    /// Nobody answers the request. What follows it in its conversation comes all the same, so that every policy has
    /// the same work.
    fn fail(&mut self, id: FlightId) {
        let Some(flight) = self.flights.take(id) else {
            return;
        };
        self.tally.failed(self.now);
        self.follow(flight.arrival.session);
    }

    fn follow(&mut self, session: u64) {
        let Some(arrival) = self.workload.follow(session, self.now) else {
            return;
        };
        if arrival.at < self.now {
            self.fault = Some(RunError::OutOfOrder(arrival.at, self.now));
        } else {
            self.expect(arrival, false);
        }
    }
}

/// What an engine is asked.
fn request(arrival: &Arrival) -> Request {
    let mut answer = Vec::with_capacity(arrival.output as usize);
    arrival.answer_segment().write(&mut answer);
    Request {
        prompt: arrival.prompt.token_ids(),
        scope: Scope::default(),
        max_tokens: Some(arrival.output as usize),
        ignore_eos: true,
        reads_cache: true,
        answer,
    }
}
