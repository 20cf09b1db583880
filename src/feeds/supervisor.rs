//! Keeps one group of tasks an endpoint, as the pool says: probe, report loop, KV followers.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::client::Client;
use super::kv_events::{self, Source};
use super::load::{self, ReportLoop, Waker};
use super::pool::{Member, Pool, Versions};
use super::probe::{self, Events, ProbeLoop, Profile};
use crate::metrics::events::EventMetrics;
use crate::metrics::picks::PickMetrics;
use crate::metrics::reports::ReportMetrics;
use crate::readiness::{Awaited, Readiness};
use crate::routing::cache::FeedState;
use crate::routing::endpoint::{Endpoint, EndpointId, EndpointName};
use crate::routing::router::Router;
use crate::tokens::Tokens;

/// What engines told of themselves, for pages. The lock guards the map; written once a change.
pub type Profiles = Arc<Mutex<HashMap<EndpointId, Profile>>>;

/// What readiness waits for while there is no pool.
pub const POOL: &str = "pool";

/// What every group works with.
#[derive(Clone)]
pub struct Context {
    /// Who is told of endpoints, reports and blocks.
    pub router: Arc<Router>,
    /// Who is told of models.
    pub tokens: Arc<Tokens>,
    /// Where the bells of the report loops hang.
    pub waker: Arc<Waker>,
    /// How engines are asked.
    pub client: Client,
    /// How often.
    pub reports: load::Settings,
    /// How events are followed.
    pub kv_events: kv_events::Settings,
    /// What engines told.
    pub profiles: Profiles,
    /// Counts of reports.
    pub report_metrics: Arc<ReportMetrics>,
    /// Counts of events.
    pub event_metrics: Arc<EventMetrics>,
    /// Counts of picks, whose series go with their endpoint.
    pub pick_metrics: Arc<PickMetrics>,
}

/// Why the world no longer comes in.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// Whoever watched the pool ended.
    #[error("the pool's source ended by itself")]
    PoolEnded,
    /// A part of an endpoint's group ended.
    #[error("the {part} of endpoint {endpoint} ended by itself")]
    PartEnded {
        /// Whose.
        endpoint: EndpointName,
        /// Which.
        part: &'static str,
    },
    /// An endpoint's group panicked.
    #[error("the tasks of endpoint {endpoint} failed")]
    Panicked {
        /// Whose.
        endpoint: EndpointName,
        /// How.
        source: JoinError,
    },
}

struct Group {
    id: EndpointId,
    address: SocketAddr,
    stop: CancellationToken,
}

/// Follows the pool.
pub struct Supervisor {
    context: Context,
    groups: HashMap<EndpointName, Group>,
    tasks: JoinSet<Ended>,
    names: HashMap<Id, EndpointName>,
}

/// How a group ended: by order (`None`) or by itself.
struct Ended {
    id: EndpointId,
    address: SocketAddr,
    by_itself: Option<&'static str>,
}

impl Supervisor {
    /// One without endpoints.
    pub fn new(context: Context) -> Self {
        Self {
            context,
            groups: HashMap::new(),
            tasks: JoinSet::new(),
            names: HashMap::new(),
        }
    }

    /// Follows `pool` until `stop`. While there is none, we are not ready; `started` is held until there is.
    ///
    /// # Errors
    /// When the pool's source or a part of an endpoint's group ends by itself.
    pub async fn run(
        mut self,
        mut pool: Versions,
        readiness: Readiness,
        started: Awaited,
        stop: CancellationToken,
    ) -> Result<(), SupervisorError> {
        let mut current = Arc::new(Pool::default());
        let mut awaited = Some(started);
        loop {
            let version = pool.borrow_and_update().clone();
            // Not ready before the endpoints leave, ready only after they joined.
            if version.is_none() {
                awaited.get_or_insert_with(|| readiness.wait_for(POOL));
            }
            let attached = version.is_some();
            let next = version.unwrap_or_default();
            self.apply(&current, &next);
            current = next;
            if attached {
                awaited = None;
            }
            loop {
                tokio::select! {
                    // First, because the pool's source stops by the same token.
                    biased;
                    () = stop.cancelled() => {
                        self.tasks.shutdown().await;
                        return Ok(());
                    }
                    changed = pool.changed() => match changed {
                        Ok(()) => break,
                        Err(_closed) => return Err(SupervisorError::PoolEnded),
                    },
                    Some(ended) = self.tasks.join_next_with_id() => self.ended(ended)?,
                }
            }
        }
    }

    fn apply(&mut self, current: &Pool, next: &Pool) {
        let diff = current.diff(next);
        for member in &diff.left {
            self.leave(&member.endpoint);
        }
        for member in diff.joined {
            self.join(member);
        }
        for member in &diff.changed {
            self.change(member);
        }
    }

    fn join(&mut self, member: Member) {
        let Member {
            endpoint, ready, ..
        } = member;
        let id = self.context.router.join(endpoint.clone());
        info!(endpoint = %endpoint.name, address = %endpoint.address, "endpoint joined");
        self.context.router.set_ready(id, ready);
        let stop = CancellationToken::new();
        let name = endpoint.name.clone();
        let group = Group {
            id,
            address: endpoint.address,
            stop: stop.clone(),
        };
        let running = run_group(self.context.clone(), id, endpoint, stop);
        let task = self.tasks.spawn(running);
        self.names.insert(task.id(), name.clone());
        self.groups.insert(name, group);
    }

    /// The life goes on, but something else is known of it.
    fn change(&mut self, member: &Member) {
        let Some(group) = self.groups.get(&member.endpoint.name) else {
            return;
        };
        info!(endpoint = %member.endpoint.name, ready = member.ready, "endpoint changed");
        self.context.router.set_ready(group.id, member.ready);
    }

    fn leave(&mut self, endpoint: &Endpoint) {
        if let Some(group) = self.groups.remove(&endpoint.name) {
            info!(endpoint = %endpoint.name, address = %endpoint.address, "endpoint left");
            self.context.router.leave(group.id);
            self.context.pick_metrics.forget(group.id);
            group.stop.cancel();
        }
    }

    /// Cleans up after a group that was told to stop; any other end is an error.
    fn ended(&mut self, ended: Result<(Id, Ended), JoinError>) -> Result<(), SupervisorError> {
        let task = match &ended {
            Ok((task, _)) => *task,
            Err(failed) => failed.id(),
        };
        let endpoint = self
            .names
            .remove(&task)
            .unwrap_or_else(|| EndpointName::new("", "unknown"));
        let (_, ended) = ended.map_err(|source| SupervisorError::Panicked {
            endpoint: endpoint.clone(),
            source,
        })?;
        self.context.profiles.lock().remove(&ended.id);
        // Only now nothing of the old life can speak of the address any more; a new life
        // at the same address has told (or will tell) its own models.
        let taken = |group: &Group| group.address == ended.address;
        if !self.groups.values().any(taken) {
            self.context.tokens.forget(ended.address);
        }
        match ended.by_itself {
            None => Ok(()),
            Some(part) => Err(SupervisorError::PartEnded { endpoint, part }),
        }
    }
}

/// Runs what belongs to one endpoint until `stop`.
async fn run_group(
    context: Context,
    id: EndpointId,
    endpoint: Endpoint,
    stop: CancellationToken,
) -> Ended {
    let came_back = Arc::new(Notify::new());
    let (profile, told) = watch::channel(Profile::default());
    let engine = context.client.engine(endpoint.address);
    let probing = ProbeLoop {
        name: endpoint.name.clone(),
        address: endpoint.address,
        engine: engine.clone(),
        came_back: Arc::clone(&came_back),
        profile,
    };
    let asking = ReportLoop {
        id,
        name: endpoint.name.clone(),
        engine,
        router: Arc::clone(&context.router),
        waker: Arc::clone(&context.waker),
        settings: context.reports.clone(),
        metrics: Arc::clone(&context.report_metrics),
        came_back,
    };
    let followers = Followers {
        context: &context,
        id,
        endpoint: &endpoint,
        sources: BTreeMap::new(),
        tasks: JoinSet::new(),
    };
    let by_itself = tokio::select! {
        // First, because the followers stop by a child of the same token.
        biased;
        () = stop.cancelled() => None,
        () = probing.run() => Some("probe"),
        () = asking.run() => Some("report loop"),
        () = followers.run(told, &stop) => Some("KV event follower"),
    };
    Ended {
        id,
        address: endpoint.address,
        by_itself,
    }
}

/// The KV followers of one endpoint, one a rank. Dropping it ends them.
struct Followers<'a> {
    context: &'a Context,
    id: EndpointId,
    endpoint: &'a Endpoint,
    /// What is followed now, or why it is not.
    sources: BTreeMap<u32, Result<Source, String>>,
    tasks: JoinSet<()>,
}

impl Followers<'_> {
    /// Acts on what the engine tells; ends only if a follower does.
    async fn run(mut self, mut told: watch::Receiver<Profile>, stop: &CancellationToken) {
        self.absent(0, "the engine has not yet told where its KV events are");
        loop {
            tokio::select! {
                changed = told.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let profile = told.borrow_and_update().clone();
                    self.learn(profile, stop).await;
                }
                Some(_ended) = self.tasks.join_next() => return,
            }
        }
    }

    async fn learn(&mut self, profile: Profile, stop: &CancellationToken) {
        let Context {
            profiles, tokens, ..
        } = self.context;
        tokens.observe(
            self.endpoint.address,
            profile.models.clone(),
            profile.version,
        );
        profiles.lock().insert(self.id, profile.clone());
        let Some(events) = profile.events else { return };
        let sources = self.sources(events);
        if sources == self.sources {
            return;
        }
        info!(endpoint = %self.endpoint.name, ?sources, "engine's KV event sources");
        // Followers write through views of the router, so the old ones end before new ones begin.
        self.tasks.shutdown().await;
        for rank in self.sources.keys() {
            if !sources.contains_key(rank) {
                self.absent(*rank, "the engine no longer has this rank");
            }
        }
        for (rank, source) in &sources {
            match source {
                Ok(source) => self.follow(*rank, source.clone(), stop),
                Err(why) => self.absent(*rank, why),
            }
        }
        self.sources = sources;
    }

    fn sources(&self, events: Events) -> BTreeMap<u32, Result<Source, String>> {
        let settings = &self.context.kv_events;
        match events {
            Events::Told(ranks) => ranks,
            Events::Off => {
                let why = "the engine publishes no KV events (--kv-events-config)";
                BTreeMap::from([(0, Err(why.to_owned()))])
            }
            Events::Untold => {
                let address = self.endpoint.address.ip();
                let usual = probe::usual_source(address, settings.live_port, settings.replay_port);
                BTreeMap::from([(0, Ok(usual))])
            }
        }
    }

    fn follow(&mut self, rank: u32, source: Source, stop: &CancellationToken) {
        let name = self.endpoint.name.clone();
        let settings = self.context.kv_events.clone();
        let mut view = self.context.router.cache_view(self.id, rank);
        view.limit_orphans(settings.max_orphans);
        let metrics = Arc::clone(&self.context.event_metrics);
        let stop = stop.child_token();
        self.tasks.spawn(async move {
            kv_events::follow(name.as_str(), source, view, settings, metrics, stop).await;
        });
    }

    fn absent(&self, rank: u32, why: &str) {
        let mut view = self.context.router.cache_view(self.id, rank);
        view.clear();
        view.set_feed(FeedState::Absent(why.to_owned()));
    }
}
