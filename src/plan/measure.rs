//! What does a workload share? Its inputs for the sums, counted instead of assumed.
//!
//! Prompts go into a tree of segments. A prompt's shared part is what the tree already had when it came, answers
//! included, in whole blocks; that is what a cache which forgets nothing would save. About 100 bytes a segment.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::routing::block::BlockSize;
use crate::simulate::prompt::Segment;
use crate::simulate::workload::{Arrival, Workload};

use super::given::Given;
use super::sums::whole;

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
    /// Share of the requests that have the most asked for.
    pub hot_share: f64,
    /// Share of requests of which an earlier one had at least a block.
    pub warm_share: f64,
    /// Tokens of these that an earlier one had, on average.
    pub shared_tokens: f64,
    /// Share of all prompt tokens that an earlier request had.
    pub shared_share: f64,
}

/// Counts a workload to its end, in its order of time.
pub fn measure(workload: &mut dyn Workload) -> Measured {
    let mut seen = Seen::default();
    while let Some(arrival) = workload.next() {
        seen.add(&arrival);
    }
    seen.measured()
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
            hot_share: Some(self.hot_share),
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

/// A place in the tree: all that stands before a segment, and the segment.
#[derive(Clone, Copy)]
struct Node {
    parent: u32,
    tokens: u32,
    /// Requests whose prompts or answers pass through.
    requests: u64,
}

const ROOT: u32 = 0;

struct Seen {
    nodes: Vec<Node>,
    children: FxHashMap<(u32, Segment), u32>,
    /// The longest segment of each name beneath each node, for prompts that end within it.
    longest: FxHashMap<(u32, u64), u32>,
    /// Where each prompt ends.
    ends: Vec<u32>,
    first_s: f64,
    last_s: f64,
    prompt_tokens: u64,
    output_tokens: u64,
    hit_tokens: u64,
    hits: u64,
}

impl Default for Seen {
    fn default() -> Self {
        let root = Node {
            parent: ROOT,
            tokens: 0,
            requests: 0,
        };
        Self {
            nodes: vec![root],
            children: FxHashMap::default(),
            longest: FxHashMap::default(),
            ends: Vec::new(),
            first_s: 0.0,
            last_s: 0.0,
            prompt_tokens: 0,
            output_tokens: 0,
            hit_tokens: 0,
            hits: 0,
        }
    }
}

impl Seen {
    fn add(&mut self, arrival: &Arrival) {
        let at_s = arrival.at.as_secs_f64();
        if self.ends.is_empty() {
            self.first_s = at_s;
        }
        self.last_s = at_s.max(self.last_s);
        let prompt = u64::from(arrival.prompt.tokens());
        self.prompt_tokens += prompt;
        self.output_tokens += u64::from(arrival.output);

        let (mut at, mut known, mut held) = (ROOT, true, 0_u64);
        for segment in arrival.prompt.segments() {
            if known {
                held += u64::from(self.held(at, *segment));
            }
            known &= self.children.contains_key(&(at, *segment));
            at = self.step(at, *segment);
        }
        self.ends.push(at);
        self.step(at, arrival.answer_segment());

        // The engine caches whole blocks, and computes the last token in any case.
        let block = u64::from(BlockSize::DEFAULT.get());
        let held = held.min(prompt.saturating_sub(1)) / block * block;
        self.hit_tokens += held;
        self.hits += u64::from(held > 0);
    }

    /// Tokens of a segment that were seen after this place.
    fn held(&self, at: u32, segment: Segment) -> u32 {
        let longest = self.longest.get(&(at, segment.id));
        longest.map_or(0, |tokens| segment.tokens.min(*tokens))
    }

    /// The place after a segment, new if need be, with one more request.
    fn step(&mut self, at: u32, segment: Segment) -> u32 {
        let next = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        let node = *self.children.entry((at, segment)).or_insert(next);
        if node == next {
            self.nodes.push(Node {
                parent: at,
                tokens: segment.tokens,
                requests: 0,
            });
            let longest = self.longest.entry((at, segment.id)).or_default();
            *longest = segment.tokens.max(*longest);
        }
        if let Some(node) = self.nodes.get_mut(node as usize) {
            node.requests += 1;
        }
        node
    }

    fn measured(&self) -> Measured {
        let requests = self.ends.len() as u64;
        if requests == 0 {
            return Measured::default();
        }
        let n = requests as f64;
        let span_s = self.last_s - self.first_s;
        let shared = Shared::of(self);
        let hot = shared.asked.first().copied().unwrap_or(0);
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
            hot_share: hot.max(1) as f64 / n,
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
    /// deepest place it shares. Parents have lower numbers than their children, so that one pass in either direction
    /// is enough.
    fn of(seen: &Seen) -> Self {
        let is_shared = |node: &Node| node.requests >= 2;
        let mut depth = vec![0_u64; seen.nodes.len()];
        let mut deepest = vec![ROOT; seen.nodes.len()];
        let mut ends_at: Vec<Option<u32>> = vec![None; seen.nodes.len()];
        let mut set_tokens = 0;
        for (at, node) in (0_u32..).zip(&seen.nodes).skip(1) {
            let shared = is_shared(node);
            set_tokens += if shared { u64::from(node.tokens) } else { 0 };
            let above = get(&depth, node.parent) + u64::from(node.tokens);
            let from = if shared {
                at
            } else {
                get(&deepest, node.parent)
            };
            set(&mut depth, at, above);
            set(&mut deepest, at, from);
        }
        for at in (1..u32::try_from(seen.nodes.len()).unwrap_or(u32::MAX)).rev() {
            if let Some(node) = seen.nodes.get(at as usize)
                && is_shared(node)
            {
                // Children were here before: what they left is the first of them, as they come in falling order.
                let end = get(&ends_at, at).unwrap_or(at);
                set(&mut ends_at, at, Some(end));
                set(&mut ends_at, node.parent, Some(end));
            }
        }
        let block = u64::from(BlockSize::DEFAULT.get());
        let mut counts: FxHashMap<u32, u64> = FxHashMap::default();
        for end in &seen.ends {
            let place = get(&deepest, *end);
            if get(&depth, place) >= block
                && let Some(prefix) = get(&ends_at, place)
            {
                *counts.entry(prefix).or_default() += 1;
            }
        }
        let prefix_tokens = counts.keys().map(|prefix| get(&depth, *prefix)).sum();
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
mod tests;
