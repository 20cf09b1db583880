//! What does the picker know? The router that serves, what it counts itself, and the reports that have come.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::routing::cache::{CacheView, FeedState};
use crate::routing::endpoint::{Endpoint, EndpointId, EndpointName, Report, ReportOutcome};
use crate::routing::router::{
    self, Ask, Candidate, Decision, Exclusion, Refusal, Router, SubsetEntry,
};
use crate::simulate::policy::{Asked, Knowledge, Seen};

/// The picker's side of one replica.
#[derive(Debug)]
struct Place {
    id: EndpointId,
    address: SocketAddr,
    ready: bool,
    /// Tokens in the contexts of its requests.
    context: u64,
    /// The last report of this life.
    report: Report,
}

/// All that the picker knows.
pub(super) struct Known {
    router: Arc<Router>,
    places: Vec<Place>,
}

impl Known {
    /// Of so many replicas, none of them ready.
    pub(super) fn new(settings: &router::Settings, replicas: usize) -> Self {
        let router = Router::new(settings.clone());
        let places = (0..replicas)
            .map(|replica| {
                let address = address(replica);
                Place {
                    id: router.join(endpoint(replica, address)),
                    address,
                    ready: false,
                    context: 0,
                    report: Report::default(),
                }
            })
            .collect();
        Self { router, places }
    }

    /// A replica is up, with an empty cache: its events are followed from here on.
    pub(super) fn up(&mut self, replica: usize) -> Option<CacheView> {
        let place = self.places.get_mut(replica)?;
        place.ready = true;
        let mut view = self.router.cache_view(place.id, 0);
        view.set_feed(FeedState::Live);
        self.router.set_ready(place.id, true);
        Some(view)
    }

    /// A replica is gone: all that was known of it is forgotten, and it joins anew in the same slot, not ready.
    pub(super) fn down(&mut self, replica: usize) {
        let Some(place) = self.places.get_mut(replica) else {
            return;
        };
        self.router.leave(place.id);
        place.id = self.router.join(endpoint(replica, place.address));
        place.ready = false;
        place.context = 0;
        place.report = Report::default();
    }

    /// A report has come.
    pub(super) fn report(&mut self, replica: usize, report: Report, now: Instant) {
        if let Some(place) = self.places.get_mut(replica) {
            place.report = report;
            self.router
                .report(place.id, ReportOutcome::Fresh(report), now);
        }
    }

    /// The contexts of a replica's requests grew by so many tokens.
    pub(super) fn grew(&mut self, replica: usize, tokens: u64) {
        if let Some(place) = self.places.get_mut(replica) {
            place.context += tokens;
        }
    }

    /// So many tokens are no longer in the context of a request.
    pub(super) fn shrank(&mut self, replica: usize, tokens: u64) {
        if let Some(place) = self.places.get_mut(replica) {
            place.context = place.context.saturating_sub(tokens);
        }
    }

    /// The replica that was chosen.
    pub(super) fn replica_of(&self, id: EndpointId) -> Option<usize> {
        self.places.iter().position(|place| place.id == id)
    }

    /// Prompt tokens booked at each replica.
    pub(super) fn queued(&self, now: Instant) -> Vec<u64> {
        let views = self.router.endpoints(now);
        let queued = |place: &Place| {
            let view = views.iter().find(|view| view.id == place.id);
            view.map_or(0, |view| view.queued.get())
        };
        self.places.iter().map(queued).collect()
    }

    /// Tokens and requests booked anywhere.
    #[cfg(test)]
    pub(super) fn booked(&self, now: Instant) -> (u64, u64) {
        let views = self.router.endpoints(now);
        let tokens = views.iter().map(|view| view.queued.get()).sum();
        (
            tokens,
            views.iter().map(|view| u64::from(view.in_flight)).sum(),
        )
    }

    /// Tokens of all contexts.
    #[cfg(test)]
    pub(super) fn contexts(&self) -> u64 {
        self.places.iter().map(|place| place.context).sum()
    }

    fn seen(&self, candidates: &[Candidate]) -> Vec<Seen> {
        let seen = |(replica, place): (usize, &Place)| {
            let candidate = candidates
                .iter()
                .find(|candidate| candidate.id == place.id)?;
            Some(Seen {
                replica,
                ready: place.ready && candidate.excluded != Some(Exclusion::NotReady),
                cached: candidate.cached.get(),
                queued: candidate.queued.get(),
                in_flight: candidate.in_flight,
                context: place.context,
                kv_usage: place.report.kv_usage,
                running: place.report.running,
                waiting: place.report.waiting,
            })
        };
        self.places.iter().enumerate().filter_map(seen).collect()
    }
}

impl Knowledge for Known {
    fn survey(&self, asked: &Asked<'_>) -> Vec<Seen> {
        self.seen(&self.router.survey(asked.prepared, &ask(asked, None)))
    }

    fn survey_load(&self, asked: &Asked<'_>) -> Vec<Seen> {
        let prepared = asked.prepared.clone().bypassing_cache();
        self.seen(&self.router.survey(&prepared, &ask(asked, None)))
    }

    fn book(&self, asked: &Asked<'_>, replica: usize) -> Result<Decision, Refusal> {
        let place = self.places.get(replica).ok_or(Refusal::EmptySubset)?;
        let only = [SubsetEntry::Endpoint(place.address)];
        self.router.pick(asked.prepared, &ask(asked, Some(&only)))
    }

    fn pick(&self, asked: &Asked<'_>) -> Result<Decision, Refusal> {
        self.router.pick(asked.prepared, &ask(asked, None))
    }

    fn prefill_per_token(&self) -> Option<Duration> {
        self.router.prefill_per_token()
    }
}

fn ask<'a>(asked: &Asked<'_>, subset: Option<&'a [SubsetEntry]>) -> Ask<'a> {
    Ask {
        subset,
        alternates: 0,
        now: asked.now,
        chance: asked.chance,
    }
}

fn endpoint(replica: usize, address: SocketAddr) -> Endpoint {
    Endpoint {
        name: EndpointName::new("fleet", &replica.to_string()),
        address,
        labels: BTreeMap::new(),
        incarnation: String::new(),
        rank: None,
    }
}

/// One of its own for each replica.
fn address(replica: usize) -> SocketAddr {
    let host = u32::try_from(replica).unwrap_or(u32::MAX);
    SocketAddr::from((Ipv4Addr::from_bits(0x0a00_0000 | host), 8000))
}
