//! The KV followers of one member: one for each event source, as the engine tells of itself.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::claims::Claimant;
use super::plan::{Known, Plan};
use super::warming::{Hold, MemberHold};
use super::{Beside, Context};
use crate::feeds::adapters::{AdapterBlocks, Replaced};
use crate::feeds::kv_events::{self, Source, View};
use crate::feeds::life::Life;
use crate::feeds::pool::EventHints;
use crate::feeds::probe::Profile;
use crate::routing::cache::{Applied, CacheView, FeedState};
use crate::routing::endpoint::EndpointId;
use crate::routing::event::KvEvent;

/// What is known of the engine, as it changes.
pub(super) struct Told {
    /// What it tells of itself.
    pub(super) profile: watch::Receiver<Profile>,
    /// The ranks that its metrics page speaks of.
    pub(super) page_ranks: watch::Receiver<BTreeSet<u32>>,
    /// What discovery says of its events.
    pub(super) hints: watch::Receiver<EventHints>,
}

/// The followers of one member. Dropping it ends them.
pub(super) struct Followers<'a> {
    context: &'a Context,
    life: &'a Life,
    /// What would be followed if no other server claimed the same.
    wanted: Plan,
    /// What is followed now, or why it is not.
    plan: Plan,
    claimant: Claimant,
    hold: MemberHold,
    /// The endpoints that the member is, by rank.
    endpoints: BTreeMap<Option<u32>, EndpointId>,
    tasks: JoinSet<()>,
}

impl<'a> Followers<'a> {
    pub(super) fn new(context: &'a Context, life: &'a Life, beside: Beside) -> Self {
        let Beside { claims, hold } = beside;
        Self {
            context,
            life,
            wanted: Plan::default(),
            claimant: claims.join(life.name().clone(), life.address()),
            hold,
            plan: Plan::default(),
            endpoints: life.divide(&BTreeSet::new()),
            tasks: JoinSet::new(),
        }
    }

    /// Acts on what is told; ends only if a follower does, or whoever tells.
    pub(super) async fn run(mut self, mut told: Told, stop: &CancellationToken) {
        let rank = told.hints.borrow().rank.unwrap_or(0);
        let why = "the engine has not yet told where its KV events are".to_owned();
        self.plan.sources.insert(rank, Err(why));
        self.begin(stop);
        let mut claims = self.claimant.changes();
        let process_bell = self.life.process_bell();
        loop {
            let changed = tokio::select! {
                changed = told.profile.changed() => {
                    self.learn(&told.profile.borrow_and_update());
                    changed
                }
                changed = told.page_ranks.changed() => changed,
                changed = told.hints.changed() => changed,
                changed = claims.changed() => changed,
                () = process_bell.notified() => {
                    self.context.tokens.restarted(self.life.address());
                    continue;
                }
                Some(_ended) = self.tasks.join_next() => return,
            };
            if changed.is_err() {
                return;
            }
            let plan = Plan::new(&Known {
                engine: self.life.address().ip(),
                profile: &told.profile.borrow_and_update(),
                page_ranks: &told.page_ranks.borrow_and_update(),
                hints: &told.hints.borrow_and_update(),
                settings: &self.context.kv_events,
            });
            let Some(plan) = plan else { continue };
            if plan != self.wanted {
                self.wanted = plan;
                // The ports of one Pod may well speak of the same ranks.
                let one_of_several_ports = told.hints.borrow().rank.is_some();
                if !one_of_several_ports {
                    self.claimant.claim(&self.wanted);
                }
            }
            let plan = self.claimant.uncontested(self.wanted.clone());
            if plan != self.plan {
                self.take_up(plan, stop).await;
            }
        }
    }

    fn learn(&self, profile: &Profile) {
        let models = profile.models.clone();
        let tokens = &self.context.tokens;
        tokens.observe(self.life.address(), models, profile.version);
        self.life.tell_profile(profile.clone());
    }

    async fn take_up(&mut self, plan: Plan, stop: &CancellationToken) {
        info!(endpoint = %self.life.name(), sources = ?plan.sources, "engine's KV event sources");
        // Followers write through views of the router, so the old ones end before new ones begin.
        self.tasks.shutdown().await;
        for &rank in self.plan.sources.keys() {
            if let Some(id) = self.id(rank)
                && !plan.sources.contains_key(&rank)
            {
                self.context.router.end_feed(id, rank);
            }
        }
        self.endpoints = self.life.divide(&plan.ranks);
        self.plan = plan;
        self.begin(stop);
        // Its sources hold on by themselves from here on.
        self.hold.release();
    }

    /// Follows what can be followed, and says of the rest why it cannot.
    fn begin(&mut self, stop: &CancellationToken) {
        for (&rank, source) in &self.plan.sources {
            // Without an endpoint the life is over.
            let Some(id) = self.id(rank) else { continue };
            let mut view = self.context.router.cache_view(id, rank);
            match source {
                Ok(source) => {
                    let of = self.rank_of(rank);
                    // A guess may come to nothing, and takes its time for that.
                    let hold = self.hold.share().filter(|_| source.known);
                    let view = observed(self.life, view, hold);
                    let following = follow(self.context, self.life, of, view, source.clone(), stop);
                    self.tasks.spawn(following);
                }
                Err(why) => {
                    view.set_feed(FeedState::Absent(why.clone()));
                }
            }
        }
    }

    /// The endpoint that a rank's events are about.
    fn id(&self, rank: u32) -> Option<EndpointId> {
        self.endpoints.get(&self.rank_of(rank)).copied()
    }

    /// The rank that is an endpoint of its own, or `None` for the whole.
    fn rank_of(&self, rank: u32) -> Option<u32> {
        self.plan.ranks.contains(&rank).then_some(rank)
    }
}

/// Follows one source, of the endpoint that the member is or that one of its ranks is, for as long as it is polled.
fn follow(
    context: &Context,
    life: &Life,
    of: Option<u32>,
    mut view: Observed,
    source: Source,
    stop: &CancellationToken,
) -> impl Future<Output = ()> + Send + 'static {
    let settings = context.kv_events.clone();
    view.view.limit_orphans(settings.max_orphans);
    let metrics = Arc::clone(&context.event_metrics);
    let (name, demands, stop) = (life.name_of(of), life.demands(of), stop.child_token());
    async move {
        kv_events::follow(
            name.as_str(),
            source,
            view,
            demands,
            settings,
            metrics,
            stop,
        )
        .await;
    }
}

/// A view of one source of a member.
fn observed(life: &Life, view: CacheView, hold: Option<Hold>) -> Observed {
    let replaced = life.replaced_adapters();
    let forgotten = replaced.borrow().clone();
    Observed {
        view,
        adapter_blocks: AdapterBlocks::default(),
        replaced,
        forgotten,
        hold,
        profile_bell: life.profile_bell(),
        process_bell: life.process_bell(),
        state: None,
        was_trusted: false,
    }
}

/// A view that knows whose blocks are those of adapters, and whose owner is told when its source
/// is back after it was lost: the engine may be another one, with other ranks and models. State
/// reports come too seldom to see every restart.
struct Observed {
    view: CacheView,
    adapter_blocks: AdapterBlocks,
    replaced: watch::Receiver<Replaced>,
    /// The replacements whose blocks are forgotten.
    forgotten: Replaced,
    /// Our readiness waits for its first replay.
    hold: Option<Hold>,
    profile_bell: Arc<Notify>,
    process_bell: Arc<Notify>,
    state: Option<FeedState>,
    /// It was followed before the present state.
    was_trusted: bool,
}

impl View for Observed {
    fn apply(&mut self, events: &[KvEvent]) -> Applied {
        self.adapter_blocks.note(events);
        self.view.apply(events)
    }

    fn clear(&mut self) {
        self.adapter_blocks.clear();
        self.view.clear();
    }

    fn restarted(&mut self) {
        self.adapter_blocks.clear();
        self.view.restarted();
        self.process_bell.notify_one();
    }

    fn forget_replaced_adapters(&mut self) {
        let replaced = self.replaced.borrow().clone();
        for (adapter, times) in &replaced {
            if self.forgotten.get(adapter) != Some(times) {
                let leaving = self.adapter_blocks.take(adapter);
                self.view.apply(&leaving);
            }
        }
        self.forgotten = replaced;
    }

    fn set_feed(&mut self, state: FeedState) {
        let is_trusted =
            |state: &FeedState| matches!(state, FeedState::Live | FeedState::Incomplete(_));
        if is_trusted(&state) {
            if self.was_trusted && self.state == Some(FeedState::Suspect) {
                self.profile_bell.notify_one();
            }
            self.was_trusted = true;
        }
        if state != FeedState::Suspect {
            self.hold = None;
        }
        self.state = Some(state.clone());
        self.view.set_feed(state);
    }
}
