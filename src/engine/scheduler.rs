//! Who computes how many tokens in the next step, in which blocks: vLLM's scheduler.
//!
//! One token budget a step. Running requests first (a decode is one token, an unfinished prefill takes
//! what is left), then waiting ones in order of arrival, each cut to the rest of the budget. Blocks are
//! registered and announced here, before they are computed: the second of two equal prompts in one step already hits.

use std::collections::VecDeque;
use std::time::Instant;

use super::memory::Memory;
use super::model::{RequestId, Settings, Totals};
use super::sequence::Sequence;

/// Tokens of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StepTokens {
    pub(super) prefill: usize,
    pub(super) decode: usize,
    /// Tokens in the contexts of those that decode.
    pub(super) context: usize,
    /// Taken from the lower tier instead of being computed.
    pub(super) loaded: usize,
}

/// Running and waiting requests, and the pool they share.
pub(super) struct Scheduler {
    pub(super) running: Vec<Sequence>,
    pub(super) waiting: VecDeque<Sequence>,
    pub(super) memory: Memory,
}

impl Scheduler {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            running: Vec::new(),
            waiting: VecDeque::new(),
            memory: Memory::new(settings),
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
            if self.memory.compute(settings, sequence, tokens) {
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
        self.memory.cache.release(&blocks);
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
        let hittable = (sequence.len - 1) / block_size;
        let (hits, beneath) = if sequence.request.reads_cache {
            let hashes = sequence.hashes.get(..hittable).unwrap_or_default();
            self.memory.longest_prefix(hashes)
        } else {
            (Vec::new(), 0)
        };
        // Admitted only if the whole of it fits; hit blocks that nobody holds come off the free list too.
        let unheld = hits
            .iter()
            .filter(|&&id| self.memory.cache.is_free(id))
            .count();
        let missing = sequence.len.div_ceil(block_size) - hits.len();
        if missing + unheld > self.memory.cache.free() {
            return false;
        }
        let Some(mut sequence) = self.waiting.pop_front() else {
            return false;
        };
        self.memory.cache.hold(&hits);
        let (hit_tokens, loaded_tokens) = (hits.len() * block_size, beneath * block_size);
        // What is loaded needs blocks of its own and is announced like what is computed.
        sequence.registered = hits.len();
        sequence.computed = hit_tokens + loaded_tokens;
        sequence.blocks = hits;
        step.loaded += loaded_tokens;
        if sequence.cached.is_none() {
            sequence.cached = Some(sequence.computed);
            sequence.loaded = loaded_tokens;
            sequence.first_scheduled = Some(now);
            totals.prefix_queries += sequence.prompt_len as u64;
            totals.prefix_hits += hit_tokens as u64;
        }
        let tokens = sequence.uncomputed().min(*budget);
        let fits = self.memory.compute(settings, &mut sequence, tokens);
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
            self.memory.cache.release(&sequence.blocks);
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
        self.memory.cache.release(&sequence.blocks);
        true
    }
}

impl StepTokens {
    /// Counts what `compute` has just scheduled.
    fn count(&mut self, sequence: &Sequence, tokens: usize) {
        // The newest token was generated and nothing else was missing before this step.
        if sequence.generated() > 0 && tokens == 1 && sequence.uncomputed() == 0 {
            self.decode += 1;
            self.context += sequence.len;
        } else {
            self.prefill += tokens;
        }
    }
}
