//! The second walk of a lookup: how far the columns beneath carry each source on.
//!
//! One walk over the keys for all sources, as in the first: a lower column enters at the
//! depth where its source's own run ended and falls out at the first block that it has not.
//! What the first walk says of the lower columns themselves is used too: one whose source
//! has nothing starts at block 0, where its run is known already.

use super::super::block::BlockKey;
use super::sets::NOBODY;
use super::{Level, Match, Rows, Walk};

/// A lower column that has still to enter, or is on its way.
#[derive(Clone, Copy, Debug)]
struct Runner {
    upper: u32,
    lower: u32,
    start: u32,
}

impl Rows {
    /// The first walk's runs with those beneath them; `held` may name lower columns too.
    pub(super) fn walk_beneath(&self, keys: &[BlockKey], held: &[(u32, u32)]) -> Vec<Match> {
        let mut runs = vec![0_u32; self.sources.len()];
        for &(slot, blocks) in held {
            if let Some(run) = runs.get_mut(slot as usize) {
                *run = blocks;
            }
        }
        let run = |slot: u32| runs.get(slot as usize).copied().unwrap_or(0);
        let mut matches = Vec::with_capacity(held.len());
        for &(slot, blocks) in held {
            let source = self.sources.get(slot as usize);
            // The others follow below, whether they hold anything themselves or not.
            if source.is_some_and(|source| source.level == Level::Upper(None)) {
                matches.extend(self.found(slot, blocks, 0));
            }
        }
        let mut runners = Vec::with_capacity(self.pairs.len());
        for &(upper, lower) in &self.pairs {
            let start = run(upper);
            if start == 0 {
                let beneath = run(lower);
                if beneath > 0 {
                    matches.extend(self.found(upper, 0, beneath));
                }
            } else {
                runners.push(Runner {
                    upper,
                    lower,
                    start,
                });
            }
        }
        self.run_on(keys, runners, &mut matches);
        matches
    }

    /// Walks on for those whose source has something.
    fn run_on(&self, keys: &[BlockKey], mut waiting: Vec<Runner>, matches: &mut Vec<Match>) {
        // Popped from the end: the first to enter comes last.
        waiting.sort_unstable_by_key(|runner| std::cmp::Reverse(runner.start));
        let mut entered: Vec<Runner> = Vec::with_capacity(waiting.len());
        let mut walk = Walk {
            alive: vec![0; self.sets.bits(NOBODY).len()],
            last: NOBODY,
            matches: Vec::with_capacity(waiting.len()),
        };
        let mut depth = 0_u32;
        let mut anybody = false;
        loop {
            if !anybody {
                let Some(next) = waiting.last() else { break };
                depth = next.start;
            }
            while let Some(runner) = waiting.pop_if(|runner| runner.start == depth) {
                walk.enter(runner.lower, depth);
                entered.push(runner);
                walk.last = NOBODY;
            }
            let key = keys.get(depth as usize);
            let set = key.map_or(NOBODY, |&key| self.set_of(key));
            if set == NOBODY || set != walk.last {
                anybody = walk.narrow(set, self.sets.bits(set), depth as usize);
            }
            depth = depth.saturating_add(1);
        }
        let mut ended = vec![0; self.sources.len()];
        for (lower, depth) in walk.matches {
            if let Some(end) = ended.get_mut(lower as usize) {
                *end = depth;
            }
        }
        for Runner {
            upper,
            lower,
            start,
        } in entered
        {
            let end = ended.get(lower as usize).copied().unwrap_or(start);
            matches.extend(self.found(upper, start, end.saturating_sub(start)));
        }
    }
}
