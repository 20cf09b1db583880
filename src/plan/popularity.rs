//! How often is each prefix asked for, and which of them does a cache of a given size still hold?

/// Ranks that are counted one by one; those after them in classes of ranks near one another.
const SINGLE: u64 = 256;

/// Prefixes in classes of equal popularity.
#[derive(Clone, Debug)]
pub(super) struct Popularity {
    /// For each class: prefixes in it, and the share of the requests that each of them has.
    classes: Vec<(f64, f64)>,
}

impl Popularity {
    /// Zipf's law: the prefix of rank i is asked for in proportion to i^-skew. Each exists in `copies` copies that
    /// share its requests.
    pub(super) fn zipf(prefixes: u64, skew: f64, copies: u64) -> Self {
        let mut classes = Vec::new();
        let mut from = 1;
        while from <= prefixes {
            // A class spans a twentieth of its rank, so that popularity differs by little within it.
            let width = if from <= SINGLE { 1 } else { from / 20 };
            let to = (from + width).min(prefixes + 1);
            let middle = (from as f64 * (to - 1) as f64).sqrt();
            classes.push(((to - from) as f64, middle.powf(-skew)));
            from = to;
        }
        let total: f64 = classes.iter().map(|(count, weight)| count * weight).sum();
        let copies = copies.max(1) as f64;
        for (count, weight) in &mut classes {
            *count *= copies;
            *weight /= total * copies;
        }
        Self { classes }
    }

    /// Share of the requests that the most popular one has.
    pub(super) fn top(&self) -> f64 {
        self.classes.first().map_or(0.0, |(_, share)| *share)
    }

    /// Share of requests that find their prefix in a cache of `capacity` tokens, least recently used leaving first,
    /// when requests come at random: Che's approximation.
    ///
    /// A prefix stays until `x` further requests have come, where x solves
    /// `x × unshared + shared × Σ (1 − e^(−p x)) = capacity`: what these requests leave in the cache, their own tokens
    /// and every prefix asked for meanwhile, fills it. Then `Σ p (1 − e^(−p x))` of the requests find theirs.
    pub(super) fn hit_share(&self, unshared: f64, shared: f64, capacity: f64) -> f64 {
        let asked = |share: f64, x: f64| -(-share * x).exp_m1();
        let filled = |x: f64| {
            let prefixes: f64 = self
                .classes
                .iter()
                .map(|(count, share)| count * asked(*share, x))
                .sum();
            unshared.mul_add(x, shared * prefixes)
        };
        let (mut low, mut high) = (0.0, capacity / unshared);
        for _ in 0..64 {
            let middle = f64::midpoint(low, high);
            if filled(middle) > capacity {
                high = middle;
            } else {
                low = middle;
            }
        }
        let found: f64 = self
            .classes
            .iter()
            .map(|(count, share)| count * share * asked(*share, low))
            .sum();
        found.clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_one_and_follow_the_law() {
        for (prefixes, skew, copies) in [
            (1, 0.0, 1),
            (200, 0.0, 1),
            (5000, 1.0, 3),
            (1 << 30, 0.9, 1),
        ] {
            let all = Popularity::zipf(prefixes, skew, copies);
            let sum: f64 = all.classes.iter().map(|(n, p)| n * p).sum();
            let count: f64 = all.classes.iter().map(|(n, _)| n).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{sum}");
            assert!((count / (prefixes * copies) as f64 - 1.0).abs() < 1e-9);
        }
        let harmonic: f64 = (1..=5000).map(|i| 1.0 / f64::from(i)).sum();
        let top = Popularity::zipf(5000, 1.0, 1).top();
        assert!((top * harmonic - 1.0).abs() < 1e-3, "{top}");
    }

    /// The approximation beside an LRU cache that is played out.
    #[test]
    fn hits_agree_with_a_cache_that_is_played() {
        let mut random = fastrand::Rng::with_seed(7);
        for (skew, capacity) in [(0.0, 400_000.0), (1.0, 300_000.0), (0.0, 1_000_000.0)] {
            let foreseen = Popularity::zipf(200, skew, 1).hit_share(2300.0, 6000.0, capacity);
            let weights: Vec<f64> = (1..=200).map(|i| f64::from(i).powf(-skew)).collect();
            let total: f64 = weights.iter().sum();
            // Front is the oldest: (prefix or none, tokens).
            let mut cache: Vec<(Option<usize>, f64)> = Vec::new();
            let mut hits = 0.0;
            for _ in 0..20_000 {
                let mut left = random.f64() * total;
                let prefix = weights
                    .iter()
                    .position(|w| {
                        left -= w;
                        left <= 0.0
                    })
                    .unwrap_or(199);
                if let Some(at) = cache.iter().position(|(held, _)| *held == Some(prefix)) {
                    hits += 1.0;
                    cache.remove(at);
                }
                cache.push((Some(prefix), 6000.0));
                cache.push((None, 2300.0));
                while cache.iter().map(|(_, tokens)| tokens).sum::<f64>() > capacity {
                    cache.remove(0);
                }
            }
            let played = hits / 20_000.0;
            assert!((played - foreseen).abs() < 0.03, "{played} {foreseen}");
        }
    }
}
