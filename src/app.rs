//! Wires the whole process and runs it until it is told to end.
//!
//! ```text
//! build: read files, bind sockets ─▶ run: serve ─▶ [signal] not ready, still accepting
//!        ─▶ [drain delay] accept no more, streams end ─▶ [at most drain timeout] stop the rest
//! ```

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::admin;
use crate::admin::access::Access;
use crate::args::Serve;
use crate::config;
use crate::decisions::Decisions;
use crate::extproc::exchange::TestHeaders;
use crate::extproc::server::{self, Security};
use crate::feeds::client::Client;
use crate::feeds::load::Waker;
use crate::feeds::supervisor::{Context, Profiles, Supervisor};
use crate::metrics::Metrics;
use crate::picker::Picker;
use crate::readiness::{Awaited, Readiness};
use crate::routing::router::Router;
use crate::telemetry::LogControl;
use crate::tokens::{self, ModelSource, Tokens};

mod cluster;
mod left_out;
mod listen;
mod source;
mod tasks;

use source::Source;
use tasks::{Stages, Tasks};

/// Everything a picker is made of, read and bound, but not yet running.
pub struct Bound {
    /// Where each port really is (a flag may say 0).
    pub addresses: Addresses,
    grpc: TcpListener,
    health: TcpListener,
    admin: TcpListener,
    security: Security,
    settings: config::Settings,
    source: Source,
    metrics: Metrics,
    access: Option<Arc<Access>>,
    router: Arc<Router>,
    tokens: Arc<Tokens>,
    client: Client,
    readiness: Readiness,
    /// Held until the supervisor looks after readiness, so that no moment of it comes before.
    started: Awaited,
    log: LogControl,
    drain: Drain,
}

/// The sockets a picker listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Ext-proc.
    pub grpc: SocketAddr,
    /// gRPC health.
    pub health: SocketAddr,
    /// Metrics and pages.
    pub metrics: SocketAddr,
}

/// How the process takes its leave.
#[derive(Clone, Copy, Debug)]
pub struct Drain {
    /// How long new streams are still accepted while not ready.
    pub delay: std::time::Duration,
    /// How long streams in flight may then take to end.
    pub timeout: std::time::Duration,
}

/// Reads the files and binds the sockets that `args` name.
///
/// # Errors
/// When a file is not valid or a socket cannot be bound; the message says which and why.
pub async fn build(args: &Serve, log: LogControl) -> anyhow::Result<Bound> {
    let security = security(args)?;
    let mut settings = config::Settings::load(args.config.as_deref())?;
    if args.conformance_test_headers {
        warn!("the conformance suite's headers are obeyed: any client may choose its endpoint");
        settings.wire.test_headers = TestHeaders::Obeyed;
    }
    check_folders(&settings.tokens)?;
    let source = Source::open(&args.discovery).await?;
    let metrics = Metrics::register().context("cannot register the metrics")?;
    let router = Router::new(settings.router.clone());
    metrics
        .register_fleet(Arc::clone(&router))
        .context("cannot register the metrics of the endpoints")?;
    let access = page_access(args, &metrics).await?;
    let readiness = Readiness::new();
    let started = readiness.wait_for(source.describe());
    let tokens = Tokens::new(settings.tokens.clone(), Arc::clone(&metrics.tokens));
    let grpc = listen::bind(args.bind, args.grpc_port, "--grpc-port").await?;
    let health = listen::bind(args.bind, args.grpc_health_port, "--grpc-health-port").await?;
    let admin = listen::bind(args.bind, args.metrics_port, "--metrics-port").await?;
    Ok(Bound {
        addresses: Addresses {
            grpc: grpc.local_addr()?,
            health: health.local_addr()?,
            metrics: admin.local_addr()?,
        },
        grpc,
        health,
        admin,
        security,
        settings,
        source,
        metrics,
        access,
        router,
        tokens,
        client: Client::new().context("cannot set up the HTTP client")?,
        readiness,
        started,
        log,
        drain: Drain {
            delay: args.drain_delay.0,
            timeout: args.drain_timeout.0,
        },
    })
}

fn security(args: &Serve) -> anyhow::Result<Security> {
    match (&args.cert_path, args.secure_serving) {
        (None, true) => Ok(Security::SelfSigned),
        (None, false) => Ok(Security::Plain),
        (Some(directory), true) => {
            let directory = PathBuf::from(directory);
            for file in ["tls.crt", "tls.key"] {
                let file = directory.join(file);
                anyhow::ensure!(
                    file.is_file(),
                    "--cert-path: there is no {}",
                    file.display()
                );
            }
            Ok(Security::Files(directory))
        }
        (Some(_), false) => anyhow::bail!("--cert-path makes no sense with --secure-serving=false"),
    }
}

/// The protection of the pages, where it is wanted.
async fn page_access(args: &Serve, metrics: &Metrics) -> anyhow::Result<Option<Arc<Access>>> {
    if !args.metrics_endpoint_auth {
        return Ok(None);
    }
    let client = cluster::client()
        .await
        .context("--metrics-endpoint-auth asks the API server")?;
    Ok(Some(Arc::new(Access::new(
        client,
        Arc::clone(&metrics.access),
    ))))
}

/// A folder that the settings name is there: an engine's word may be wrong, the operator's must not be.
fn check_folders(settings: &tokens::Settings) -> anyhow::Result<()> {
    for (model, source) in &settings.models {
        if let ModelSource::Directory(folder) = source {
            let file = folder.join("tokenizer.json");
            anyhow::ensure!(
                file.is_file(),
                "tokenizers.models.{model}: there is no {}",
                file.display()
            );
        }
    }
    if let Some(folder) = &settings.directory {
        anyhow::ensure!(
            folder.is_dir(),
            "tokenizers.directory: {} is no folder",
            folder.display()
        );
    }
    Ok(())
}

impl Bound {
    /// Runs until the first message of `signals`, then drains; a second one aborts.
    ///
    /// # Errors
    /// When a part ends by itself (the message names it), or when aborted.
    pub async fn run(self, signals: mpsc::Receiver<()>) -> anyhow::Result<()> {
        let Addresses {
            grpc,
            health,
            metrics,
        } = self.addresses;
        let source = self.source.describe();
        info!(%grpc, %health, %metrics, source, "picker serves");
        let (drain, readiness) = (self.drain, self.readiness.clone());
        let waker = Arc::new(Waker::default());
        let stages = self.spawn(waker);
        stages.run(drain, &readiness, signals).await
    }

    /// Starts every task. The ext-proc server stops first, the others when it has ended.
    fn spawn(self, waker: Arc<Waker>) -> Stages {
        let decisions = Arc::new(Decisions::new(self.settings.decisions));
        let (rung, doubting) = (Arc::clone(&waker), Arc::clone(&waker));
        let picker = Picker::new(
            Arc::clone(&self.tokens),
            Arc::clone(&self.router),
            Arc::clone(&decisions),
            Arc::clone(&self.metrics.picks),
            Arc::new(move |id| rung.wake(id)),
            Arc::new(move |id| doubting.rebuild(id)),
            self.settings.alternates,
        );
        let accepting = CancellationToken::new();
        let rest = CancellationToken::new();
        let mut front = Tasks::default();
        front.spawn(
            "ext-proc server",
            server::serve(
                self.grpc,
                self.security,
                self.settings.wire,
                Arc::new(picker),
                self.readiness.watch(),
                Arc::clone(&self.metrics.wire),
                accepting.clone(),
            ),
        );

        let mut others = Tasks::default();
        let health = server::serve_health(self.health, self.readiness.watch(), rest.clone());
        others.spawn("gRPC health server", health);
        let profiles = Profiles::default();
        let pages = Arc::new(admin::Pages {
            registry: self.metrics.registry.clone(),
            router: Arc::clone(&self.router),
            readiness: self.readiness.clone(),
            log: self.log,
            settings: self.settings.summary,
            engine: engine_page(Arc::clone(&profiles)),
            decisions: decisions_page(decisions, Arc::clone(&self.router)),
            tokens: tokens_page(Arc::clone(&self.tokens)),
        });
        let admin = admin::serve(self.admin, pages, self.access, rest.clone());
        others.spawn("admin server", async { Ok(admin.await?) });

        let left_out = left_out::watch(
            Arc::clone(&self.router),
            self.readiness.clone(),
            rest.clone(),
        );
        others.spawn("watch over who is left out", async {
            left_out.await;
            Ok(())
        });

        let (pool, pool_versions) = watch::channel(self.source.first());
        let supervisor = Supervisor::new(Context {
            router: self.router,
            tokens: Arc::clone(&self.tokens),
            waker,
            client: self.client,
            reports: self.settings.reports,
            kv_events: self.settings.kv_events,
            profiles,
            report_metrics: Arc::clone(&self.metrics.reports),
            event_metrics: Arc::clone(&self.metrics.events),
            pick_metrics: Arc::clone(&self.metrics.picks),
        });
        let (readiness, started, stop) = (self.readiness.clone(), self.started, rest.clone());
        others.spawn("feeds", async move {
            let feeds = supervisor.run(pool_versions, readiness, started, stop);
            Ok(feeds.await?)
        });
        let watching = self
            .source
            .watch(pool, self.readiness, self.metrics, rest.clone());
        others.spawn("endpoint discovery", watching);
        let watching = Arc::clone(&self.tokens).watch_parity(rest.clone());
        others.spawn("tokenizer parity", async {
            watching.await;
            Ok(())
        });
        let loading = self.tokens.run(rest.clone());
        others.spawn("tokenizer loading", async {
            loading.await;
            Ok(())
        });
        Stages {
            front,
            accepting,
            others,
            rest,
        }
    }
}

/// The last decisions, with the names of the endpoints that are still there.
fn decisions_page(
    decisions: Arc<Decisions>,
    router: Arc<Router>,
) -> Box<dyn Fn(usize) -> Value + Send + Sync> {
    Box::new(move |n| {
        let names: HashMap<_, _> = router
            .endpoints(Instant::now())
            .into_iter()
            .map(|view| (view.id, view.endpoint.name))
            .collect();
        decisions.to_json(n, |id| names.get(&id).cloned())
    })
}

/// Whose tokens each model's requests get.
fn tokens_page(tokens: Arc<Tokens>) -> Box<dyn Fn() -> Value + Send + Sync> {
    Box::new(move || tokens.to_json())
}

/// What an engine told of itself, as pages show it.
fn engine_page(
    profiles: Profiles,
) -> Box<dyn Fn(crate::routing::endpoint::EndpointId) -> Value + Send + Sync> {
    Box::new(move |id| {
        let Some(profile) = profiles.lock().get(&id).cloned() else {
            return Value::Null;
        };
        let model = |model: &tokens::ServedModel| {
            json!({
                "id": model.id,
                "root": model.root,
                "parent": model.parent,
                "max_model_len": model.max_model_len,
            })
        };
        json!({
            "version": profile.version.map(|(major, minor)| format!("{major}.{minor}")),
            "models": profile.models.iter().map(model).collect::<Vec<_>>(),
        })
    })
}
