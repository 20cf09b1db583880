//! The fault matrix: one fault of the cache state a test, with the simulated engine and a whole picker.
//!
//! Each goes the same way. Warm traffic is foreseen exactly; the fault happens; traffic goes on; then the picker's view of
//! the engine (`/debug/cache`) is equal to what the engine has cached, or where that is not possible holds no block that the
//! engine has not, and says why it may miss some. Each prints a line (`make faults`).

mod addresses;
mod dialects;
mod documentation;
mod events;
mod lives;
mod odd;
mod replay;
mod truth;

use serde_json::{Value, json};

use crate::support::fleet::MODEL;
use crate::support::fleet::engine::Engine;
use crate::support::stage::{self, Asked, Stage};
use crate::support::waiting::until;

const COMPLETIONS: &str = "/v1/completions";

/// Waits that are short enough for a test, where the fault is that somebody is silent.
fn impatient() -> Value {
    json!({ "kv_events": { "replay_timeout": "200ms", "guess_timeout": "1s" } })
}

/// A prompt of 300 tokens: 18 whole blocks of 16 that no other topic shares.
fn prompt(topic: u32) -> Value {
    let ids: Vec<u32> = (0..300).map(|token| 1000 * topic + token).collect();
    json!({ "model": MODEL, "prompt": ids, "max_tokens": 2 })
}

/// Cached tokens foreseen and found, summed over the requests of one phase.
#[derive(Clone, Copy, Default)]
struct Sum {
    predicted: u64,
    reported: u64,
}

impl std::fmt::Display for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:>5} / {:<5}", self.predicted, self.reported)
    }
}

/// One line of the matrix as it comes about.
struct Case {
    fault: &'static str,
    stage: Stage,
    before: Sum,
    during: Sum,
    after: Sum,
}

impl Case {
    /// One engine with these further options, followed as the shipped settings have it.
    async fn of(fault: &'static str, options: &[&'static str]) -> Self {
        Self::with(fault, &[options], json!({})).await
    }

    /// Engines with these further options each, and settings of the picker.
    async fn with(fault: &'static str, options: &[&[&'static str]], settings: Value) -> Self {
        let engines = stage::engines(options).await;
        Self::on(fault, Stage::settled(engines, settings).await)
    }

    /// What was set up for it.
    fn on(fault: &'static str, stage: Stage) -> Self {
        Self {
            fault,
            stage,
            before: Sum::default(),
            during: Sum::default(),
            after: Sum::default(),
        }
    }

    /// The first engine, or the only one.
    fn engine(&mut self) -> &mut Engine {
        &mut self.stage.engines[0]
    }

    async fn ask(&self, topic: u32) -> Asked {
        self.stage.ask(COMPLETIONS, &prompt(topic)).await
    }

    /// Asks about each topic twice: the second time it is foreseen exactly.
    async fn warm(&mut self, topics: std::ops::Range<u32>) {
        for topic in topics.clone() {
            self.ask(topic).await;
        }
        self.stage.views_are_equal("the fleet is warm").await;
        for topic in topics {
            let asked = self.ask(topic).await;
            self.before.add(&asked);
            assert!(asked.predicted > 0, "{}", asked.decision);
            asked.assert_exact();
        }
    }

    /// Asks while the fault lasts, or before anything could tell of it.
    async fn meanwhile(&mut self, topics: impl IntoIterator<Item = u32>) -> Vec<Asked> {
        let mut all = Vec::new();
        for topic in topics {
            let asked = self.ask(topic).await;
            self.during.add(&asked);
            all.push(asked);
        }
        all
    }

    /// All is mended: every view is live and equal to its engine's cache, and each topic is foreseen exactly.
    async fn ends_equal(mut self, topics: impl IntoIterator<Item = u32>) {
        self.stage.views_are_equal(self.fault).await;
        for topic in topics {
            let asked = self.ask(topic).await;
            self.after.add(&asked);
            asked.assert_exact();
        }
        self.stage.views_are_equal(self.fault).await;
        self.tell("equal").await;
    }

    /// Not all can be known: no view has a phantom, none of these topics is foreseen to be cached further than it is, and
    /// the first engine's feed is in this state with these words in its cause.
    async fn ends_within(
        mut self,
        topics: impl IntoIterator<Item = u32>,
        state: &'static str,
        cause: &str,
    ) {
        self.says(state, cause).await;
        self.stage.no_phantoms(self.fault).await;
        for topic in topics {
            let asked = self.ask(topic).await;
            self.after.add(&asked);
            let reported = asked.reported.expect("a figure");
            assert!(asked.predicted <= reported, "{}", asked.decision);
        }
        self.stage.no_phantoms(self.fault).await;
        self.tell(state).await;
    }

    /// Waits until the first endpoint's feeds are in this state and give this cause.
    async fn says(&self, state: &str, cause: &str) {
        let (name, _) = self.stage.engines[0].endpoints()[0].clone();
        let what = format!("{}: {name} is {state} ({cause})", self.fault);
        until(&what, async || {
            let view = self.stage.find_view(&name).await?;
            (view.is(state) && view.causes().contains(cause)).then_some(())
        })
        .await;
    }

    /// A counter of the first endpoint's first event source.
    async fn count(&self, metric: &str) -> f64 {
        let (name, rank) = self.stage.engines[0].endpoints()[0].clone();
        let labels = format!(r#"{{endpoint="default/{name}",rank="{rank}"}}"#);
        self.stage.picker.metric(&format!("{metric}{labels}")).await
    }

    async fn tell(self, end: &str) {
        self.stage.picker.nothing_is_booked().await;
        println!(
            "fault matrix | {:<55} | {} | {} | {} | {end}",
            self.fault, self.before, self.during, self.after
        );
    }
}

impl Sum {
    fn add(&mut self, asked: &Asked) {
        self.predicted += asked.predicted;
        self.reported += asked.reported.unwrap_or_default();
    }
}

impl Asked {
    /// What was foreseen is what the engine found.
    fn assert_exact(&self) {
        assert_eq!(Some(self.predicted), self.reported, "{}", self.decision);
    }
}
