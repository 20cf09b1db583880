//! What came of the requests? Counts, exact distributions, and who served the hottest prefixes.

use std::time::Duration;

use rustc_hash::FxHashMap;

use super::GiveUp;
use super::course::Gathered;
use super::flights::Flight;
use crate::simulate::outcome::{HotPrefix, Outcome, Quantiles};

/// Prefixes that are told of.
const HOTTEST: usize = 5;

/// Points of the TTFT curve.
const CURVE_POINTS: u32 = 60;

/// One answered request, seconds.
#[derive(Clone, Copy, Debug)]
struct Answered {
    ttft: f32,
    /// Of an answer of one token there is none.
    tpot: Option<f32>,
    latency: f32,
    prefix: Option<u32>,
}

/// A shared prefix.
#[derive(Debug)]
struct Prefix {
    name: u64,
    asked: u64,
    /// For each interval in which somebody served it, a bit for each replica.
    owners: Vec<(u32, Vec<u64>)>,
}

/// All that is counted.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) arrived: u64,
    pub(super) ended: u64,
    pub(super) failed: u64,
    /// Those that are longer than a replica accepts.
    pub(super) too_long: u64,
    pub(super) repeated: u64,
    /// Requests later than the run's limit, and whether these were too many.
    late: u64,
    pub(super) given_up: bool,
    pub(super) course: Gathered,
    /// The first arrival, and the first one that counts.
    first: Option<Duration>,
    first_counted: Option<Duration>,
    last_end: Duration,
    answered: Vec<Answered>,
    output_tokens: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    prefills: u64,
    foreseen: u64,
    prefixes: Vec<Prefix>,
    prefix_numbers: FxHashMap<u64, u32>,
}

impl Tally {
    pub(super) fn new(intervals: usize) -> Self {
        Self {
            arrived: 0,
            ended: 0,
            failed: 0,
            too_long: 0,
            repeated: 0,
            late: 0,
            given_up: false,
            course: Gathered::new(intervals),
            first: None,
            first_counted: None,
            last_end: Duration::ZERO,
            answered: Vec::new(),
            output_tokens: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            prefills: 0,
            foreseen: 0,
            prefixes: Vec::new(),
            prefix_numbers: FxHashMap::default(),
        }
    }

    /// When the run began: at the first arrival.
    pub(super) fn start(&self) -> Duration {
        self.first.unwrap_or_default()
    }

    pub(super) fn arrived(&mut self, flight: &Flight) {
        let at = flight.arrival.at;
        self.arrived += 1;
        self.first.get_or_insert(at);
        if flight.counted {
            self.first_counted.get_or_insert(at);
        }
        if let Some(name) = flight.arrival.prefix {
            let number = self.prefix_number(name);
            if let Some(prefix) = self.prefixes.get_mut(number as usize) {
                prefix.asked += 1;
            }
        }
    }

    /// An engine has prefilled a request.
    pub(super) fn prefilled(&mut self, flight: &Flight, replica: usize, cached: u64) {
        let prompt = u64::from(flight.arrival.prompt.tokens());
        self.course.prefilled(prompt, cached);
        if let Some(name) = flight.arrival.prefix {
            let (number, interval) = (self.prefix_number(name), self.course.number());
            if let Some(prefix) = self.prefixes.get_mut(number as usize) {
                prefix.served(interval, replica);
            }
        }
        if flight.counted {
            self.prefills += 1;
            self.prompt_tokens += prompt;
            self.cached_tokens += cached;
            self.foreseen += u64::from(flight.foreseen == cached);
        }
    }

    /// Its client sees the first token.
    pub(super) fn first_token(&mut self, counted: bool, ttft: Duration, give_up: Option<GiveUp>) {
        if let Some(GiveUp {
            ttft: limit,
            requests,
        }) = give_up
            && counted
            && ttft >= limit
        {
            self.late += 1;
            self.given_up |= self.late > requests;
        }
        self.course.first_token(ttft.as_secs_f64());
    }

    pub(super) fn answered(&mut self, flight: &Flight, now: Duration) {
        self.ended += 1;
        self.last_end = now;
        if !flight.counted {
            return;
        }
        let arrival = &flight.arrival;
        let first = flight.first_token.unwrap_or(now);
        let further = arrival.output.saturating_sub(1);
        let tpot = (further > 0).then(|| now.saturating_sub(first).as_secs_f32() / further as f32);
        let answered = Answered {
            ttft: first.saturating_sub(arrival.at).as_secs_f32(),
            tpot,
            latency: now.saturating_sub(arrival.at).as_secs_f32(),
            prefix: arrival.prefix.map(|name| self.prefix_number(name)),
        };
        self.answered.push(answered);
        self.output_tokens += u64::from(arrival.output);
    }

    pub(super) fn failed(&mut self, now: Duration) {
        self.ended += 1;
        self.failed += 1;
        self.last_end = now;
    }

    /// An interval of the course is over, at this time from the start.
    pub(super) fn interval(&mut self, at: Duration, in_flight: Vec<f32>, queued: Vec<f32>) {
        if self.course.over(at, in_flight, queued) {
            for prefix in &mut self.prefixes {
                prefix.halve();
            }
        }
    }

    /// Who a prefix was served by stands under its number.
    fn prefix_number(&mut self, name: u64) -> u32 {
        let next = u32::try_from(self.prefixes.len()).unwrap_or(u32::MAX);
        let number = *self.prefix_numbers.entry(name).or_insert(next);
        if number == next {
            self.prefixes.push(Prefix {
                name,
                asked: 0,
                owners: Vec::new(),
            });
        }
        number
    }

    /// All of it, without the policy's name. `computed` are the prompt tokens that each replica computed.
    pub(super) fn outcome(&self, computed: &[u64], preemptions: u64) -> Outcome {
        let seconds = self.last_end.saturating_sub(self.start()).as_secs_f64();
        let counted_from = self.first_counted.unwrap_or_else(|| self.start());
        let counted = self.last_end.saturating_sub(counted_from).as_secs_f64();
        let ttft = sorted(self.answered.iter().map(|answered| answered.ttft));
        Outcome {
            // Whoever chose the policy knows its name.
            policy: String::new(),
            replicas: computed.len(),
            goal_met: None,
            given_up: self.given_up,
            seconds,
            requests: self.answered.len() as u64,
            failed: self.failed,
            too_long: self.too_long,
            repeated: self.repeated,
            ttft: quantiles(&ttft),
            tpot: quantiles(&sorted(self.answered.iter().filter_map(|a| a.tpot))),
            latency: quantiles(&sorted(self.answered.iter().map(|a| a.latency))),
            requests_per_second: ratio(self.answered.len() as f64, counted),
            output_tokens_per_second: ratio(self.output_tokens as f64, counted),
            cached_share: ratio(self.cached_tokens as f64, self.prompt_tokens as f64),
            foreseen_share: ratio(self.foreseen as f64, self.prefills as f64),
            imbalance: imbalance(computed),
            preemptions,
            ttft_curve: curve(&ttft),
            course: self.course.course(computed.len()),
            hot_prefixes: self.hottest(seconds),
        }
    }

    fn hottest(&self, seconds: f64) -> Vec<HotPrefix> {
        let mut numbers: Vec<usize> = (0..self.prefixes.len()).collect();
        let asked = |number: usize| self.prefixes.get(number).map_or(0, |prefix| prefix.asked);
        // Sorting is stable: of equals, the one that came first.
        numbers.sort_by_key(|&number| std::cmp::Reverse(asked(number)));
        let hottest = numbers.into_iter().take(HOTTEST);
        let hot = |number: usize| {
            let prefix = self.prefixes.get(number)?;
            let mine =
                |answered: &&Answered| answered.prefix.is_some_and(|its| its as usize == number);
            let ttft = sorted(self.answered.iter().filter(mine).map(|a| a.ttft));
            let ttft = quantiles(&ttft);
            Some(HotPrefix {
                prefix: prefix.name,
                per_second: ratio(prefix.asked as f64, seconds),
                owners: prefix.owners_by_interval(self.course.number()),
                ttft_mean: ttft.mean,
                ttft_p90: ttft.p90,
            })
        };
        hottest.filter_map(hot).collect()
    }
}

impl Prefix {
    fn served(&mut self, interval: u32, replica: usize) {
        if self.owners.last().is_none_or(|(last, _)| *last != interval) {
            self.owners.push((interval, Vec::new()));
        }
        let Some((_, bits)) = self.owners.last_mut() else {
            return;
        };
        let word = replica / 64;
        if bits.len() <= word {
            bits.resize(word + 1, 0);
        }
        if let Some(bits) = bits.get_mut(word) {
            *bits |= 1 << (replica % 64);
        }
    }

    /// Two intervals each became one.
    fn halve(&mut self) {
        let mut halved: Vec<(u32, Vec<u64>)> = Vec::with_capacity(self.owners.len());
        for (interval, bits) in std::mem::take(&mut self.owners) {
            match halved.last_mut() {
                Some((last, all)) if *last == interval / 2 => {
                    all.resize(all.len().max(bits.len()), 0);
                    for (all, bits) in all.iter_mut().zip(bits) {
                        *all |= bits;
                    }
                }
                _ => halved.push((interval / 2, bits)),
            }
        }
        self.owners = halved;
    }

    fn owners_by_interval(&self, intervals: u32) -> Vec<u32> {
        let mut owners = vec![0; intervals as usize];
        for (interval, bits) in &self.owners {
            if let Some(number) = owners.get_mut(*interval as usize) {
                *number = bits.iter().map(|word| word.count_ones()).sum();
            }
        }
        owners
    }
}

fn sorted(values: impl Iterator<Item = f32>) -> Vec<f32> {
    let mut values: Vec<f32> = values.collect();
    values.sort_unstable_by(f32::total_cmp);
    values
}

/// Of values in order; zeros where there are none. A quantile is the least value that so many are not above.
fn quantiles(sorted: &[f32]) -> Quantiles {
    let sum: f64 = sorted.iter().map(|&value| f64::from(value)).sum();
    let at = |percent: usize| {
        let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
        sorted.get(rank).copied().map_or(0.0, f64::from)
    };
    Quantiles {
        mean: ratio(sum, sorted.len() as f64),
        p50: at(50),
        p90: at(90),
        p99: at(99),
        max: at(100),
    }
}

/// Shares below bounds that grow by one factor, from the least value to the greatest.
fn curve(sorted: &[f32]) -> Vec<(f64, f64)> {
    let (Some(&least), Some(&greatest)) = (sorted.first(), sorted.last()) else {
        return Vec::new();
    };
    // Below a tenth of a millisecond nothing is worth showing.
    let (least, greatest) = (f64::from(least).max(1e-4), f64::from(greatest).max(1e-4));
    let point = |number: u32| {
        let share = f64::from(number) / f64::from(CURVE_POINTS - 1);
        let bound = if number + 1 == CURVE_POINTS {
            greatest
        } else {
            least * (greatest / least).powf(share)
        };
        let below = sorted.partition_point(|&value| f64::from(value) <= bound);
        (bound, ratio(below as f64, sorted.len() as f64))
    };
    (0..CURVE_POINTS).map(point).collect()
}

fn imbalance(computed: &[u64]) -> f64 {
    let greatest = computed.iter().max().copied().unwrap_or_default();
    let sum: u64 = computed.iter().sum();
    ratio(greatest as f64 * computed.len() as f64, sum as f64)
}

/// Zero of nothing.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}
