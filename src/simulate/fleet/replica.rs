//! What is one engine of the fleet doing?

use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::flights::FlightId;
use crate::engine::model::{self, Model, Named, Request, RequestId, SubmitError};
use crate::routing::cache::CacheView;
use crate::routing::endpoint::Report;
use crate::routing::tokens::TokenCount;

/// One engine and the picker's subscription to its events, through all its lives.
pub(super) struct Replica {
    /// `None` while it is dead.
    engine: Option<Engine>,
    /// Counts its lives, so that what was noted in one does nothing in the next.
    pub(super) life: u32,
    /// Outages under way: it is dead while there is one.
    pub(super) outages: u32,
    /// Prompt tokens that it computed for counted requests.
    pub(super) computed: u64,
    /// Preemptions in lives that are over.
    preempted: u64,
}

/// What an engine is asked.
pub(super) enum Ask {
    Names(Named),
    Tokens(Request),
}

/// What dies with the process.
pub(super) struct Engine {
    pub(super) model: Model,
    pub(super) view: CacheView,
    pub(super) requests: FxHashMap<RequestId, FlightId>,
    pub(super) in_step: bool,
    /// When it came up.
    pub(super) started: Duration,
    /// Its report at that time.
    pub(super) idle: Report,
}

impl Replica {
    /// Not started.
    pub(super) const fn new() -> Self {
        Self {
            engine: None,
            life: 0,
            outages: 0,
            computed: 0,
            preempted: 0,
        }
    }

    /// It is up; what it reports while it is idle.
    pub(super) fn start(
        &mut self,
        model: Model,
        view: CacheView,
        settings: &model::Settings,
        now: Duration,
    ) -> Report {
        self.life += 1;
        let mut engine = Engine {
            model,
            view,
            requests: FxHashMap::default(),
            in_step: false,
            started: now,
            idle: Report::default(),
        };
        let idle = engine.report(settings);
        engine.idle = idle;
        self.engine = Some(engine);
        idle
    }

    /// It dies; its requests in the order in which they came.
    pub(super) fn die(&mut self) -> Vec<FlightId> {
        let Some(engine) = self.engine.take() else {
            return Vec::new();
        };
        self.preempted += engine.model.totals().preemptions;
        let mut lost: Vec<_> = engine.requests.into_iter().collect();
        lost.sort_unstable_by_key(|&(request, _)| request);
        lost.into_iter().map(|(_, flight)| flight).collect()
    }

    /// The engine, if it lives.
    pub(super) const fn engine(&mut self) -> Option<&mut Engine> {
        self.engine.as_mut()
    }

    /// The engine, if it still lives the same life.
    pub(super) const fn engine_of(&mut self, life: u32) -> Option<&mut Engine> {
        if self.life == life {
            self.engine.as_mut()
        } else {
            None
        }
    }

    pub(super) fn preemptions(&self) -> u64 {
        let engine = self.engine.as_ref();
        self.preempted + engine.map_or(0, |engine| engine.model.totals().preemptions)
    }

    /// Requests running and waiting.
    pub(super) fn in_flight(&self) -> usize {
        let engine = self.engine.as_ref();
        engine.map_or(0, |engine| engine.requests.len())
    }
}

impl Engine {
    pub(super) fn submit(
        &mut self,
        ask: Ask,
        flight: FlightId,
        now: Instant,
    ) -> Result<(), SubmitError> {
        let id = match ask {
            Ask::Names(named) => self.model.submit_named(named, now),
            Ask::Tokens(request) => self.model.submit(request, now),
        }?;
        self.requests.insert(id, flight);
        Ok(())
    }

    /// What its metrics page says.
    pub(super) fn report(&self, settings: &model::Settings) -> Report {
        let block_size = settings.block_size.get();
        let blocks = settings.blocks.saturating_sub(1) as u64;
        let kv_capacity = TokenCount::new(blocks * u64::from(block_size));
        let gauges = self.model.gauges();
        let totals = self.model.totals();
        Report {
            kv_usage: gauges.kv_usage,
            running: gauges.running as u64,
            waiting: gauges.waiting as u64,
            block_size: Some(block_size),
            kv_capacity: Some(kv_capacity),
            finished: Some(totals.stopped + totals.length),
            computed: Some(totals.prompt_tokens + totals.generation_tokens),
            fresh: None,
            asleep: false,
        }
    }
}
