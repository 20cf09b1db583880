//! Loads models in the background: what is wanted, what is under way, what failed and when to try again.
//!
//! [`Store`] is what requests see (a read lock for nanoseconds); [`Loader`] is its one writer. Files that two
//! names lead to are loaded once.

use std::collections::BTreeSet;
use std::error::Error;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::RwLock;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::files::{ReadError, read_folder};
use super::hub::{HubAccess, HubError, fetch};
use super::offload::Pace;
use super::{ModelSource, Retry};
use crate::metrics::token_sources::{Degradation, LoadOutcome, TokenMetrics};
use crate::routing::model::{LoadError, Model};

/// Models loaded at once. Each takes a core for up to seconds, and requests need cores too.
const MAX_LOADS: usize = 2;

/// How long a model stays loaded after the last engine that serves it has left, so that an engine's
/// restart does not cost a load.
const KEEP_UNWANTED: Duration = Duration::from_secs(600);

const ABSENT: &str = "no tokenizer.json here";

/// A list of places, best first: the first that holds files counts.
pub(super) type Places = Arc<[ModelSource]>;

/// A model ready for requests.
pub(super) struct Loaded {
    pub(super) model: Model,
    pub(super) pace: Pace,
}

/// What has become of each place.
#[derive(Default)]
pub(super) struct Store {
    slots: RwLock<FxHashMap<ModelSource, Slot>>,
    /// Rung when what has become of a place changed.
    pub(super) changed: Notify,
}

#[derive(Clone)]
enum Slot {
    Loaded(Arc<Loaded>),
    Absent,
    Failed,
}

impl Store {
    /// The model of a list of places.
    ///
    /// # Errors
    /// Why there is none (yet).
    pub(super) fn model(&self, places: &[ModelSource]) -> Result<Arc<Loaded>, Degradation> {
        if places.is_empty() {
            return Err(Degradation::NoSource);
        }
        let slots = self.slots.read();
        for place in places {
            match slots.get(place) {
                Some(Slot::Loaded(model)) => return Ok(Arc::clone(model)),
                Some(Slot::Absent) => {}
                Some(Slot::Failed) => return Err(Degradation::LoadFailed),
                None => return Err(Degradation::Loading),
            }
        }
        Err(Degradation::NoFiles)
    }
}

/// Why a place that holds files gave no model.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the files cannot be read")]
    Read(#[from] ReadError),
    #[error("the hub gave no files")]
    Hub(#[from] HubError),
    #[error("the files cannot be used")]
    Unusable(#[from] LoadError),
    #[error("the work was lost on a blocking thread")]
    Lost(#[from] JoinError),
    #[error("the download panicked")]
    Panicked,
}

impl Failure {
    fn outcome(&self) -> LoadOutcome {
        match self {
            Self::Read(_) => LoadOutcome::ReadFailed,
            Self::Hub(_) => LoadOutcome::DownloadFailed,
            Self::Unusable(_) => LoadOutcome::Unusable,
            Self::Lost(_) | Self::Panicked => LoadOutcome::Lost,
        }
    }
}

/// What the loader remembers of a place between tries.
#[derive(Default)]
struct Trial {
    failures: u32,
    retry_at: Option<Instant>,
    unwanted_since: Option<Instant>,
    /// What was logged last, so that only a change is logged.
    said: Option<String>,
}

/// A load under way: the place, what it really is (links followed), and its end.
type Job = (ModelSource, ModelSource, Result<Option<Model>, Failure>);

/// The store's one writer.
pub(super) struct Loader {
    store: Arc<Store>,
    hub: Arc<HubAccess>,
    retry: Retry,
    /// For all models' caches together.
    cache_bytes: usize,
    /// Models wanted by now, never 0: each gets its share of the caches when it is loaded.
    wanted: usize,
    metrics: Arc<TokenMetrics>,
    jobs: JoinSet<Job>,
    /// Places under way, as they really are.
    under_way: FxHashSet<ModelSource>,
    /// Models by what their place really is.
    loaded: FxHashMap<ModelSource, Weak<Loaded>>,
    trials: FxHashMap<ModelSource, Trial>,
}

impl Loader {
    pub(super) fn new(
        store: Arc<Store>,
        hub: HubAccess,
        retry: Retry,
        cache_bytes: usize,
        metrics: Arc<TokenMetrics>,
    ) -> Self {
        Self {
            store,
            hub: Arc::new(hub),
            retry,
            cache_bytes,
            wanted: 1,
            metrics,
            jobs: JoinSet::new(),
            under_way: FxHashSet::default(),
            loaded: FxHashMap::default(),
            trials: FxHashMap::default(),
        }
    }

    /// Loads what `wanted` names, again whenever `changed` says so, until `stop`.
    pub(super) async fn run(
        mut self,
        wanted: impl Fn() -> BTreeSet<Places>,
        changed: &Notify,
        stop: CancellationToken,
    ) {
        loop {
            let wanted = wanted();
            self.wanted = wanted.len().max(1);
            self.drop_unwanted(&wanted);
            for places in &wanted {
                self.advance(places).await;
            }
            let next = self.next_time();
            let timer = sleep_until(next.unwrap_or_else(Instant::now));
            tokio::select! {
                () = stop.cancelled() => break,
                () = changed.notified() => {}
                () = timer, if next.is_some() => {}
                // A job catches its own panics and nobody aborts it before `stop`, so it ends with `Ok`.
                Some(Ok((place, real, outcome))) = self.jobs.join_next(), if !self.jobs.is_empty() => {
                    self.finish(place, &real, outcome);
                }
            }
        }
        self.jobs.shutdown().await;
    }

    /// Starts the first place of a list that has to be tried now, unless a better one has files.
    async fn advance(&mut self, places: &Places) {
        for place in places.iter() {
            let slot = self.store.slots.read().get(place).cloned();
            let due = self
                .trials
                .get(place)
                .is_none_or(|trial| trial.retry_at.is_some_and(|at| at <= Instant::now()));
            match slot {
                Some(Slot::Loaded(_)) => return,
                Some(Slot::Absent | Slot::Failed) | None if due => {
                    return self.start(place).await;
                }
                Some(Slot::Absent) => {}
                Some(Slot::Failed) | None => return,
            }
        }
    }

    async fn start(&mut self, place: &ModelSource) {
        let real = real_place(place).await;
        if let Some(model) = self.loaded.get(&real).and_then(Weak::upgrade) {
            self.trials.entry(place.clone()).or_default().retry_at = None;
            self.set(place, Slot::Loaded(model));
            return;
        }
        if self.jobs.len() >= MAX_LOADS || self.under_way.contains(&real) {
            return;
        }
        self.trials.entry(place.clone()).or_default().retry_at = None;
        self.under_way.insert(real.clone());
        let (place, hub) = (place.clone(), Arc::clone(&self.hub));
        let cache_bytes = self.cache_bytes / self.wanted;
        self.jobs.spawn(async move {
            let outcome = AssertUnwindSafe(load(&place, &hub, cache_bytes))
                .catch_unwind()
                .await;
            let outcome = outcome.unwrap_or(Err(Failure::Panicked));
            (place, real, outcome)
        });
    }

    fn finish(
        &mut self,
        place: ModelSource,
        real: &ModelSource,
        outcome: Result<Option<Model>, Failure>,
    ) {
        self.under_way.remove(real);
        let trial = self.trials.entry(place.clone()).or_default();
        let (slot, counted, words) = match outcome {
            Ok(Some(model)) => {
                let pace = Pace::default();
                let model = Arc::new(Loaded { model, pace });
                self.loaded.insert(real.clone(), Arc::downgrade(&model));
                trial.failures = 0;
                info!(place = %place, "model loaded");
                (Slot::Loaded(model), LoadOutcome::Loaded, None)
            }
            Ok(None) => {
                trial.retry_at = Some(Instant::now() + self.retry.jittered(self.retry.longest));
                (Slot::Absent, LoadOutcome::Absent, Some(ABSENT.to_owned()))
            }
            Err(failure) => {
                let wait = match &failure {
                    Failure::Unusable(_) => self.retry.unusable,
                    _ => self.retry.after(trial.failures),
                };
                trial.failures = trial.failures.saturating_add(1);
                trial.retry_at = Some(Instant::now() + self.retry.jittered(wait));
                (Slot::Failed, failure.outcome(), Some(words(&failure)))
            }
        };
        if trial.said != words {
            match words.as_deref() {
                None => {}
                Some(ABSENT) => info!(%place, "{ABSENT}"),
                Some(error) => warn!(%place, error, "no model from here: its requests degrade"),
            }
            trial.said = words;
        }
        self.metrics.loaded(counted);
        self.set(&place, slot);
    }

    fn set(&self, place: &ModelSource, slot: Slot) {
        let models = {
            let mut slots = self.store.slots.write();
            slots.insert(place.clone(), slot);
            loaded_models(&slots)
        };
        self.metrics.set_models(models);
        self.store.changed.notify_one();
    }

    /// Drops what nobody has wanted for a while.
    fn drop_unwanted(&mut self, wanted: &BTreeSet<Places>) {
        let now = Instant::now();
        let wanted: FxHashSet<&ModelSource> = wanted.iter().flat_map(|list| list.iter()).collect();
        let mut dropped = Vec::new();
        self.trials.retain(|place, trial| {
            if wanted.contains(place) {
                trial.unwanted_since = None;
                return true;
            }
            let since = *trial.unwanted_since.get_or_insert(now);
            let keep = now.duration_since(since) < KEEP_UNWANTED;
            if !keep {
                dropped.push(place.clone());
            }
            keep
        });
        if dropped.is_empty() {
            return;
        }
        let models = {
            let mut slots = self.store.slots.write();
            for place in &dropped {
                slots.remove(place);
            }
            loaded_models(&slots)
        };
        self.loaded.retain(|_, model| model.strong_count() > 0);
        self.metrics.set_models(models);
    }

    /// When the next retry or dropping is due. A time gone by waits for another load, not for the clock.
    fn next_time(&self) -> Option<Instant> {
        let now = Instant::now();
        self.trials
            .values()
            .filter_map(|trial| match trial.unwanted_since {
                Some(since) => Some(since + KEEP_UNWANTED),
                None => trial.retry_at,
            })
            .filter(|&at| at > now)
            .min()
    }
}

/// Distinct models among the slots.
fn loaded_models(slots: &FxHashMap<ModelSource, Slot>) -> usize {
    let models: FxHashSet<*const Loaded> = slots
        .values()
        .filter_map(|slot| match slot {
            Slot::Loaded(model) => Some(Arc::as_ptr(model)),
            Slot::Absent | Slot::Failed => None,
        })
        .collect();
    models.len()
}

/// What a place really is: a folder with its links followed.
async fn real_place(place: &ModelSource) -> ModelSource {
    match place {
        ModelSource::Directory(path) => match tokio::fs::canonicalize(path).await {
            Ok(real) => ModelSource::Directory(real),
            // Not there: the load says so.
            Err(_) => place.clone(),
        },
        ModelSource::Hub(_) => place.clone(),
    }
}

/// Reads or downloads the files, and makes a model of them on a blocking thread.
async fn load(
    place: &ModelSource,
    hub: &HubAccess,
    cache_bytes: usize,
) -> Result<Option<Model>, Failure> {
    let files = match place {
        ModelSource::Directory(folder) => {
            let folder = folder.clone();
            spawn_blocking(move || read_folder(&folder)).await??
        }
        ModelSource::Hub(id) => fetch(hub, id).await?,
    };
    let Some(files) = files else {
        return Ok(None);
    };
    let model = spawn_blocking(move || Model::load_with_cache(&files, cache_bytes)).await??;
    Ok(Some(model))
}

/// An error with all its causes.
fn words(error: &dyn Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words.push_str(": ");
        words.push_str(&error.to_string());
        cause = error.source();
    }
    words
}
