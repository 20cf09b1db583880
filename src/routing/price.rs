//! What does computing a token cost the pool, besides itself?
//!
//! While some endpoint has nothing queued, work delays nobody but its own request: whoever comes next goes where it is
//! free. While none is, the pool is one queue, and work `u` also delays those who come as long as it lasts. A queue that
//! is busy for the share `r` of the time makes of it a delay of `u + r·u + r²·u + … = u / (1 - r)` in all. So
//!
//! ```text
//! price = 1 / (1 - r),    r = share of the last picks at which no endpoint was free
//! ```
//!
//! With room to spare the price is 1 and nothing but this request's own delay counts. At the limit a hit is worth waiting
//! for: a pool in which each request goes where it is served first computes every prefix everywhere, and never catches up.
//! Simulated, with 16 endpoints from a cold start: mean time to first token 469 ms at a price of 1, 303 ms at this one
//! (`docs/policies.md`).

/// Picks over which the share is averaged. Against the price of 1, means of six seeds of the quick study: with 64 the
/// reference load gains 30 % and the load where everything fits (`fits`) loses 2.8 %, with 128 it is 28 and 1.5 %, with
/// 256 it is 25 and 1.5 %.
const REMEMBERED: f64 = 128.0;

/// No pool is taken to be busier, so that a hit is not waited for without end: the price is at most 20.
const BUSIEST: f64 = 0.95;

/// How busy the pool has been, as picks saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Busy {
    share: f64,
}

impl Busy {
    /// A pick found this share of the queues busy: 0 or 1 where the pool is one queue.
    pub fn saw(&mut self, share: f64) {
        self.share += (share - self.share) / REMEMBERED;
    }

    /// What a token of work costs, in tokens of delay: 1 to 20.
    pub fn price(self) -> f64 {
        1.0 / (1.0 - self.share.min(BUSIEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(picks: impl IntoIterator<Item = bool>) -> f64 {
        let mut busy = Busy::default();
        for none_free in picks {
            busy.saw(f64::from(u8::from(none_free)));
        }
        busy.price()
    }

    #[test]
    fn the_price_is_one_while_somebody_is_free_and_grows_with_the_share_of_picks_that_found_nobody()
    {
        assert_eq!(after([]).to_bits(), 1.0_f64.to_bits());
        assert_eq!(after([false; 1_000]).to_bits(), 1.0_f64.to_bits());
        let half = after((0..10_000).map(|pick| pick % 2 == 0));
        assert!((1.98..2.02).contains(&half), "{half}");
        let most = after((0..10_000).map(|pick| pick % 10 != 0));
        assert!((9.0..11.0).contains(&most), "{most}");
    }

    #[test]
    fn the_price_has_a_limit_and_falls_when_somebody_is_free_again() {
        let always = [true; 5_000];
        assert!((after(always) - 20.0).abs() < 1e-9);
        let then_free = after(always.into_iter().chain([false; 2_000]));
        assert!((1.0..1.01).contains(&then_free), "{then_free}");
    }
}
