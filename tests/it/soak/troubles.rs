//! What goes wrong in a soak, by a seed.

use std::collections::BTreeMap;

use fastrand::Rng;
use warmpath::engine::Fault;

use crate::support::fleet::engine::Engine;
use crate::support::http;

/// Faults that the events of afterwards mend. Batches that are sent twice or in another order are not among them: no TCP
/// connection does that, and a source that seems to is left alone for a minute.
const MENDED: [&str; 22] = [
    "drop-events=1",
    "drop-events=5",
    "garbage-batch=1",
    "odd-event=3",
    "slow-publish=200",
    "hold-events",
    "half-open",
    "publish-nowhere",
    "no-replay",
    "lose-end-marker",
    "slow-replay=20",
    "reset-without-event",
    "sleep",
    "stall",
    "refuse=5",
    "queue-full",
    "hang-http",
    "metrics-500",
    "no-metrics",
    "empty-metrics",
    "stale-metrics",
    "no-usage-details",
];

/// Faults of which nothing on the wire tells: the engine is restarted at their end, as somebody who finds out would.
const UNTOLD: [&str; 4] = [
    "silent-publisher",
    "restart-seq",
    "drop-removals=3",
    "drop-stores=2",
];

/// One thing that goes wrong with one engine.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// It misbehaves for a while.
    Fault(&'static str),
    /// The same, and it is restarted at the end.
    Untold(&'static str),
    /// It is killed, and comes back at the end.
    Away,
    /// It is killed and comes back at once.
    Restart,
    /// Its cache is cleared.
    Clear,
    /// The endpoints file lists it no more until the end.
    Unlisted,
}

impl Trouble {
    fn random(random: &mut Rng) -> Self {
        match random.u8(..12) {
            0..7 => Self::Fault(MENDED[random.usize(..MENDED.len())]),
            7 => Self::Untold(UNTOLD[random.usize(..UNTOLD.len())]),
            8 => Self::Away,
            9 => Self::Restart,
            10 => Self::Clear,
            _ => Self::Unlisted,
        }
    }

    /// Its kind, for the summary.
    fn kind(self) -> &'static str {
        match self {
            Self::Fault(name) | Self::Untold(name) => name.split('=').next().unwrap_or(name),
            Self::Away => "killed for a while",
            Self::Restart => "restarted",
            Self::Clear => "cache cleared",
            Self::Unlisted => "left the pool",
        }
    }
}

/// Makes trouble and ends it.
pub(super) struct Troubles {
    random: Rng,
    /// Of which engine what goes wrong now.
    now: Vec<(usize, Trouble)>,
    /// How often each kind has happened.
    pub(super) counts: BTreeMap<&'static str, u64>,
}

impl Troubles {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Rng::with_seed(seed),
            now: Vec::new(),
            counts: BTreeMap::new(),
        }
    }

    /// Something goes wrong with one engine or with two. `list` is told which engines are listed from now on.
    pub(super) async fn begin(
        &mut self,
        engines: &mut [Engine],
        list: impl Fn(&[Engine], &[usize]),
    ) {
        let first = self.random.usize(..engines.len());
        let second = self.random.usize(..engines.len());
        for at in [Some(first), (second != first).then_some(second)]
            .into_iter()
            .flatten()
        {
            let trouble = Trouble::random(&mut self.random);
            *self.counts.entry(trouble.kind()).or_default() += 1;
            self.now.push((at, trouble));
            self.strike(&mut engines[at], trouble).await;
        }
        list(engines, &self.unlisted());
    }

    /// All is well again.
    pub(super) async fn end(&mut self, engines: &mut [Engine], list: impl Fn(&[Engine], &[usize])) {
        for (at, trouble) in std::mem::take(&mut self.now) {
            let engine = &mut engines[at];
            if engine.is_alive() {
                engine.running().clear_faults();
            }
            match trouble {
                Trouble::Untold(_) => {
                    engine.kill().await;
                    engine.restart().await;
                }
                Trouble::Away => engine.restart().await,
                Trouble::Fault(_) | Trouble::Restart | Trouble::Clear | Trouble::Unlisted => {}
            }
        }
        list(engines, &[]);
    }

    fn unlisted(&self) -> Vec<usize> {
        let left = self
            .now
            .iter()
            .filter(|(_, trouble)| matches!(trouble, Trouble::Unlisted));
        left.map(|(at, _)| *at).collect()
    }

    async fn strike(&mut self, engine: &mut Engine, trouble: Trouble) {
        match trouble {
            Trouble::Fault(name) | Trouble::Untold(name) => {
                let fault: Fault = name.parse().expect("a fault");
                let ranks: Vec<u32> = engine.running().ranks().collect();
                let rank = ranks[self.random.usize(..ranks.len())];
                // What befalls the server is set at its first rank.
                engine.running().set_fault(fault);
                assert!(engine.running().set_fault_of(rank, fault));
            }
            Trouble::Away => engine.kill().await,
            Trouble::Restart => {
                engine.kill().await;
                engine.restart().await;
            }
            Trouble::Clear => {
                http::post(engine.address(), "/reset_prefix_cache", &[], "").await;
            }
            Trouble::Unlisted => {}
        }
    }
}
