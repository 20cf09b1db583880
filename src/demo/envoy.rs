//! How is a real Envoy started, and gone again? As a child process that picks its own ports and is killed on drop.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::envoy_config::{self, PICKED, ROUND_ROBIN};

/// Longest time Envoy may take to start: a second when idle, more on a busy machine.
const START_DEADLINE: Duration = Duration::from_secs(30);
/// Pause between two looks at it.
const POLL: Duration = Duration::from_millis(20);
/// Lines of its log that are shown when it does not start.
const SHOWN_LINES: usize = 20;

/// A running Envoy.
pub(super) struct Envoy {
    process: Child,
    folder: PathBuf,
    ports: Ports,
}

/// Where Envoy listens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    /// Requests go where the picker says.
    pub(super) picked: SocketAddr,
    /// The engines in turn.
    pub(super) round_robin: SocketAddr,
    /// Its own pages.
    pub(super) admin: SocketAddr,
}

impl Envoy {
    /// Starts `program` with the shipped configuration; it takes requests when this returns.
    ///
    /// # Errors
    /// When it does not start; its own words are in the message.
    pub(super) async fn start(
        program: &Path,
        folder: &Path,
        engines: &[SocketAddr],
        picker: SocketAddr,
    ) -> anyhow::Result<Self> {
        let config = envoy_config::render(engines, picker)?;
        std::fs::write(folder.join("envoy.json"), config.to_string())
            .context("cannot write Envoy's configuration")?;
        let process = spawn(program, folder)
            .with_context(|| format!("cannot start Envoy ({})", program.display()))?;
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut envoy = Self {
            process,
            folder: folder.to_owned(),
            ports: Ports {
                picked: nowhere,
                round_robin: nowhere,
                admin: nowhere,
            },
        };
        envoy.wait_until_ready().await?;
        Ok(envoy)
    }

    /// Where it listens.
    pub(super) const fn ports(&self) -> Ports {
        self.ports
    }

    /// How it ended, if it did.
    ///
    /// # Errors
    /// When the system does not say.
    pub(super) fn ended(&mut self) -> std::io::Result<Option<ExitStatus>> {
        self.process.try_wait()
    }

    /// The end of what it logged.
    pub(super) fn last_words(&self) -> String {
        let mut shown = String::new();
        for name in ["envoy.log", "envoy.stderr"] {
            let text = read(&self.folder.join(name));
            let skipped = text.lines().count().saturating_sub(SHOWN_LINES);
            for line in text.lines().skip(skipped) {
                shown.push('\n');
                shown.push_str(line);
            }
        }
        shown
    }

    async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let client = reqwest::Client::new();
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            if let Some(ports) = look_for_ports(&client, &self.folder).await {
                self.ports = ports;
                return Ok(());
            }
            if let Some(status) = self.ended()? {
                bail!(
                    "Envoy ended while it started ({status}):{}",
                    self.last_words()
                );
            }
            if Instant::now() >= deadline {
                bail!(
                    "Envoy is not ready after {} s:{}",
                    START_DEADLINE.as_secs(),
                    self.last_words()
                );
            }
            sleep(POLL).await;
        }
    }
}

fn spawn(program: &Path, folder: &Path) -> std::io::Result<Child> {
    Command::new(program)
        .current_dir(folder)
        // One worker: each takes the engines in turn by itself, so only one alone is exactly round robin.
        .args([
            "-c",
            "envoy.json",
            "--disable-hot-restart",
            "--concurrency",
            "1",
        ])
        .args(["--log-path", "envoy.log", "--log-level", "warning"])
        .args(["--admin-address-path", "admin.address"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(folder.join("envoy.stderr"))?)
        .spawn()
}

/// Its ports, once it is ready and has told all of them.
async fn look_for_ports(client: &reqwest::Client, folder: &Path) -> Option<Ports> {
    let admin: SocketAddr = read(&folder.join("admin.address")).trim().parse().ok()?;
    let page = async |path: &str| {
        let answer = client.get(format!("http://{admin}{path}")).send().await;
        answer.ok()?.error_for_status().ok()?.text().await.ok()
    };
    page("/ready").await?;
    let listeners: Value = serde_json::from_str(&page("/listeners?format=json").await?).ok()?;
    let port = |name: &str| {
        let statuses = listeners.get("listener_statuses")?.as_array()?;
        let listener = statuses.iter().find(|status| status["name"] == name)?;
        let port = listener.pointer("/local_address/socket_address/port_value")?;
        u16::try_from(port.as_u64()?).ok()
    };
    let at = |name: &str| Some(SocketAddr::new(admin.ip(), port(name)?));
    Some(Ports {
        picked: at(PICKED)?,
        round_robin: at(ROUND_ROBIN)?,
        admin,
    })
}

impl Drop for Envoy {
    fn drop(&mut self) {
        // It may have ended by itself; there is nothing left to do about either error then. Waiting takes the
        // milliseconds in which the system ends it, and after that it writes no more files.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// A file's text; empty while it does not exist.
fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}
