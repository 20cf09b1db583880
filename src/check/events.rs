//! Where are the KV events, and do they come? Followed as the picker follows them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::Context;
use super::about::About;
use super::finding::{Findings, Topic};
use super::target::Target;
use crate::feeds::kv_events::{self, Demands, Source, View};
use crate::feeds::probe::Events;
use crate::feeds::supervisor::plan::{Known, Plan};
use crate::metrics::events::EventMetrics;
use crate::routing::cache::{Applied, FeedState};
use crate::routing::event::{KvEvent, Stored};

/// Stores kept while one is looked for.
const MOST_STORES: usize = 4096;

/// How an engine is told to publish.
pub(super) const HOW_TO_PUBLISH: &str = "start the engine with --kv-events-config \
     '{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:5557\",\
     \"replay_endpoint\":\"tcp://*:5558\"}' (with data parallelism each rank takes the next port: then the replay's must \
     be clear of them all)";

/// What one source said so far.
#[derive(Default)]
struct Heard {
    state: Option<FeedState>,
    stores: Vec<Stored>,
}

impl Heard {
    fn store_of(&self, prompt: &[u32]) -> Option<Stored> {
        let begins = |stored: &&Stored| {
            stored.parent.is_none()
                && !stored.tokens.is_empty()
                && prompt.starts_with(&stored.tokens)
        };
        self.stores.iter().find(begins).cloned()
    }
}

#[derive(Default)]
struct Shared {
    heard: Mutex<Heard>,
    news: Notify,
}

/// Keeps what comes instead of a cache.
struct Recorder(Arc<Shared>);

impl View for Recorder {
    fn apply(&mut self, events: &[KvEvent]) -> Applied {
        let mut heard = self.0.heard.lock();
        for event in events {
            if let KvEvent::Stored(stored) = event {
                if heard.stores.len() >= MOST_STORES {
                    heard.stores.clear();
                }
                heard.stores.push(stored.clone());
            }
        }
        drop(heard);
        self.0.news.notify_one();
        Applied::default()
    }

    fn clear(&mut self) {}

    fn set_feed(&mut self, state: FeedState) {
        self.0.heard.lock().state = Some(state);
        self.0.news.notify_one();
    }
}

/// One rank's source under way.
pub(super) struct Follow {
    pub(super) source: Source,
    shared: Arc<Shared>,
}

impl Follow {
    /// What is known of the source once it is no longer being caught up with, or at the deadline.
    async fn settled(&self, deadline: Instant) -> FeedState {
        loop {
            let state = self.shared.heard.lock().state.clone();
            match state {
                Some(state) if state != FeedState::Suspect => return state,
                state => {
                    if timeout_at(deadline, self.shared.news.notified())
                        .await
                        .is_err()
                    {
                        return state.unwrap_or(FeedState::Suspect);
                    }
                }
            }
        }
    }

    /// The store whose tokens begin a prompt, if it comes in time.
    pub(super) async fn store_of(&self, prompt: &[u32], patience: Duration) -> Option<Stored> {
        let deadline = Instant::now() + patience;
        loop {
            let found = self.shared.heard.lock().store_of(prompt);
            if found.is_some() {
                return found;
            }
            timeout_at(deadline, self.shared.news.notified())
                .await
                .ok()?;
        }
    }
}

/// The first store that any source tells of whose tokens begin a prompt, if it comes in time.
pub(super) async fn store_of(
    follows: &[Follow],
    prompt: &[u32],
    patience: Duration,
) -> Option<Stored> {
    let each = follows
        .iter()
        .map(|follow| follow.store_of(prompt, patience));
    let told: FuturesUnordered<_> = each.collect();
    let mut found = told.filter_map(std::future::ready);
    found.next().await
}

/// The sources of one engine, followed until this is dropped.
pub(super) struct Followed {
    pub(super) ranks: Vec<Follow>,
    /// There are several, and requests can be pinned to each.
    pub(super) pinned: bool,
    _tasks: JoinSet<()>,
    _stop: tokio_util::sync::DropGuard,
}

impl Followed {
    /// The sources of which one must tell of a request: that of the rank it is pinned to, or where nothing can be
    /// pinned any.
    pub(super) fn by_request(&self) -> impl Iterator<Item = &[Follow]> {
        let at_once = if self.pinned { 1 } else { self.ranks.len() };
        self.ranks.chunks(at_once.max(1))
    }

    /// Subscribes to each rank, and judges what replays give.
    pub(super) async fn begin(
        context: &Context,
        target: &Target,
        about: &About,
        findings: &mut Findings,
    ) -> Self {
        let settings = &context.settings.kv_events;
        let known = Known {
            engine: target.address.ip(),
            profile: &about.profile,
            page_ranks: &about.page_ranks,
            hints: &target.hints,
            settings,
        };
        let plan = Plan::new(&known).unwrap_or_default();
        judge_sources(about, &plan, findings);
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let mut ranks = Vec::new();
        let metrics = EventMetrics::register(&Registry::new()).map(Arc::new);
        if let Ok(metrics) = metrics {
            for source in plan.sources.into_values().flatten() {
                let shared = Arc::new(Shared::default());
                let (name, view) = (target.name.clone(), Recorder(Arc::clone(&shared)));
                let (settings, metrics) = (settings.clone(), Arc::clone(&metrics));
                let (followed, stop) = (source.clone(), stop.clone());
                tasks.spawn(async move {
                    // Nobody asks anything of it.
                    let (_alive, demands) = watch::channel(Demands::default());
                    kv_events::follow(&name, followed, view, demands, settings, metrics, stop)
                        .await;
                });
                ranks.push(Follow { source, shared });
            }
        }
        let deadline = Instant::now() + context.timeout;
        for follow in &ranks {
            let state = follow.settled(deadline).await;
            judge_replay(follow, &state, ranks.len(), findings);
        }
        if ranks.is_empty() {
            findings.left_out(Topic::Replay, "there is nothing to follow");
        }
        Self {
            ranks,
            pinned: plan.ranks.len() > 1,
            _tasks: tasks,
            _stop: stop.drop_guard(),
        }
    }
}

fn judge_sources(about: &About, plan: &Plan, findings: &mut Findings) {
    let wrong: Vec<&str> = plan
        .sources
        .values()
        .filter_map(|source| source.as_ref().err().map(String::as_str))
        .collect();
    let places: Vec<String> = plan.sources.values().flatten().map(place).collect();
    if !wrong.is_empty() {
        findings.fail(Topic::EventSources, wrong.join("\n"), HOW_TO_PUBLISH);
        return;
    }
    match about.profile.events {
        Some(Events::Told(_)) => findings.ok(Topic::EventSources, places.join("\n")),
        _ => findings.warn(
            Topic::EventSources,
            format!(
                "the engine does not tell (GET /kv_event_sources, since vLLM 0.31); tried: {}",
                places.join(", ")
            ),
            "where its ports are others, name them in the settings file (kv_events.live_port, kv_events.replay_port)",
        ),
    }
}

fn place(source: &Source) -> String {
    match &source.replay {
        Some(replay) => format!("rank {}: {}, replay {replay}", source.rank, source.live),
        None => format!("rank {}: {}", source.rank, source.live),
    }
}

fn judge_replay(follow: &Follow, state: &FeedState, ranks: usize, findings: &mut Findings) {
    let of_rank = match ranks {
        1 => String::new(),
        _ => format!("rank {}: ", follow.source.rank),
    };
    match state {
        FeedState::Live => findings.ok(
            Topic::Replay,
            format!("{of_rank}everything since the engine's start was replayed"),
        ),
        FeedState::Incomplete(cause) if follow.source.replay.is_none() => findings.fail(
            Topic::Replay,
            format!("{of_rank}{cause}"),
            "add \"replay_endpoint\":\"tcp://*:5558\" to --kv-events-config: without it a lost batch costs the whole view",
        ),
        FeedState::Incomplete(cause) => findings.warn(
            Topic::Replay,
            format!("{of_rank}{cause}"),
            "what is missing is learnt from the engine's answers; a larger \"buffer_steps\" in --kv-events-config reaches \
             further back",
        ),
        FeedState::Suspect => findings.fail(
            Topic::Replay,
            format!("{of_rank}the replay did not end in time"),
            "see that the engine's replay port can be reached, or ask again with a longer --timeout",
        ),
        FeedState::Absent(cause) => findings.fail(
            Topic::Replay,
            format!("{of_rank}{cause}"),
            HOW_TO_PUBLISH,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::event::{EngineHash, Medium};

    fn follow(rank: u32) -> Follow {
        Follow {
            source: Source {
                rank,
                ..Source::default()
            },
            shared: Arc::default(),
        }
    }

    fn stored(tokens: Vec<u32>) -> Stored {
        Stored {
            hashes: vec![EngineHash(1)],
            parent: None,
            block_size: 4,
            tokens,
            opaque_tokens: false,
            lora_name: None,
            extras: Vec::new(),
            medium: Medium::Gpu,
            group: None,
            indexable_group: true,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_is_found_whichever_of_several_ranks_tells_of_it() {
        let followed = Followed {
            ranks: vec![follow(2), follow(3)],
            pinned: false,
            _tasks: JoinSet::new(),
            _stop: CancellationToken::new().drop_guard(),
        };
        let prompt = [1, 2, 3, 4, 5];
        let patience = Duration::from_secs(1);
        let [together] = followed.by_request().collect::<Vec<_>>()[..] else {
            panic!("one request for both");
        };
        assert_eq!(store_of(together, &prompt, patience).await, None);
        let mut view = Recorder(Arc::clone(&followed.ranks[1].shared));
        view.apply(&[KvEvent::Stored(stored(vec![1, 2, 3, 4]))]);
        let found = store_of(together, &prompt, patience).await;
        assert_eq!(found, Some(stored(vec![1, 2, 3, 4])));
    }
}
