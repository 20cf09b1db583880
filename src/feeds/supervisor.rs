//! Keeps one group of tasks for each member of the pool: probe, report loop, KV followers.
//!
//! A member is an address; how many endpoints of the router it is, is for its [`Life`] to say.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::client::Client;
use super::kv_events;
use super::life::{Audience, Life};
use super::load::{self, ReportLoop, Waker};
use super::pool::{Member, Pool, Versions};
use super::probe::{ProbeLoop, Profile};
use crate::metrics::events::EventMetrics;
use crate::metrics::picks::PickMetrics;
use crate::metrics::reports::ReportMetrics;
use crate::readiness::{Awaited, Readiness};
use crate::routing::endpoint::{EndpointId, EndpointName};
use crate::routing::router::Router;
use crate::tokens::Tokens;
use claims::Claims;
use followers::{Followers, Told};
use warming::{Hold, MemberHold, Warming};

mod claims;
mod followers;
mod plan;
#[cfg(test)]
mod tests;
mod warming;

/// What engines told of themselves, for pages. The lock guards the map; written once a change.
pub type Profiles = Arc<Mutex<HashMap<EndpointId, Profile>>>;

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
    life: Arc<Life>,
    stop: CancellationToken,
}

/// Follows the pool.
pub struct Supervisor {
    context: Context,
    claims: Arc<Claims>,
    /// For members that join now; only those of the first version are waited for.
    hold: Option<Hold>,
    groups: HashMap<EndpointName, Group>,
    tasks: JoinSet<Ended>,
    names: HashMap<Id, EndpointName>,
}

/// How a group ended: by order (`None`) or by itself.
struct Ended {
    address: SocketAddr,
    by_itself: Option<&'static str>,
}

impl Supervisor {
    /// One without endpoints.
    pub fn new(context: Context) -> Self {
        Self {
            context,
            claims: Arc::default(),
            hold: None,
            groups: HashMap::new(),
            tasks: JoinSet::new(),
            names: HashMap::new(),
        }
    }

    /// Follows `pool` until `stop`. While there is none, we are not ready; `started` is held until there is, and what
    /// it awaits is awaited again when the pool is gone.
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
        let what = started.what().clone();
        let mut awaited = Some(started);
        let mut first = true;
        let mut warming = None;
        loop {
            let version = pool.borrow_and_update().clone();
            // Not ready before the endpoints leave, ready only after they joined.
            if version.is_none() {
                awaited.get_or_insert_with(|| readiness.wait_for(what.clone()));
            }
            let attached = version.is_some();
            if attached && std::mem::take(&mut first) {
                let (begun, hold) = Warming::begin(&readiness);
                warming = Some(begun);
                self.hold = Some(hold);
            }
            let next = version.unwrap_or_default();
            self.apply(&current, &next);
            current = next;
            self.hold = None;
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
                    () = over(&mut warming) => warming = None,
                    Some(ended) = self.tasks.join_next_with_id() => self.ended(ended)?,
                }
            }
        }
    }

    fn apply(&mut self, current: &Pool, next: &Pool) {
        let diff = current.diff(next);
        let gone: Vec<Group> = diff
            .left
            .iter()
            .filter_map(|member| self.groups.remove(&member.endpoint.name))
            .collect();
        for member in diff.joined {
            self.join(member);
        }
        for member in &diff.changed {
            self.change(member);
        }
        // Last, so that there is somebody to be picked at any moment: a whole pool may have got
        // other ports or names. All at once, because it takes as long as for one.
        for group in &gone {
            info!(endpoint = %group.life.name(), address = %group.life.address(), "endpoint left");
        }
        let lives: Vec<Arc<Life>> = gone.iter().map(|group| Arc::clone(&group.life)).collect();
        Life::end(&lives);
        for group in gone {
            group.stop.cancel();
        }
    }

    fn join(&mut self, member: Member) {
        let context = self.context.clone();
        let audience = Audience {
            router: Arc::clone(&context.router),
            waker: Arc::clone(&context.waker),
            profiles: Arc::clone(&context.profiles),
            pick_metrics: Arc::clone(&context.pick_metrics),
        };
        let life = Life::begin(audience, member);
        let name = life.name().clone();
        let stop = CancellationToken::new();
        let beside = Beside {
            claims: Arc::clone(&self.claims),
            hold: MemberHold::new(self.hold.clone()),
        };
        let running = run_group(context, Arc::clone(&life), beside, stop.clone());
        let task = self.tasks.spawn(running);
        self.names.insert(task.id(), name.clone());
        self.groups.insert(name, Group { life, stop });
    }

    /// The life goes on, but something else is known of it.
    fn change(&self, member: &Member) {
        if let Some(group) = self.groups.get(&member.endpoint.name) {
            info!(endpoint = %member.endpoint.name, ready = member.ready, "endpoint changed");
            group.life.change(member, Instant::now());
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
        // Only now nothing of the old life can speak of the address any more; a new life
        // at the same address has told (or will tell) its own models.
        let taken = |group: &Group| group.life.address() == ended.address;
        if !self.groups.values().any(taken) {
            self.context.tokens.forget(ended.address);
        }
        match ended.by_itself {
            None => Ok(()),
            Some(part) => Err(SupervisorError::PartEnded { endpoint, part }),
        }
    }
}

/// What a group has to do with the others.
struct Beside {
    claims: Arc<Claims>,
    hold: MemberHold,
}

/// Waits until what is waited for is there; for ever if nothing is.
async fn over(warming: &mut Option<Warming>) {
    match warming {
        Some(warming) => warming.over().await,
        None => std::future::pending().await,
    }
}

/// Runs what belongs to one member until `stop`.
async fn run_group(
    context: Context,
    life: Arc<Life>,
    beside: Beside,
    stop: CancellationToken,
) -> Ended {
    let (profile, told) = watch::channel(Profile::default());
    let (ranks, page_ranks) = watch::channel(BTreeSet::new());
    let engine = context.client.engine(life.address());
    let probing = ProbeLoop {
        name: life.name().clone(),
        address: life.address(),
        engine: engine.clone(),
        came_back: life.profile_bell(),
        profile,
    };
    let unheard = beside.hold.clone();
    let asking = ReportLoop {
        life: Arc::clone(&life),
        engine,
        ranks,
        settings: context.reports.clone(),
        metrics: Arc::clone(&context.report_metrics),
    };
    let told = Told {
        profile: told,
        page_ranks,
        hints: life.hints(),
    };
    let followers = Followers::new(&context, &life, beside);
    let by_itself = tokio::select! {
        // First, because the followers stop by a child of the same token.
        biased;
        () = stop.cancelled() => None,
        () = probing.run(|| unheard.release()) => Some("probe"),
        () = asking.run() => Some("report loop"),
        () = followers.run(told, &stop) => Some("KV event follower"),
    };
    Ended {
        address: life.address(),
        by_itself,
    }
}
