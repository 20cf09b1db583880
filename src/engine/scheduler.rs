//! Who computes how many tokens in the next step, in which blocks: vLLM's scheduler.
//!
//! One token budget a step. Running requests first (a decode is one token, an unfinished prefill takes
//! what is left), then waiting ones in order of arrival, each cut to the rest of the budget. Blocks are
//! registered and announced here, before they are computed: the second of two equal prompts in one step already hits.

use std::collections::VecDeque;
use std::time::Instant;

use super::block_cache::BlockCache;
use super::model::{RequestId, Settings, Totals};
use super::sequence::Sequence;
use crate::routing::event::{BlockExtra, KvEvent, Medium, Removed, Stored};

/// Tokens of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StepTokens {
    pub(super) prefill: usize,
    pub(super) decode: usize,
}

/// Running and waiting requests, and the pool they share.
pub(super) struct Scheduler {
    pub(super) running: Vec<Sequence>,
    pub(super) waiting: VecDeque<Sequence>,
    pub(super) cache: BlockCache,
    /// Events since the last step was published.
    pub(super) events: Vec<KvEvent>,
}

impl Scheduler {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            running: Vec::new(),
            waiting: VecDeque::new(),
            cache: BlockCache::new(settings.blocks),
            events: Vec::new(),
        }
    }

    /// Schedules one step. `None` if there is nothing to compute.
    pub(super) fn schedule(
        &mut self,
        settings: &Settings,
        totals: &mut Totals,
        now: Instant,
    ) -> Option<StepTokens> {
        let mut step = StepTokens::default();
        let mut budget = settings.max_num_batched_tokens;
        let preempted = self.schedule_running(settings, totals, &mut budget, &mut step);
        // vLLM admits nobody in a step that had to take somebody's blocks away.
        if !preempted {
            while budget > 0
                && self.running.len() < settings.max_num_seqs
                && self.admit_next(settings, totals, &mut budget, &mut step, now)
            {}
        }
        (step != StepTokens::default()).then_some(step)
    }

    /// True if somebody was preempted.
    fn schedule_running(
        &mut self,
        settings: &Settings,
        totals: &mut Totals,
        budget: &mut usize,
        step: &mut StepTokens,
    ) -> bool {
        let mut preempted = false;
        let mut index = 0;
        while *budget > 0 {
            let Some(sequence) = self.running.get_mut(index) else {
                break;
            };
            let tokens = sequence.uncomputed().min(*budget);
            if compute(
                &mut self.cache,
                &mut self.events,
                settings,
                sequence,
                tokens,
            ) {
                *budget -= tokens;
                step.count(sequence, tokens);
                index += 1;
            } else if let Some(newest) = self.running.pop() {
                preempted = true;
                totals.preemptions += 1;
                self.preempt(newest);
            }
        }
        preempted
    }

    /// Its blocks are free but stay matchable, and nothing is announced.
    fn preempt(&mut self, mut sequence: Sequence) {
        let blocks = sequence.restart();
        self.cache.release(&blocks);
        self.waiting.push_front(sequence);
    }

    /// True if the first of the waiting requests now runs.
    fn admit_next(
        &mut self,
        settings: &Settings,
        totals: &mut Totals,
        budget: &mut usize,
        step: &mut StepTokens,
        now: Instant,
    ) -> bool {
        let block_size = settings.block_size.get() as usize;
        let Some(sequence) = self.waiting.front_mut() else {
            return false;
        };
        // The last token is always computed: a prompt that is cached whole recomputes its last block.
        let hittable = (sequence.tokens.len() - 1) / block_size;
        let hits = if sequence.request.reads_cache {
            let hashes = sequence.hashes.get(..hittable).unwrap_or_default();
            self.cache.longest_prefix(hashes)
        } else {
            Vec::new()
        };
        // Admitted only if the whole of it fits; hit blocks that nobody holds come off the free list too.
        let unheld = hits.iter().filter(|&&id| self.cache.is_free(id)).count();
        let missing = sequence.tokens.len().div_ceil(block_size) - hits.len();
        if missing + unheld > self.cache.free() {
            return false;
        }
        let Some(mut sequence) = self.waiting.pop_front() else {
            return false;
        };
        for &id in &hits {
            self.cache.hold(id);
        }
        sequence.registered = hits.len();
        sequence.computed = hits.len() * block_size;
        sequence.blocks = hits;
        if sequence.cached.is_none() {
            sequence.cached = Some(sequence.computed);
            sequence.first_scheduled = Some(now);
            totals.prefix_queries += sequence.prompt_len as u64;
            totals.prefix_hits += sequence.computed as u64;
        }
        let tokens = sequence.uncomputed().min(*budget);
        let fits = compute(
            &mut self.cache,
            &mut self.events,
            settings,
            &mut sequence,
            tokens,
        );
        debug_assert!(fits, "the room was counted just above");
        *budget -= tokens;
        step.count(&sequence, tokens);
        self.running.push(sequence);
        true
    }

    /// Forgets all requests; they let go of their blocks.
    pub(super) fn give_up(&mut self) -> Vec<RequestId> {
        let running = std::mem::take(&mut self.running);
        for sequence in &running {
            self.cache.release(&sequence.blocks);
        }
        let waiting = std::mem::take(&mut self.waiting);
        let all = running.into_iter().chain(waiting);
        all.map(|sequence| sequence.id).collect()
    }

    /// Forgets a request wherever it is. False if it is not here.
    pub(super) fn remove(&mut self, id: RequestId) -> bool {
        if let Some(at) = self.waiting.iter().position(|sequence| sequence.id == id) {
            self.waiting.remove(at);
            return true;
        }
        let Some(at) = self.running.iter().position(|sequence| sequence.id == id) else {
            return false;
        };
        let sequence = self.running.remove(at);
        self.cache.release(&sequence.blocks);
        true
    }
}

impl StepTokens {
    /// Counts what `compute` has just scheduled.
    fn count(&mut self, sequence: &Sequence, tokens: usize) {
        // The newest token was generated and nothing else was missing before this step.
        if sequence.generated() > 0 && tokens == 1 && sequence.uncomputed() == 0 {
            self.decode += 1;
        } else {
            self.prefill += tokens;
        }
    }
}

/// Gives a request the blocks for its next `tokens`, and registers those that become full.
/// False, and nothing changed, if the pool has not enough free blocks.
fn compute(
    cache: &mut BlockCache,
    events: &mut Vec<KvEvent>,
    settings: &Settings,
    sequence: &mut Sequence,
    tokens: usize,
) -> bool {
    let block_size = settings.block_size.get() as usize;
    let end = sequence.computed + tokens;
    let missing = end
        .div_ceil(block_size)
        .saturating_sub(sequence.blocks.len());
    if missing > cache.free() {
        return false;
    }
    for _ in 0..missing {
        let Some((id, evicted)) = cache.take() else {
            break;
        };
        sequence.blocks.push(id);
        events.extend(evicted.map(|hash| {
            KvEvent::Removed(Removed {
                hashes: vec![hash],
                medium: Medium::Gpu,
                group: Some(0),
            })
        }));
    }
    sequence.computed = end;
    sequence.scheduled = tokens;
    register_full_blocks(cache, events, settings, sequence);
    true
}

fn register_full_blocks(
    cache: &mut BlockCache,
    events: &mut Vec<KvEvent>,
    settings: &Settings,
    sequence: &mut Sequence,
) {
    let block_size = settings.block_size.get() as usize;
    let (from, to) = (sequence.registered, sequence.computed / block_size);
    let hashes = sequence.hashes.get(from..to).unwrap_or_default();
    if hashes.is_empty() {
        return;
    }
    let blocks = sequence.blocks.get(from..to).unwrap_or_default();
    let keys = sequence.keys.get(from..to).unwrap_or_default();
    for ((&id, &hash), &key) in blocks.iter().zip(hashes).zip(keys) {
        cache.register(id, hash, key);
    }
    let scope = &sequence.request.scope;
    let extras = match (from, &scope.salt) {
        (0, Some(salt)) => {
            let mut extras = vec![BlockExtra::default(); to];
            if let Some(first) = extras.first_mut() {
                first.salt = Some(salt.to_string());
            }
            extras
        }
        _ => Vec::new(),
    };
    events.push(KvEvent::Stored(Stored {
        hashes: hashes.to_vec(),
        parent: from
            .checked_sub(1)
            .and_then(|at| sequence.hashes.get(at).copied()),
        tokens: sequence.block_tokens(from, to, block_size),
        opaque_tokens: false,
        block_size: settings.block_size.get(),
        lora_name: scope.adapter.as_deref().map(str::to_owned),
        extras,
        medium: Medium::Gpu,
        group: Some(0),
        indexable_group: true,
    }));
    sequence.registered = to;
}
