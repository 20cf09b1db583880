//! The whole of it for one test: engines, a picker, the files between them, and a real Envoy in front.
//!
//! Every part runs as a process does: engines and picker in threads of their own that can be killed in the middle of
//! whatever they do, Envoy as itself. A fleet looks at conditions until they hold and never waits for a time to pass.

pub(crate) mod echo;
pub(crate) mod engine;
pub(crate) mod load;
pub(crate) mod qwen3;
mod setup;
pub(crate) mod traffic;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tempfile::TempDir;

use self::echo::Echo;
use self::engine::{Engine, Home};
pub(crate) use self::setup::merge;
pub(crate) use self::setup::{INSTANT, Setup};
use super::envoy::Envoy;
use super::envoy_config::EnvoyConfig;
use super::http::{self, Answer};
use super::picker::feed_is;
use super::picker::thread::PickerThread;
use super::ports::Refusing;
use super::waiting::until;

/// The name under which engines serve their model.
pub(crate) const MODEL: &str = "qwen3";
/// An adapter that every engine has.
pub(crate) const ADAPTER: &str = "sql";

/// What is written for the picker to read.
pub(crate) struct Files {
    folder: TempDir,
    /// Flags of the picker besides those that name the files.
    pub(super) flags: Vec<&'static str>,
}

impl Files {
    pub(crate) fn new(settings: &Value, flags: Vec<&'static str>) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let files = Self { folder, flags };
        std::fs::write(files.settings(), settings.to_string()).expect("a temporary file");
        files
    }

    pub(crate) fn settings(&self) -> PathBuf {
        self.folder.path().join("settings.yaml")
    }

    pub(crate) fn endpoints(&self) -> PathBuf {
        self.folder.path().join("endpoints.yaml")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.path().join("picker.log")
    }

    /// Replaces the endpoints file as an orchestrator does: at once, by a rename.
    pub(crate) fn write_endpoints(&self, text: &str) {
        let next = self.folder.path().join("endpoints.next");
        std::fs::write(&next, text).expect("a temporary file");
        std::fs::rename(next, self.endpoints()).expect("the same folder");
    }
}

/// An endpoints file that lists these.
pub(crate) fn endpoints_text(endpoints: &[(String, SocketAddr)]) -> String {
    let listed: Vec<_> = endpoints
        .iter()
        .map(|(name, at)| json!({ "name": name, "address": at.ip(), "port": at.port() }))
        .collect();
    json!({ "endpoints": listed }).to_string()
}

/// Engines, picker, Envoy.
pub(crate) struct Fleet {
    // Dropped in this order: whoever asks goes before whoever answers.
    pub(crate) envoy: Envoy,
    pub(crate) picker: PickerThread,
    pub(crate) engines: Vec<Engine>,
    pub(crate) echoes: Vec<Echo>,
    pub(crate) dead: Vec<Refusing>,
    pub(crate) files: Files,
    doubles: Vec<(String, SocketAddr)>,
    home: Home,
    secure: bool,
    unlisted: usize,
}

/// What became of one request.
pub(crate) struct Exchange {
    pub(crate) answer: Answer,
    /// The decision on it, its outcome complete.
    pub(crate) decision: Value,
}

impl Fleet {
    async fn start(setup: Setup) -> Option<Self> {
        let mut settings = setup.settings;
        let home = Home {
            options: setup.engine_options,
            second_options: setup.second_engine_options,
            models: setup.tokenizer.then(qwen3::folder),
            event_ports: if setup.usual_ports {
                [5557, 5558]
            } else {
                [0, 0]
            },
        };
        if let Some(models) = &home.models {
            merge(
                &mut settings,
                json!({ "tokenizers": { "directory": models } }),
            );
        }
        let (mut engines, mut echoes, mut dead) = (Vec::new(), Vec::new(), Vec::new());
        let numbers = 0..setup.engines + setup.unlisted;
        engines.extend(join_all(numbers.map(|number| home.engine(number))).await);
        for number in 0..setup.echoes {
            echoes.push(Echo::start(number).await);
        }
        dead.resize_with(setup.dead, Refusing::new);
        let mut endpoints = named(&engines, &echoes, &dead);
        endpoints.extend(setup.doubles.iter().cloned());
        let addresses: Vec<_> = endpoints.iter().map(|(_, address)| *address).collect();
        endpoints.drain(setup.engines..engines.len());
        let files = Files::new(&settings, setup.picker_flags);
        files.write_endpoints(&endpoints_text(&endpoints));
        let picker = PickerThread::start(&files, setup.secure).await;
        let mut config = EnvoyConfig::new(picker.addresses.grpc, addresses);
        config.picker_tls = setup.secure;
        (setup.envoy)(&mut config);
        let fleet = Self {
            envoy: Envoy::start(config).await?,
            picker,
            engines,
            echoes,
            dead,
            files,
            home,
            doubles: setup.doubles,
            secure: setup.secure,
            unlisted: setup.unlisted,
        };
        fleet.settled().await;
        Some(fleet)
    }

    /// Waits until the picker knows all it can know of every endpoint, and Envoy of the picker.
    pub(crate) async fn settled(&self) {
        let listed = self.engines.len() - self.unlisted;
        let endpoints = self.engines.iter().take(listed).map(Engine::endpoints);
        let silent = self.echoes.len() + self.doubles.len();
        self.picker.knows(endpoints.flatten().count(), silent).await;
        if self.home.models.is_some() {
            self.picker.metric_is("warmpath_models_loaded", 1.0).await;
        }
        for engine in self.engines.iter().take(listed) {
            if engine.has_events() {
                for (name, _) in engine.endpoints() {
                    self.picker.feed_is(&name, "live").await;
                }
            }
        }
        // Envoy asks the picker's health once a second and sends nobody before.
        self.envoy
            .stat_reaches("cluster.picker.membership_healthy", 1)
            .await;
    }

    /// Waits until the picker holds exactly the blocks that each engine has cached.
    pub(crate) async fn events_arrived(&self) {
        for engine in &self.engines {
            if !engine.is_alive() || !engine.has_events() {
                continue;
            }
            for (name, rank) in engine.endpoints() {
                until(&format!("all events of {name} arrived"), async || {
                    let cached = engine.running().dump_of(rank).await?.len();
                    let held = self.picker.endpoint(&name).await;
                    let live = feed_is(&held, "live");
                    // Credits are of no event.
                    let blocks = |of: &str| held[of].as_u64().unwrap_or_default();
                    let told = blocks("cached_blocks") - blocks("credited_blocks");
                    (live && told == cached as u64).then_some(())
                })
                .await;
            }
        }
    }

    /// Ends the picker at once and starts another in its place.
    pub(crate) async fn replace_picker(&mut self) {
        self.picker.kill().await;
        self.start_picker().await;
    }

    /// Starts a picker in the place of one that has ended.
    pub(crate) async fn start_picker(&mut self) {
        let addresses = self.picker.addresses;
        self.picker = PickerThread::in_place_of(addresses, &self.files, self.secure).await;
    }

    /// Every endpoint with its name, engines first.
    pub(crate) fn endpoints(&self) -> Vec<(String, SocketAddr)> {
        let mut endpoints = named(&self.engines, &self.echoes, &self.dead);
        endpoints.extend(self.doubles.iter().cloned());
        endpoints
    }

    /// Another Envoy before the same picker and engines.
    pub(crate) async fn another_envoy(&self, change: impl FnOnce(&mut EnvoyConfig)) -> Envoy {
        let addresses = self.endpoints().into_iter().map(|(_, address)| address);
        let mut config = EnvoyConfig::new(self.picker.addresses.grpc, addresses);
        config.picker_tls = self.secure;
        change(&mut config);
        let envoy = Envoy::start(config).await.expect("the first one started");
        envoy
            .stat_reaches("cluster.picker.membership_healthy", 1)
            .await;
        envoy
    }

    /// Posts JSON through Envoy, and waits for the answer and for what the picker made of it.
    pub(crate) async fn ask(&self, path: &str, body: &Value) -> Exchange {
        self.ask_by(&self.envoy, path, body).await
    }

    /// The same by a certain Envoy.
    pub(crate) async fn ask_by(&self, envoy: &Envoy, path: &str, body: &Value) -> Exchange {
        self.ask_with(envoy, path, &[], body).await
    }

    /// The same with further headers.
    pub(crate) async fn ask_with(
        &self,
        envoy: &Envoy,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Exchange {
        let id = request_id();
        let own = [("content-type", "application/json"), ("x-request-id", &id)];
        let headers = [&own, headers].concat();
        let answer = http::post(envoy.picked(), path, &headers, body.to_string()).await;
        let decision = self.picker.ended(&id).await;
        Exchange { answer, decision }
    }

    /// The engine of a name, as a decision or a page gives it.
    pub(crate) fn engine(&self, name: &str) -> &Engine {
        let name = name.strip_prefix("default/").unwrap_or(name);
        let name = name.split('@').next().unwrap_or(name);
        let engine = self.engines.iter().find(|engine| engine.name == name);
        engine.unwrap_or_else(|| panic!("no engine {name}"))
    }
}

fn named(engines: &[Engine], echoes: &[Echo], dead: &[Refusing]) -> Vec<(String, SocketAddr)> {
    let engines = engines
        .iter()
        .map(|engine| (engine.name.clone(), engine.address()));
    let echoes = echoes.iter().map(|echo| (echo.name.clone(), echo.address));
    let dead = dead.iter().enumerate();
    let dead = dead.map(|(number, dead)| (format!("dead-{number}"), dead.address()));
    engines.chain(echoes).chain(dead).collect()
}

impl Exchange {
    /// Where it went.
    pub(crate) fn endpoint(&self) -> &str {
        self.decision["endpoint"].as_str().expect("a name")
    }

    /// The cached tokens that the pick foresaw.
    pub(crate) fn predicted(&self) -> u64 {
        self.decision["cached_tokens"].as_u64().expect("a number")
    }

    /// The cached tokens that the engine found.
    pub(crate) fn reported(&self) -> Option<u64> {
        self.decision["outcome"]["cached_tokens"].as_u64()
    }
}

/// An id that no other request of this run has.
pub(crate) fn request_id() -> String {
    format!("it-{:016x}", fastrand::u64(..))
}

/// The last lines of a file.
pub(crate) fn tail(file: &Path, lines: usize) -> String {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let skipped = text.lines().count().saturating_sub(lines);
    let lines: Vec<_> = text.lines().skip(skipped).collect();
    lines.join("\n")
}
