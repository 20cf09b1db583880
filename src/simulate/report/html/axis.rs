//! Where on an axis does a value stand, and which values are written beside it?

use crate::simulate::report::numbers::{round_time, short};

/// The ends of a share axis that is stretched: 0 and 1 would be infinitely far away.
pub(super) const LEAST_SHARE: f64 = 0.01;
pub(super) const GREATEST_SHARE: f64 = 0.999;

/// What an axis reaches: beyond, steps and ratios are no longer numbers, and no run has such values.
const LEAST: f64 = 1e-9;
const GREATEST: f64 = 1e15;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    Linear,
    Logarithmic,
    /// Log of the odds: as much room for 90 to 99 % as for 50 to 90 %.
    Odds,
}

/// One axis: its scale, its ends, what is written beside it.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    /// What it shows, with the unit.
    pub(super) title: String,
    /// Values with a line across the plot and a label.
    pub(super) ticks: Vec<(f64, String)>,
    /// Values with a line alone.
    pub(super) minor: Vec<f64>,
}

impl Axis {
    /// From zero to the greatest of the values, in steps of 1, 2 or 5.
    pub(super) fn linear(title: &str, greatest: f64, steps: f64) -> Self {
        let high = if greatest > 0.0 {
            greatest.clamp(LEAST, GREATEST)
        } else {
            1.0
        };
        let step = round_step(high / steps);
        let count = (high / step + 1e-9).floor();
        let ticks = (0..20).map(f64::from).take_while(|n| *n <= count);
        let ticks = ticks.map(|n| (n * step, short(n * step))).collect();
        Self {
            scale: Scale::Linear,
            low: 0.0,
            high,
            title: title.to_owned(),
            ticks,
            minor: Vec::new(),
        }
    }

    /// Whole per cents of a share, evenly.
    pub(super) fn percent(title: &str) -> Self {
        let ticks = [0, 25, 50, 75, 100]
            .map(|percent| (f64::from(percent) / 100.0, format!("{percent} %")));
        Self {
            scale: Scale::Linear,
            low: 0.0,
            high: 1.0,
            title: title.to_owned(),
            ticks: ticks.to_vec(),
            minor: Vec::new(),
        }
    }

    /// Shares of a distribution, stretched toward both ends.
    pub(super) fn odds(title: &str) -> Self {
        let ticks = [
            (0.01, "1 %"),
            (0.1, "10 %"),
            (0.5, "50 %"),
            (0.9, "90 %"),
            (0.99, "99 %"),
            (0.999, "99.9 %"),
        ];
        Self {
            scale: Scale::Odds,
            low: LEAST_SHARE,
            high: GREATEST_SHARE,
            title: title.to_owned(),
            ticks: ticks.map(|(share, text)| (share, text.to_owned())).to_vec(),
            minor: vec![0.25, 0.75, 0.95],
        }
    }

    /// Times in seconds from the least to the greatest, a label for each power of ten, or for 1, 2 and 5 where those
    /// are few.
    pub(super) fn times(title: &str, values: impl Iterator<Item = f64>) -> Self {
        Self::logarithmic(title, values, round_time)
    }

    /// Numbers from the least to the greatest.
    pub(super) fn numbers(title: &str, values: impl Iterator<Item = f64>) -> Self {
        Self::logarithmic(title, values, short)
    }

    fn logarithmic(
        title: &str,
        values: impl Iterator<Item = f64>,
        label: fn(f64) -> String,
    ) -> Self {
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for value in values.filter(|value| value.is_finite() && *value > 0.0) {
            low = low.min(value.clamp(LEAST, GREATEST));
            high = high.max(value.clamp(LEAST, GREATEST));
        }
        if high <= 0.0 {
            (low, high) = (0.1, 1.0);
        }
        // A curve of one value has some room as well.
        if high < low * 2.0 {
            (low, high) = (low / 1.5, high * 1.5);
        }
        let decades = (high / low).log10();
        let every = (decades / 6.0).ceil().max(1.0);
        let (mut ticks, mut minor) = (Vec::new(), Vec::new());
        let mut power = low.log10().floor();
        while power <= high.log10() {
            for digit in [1.0, 2.0, 5.0] {
                let value = digit * 10.0_f64.powf(power);
                if value < low * 0.999 || value > high * 1.001 {
                    continue;
                }
                let labelled = (digit <= 1.0 && power.rem_euclid(every) < 0.5) || decades < 2.1;
                if labelled {
                    ticks.push((value, label(value)));
                } else if every < 2.0 {
                    minor.push(value);
                }
            }
            power += 1.0;
        }
        Self {
            scale: Scale::Logarithmic,
            low,
            high,
            title: title.to_owned(),
            ticks,
            minor,
        }
    }

    /// The value's place from 0 (low end) to 1 (high end); what is beyond an end is at it.
    pub(super) fn place(&self, value: f64) -> f64 {
        let value = if value.is_finite() {
            value.clamp(self.low, self.high)
        } else {
            self.low
        };
        let stretched = |value: f64| match self.scale {
            Scale::Linear => value,
            Scale::Logarithmic => value.ln(),
            Scale::Odds => (value / (1.0 - value)).ln(),
        };
        (stretched(value) - stretched(self.low)) / (stretched(self.high) - stretched(self.low))
    }
}

/// The next of 1, 2, 5, 10, … above.
fn round_step(step: f64) -> f64 {
    let power = 10.0_f64.powf(step.log10().floor());
    let digits = step / power;
    let round = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|round| digits <= *round)
        .unwrap_or(10.0);
    round * power
}

/// The unit that suits a run of so many seconds, and how many seconds it has.
pub(super) fn run_unit(seconds: f64) -> (&'static str, f64) {
    if seconds > 3.0 * 3600.0 {
        ("h", 3600.0)
    } else if seconds > 300.0 {
        ("min", 60.0)
    } else {
        ("s", 1.0)
    }
}

/// Virtual time from zero to `seconds`, in the unit that suits.
pub(super) fn run_axis(seconds: f64, steps: f64) -> (Axis, f64) {
    let (unit, length) = run_unit(seconds);
    (
        Axis::linear(&format!("time in the run, {unit}"), seconds / length, steps),
        length,
    )
}
