//! Who asks in a soak? Clients that talk on, share beginnings, salt, name adapters, stream, and leave in the middle.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};
use tokio::sync::RwLock;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::fleet::{ADAPTER, MODEL};
use crate::support::gate::Gate;

/// Tokens of the longest prompt: with an answer it fits every engine's context.
const LONGEST: usize = 800;
/// Pause of a client between two requests.
const PAUSE: Duration = Duration::from_millis(5);

/// How clients reach the engines.
#[derive(Clone)]
pub(super) enum Front {
    /// The gateway that is a part of this program.
    Gate(Gate),
    /// A real Envoy listens here.
    Envoy(SocketAddr, reqwest::Client),
}

impl Front {
    /// The status, and the whole answer where there is one; `None` if it was cut.
    async fn ask(&self, path: &str, body: &Value) -> Option<(u16, Value)> {
        let (status, bytes) = match self {
            Self::Gate(gate) => {
                let passed = gate.pass(path, &[], body).await?;
                (passed.status, passed.whole.then_some(passed.body)?)
            }
            Self::Envoy(address, client) => {
                let asked = client.post(format!("http://{address}{path}")).json(body);
                let answer = asked.send().await.ok()?;
                (answer.status().as_u16(), answer.bytes().await.ok()?)
            }
        };
        // A stream of events is no JSON, and nobody looks into it.
        Some((status, serde_json::from_slice(&bytes).unwrap_or_default()))
    }
}

/// What became of the requests.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Answered in full with 200.
    pub(super) served: AtomicU64,
    /// Answered otherwise (a picker's or an engine's refusal).
    pub(super) refused: AtomicU64,
    /// Broken off by an engine or on the way.
    pub(super) cut: AtomicU64,
    /// Left by the client.
    pub(super) left: AtomicU64,
}

impl Tally {
    pub(super) fn total(&self) -> u64 {
        let all = [&self.served, &self.refused, &self.cut, &self.left];
        all.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

/// Clients at work until they are stopped.
pub(super) struct Clients {
    /// Held by each request; whoever takes the whole has everybody wait.
    pub(super) turn: Arc<RwLock<()>>,
    pub(super) tally: Arc<Tally>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Clients {
    /// So many, each with a workload of its own that follows from the seed.
    pub(super) fn start(front: &Front, clients: u64, seed: u64) -> Self {
        let mut all = Self {
            turn: Arc::default(),
            tally: Arc::default(),
            stop: CancellationToken::new(),
            tasks: JoinSet::new(),
        };
        for number in 0..clients {
            let client = Client {
                front: front.clone(),
                random: Rng::with_seed(seed ^ (number + 1)),
                said: Vec::new(),
            };
            let (turn, tally) = (Arc::clone(&all.turn), Arc::clone(&all.tally));
            let stop = all.stop.clone();
            all.tasks.spawn(async move {
                stop.run_until_cancelled(client.run(turn, tally)).await;
            });
        }
        all
    }

    /// Everybody leaves at once, whatever is under way.
    pub(super) async fn stop(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("a client does not panic");
        }
    }
}

struct Client {
    front: Front,
    random: Rng,
    /// The token ids of a conversation that goes on.
    said: Vec<u32>,
}

impl Client {
    async fn run(mut self, turn: Arc<RwLock<()>>, tally: Arc<Tally>) {
        loop {
            {
                let _turn = turn.read().await;
                self.ask(&tally).await;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn ask(&mut self, tally: &Tally) {
        let (path, body) = self.next();
        // One in eight leaves before its answer, most likely.
        let patience = match self.random.u8(..8) {
            0 => Duration::from_millis(self.random.u64(0..40)),
            // An engine that hangs never answers what it took meanwhile.
            _ => Duration::from_secs(5),
        };
        let asked = tokio::time::timeout(patience, self.front.ask(path, &body)).await;
        let count = match asked {
            Ok(Some((200, answer))) => {
                self.hear(&answer);
                &tally.served
            }
            Ok(Some(_)) => &tally.refused,
            Ok(None) => &tally.cut,
            Err(_) => &tally.left,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// The next request.
    fn next(&mut self) -> (&'static str, Value) {
        let mut body = match self.random.u8(..10) {
            0..4 => self.turn_of_a_conversation(),
            4..8 => self.shared_beginning(),
            8 => return ("/v1/chat/completions", self.chat()),
            _ => self.several_prompts(),
        };
        if self.random.u8(..6) == 0 {
            body["cache_salt"] = ["red", "green"][self.random.usize(..2)].into();
        }
        if self.random.u8(..6) == 0 {
            body["model"] = ADAPTER.into();
        }
        if self.random.u8(..3) == 0 {
            body["stream"] = true.into();
            body["stream_options"] = json!({ "include_usage": true });
        }
        ("/v1/completions", body)
    }

    fn answer_tokens(&mut self) -> usize {
        self.random.usize(1..40)
    }

    /// What was said so far and a further question.
    fn turn_of_a_conversation(&mut self) -> Value {
        if self.said.len() > LONGEST - 150 || self.said.is_empty() {
            // One of a few system prompts.
            let topic = self.random.u32(..4);
            self.said = ids(topic, 100);
        }
        let question = self.random.usize(1..100);
        self.said
            .extend((0..question).map(|_| self.random.u32(..50_000)));
        json!({
            "model": MODEL, "prompt": self.said, "max_tokens": self.answer_tokens(), "ignore_eos": true,
            "return_token_ids": true,
        })
    }

    /// The answer belongs to the conversation from now on.
    fn hear(&mut self, answer: &Value) {
        let Some(ids) = answer["choices"][0]["token_ids"].as_array() else {
            return;
        };
        let ids = ids.iter().filter_map(Value::as_u64);
        self.said
            .extend(ids.filter_map(|id| u32::try_from(id).ok()));
    }

    /// One of many documents, the first ones most often, and an end of its own.
    fn shared_beginning(&mut self) -> Value {
        let rarity = self.random.u32(1..41);
        let topic = 10 + self.random.u32(..rarity);
        let mut prompt = ids(topic, 60 + 13 * (topic as usize % 40));
        let own = self.random.usize(1..80);
        prompt.extend((0..own).map(|_| self.random.u32(..50_000)));
        prompt.truncate(LONGEST);
        json!({ "model": MODEL, "prompt": prompt, "max_tokens": self.answer_tokens() })
    }

    fn several_prompts(&mut self) -> Value {
        let prompts: Vec<_> = (0..self.random.usize(1..4))
            .map(|_| ids(self.random.u32(60..70), self.random.usize(20..200)))
            .collect();
        json!({ "model": MODEL, "prompt": prompts, "max_tokens": self.answer_tokens() })
    }

    /// Text that the engine makes token ids of.
    fn chat(&mut self) -> Value {
        let topic = self.random.u32(..6);
        let sentences = self.random.usize(1..15);
        let text: String = (0..sentences)
            .map(|at| format!("Topic {topic} has a part {at}. "))
            .collect();
        json!({
            "model": MODEL, "max_tokens": self.answer_tokens(),
            "messages": [
                { "role": "system", "content": "You are brief." },
                { "role": "user", "content": text },
            ],
        })
    }
}

/// Token ids that other topics have not.
fn ids(topic: u32, tokens: usize) -> Vec<u32> {
    (0..1000)
        .map(|token| 1000 * topic + token)
        .take(tokens)
        .collect()
}
