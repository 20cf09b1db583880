//! Whose request is it? Prefixes by popularity.

use fastrand::Rng;

/// Draws one of several prefixes.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    /// Shares of the prefixes up to each, the last one 1.
    up_to: Vec<f64>,
}

impl Choice {
    /// The n-th has a weight of 1 / n^`zipf`. With `first_share`, the first has that part of all and the others share
    /// what is left in this way.
    pub(super) fn new(count: u32, zipf: f64, first_share: Option<f64>) -> Self {
        let others = count - u32::from(first_share.is_some() && count > 0);
        let weights: Vec<f64> = (1..=others).map(|n| f64::from(n).powf(-zipf)).collect();
        let total: f64 = weights.iter().sum();
        let left = 1.0 - first_share.unwrap_or(0.0);
        let mut sum = 0.0;
        let mut up_to = Vec::with_capacity(count as usize);
        if let Some(share) = first_share {
            sum = share;
            up_to.push(sum);
        }
        for weight in weights {
            sum += left * weight / total;
            up_to.push(sum);
        }
        Self { up_to }
    }

    /// One of them, counted from 0.
    pub(super) fn draw(&self, rng: &mut Rng) -> usize {
        let drawn = rng.f64();
        let place = self.up_to.partition_point(|sum| *sum <= drawn);
        // Rounding may leave the last sum a little below 1.
        place.min(self.up_to.len().saturating_sub(1))
    }
}
