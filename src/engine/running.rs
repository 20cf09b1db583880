//! How is an engine started and stopped? In its own thread for tests and the demo, or as the whole process.
//!
//! A thread with a runtime of its own can be killed as a process can: everything it holds is dropped at once,
//! its sockets closed in the middle of whatever they did.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::serve::ListenerExt as _;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::args::{Args, Settings};
use super::block_cache::CachedBlock;
use super::driver::Command;
use super::fault::Fault;
use super::http::{App, router};
use super::prepare::{Core, Ready, StartError, prepare};

/// How long answers under way may take after a stop, as vLLM's server allows.
const GRACE: Duration = Duration::from_secs(1);

/// An engine in this process. Dropping it kills it.
///
/// What is said without a rank is of the first one.
pub struct Running {
    app: Arc<App>,
    stop: CancellationToken,
    kill: CancellationToken,
    ended: oneshot::Receiver<()>,
}

impl Running {
    /// Where its HTTP API is.
    pub fn http(&self) -> SocketAddr {
        self.app.settings.listen
    }

    /// What it was started with, its real ports in the place of 0: started with this when it has ended, an engine
    /// comes back at the same addresses, as a container does that restarts in its pod. Its cache is cold and its
    /// events are numbered from 0.
    pub fn settings(&self) -> &Settings {
        &self.app.settings
    }

    /// The numbers of its data-parallel ranks.
    pub fn ranks(&self) -> impl Iterator<Item = u32> {
        self.app.ranks.iter().map(|rank| rank.number)
    }

    /// `tcp://host:port` of its live KV events, if it has any.
    pub fn kv_events(&self) -> Option<&str> {
        self.kv_events_of(self.app.ranks.first().number)
    }

    /// The same of a rank.
    pub fn kv_events_of(&self, rank: u32) -> Option<&str> {
        let (live, _) = self.event_addresses(rank)?;
        Some(live)
    }

    /// `tcp://host:port` of their replay, if it has one.
    pub fn kv_replay(&self) -> Option<&str> {
        self.kv_replay_of(self.app.ranks.first().number)
    }

    /// The same of a rank.
    pub fn kv_replay_of(&self, rank: u32) -> Option<&str> {
        let (_, replay) = self.event_addresses(rank)?;
        replay.as_deref()
    }

    fn event_addresses(&self, rank: u32) -> Option<&(String, Option<String>)> {
        self.app.ranks.numbered(rank)?.event_addresses.as_ref()
    }

    /// Every cached content, sorted by hash; `None` if the engine has ended.
    pub async fn dump(&self) -> Option<Vec<CachedBlock>> {
        self.dump_of(self.app.ranks.first().number).await
    }

    /// The same of a rank; `None` as well if there is no such rank.
    pub async fn dump_of(&self, rank: u32) -> Option<Vec<CachedBlock>> {
        let (reply, answer) = oneshot::channel();
        let rank = self.app.ranks.numbered(rank)?;
        rank.commands.send(Command::Dump(reply)).await.ok()?;
        answer.await.ok()
    }

    /// Makes something go wrong from now on.
    pub fn set_fault(&self, fault: Fault) {
        self.app.ranks.first().faults.set(fault);
    }

    /// The same at a rank. What befalls the server (HTTP and its metrics page) does nothing at a rank other than the
    /// first. False if there is no such rank.
    #[must_use]
    pub fn set_fault_of(&self, rank: u32, fault: Fault) -> bool {
        let rank = self.app.ranks.numbered(rank);
        rank.map(|rank| rank.faults.set(fault)).is_some()
    }

    /// Ends one kind of fault at all ranks.
    pub fn end_fault(&self, fault: Fault) {
        self.app
            .ranks
            .iter()
            .for_each(|rank| rank.faults.end(fault));
    }

    /// Ends all faults of all ranks.
    pub fn clear_faults(&self) {
        self.app.ranks.iter().for_each(|rank| rank.faults.clear());
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
                if ready.send(Ok(Arc::clone(&engine.app))).is_err() {
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
    let app = started.await.map_err(|_| StartError::Died)??;
    Ok(Running {
        app,
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
    let app = &engine.app;
    let (live, replay) = app.ranks.first().event_addresses.clone().unzip();
    let (address, ranks) = (app.settings.listen, app.ranks.len());
    tracing::info!(%address, ranks, kv_events = live, kv_replay = replay.flatten(), "simulated engine listens");
    serve(engine, stop).await
}

async fn serve(engine: Ready, stop: CancellationToken) -> anyhow::Result<()> {
    let Ready {
        app,
        listener,
        cores,
    } = engine;
    let ending = CancellationToken::new();
    let mut tasks = JoinSet::new();
    for Core { driver, replay } in cores {
        let token = ending.clone();
        tasks.spawn(async move { driver.run(token).await.context("driver") });
        if let Some(replay) = replay {
            let token = ending.clone();
            tasks.spawn(async move { replay.serve(token).await.context("replay socket") });
        }
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
