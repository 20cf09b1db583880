//! Which constants fit a recorded run best? A search along one constant after the other.

use std::time::Duration;

use super::{Errors, Recorded, ReplayError, replay};
use crate::engine::model::Settings;

/// The constants of the model's step time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// What every step takes, microseconds.
    pub step_base_us: f64,
    /// What each prefilled token adds, microseconds.
    pub prefill_us_per_token: f64,
    /// What a step takes longer if any request decodes in it, microseconds.
    pub decode_us_per_step: f64,
    /// What each token in the contexts of the decoding requests adds, nanoseconds.
    pub decode_ns_per_context_token: f64,
}

impl Constants {
    /// Puts them into an engine's settings.
    #[must_use]
    pub fn apply(&self, settings: Settings) -> Settings {
        let micros = |us: f64| Duration::from_secs_f64(us.max(0.0) * 1e-6);
        Settings {
            step_base: micros(self.step_base_us),
            prefill_per_token: micros(self.prefill_us_per_token),
            decode_per_step: micros(self.decode_us_per_step),
            decode_ns_per_context_token: self.decode_ns_per_context_token,
            ..settings
        }
    }

    const fn get_mut(&mut self, which: usize) -> &mut f64 {
        match which {
            0 => &mut self.step_base_us,
            1 => &mut self.prefill_us_per_token,
            2 => &mut self.decode_us_per_step,
            _ => &mut self.decode_ns_per_context_token,
        }
    }
}

/// Steps by which a constant is changed, each taken when the one before brings nothing any more.
const STRIDES: [f64; 3] = [1.25, 1.08, 1.02];

/// Which constant is changed, and which against it: two that cost the same steps hide each other, and are found together.
const MOVES: [(usize, Option<usize>); 10] = [
    (0, None),
    (1, None),
    (2, None),
    (3, None),
    (0, Some(1)),
    (0, Some(2)),
    (0, Some(3)),
    (1, Some(2)),
    (1, Some(3)),
    (2, Some(3)),
];

/// The constants with the least loss over a part of the run (by place), found from `start`, and that loss. Each constant
/// is multiplied or divided by a stride as long as that brings anything; no chance is in it.
///
/// # Errors
/// When the engine cannot work or a request can never be computed.
pub fn fit(
    settings: &Settings,
    start: Constants,
    run: &[Recorded],
    part: impl Fn(usize) -> bool + Copy,
) -> Result<(Constants, f64), ReplayError> {
    let loss = |constants: &Constants| -> Result<f64, ReplayError> {
        let replayed = replay(constants.apply(settings.clone()), run)?;
        Ok(Errors::of(run, &replayed, part).loss)
    };
    let mut best = (start, loss(&start)?);
    for stride in STRIDES {
        loop {
            let before = best.1;
            for (up, down) in MOVES {
                for factor in [stride, stride.recip()] {
                    let mut constants = best.0;
                    *constants.get_mut(up) *= factor;
                    if let Some(down) = down {
                        *constants.get_mut(down) /= factor;
                    }
                    let found = loss(&constants)?;
                    if found < best.1 {
                        best = (constants, found);
                    }
                }
            }
            if best.1 >= before {
                break;
            }
        }
    }
    Ok(best)
}
