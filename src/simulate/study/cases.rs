//! Which loads does the study run, on which fleets?

use std::path::Path;
use std::time::Duration;

use super::{Args, Extent};
use crate::plan;
use crate::simulate::fleet::{self, Outage, WarmUp};
use crate::simulate::scenario::Scenario;
use crate::simulate::workload::{Loop, Spec, Trace};

/// Where requests come from.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// A ready-made load, of so many requests in the quick study and the full one.
    Named(&'static str, u64, u64),
    /// A file or folder beneath the traces; a sample of so many requests and conversations in the quick study, and in
    /// the full one.
    Trace(&'static str, Sample, Sample),
}

/// A part of a trace. Fixed by the seed.
#[derive(Clone, Copy, Debug)]
struct Sample {
    requests: Option<u64>,
    sessions: Option<u64>,
    /// How many times faster than recorded.
    speed: f64,
}

/// A load, and the fleet it is put on.
#[derive(Clone, Debug)]
pub struct Case {
    /// Short name.
    pub name: &'static str,
    /// What it is about.
    about: &'static str,
    source: Source,
    /// Loops that it is replayed in.
    pub loops: &'static [Loop],
    /// Replicas of the fleet on which all policies are compared.
    replicas: usize,
    /// The time to first token that nine in ten requests of the smallest fleet stay below; `None`: not searched.
    pub goal: Option<Duration>,
    /// The largest fleet that is tried.
    pub most: usize,
    /// Tokens of a replica's KV pool; `None`: those of the reference.
    pool: Option<usize>,
    /// How late events and reports are.
    late: Duration,
    outages: &'static [Outage],
}

const OPEN: &[Loop] = &[Loop::Open];
const BOTH: &[Loop] = &[Loop::Open, Loop::Closed];
const SECOND: Duration = Duration::from_secs(1);

const DEATH: &[Outage] = &[Outage {
    replica: 3,
    at: Duration::from_secs(60),
    lasts: Duration::from_secs(45),
}];

/// A load of the reference's kind.
const fn reference(name: &'static str, about: &'static str, load: &'static str) -> Case {
    Case {
        name,
        about,
        source: Source::Named(load, 4_000, 60_000),
        loops: OPEN,
        replicas: 16,
        goal: Some(SECOND),
        most: 96,
        pool: None,
        late: Duration::ZERO,
        outages: &[],
    }
}

/// All of them, in the order of the document.
pub fn all() -> Vec<Case> {
    let whole = Sample {
        requests: None,
        sessions: None,
        speed: 1.0,
    };
    vec![
        reference(
            "reference",
            "40 req/s, 8,000 tokens of which 6,000 are one of 200 prefixes, 300 out",
            "reference",
        ),
        reference(
            "zipf",
            "the same, prefixes asked for by Zipf's law with exponent 1",
            "reference-zipf",
        ),
        reference(
            "hot",
            "the same, one prefix with a tenth of the traffic",
            "reference-hot",
        ),
        Case {
            replicas: 8,
            pool: Some(307_328),
            source: Source::Named("b2b", 8_000, 25_000),
            ..reference(
                "b2b",
                "150 groups of 5 prompts, 6,000 + 1,200 tokens, 1,000 out, a ladder from 3 to 60 req/s",
                "b2b",
            )
        },
        Case {
            replicas: 8,
            goal: Some(Duration::from_secs(5)),
            source: Source::Trace(
                "conversation_trace.jsonl",
                Sample {
                    requests: Some(3_000),
                    ..whole
                },
                whole,
            ),
            ..reference(
                "mooncake",
                "an hour of chat with long inputs; all share their first 512 tokens",
                "",
            )
        },
        Case {
            replicas: 8,
            goal: Some(Duration::from_secs(5)),
            source: Source::Trace(
                "synthetic_trace.jsonl",
                Sample {
                    requests: Some(3_000),
                    ..whole
                },
                whole,
            ),
            ..reference("mooncake-synthetic", "long shared documents", "")
        },
        Case {
            replicas: 8,
            // With prompts of this length a search takes longer than all others together.
            goal: None,
            loops: BOTH,
            pool: Some(2_000_000),
            source: Source::Trace(
                "claude-code",
                Sample {
                    requests: Some(1_500),
                    sessions: Some(40),
                    speed: 1.0,
                },
                Sample {
                    requests: None,
                    sessions: Some(200),
                    speed: 1.0,
                },
            ),
            ..reference(
                "claude-code",
                "coding sessions, prompts of 100,000 tokens and more, pools of 2 million tokens",
                "",
            )
        },
        Case {
            replicas: 4,
            loops: BOTH,
            source: Source::Trace(
                "agents",
                Sample {
                    speed: 4.0,
                    ..whole
                },
                Sample {
                    speed: 4.0,
                    ..whole
                },
            ),
            ..reference(
                "agents",
                "a coding agent's calls, four times as fast as recorded",
                "",
            )
        },
        Case {
            loops: BOTH,
            replicas: 4,
            source: Source::Named("chat", 4_000, 40_000),
            ..reference(
                "chat",
                "conversations of 2 to 12 turns behind 200 system prompts",
                "chat",
            )
        },
        Case {
            replicas: 12,
            source: Source::Named("reasoning", 1_500, 7_000),
            ..reference(
                "reasoning",
                "4 req/s, 1,250 in, 8,000 out: decoding is all the work",
                "reasoning",
            )
        },
        reference("fits", "20 prefixes: they fit every pool", "fits"),
        Case {
            replicas: 32,
            ..reference("tenth", "800 of 8,000 tokens are shared", "tenth")
        },
        Case {
            late: Duration::from_secs(2),
            ..reference(
                "late",
                "the reference load; events and reports come two seconds late",
                "reference",
            )
        },
        Case {
            outages: DEATH,
            ..reference(
                "death",
                "the reference load; a replica dies after a minute and comes back after 45 s, cold",
                "reference",
            )
        },
        Case {
            source: Source::Named("burst", 3_500, 3_500),
            ..reference(
                "burst",
                "200 equal requests at once over half the reference load",
                "burst",
            )
        },
        Case {
            replicas: 32,
            ..reference(
                "common-head",
                "all share their first 512 tokens and nothing else",
                "common-head",
            )
        },
    ]
}

impl Case {
    /// It needs a recording.
    pub const fn is_trace(&self) -> bool {
        matches!(self.source, Source::Trace(..))
    }

    /// The name of its table in one loop.
    pub fn sheet_name(&self, kind: Loop) -> String {
        match (self.loops.len(), kind) {
            (1, _) => self.name.to_owned(),
            (_, Loop::Open) => format!("{}, open", self.name),
            (_, Loop::Closed) => format!("{}, closed", self.name),
        }
    }

    /// A table of this name is its.
    pub fn owns(&self, sheet: &str) -> bool {
        self.loops
            .iter()
            .any(|&kind| self.sheet_name(kind) == sheet)
    }

    /// What stands above its table.
    pub fn title(&self, scenario: &Scenario) -> String {
        let loops = match (self.loops.len(), scenario.kind) {
            (1, _) => "",
            (_, Loop::Open) => "; requests at their times",
            (_, Loop::Closed) => "; the next turn after the thinking time",
        };
        format!("{}: {} replicas{loops}", self.about, self.replicas)
    }

    /// The load and the fleet.
    ///
    /// # Errors
    /// When the reference engine is not to be had.
    pub fn scenario(&self, kind: Loop, args: &Args) -> anyhow::Result<Scenario> {
        let size = crate::routing::block::BlockSize::DEFAULT;
        let mut engine = plan::Inputs::preset("llama-3.3-70b-h200")?.engine(size, 8_192, 256);
        if let Some(tokens) = self.pool {
            engine.blocks = tokens / size.get() as usize + 1;
            engine.max_model_len = tokens;
        }
        let mut fleet = fleet::Settings::new(self.replicas, engine);
        fleet.event_delay = self.late;
        fleet.report_delay = self.late;
        fleet.outages = self.outages.to_vec();
        // All requests count: what a rule copies early is paid for early too, and a warm-up left out would hide it.
        fleet.warm_up = WarmUp::Time(Duration::ZERO);
        Ok(Scenario {
            load: self.load(args),
            kind,
            fleet,
            seed: args.seed,
        })
    }

    fn load(&self, args: &Args) -> Spec {
        let full = args.extent == Extent::Full;
        match self.source {
            Source::Named(name, quick, whole) => {
                let mut load = match Spec::named(name) {
                    Some(Spec::Generated(load)) => load,
                    _ => crate::simulate::workload::Generated::default(),
                };
                load.requests = Some(if full { whole } else { quick });
                Spec::Generated(load)
            }
            Source::Trace(file, quick, whole) => {
                let sample = if full { whole } else { quick };
                let folder = args.traces.as_deref().unwrap_or_else(|| Path::new(""));
                let mut trace = Trace::new(folder.join(file));
                trace.limit = sample.requests;
                trace.sessions = sample.sessions;
                trace.speed = sample.speed;
                Spec::Trace(trace)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own_and_a_load_that_exists() {
        let mut names: Vec<&str> = all().iter().map(|case| case.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().len());
        for case in all() {
            if let Source::Named(name, quick, whole) = case.source {
                assert!(
                    matches!(Spec::named(name), Some(Spec::Generated(_))),
                    "{name}"
                );
                assert!(quick <= whole);
            }
        }
    }
}
