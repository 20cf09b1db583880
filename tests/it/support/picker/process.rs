//! A picker as an operator runs it: the program itself, at an address of its own like a Pod, told things by signals.

use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;
use warmpath::app::Addresses;

use super::Pages;
use crate::support::fleet::tail;
use crate::support::guarded::Guarded;
use crate::support::ports::own_loopback;
use crate::support::waiting::until;

/// The place of a picker, and the program while it runs there: no longer than this value and the test process live.
pub(crate) struct PickerProcess {
    pages: Pages,
    command: Command,
    program: Option<Guarded>,
    folder: TempDir,
}

/// How one ended.
#[derive(Debug)]
pub(crate) struct End {
    /// Absent where a signal that cannot be handled ended it.
    pub(crate) code: Option<i32>,
    pub(crate) log: String,
}

impl PickerProcess {
    /// `warmpath serve` without further flags.
    pub(crate) fn command() -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warmpath"));
        command.arg("serve").env_remove("RUST_LOG");
        command
    }

    /// A place for what `command` runs, which is `warmpath serve` at its usual ports; nobody is there yet.
    pub(crate) fn place(mut command: Command) -> Self {
        let ip = IpAddr::from(own_loopback());
        command.args(["--bind", &ip.to_string()]);
        let [grpc, health, metrics] = [9002, 9003, 9090].map(|port| SocketAddr::new(ip, port));
        Self {
            pages: Pages {
                addresses: Addresses {
                    grpc,
                    health,
                    metrics,
                },
            },
            command,
            program: None,
            folder: tempfile::tempdir().expect("a temporary folder"),
        }
    }

    /// A place where somebody is.
    pub(crate) async fn started(command: Command) -> Self {
        let mut picker = Self::place(command);
        picker.start().await;
        picker
    }

    /// Starts the program; it lives when this returns.
    pub(crate) async fn start(&mut self) {
        self.try_start().await.expect("the picker starts");
    }

    /// The same.
    ///
    /// # Errors
    /// When it ends instead.
    pub(crate) async fn try_start(&mut self) -> Result<(), End> {
        assert!(self.program.is_none(), "somebody is there already");
        self.program = Some(Guarded::start(&self.command, &self.log()));
        let client = reqwest::Client::new();
        let livez = format!("http://{}/livez", self.addresses.metrics);
        until("the picker lives", async || {
            if let Some(end) = self.look_for_end() {
                return Some(Err(end));
            }
            client.get(&livez).send().await.ok().map(|_| Ok(()))
        })
        .await
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("picker.log")
    }

    /// What it logged in this life.
    pub(crate) fn logged(&self) -> String {
        std::fs::read_to_string(self.log()).expect("the log is there")
    }

    /// Waits until its log has a line with `what`.
    pub(crate) async fn logs(&self, what: &str) {
        until(&format!("the log says {what:?}"), async || {
            self.logged().contains(what).then_some(())
        })
        .await;
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.program.as_ref().expect("it runs").pid()
    }

    /// Sends a signal, by the name that kill(1) has for it.
    pub(crate) fn signal(&self, name: &str) {
        self.program.as_ref().expect("it runs").signal(name);
    }

    /// Waits for the end of the program; the place is free again.
    pub(crate) async fn end(&mut self) -> End {
        until("the picker has ended", async || self.look_for_end()).await
    }

    /// The end of the program, if it has come.
    pub(crate) fn look_for_end(&mut self) -> Option<End> {
        let status = self.program.as_mut().expect("it was started").ended()?;
        self.program = None;
        Some(End {
            code: status.code(),
            log: self.logged(),
        })
    }

    /// Tells it to leave, and waits until it has.
    pub(crate) async fn terminate(&mut self) -> End {
        self.signal("-TERM");
        self.end().await
    }
}

impl Deref for PickerProcess {
    type Target = Pages;

    fn deref(&self) -> &Pages {
        &self.pages
    }
}

impl Drop for PickerProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let (at, log) = (self.addresses.grpc, tail(&self.log(), 80));
            println!("picker.log of {at}:\n{log}");
        }
    }
}
