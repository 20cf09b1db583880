//! How is the picker started? As `warmpath serve` is, from files, on ports of its own choice.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::app::{self, Addresses};
use crate::args::{Discovery, Serve};
use crate::config::units::{Span, SpanOrZero};
use crate::telemetry::LogControl;

/// A picker in this process. It ends when this is dropped.
pub(super) struct Picker {
    addresses: Addresses,
    task: JoinSet<anyhow::Result<()>>,
    /// Closed, it would be a picker that nobody can tell to end.
    _signals: mpsc::Sender<()>,
}

impl Picker {
    /// Starts one for `engines`, with the tokenizers in `models`. Its files are written to `folder`.
    ///
    /// # Errors
    /// When it does not start.
    pub(super) async fn start(
        folder: &Path,
        models: &Path,
        engines: &[SocketAddr],
        log: LogControl,
    ) -> anyhow::Result<Self> {
        // JSON is YAML, and knows how to quote a path.
        let endpoint = |(place, engine): (usize, &SocketAddr)| json!({ "name": format!("engine-{place}"), "address": engine.ip(), "port": engine.port() });
        let endpoints: Value = engines.iter().enumerate().map(endpoint).collect();
        let endpoints_file = write(folder, "endpoints.yaml", &json!({ "endpoints": endpoints }))?;
        let settings = json!({ "tokenizers": { "directory": models, "hub": false } });
        let config = write(folder, "warmpath.yaml", &settings)?;
        let serve = Serve {
            discovery: Discovery {
                endpoints_file: Some(endpoints_file),
                ..Discovery::default()
            },
            grpc_port: 0,
            grpc_health_port: 0,
            metrics_port: 0,
            bind: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            secure_serving: true,
            cert_path: None,
            config: Some(config),
            drain_delay: SpanOrZero(Duration::ZERO),
            drain_timeout: Span(Duration::from_secs(1)),
            metrics_endpoint_auth: false,
        };
        let bound = app::build(&serve, log)
            .await
            .context("the picker does not start")?;
        let addresses = bound.addresses;
        let (signals, received) = mpsc::channel(1);
        let mut task = JoinSet::new();
        task.spawn(bound.run(received));
        Ok(Self {
            addresses,
            task,
            _signals: signals,
        })
    }

    /// Where it listens.
    pub(super) const fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Looks whether it still runs.
    ///
    /// # Errors
    /// When it has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        match self.task.try_join_next() {
            None => Ok(()),
            Some(Ok(Ok(()))) => Err(anyhow!("the picker ended by itself")),
            Some(Ok(Err(error))) => Err(error.context("the picker ended")),
            Some(Err(panicked)) => Err(anyhow!(panicked).context("the picker ended")),
        }
    }
}

fn write(folder: &Path, name: &str, content: &Value) -> anyhow::Result<std::path::PathBuf> {
    let path = folder.join(name);
    std::fs::write(&path, content.to_string())
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}
