//! What does a workload share? Its inputs for the sums, counted instead of assumed.
//!
//! Prompts go into a tree of segments. A prompt's shared part is what the tree already had when it came, answers
//! included, in whole blocks; that is what a cache which forgets nothing would save. About 100 bytes a segment. What
//! caches save that do forget follows from the same tree ([`super::reuse`]).

pub(super) mod tree;

use std::cmp::Reverse;

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::routing::block::BlockSize;
use crate::simulate::workload::{Arrival, Workload};

use super::given::Given;
use super::inputs::Inputs;
use super::reuse::{Asked, Reuse};
use super::sums::whole;
use tree::{Node, ROOT, Tree, downwards};

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Measured {
    /// Requests.
    pub requests: u64,
    /// Requests a second; none when all came at once.
    pub rate: Option<f64>,
    /// Mean length of a prompt.
    pub prompt_tokens: f64,
    /// Mean length of an answer.
    pub output_tokens: f64,
    /// Distinct prefixes that at least two requests have; of those that contain one another, the longest.
    pub distinct_prefixes: u64,
    /// Their mean length, tokens.
    pub prefix_tokens: f64,
    /// All shared prefixes together, each token once.
    pub set_tokens: f64,
    /// Zipf exponent that fits best how often each of them is asked for.
    pub skew: f64,
    /// Share of the requests that have the most asked for; none where nothing is shared.
    pub hot_share: Option<f64>,
    /// Share of requests of which an earlier one had at least a block.
    pub warm_share: f64,
    /// Tokens of these that an earlier one had, on average.
    pub shared_tokens: f64,
    /// Share of all prompt tokens that an earlier request had.
    pub shared_share: f64,
}

/// A recording, counted.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// What it has.
    pub measured: Measured,
    /// What caches keep of it.
    pub reuse: Reuse,
}

impl Recorded {
    /// What caches keep, if it is still this load that is asked about. Whoever gives other prefixes or lengths by hand asks
    /// about one that nobody has recorded; the rate changes nothing, since distances are counted in tokens.
    pub(super) fn reuse_for(&self, inputs: &Inputs) -> Option<&Reuse> {
        let counted = self.measured.given();
        let same = counted.prompt_tokens == Some(inputs.prompt_tokens)
            && counted.shared_tokens == Some(inputs.shared_tokens)
            && counted.output_tokens == Some(inputs.output_tokens)
            && counted.prefixes == Some(inputs.prefixes)
            && counted.skew == Some(inputs.skew)
            && inputs.copies() == 1;
        same.then_some(&self.reuse)
    }
}

/// Counts a workload to its end, in its order of time.
pub fn measure(workload: &mut dyn Workload) -> Recorded {
    let mut seen = Seen::default();
    while let Some(arrival) = workload.next() {
        seen.add(&arrival);
    }
    seen.recorded()
}

impl Measured {
    /// As inputs. The set is told as so many prefixes of the mean shared length as have its tokens.
    pub(super) fn given(&self) -> Given {
        if self.requests == 0 {
            return Given::default();
        }
        let (shared_tokens, warm_share) = self.found();
        let prefixes = if shared_tokens > 0.0 {
            whole((self.set_tokens / shared_tokens).round()).max(1)
        } else {
            1
        };
        Given {
            rate: self.rate,
            prompt_tokens: Some(self.prompt_tokens),
            output_tokens: Some(self.output_tokens),
            shared_tokens: Some(shared_tokens),
            prefixes: Some(prefixes),
            skew: Some(self.skew),
            warm_share: Some(warm_share),
            hot_share: self.hot_share,
            ..Given::default()
        }
    }

    /// Tokens that a warm request finds, and the share of those. The sums know prompts of one length only; where just
    /// the long ones are warm and find more than the mean prompt has, all requests find a little instead. What is
    /// saved in all is the same.
    fn found(&self) -> (f64, f64) {
        if self.shared_tokens < self.prompt_tokens {
            (self.shared_tokens, self.warm_share)
        } else {
            (self.shared_share * self.prompt_tokens, 1.0)
        }
    }
}

#[derive(Default)]
struct Seen {
    tree: Tree,
    /// Where each prompt ends.
    ends: Vec<u32>,
    asked: Vec<Asked>,
    totals: Totals,
}

/// What is added up request by request.
#[derive(Default)]
struct Totals {
    requests: u64,
    first_s: f64,
    last_s: f64,
    prompt_tokens: u64,
    output_tokens: u64,
    hit_tokens: u64,
    hits: u64,
}

impl Seen {
    fn add(&mut self, arrival: &Arrival) {
        let (prompt_end, held) = self.tree.add(ROOT, arrival.prompt.segments());
        let (end, _) = self.tree.add(prompt_end, &[arrival.answer_segment()]);
        self.ends.push(prompt_end);
        let prompt = u64::from(arrival.prompt.tokens());
        self.asked.push(Asked { end, prompt });
        self.totals.add(arrival, held);
    }

    fn recorded(self) -> Recorded {
        let nodes = self.tree.into_nodes();
        let totals = self.totals;
        Recorded {
            measured: totals.measured(&Shared::of(&nodes, &self.ends)),
            reuse: Reuse::new(&nodes, self.asked),
        }
    }
}

impl Totals {
    fn add(&mut self, arrival: &Arrival, held: u64) {
        let at_s = arrival.at.as_secs_f64();
        if self.requests == 0 {
            self.first_s = at_s;
        }
        self.requests += 1;
        self.last_s = at_s.max(self.last_s);
        let prompt = u64::from(arrival.prompt.tokens());
        self.prompt_tokens += prompt;
        self.output_tokens += u64::from(arrival.output);
        // The engine caches whole blocks, and computes the last token in any case.
        let block = u64::from(BlockSize::DEFAULT.get());
        let held = held.min(prompt.saturating_sub(1)) / block * block;
        self.hit_tokens += held;
        self.hits += u64::from(held > 0);
    }

    fn measured(&self, shared: &Shared) -> Measured {
        let requests = self.requests;
        if requests == 0 {
            return Measured::default();
        }
        let n = requests as f64;
        let span_s = self.last_s - self.first_s;
        let mean = |sum: u64, of: u64| if of == 0 { 0.0 } else { sum as f64 / of as f64 };
        Measured {
            requests,
            rate: (span_s > 0.0).then(|| (n - 1.0) / span_s),
            prompt_tokens: mean(self.prompt_tokens, requests),
            output_tokens: mean(self.output_tokens, requests),
            distinct_prefixes: shared.asked.len() as u64,
            prefix_tokens: mean(shared.prefix_tokens, shared.asked.len() as u64),
            set_tokens: shared.set_tokens as f64,
            skew: exponent(&shared.asked),
            hot_share: shared.asked.first().map(|hot| *hot as f64 / n),
            warm_share: mean(self.hits, requests),
            shared_tokens: mean(self.hit_tokens, self.hits),
            shared_share: mean(self.hit_tokens, self.prompt_tokens),
        }
    }
}

/// The part of the tree that at least two requests have.
struct Shared {
    /// Requests of each distinct prefix, most asked for first.
    asked: Vec<u64>,
    /// Lengths of these prefixes, added up.
    prefix_tokens: u64,
    /// Tokens of the whole part.
    set_tokens: u64,
}

impl Shared {
    /// A node of the part without a child in it ends a distinct prefix. A request counts for the first such beneath the
    /// deepest place it shares. One pass down and one up are enough.
    fn of(nodes: &[Node], ends: &[u32]) -> Self {
        let order = downwards(nodes);
        let node = |at: u32| get(nodes, at);
        let is_shared = |at: u32| node(at).requests >= 2;
        let mut deepest = vec![ROOT; nodes.len()];
        let mut ends_at: Vec<Option<u32>> = vec![None; nodes.len()];
        let mut set_tokens = 0;
        for &at in &order {
            let parent = node(at).parent;
            let mut from = get(&deepest, parent);
            if is_shared(at) {
                set_tokens += node(at).depth - node(parent).depth;
                from = at;
            }
            set(&mut deepest, at, from);
        }
        for &at in order.iter().rev().filter(|at| is_shared(**at)) {
            // Children were here before: what they left is the first of them, as they come in falling order.
            let end = get(&ends_at, at).unwrap_or(at);
            set(&mut ends_at, at, Some(end));
            set(&mut ends_at, node(at).parent, Some(end));
        }
        let block = u64::from(BlockSize::DEFAULT.get());
        let mut counts: FxHashMap<u32, u64> = FxHashMap::default();
        for end in ends {
            let place = get(&deepest, *end);
            if node(place).depth >= block
                && let Some(prefix) = get(&ends_at, place)
            {
                *counts.entry(prefix).or_default() += 1;
            }
        }
        let prefix_tokens = counts.keys().map(|prefix| node(*prefix).depth).sum();
        let mut asked: Vec<u64> = counts.into_values().collect();
        asked.sort_unstable_by_key(|count| Reverse(*count));
        Self {
            asked,
            prefix_tokens,
            set_tokens,
        }
    }
}

fn get<T: Copy + Default>(list: &[T], at: u32) -> T {
    list.get(at as usize).copied().unwrap_or_default()
}

fn set<T>(list: &mut [T], at: u32, value: T) {
    if let Some(place) = list.get_mut(at as usize) {
        *place = value;
    }
}

/// The Zipf exponent under which these counts, in falling order, are likeliest; between 0 and 5.
///
/// The likelihood is greatest where the mean of ln(rank) under the law is that of the counts, and the former falls with
/// the exponent. Counts of few requests are unequal by chance alone, so that even a uniform load shows a little skew.
fn exponent(counts: &[u64]) -> f64 {
    let logs: Vec<f64> = (1..=counts.len()).map(|rank| (rank as f64).ln()).collect();
    let total: f64 = counts.iter().map(|count| *count as f64).sum();
    if counts.len() < 2 || total <= 0.0 {
        return 0.0;
    }
    let weighted: f64 = counts
        .iter()
        .zip(&logs)
        .map(|(n, log)| *n as f64 * log)
        .sum();
    let seen = weighted / total;
    let (mut low, mut high) = (0.0, 5.0);
    for _ in 0..40 {
        let s = f64::midpoint(low, high);
        let (mut weights, mut mean) = (0.0, 0.0);
        for log in &logs {
            let weight = (-s * log).exp();
            weights += weight;
            mean += weight * log;
        }
        if mean / weights > seen {
            low = s;
        } else {
            high = s;
        }
    }
    // An exponent that cannot be told from none is none.
    let s = f64::midpoint(low, high);
    if s < 1e-6 { 0.0 } else { s }
}

#[cfg(test)]
pub(super) mod tests;
