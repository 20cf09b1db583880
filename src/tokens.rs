//! Token ids for requests: the model's own tokenizer here, else the engine's, else an estimate.
//!
//! A request never waits for a file or fails for want of tokens: it takes the best way there is now, and says
//! which and why. Files are read in the background by [`Tokens::run`]. In the order a request meets them:
//! `catalog` (what the model name means), `loader` (the models that are loaded), `offload` (where the work is
//! done), `engine`, `estimate`; `files` and `hub` are the loader's. `parity` watches whether our ids are the engines'.

mod catalog;
mod engine;
mod estimate;
mod files;
pub mod hub;
mod loader;
pub mod offload;
mod parity;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use self::catalog::{Catalog, Entry, Table};
use self::engine::EngineTokenizer;
use self::estimate::estimate;
use self::hub::HubAccess;
use self::loader::{Loader, Store};
use self::offload::Offload;
pub use self::parity::Provenance;
use self::parity::{Asking, Parity};
use crate::metrics::token_sources::{Degradation, TokenMetrics};
use crate::routing::block::Sequence;
use crate::routing::model::{HARMONY, OwnRenderer, RenderContext};
use crate::routing::request::{Content, Prompt, Request};
use crate::routing::router::FirstBlock;

/// Which of the three ways made a request's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenSource {
    /// Tokenizer and template in this process.
    Local,
    /// The engine's `/tokenize`.
    Engine,
    /// A length estimate, served by the approximate index.
    Estimate,
}

impl TokenSource {
    /// The word in logs and pages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Engine => "engine",
            Self::Estimate => "estimate",
        }
    }
}

/// A request's prompts.
#[derive(Clone, Debug)]
pub struct Tokenized {
    /// One a prompt.
    pub sequences: Vec<Sequence>,
    /// The adapter the request's model is, if it is one.
    pub adapter: Option<Arc<str>>,
    /// How they were made.
    pub source: TokenSource,
    /// Why not in this process, from a closed set of words.
    pub degraded: Option<&'static str>,
    /// By whom, if the ids of its one prompt are exact and not the client's own: what its engine stores is held
    /// against it (see [`Tokens::ended`]).
    pub provenance: Option<Provenance>,
}

/// Where a model's files come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ModelSource {
    /// A folder with `tokenizer.json` and friends.
    Directory(PathBuf),
    /// A hub id, optionally `id@revision`.
    Hub(String),
}

impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => path.display().fmt(f),
            Self::Hub(id) => write!(f, "hub:{id}"),
        }
    }
}

/// How tokens are made.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Sources by the model name that requests use.
    pub models: BTreeMap<String, ModelSource>,
    /// A folder whose sub-folders are models (named like the model or like its root's last part).
    pub directory: Option<PathBuf>,
    /// Whether model roots that engines name may be fetched from the hub.
    pub hub: bool,
    /// Where downloaded files are kept.
    pub cache_directory: Option<PathBuf>,
    /// Bytes of token ids kept for text pieces seen before, over all models.
    pub cache_bytes: usize,
    /// Longest wait for an engine's `/tokenize`.
    pub engine_timeout: Duration,
    /// `/tokenize` calls at once.
    pub engine_concurrency: usize,
    /// Bytes a token, for the estimate.
    pub bytes_per_token: f64,
    /// How often engines are asked for the tokens of canaries; zero: never.
    pub canary_interval: Duration,
}

/// When a failed load is tried again.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// After the first failure; it doubles with each further one.
    pub first: Duration,
    /// It grows to this, and a place without files is looked at this often.
    pub longest: Duration,
    /// After files that cannot be used were read: they seldom change, and each try costs a core a second.
    pub unusable: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(60),
            unusable: Duration::from_secs(600),
        }
    }
}

impl Retry {
    fn after(self, failures: u32) -> Duration {
        let factor = 1_u32.checked_shl(failures).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.longest)
    }

    /// Between three and five quarters of `wait`, so that many pickers do not come back at once.
    fn jittered(self, wait: Duration) -> Duration {
        wait.mul_f64(0.75 + fastrand::f64() / 2.0)
    }
}

/// One entry of an engine's `/v1/models`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedModel {
    /// The name requests use.
    pub id: String,
    /// Path or hub id of the weights.
    pub root: Option<String>,
    /// The base model, if this is an adapter.
    pub parent: Option<String>,
    /// Context length.
    pub max_model_len: Option<u32>,
}

/// Makes token ids for requests. One value serves all streams.
pub struct Tokens {
    settings: Settings,
    hub: HubAccess,
    retry: Retry,
    /// Written when an engine says something new, under the lock for one comparison or copy.
    catalog: Mutex<Catalog>,
    /// Made from the catalog; replaced whole, so a request holds the lock to clone one `Arc`.
    table: RwLock<Arc<Table>>,
    /// Rung for the loader, and for the watch over parity, when the table is another one.
    changed: Notify,
    changed_for_parity: Notify,
    store: Arc<Store>,
    offload: Offload,
    engine: EngineTokenizer,
    parity: Parity,
    metrics: Arc<TokenMetrics>,
}

impl Tokens {
    /// Nothing is loaded yet; `run` loads in the background. How the hub is reached comes from the
    /// environment's customary variables.
    pub fn new(settings: Settings, metrics: Arc<TokenMetrics>) -> Arc<Self> {
        let hub = HubAccess::from_env(settings.cache_directory.clone());
        Self::with_hub(settings, hub, Retry::default(), metrics)
    }

    /// The same with the hub and the patience given.
    pub fn with_hub(
        settings: Settings,
        hub: HubAccess,
        retry: Retry,
        metrics: Arc<TokenMetrics>,
    ) -> Arc<Self> {
        let catalog = Catalog::default();
        let table = Arc::new(catalog.table(&settings));
        Arc::new(Self {
            hub,
            retry,
            catalog: Mutex::new(catalog),
            table: RwLock::new(table),
            changed: Notify::new(),
            changed_for_parity: Notify::new(),
            parity: Parity::new(settings.canary_interval, Arc::clone(&metrics)),
            store: Arc::default(),
            offload: Offload::default(),
            engine: EngineTokenizer::new(
                settings.engine_concurrency,
                settings.engine_timeout,
                Arc::clone(&metrics),
            ),
            metrics,
            settings,
        })
    }

    /// An engine told what it serves (asked by the feeds when it joins and now and then).
    pub fn observe(
        &self,
        engine: SocketAddr,
        models: Vec<ServedModel>,
        version: Option<(u32, u32)>,
    ) {
        let mut catalog = self.catalog.lock();
        if catalog.observe(engine, models, version) {
            self.replace_table(&catalog);
        }
    }

    /// An engine left.
    pub fn forget(&self, engine: SocketAddr) {
        let mut catalog = self.catalog.lock();
        self.parity.forget(engine);
        if catalog.forget(engine) {
            self.replace_table(&catalog);
        }
    }

    /// Another process answers at an engine's address, perhaps with another template: its tokens are compared at once.
    pub fn restarted(&self, engine: SocketAddr) {
        self.parity.restarted(engine);
        self.engine.forget_answers();
        self.changed_for_parity.notify_one();
    }

    fn replace_table(&self, catalog: &Catalog) {
        *self.table.write() = Arc::new(catalog.table(&self.settings));
        self.engine.forget_answers();
        self.changed.notify_one();
        self.changed_for_parity.notify_one();
    }

    /// Loads (and downloads) what configuration and engines name, off the request path, until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let loader = Loader::new(
            Arc::clone(&self.store),
            self.hub.clone(),
            self.retry,
            self.settings.cache_bytes,
            Arc::clone(&self.metrics),
        );
        let wanted = || Arc::clone(&self.table.read()).wanted();
        loader.run(wanted, &self.changed, stop).await;
    }

    /// Watches whether the ids made here are the engines', off the request path, until `stop`.
    pub async fn watch_parity(self: Arc<Self>, stop: CancellationToken) {
        tokio::join!(self.parity.look_again(&stop), self.ask_canaries(&stop));
    }

    async fn ask_canaries(&self, stop: &CancellationToken) {
        let asking = Asking {
            engine: &self.engine,
            offload: &self.offload,
            metrics: &self.metrics,
        };
        loop {
            let table = Arc::clone(&self.table.read());
            let loaded = |entry: &Entry| self.store.model(&entry.places).ok();
            self.parity.update(table.subjects(), loaded);
            let round = tokio::select! {
                () = stop.cancelled() => return,
                round = self.parity.round(&asking) => round,
            };
            if round.news {
                // Other engines may be the ones to ask from now on.
                self.engine.forget_answers();
            }
            let next = round.next;
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.changed_for_parity.notified() => {}
                () = self.store.changed.notified() => {}
                () = sleep_until(next.unwrap_or_else(tokio::time::Instant::now)), if next.is_some() => {}
            }
        }
    }

    /// A request's answer ended well at the endpoint picked for it: what that stored is held against whoever made
    /// its ids. Events may be a moment behind, so a look that finds nothing is repeated a second later.
    pub fn ended(&self, provenance: Provenance, block: FirstBlock) {
        self.parity.ended(provenance, block);
    }

    /// Whose tokens each model's requests get, and why, for pages.
    pub fn to_json(&self) -> serde_json::Value {
        self.parity.to_json()
    }

    /// Where CPU work of requests is done; shared with whoever parses them.
    pub const fn offload(&self) -> &Offload {
        &self.offload
    }

    /// A request's token ids by the best way available. Never fails: it degrades and says so.
    /// `body` is the raw body (for the engine and the estimate), `authorization` the client's header (for the
    /// engine's `/tokenize`).
    pub async fn tokenize(
        &self,
        request: &Arc<Request>,
        body: &[u8],
        authorization: Option<&str>,
    ) -> Tokenized {
        let started = Instant::now();
        let table = Arc::clone(&self.table.read());
        let entry = table.resolve(request.model.as_deref());
        let (source, sequences, degraded) =
            self.sequences(entry, request, body, authorization).await;
        let way = match source {
            TokenSource::Local => &self.metrics.local,
            TokenSource::Engine => &self.metrics.engine,
            TokenSource::Estimate => &self.metrics.estimate,
        };
        way.made(started.elapsed());
        Tokenized {
            provenance: entry.and_then(|entry| provenance(entry, request, source, &sequences)),
            sequences,
            adapter: entry.and_then(|entry| entry.adapter.clone()),
            source,
            degraded: degraded.map(Degradation::as_str),
        }
    }

    /// The three ways, one after the other, and why not the first one.
    async fn sequences(
        &self,
        entry: Option<&Arc<Entry>>,
        request: &Arc<Request>,
        body: &[u8],
        authorization: Option<&str>,
    ) -> (TokenSource, Vec<Sequence>, Option<Degradation>) {
        let Some(entry) = entry else {
            self.metrics.degraded(Degradation::UnknownModel);
            return (
                TokenSource::Estimate,
                self.estimates(request, body),
                Some(Degradation::UnknownModel),
            );
        };
        let standing = self.parity.standing(entry);
        let first = match standing.local {
            true => match self.local(entry, request, body.len()).await {
                Ok(ids) => return (TokenSource::Local, exact(ids), None),
                Err(reason) => reason,
            },
            false if self.speaks_harmony(entry, request) => Degradation::NotRenderable(HARMONY),
            false => Degradation::Parity,
        };
        self.metrics.degraded(first);
        let asked = async {
            let entry = standing.engine.as_ref().ok_or(Degradation::EngineParity)?;
            if first == Degradation::NotRenderable(HARMONY) {
                // `/tokenize` would print the template.
                return Err(Degradation::NoEngineForm);
            }
            let tokens = &self.engine;
            tokens
                .sequences(entry, request.api, body, authorization)
                .await
        };
        match asked.await {
            Ok(ids) => (TokenSource::Engine, exact(ids), Some(first)),
            Err(reason) => {
                self.metrics.degraded(reason);
                debug!(
                    first = first.as_str(),
                    then = reason.as_str(),
                    "token ids estimated"
                );
                let estimates = self.estimates(request, body);
                (TokenSource::Estimate, estimates, Some(first))
            }
        }
    }

    /// It is a chat that `/tokenize` would print by the template, though the engine does not.
    fn speaks_harmony(&self, entry: &Entry, request: &Request) -> bool {
        let harmony = Some(OwnRenderer::Harmony);
        let model = self.store.model(&entry.places);
        matches!(request.content, Content::Chat(_))
            && model.is_ok_and(|loaded| loaded.model.own_renderer() == harmony)
    }

    async fn local(
        &self,
        entry: &Entry,
        request: &Arc<Request>,
        body_bytes: usize,
    ) -> Result<Vec<Vec<u32>>, Degradation> {
        let loaded = self.store.model(&entry.places)?;
        let context = RenderContext {
            engine_version: entry.version,
            unix_time: unix_time(),
            max_model_len: entry.max_model_len,
        };
        let request = Arc::clone(request);
        let expected = loaded.pace.expected(body_bytes);
        let work = move || {
            let started = Instant::now();
            let ids = loaded.model.sequences(&request, &context);
            loaded.pace.learn(body_bytes, started.elapsed());
            ids
        };
        match self.offload.run(expected, work).await {
            Ok(Ok(ids)) => Ok(ids),
            Ok(Err(error)) => {
                debug!(%error, "the model's own tokenizer does not make this request's tokens");
                Err(Degradation::NotRenderable(error.reason()))
            }
            Err(error) => {
                debug!(%error, "tokenizing was lost");
                Err(Degradation::Lost)
            }
        }
    }

    /// One estimate for the whole request: its prompts' text in order, or the body where no text is understood.
    fn estimates(&self, request: &Request, body: &[u8]) -> Vec<Sequence> {
        let text = request.text().unwrap_or_else(|| body.to_vec());
        vec![estimate(text, self.settings.bytes_per_token)]
    }
}

/// By whom a request's ids were made, where its engine can prove it right or wrong.
fn provenance(
    entry: &Entry,
    request: &Request,
    source: TokenSource,
    sequences: &[Sequence],
) -> Option<Provenance> {
    let [Sequence::Tokens(ids)] = sequences else {
        return None;
    };
    if let Content::Prompts(prompts) = &request.content
        && matches!(prompts.items.as_slice(), [Prompt::Ids(_)])
    {
        return None;
    }
    let scoped = entry.adapter.is_some() || request.salt.is_some();
    Some(Provenance::new(entry, source, ids, scoped))
}

fn exact(ids: Vec<Vec<u32>>) -> Vec<Sequence> {
    ids.into_iter().map(Sequence::Tokens).collect()
}

fn unix_time() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| i64::try_from(since.as_secs()).ok())
        .unwrap_or_default()
}
