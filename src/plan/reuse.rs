//! How much is asked in between until a token is asked for again? From that: what pools of any size keep of a recording.
//!
//! The *reuse distance* of a token is the number of distinct tokens that were used since it was used last. A cache that
//! forgets what was used least recently has it still if that is less than the cache holds, so that one pass over a
//! recording tells what caches of all sizes find.
//!
//! A prompt and its answer are a way from the root of a tree, and of two uses of a beginning the later one takes all of
//! it over. So what a request was the last to use is always the lower end of its way. It is enough to know how long
//! that end is, request by request (a Fenwick tree over them), and which request used each place last. Ends are
//! forgotten last token first, as engines do it. A pass takes O(log n) for each change of last user on a way, of which
//! there are few; 60 bytes a request, nothing a token.

use super::measure::tree::{Node, ROOT, downwards};
use super::sums::whole;
use crate::routing::block::BlockSize;

/// A recording, as far as reuse depends on it: who asked what, in order of time.
#[derive(Clone, Debug, Default)]
pub struct Reuse {
    places: Vec<Place>,
    asked: Vec<Asked>,
    prompt_tokens: u64,
    /// Where all requests meet in one cache.
    together: Vec<Piece>,
}

/// A piece of text that is used as a whole or not at all.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    parent: u32,
    /// Tokens before its end, its own included.
    depth: u64,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// Where its answer ends.
    pub(super) end: u32,
    /// Tokens of its prompt.
    pub(super) prompt: u64,
}

/// Neighbouring tokens that are found again: their distances are `distance` + 1, + 2, … + `tokens`.
#[derive(Clone, Copy, Debug)]
struct Piece {
    distance: u64,
    tokens: u64,
}

impl Piece {
    /// Those of its tokens that a cache of this size has.
    fn found(self, capacity: u64) -> u64 {
        capacity.saturating_sub(self.distance).min(self.tokens)
    }
}

/// No request has used it.
const NEVER: u32 = u32::MAX;

/// Where requests go at random is drawn with it, so that two runs agree.
const SEED: u64 = 0;

impl Reuse {
    /// Of the places in a tree only those matter where ways end or part.
    pub(super) fn new(nodes: &[Node], mut asked: Vec<Asked>) -> Self {
        let mut matters = vec![false; nodes.len()];
        let mut children = vec![0_u32; nodes.len()];
        for node in nodes.iter().skip(1) {
            if let Some(count) = children.get_mut(node.parent as usize) {
                *count += 1;
            }
        }
        for request in &asked {
            if let Some(matters) = matters.get_mut(request.end as usize) {
                *matters = true;
            }
        }
        // For each place of the tree: the last one above it, or itself, that matters.
        let mut kept = vec![ROOT; nodes.len()];
        let mut places = vec![Place::default()];
        for at in downwards(nodes) {
            let at = at as usize;
            let Some(node) = nodes.get(at) else { continue };
            let mut place = kept.get(node.parent as usize).copied().unwrap_or(ROOT);
            let parts = children.get(at).is_some_and(|count| *count > 1);
            if parts || matters.get(at).copied().unwrap_or(false) {
                let number = u32::try_from(places.len()).unwrap_or(NEVER);
                let (parent, depth) = (place, node.depth);
                places.push(Place { parent, depth });
                place = number;
            }
            if let Some(kept) = kept.get_mut(at) {
                *kept = place;
            }
        }
        for request in &mut asked {
            request.end = kept.get(request.end as usize).copied().unwrap_or(ROOT);
        }
        let mut reuse = Self {
            places,
            prompt_tokens: asked.iter().map(|asked| asked.prompt).sum(),
            asked,
            together: Vec::new(),
        };
        let mut together = Vec::new();
        reuse.play(1, &mut |piece| together.push(piece));
        reuse.together = together;
        reuse
    }

    /// Share of all prompt tokens that one cache of `capacity` tokens finds when all requests come to it.
    pub fn together(&self, capacity: f64) -> f64 {
        let capacity = whole(capacity);
        let found = self.together.iter().map(|piece| piece.found(capacity));
        self.share(found.sum())
    }

    /// Share of all prompt tokens that are found where each request goes to one of `replicas` caches at random, each of
    /// `capacity` tokens. It is that of one draw; which draw matters less, the more requests there are.
    pub fn by_chance(&self, replicas: u64, capacity: f64) -> f64 {
        let capacity = whole(capacity);
        let mut found = 0;
        self.play(replicas, &mut |piece| found += piece.found(capacity));
        self.share(found)
    }

    /// Share of all prompt tokens that were there before, however long ago.
    pub fn ever(&self) -> f64 {
        self.share(self.together.iter().map(|piece| piece.tokens).sum())
    }

    /// The size of a cache that finds this share of what was ever there before.
    pub fn capacity_for(&self, share: f64) -> f64 {
        let wanted = share.clamp(0.0, 1.0) * self.ever();
        let ends = |piece: &Piece| piece.distance + piece.tokens;
        let (mut low, mut high) = (0, self.together.iter().map(ends).max().unwrap_or(0));
        while low < high {
            let middle = low + (high - low) / 2;
            if self.together(middle as f64) < wanted {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        high as f64
    }

    fn share(&self, tokens: u64) -> f64 {
        if self.prompt_tokens == 0 {
            0.0
        } else {
            tokens as f64 / self.prompt_tokens as f64
        }
    }

    /// Lets every request come to its replica, and tells what it finds there.
    fn play(&self, replicas: u64, found: &mut dyn FnMut(Piece)) {
        let mut stack = Stack::new(self.places.len(), self.asked.len());
        let mut before = None;
        // One replica after the other: what one has does not depend on the others.
        for (replica, request) in self.by_replica(replicas) {
            if before != Some(replica) {
                stack.begin_empty();
                before = Some(replica);
            }
            if let Some(asked) = self.asked.get(request as usize) {
                stack.ask(&self.places, *asked, found);
            }
        }
    }

    /// Replica and number of each request, those of a replica together and in order of time.
    fn by_replica(&self, replicas: u64) -> Vec<(u64, u32)> {
        let mut random = fastrand::Rng::with_seed(SEED);
        let requests = (0_u32..).zip(&self.asked);
        let mut list: Vec<(u64, u32)> = requests
            .map(|(request, _)| (random.u64(0..replicas.max(1)), request))
            .collect();
        list.sort_unstable();
        list
    }
}

/// The part of a way whose last user was one and the same request.
#[derive(Clone, Copy)]
struct Run {
    last: u32,
    from: u64,
    to: u64,
}

/// Who used what last. Requests are numbered as they come to it.
struct Stack {
    /// For each place, its last user.
    last: Vec<u32>,
    /// For each request, the tokens that nobody used after it.
    kept: Fenwick,
    /// All of these.
    sum: u64,
    now: u32,
    /// Requests before this one came to another cache.
    began: u32,
    runs: Vec<Run>,
}

impl Stack {
    fn new(places: usize, requests: usize) -> Self {
        Self {
            last: vec![NEVER; places],
            kept: Fenwick::new(requests),
            sum: 0,
            now: 0,
            began: 0,
            runs: Vec::new(),
        }
    }

    /// From here on it is a cache that nobody has asked yet.
    const fn begin_empty(&mut self) {
        self.began = self.now;
    }

    fn ask(&mut self, places: &[Place], asked: Asked, found: &mut dyn FnMut(Piece)) {
        self.take_over(places, asked.end);
        // The engine finds whole blocks, and computes the last token in any case.
        let block = u64::from(BlockSize::DEFAULT.get());
        let held = self.runs.first().map_or(0, |run| run.to);
        let held = held.min(asked.prompt.saturating_sub(1)) / block * block;
        for run in &self.runs {
            let tokens = run.to.min(held).saturating_sub(run.from);
            if tokens > 0 {
                let distance = self.sum - self.kept.up_to(run.last);
                found(Piece { distance, tokens });
            }
        }
        for run in &self.runs {
            self.kept
                .change(run.last, |tokens| tokens.wrapping_sub(run.to - run.from));
            self.sum -= run.to - run.from;
        }
        let length = places.get(asked.end as usize).map_or(0, |end| end.depth);
        self.kept
            .change(self.now, |tokens| tokens.wrapping_add(length));
        self.sum += length;
        self.now += 1;
    }

    /// Makes the request that comes the last user of its way, and notes who was it before, from its end on.
    fn take_over(&mut self, places: &[Place], end: u32) {
        self.runs.clear();
        let mut at = end;
        while at != ROOT
            && let Some(place) = places.get(at as usize)
            && let Some(last) = self.last.get_mut(at as usize)
        {
            let last = std::mem::replace(last, self.now);
            let from = places
                .get(place.parent as usize)
                .map_or(0, |above| above.depth);
            if last != NEVER && last >= self.began {
                match self.runs.last_mut() {
                    Some(run) if run.last == last => run.from = from,
                    _ => self.runs.push(Run {
                        last,
                        from,
                        to: place.depth,
                    }),
                }
            }
            at = place.parent;
        }
    }
}

/// Numbers of which any beginning can be added up in O(log n).
struct Fenwick(Vec<u64>);

impl Fenwick {
    fn new(len: usize) -> Self {
        Self(vec![0; len + 1])
    }

    /// Changes the sums that number `at` is in.
    fn change(&mut self, at: u32, change: impl Fn(u64) -> u64) {
        let mut at = at as usize + 1;
        while let Some(sum) = self.0.get_mut(at) {
            *sum = change(*sum);
            at += at & at.wrapping_neg();
        }
    }

    /// The sum of all numbers up to number `at`, that one included.
    fn up_to(&self, at: u32) -> u64 {
        let (mut at, mut sum) = (at as usize + 1, 0);
        while at > 0 {
            sum += self.0.get(at).copied().unwrap_or(0);
            at &= at - 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests;
