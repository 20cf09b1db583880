//! Owns every task of the process, and ends them in order.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use tokio::sync::mpsc;
use tokio::task::{Id, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Drain;
use crate::readiness::Readiness;

/// A signal that comes within this time of the first is the same wish: `timeout` and some supervisors signal a process
/// and then its whole group.
const SAME_WISH: Duration = Duration::from_millis(200);

/// After the streams have ended nothing else has a reason to take longer.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Tasks by name.
#[derive(Default)]
pub(super) struct Tasks {
    set: JoinSet<anyhow::Result<()>>,
    names: HashMap<Id, &'static str>,
}

impl Tasks {
    pub(super) fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        let id = self.set.spawn(task).id();
        self.names.insert(id, name);
    }

    /// Waits for a task that ends without being told to; that is always an error.
    async fn ended_by_itself(&mut self) -> anyhow::Error {
        match self.next().await {
            Some((name, Ok(()))) => anyhow!("the {name} ended by itself"),
            Some((name, Err(error))) => error.context(format!("the {name} failed")),
            None => std::future::pending().await,
        }
    }

    /// Waits until all have ended, as they were told to.
    async fn finish(&mut self) -> anyhow::Result<()> {
        while let Some((name, ended)) = self.next().await {
            ended.with_context(|| format!("the {name} failed"))?;
        }
        Ok(())
    }

    async fn next(&mut self) -> Option<(&'static str, anyhow::Result<()>)> {
        let ended = self.set.join_next_with_id().await?;
        let id = ended
            .as_ref()
            .map_or_else(|panicked| panicked.id(), |(id, _)| *id);
        let name = self.names.remove(&id).unwrap_or("task");
        Some((
            name,
            ended.map_or_else(|panicked| Err(panicked.into()), |(_, end)| end),
        ))
    }
}

/// The tasks in the order in which they stop.
pub(super) struct Stages {
    /// Stops first; its streams run to their end.
    pub(super) front: Tasks,
    /// Cancelled: `front` accepts no more.
    pub(super) accepting: CancellationToken,
    /// Needed by streams in flight; they stop when `front` has ended.
    pub(super) others: Tasks,
    /// Cancelled: `others` end.
    pub(super) rest: CancellationToken,
}

impl Stages {
    /// Runs until told to end, then drains. Dropping the tasks aborts them.
    ///
    /// # Errors
    /// When a task ends by itself, or when aborted by a second signal.
    pub(super) async fn run(
        mut self,
        drain: Drain,
        readiness: &Readiness,
        mut signals: mpsc::Receiver<()>,
    ) -> anyhow::Result<()> {
        tokio::select! {
            error = self.front.ended_by_itself() => return Err(error),
            error = self.others.ended_by_itself() => return Err(error),
            () = signal(&mut signals) => {}
        }
        tokio::select! {
            drained = self.drain(drain, readiness) => drained,
            () = second(&mut signals) => bail!("aborted by a second signal"),
        }
    }

    async fn drain(&mut self, drain: Drain, readiness: &Readiness) -> anyhow::Result<()> {
        info!(delay = ?drain.delay, "leaving: not ready, still accepting until gateways have noticed");
        readiness.leave();
        tokio::select! {
            () = tokio::time::sleep(drain.delay) => {}
            error = self.front.ended_by_itself() => return Err(error),
            error = self.others.ended_by_itself() => return Err(error),
        }
        info!(timeout = ?drain.timeout, "draining: accepting no more, streams run to their end");
        self.accepting.cancel();
        tokio::select! {
            ended = timeout(drain.timeout, self.front.finish()) => match ended {
                Ok(ended) => ended?,
                Err(_elapsed) => warn!("streams still in flight are cut off"),
            },
            error = self.others.ended_by_itself() => return Err(error),
        }
        self.rest.cancel();
        match timeout(STOP_TIMEOUT, self.others.finish()).await {
            Ok(ended) => ended?,
            Err(_elapsed) => warn!("tasks that did not stop are cut off"),
        }
        info!("picker ended");
        Ok(())
    }
}

/// Waits for a signal that is not an echo of the first.
async fn second(signals: &mut mpsc::Receiver<()>) {
    let echoes = async {
        loop {
            signal(signals).await;
        }
    };
    let Err(_elapsed) = timeout(SAME_WISH, echoes).await;
    signal(signals).await;
}

/// Waits for a signal; whoever drops the sender sends none.
async fn signal(signals: &mut mpsc::Receiver<()>) {
    if signals.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests;
