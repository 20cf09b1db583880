//! What does a generated load look like? Plain data, as it stands in YAML.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::arrivals::{Arrivals, Stage};
use super::distribution::Distribution;
use super::spec::OpenError;
use super::{LONGEST, MOST_TOKENS};
use crate::config::units::{Span, SpanOrZero};

/// A load made by chance. Whatever is not given is as in the reference load: 40 requests a second, 200 prefixes of
/// 6,000 tokens, 2,000 tokens of each prompt's own, 300 answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Generated {
    /// Arrivals a second; of conversations, where there are such.
    pub rate: f64,
    /// How they are scattered.
    pub arrivals: Arrivals,
    /// Several rates one after the other, instead of one.
    pub stages: Vec<Stage>,
    /// At most so many requests.
    pub requests: Option<u64>,
    /// How long requests come; without it, `requests` and `stages`: ten minutes.
    pub duration: Option<Span>,
    /// Tokens that all prompts begin with.
    pub common_head: u32,
    /// What comes after them and is shared by some.
    pub prefixes: Prefixes,
    /// Tokens of each first prompt that no other has.
    pub unshared: Distribution,
    /// Tokens of each answer.
    pub output: Distribution,
    /// More than one turn.
    pub conversation: Option<Conversation>,
    /// Equal requests all at once, beside the others.
    pub burst: Option<Burst>,
}

impl Default for Generated {
    fn default() -> Self {
        Self {
            rate: 40.0,
            arrivals: Arrivals::Poisson,
            stages: Vec::new(),
            requests: None,
            duration: None,
            common_head: 0,
            prefixes: Prefixes::default(),
            unshared: Distribution::Fixed(2_000.0),
            output: Distribution::Fixed(300.0),
            conversation: None,
            burst: None,
        }
    }
}

/// Shared beginnings: one for each customer, agent or document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Prefixes {
    /// How many; 0 for none.
    pub count: u32,
    /// Tokens of each.
    pub tokens: Distribution,
    /// Exponent of their popularity: the n-th is asked for as 1 / n^zipf. 0: all alike.
    pub zipf: f64,
    /// The first one's part of all requests, 0 to 1; the others share the rest as `zipf` says.
    pub first_share: Option<f64>,
    /// How many different unshared parts each has; they are asked again and again. 0: never the same twice. Prefixes of
    /// equal popularity are then gone through in a shuffled order, so that each question is asked once a round.
    pub questions: u32,
}

impl Default for Prefixes {
    fn default() -> Self {
        Self {
            count: 200,
            tokens: Distribution::Fixed(6_000.0),
            zipf: 0.0,
            first_share: None,
            questions: 0,
        }
    }
}

/// What makes a conversation of a request: each prompt is the one before, its answer, and something new.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Conversation {
    /// How many turns, at least 1.
    pub turns: Distribution,
    /// Seconds from an answer's end to the next prompt.
    pub think: Distribution,
    /// Tokens that each turn after the first adds.
    pub user: Distribution,
    /// How long an answer is supposed to take in an open loop, which does not wait for it.
    pub service: Service,
}

impl Default for Conversation {
    fn default() -> Self {
        Self {
            turns: Distribution::Fixed(5.0),
            think: Distribution::Fixed(10.0),
            user: Distribution::Fixed(200.0),
            service: Service::default(),
        }
    }
}

/// How long an answer is supposed to take.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Service {
    /// To its first token.
    pub first_token: SpanOrZero,
    /// For each token.
    pub per_token: SpanOrZero,
}

impl Default for Service {
    fn default() -> Self {
        Self {
            first_token: SpanOrZero(Duration::from_millis(500)),
            per_token: SpanOrZero(Duration::from_millis(30)),
        }
    }
}

impl Service {
    /// For an answer of this length.
    pub(super) fn time(self, output: u32) -> Duration {
        self.first_token
            .0
            .saturating_add(self.per_token.0.saturating_mul(output))
    }
}

/// Equal requests all at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Burst {
    /// When.
    pub at: SpanOrZero,
    /// How many.
    pub requests: u32,
    /// Tokens that all of them share, and nobody else.
    pub shared: u32,
    /// Tokens of each one's own.
    #[serde(default)]
    pub unshared: u32,
    /// Tokens of each answer.
    pub output: u32,
}

/// How long requests come where nothing else ends them.
const DURATION: Span = Span(Duration::from_secs(600));

impl Generated {
    /// How long requests come; `None` when only their number ends them.
    pub(super) fn ends(&self) -> Option<Span> {
        self.duration
            .or_else(|| self.requests.is_none().then_some(DURATION))
    }

    /// Refuses what cannot be generated.
    pub(super) fn check(&self) -> Result<(), OpenError> {
        self.check_times()?;
        self.check_lengths()?;
        self.prefixes.check()
    }

    fn check_times(&self) -> Result<(), OpenError> {
        within("rate", self.rate, RATES)?;
        lasts("duration", self.duration.unwrap_or(DURATION).0)?;
        for stage in &self.stages {
            within("stages.rate", stage.rate, RATES)?;
            lasts("stages.duration", stage.duration.0)?;
            lasts("stages.pause", stage.pause.0)?;
        }
        if !self.stages.is_empty() {
            if matches!(self.arrivals, Arrivals::OnOff { .. }) {
                let problem = format!("`{}` has one rate: leave `stages` out", self.arrivals);
                return Err(OpenError::setting("arrivals", problem));
            }
            if self.duration.is_some() {
                let problem = "the stages have durations of their own".to_owned();
                return Err(OpenError::setting("duration", problem));
            }
        }
        if let Some(talk) = &self.conversation {
            let think = talk.think.mean();
            within("conversation.think", think, 0.0..=LONGEST.as_secs_f64())?;
        }
        let burst = self.burst.as_ref();
        burst.map_or(Ok(()), |burst| lasts("burst.at", burst.at.0))
    }

    fn check_lengths(&self) -> Result<(), OpenError> {
        let tokens = |field, mean: f64| within(field, mean, 0.0..=f64::from(MOST_TOKENS));
        tokens("common-head", f64::from(self.common_head))?;
        tokens("prefixes.tokens", self.prefixes.tokens.mean())?;
        tokens("unshared", self.unshared.mean())?;
        tokens("output", self.output.mean())?;
        if let Some(talk) = &self.conversation {
            tokens("conversation.user", talk.user.mean())?;
            within("conversation.turns", talk.turns.mean(), 0.0..=1e6)?;
        }
        if let Some(burst) = &self.burst {
            tokens("burst.shared", f64::from(burst.shared))?;
            tokens("burst.unshared", f64::from(burst.unshared))?;
            tokens("burst.output", f64::from(burst.output))?;
            within("burst.requests", f64::from(burst.requests), 0.0..=1e6)?;
        }
        Ok(())
    }
}

impl Prefixes {
    fn check(&self) -> Result<(), OpenError> {
        within("prefixes.zipf", self.zipf, 0.0..=20.0)?;
        within("prefixes.count", f64::from(self.count), 0.0..=1e7)?;
        let questions = f64::from(self.questions) * f64::from(self.count);
        within("prefixes.questions of all prefixes", questions, 0.0..=1e7)?;
        if let Some(share) = self.first_share
            && !((0.0..=1.0).contains(&share) && self.count > 1)
        {
            let problem = format!("{share} is not a share (0 to 1) of at least two prefixes");
            return Err(OpenError::setting("prefixes.first-share", problem));
        }
        if self.questions > 0 && self.count == 0 {
            let problem = "without prefixes there are none".to_owned();
            return Err(OpenError::setting("prefixes.questions", problem));
        }
        Ok(())
    }
}

/// Arrivals a second that a run can have; those of `plan`.
pub(super) const RATES: RangeInclusive<f64> = 1e-6..=1e7;

/// Refuses what is out of its bounds, and what is no number.
pub(super) fn within(
    field: &'static str,
    value: f64,
    bounds: RangeInclusive<f64>,
) -> Result<(), OpenError> {
    if bounds.contains(&value) {
        return Ok(());
    }
    let (least, most) = (bounds.start(), bounds.end());
    let problem = format!("{value:?} is not between {least} and {most}");
    Err(OpenError::setting(field, problem))
}

fn lasts(field: &'static str, time: Duration) -> Result<(), OpenError> {
    if time <= LONGEST {
        return Ok(());
    }
    Err(OpenError::setting(
        field,
        "it is longer than a year".to_owned(),
    ))
}
