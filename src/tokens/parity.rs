//! Are our tokens the engines' tokens? Watched live, by two kinds of proof.
//!
//! *Canaries*: a few requests that nobody sent are tokenized here and by the engines' `/tokenize`, one engine of each
//! group that should be alike, in turn. *First blocks*: what engines store for real requests begins as we cut it
//! (`routing/ledger/parity.rs` finds out). A model that fails either is *distrusted*: its requests' tokens come from
//! the engines' tokenizer, and if that makes the same ids or fails as well, from the estimate.
//!
//! It is trusted again when most engines' canaries agree, or, after first blocks were missing, when three that were
//! tokenized here on trial were stored. A new tokenizer here or a new life of the engines starts it afresh.
//!
//! The parts: `canary` (what is asked), `ask` (one engine), `verdict` (all of them together), `evidence` (first
//! blocks), `watched` (one model).

mod ask;
mod canary;
mod evidence;
#[cfg(test)]
mod tests;
mod verdict;
mod watched;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub(super) use self::ask::Asking;
use self::evidence::Beginnings;
use self::verdict::Verdict;
pub(super) use self::watched::Standing;
use self::watched::{Job, Watched, Word};
use super::catalog::{Entry, Subject};
use super::loader::Loaded;
use super::{ModelSource, TokenSource};
use crate::metrics::token_sources::{FirstBlockOutcome, TokenMetrics};
use crate::routing::router::{FirstBlock, FirstBlockStored};

/// Engines asked at once: a round of dead ones takes a while, and nobody waits for it.
const ASKED_AT_ONCE: usize = 4;

/// Shorter intervals would only be a mistake.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// First blocks that were not stored when their answers ended, kept for a second look; more are not looked at.
const MAX_PENDING: usize = 256;

/// When that is: events are milliseconds behind the answers.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// Models with a series of their own; engines may serve thousands of adapters.
const MAX_SERIES: usize = 200;

/// How often a distrusted model's request is tokenized as if it were trusted, where canaries have no interval.
const TRIAL_INTERVAL: Duration = Duration::from_secs(10);

/// So many trials fit into an interval of the canaries.
const TRIALS_AN_INTERVAL: u32 = 60;

/// A tokenizer: the name under which engines know it, and where its files may be.
type Key = (Arc<str>, Arc<[ModelSource]>);

/// By whom a request's ids were made, for what its engine stores to be held against it.
#[derive(Clone, Debug)]
pub struct Provenance {
    key: Key,
    source: TokenSource,
    /// The first ids.
    first: Vec<u32>,
    /// An adapter or a salt separates its blocks from others with the same tokens.
    scoped: bool,
}

impl Provenance {
    /// How many ids are kept.
    const FIRST: usize = 16;

    pub(super) fn new(entry: &Entry, source: TokenSource, ids: &[u32], scoped: bool) -> Self {
        Self {
            key: key_of(entry),
            source,
            first: ids.iter().take(Self::FIRST).copied().collect(),
            scoped,
        }
    }
}

/// A first block to be looked at once more.
struct Pending {
    provenance: Provenance,
    block: FirstBlock,
    due: Instant,
}

/// What came of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Round {
    /// When the next one is due; `None`: when something changes.
    pub(super) next: Option<Instant>,
    /// Some model stands otherwise than before.
    pub(super) news: bool,
}

/// The watch over all models.
pub(super) struct Parity {
    /// Held for a decision about one model, never while anybody is asked.
    watched: Mutex<BTreeMap<Key, Watched>>,
    /// Something stands against some model; while nothing does, requests do not take the lock.
    troubled: AtomicBool,
    pending: Mutex<VecDeque<Pending>>,
    due: Notify,
    interval: Option<Duration>,
    metrics: Arc<TokenMetrics>,
}

impl Parity {
    /// Canaries are asked every `interval`; zero: never.
    pub(super) fn new(interval: Duration, metrics: Arc<TokenMetrics>) -> Self {
        Self {
            watched: Mutex::default(),
            troubled: AtomicBool::new(false),
            pending: Mutex::default(),
            due: Notify::new(),
            interval: (!interval.is_zero()).then(|| interval.max(SHORTEST_INTERVAL)),
            metrics,
        }
    }

    /// Whose tokens a request of this model gets.
    pub(super) fn standing(&self, entry: &Arc<Entry>) -> Standing {
        if !self.troubled.load(Ordering::Relaxed) {
            return Standing::ours(entry);
        }
        let mut watched = self.watched.lock();
        let Some(watched) = watched.get_mut(&key_of(entry)) else {
            return Standing::ours(entry);
        };
        let unstored = watched.word() == Word::Unstored;
        let now = Instant::now();
        let trial = unstored && watched.next_trial.is_none_or(|at| at <= now);
        if trial {
            watched.next_trial = Some(now + self.trial_interval());
        }
        watched.standing(trial)
    }

    fn trial_interval(&self) -> Duration {
        let interval = self.interval.map(|interval| interval / TRIALS_AN_INTERVAL);
        interval.unwrap_or(TRIAL_INTERVAL)
    }

    /// A life of an engine has ended.
    pub(super) fn forget(&self, engine: SocketAddr) {
        for watched in self.watched.lock().values_mut() {
            watched.forget(engine);
        }
    }

    /// Another process answers at an engine's address.
    pub(super) fn restarted(&self, engine: SocketAddr) {
        for watched in self.watched.lock().values_mut() {
            watched.restarted(engine);
        }
    }

    /// A request's answer has ended: what its engine stored is looked at now, or once more a moment later.
    pub(super) fn ended(&self, provenance: Provenance, block: FirstBlock) {
        match block.stored() {
            FirstBlockStored::Yes => self.learn(&provenance, FirstBlockStored::Yes),
            FirstBlockStored::No { .. } | FirstBlockStored::Unclear => {
                let mut pending = self.pending.lock();
                if pending.len() < MAX_PENDING {
                    let due = Instant::now() + SECOND_LOOK;
                    pending.push_back(Pending {
                        provenance,
                        block,
                        due,
                    });
                    self.due.notify_one();
                } else {
                    self.metrics.first_block(FirstBlockOutcome::Unclear);
                }
            }
        }
    }

    /// Takes the second looks, until `stop`.
    pub(super) async fn look_again(&self, stop: &CancellationToken) {
        loop {
            let next = self.pending.lock().front().map(|pending| pending.due);
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.due.notified(), if next.is_none() => {}
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {
                    let pending = self.pending.lock().pop_front();
                    if let Some(pending) = pending {
                        self.learn(&pending.provenance, pending.block.stored());
                    }
                }
            }
        }
    }

    fn learn(&self, provenance: &Provenance, stored: FirstBlockStored) {
        let outcome = match &stored {
            FirstBlockStored::Yes => FirstBlockOutcome::Stored,
            FirstBlockStored::No { same_tokens, .. } if provenance.scoped || *same_tokens => {
                FirstBlockOutcome::OtherScope
            }
            FirstBlockStored::No { .. } => FirstBlockOutcome::Missing,
            FirstBlockStored::Unclear => FirstBlockOutcome::Unclear,
        };
        self.metrics.first_block(outcome);
        let mut all = self.watched.lock();
        let Some(watched) = all.get_mut(&provenance.key) else {
            return;
        };
        let evidence = match provenance.source {
            TokenSource::Local => &mut watched.local,
            TokenSource::Engine => &mut watched.engine,
            TokenSource::Estimate => return,
        };
        match (outcome, stored) {
            (FirstBlockOutcome::Stored, _) => evidence.stored(),
            (FirstBlockOutcome::Missing, FirstBlockStored::No { instead, .. }) => {
                evidence.missing(Beginnings {
                    ours: provenance.first.clone(),
                    stored: instead,
                });
                watched.next_trial = Some(Instant::now() + self.trial_interval());
            }
            _ => return,
        }
        self.tell(watched);
        self.look(&all);
    }

    /// What catalog and loader know now.
    pub(super) fn update(
        &self,
        subjects: &[Subject],
        loaded: impl Fn(&Entry) -> Option<Arc<Loaded>>,
    ) {
        let mut all = self.watched.lock();
        let mut before = std::mem::take(&mut *all);
        for subject in subjects {
            let key = key_of(&subject.entry);
            let mut watched = before
                .remove(&key)
                .unwrap_or_else(|| Watched::new(subject.clone()));
            watched.update(subject.clone(), loaded(&subject.entry).as_ref());
            self.tell(&mut watched);
            all.insert(key, watched);
        }
        for gone in before.values() {
            self.metrics.set_parity(&gone.subject.name, None);
        }
        self.look(&all);
    }

    /// Asks whoever is to be asked now.
    pub(super) async fn round(&self, asking: &Asking<'_>) -> Round {
        let Some(interval) = self.interval else {
            return Round::default();
        };
        let jobs: Vec<(Key, Job)> = {
            let now = Instant::now();
            let mut all = self.watched.lock();
            let due = all.iter_mut().flat_map(|(key, watched)| {
                let jittered = interval.mul_f64(0.75 + fastrand::f64() / 2.0);
                let jobs = watched.round(now, jittered).into_iter();
                jobs.map(|job| (key.clone(), job))
            });
            due.collect()
        };
        futures_util::stream::iter(jobs)
            .for_each_concurrent(ASKED_AT_ONCE, |(key, job)| async move {
                let found = asking.all(&job).await;
                let mut all = self.watched.lock();
                if let Some(watched) = all.get_mut(&key) {
                    watched.found(job.engine, &job.loaded, found);
                }
            })
            .await;
        let now = Instant::now();
        let mut all = self.watched.lock();
        let mut news = false;
        for watched in all.values_mut() {
            news |= self.tell(watched);
        }
        self.look(&all);
        Round {
            next: all.values().map(|watched| watched.next_round(now)).min(),
            news,
        }
    }

    /// Notes whether requests have to look.
    fn look(&self, all: &BTreeMap<Key, Watched>) {
        let troubled = !all.values().all(Watched::is_fine);
        self.troubled.store(troubled, Ordering::Relaxed);
        for (n, watched) in all.values().enumerate() {
            let equal = watched.word().gauge().filter(|_| n < MAX_SERIES);
            self.metrics.set_parity(&watched.subject.name, equal);
        }
    }

    /// Logs what has changed; true if something has.
    fn tell(&self, watched: &mut Watched) -> bool {
        let word = watched.word();
        if std::mem::replace(&mut watched.said, word) == word {
            return false;
        }
        let model = &*watched.subject.name;
        match word {
            Word::Unknown => {}
            Word::Agrees => info!(model, "engines make the tokens that are made here"),
            Word::Unstored => {
                let beginnings = watched
                    .local
                    .distrusted()
                    .or_else(|| watched.engine.distrusted());
                let by = match watched.local.distrusted() {
                    Some(_) => "local",
                    None => "engine",
                };
                warn!(
                    model,
                    by,
                    ours = ?beginnings.map(|b| &b.ours),
                    stored = ?beginnings.map(|b| &b.stored),
                    "{UNSTORED}"
                );
            }
            Word::Split | Word::Differs => tell_difference(model, watched),
        }
        true
    }

    /// Every model, for pages.
    pub(super) fn to_json(&self) -> Value {
        self.watched.lock().values().map(Watched::to_json).collect()
    }
}

const UNSTORED: &str = "engines do not store prompts as they are tokenized: these tokens are not used (look at the \
    engines' --chat-template and --default-chat-template-kwargs, and at the revision of the tokenizer here)";

const DIFFERS: &str = "the engines' own tokenizer is asked for this model, because it makes other tokens (look at the \
    engines' --chat-template, --default-chat-template-kwargs, --tokenizer-revision and time zone)";

const SPLIT: &str = "some engines of this model make other tokens than the rest and this process: what they cache is \
    not found (look at their --chat-template, --default-chat-template-kwargs, --tokenizer-revision and time zone)";

fn tell_difference(model: &str, watched: &Watched) {
    let Some((engine, difference)) = watched.difference() else {
        return;
    };
    let (like_it, others) = match watched.verdict() {
        Verdict::Differs { engines, others } => (engines.len(), *others),
        Verdict::Split { ours, others } => (*others, *ours),
        Verdict::Unknown | Verdict::Agrees => (0, 0),
    };
    let message = match watched.word() {
        Word::Split => SPLIT,
        _ => DIFFERS,
    };
    warn!(
        model,
        %engine,
        canary = difference.canary,
        position = difference.position,
        ours = difference.ours,
        theirs = difference.theirs,
        engines_that_differ = like_it,
        other_engines = others,
        "{message}"
    );
}

fn key_of(entry: &Entry) -> Key {
    (Arc::clone(&entry.served_as), Arc::clone(&entry.places))
}
