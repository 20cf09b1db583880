//! A picker as a process of its own: where it listens, what it logs, and how it ends.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::timeout;
use warmpath::app::Addresses;

/// Longest wait for its start and its end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running picker. Dropping it kills it.
pub(crate) struct Process {
    pub(crate) addresses: Addresses,
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
    log: String,
}

/// How it ended.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) code: Option<i32>,
    pub(crate) log: String,
}

impl Process {
    /// Starts `command`, which runs `warmpath serve`, and waits until it serves.
    ///
    /// # Errors
    /// When it ends before it serves.
    pub(crate) async fn start(mut command: Command) -> Result<Self, End> {
        let command = command
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .kill_on_drop(true);
        let mut child = command.spawn().expect("the program can be started");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let mut log = String::new();
        let serving = async {
            while let Ok(Some(line)) = lines.next_line().await {
                log.push_str(&line);
                log.push('\n');
                if let Some(addresses) = addresses(&line) {
                    return Some(addresses);
                }
            }
            None
        };
        match timeout(PATIENCE, serving).await {
            Ok(Some(addresses)) => Ok(Self {
                addresses,
                child,
                lines,
                log,
            }),
            Ok(None) => Err(End {
                code: child.wait().await.expect("it can be waited for").code(),
                log,
            }),
            Err(_elapsed) => panic!("it does not serve: {log}"),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// Sends SIGTERM, and waits for the end.
    pub(crate) async fn terminate(mut self) -> End {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status().await;
        assert!(sent.expect("kill can be started").success());
        let ending = async {
            while let Ok(Some(line)) = self.lines.next_line().await {
                self.log.push_str(&line);
                self.log.push('\n');
            }
            self.child.wait().await.expect("it can be waited for")
        };
        let Ok(status) = timeout(PATIENCE, ending).await else {
            panic!("it does not end: {}", self.log);
        };
        End {
            code: status.code(),
            log: self.log,
        }
    }
}

/// The addresses in the line that says that it serves.
fn addresses(line: &str) -> Option<Addresses> {
    let (_, said) = line.split_once("picker serves")?;
    let field = |name: &str| -> Option<SocketAddr> {
        let found = said.split(' ').find_map(|word| word.strip_prefix(name))?;
        found.parse().ok()
    };
    Some(Addresses {
        grpc: field("grpc=")?,
        health: field("health=")?,
        metrics: field("metrics=")?,
    })
}
