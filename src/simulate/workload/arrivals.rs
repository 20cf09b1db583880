//! When do requests come? Gaps of a mean of one, stretched to a rate that may change in stages.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use fastrand::Rng;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::distribution::normal;
use crate::config::units::{Span, SpanOrZero};

/// How arrivals are scattered around their rate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Arrivals {
    /// Independent of each other: `poisson`.
    #[default]
    Poisson,
    /// At equal gaps: `even`.
    Even,
    /// Gaps of a gamma distribution: `gamma,cv=3`. A coefficient of variation above 1 comes in bursts.
    Gamma {
        /// Deviation of the gaps over their mean.
        cv: f64,
    },
    /// Independent of each other for a while, then none for a while, the rate being that of both together:
    /// `on=2s,off=8s`.
    OnOff {
        /// How long requests come.
        on: Span,
        /// How long none comes.
        off: Span,
    },
}

/// Why an arrival process was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a way to arrive: write poisson, even, gamma,cv=3 or on=2s,off=8s")]
pub struct BadArrivals(String);

impl FromStr for Arrivals {
    type Err = BadArrivals;

    fn from_str(written: &str) -> Result<Self, BadArrivals> {
        let bad = || BadArrivals(written.to_owned());
        let setting = |text: &str, name: &str| {
            let (left, right) = text.split_once('=').ok_or_else(bad)?;
            (left.trim() == name)
                .then(|| right.trim().to_owned())
                .ok_or_else(bad)
        };
        match written.trim().split_once(',') {
            None if written.trim() == "poisson" => Ok(Self::Poisson),
            None if written.trim() == "even" => Ok(Self::Even),
            Some(("gamma", cv)) => {
                let cv = setting(cv, "cv")?.parse::<f64>().map_err(|_| bad())?;
                // Beyond these the gaps leave what a double holds.
                (0.01..=100.0)
                    .contains(&cv)
                    .then_some(Self::Gamma { cv })
                    .ok_or_else(bad)
            }
            Some((on, off)) => Ok(Self::OnOff {
                on: setting(on, "on")?.parse().map_err(|_| bad())?,
                off: setting(off, "off")?.parse().map_err(|_| bad())?,
            }),
            None => Err(bad()),
        }
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Poisson => f.write_str("poisson"),
            Self::Even => f.write_str("even"),
            Self::Gamma { cv } => write!(f, "gamma,cv={cv}"),
            Self::OnOff { on, off } => write!(f, "on={on},off={off}"),
        }
    }
}

impl Serialize for Arrivals {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Arrivals {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// A while with one rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Stage {
    /// Arrivals a second.
    pub rate: f64,
    /// How long.
    pub duration: Span,
    /// How long nothing comes after it.
    #[serde(default = "no_pause")]
    pub pause: SpanOrZero,
}

/// A stage is followed by the next one at once.
pub(super) const fn no_pause() -> SpanOrZero {
    SpanOrZero(Duration::ZERO)
}

/// The times, one after the other.
#[derive(Clone, Debug)]
pub(super) struct Times {
    arrivals: Arrivals,
    rng: Rng,
    stages: Vec<Stage>,
    stage: usize,
    /// When this stage began, seconds.
    began: f64,
    /// Arrivals expected from the start of this stage to the last time given out.
    units: f64,
}

impl Times {
    /// One rate until `end`, or for ever.
    pub(super) fn steady(arrivals: Arrivals, rate: f64, end: Option<Span>, seed: u64) -> Self {
        // Longer than any run, and exact in seconds.
        let end = end.unwrap_or(Span(Duration::from_secs(1 << 40)));
        Self::ladder(
            arrivals,
            vec![Stage {
                rate,
                duration: end,
                pause: no_pause(),
            }],
            seed,
        )
    }

    /// Several rates, one after the other.
    pub(super) fn ladder(arrivals: Arrivals, stages: Vec<Stage>, seed: u64) -> Self {
        Self {
            arrivals,
            rng: Rng::with_seed(seed),
            stages,
            stage: 0,
            began: 0.0,
            units: 0.0,
        }
    }

    /// Arrivals to expect in all.
    pub(super) fn expected(&self) -> f64 {
        let units = |stage: &Stage| stage.rate * stage.duration.0.as_secs_f64();
        self.stages.iter().map(units).sum()
    }

    /// The next time; `None` after the last stage.
    pub(super) fn next(&mut self) -> Option<Duration> {
        self.units += self.gap();
        loop {
            let stage = self.stages.get(self.stage)?;
            let length = stage.duration.0.as_secs_f64();
            let expected = stage.rate * length;
            if self.units < expected {
                let within = self.units / stage.rate;
                return Duration::try_from_secs_f64(self.began + self.spread(within)).ok();
            }
            // What is left of the gap counts at the rate of the next stage.
            self.units -= expected;
            self.began += length + stage.pause.0.as_secs_f64();
            self.stage += 1;
        }
    }

    /// Puts the pauses of an on-off process between.
    fn spread(&self, seconds: f64) -> f64 {
        let Arrivals::OnOff { on, off } = self.arrivals else {
            return seconds;
        };
        let (on, off) = (on.0.as_secs_f64(), off.0.as_secs_f64());
        // All that would have come during a cycle comes while it is on.
        let cycle = on + off;
        let cycles = (seconds / cycle).floor();
        let within = cycles.mul_add(-cycle, seconds) * on / cycle;
        cycles.mul_add(cycle, within)
    }

    /// A gap of mean 1.
    fn gap(&mut self) -> f64 {
        match self.arrivals {
            // Never the logarithm of zero.
            Arrivals::Poisson | Arrivals::OnOff { .. } => -(1.0 - self.rng.f64()).ln(),
            Arrivals::Even => 1.0,
            Arrivals::Gamma { cv } => gamma(&mut self.rng, 1.0 / (cv * cv)) * cv * cv,
        }
    }
}

/// A value of a gamma distribution of this shape and scale 1 (Marsaglia and Tsang).
fn gamma(rng: &mut Rng, shape: f64) -> f64 {
    if shape < 1.0 {
        let boost = (1.0 - rng.f64()).powf(1.0 / shape);
        return gamma(rng, shape + 1.0) * boost;
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(rng);
        let v = c.mul_add(x, 1.0).powi(3);
        let u = 1.0 - rng.f64();
        if v > 0.0 && u.ln() < d.mul_add(1.0 - v + v.ln(), x * x / 2.0) {
            return d * v;
        }
    }
}
