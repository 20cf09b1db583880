//! How did the run go over time? Intervals of one length, which doubles when there are too many of them.

use std::time::Duration;

use crate::simulate::outcome::Course;

/// Length of an interval at first.
const SHORTEST: Duration = Duration::from_millis(100);

/// What is gathered of one interval.
#[derive(Clone, Debug, Default)]
struct Interval {
    /// At its end.
    in_flight: Vec<f32>,
    queued: Vec<f32>,
    /// Prompt tokens of the requests prefilled in it, and those of them that were cached.
    prompt: u64,
    cached: u64,
    /// Sum and number of the TTFTs in it.
    ttft: f64,
    first_tokens: u64,
}

/// The course so far.
#[derive(Debug)]
pub(super) struct Gathered {
    length: Duration,
    /// Twice as many are made half as many.
    wanted: usize,
    over: Vec<(Duration, Interval)>,
    current: Interval,
}

impl Gathered {
    pub(super) fn new(wanted: usize) -> Self {
        Self {
            length: SHORTEST,
            wanted: wanted.max(1),
            over: Vec::new(),
            current: Interval::default(),
        }
    }

    /// The number of the interval that goes on.
    pub(super) fn number(&self) -> u32 {
        u32::try_from(self.over.len()).unwrap_or(u32::MAX)
    }

    /// When it will be over, from the start.
    pub(super) fn due(&self) -> Duration {
        let number = self.number().saturating_add(1);
        self.length.saturating_mul(number)
    }

    pub(super) fn prefilled(&mut self, prompt: u64, cached: u64) {
        self.current.prompt += prompt;
        self.current.cached += cached;
    }

    pub(super) fn first_token(&mut self, ttft: f64) {
        self.current.ttft += ttft;
        self.current.first_tokens += 1;
    }

    /// An interval is over. True if there were too many: two became one each, so that every number is halved.
    pub(super) fn over(&mut self, at: Duration, in_flight: Vec<f32>, queued: Vec<f32>) -> bool {
        let mut interval = std::mem::take(&mut self.current);
        (interval.in_flight, interval.queued) = (in_flight, queued);
        self.over.push((at, interval));
        if self.over.len() < 2 * self.wanted {
            return false;
        }
        let mut halves = std::mem::take(&mut self.over).into_iter();
        while let (Some((_, first)), Some((end, mut second))) = (halves.next(), halves.next()) {
            second.prompt += first.prompt;
            second.cached += first.cached;
            second.ttft += first.ttft;
            second.first_tokens += first.first_tokens;
            self.over.push((end, second));
        }
        self.length *= 2;
        true
    }

    #[expect(clippy::cast_possible_truncation, reason = "for plots")]
    pub(super) fn course(&self, replicas: usize) -> Course {
        let of = |figure: fn(&Interval) -> &Vec<f32>, replica: usize| -> Vec<f32> {
            let intervals = self.over.iter();
            let value = |(_, interval): &(Duration, Interval)| {
                figure(interval).get(replica).copied().unwrap_or_default()
            };
            intervals.map(value).collect()
        };
        let mean = |sum: f64, number: u64| {
            if number == 0 {
                0.0
            } else {
                (sum / number as f64) as f32
            }
        };
        let intervals = || self.over.iter().map(|(_, interval)| interval);
        Course {
            seconds: self.over.iter().map(|(end, _)| end.as_secs_f64()).collect(),
            in_flight: (0..replicas)
                .map(|replica| of(|i| &i.in_flight, replica))
                .collect(),
            queued_tokens: (0..replicas)
                .map(|replica| of(|i| &i.queued, replica))
                .collect(),
            cached_share: intervals()
                .map(|i| mean(i.cached as f64, i.prompt))
                .collect(),
            ttft: intervals().map(|i| mean(i.ttft, i.first_tokens)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_keeps_the_number_of_intervals_and_every_sum() {
        let mut gathered = Gathered::new(4);
        let mut halved = 0;
        for tick in 1..=100_u64 {
            gathered.prefilled(10, tick % 2 * 10);
            let due = gathered.due();
            halved += u32::from(gathered.over(due, vec![tick as f32], vec![0.0]));
        }
        let course = gathered.course(1);
        assert!((4..8).contains(&course.seconds.len()), "{course:?}");
        let length = 0.1 * f64::from(1_u32 << halved);
        for (at, end) in course.seconds.iter().enumerate() {
            assert!((end - length * (at + 1) as f64).abs() < 1e-9);
        }
        assert_eq!(course.cached_share.first(), Some(&0.5));
    }
}
