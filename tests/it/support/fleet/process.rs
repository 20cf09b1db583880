//! A picker as an operator runs it: the program itself, on an address of its own like a pod, told things by signals.

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use super::{Files, tail, until};
use crate::support::{http, ports};

/// The place of a picker: an address, and the program while it runs there. Dropping it kills the program.
pub(crate) struct PickerProcess {
    pub(crate) grpc: SocketAddr,
    pages: SocketAddr,
    flags: Vec<String>,
    child: Option<Child>,
    folder: TempDir,
}

impl PickerProcess {
    /// A place for a picker that will read these files; nobody is there yet.
    pub(crate) fn place(files: &Files, flags: &[&str]) -> Self {
        let ip = ports::own_loopback();
        let (endpoints, settings) = (files.endpoints(), files.settings());
        let own = [
            ("--bind", ip.to_string()),
            ("--endpoints-file", endpoints.display().to_string()),
            ("--config", settings.display().to_string()),
            ("--log-level", "info".to_owned()),
        ];
        let own = own
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value]);
        // The ports are the program's own.
        let [grpc, pages] = [9002, 9090].map(|port| SocketAddr::from((ip, port)));
        Self {
            grpc,
            pages,
            flags: own
                .chain(flags.iter().map(|&flag| flag.to_owned()))
                .collect(),
            child: None,
            folder: tempfile::tempdir().expect("a temporary folder"),
        }
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("picker.log")
    }

    /// Starts the program, and waits until it says that it is ready.
    pub(crate) async fn start(&mut self) {
        assert!(self.child.is_none(), "somebody is there already");
        let log = File::create(self.log()).expect("a temporary file");
        let child = Command::new(env!("CARGO_BIN_EXE_warmpath"))
            .arg("serve")
            .args(&self.flags)
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .expect("the program starts");
        self.child = Some(child);
        let pages = self.pages;
        until("the picker is ready", async || {
            let answer = reqwest::get(format!("http://{pages}/readyz")).await.ok()?;
            (answer.status() == 200).then_some(())
        })
        .await;
    }

    /// Sends a signal, by the name that kill(1) has for it.
    pub(crate) async fn signal(&self, name: &str) {
        let child = self.child.as_ref().expect("it runs");
        let pid = child.id().expect("it has not ended").to_string();
        let sent = Command::new("kill").args([name, &pid]).status().await;
        assert!(sent.expect("kill is there").success());
    }

    /// Waits for the end of the program; the place is free again.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("it was started");
        let ended = tokio::time::timeout(super::PATIENCE, child.wait()).await;
        ended.expect("it ends").expect("our own child")
    }

    /// Waits until its log has a line with `what`.
    pub(crate) async fn logs(&self, what: &str) {
        until(&format!("the log says {what:?}"), async || {
            let log = std::fs::read_to_string(self.log()).ok()?;
            log.contains(what).then_some(())
        })
        .await;
    }

    /// A page; it must be there.
    pub(crate) async fn page(&self, path: &str) -> String {
        let answer = http::get(self.pages, path).await;
        assert_eq!(answer.status, 200, "{path}");
        String::from_utf8(answer.body.to_vec()).expect("a page is text")
    }

    /// A page of JSON.
    pub(crate) async fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.page(path).await).expect("a page of JSON")
    }

    /// The sample of a metric, its labels as they are written; 0 where there is none.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let page = self.page("/metrics").await;
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().expect("a number"))
    }

    /// Waits until a metric is at least this.
    pub(crate) async fn metric_reaches(&self, name: &str, least: f64) {
        until(&format!("{name} reaches {least}"), async || {
            (self.metric(name).await >= least).then_some(())
        })
        .await;
    }
}

impl Drop for PickerProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("picker.log of {}:\n{}", self.grpc, tail(&self.log(), 60));
        }
    }
}
