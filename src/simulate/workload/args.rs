//! Which flags describe a workload?

use std::path::PathBuf;
use std::time::Duration;

use super::arrivals::Arrivals;
use super::distribution::Distribution;
use super::generated::{Conversation, Generated};
use super::spec::{OpenError, Spec};
use super::trace::{Format, Trace};
use crate::config::units::Span;

/// A workload: a ready-made one or a file, changed by flags; or a trace.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Workload")]
pub struct Args {
    /// A YAML file, or a ready-made load: reference, reference-zipf, reference-hot, b2b, reasoning, fits, tenth, burst,
    /// common-head, chat [default: reference]
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "recording")]
    pub workload: Option<String>,
    /// Requests a second; conversations a second, where requests have several turns
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "recording",
        allow_negative_numbers = true
    )]
    pub rate: Option<f64>,
    /// How they are scattered: poisson, even, gamma,cv=3 or on=2s,off=8s
    #[arg(long, value_name = "HOW", conflicts_with = "recording")]
    pub arrivals: Option<Arrivals>,
    /// At most so many requests
    #[arg(long, value_name = "N", conflicts_with = "recording")]
    pub requests: Option<u64>,
    /// How long requests come
    #[arg(long, value_name = "DURATION", conflicts_with = "recording")]
    pub duration: Option<Span>,
    /// Different shared beginnings of prompts
    #[arg(long, value_name = "N", conflicts_with = "recording")]
    pub prefixes: Option<u32>,
    /// Tokens of each: 6000, 4000..8000, 6000,p99=20000 or 6000,cv=0.5 (the last two lognormal)
    #[arg(long, value_name = "TOKENS", conflicts_with = "recording")]
    pub prefix_tokens: Option<Distribution>,
    /// Their popularity: the n-th is asked for as 1 / n^ZIPF
    #[arg(
        long,
        value_name = "ZIPF",
        conflicts_with = "recording",
        allow_negative_numbers = true
    )]
    pub zipf: Option<f64>,
    /// The first one's part of all requests, 0 to 1
    #[arg(
        long,
        value_name = "SHARE",
        conflicts_with = "recording",
        allow_negative_numbers = true
    )]
    pub first_share: Option<f64>,
    /// Tokens of a prompt that no other has
    #[arg(long, value_name = "TOKENS", conflicts_with = "recording")]
    pub unshared_tokens: Option<Distribution>,
    /// Tokens of an answer
    #[arg(long, value_name = "TOKENS", conflicts_with = "recording")]
    pub output_tokens: Option<Distribution>,
    /// Turns of a conversation
    #[arg(long, value_name = "N", conflicts_with = "recording")]
    pub turns: Option<Distribution>,
    /// Seconds from an answer's end to the next prompt
    #[arg(long, value_name = "SECONDS", conflicts_with = "recording")]
    pub think: Option<Distribution>,
    /// Tokens that all prompts begin with; in a trace of Claude Code they take the place of as many of each
    /// conversation's first ones
    #[arg(long, value_name = "TOKENS")]
    pub common_head: Option<u32>,
    /// A recording to replay
    #[command(flatten)]
    pub trace: TraceArgs,
}

/// A recording to replay.
// A flag of a generated load conflicts with the whole group: clap takes a flag that `requires` the trace as satisfied
// where another flag conflicts with the trace alone, and would pass over it in silence.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(id = "recording")]
#[command(next_help_heading = "Trace")]
pub struct TraceArgs {
    /// Replays a recording: a file, plain or .gz, or a folder of them
    #[arg(long, value_name = "PATH")]
    pub trace: Option<PathBuf>,
    /// What it is, where its text does not tell
    #[arg(long, value_enum, value_name = "FORMAT", requires = "trace")]
    pub trace_format: Option<Format>,
    /// Tokens of a block, where the trace names blocks and not their size [default: 512]
    #[arg(long, value_name = "TOKENS", requires = "trace")]
    pub trace_block: Option<u32>,
    /// How many times faster than recorded, waiting and thinking alike
    #[arg(
        long,
        value_name = "FACTOR",
        requires = "trace",
        allow_negative_numbers = true
    )]
    pub speed: Option<f64>,
    /// At most so many requests
    #[arg(long, value_name = "N", requires = "trace")]
    pub limit: Option<u64>,
    /// Only so many conversations, chosen by the seed
    #[arg(long, value_name = "N", requires = "trace")]
    pub sessions: Option<u64>,
    /// Conversations begun a second, where the trace does not tell when they began [default: 0.05]
    #[arg(
        long,
        value_name = "N",
        requires = "trace",
        allow_negative_numbers = true
    )]
    pub session_rate: Option<f64>,
    /// No wait between an answer and the next prompt is longer than this
    #[arg(long, value_name = "DURATION", requires = "trace")]
    pub max_think: Option<Span>,
}

impl TraceArgs {
    /// The trace asked for, if one is.
    pub fn spec(&self) -> Option<Trace> {
        let mut trace = Trace::new(self.trace.clone()?);
        trace.format = self.trace_format;
        trace.block = self.trace_block;
        trace.speed = self.speed.unwrap_or(trace.speed);
        trace.limit = self.limit;
        trace.sessions = self.sessions;
        trace.session_rate = self.session_rate.unwrap_or(trace.session_rate);
        trace.max_think = self.max_think;
        Some(trace)
    }
}

impl Args {
    /// The workload asked for.
    ///
    /// # Errors
    /// When there is none of this name, a file is not as expected, or a flag does not go with it.
    pub fn spec(&self) -> Result<Spec, OpenError> {
        if let Some(mut trace) = self.trace.spec() {
            trace.common_head = self.common_head.unwrap_or(trace.common_head);
            return Ok(Spec::Trace(trace));
        }
        let asked = self.workload.as_deref().unwrap_or("reference");
        let spec = match Spec::named(asked) {
            Some(spec) => spec,
            None if std::path::Path::new(asked).exists() => Spec::read(asked.as_ref())?,
            None => {
                return Err(OpenError::UnknownName {
                    name: asked.to_owned(),
                });
            }
        };
        match spec {
            Spec::Generated(mut load) => {
                self.change(&mut load);
                Ok(Spec::Generated(load))
            }
            Spec::Trace(mut trace) => {
                if self.changes_a_generated_load() {
                    let problem =
                        format!("`{asked}` is a trace, which flags such as --rate do not change");
                    return Err(OpenError::setting("workload", problem));
                }
                trace.common_head = self.common_head.unwrap_or(trace.common_head);
                Ok(Spec::Trace(trace))
            }
        }
    }

    fn changes_a_generated_load(&self) -> bool {
        let mut changed = Generated::default();
        self.change(&mut changed);
        changed.common_head = 0;
        changed != Generated::default()
    }

    /// Puts the flags in the place of what the load says.
    fn change(&self, load: &mut Generated) {
        fn set<T: Copy>(place: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *place = value;
            }
        }
        if let Some(rate) = self.rate {
            // One rate takes the place of several; they end when they would have ended.
            let stages = std::mem::take(&mut load.stages);
            if !stages.is_empty() {
                let all = stages
                    .iter()
                    .flat_map(|stage| [stage.duration.0, stage.pause.0])
                    .fold(Duration::ZERO, Duration::saturating_add);
                load.duration = Some(Span(all));
            }
            load.rate = rate;
        }
        if self.duration.is_some() {
            load.duration = self.duration;
        }
        if self.requests.is_some() {
            load.requests = self.requests;
            // So many were asked for, however long it takes.
            load.duration = self.duration;
        }
        set(&mut load.arrivals, self.arrivals);
        set(&mut load.prefixes.count, self.prefixes);
        set(&mut load.prefixes.tokens, self.prefix_tokens);
        set(&mut load.prefixes.zipf, self.zipf);
        load.prefixes.first_share = self.first_share.or(load.prefixes.first_share);
        set(&mut load.unshared, self.unshared_tokens);
        set(&mut load.output, self.output_tokens);
        set(&mut load.common_head, self.common_head);
        if self.turns.is_some() || self.think.is_some() {
            let talk = load.conversation.get_or_insert_with(Conversation::default);
            set(&mut talk.turns, self.turns);
            set(&mut talk.think, self.think);
        }
    }
}
