//! One policy's turn: the traffic is sent at its times, and shown while it runs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::client::{Answered, Client, RequestError};
use super::hot::{self, HotPrefix};
use super::operator::{Operator, Predictions};
use super::report::Outcome;
use super::screen::Screen;
use super::stack::{MODEL, Stack};
use super::table::{self, Moment};
use super::workload::Workload;

/// Tokens of each answer: enough to see it stream, few enough to leave the time to the prompts.
const ANSWER_TOKENS: u32 = 8;
/// How often the table is drawn on a terminal, and how often a line is printed elsewhere.
const DRAW_INTERVAL: Duration = Duration::from_millis(400);
const LINE_INTERVAL: Duration = Duration::from_secs(3);
/// The picker hears of an answer's end a moment after the client does.
const SETTLE_DEADLINE: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(20);

/// Who chooses the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    /// Envoy, without the picker.
    RoundRobin,
    /// The picker.
    LeastPrefill,
}

/// The turn of one policy.
pub(super) struct Phase<'a> {
    /// Which.
    pub(super) policy: Policy,
    /// What is sent.
    pub(super) workload: &'a Workload,
    /// How long requests are sent.
    pub(super) duration: Duration,
    /// Who looks at the picker meanwhile.
    pub(super) operator: &'a Operator,
    /// Whose owners are counted.
    pub(super) hot: &'a HotPrefix,
}

/// What clients have seen so far. The lock is held to change or copy a few numbers.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// By engine.
    pub(super) engines: Vec<EngineSeen>,
    /// Times to first token, in the order of their answers.
    pub(super) first_data: Vec<Duration>,
    /// Requests that failed.
    pub(super) errors: usize,
    /// What the first of them said.
    pub(super) first_error: Option<String>,
}

/// What clients have seen of one engine.
#[derive(Clone, Debug)]
pub(super) struct EngineSeen {
    /// Where it is.
    pub(super) address: SocketAddr,
    /// Requests that it answered in full.
    pub(super) requests: usize,
    /// Requests that it is answering.
    pub(super) in_flight: usize,
    /// Prompt tokens of the answered ones.
    pub(super) prompt_tokens: u64,
    /// Of these, from its cache.
    pub(super) cached_tokens: u64,
}

type SeenByAll = Arc<Mutex<Seen>>;

impl Policy {
    /// Its name in tables.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round robin",
            Self::LeastPrefill => "least prefill",
        }
    }
}

impl Phase<'_> {
    /// Makes the caches cold, sends everything and waits for the answers.
    ///
    /// # Errors
    /// When a part of the stack ends or cannot be asked. A request that fails is counted, and no error here.
    pub(super) async fn run(
        &self,
        stack: &mut Stack,
        screen: &mut Screen,
    ) -> anyhow::Result<Outcome> {
        stack.make_cold(self.operator).await?;
        let before = self.operator.predictions().await?;
        let gateway = match self.policy {
            Policy::RoundRobin => stack.ports().round_robin,
            Policy::LeastPrefill => stack.ports().picked,
        };
        let client = Client::new(gateway).context("cannot set up a client")?;
        let seen = Arc::new(Mutex::new(Seen::new(stack.engines())));
        let started = Instant::now();
        screen.line("")?;
        tokio::select! {
            () = send(self.workload, &client, &seen, started) => {}
            failed = self.show(stack, screen, &seen, started) => return failed,
        }
        let predictions = self.settle(before, &seen).await?;
        self.draw(stack, screen, &seen, started.elapsed()).await?;
        let owners = stack.cached_blocks().await?;
        let owners = owners.iter().filter(|dump| self.hot.is_owned(dump)).count();
        let seen = seen.lock().clone();
        Ok(Outcome {
            seen,
            owners,
            predictions: (self.policy == Policy::LeastPrefill).then_some(predictions),
        })
    }

    /// Draws again and again; ends only with an error.
    async fn show<T>(
        &self,
        stack: &mut Stack,
        screen: &mut Screen,
        seen: &SeenByAll,
        started: Instant,
    ) -> anyhow::Result<T> {
        let interval = if screen.is_live() {
            DRAW_INTERVAL
        } else {
            LINE_INTERVAL
        };
        let mut next = started;
        loop {
            stack.check()?;
            self.draw(stack, screen, seen, started.elapsed()).await?;
            next = (next + interval).max(Instant::now());
            sleep_until(next).await;
        }
    }

    async fn draw(
        &self,
        stack: &Stack,
        screen: &mut Screen,
        seen: &SeenByAll,
        elapsed: Duration,
    ) -> anyhow::Result<()> {
        let dumps = stack.cached_blocks().await?;
        let seen = seen.lock().clone();
        let moment = Moment {
            policy: self.policy,
            elapsed,
            duration: self.duration,
            seen,
            state: self.operator.state().await?,
            hot_blocks: dumps.iter().map(|dump| self.hot.cached_in(dump)).collect(),
            hot_total: self.hot.blocks(),
            decision: match self.policy {
                Policy::RoundRobin => None,
                Policy::LeastPrefill => self.operator.last_decision().await?,
            },
        };
        if screen.is_live() {
            screen.table(&table::whole(&moment))
        } else {
            screen.line(&table::line(&moment))
        }
    }

    /// Waits until the picker has counted every answer it saw.
    async fn settle(&self, before: Predictions, seen: &SeenByAll) -> anyhow::Result<Predictions> {
        let expected = match self.policy {
            Policy::RoundRobin => 0,
            Policy::LeastPrefill => seen.lock().first_data.len(),
        };
        let deadline = Instant::now() + SETTLE_DEADLINE;
        loop {
            let predictions = self.operator.predictions().await?.since(before);
            if predictions.total() >= expected as u64 || Instant::now() > deadline {
                return Ok(predictions);
            }
            sleep(POLL).await;
        }
    }
}

/// Sends every request at its time, and waits for all answers.
async fn send(workload: &Workload, client: &Client, seen: &SeenByAll, started: Instant) {
    let mut requests = JoinSet::new();
    for arrival in &workload.arrivals {
        let mut body = hot::chat(
            workload.system(arrival.customer),
            &arrival.question,
            ANSWER_TOKENS,
        );
        if let Some(fields) = body.as_object_mut() {
            fields.insert("model".to_owned(), MODEL.into());
        }
        let (client, seen) = (client.clone(), Arc::clone(seen));
        sleep_until(started + arrival.at).await;
        requests.spawn(async move {
            let mut server = None;
            let answer = client
                .ask(body, |address| {
                    server = Some(address);
                    seen.lock().begin(address);
                })
                .await;
            seen.lock().end(server, answer);
        });
    }
    while let Some(ended) = requests.join_next().await {
        if let Err(panicked) = ended {
            seen.lock().fail(panicked.to_string());
        }
    }
}

impl Seen {
    fn new(engines: &[SocketAddr]) -> Self {
        let engine = |address: &SocketAddr| EngineSeen {
            address: *address,
            requests: 0,
            in_flight: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
        };
        Self {
            engines: engines.iter().map(engine).collect(),
            first_data: Vec::new(),
            errors: 0,
            first_error: None,
        }
    }

    fn engine(&mut self, address: SocketAddr) -> Option<&mut EngineSeen> {
        self.engines
            .iter_mut()
            .find(|engine| engine.address == address)
    }

    fn begin(&mut self, server: SocketAddr) {
        if let Some(engine) = self.engine(server) {
            engine.in_flight += 1;
        }
    }

    fn end(&mut self, server: Option<SocketAddr>, answer: Result<Answered, RequestError>) {
        let engine = server.and_then(|address| self.engine(address));
        match (engine, answer) {
            (Some(engine), Ok(answer)) => {
                engine.in_flight -= 1;
                engine.requests += 1;
                engine.prompt_tokens += answer.prompt_tokens;
                engine.cached_tokens += answer.cached_tokens;
                self.first_data.push(answer.first_data);
            }
            (engine, Err(error)) => {
                if let Some(engine) = engine {
                    engine.in_flight -= 1;
                }
                self.fail(format!("{:#}", anyhow::Error::from(error)));
            }
            (None, Ok(_)) => self.fail("an engine answered that is not ours".to_owned()),
        }
    }

    fn fail(&mut self, error: String) {
        self.errors += 1;
        self.first_error.get_or_insert(error);
    }
}
