//! A soak: engines with small pools under mixed traffic, with random faults; at each checkpoint and at the end everything
//! is right again.
//!
//! Half a minute in the tests, with a gateway that is a part of them; `make soak` has it go on for ten minutes before a real
//! Envoy. All chance follows from a seed, which is printed; `WARMPATH_SOAK_SEED` sets it.

mod clients;
mod troubles;

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::envoy::Envoy;
use crate::support::envoy_config::EnvoyConfig;
use crate::support::fleet::engine::Engine;
use crate::support::fleet::{Files, MODEL, endpoints_text};
use crate::support::gate::Gate;
use crate::support::http;
use crate::support::picker::process::PickerProcess;
use crate::support::stage::{self, Stage};

use clients::{Clients, Front};
use troubles::Troubles;

/// How long it goes on in the tests.
const SHORT: Duration = Duration::from_secs(60);
/// Clients at once.
const CLIENTS: u64 = 12;
/// Troubles between two checkpoints.
const TROUBLES: usize = 8;
/// How much the picker's memory may have grown from the first checkpoint to the end: caches of connections, tables that
/// double, and a heap that is cut up differently; a booking or record that leaks a request adds more in a minute.
const MAX_GROWTH_BYTES: f64 = 32.0 * 1024.0 * 1024.0;

/// Small pools: prompts push one another out all the time. A step takes its time, so that requests overlap.
const COMMON: [&str; 10] = [
    "--prefill-us-per-token",
    "10",
    "--base-ms-per-step",
    "0.3",
    "--decode-ms-per-step",
    "0.7",
    "--max-model-len",
    "1000",
    "--max-num-batched-tokens",
    "512",
];
/// What the engines differ in.
const DIFFERENT: [&[&str]; 4] = [
    &["--kv-blocks", "160", "--cpu-blocks", "200"],
    &[
        "--kv-blocks",
        "90",
        "--block-size",
        "32",
        "--kv-events-hashes",
        "bytes",
    ],
    &[
        "--kv-blocks",
        "130",
        "--data-parallel-size",
        "2",
        "--kv-groups",
        "2",
    ],
    &["--kv-blocks", "200", "--kv-events-encoding", "array"],
];

/// What the environment asks for.
struct Plan {
    duration: Duration,
    envoy: bool,
    seed: u64,
}

impl Plan {
    fn read() -> Self {
        let number = |name: &str| {
            let text = std::env::var(name).ok()?;
            Some(
                text.parse::<u64>()
                    .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
            )
        };
        let seconds = number("WARMPATH_SOAK_SECONDS");
        Self {
            duration: seconds.map_or(SHORT, Duration::from_secs),
            envoy: seconds.is_some(),
            seed: number("WARMPATH_SOAK_SEED").unwrap_or_else(|| fastrand::u64(..)),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_faults_under_mixed_traffic_leave_nothing_behind() {
    let plan = Plan::read();
    println!(
        "soak: WARMPATH_SOAK_SEED={} for {:?}",
        plan.seed, plan.duration
    );
    let mut soak = Soak::start(&plan).await;
    let end = Instant::now() + plan.duration;
    let mut warm_bytes = None;
    let mut begun = 0;
    while Instant::now() < end {
        soak.trouble().await;
        begun += 1;
        if begun % TROUBLES == 0 {
            soak.checkpoint().await;
            warm_bytes.get_or_insert(soak.resident_bytes().await);
        }
    }
    soak.checkpoint().await;
    let resident_bytes = soak.resident_bytes().await;
    let warm_bytes = warm_bytes.unwrap_or(resident_bytes);
    println!("{}", soak.summary(warm_bytes, resident_bytes).await);
    assert!(
        resident_bytes <= warm_bytes + MAX_GROWTH_BYTES,
        "memory grew from {warm_bytes} to {resident_bytes} bytes, seed {}",
        plan.seed
    );
    soak.clients.stop().await;
}

struct Soak {
    clients: Clients,
    // Kept for as long as clients ask it.
    _envoy: Option<Envoy>,
    stage: Stage<PickerProcess>,
    troubles: Troubles,
    random: fastrand::Rng,
    checkpoints: Vec<Duration>,
    /// Prompts so far that nobody else has.
    nudges: u32,
}

impl Soak {
    async fn start(plan: &Plan) -> Self {
        let options: Vec<Vec<&'static str>> = DIFFERENT
            .iter()
            .map(|own| [&COMMON[..], own].concat())
            .collect();
        let options: Vec<&[&'static str]> = options.iter().map(Vec::as_slice).collect();
        let engines = stage::engines(&options).await;
        let settings = json!({
            "decisions": 100,
            "guards": { "report_age_limit": "3s" },
            "kv_events": { "replay_timeout": "300ms", "guess_timeout": "1s" },
            "limits": { "pick_timeout": "10s" },
            "tokenizers": { "hub": false, "engine_timeout": "3s" },
        });
        let files = Files::new(&settings, Vec::new());
        files.write_endpoints(&endpoints_text(&stage::listed(&engines)));
        let mut command = PickerProcess::command();
        command.args([
            "--secure-serving=false",
            "--drain-delay=0s",
            "--log-level=warn",
        ]);
        command.arg("--endpoints-file").arg(files.endpoints());
        command.arg("--config").arg(files.settings());
        let picker = PickerProcess::started(command).await;
        let grpc = picker.addresses.grpc;
        let gate = Gate::before(grpc);
        let stage = Stage {
            gate: gate.clone(),
            picker,
            engines,
            files,
        };
        stage.settle().await;
        let mut envoy = None;
        if plan.envoy {
            let mut config = EnvoyConfig::new(grpc, stage.engines.iter().map(Engine::address));
            config.picker_tls = false;
            envoy = Envoy::start(config).await;
        }
        let front = match &envoy {
            None => Front::Gate(gate),
            Some(envoy) => {
                envoy
                    .stat_reaches("cluster.picker.membership_healthy", 1)
                    .await;
                Front::Envoy(envoy.picked(), reqwest::Client::new())
            }
        };
        Self {
            clients: Clients::start(&front, CLIENTS, plan.seed),
            _envoy: envoy,
            stage,
            troubles: Troubles::new(plan.seed.rotate_left(32)),
            random: fastrand::Rng::with_seed(plan.seed),
            checkpoints: Vec::new(),
            nudges: 0,
        }
    }

    /// Something goes wrong for a while.
    async fn trouble(&mut self) {
        let Stage { engines, files, .. } = &mut self.stage;
        let list = |engines: &[Engine], without: &[usize]| {
            let mut listed = stage::listed(engines);
            let mut at = 0..;
            listed.retain(|_| at.next().is_some_and(|at| !without.contains(&at)));
            files.write_endpoints(&endpoints_text(&listed));
        };
        self.troubles.begin(engines, list).await;
        // Traffic goes on meanwhile.
        tokio::time::sleep(Duration::from_millis(self.random.u64(200..1500))).await;
        self.troubles.end(engines, list).await;
    }

    /// With no trouble and no traffic everything becomes right: nothing is booked, and every view is what its engine has.
    async fn checkpoint(&mut self) {
        let turn = std::sync::Arc::clone(&self.clients.turn);
        let everybody_waits = turn.write().await;
        let begun = Instant::now();
        // Whoever seemed to have stopped shows a sign of life.
        self.nudge().await;
        let endpoints = self
            .stage
            .engines
            .iter()
            .flat_map(Engine::endpoints)
            .count();
        // One that had no report page is asked for it again only after half a minute, and one that refused may be left
        // out as long; that is no matter here.
        let back = |endpoint: &Value| {
            let excluded = &endpoint["excluded"];
            excluded.is_null() || excluded == "refusing"
        };
        self.stage
            .picker
            .sees("all engines are back", |all| {
                all.len() == endpoints && all.iter().all(back)
            })
            .await;
        self.stage.heard().await;
        self.stage.picker.nothing_is_booked().await;
        self.nudge().await;
        self.stage.events_are_equal("the soak's checkpoint").await;
        for engine in &self.stage.engines {
            for (name, _) in engine.endpoints() {
                let view = self.stage.view(&name).await;
                assert_eq!(
                    view.page["cached_blocks"],
                    view.keys.len(),
                    "{name} counts what it holds"
                );
            }
        }
        self.checkpoints.push(begun.elapsed());
        drop(everybody_waits);
    }

    /// One more event of every rank: whatever was not said before shows now.
    async fn nudge(&mut self) {
        for engine in &self.stage.engines {
            for (_, rank) in engine.endpoints() {
                self.nudges += 1;
                let first = 1_000_000 + 100 * self.nudges;
                let prompt: Vec<u32> = (first..first + 70).collect();
                let body = json!({ "model": MODEL, "prompt": prompt, "max_tokens": 1 });
                let rank = rank.to_string();
                let headers = [
                    ("content-type", "application/json"),
                    ("x-data-parallel-rank", &rank),
                ];
                let answer = http::post(
                    engine.address(),
                    "/v1/completions",
                    &headers,
                    body.to_string(),
                )
                .await;
                assert_eq!(answer.status, 200, "{:?}", answer.body);
            }
        }
    }

    async fn resident_bytes(&self) -> f64 {
        self.stage
            .picker
            .metric("process_resident_memory_bytes")
            .await
    }

    async fn summary(&self, warm_bytes: f64, resident_bytes: f64) -> String {
        let tally = &self.clients.tally;
        let mut text = format!("soak: {} requests, {tally:?}\n", tally.total());
        writeln!(text, "soak: troubles {:?}", self.troubles.counts).expect("memory");
        for result in ["equal", "too_high", "too_low", "overtaken", "not_reported"] {
            let metric = format!(r#"warmpath_predictions_total{{result="{result}"}}"#);
            let count = self.stage.picker.metric(&metric).await;
            writeln!(text, "soak: predictions {result} {count}").expect("memory");
        }
        let mib = |bytes: f64| bytes / 1024.0 / 1024.0;
        writeln!(
            text,
            "soak: all equal after {:?} of the checkpoints; memory {:.1} MiB at the first and {:.1} MiB at the end",
            self.checkpoints, mib(warm_bytes), mib(resident_bytes)
        )
        .expect("memory");
        text
    }
}
