//! A simulated engine that can be killed and comes back at its old addresses.

use std::net::SocketAddr;
use std::path::PathBuf;

use warmpath::engine::{self, Running, Settings, StartError};

use super::{ADAPTER, MODEL};
use crate::support::waiting::until;
use crate::support::{http, ports};

/// What the engines of a fleet have in common.
pub(super) struct Home {
    /// Further options of their command line.
    pub(super) options: Vec<&'static str>,
    /// And those of every second one.
    pub(super) second_options: Vec<&'static str>,
    /// The folder of models, where they have one.
    pub(super) models: Option<PathBuf>,
    /// Ports of the live events and of their replay; 0 for free ones.
    pub(super) event_ports: [u16; 2],
}

impl Home {
    /// Starts one more engine, on a loopback address that no other engine has.
    pub(super) async fn engine(&self, number: usize) -> Engine {
        let name = format!("engine-{number}");
        let ip = ports::own_loopback().to_string();
        let mut options = vec!["--lora", ADAPTER, "--model", MODEL, "--name", &name];
        let folder = self.models.as_ref().map(|models| models.join(MODEL));
        if let Some(folder) = &folder {
            options.extend(["--model-dir", folder.to_str().expect("a path in UTF-8")]);
        }
        options.extend(&self.options);
        if number % 2 == 1 {
            options.extend(&self.second_options);
        }
        let [live, replay] = self.event_ports.map(|port| format!("tcp://{ip}:{port}"));
        let mut all = vec![
            "--address",
            &ip,
            "--kv-events",
            &live,
            "--kv-replay",
            &replay,
        ];
        all.extend(options);
        let settings = Settings::local(&all).expect("options of an engine");
        Engine::start(name, settings).await
    }
}

/// One engine. Dropping it kills it.
pub(crate) struct Engine {
    pub(crate) name: String,
    address: SocketAddr,
    settings: Settings,
    running: Option<Running>,
}

impl Engine {
    /// Starts one with these settings.
    pub(crate) async fn start(name: String, settings: Settings) -> Self {
        let running = engine::start(settings).await.expect("an engine starts");
        Self {
            name,
            address: running.http(),
            // The next life is at the same addresses.
            settings: running.settings().clone(),
            running: Some(running),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn has_events(&self) -> bool {
        self.settings.events.is_some()
    }

    /// The endpoints that the picker makes of it, each with its rank.
    pub(crate) fn endpoints(&self) -> Vec<(String, u32)> {
        let ranks = self.settings.ranks;
        if ranks.count == 1 {
            return vec![(self.name.clone(), ranks.first)];
        }
        let rank = |rank| (format!("{}@{rank}", self.name), rank);
        (0..ranks.count).map(rank).collect()
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.running.is_some()
    }

    /// The engine itself; it must be alive.
    pub(crate) fn running(&self) -> &Running {
        self.running.as_ref().expect("the engine is alive")
    }

    /// Ends at once: connections break, nothing is flushed.
    pub(crate) async fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            running.kill().await;
        }
    }

    /// The next life has other settings.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.settings);
    }

    /// Starts again with nothing in its cache, at the same addresses.
    pub(crate) async fn restart(&mut self) {
        let start = async || match engine::start(self.settings.clone()).await {
            Ok(running) => Some(running),
            // The kernel may need a moment (seen once in hundreds of runs) until a busy port is free again.
            Err(StartError::Listen { .. }) => None,
            Err(error) => panic!("an engine comes back at its addresses: {error}"),
        };
        self.running = Some(until("the engine's address is free", start).await);
    }

    /// A sample of its metrics page.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let page = http::get(self.address, "/metrics").await;
        let page = String::from_utf8(page.body.to_vec()).expect("a page is text");
        let line = page.lines().find(|line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with('{'))
        });
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
        value.unwrap_or_else(|| panic!("no sample {name}"))
    }

    /// Waits until a sample has a value.
    pub(crate) async fn metric_is(&self, name: &str, value: f64) {
        let what = format!("{name} of {} is {value}", self.name);
        until(&what, async || {
            (self.metric(name).await == value).then_some(())
        })
        .await;
    }
}
