//! Engines, a whole picker in a thread and a gate before it, without an Envoy; and what the picker believes held against
//! what the engines have.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::Deref;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use warmpath::engine::Settings;
use warmpath::routing::event::Medium;

use super::fleet::engine::Engine;
use super::fleet::{ADAPTER, Files, INSTANT, MODEL, endpoints_text, request_id};
use super::gate::{Gate, Passed};
use super::http;
use super::picker::Pages;
use super::picker::thread::PickerThread;
use super::ports::own_loopback;
use super::waiting::PATIENCE;

/// Pause between two looks at a condition.
const LOOK: Duration = Duration::from_millis(5);

/// All of it, with a picker in a thread or a process. Dropped in this order: whoever asks goes before whoever answers.
pub(crate) struct Stage<P = PickerThread> {
    pub(crate) gate: Gate,
    pub(crate) picker: P,
    pub(crate) engines: Vec<Engine>,
    pub(crate) files: Files,
}

/// What became of one request, by the picker's own record.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// `namespace/name` of the endpoint picked.
    pub(crate) endpoint: String,
    /// Cached tokens foreseen.
    pub(crate) predicted: u64,
    /// Cached tokens that the engine found, if it told.
    pub(crate) reported: Option<u64>,
    /// The rest.
    pub(crate) decision: Value,
}

/// What the picker believes of one endpoint's cache, and how well it is told.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// The page as it is.
    pub(crate) page: Value,
    /// Keys of the blocks, in hex.
    pub(crate) keys: BTreeSet<String>,
}

/// Engines that compute in no time unless these further options of each say otherwise, and are named by number.
pub(crate) async fn engines(options: &[&[&'static str]]) -> Vec<Engine> {
    let mut engines = Vec::new();
    for (number, options) in options.iter().enumerate() {
        engines.push(engine(number, options).await);
    }
    engines
}

/// One engine, on a loopback address of its own.
async fn engine(number: usize, options: &[&'static str]) -> Engine {
    let name = format!("engine-{number}");
    let ip = own_loopback().to_string();
    let events = format!("tcp://{ip}:0");
    let own = ["--address", &ip, "--name", &name, "--model", MODEL];
    let more = [
        "--lora",
        ADAPTER,
        "--kv-events",
        &events,
        "--kv-replay",
        &events,
    ];
    let all = [&own[..], &more, &INSTANT, options].concat();
    let settings = Settings::local(&all).expect("options of an engine");
    Engine::start(name, settings).await
}

impl Stage {
    /// A picker that has these endpoints listed, with these settings over what every test has. Waits for nothing.
    pub(crate) async fn listing(
        endpoints: &[(String, SocketAddr)],
        engines: Vec<Engine>,
        settings: Value,
    ) -> Self {
        let mut all = json!({
            // A test machine may be busy for longer than an engine may be silent.
            "guards": { "report_age_limit": "30s" },
            "limits": { "pick_timeout": "30s" },
            "tokenizers": { "hub": false, "engine_timeout": "30s" },
        });
        super::fleet::merge(&mut all, settings);
        let files = Files::new(&all, Vec::new());
        files.write_endpoints(&endpoints_text(endpoints));
        let picker = PickerThread::start(&files, false).await;
        Self {
            gate: Gate::before(picker.addresses.grpc),
            picker,
            engines,
            files,
        }
    }

    /// The same, once the picker knows the engines and follows the events of those that have some.
    pub(crate) async fn settled(engines: Vec<Engine>, settings: Value) -> Self {
        let stage = Self::listing(&listed(&engines), engines, settings).await;
        stage.settle().await;
        stage
    }

    /// Ends the picker at once and starts another in its place, which knows nothing.
    pub(crate) async fn replace_picker(&mut self) {
        self.picker.kill().await;
        let addresses = self.picker.addresses;
        self.picker = PickerThread::in_place_of(addresses, &self.files, false).await;
        self.gate = Gate::before(addresses.grpc);
    }
}

impl<P: Deref<Target = Pages>> Stage<P> {
    /// Waits until the picker knows all engines that live, and has heard of their events what there is to hear.
    pub(crate) async fn settle(&self) {
        let alive = || self.engines.iter().filter(|engine| engine.is_alive());
        let endpoints = alive().flat_map(Engine::endpoints).count();
        self.picker.knows(endpoints, 0).await;
        self.heard().await;
    }

    /// Waits until all that there is to hear of the endpoints' events is heard.
    pub(crate) async fn heard(&self) {
        let caught_up = |endpoint: &Value| {
            let feeds = endpoint["feeds"].as_array().expect("a list");
            !feeds.is_empty()
                && feeds.iter().all(|feed| {
                    let cause = feed["cause"].as_str().unwrap_or_default();
                    feed["state"] != "suspect" && !cause.contains("has not yet told")
                })
        };
        let what = "what can be heard of all engines' events is heard";
        self.picker
            .sees(what, |endpoints| endpoints.iter().all(caught_up))
            .await;
    }

    /// Replaces the endpoints file by one that lists these.
    pub(crate) fn list(&self, engines: &[(String, SocketAddr)]) {
        self.files.write_endpoints(&endpoints_text(engines));
    }

    /// Posts JSON and waits for the answer, which must be 200, and for what the picker made of it.
    pub(crate) async fn ask(&self, path: &str, body: &Value) -> Asked {
        let id = request_id();
        let passed = self.gate.pass(path, &[("x-request-id", &id)], body).await;
        let Some(Passed { status: 200, .. }) = passed else {
            panic!("{path} {body}: {passed:?}");
        };
        Asked::of(self.picker.ended(&id).await)
    }

    /// What the picker believes of an endpoint, which must be there.
    pub(crate) async fn view(&self, name: &str) -> View {
        let view = self.find_view(name).await;
        view.unwrap_or_else(|| panic!("no endpoint {name}"))
    }

    /// The same of one that may not be there.
    pub(crate) async fn find_view(&self, name: &str) -> Option<View> {
        let page = format!("/debug/cache/default/{name}");
        let answer = http::get(self.picker.addresses.metrics, &page).await;
        if answer.status == 404 {
            return None;
        }
        let page = answer.json();
        let feeds = page["feeds"].as_array().expect("a list");
        let keys = feeds
            .iter()
            .flat_map(|feed| feed["keys"].as_array().expect("a list"))
            .map(|key| key.as_str().expect("a key").to_owned())
            .collect();
        Some(View { page, keys })
    }

    /// Waits until `holds` is satisfied with the view of every endpoint of the engines that live and with what its
    /// engine has cached.
    pub(crate) async fn compare(
        &self,
        what: &str,
        holds: impl Fn(&View, &BTreeSet<String>) -> Result<(), String>,
    ) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let Err(difference) = self.compare_once(&holds).await else {
                return;
            };
            assert!(Instant::now() < deadline, "{what}: {difference}");
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn compare_once(
        &self,
        holds: &impl Fn(&View, &BTreeSet<String>) -> Result<(), String>,
    ) -> Result<(), String> {
        for engine in self.engines.iter().filter(|engine| engine.is_alive()) {
            for (name, rank) in engine.endpoints() {
                let dump = engine.running().dump_of(rank).await;
                let dump = dump.ok_or_else(|| format!("{name} has ended"))?;
                // What lies on a slower tier has a place of its own in the view.
                let cached = dump
                    .iter()
                    .filter(|block| block.medium == Medium::Gpu)
                    .map(|block| format!("{:016x}", block.key.0))
                    .collect();
                let view = self.find_view(&name).await;
                let view = view.ok_or_else(|| format!("{name} is no endpoint"))?;
                holds(&view, &cached).map_err(|difference| format!("{name}: {difference}"))?;
            }
        }
        Ok(())
    }

    /// Waits until every view is whole and equal to its engine's cache.
    pub(crate) async fn views_are_equal(&self, what: &str) {
        self.compare(what, equal).await;
    }

    /// Waits until what events tell is whole and equal to each engine's cache. Credits stand apart: an eviction of such a
    /// block names a hash that nobody knows, so that only an answer can end them.
    pub(crate) async fn events_are_equal(&self, what: &str) {
        self.compare(what, |view, cached| {
            let credited = view.credited();
            let keys = view.keys.iter();
            let keys = keys.filter(|key| cached.contains(*key) || !credited.contains(*key));
            let told = View {
                page: view.page.clone(),
                keys: keys.cloned().collect(),
            };
            equal(&told, cached)
        })
        .await;
    }

    /// Waits until no view has a block that its engine has not.
    pub(crate) async fn no_phantoms(&self, what: &str) {
        self.compare(what, within).await;
    }
}

/// What an endpoints file has of them.
pub(crate) fn listed(engines: &[Engine]) -> Vec<(String, SocketAddr)> {
    engines
        .iter()
        .map(|engine| (engine.name.clone(), engine.address()))
        .collect()
}

impl Asked {
    fn of(decision: Value) -> Self {
        Self {
            endpoint: decision["endpoint"].as_str().expect("a name").to_owned(),
            predicted: decision["cached_tokens"].as_u64().expect("a number"),
            reported: decision["outcome"]["cached_tokens"].as_u64(),
            decision,
        }
    }
}

impl View {
    /// All its feeds are in this state, and there are some.
    pub(crate) fn is(&self, state: &str) -> bool {
        super::picker::feed_is(&self.page, state)
    }

    /// The blocks that no event told of: answers did.
    pub(crate) fn credited(&self) -> BTreeSet<String> {
        let keys = self.page["credited"]["keys"].as_array().expect("a list");
        keys.iter()
            .map(|key| key.as_str().expect("a key").to_owned())
            .collect()
    }

    /// The causes that its feeds give.
    pub(crate) fn causes(&self) -> String {
        let feeds = self.page["feeds"].as_array().expect("a list");
        let causes: Vec<_> = feeds
            .iter()
            .filter_map(|feed| feed["cause"].as_str())
            .collect();
        causes.join("; ")
    }
}

/// The view is live and has exactly these blocks.
pub(crate) fn equal(view: &View, cached: &BTreeSet<String>) -> Result<(), String> {
    within(view, cached)?;
    let missing = cached.difference(&view.keys).count();
    if missing > 0 {
        return Err(format!("{missing} of {} blocks are missing", cached.len()));
    }
    if !view.is("live") {
        return Err(format!("not live: {}", view.page["feeds"]));
    }
    Ok(())
}

/// The view has no other blocks than these.
pub(crate) fn within(view: &View, cached: &BTreeSet<String>) -> Result<(), String> {
    let phantoms: Vec<_> = view.keys.difference(cached).collect();
    if phantoms.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} of {} blocks are phantoms, {} of them credits, such as {:?}",
        phantoms.len(),
        view.keys.len(),
        phantoms
            .iter()
            .filter(|key| view.credited().contains(**key))
            .count(),
        phantoms.first(),
    ))
}
