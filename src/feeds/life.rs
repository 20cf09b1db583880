//! Which endpoints of the router does one member of the pool stand for, and what happens to them?
//!
//! A member is one address in one life. It is one endpoint, or, where a server tells of several
//! data-parallel ranks behind it, one endpoint a rank: caches and queues of ranks have nothing in
//! common, and a request can be pinned to one. Its tasks know the member alone and go through here.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tracing::info;

use super::adapters::{Replaced, Roots};
use super::kv_events::{Demands, Work};
use super::load::{Finding, Waker};
use super::pool::{EventHints, Member};
use super::presence::Presence;
use super::probe::Profile;
use super::supervisor::Profiles;
use crate::metrics::picks::PickMetrics;
use crate::routing::endpoint::{Endpoint, EndpointId, EndpointName, Ours, ReportOutcome};
use crate::routing::router::Router;

#[cfg(test)]
pub(in crate::feeds) mod tests;

/// Who has to hear of endpoints that come and go.
#[derive(Clone)]
pub struct Audience {
    /// Who picks among them.
    pub router: Arc<Router>,
    /// Where the bells of the report loops hang.
    pub waker: Arc<Waker>,
    /// What engines told, for pages.
    pub profiles: Profiles,
    /// Counts of picks, whose series go with their endpoint.
    pub pick_metrics: Arc<PickMetrics>,
}

impl Audience {
    /// These endpoints left.
    fn forget(&self, gone: &[EndpointId]) {
        self.router.leave_all(gone);
        for &id in gone {
            self.waker.take_down(id);
            self.profiles.lock().remove(&id);
            self.pick_metrics.forget(id);
        }
    }
}

/// One life of one member of the pool.
pub struct Life {
    audience: Audience,
    name: EndpointName,
    address: SocketAddr,
    /// Rung when its report should be asked for at once.
    bell: Arc<Notify>,
    /// Rung when what the engine tells of itself should be asked for again.
    ask_again: Arc<Notify>,
    /// Rung when another process answers at its address.
    process_bell: Arc<Notify>,
    hints: watch::Sender<EventHints>,
    /// Adapters that were replaced under their names.
    replaced: watch::Sender<Replaced>,
    /// Never held across an `await`. The router's locks are taken under it, never the other way.
    standing: Mutex<Standing>,
}

struct Standing {
    /// As discovery gave it.
    whole: Endpoint,
    ready: bool,
    /// By rank; under `None` the whole, if it is one endpoint. Empty once the life is over.
    endpoints: BTreeMap<Option<u32>, EndpointId>,
    /// What is asked of the followers of each of them.
    demands: BTreeMap<Option<u32>, watch::Sender<Demands>>,
    /// How often its container was started again.
    restarts: u32,
    profile: Option<Profile>,
    roots: Roots,
    presence: Presence,
}

impl Standing {
    /// Asks something of all followers.
    fn demand(&self, what: impl Fn(&mut Demands)) {
        for demands in self.demands.values() {
            demands.send_modify(&what);
        }
    }
}

impl Life {
    /// A member joins, as one endpoint.
    pub fn begin(audience: Audience, member: Member) -> Arc<Self> {
        let Member {
            endpoint: whole,
            ready,
            restarts,
            events,
        } = member;
        let life = Self {
            audience,
            name: whole.name.clone(),
            address: whole.address,
            bell: Arc::default(),
            ask_again: Arc::default(),
            process_bell: Arc::default(),
            hints: watch::Sender::new(events),
            replaced: watch::Sender::default(),
            standing: Mutex::new(Standing {
                whole,
                ready,
                endpoints: BTreeMap::new(),
                demands: BTreeMap::new(),
                restarts,
                profile: None,
                roots: Roots::default(),
                presence: Presence::default(),
            }),
        };
        let mut standing = life.standing.lock();
        life.join(&mut standing, None);
        drop(standing);
        Arc::new(life)
    }

    /// These left, all of one audience, and their endpoints with them. Whatever their tasks still
    /// say comes to nothing.
    pub fn end(lives: &[Arc<Self>]) {
        let Some(first) = lives.first() else { return };
        let take = |life: &Arc<Self>| std::mem::take(&mut life.standing.lock().endpoints);
        let gone: Vec<EndpointId> = lives.iter().flat_map(take).map(|(_, id)| id).collect();
        first.audience.forget(&gone);
    }

    /// The member's name, also that of its endpoint while it is one.
    pub fn name(&self) -> &EndpointName {
        &self.name
    }

    /// The name of one of its endpoints; `None` is the whole.
    pub fn name_of(&self, rank: Option<u32>) -> EndpointName {
        rank.map_or_else(|| self.name.clone(), |rank| self.name.of_rank(rank))
    }

    /// Where the server is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where discovery says that its KV events are.
    pub fn hints(&self) -> watch::Receiver<EventHints> {
        self.hints.subscribe()
    }

    /// What is asked of the followers of one of its endpoints; nothing any more if it has none such.
    pub fn demands(&self, rank: Option<u32>) -> watch::Receiver<Demands> {
        let standing = self.standing.lock();
        let sender = standing.demands.get(&rank);
        sender.map_or_else(
            || watch::Sender::default().subscribe(),
            watch::Sender::subscribe,
        )
    }

    /// How often adapters were replaced there.
    pub(super) fn replaced_adapters(&self) -> watch::Receiver<Replaced> {
        self.replaced.subscribe()
    }

    /// Waits until a report is wanted at once.
    pub async fn report_wanted(&self) {
        self.bell.notified().await;
    }

    /// Rung when the engine may tell something new of itself.
    pub fn profile_bell(&self) -> Arc<Notify> {
        Arc::clone(&self.ask_again)
    }

    /// Rung when another process answers at its address.
    pub fn process_bell(&self) -> Arc<Notify> {
        Arc::clone(&self.process_bell)
    }

    /// The engine answers after a silence. Its events may have been cut off meanwhile.
    pub fn came_back(&self) {
        self.ask_again.notify_one();
        self.standing.lock().demand(|demands| {
            demands.reconnects = demands.reconnects.wrapping_add(1);
        });
    }

    /// One of its endpoints has something booked, in flight or running.
    pub fn is_busy(&self) -> bool {
        let router = &self.audience.router;
        let standing = self.standing.lock();
        standing.endpoints.values().any(|&id| router.is_busy(id))
    }

    /// What this picker has there, over all of its endpoints; once the life is over nothing that can be called idle.
    pub fn ours(&self) -> Ours {
        let standing = self.standing.lock();
        let each = standing.endpoints.values();
        each.map(|&id| self.audience.router.ours(id))
            .reduce(|a, b| Ours {
                booked: a.booked + b.booked,
                idle: a.idle && b.idle,
            })
            .unwrap_or_default()
    }

    /// Discovery knows something else of it now.
    pub fn change(&self, member: &Member, now: Instant) {
        let router = &self.audience.router;
        let mut standing = self.standing.lock();
        let relabelled = standing.whole.labels != member.endpoint.labels;
        if relabelled {
            standing.whole.labels = member.endpoint.labels.clone();
        }
        let became_ready = member.ready && !standing.ready;
        standing.ready = member.ready;
        for &id in standing.endpoints.values() {
            router.set_ready(id, member.ready);
            if relabelled {
                router.set_labels(id, member.endpoint.labels.clone());
            }
        }
        self.hints.send_if_modified(|hints| {
            let differs = *hints != member.events;
            *hints = member.events.clone();
            differs
        });
        let restarted = member.restarts > standing.restarts;
        if restarted {
            standing.restarts = member.restarts;
            standing.demand(|demands| demands.proofs = demands.proofs.wrapping_add(1));
            info!(endpoint = %self.name, restarts = member.restarts, "engine's container was restarted");
            let since = standing.presence.counted(now);
            self.restarted(&standing, since, now);
        }
        drop(standing);
        // One that has just become ready answers by now: its first requests should find its
        // report, and its ranks.
        if restarted || became_ready {
            self.bell.notify_one();
            self.ask_again.notify_one();
        }
    }

    /// What came of a question about its state that was asked at `asked`.
    pub fn report(&self, finding: &Finding, asked: Instant, now: Instant) {
        let mut standing = self.standing.lock();
        let refused = finding.outcome == ReportOutcome::Refused;
        if refused || finding.outcome == ReportOutcome::Failed {
            standing.presence.failed(asked, refused);
        } else {
            if !standing.presence.is_met() {
                // A life before this one may have been at the same address.
                self.process_bell.notify_one();
            }
            let since = standing.presence.answered();
            if since.is_some() {
                info!(endpoint = %self.name, "engine is back: what was sent to it before is no longer taken to be cached");
                self.ask_again.notify_one();
            }
            if let Some(since) = since {
                standing.demand(|demands| demands.away_at = Some(since.into()));
            }
            self.restarted(&standing, since, now);
        }
        for (&rank, &id) in &standing.endpoints {
            let outcome = finding.of_rank(rank);
            if let ReportOutcome::Fresh(report) = outcome {
                let work = Work::of(&report, asked.into()).filter(|_| finding.tells_apart(rank));
                self.reported(&standing, (rank, id), report.asleep, work, now);
            }
            self.audience.router.report(id, outcome, now);
        }
    }

    /// What a report means for what is taken to be cached there.
    fn reported(
        &self,
        standing: &Standing,
        (rank, id): (Option<u32>, EndpointId),
        asleep: bool,
        work: Option<Work>,
        now: Instant,
    ) {
        if asleep {
            // Said with each report, because a replay that ends meanwhile would fill the view with
            // what the engine had: it tells of its empty cache only when it wakes and computes.
            self.audience.router.restarted(id, now, now);
        }
        if let Some(demands) = standing.demands.get(&rank) {
            demands.send_if_modified(|demands| {
                demands.work = work;
                if asleep {
                    demands.empties = demands.empties.wrapping_add(1);
                }
                asleep
            });
        }
    }

    /// The engine told something of itself.
    pub fn tell_profile(&self, profile: Profile) {
        let mut standing = self.standing.lock();
        let mut profiles = self.audience.profiles.lock();
        for &id in standing.endpoints.values() {
            profiles.insert(id, profile.clone());
        }
        drop(profiles);
        let mut replaced = self.replaced.borrow().clone();
        if standing.roots.observe(&profile.models, &mut replaced) {
            info!(endpoint = %self.name, "an adapter was replaced under its name: its blocks count no more");
            self.replaced.send_replace(replaced);
            standing.demand(|demands| demands.adapters = demands.adapters.wrapping_add(1));
        }
        standing.profile = Some(profile);
    }

    /// Makes it one endpoint for each of these ranks, or a single one for none, and tells which
    /// they are. Those that it has already stay as they are.
    pub fn divide(&self, ranks: &BTreeSet<u32>) -> BTreeMap<Option<u32>, EndpointId> {
        let mut standing = self.standing.lock();
        if standing.endpoints.is_empty() {
            return BTreeMap::new();
        }
        let mut wanted: BTreeSet<Option<u32>> = ranks.iter().copied().map(Some).collect();
        if wanted.is_empty() {
            wanted.insert(None);
        }
        let joining: Vec<Option<u32>> = wanted
            .iter()
            .filter(|rank| !standing.endpoints.contains_key(rank))
            .copied()
            .collect();
        // First these, so that there is somebody to be picked at any moment.
        for &rank in &joining {
            self.join(&mut standing, rank);
        }
        let mut gone = Vec::new();
        standing.endpoints.retain(|rank, id| {
            let stays = wanted.contains(rank);
            gone.extend((!stays).then_some(*id));
            stays
        });
        standing.demands.retain(|rank, _| wanted.contains(rank));
        let endpoints = standing.endpoints.clone();
        drop(standing);
        self.audience.forget(&gone);
        if !joining.is_empty() {
            info!(endpoint = %self.name, ?ranks, "data-parallel ranks to pick among");
            self.bell.notify_one();
        }
        endpoints
    }

    fn restarted(&self, standing: &Standing, since: Option<Instant>, now: Instant) {
        let Some(since) = since else { return };
        self.process_bell.notify_one();
        for &id in standing.endpoints.values() {
            self.audience.router.restarted(id, since, now);
        }
    }

    fn join(&self, standing: &mut Standing, rank: Option<u32>) {
        let Audience {
            router,
            waker,
            profiles,
            pick_metrics,
        } = &self.audience;
        let mut endpoint = standing.whole.clone();
        if let Some(rank) = rank {
            endpoint.name = self.name_of(Some(rank));
            endpoint.rank = Some(rank);
        }
        info!(endpoint = %endpoint.name, address = %endpoint.address, "endpoint joined");
        let name = endpoint.name.clone();
        let id = router.join(endpoint);
        pick_metrics.meet(id, &name);
        router.set_ready(id, standing.ready);
        let demands = watch::Sender::default();
        waker.hang(id, Arc::clone(&self.bell), demands.clone());
        standing.demands.insert(rank, demands);
        if let Some(profile) = &standing.profile {
            profiles.lock().insert(id, profile.clone());
        }
        standing.endpoints.insert(rank, id);
    }
}
