//! How is an engine started and stopped? In its own thread for tests and the demo, or as the whole process.
//!
//! A thread with a runtime of its own can be killed as a process can: everything it holds is dropped at once,
//! its sockets closed in the middle of whatever they did.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::http::HeaderValue;
use axum::serve::ListenerExt as _;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::args::{Args, Settings};
use super::block_cache::CachedBlock;
use super::driver::{COMMANDS, Command, Driver};
use super::fault::{Fault, Faults};
use super::http::{App, router};
use super::model::{Model, SettingsError};
use super::observed::Observed;
use super::publish::{BindError, Bound, bind};
use super::tokenizer::{Tokenizer, TokenizerError};

/// How long answers under way may take after a stop, as vLLM's server allows.
const GRACE: Duration = Duration::from_secs(1);

/// Why an engine does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The engine core.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The model's files.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The HTTP address.
    #[error("cannot listen on {address}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The event addresses.
    #[error(transparent)]
    Events(#[from] BindError),
    /// A name that a response header cannot carry.
    #[error("{0:?} cannot stand in a response header")]
    Name(String),
    /// No thread or runtime to be had.
    #[error("cannot start a thread for the engine")]
    Thread(#[from] std::io::Error),
    /// The thread ended before it listened.
    #[error("the engine's thread ended while it started")]
    Died,
}

/// An engine that listens and is not served yet.
struct Ready {
    app: Arc<App>,
    listener: TcpListener,
    driver: Driver,
    replay: Option<super::publish::Replay>,
    handle: Handle,
}

/// What is known of an engine from outside.
#[derive(Clone)]
struct Handle {
    http: SocketAddr,
    event_addresses: Option<(String, Option<String>)>,
    commands: mpsc::Sender<Command>,
    faults: Arc<Faults>,
}

/// An engine in this process. Dropping it kills it.
pub struct Running {
    handle: Handle,
    stop: CancellationToken,
    kill: CancellationToken,
    ended: oneshot::Receiver<()>,
}

impl Running {
    /// Where its HTTP API is.
    pub const fn http(&self) -> SocketAddr {
        self.handle.http
    }

    /// `tcp://host:port` of its live KV events, if it has any.
    pub fn kv_events(&self) -> Option<&str> {
        self.handle
            .event_addresses
            .as_ref()
            .map(|(live, _)| live.as_str())
    }

    /// `tcp://host:port` of their replay, if it has one.
    pub fn kv_replay(&self) -> Option<&str> {
        self.handle
            .event_addresses
            .as_ref()
            .and_then(|(_, replay)| replay.as_deref())
    }

    /// Every cached content, sorted by hash; `None` if the engine has ended.
    pub async fn dump(&self) -> Option<Vec<CachedBlock>> {
        let (reply, answer) = oneshot::channel();
        self.handle.commands.send(Command::Dump(reply)).await.ok()?;
        answer.await.ok()
    }

    /// Makes something go wrong from now on.
    pub fn set_fault(&self, fault: Fault) {
        self.handle.faults.set(fault);
    }

    /// Ends all faults.
    pub fn clear_faults(&self) {
        self.handle.faults.clear();
    }

    /// Takes no more connections, gives answers under way a second, and ends.
    pub async fn stop(mut self) {
        self.stop.cancel();
        // An error says that the thread is gone already.
        (&mut self.ended).await.ok();
    }

    /// Ends at once: connections break, nothing is flushed.
    pub async fn kill(mut self) {
        self.kill.cancel();
        (&mut self.ended).await.ok();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill.cancel();
    }
}

/// Starts an engine in a thread of its own; it listens when this returns.
///
/// # Errors
/// When the settings make no engine, or an address is taken.
pub async fn start(settings: Settings) -> Result<Running, StartError> {
    let (stop, kill) = (CancellationToken::new(), CancellationToken::new());
    let (ready, started) = oneshot::channel();
    let (end, ended) = oneshot::channel::<()>();
    let (stopped, killed) = (stop.clone(), kill.clone());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::Builder::new()
        .name("engine".to_owned())
        .spawn(move || {
            runtime.block_on(async move {
                let engine = match prepare(settings).await {
                    Ok(engine) => engine,
                    Err(error) => {
                        // Nobody to tell if the starter gave up.
                        ready.send(Err(error)).ok();
                        return;
                    }
                };
                if ready.send(Ok(engine.handle.clone())).is_err() {
                    return;
                }
                tokio::select! {
                    () = killed.cancelled() => {}
                    served = serve(engine, stopped) => if let Err(error) = served {
                        tracing::error!(error = format!("{error:#}"), "a simulated engine ended");
                    }
                }
            });
            drop(runtime);
            drop(end);
        })?;
    let handle = started.await.map_err(|_| StartError::Died)??;
    Ok(Running {
        handle,
        stop,
        kill,
        ended,
    })
}

/// Runs an engine in this runtime until `stop`.
///
/// # Errors
/// When it cannot start, or a part of it ends by itself.
pub async fn run(args: Args, stop: CancellationToken) -> anyhow::Result<()> {
    let engine = prepare(args.settings()?).await?;
    let handle = &engine.handle;
    let (live, replay) = handle.event_addresses.clone().unzip();
    tracing::info!(address = %handle.http, kv_events = live, kv_replay = replay.flatten(), "simulated engine listens");
    serve(engine, stop).await
}

async fn prepare(mut settings: Settings) -> Result<Ready, StartError> {
    let tokenizer = Tokenizer::load(settings.model_dir.as_deref())?;
    settings.core.vocabulary = tokenizer.vocabulary();
    let model = Model::new(settings.core.clone())?;
    let faults = Arc::new(Faults::new(&settings.faults));
    let address = settings.listen;
    let listen = |source| StartError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(listen)?;
    let http = listener.local_addr().map_err(listen)?;
    let name = settings.name.clone().unwrap_or_else(|| http.to_string());
    let name = HeaderValue::from_str(&name).map_err(|_| StartError::Name(name))?;
    let (mut publisher, mut replay, mut event_addresses) = (None, None, None);
    if let Some(events) = settings.events.clone() {
        let bound: Bound = bind(events, settings.adapters.clone(), Arc::clone(&faults)).await?;
        event_addresses = Some((bound.live_address, bound.replay_address));
        publisher = Some(bound.publisher);
        replay = bound.replay;
    }
    let (commands, receiver) = mpsc::channel(COMMANDS);
    let observed = Arc::new(Mutex::new(Observed::default()));
    let max_model_len = settings.core.max_model_len;
    let driver = Driver::new(
        model,
        max_model_len,
        receiver,
        publisher,
        Arc::clone(&observed),
    );
    let handle = Handle {
        http,
        event_addresses: event_addresses.clone(),
        commands: commands.clone(),
        faults: Arc::clone(&faults),
    };
    let app = App {
        settings,
        name,
        tokenizer,
        commands,
        observed,
        faults,
        event_addresses,
        stale_page: Mutex::new(None),
    };
    Ok(Ready {
        app: Arc::new(app),
        listener,
        driver,
        replay,
        handle,
    })
}

async fn serve(engine: Ready, stop: CancellationToken) -> anyhow::Result<()> {
    let Ready {
        app,
        listener,
        driver,
        replay,
        ..
    } = engine;
    let ending = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let token = ending.clone();
    tasks.spawn(async move { driver.run(token).await.context("driver") });
    if let Some(replay) = replay {
        let token = ending.clone();
        tasks.spawn(async move { replay.serve(token).await.context("replay socket") });
    }
    let token = stop.clone();
    tasks.spawn(async move {
        // Small chunks must not wait for the client's delayed acknowledgement of the one before.
        let listener = listener.tap_io(|connection| {
            if let Err(error) = connection.set_nodelay(true) {
                tracing::debug!(%error, "a connection stays without nodelay");
            }
        });
        let server = axum::serve(listener, router(app))
            .with_graceful_shutdown(token.clone().cancelled_owned());
        tokio::select! {
            served = server => served.context("http server"),
            () = async { token.cancelled().await; tokio::time::sleep(GRACE).await } => Ok(()),
        }
    });
    // The first to end is the server at a stop; anything else ends the engine with its error.
    let first = tasks.join_next().await.transpose()?.transpose()?;
    ending.cancel();
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    anyhow::ensure!(
        stop.is_cancelled() && first.is_some(),
        "a task of the simulated engine ended by itself"
    );
    Ok(())
}

#[cfg(test)]
mod tests;
