//! How are lengths and times spread? Written in a few characters, drawn from any random source.

use std::fmt;
use std::str::FromStr;

use fastrand::Rng;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::MOST_TOKENS;

/// Standard deviations from the median of a normal distribution to its 99th percentile.
const P99: f64 = 2.326_347_874_040_841;

/// A distribution of values that are not negative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Always the same: `300`.
    Fixed(f64),
    /// Every value between two alike: `100..500`.
    Uniform(f64, f64),
    /// Lognormal with a mean and a 99th percentile: `343,p99=1120`.
    MeanAndP99(f64, f64),
    /// Lognormal with a mean and a coefficient of variation: `343,cv=0.8`.
    MeanAndCv(f64, f64),
}

/// Why a distribution was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{written}` is not a distribution: {problem}")]
pub struct BadDistribution {
    written: String,
    problem: &'static str,
}

const FORMS: &str = "write 300, 100..500, 343,p99=1120 (lognormal: mean and 99th percentile) or \
                     343,cv=0.8 (lognormal: mean and coefficient of variation)";

impl Distribution {
    /// Its mean.
    pub const fn mean(self) -> f64 {
        match self {
            Self::Fixed(mean) | Self::MeanAndP99(mean, _) | Self::MeanAndCv(mean, _) => mean,
            Self::Uniform(low, high) => f64::midpoint(low, high),
        }
    }

    /// Ready to be drawn from.
    pub(super) fn drawer(self) -> Drawer {
        match self {
            Self::Fixed(value) => Drawer::Fixed(value),
            Self::Uniform(low, high) => Drawer::Uniform(low, high - low),
            Self::MeanAndP99(mean, p99) => {
                // ln p99 - ln mean = P99 sigma - sigma^2 / 2; the smaller root is the one whose median is near the mean.
                let sigma = P99
                    - 2.0f64
                        .mul_add(-(p99 / mean).ln(), P99 * P99)
                        .max(0.0)
                        .sqrt();
                Drawer::lognormal(mean, sigma)
            }
            Self::MeanAndCv(mean, cv) => Drawer::lognormal(mean, cv.mul_add(cv, 1.0).ln().sqrt()),
        }
    }

    fn check(self) -> Result<Self, &'static str> {
        let number = |value: f64| value.is_finite() && value >= 0.0;
        match self {
            Self::Fixed(value) if number(value) => Ok(self),
            Self::Uniform(low, high) if number(low) && number(high) && low <= high => Ok(self),
            Self::Uniform(..) => Err("the first bound has to be the smaller one"),
            Self::MeanAndP99(mean, p99) | Self::MeanAndCv(mean, p99)
                if !(number(mean) && mean > 0.0 && number(p99)) =>
            {
                Err("the mean has to be above zero, and the other figure not below it")
            }
            // At a mean of exp(mu + sigma^2 / 2) the 99th percentile is greatest at sigma = P99.
            Self::MeanAndP99(mean, p99)
                if !(mean..=mean * (P99 * P99 / 2.0).exp()).contains(&p99) =>
            {
                Err("the 99th percentile of a lognormal distribution is 1 to 14.9 times its mean")
            }
            Self::Fixed(_) => Err("a number that is not negative is expected"),
            Self::MeanAndP99(..) | Self::MeanAndCv(..) => Ok(self),
        }
    }
}

impl FromStr for Distribution {
    type Err = BadDistribution;

    fn from_str(written: &str) -> Result<Self, BadDistribution> {
        let bad = |problem| BadDistribution {
            written: written.to_owned(),
            problem,
        };
        let number = |text: &str| text.trim().replace('_', "").parse().map_err(|_| bad(FORMS));
        let read = if let Some((low, high)) = written.split_once("..") {
            Self::Uniform(number(low)?, number(high)?)
        } else if let Some((mean, other)) = written.split_once(',') {
            match other.split_once('=') {
                Some((name, p99)) if name.trim() == "p99" => {
                    Self::MeanAndP99(number(mean)?, number(p99)?)
                }
                Some((name, cv)) if name.trim() == "cv" => {
                    Self::MeanAndCv(number(mean)?, number(cv)?)
                }
                _ => return Err(bad(FORMS)),
            }
        } else {
            Self::Fixed(number(written)?)
        };
        read.check().map_err(bad)
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(value) => write!(f, "{value}"),
            Self::Uniform(low, high) => write!(f, "{low}..{high}"),
            Self::MeanAndP99(mean, p99) => write!(f, "{mean},p99={p99}"),
            Self::MeanAndCv(mean, cv) => write!(f, "{mean},cv={cv}"),
        }
    }
}

impl Serialize for Distribution {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(value) => serializer.serialize_f64(*value),
            _ => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Distribution {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// A bare number needs no quotes.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(f64),
            Text(String),
        }
        let text = match Written::deserialize(deserializer)? {
            Written::Number(number) => number.to_string(),
            Written::Text(text) => text,
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A distribution with its sums done.
#[derive(Clone, Copy, Debug)]
pub(super) enum Drawer {
    Fixed(f64),
    /// Low bound and width.
    Uniform(f64, f64),
    Lognormal {
        mu: f64,
        sigma: f64,
    },
}

impl Drawer {
    fn lognormal(mean: f64, sigma: f64) -> Self {
        Self::Lognormal {
            mu: (-sigma).mul_add(sigma / 2.0, mean.ln()),
            sigma,
        }
    }

    /// One value.
    pub(super) fn draw(self, rng: &mut Rng) -> f64 {
        match self {
            Self::Fixed(value) => value,
            Self::Uniform(low, width) => rng.f64().mul_add(width, low),
            Self::Lognormal { mu, sigma } => sigma.mul_add(normal(rng), mu).exp(),
        }
    }

    /// One value as a number of tokens (or turns).
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, and no length is negative"
    )]
    pub(super) fn draw_whole(self, rng: &mut Rng) -> u32 {
        self.draw(rng).round().min(f64::from(MOST_TOKENS)) as u32
    }
}

/// A normally distributed value of mean 0 and deviation 1 (Box and Muller).
pub(super) fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.f64()).cos()
}
