//! Which loads have a name? Those of the study, and the reference load of `plan`.

use std::time::Duration;

use super::arrivals::Stage;
use super::distribution::Distribution::{Fixed, MeanAndCv, Uniform};
use super::generated::{Burst, Conversation, Generated, Prefixes};
use super::spec::Spec;
use crate::config::units::{Span, SpanOrZero};

impl Spec {
    /// The names of ready-made loads.
    pub const NAMES: &[&str] = &[
        "reference",
        "reference-zipf",
        "reference-hot",
        "b2b",
        "reasoning",
        "fits",
        "tenth",
        "burst",
        "common-head",
        "chat",
    ];

    /// The ready-made load of this name.
    pub fn named(name: &str) -> Option<Self> {
        let reference = Generated::default();
        let with = |prefixes: Prefixes| Generated {
            prefixes,
            ..Generated::default()
        };
        let load = match name {
            "reference" => reference,
            "reference-zipf" => with(Prefixes {
                zipf: 1.0,
                ..Prefixes::default()
            }),
            "reference-hot" => with(Prefixes {
                first_share: Some(0.1),
                ..Prefixes::default()
            }),
            // The ladder of the llm-d project's benchmark of precise prefix-cache routing.
            "b2b" => b2b(),
            // The reasoning load of the same project: decoding is all the work.
            "reasoning" => Generated {
                rate: 4.0,
                duration: Some(Span(Duration::from_secs(1_800))),
                unshared: Fixed(1_000.0),
                output: Fixed(8_000.0),
                ..with(Prefixes {
                    count: 50,
                    tokens: Fixed(250.0),
                    ..Prefixes::default()
                })
            },
            // 120,000 tokens: a fifth of the reference pool.
            "fits" => with(Prefixes {
                count: 20,
                ..Prefixes::default()
            }),
            "tenth" => Generated {
                unshared: Fixed(7_200.0),
                ..with(Prefixes {
                    tokens: Fixed(800.0),
                    ..Prefixes::default()
                })
            },
            "burst" => Generated {
                rate: 20.0,
                duration: Some(Span(Duration::from_secs(180))),
                burst: Some(Burst {
                    at: SpanOrZero(Duration::from_secs(60)),
                    requests: 200,
                    shared: 8_000,
                    unshared: 0,
                    output: 300,
                }),
                ..reference
            },
            "common-head" => Generated {
                common_head: 512,
                unshared: Fixed(7_488.0),
                ..with(Prefixes {
                    count: 0,
                    ..Prefixes::default()
                })
            },
            "chat" => Generated {
                rate: 5.0,
                unshared: MeanAndCv(500.0, 1.0),
                output: MeanAndCv(300.0, 0.8),
                conversation: Some(Conversation {
                    turns: Uniform(2.0, 12.0),
                    think: MeanAndCv(15.0, 1.0),
                    user: MeanAndCv(300.0, 1.0),
                    ..Conversation::default()
                }),
                ..with(Prefixes {
                    tokens: Fixed(2_000.0),
                    zipf: 1.0,
                    ..Prefixes::default()
                })
            },
            _ => return None,
        };
        Some(Self::Generated(load))
    }
}

/// 150 groups of 5 prompts that are asked again and again, at rates from 3 to 60 a second after a round to warm up.
fn b2b() -> Generated {
    const LADDER: [(f64, u64); 17] = [
        (15.0, 50),
        (3.0, 20),
        (10.0, 20),
        (15.0, 20),
        (20.0, 38),
        (22.0, 34),
        (25.0, 30),
        (30.0, 25),
        (35.0, 21),
        (40.0, 38),
        (43.0, 36),
        (46.0, 33),
        (49.0, 30),
        (52.0, 29),
        (55.0, 27),
        (57.0, 26),
        (60.0, 25),
    ];
    let stages = LADDER.map(|(rate, seconds)| Stage {
        rate,
        duration: Span(Duration::from_secs(seconds)),
        pause: SpanOrZero(Duration::from_secs(30)),
    });
    Generated {
        stages: stages.to_vec(),
        unshared: Fixed(1_200.0),
        output: Fixed(1_000.0),
        prefixes: Prefixes {
            count: 150,
            questions: 5,
            ..Prefixes::default()
        },
        ..Generated::default()
    }
}
