//! Who lets a model's time pass? One task for each rank: it takes requests, sleeps through steps, publishes, hands out tokens.
//!
//! Measured on one shared core, optimized: 200 requests a second of 8,000 tokens, 75 % of them shared, 20 answer
//! tokens each, cost the whole engine 0.5 to 0.7 ms of CPU a request (HTTP, JSON and tokenizing included).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::block_cache::CachedBlock;
use super::fault::{Fault, Faults};
use super::model::{Model, Output, Request, RequestId, StepPlan, SubmitError};
use super::observed::Observed;
use super::publish::Publisher;
use super::ranks::InFlight;

/// Requests that may wait to be taken in. More make their senders wait: the driver looks at least once a step.
pub(super) const COMMANDS: usize = 1024;

/// Steps shorter than the timer's tick would take a whole tick each. A busy engine may be this
/// far behind the clock and still count its next step from the end of the last.
const TIMER_SLACK: Duration = Duration::from_millis(3);

/// One token of one of the answers of an HTTP request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    /// Which answer, in the order of submission.
    pub(super) choice: usize,
    pub(super) output: Output,
}

/// What the HTTP side asks of the model.
pub(super) enum Command {
    /// Computes some prompts together. All or none are taken.
    Submit {
        requests: Vec<Request>,
        /// Has room for every token of every answer, so it is never full. Closed: the client left.
        outputs: mpsc::Sender<Answered>,
        in_flight: InFlight,
        reply: oneshot::Sender<Result<(), SubmitError>>,
    },
    /// Forgets the cache; false if it is in use.
    Reset(oneshot::Sender<bool>),
    /// Forgets what is beneath the pool.
    ResetLower(oneshot::Sender<()>),
    /// Sleeps at this level.
    Sleep(u8, oneshot::Sender<()>),
    /// Ends the sleep.
    WakeUp(oneshot::Sender<()>),
    /// Lists the cached blocks.
    Dump(oneshot::Sender<Vec<CachedBlock>>),
}

/// How often a rank that makes no step looks whether the clients of those who wait are still there.
const LOOK_AT_CLIENTS: Duration = Duration::from_millis(100);

struct Live {
    choice: usize,
    outputs: mpsc::Sender<Answered>,
    _in_flight: InFlight,
}

/// Owns the model.
pub(super) struct Driver {
    model: Model,
    max_model_len: usize,
    commands: mpsc::Receiver<Command>,
    publisher: Option<Publisher>,
    observed: Arc<Mutex<Observed>>,
    faults: Arc<Faults>,
    live: FxHashMap<RequestId, Live>,
    /// What has to wait for the end of the step in flight.
    after_step: Vec<Command>,
    /// It sleeps because a fault says so.
    put_to_sleep: bool,
    /// When the last step ended by its own reckoning.
    step_end: Instant,
}

impl Driver {
    pub(super) fn new(
        model: Model,
        max_model_len: usize,
        commands: mpsc::Receiver<Command>,
        publisher: Option<Publisher>,
        observed: Arc<Mutex<Observed>>,
        faults: Arc<Faults>,
    ) -> Self {
        Self {
            model,
            max_model_len,
            commands,
            publisher,
            observed,
            faults,
            live: FxHashMap::default(),
            after_step: Vec::new(),
            put_to_sleep: false,
            step_end: Instant::now(),
        }
    }

    /// Drives until `stop`.
    ///
    /// # Errors
    /// When events can no longer be published.
    pub(super) async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        loop {
            while let Ok(command) = self.commands.try_recv() {
                self.handle(command);
            }
            self.obey_faults();
            self.abort_departed();
            self.publish_due().await?;
            let now = Instant::now();
            let start = self
                .step_end
                .max(now.checked_sub(TIMER_SLACK).unwrap_or(now))
                .min(now);
            let plan = if self.may_step() {
                self.model.begin_step(start.into_std())
            } else {
                None
            };
            if let Some(plan) = plan {
                self.step_end = start + plan.duration;
                if !self.wait_for_step_end(&stop).await? {
                    return Ok(());
                }
                self.finish_step(&plan).await?;
            } else {
                self.observed.lock().gauges = self.model.gauges();
                if !self.wait_idle(&stop).await {
                    return Ok(());
                }
                // Idle time is not owed to the next step.
                self.step_end = Instant::now();
            }
        }
    }

    /// False while the engine hangs in the middle of its loop.
    fn may_step(&self) -> bool {
        let full = self.publisher.as_ref().is_some_and(Publisher::is_full);
        !full && !self.faults.has(Fault::Stall)
    }

    /// When something is to be published though no step ends.
    fn publishing_due(&self) -> Option<Instant> {
        self.publisher.as_ref()?.due()
    }

    async fn publish_due(&mut self) -> anyhow::Result<()> {
        match &mut self.publisher {
            Some(publisher) => publisher.flush().await,
            None => Ok(()),
        }
    }

    /// Waits for something to do. False if the engine is to stop.
    async fn wait_idle(&mut self, stop: &CancellationToken) -> bool {
        let clients = (!self.live.is_empty()).then(|| Instant::now() + LOOK_AT_CLIENTS);
        let wake = self.publishing_due().into_iter().chain(clients).min();
        tokio::select! {
            () = stop.cancelled() => return false,
            command = self.commands.recv() => match command {
                Some(command) => self.handle(command),
                None => return false,
            },
            () = self.faults.changed() => {}
            () = at(wake) => {}
        }
        true
    }

    /// Takes commands in and publishes what is due while the step lasts. False if the engine is to stop.
    async fn wait_for_step_end(&mut self, stop: &CancellationToken) -> anyhow::Result<bool> {
        let sleep = tokio::time::sleep_until(self.step_end);
        tokio::pin!(sleep);
        loop {
            let due = self.publishing_due();
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(false),
                () = &mut sleep => {
                    // Steps that are over at once must not keep everyone else from running.
                    tokio::task::yield_now().await;
                    return Ok(true);
                }
                Some(command) = self.commands.recv() => match command {
                    command @ Command::Sleep(..) => self.after_step.push(command),
                    command => self.handle(command),
                },
                () = self.faults.changed() => self.publish_due().await?,
                () = at(due) => self.publish_due().await?,
            }
        }
    }

    /// What faults do to the engine core between its steps.
    fn obey_faults(&mut self) {
        if self.faults.has(Fault::ResetWithoutEvent) && self.model.reset_prefix_cache() {
            self.faults.end(Fault::ResetWithoutEvent);
        }
        let told = self.faults.has(Fault::Sleep);
        if told && !self.put_to_sleep {
            self.sleep(1);
        } else if !told && self.put_to_sleep {
            self.wake_up();
        }
        self.put_to_sleep = told;
    }

    fn sleep(&mut self, level: u8) {
        for end in self.model.sleep(level) {
            self.deliver(end);
        }
        let mut observed = self.observed.lock();
        observed.asleep = self.model.asleep();
        observed.totals = self.model.totals();
    }

    fn wake_up(&mut self) {
        self.model.wake_up();
        self.observed.lock().asleep = None;
    }

    async fn finish_step(&mut self, plan: &StepPlan) -> anyhow::Result<()> {
        let outcome = self.model.end_step(self.step_end.into_std());
        {
            let mut observed = self.observed.lock();
            observed.step(plan, &outcome.outputs);
            observed.totals = self.model.totals();
            observed.gauges = self.model.gauges();
        }
        if let Some(publisher) = &mut self.publisher {
            publisher.queue(outcome.events)?;
            publisher.flush().await?;
        }
        for output in outcome.outputs {
            self.deliver(output);
        }
        for command in std::mem::take(&mut self.after_step) {
            self.handle(command);
        }
        Ok(())
    }

    fn deliver(&mut self, output: Output) {
        let Some(live) = self.live.get(&output.request) else {
            return;
        };
        let answered = Answered {
            choice: live.choice,
            output,
        };
        // It has room, so the only failure is a client that left, which is noticed before the next step.
        let left = live.outputs.try_send(answered).is_err();
        if left {
            self.model.abort(output.request);
        }
        if left || output.finished.is_some() {
            self.live.remove(&output.request);
        }
    }

    /// Clients that closed their end: their requests are not computed any further.
    fn abort_departed(&mut self) {
        let model = &mut self.model;
        self.live.retain(|&id, live| {
            let here = !live.outputs.is_closed();
            if !here {
                model.abort(id);
            }
            here
        });
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Submit {
                requests,
                outputs,
                in_flight,
                reply,
            } => {
                let taken = self.submit(requests, &outputs, &in_flight);
                // Whoever does not wait for the answer has left, and closed `outputs` too.
                reply.send(taken).ok();
            }
            Command::Reset(reply) => {
                reply.send(self.model.reset_prefix_cache()).ok();
            }
            Command::ResetLower(reply) => {
                self.model.reset_lower_tier();
                reply.send(()).ok();
            }
            Command::Sleep(level, reply) => {
                self.sleep(level);
                reply.send(()).ok();
            }
            Command::WakeUp(reply) => {
                self.put_to_sleep = false;
                self.faults.take_once(Fault::Sleep);
                self.wake_up();
                reply.send(()).ok();
            }
            Command::Dump(reply) => {
                reply.send(self.model.dump_blocks()).ok();
            }
        }
    }

    fn submit(
        &mut self,
        requests: Vec<Request>,
        outputs: &mpsc::Sender<Answered>,
        in_flight: &InFlight,
    ) -> Result<(), SubmitError> {
        for request in &requests {
            request.check(self.max_model_len)?;
        }
        let now = Instant::now().into_std();
        for (choice, request) in requests.into_iter().enumerate() {
            let id = self.model.submit(request, now)?;
            self.live.insert(
                id,
                Live {
                    choice,
                    outputs: outputs.clone(),
                    _in_flight: in_flight.clone(),
                },
            );
        }
        Ok(())
    }
}

/// Returns at a time, or never.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
