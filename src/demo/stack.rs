//! Everything that the traffic goes through: engines, picker, Envoy and their files, started and ended together.

use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use flate2::read::GzDecoder;
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::envoy::{Envoy, Ports};
use super::folder::Folder;
use super::operator::Operator;
use super::picker::Picker;
use crate::app::Addresses;
use crate::engine::{self, CachedBlock, Running, Settings};
use crate::telemetry::LogControl;

/// The name by which requests ask for the model.
pub(super) const MODEL: &str = "qwen3";
/// Blocks of all KV pools together, 16 tokens each: room for every customer's prompt once (about 2,300 blocks), a
/// second and third copy of the hot one, and what questions and answers leave behind.
const FLEET_BLOCKS: usize = 3_600;
/// A pool must hold the longest prompt that is allowed.
const LEAST_BLOCKS: usize = 520;
/// Longest prompt and answer, in tokens.
const MAX_MODEL_LEN: &str = "8192";
/// Longest time for the parts to find each other, or for caches to be cold.
const DEADLINE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

const TOKENIZER_GZ: &[u8] = include_bytes!("../../assets/qwen3/tokenizer.json.gz");
const TOKENIZER_CONFIG: &[u8] = include_bytes!("../../assets/qwen3/tokenizer_config.json");

/// What is to be started.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// How many.
    pub(super) engines: usize,
    /// The Envoy program.
    pub(super) program: PathBuf,
}

/// The running parts. Dropped in this order: who writes files ends before their folder goes.
pub(super) struct Stack {
    envoy: Envoy,
    picker: Picker,
    engines: Vec<Running>,
    addresses: Vec<SocketAddr>,
    client: reqwest::Client,
    _folder: Folder,
}

impl Stack {
    /// Starts everything; requests are served by both ways when this returns.
    ///
    /// # Errors
    /// When a part does not start.
    pub(super) async fn start(plan: Plan, log: LogControl) -> anyhow::Result<Self> {
        let folder = Folder::create().context("cannot make a temporary folder")?;
        let models = folder.path().join("models");
        let model = models.join(MODEL);
        let engines = start_engines(plan.engines, model).await?;
        let addresses: Vec<SocketAddr> = engines.iter().map(Running::http).collect();
        let picker = Picker::start(folder.path(), &models, &addresses, log).await?;
        let grpc = picker.addresses().grpc;
        let envoy = Envoy::start(&plan.program, folder.path(), &addresses, grpc).await?;
        let mut stack = Self {
            envoy,
            picker,
            engines,
            addresses,
            client: reqwest::Client::new(),
            _folder: folder,
        };
        stack.wait_until_served().await?;
        Ok(stack)
    }

    /// Where Envoy listens.
    pub(super) const fn ports(&self) -> Ports {
        self.envoy.ports()
    }

    /// Where the picker listens.
    pub(super) const fn addresses(&self) -> Addresses {
        self.picker.addresses()
    }

    /// Where the engines are.
    pub(super) fn engines(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What each engine has cached by its own books.
    ///
    /// # Errors
    /// When an engine has ended.
    pub(super) async fn cached_blocks(&self) -> anyhow::Result<Vec<Vec<CachedBlock>>> {
        let dumps = self.engines.iter().map(async |engine| {
            let dump = engine.dump().await;
            dump.with_context(|| format!("the engine at {} ended", engine.http()))
        });
        try_join_all(dumps).await
    }

    /// Looks whether everything still runs.
    ///
    /// # Errors
    /// When a part has ended; the message says which and why.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        self.picker.check()?;
        if let Some(status) = self.envoy.ended()? {
            bail!("Envoy ended ({status}):{}", self.envoy.last_words());
        }
        Ok(())
    }

    /// Empties the caches of all engines, and waits until the picker has heard of it. No request may be running.
    ///
    /// # Errors
    /// When a cache does not become empty.
    pub(super) async fn make_cold(&self, operator: &Operator) -> anyhow::Result<()> {
        for engine in &self.addresses {
            self.forget(*engine).await?;
            // An engine tells of the reset with its next step. One token fills no block.
            self.ask(
                *engine,
                "/v1/completions",
                &json!({ "prompt": ".", "max_tokens": 1 }),
            )
            .await?;
        }
        let cold = |dump: &Vec<CachedBlock>| dump.is_empty();
        ensure!(
            self.cached_blocks().await?.iter().all(cold),
            "an engine still has cached blocks after a reset"
        );
        let deadline = Instant::now() + DEADLINE;
        loop {
            let state = operator.state().await?;
            if state.iter().all(|endpoint| endpoint.cached_blocks == 0) {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "the picker has not heard that the caches were emptied"
            );
            sleep(POLL).await;
        }
    }

    /// Tells an engine to forget its cache, as it does when no request is running.
    ///
    /// # Errors
    /// When it does not answer.
    pub(super) async fn forget(&self, engine: SocketAddr) -> anyhow::Result<()> {
        let url = format!("http://{engine}/reset_prefix_cache");
        self.client.post(url).send().await?.error_for_status()?;
        Ok(())
    }

    /// Sends one request to a server, and returns when it is answered.
    ///
    /// # Errors
    /// When it is not, or with an error.
    pub(super) async fn ask(
        &self,
        server: SocketAddr,
        path: &str,
        body: &Value,
    ) -> anyhow::Result<()> {
        let mut body = body.clone();
        if let Some(fields) = body.as_object_mut() {
            fields.insert("model".to_owned(), json!(MODEL));
        }
        let request = self.client.post(format!("http://{server}{path}"));
        let answer = request.json(&body).send().await?;
        let status = answer.status();
        let told = answer.text().await?;
        ensure!(
            status.is_success(),
            "http://{server}{path} answers {status}: {told}"
        );
        Ok(())
    }

    /// Lines that say what a person can do while everything runs.
    pub(super) fn things_to_try(&self) -> Vec<String> {
        let Ports {
            picked,
            round_robin,
            admin,
        } = self.ports();
        let metrics = self.addresses().metrics;
        vec![
            String::new(),
            "Everything still runs. A request through Envoy and the picker:".to_owned(),
            format!("  curl -i http://{picked}/v1/chat/completions \\"),
            "    -H 'content-type: application/json' \\".to_owned(),
            format!(
                "    -d '{{\"model\": \"{MODEL}\", \"max_tokens\": 16, \
                 \"messages\": [{{\"role\": \"user\", \"content\": \"Hello\"}}]}}'"
            ),
            "x-served-by in the answer says which engine served it.".to_owned(),
            format!("The same by round robin:  http://{round_robin}/v1/chat/completions"),
            format!("The picker's page:        http://{metrics}/"),
            format!("  why the last picks:     http://{metrics}/debug/decisions?n=3"),
            format!("  endpoints, settings:    http://{metrics}/debug/state"),
            format!("  for Prometheus:         http://{metrics}/metrics"),
            format!("Envoy's own pages:        http://{admin}/"),
            "Ctrl-C ends everything.".to_owned(),
        ]
    }

    /// Waits until the picker knows engines and tokenizer, and Envoy knows the picker.
    async fn wait_until_served(&mut self) -> anyhow::Result<()> {
        let operator = Operator::new(self.addresses().metrics)?;
        let deadline = Instant::now() + DEADLINE;
        loop {
            self.check()?;
            let missing = match operator.missing(self.addresses.len()).await? {
                Some(missing) => missing,
                None => {
                    let body = json!({ "prompt": ".", "max_tokens": 1 });
                    let (picked, turns) = (self.ports().picked, self.ports().round_robin);
                    self.ask(turns, "/v1/completions", &body).await?;
                    match self.ask(picked, "/v1/completions", &body).await {
                        Ok(()) => return Ok(()),
                        Err(refused) => format!("{refused:#}"),
                    }
                }
            };
            ensure!(
                Instant::now() < deadline,
                "not everything is ready after {} s: {missing}",
                DEADLINE.as_secs()
            );
            sleep(POLL).await;
        }
    }
}

/// Starts so many with the tokenizer that the demo carries, unpacked to the folder `model`.
async fn start_engines(count: usize, model: PathBuf) -> anyhow::Result<Vec<Running>> {
    let target = model.clone();
    // 5 MB: some 50 ms.
    tokio::task::spawn_blocking(move || unpack(&target))
        .await?
        .context("cannot unpack the tokenizer")?;
    let blocks = (FLEET_BLOCKS / count.max(1)).max(LEAST_BLOCKS).to_string();
    let folder = model
        .to_str()
        .context("the temporary folder's name is not text")?;
    let starting = (0..count).map(async |place| {
        let name = format!("engine-{place}");
        let settings = Settings::local(&[
            "--name",
            &name,
            "--model",
            MODEL,
            "--model-dir",
            folder,
            "--kv-blocks",
            &blocks,
            "--max-model-len",
            MAX_MODEL_LEN,
        ])?;
        let engine = engine::start(settings).await;
        engine.with_context(|| format!("{name} does not start"))
    });
    try_join_all(starting).await
}

/// Writes the model's files, as the hub would have them, to `folder`.
fn unpack(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut tokenizer = Vec::new();
    GzDecoder::new(TOKENIZER_GZ).read_to_end(&mut tokenizer)?;
    std::fs::write(folder.join("tokenizer.json"), tokenizer)?;
    std::fs::write(folder.join("tokenizer_config.json"), TOKENIZER_CONFIG)
}
