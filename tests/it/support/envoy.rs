//! A real Envoy for one test: started, ready, asked about itself, and gone with the test.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::envoy_config::EnvoyConfig;
use super::tools::tool;

/// Longest time Envoy may take to start: a second when idle, more on two busy cores.
const START_DEADLINE: Duration = Duration::from_secs(30);
/// Pause between two looks at a condition.
const POLL: Duration = Duration::from_millis(20);

/// A running Envoy. It is killed on drop, and a test that fails shows what it logged.
pub(crate) struct Envoy {
    process: Child,
    folder: TempDir,
    client: reqwest::Client,
    admin: SocketAddr,
    listeners: BTreeMap<String, u16>,
}

impl Envoy {
    /// Starts Envoy and returns when it takes requests: `None` (with a printed line) when the tool is
    /// missing. Ports are of Envoy's own choice, so that tests never fight for one.
    pub(crate) async fn start(config: EnvoyConfig) -> Option<Self> {
        Self::run(&config.render()).await
    }

    /// The same with a configuration that came about otherwise; its listener `picked` takes the requests.
    pub(crate) async fn run(config: &Value) -> Option<Self> {
        let program = tool("envoy")?;
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("envoy.json"), config.to_string())
            .expect("a temporary file");
        let process = Command::new(program)
            .current_dir(folder.path())
            .args([
                "-c",
                "envoy.json",
                "--disable-hot-restart",
                "--concurrency",
                "1",
            ])
            .args([
                "--log-path",
                "envoy.log",
                "--log-level",
                "warning",
                "--component-log-level",
                "ext_proc:info",
            ])
            .args(["--admin-address-path", "admin.address"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(
                std::fs::File::create(folder.path().join("envoy.stderr"))
                    .expect("a temporary file"),
            )
            .spawn()
            .expect("the envoy program starts");
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let client = reqwest::Client::new();
        let mut envoy = Self {
            process,
            folder,
            client,
            admin: nowhere,
            listeners: BTreeMap::new(),
        };
        envoy.wait_until_ready().await;
        Some(envoy)
    }

    /// Where requests go through the picker, as a URL without a path.
    pub(crate) fn picked(&self) -> SocketAddr {
        self.listener("picked")
    }

    /// Where the same engines are taken in turn, without the picker.
    pub(crate) fn round_robin(&self) -> SocketAddr {
        self.listener("round-robin")
    }

    /// Where the listener of this name takes connections.
    pub(crate) fn listener(&self, name: &str) -> SocketAddr {
        let port = self.listeners.get(name);
        let port = port.unwrap_or_else(|| panic!("Envoy has no listener {name}"));
        SocketAddr::from(([127, 0, 0, 1], *port))
    }

    /// The value of one counter or gauge; 0 when Envoy has not made it yet.
    pub(crate) async fn stat(&self, name: &str) -> u64 {
        let page = self.admin_page("/stats").await;
        let value = page
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.map_or(0, |value| {
            value
                .parse()
                .unwrap_or_else(|_| panic!("{name} is no number: {value}"))
        })
    }

    /// Waits until `name` is at least `least`, and returns its value.
    pub(crate) async fn stat_reaches(&self, name: &str, least: u64) -> u64 {
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            let value = self.stat(name).await;
            if value >= least {
                return value;
            }
            assert!(
                Instant::now() < deadline,
                "{name} is {value} and did not reach {least}"
            );
            sleep(POLL).await;
        }
    }

    /// What Envoy runs, as it understood it.
    pub(crate) async fn config_dump(&self) -> Value {
        serde_json::from_str(&self.admin_page("/config_dump").await).expect("Envoy dumps JSON")
    }

    /// A page of Envoy's admin listener.
    pub(crate) async fn admin_page(&self, path: &str) -> String {
        self.try_admin_page(path)
            .await
            .unwrap_or_else(|| panic!("Envoy does not answer on {path}"))
    }

    async fn try_admin_page(&self, path: &str) -> Option<String> {
        let answer = self
            .client
            .get(format!("http://{}{path}", self.admin))
            .send()
            .await
            .ok()?;
        answer.error_for_status().ok()?.text().await.ok()
    }

    async fn wait_until_ready(&mut self) {
        let deadline = Instant::now() + START_DEADLINE;
        while !self.look_for_ports().await {
            let ended = self.process.try_wait().expect("our own child");
            assert!(ended.is_none(), "Envoy ended at once: {ended:?}");
            assert!(
                Instant::now() < deadline,
                "Envoy is not ready after {START_DEADLINE:?}"
            );
            sleep(POLL).await;
        }
    }

    /// True when Envoy is ready and has told all its ports.
    async fn look_for_ports(&mut self) -> bool {
        let Some(admin) = read(&self.folder.path().join("admin.address"))
            .trim()
            .parse()
            .ok()
        else {
            return false;
        };
        self.admin = admin;
        if self.try_admin_page("/ready").await.is_none() {
            return false;
        }
        let page = self.admin_page("/listeners?format=json").await;
        let listeners: Value =
            serde_json::from_str(&page).expect("Envoy lists its listeners as JSON");
        let statuses = listeners["listener_statuses"].as_array();
        let ports = statuses.into_iter().flatten().map(|status| {
            let port = status["local_address"]["socket_address"]["port_value"].as_u64()?;
            let name = status["name"].as_str()?.to_owned();
            Some((name, u16::try_from(port).ok().filter(|port| *port > 0)?))
        });
        self.listeners = ports.collect::<Option<_>>().unwrap_or_default();
        self.listeners.contains_key("picked")
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        // It may have ended by itself; there is nothing left to do about either error then.
        drop(self.process.kill());
        drop(self.process.wait());
        if std::thread::panicking() {
            let mut shown = String::new();
            for name in ["envoy.log", "envoy.stderr"] {
                let text = read(&self.folder.path().join(name));
                let skipped = text.lines().count().saturating_sub(60);
                for line in text.lines().skip(skipped) {
                    writeln!(shown, "{name}: {line}").ok();
                }
            }
            println!("{shown}");
        }
    }
}

/// A file's text; empty while it does not exist.
fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}
