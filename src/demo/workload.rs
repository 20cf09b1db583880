//! Who asks what, and when? Customers with long system prompts of their own, one of them hot; the same for the same seed.

use std::time::Duration;

use fastrand::Rng;

use super::prose;

/// The customers; the first is the hot one.
const NAMES: [&str; 12] = [
    "Alder Bank",
    "Birch Airlines",
    "Cedar Health",
    "Dogwood Books",
    "Elm Insurance",
    "Fir Logistics",
    "Ginkgo Energy",
    "Hazel Foods",
    "Ivy Hotels",
    "Juniper Games",
    "Koa Motors",
    "Larch Telecom",
];
/// Part of the requests that come from the hot customer.
const HOT_SHARE: f64 = 0.35;
/// Rules of a handbook: 2,000 to 4,000 tokens at about 29 tokens a rule.
const RULES: std::ops::Range<usize> = 70..138;
/// Those of the hot customer, in the middle of it whatever the seed.
const HOT_RULES: usize = 104;

/// All that is asked in one phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Workload {
    /// Who asks; the first is the hot one.
    pub(super) customers: Vec<Customer>,
    /// What is asked, in order of time.
    pub(super) arrivals: Vec<Arrival>,
}

/// One who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Customer {
    /// The beginning of all its prompts.
    pub(super) system: String,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    /// After the start of the phase.
    pub(super) at: Duration,
    /// Place among the customers.
    pub(super) customer: usize,
    /// The end of its prompt.
    pub(super) question: String,
}

impl Workload {
    /// Requests at random times, `rate` a second, for `duration`.
    pub(super) fn generate(seed: u64, duration: Duration, rate: f64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let customers = NAMES
            .iter()
            .enumerate()
            .map(|(place, name)| {
                let rules = if place == 0 {
                    HOT_RULES
                } else {
                    rng.usize(RULES)
                };
                Customer {
                    system: prose::handbook(&mut rng, name, rules),
                }
            })
            .collect();
        let shares = shares();
        let mut arrivals = Vec::new();
        let mut at = 0.0;
        loop {
            // The gaps of independent arrivals; never the logarithm of zero.
            at += -(1.0 - rng.f64()).ln() / rate;
            match Duration::try_from_secs_f64(at) {
                Ok(at) if at < duration => arrivals.push(Arrival {
                    at,
                    customer: draw(&shares, rng.f64()),
                    question: prose::question(&mut rng, arrivals.len() + 1),
                }),
                _ => break,
            }
        }
        Self {
            customers,
            arrivals,
        }
    }

    /// Requests of the hot customer.
    pub(super) fn of_hot_customer(&self) -> usize {
        let hot = |arrival: &&Arrival| arrival.customer == 0;
        self.arrivals.iter().filter(hot).count()
    }

    /// The system prompt of a customer.
    pub(super) fn system(&self, customer: usize) -> &str {
        self.customers
            .get(customer)
            .map_or("", |customer| &customer.system)
    }
}

/// Each customer's part of the requests: the hot one's, then a long tail (as one over the root of the place).
fn shares() -> Vec<f64> {
    let weights: Vec<f64> = (1..NAMES.len())
        .map(|place| 1.0 / (place as f64).sqrt())
        .collect();
    let total: f64 = weights.iter().sum();
    let rest = weights
        .iter()
        .map(|weight| (1.0 - HOT_SHARE) * weight / total);
    std::iter::once(HOT_SHARE).chain(rest).collect()
}

/// The place in which `drawn` (0 to 1) falls.
fn draw(shares: &[f64], drawn: f64) -> usize {
    let mut below = 0.0;
    let past = shares.iter().take_while(|share| {
        below += **share;
        below <= drawn
    });
    // The shares add up to one only as floats do.
    past.count().min(shares.len().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(seed: u64) -> Workload {
        Workload::generate(seed, Duration::from_secs(100), 20.0)
    }

    #[test]
    fn the_seed_alone_decides() {
        assert_eq!(workload(1), workload(1));
        assert_ne!(workload(1), workload(2));
    }

    #[test]
    fn about_as_many_requests_come_as_asked_and_a_third_of_them_from_the_hot_customer() {
        let workload = workload(3);
        let count = workload.arrivals.len();
        assert!((1_800..2_200).contains(&count), "{count}");
        let hot = workload.of_hot_customer() as f64 / count as f64;
        assert!((0.31..0.39).contains(&hot), "{hot}");
        assert!(workload.arrivals.is_sorted_by_key(|arrival| arrival.at));
        let asking = |customer| workload.arrivals.iter().any(|a| a.customer == customer);
        assert!((0..NAMES.len()).all(asking));
    }

    #[test]
    fn handbooks_differ_from_the_first_words_and_no_question_comes_twice() {
        let workload = workload(4);
        let mut starts: Vec<&str> = workload
            .customers
            .iter()
            .map(|c| c.system.get(..8).unwrap())
            .collect();
        starts.sort_unstable();
        starts.dedup();
        assert_eq!(starts.len(), NAMES.len());
        let mut questions: Vec<&str> = workload.arrivals.iter().map(|a| &*a.question).collect();
        questions.sort_unstable();
        questions.dedup();
        assert_eq!(questions.len(), workload.arrivals.len());
    }

    #[test]
    fn a_draw_falls_in_its_share() {
        let shares = [0.5, 0.25, 0.25];
        assert_eq!(
            [0.0, 0.49, 0.5, 0.74, 0.75, 1.0].map(|drawn| draw(&shares, drawn)),
            [0, 0, 1, 1, 2, 2]
        );
    }
}
