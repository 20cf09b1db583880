//! What would vLLM do? A model of its engine core without sockets, clock or tasks: time is an argument.
//!
//! ```text
//! submit ─▶ begin_step(now) ─▶ the caller lets the step's duration pass ─▶ end_step(now) ─▶ events, tokens
//! ```
//!
//! `warmpath engine` drives it with a real clock, the simulator with a virtual one. It follows vLLM 0.31 as
//! read and measured: chunked prefill under a token budget, prefix hits fixed when a request is first
//! scheduled, LRU eviction from the tail, events published with the end of their step.

mod outcome;
mod request;
mod settings;

use std::time::{Duration, Instant};

pub use outcome::{
    FinishReason, Gauges, Output, Prefilled, RequestId, StepOutcome, StepPlan, Totals,
};
pub use request::{Named, Request, SubmitError};
pub use settings::{Settings, SettingsError};

use super::block_cache::CachedBlock;
use super::scheduler::Scheduler;
use super::sequence::Sequence;

/// A simulated engine core.
pub struct Model {
    settings: Settings,
    scheduler: Scheduler,
    totals: Totals,
    next_id: u64,
    in_step: bool,
    /// How deep it sleeps.
    asleep: Option<u8>,
}

impl Model {
    /// An idle engine with an empty cache.
    ///
    /// # Errors
    /// When no request could ever run.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        settings.check()?;
        Ok(Self {
            scheduler: Scheduler::new(&settings),
            settings,
            totals: Totals::default(),
            next_id: 0,
            in_step: false,
            asleep: None,
        })
    }

    /// The same, but what enters and leaves its cache is told by key (`changes` instead of `events`): the model as it
    /// is simulated in one process with its picker.
    ///
    /// # Errors
    /// When no request could ever run.
    pub fn by_keys(settings: Settings) -> Result<Self, SettingsError> {
        let mut model = Self::new(settings)?;
        model.scheduler.memory.tell_by_keys();
        Ok(model)
    }

    /// Queues a request of which only the names of its blocks are known. A step in flight does not see it. For a model
    /// that tells by keys: events of these blocks would tell no tokens.
    ///
    /// # Errors
    /// When it could never run.
    pub fn submit_named(&mut self, named: Named, now: Instant) -> Result<RequestId, SubmitError> {
        named.check(self.settings.max_model_len)?;
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let sequence = Sequence::named(id, named, now);
        self.scheduler.waiting.push_back(sequence);
        Ok(id)
    }

    /// Queues a request. A step in flight does not see it.
    ///
    /// # Errors
    /// When the request can never be computed.
    pub fn submit(&mut self, request: Request, now: Instant) -> Result<RequestId, SubmitError> {
        request.check(self.settings.max_model_len)?;
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let settings = &self.settings;
        let sequence = Sequence::new(id, request, settings.block_size, settings.seed, now);
        self.scheduler.waiting.push_back(sequence);
        Ok(id)
    }

    /// The client left: nothing more is computed for it. A step in flight is finished (and its
    /// blocks announced) all the same. Does nothing for a request that has ended.
    pub fn abort(&mut self, id: RequestId) {
        let in_flight = self
            .scheduler
            .running
            .iter_mut()
            .find(|sequence| sequence.id == id && self.in_step);
        match in_flight {
            Some(sequence) => sequence.aborted = true,
            None => {
                self.scheduler.remove(id);
            }
        }
    }

    /// Schedules a step. `None` if there is nothing to do, a step is in flight already, or the engine sleeps.
    pub fn begin_step(&mut self, now: Instant) -> Option<StepPlan> {
        if self.in_step || self.asleep.is_some() {
            return None;
        }
        let tokens = self
            .scheduler
            .schedule(&self.settings, &mut self.totals, now)?;
        self.in_step = true;
        self.totals.steps += 1;
        let prefill = u32::try_from(tokens.prefill).unwrap_or(u32::MAX);
        let loaded = u32::try_from(tokens.loaded).unwrap_or(u32::MAX);
        let mut duration = self.settings.step_base
            + self.settings.prefill_per_token * prefill
            + self.settings.load_per_token * loaded;
        if tokens.decode > 0 {
            let context = self.settings.decode_ns_per_context_token * tokens.context as f64;
            duration += self.settings.decode_per_step + Duration::from_secs_f64(context * 1e-9);
        }
        Some(StepPlan {
            duration,
            prefill_tokens: tokens.prefill,
            decodes: tokens.decode,
        })
    }

    /// The step is computed: its tokens and its events come out. Empty if none was in flight.
    pub fn end_step(&mut self, now: Instant) -> StepOutcome {
        if !self.in_step {
            return StepOutcome::default();
        }
        self.in_step = false;
        let mut outcome = StepOutcome::default();
        let (settings, totals) = (&self.settings, &mut self.totals);
        let cache = &mut self.scheduler.memory.cache;
        // In place: most steps change nothing but counters, and a sequence is large.
        self.scheduler.running.retain_mut(|sequence| {
            let took_part = std::mem::take(&mut sequence.scheduled) > 0;
            let mut ended = sequence.aborted;
            if !ended && took_part && sequence.uncomputed() == 0 {
                outcome.generated += 1;
                if sequence.count_only() {
                    totals.generation_tokens += 1;
                } else {
                    let output = sample(settings, totals, sequence, now);
                    ended = output.finished.is_some();
                    outcome.outputs.push(output);
                }
            }
            if ended {
                cache.release(&sequence.blocks);
            }
            !ended
        });
        outcome.events = std::mem::take(&mut self.scheduler.memory.events);
        outcome.changes = std::mem::take(&mut self.scheduler.memory.changes);
        outcome
    }

    /// Forgets the whole pool; the next step announces it. Nothing happens, and the answer is
    /// false, while running requests hold blocks.
    pub fn reset_prefix_cache(&mut self) -> bool {
        self.scheduler.memory.clear()
    }

    /// Forgets what is beneath the pool. No event tells of it, as none of vLLM's connector does.
    pub fn reset_lower_tier(&mut self) {
        self.scheduler.memory.clear_lower();
    }

    /// Puts the engine to sleep: requests that come from now on wait, and those it has are given up (their ends are
    /// returned). From level 1 on the cache is gone, which the first step after the sleep announces. Between steps
    /// only: nothing happens while one is in flight.
    pub fn sleep(&mut self, level: u8) -> Vec<Output> {
        if self.in_step {
            return Vec::new();
        }
        let given_up = self.scheduler.give_up();
        self.totals.aborted += given_up.len() as u64;
        if level > 0 {
            self.reset_prefix_cache();
            self.reset_lower_tier();
        }
        self.asleep = Some(level);
        let end = |request| Output {
            request,
            token: None,
            prefilled: None,
            finished: Some(FinishReason::Abort),
        };
        given_up.into_iter().map(end).collect()
    }

    /// Ends the sleep: whoever waited is computed.
    pub const fn wake_up(&mut self) {
        self.asleep = None;
    }

    /// The level of its sleep; `None` while it is awake.
    pub const fn asleep(&self) -> Option<u8> {
        self.asleep
    }

    /// Every cached content, sorted by hash: what the published events must add up to
    /// (with a step in flight, its events are not published yet).
    pub fn dump_blocks(&self) -> Vec<CachedBlock> {
        self.scheduler.memory.dump()
    }

    /// Requests and KV pool at this moment.
    pub fn gauges(&self) -> Gauges {
        Gauges {
            running: self.scheduler.running.len(),
            waiting: self.scheduler.waiting.len(),
            kv_usage: self.scheduler.memory.cache.usage(),
        }
    }

    /// Counts since the start.
    pub const fn totals(&self) -> Totals {
        self.totals
    }
}

/// The step gave a sequence its next token.
fn sample(
    settings: &Settings,
    totals: &mut Totals,
    sequence: &mut Sequence,
    now: Instant,
) -> Output {
    let first = sequence.generated() == 0;
    let token = sequence.generate(&settings.vocabulary, settings.block_size);
    totals.generation_tokens += 1;
    let prefilled = first.then(|| {
        let started = sequence.first_scheduled.unwrap_or(now);
        Prefilled {
            cached_tokens: sequence.cached.unwrap_or_default(),
            queued: started.saturating_duration_since(sequence.arrived),
            prefill: now.saturating_duration_since(started),
        }
    });
    if let Some(prefilled) = prefilled {
        totals.prompt_tokens += sequence.prompt_len as u64;
        totals.prompt_tokens_cached += prefilled.cached_tokens as u64;
        totals.prompt_tokens_loaded += sequence.loaded as u64;
    }
    let finished = finish_reason(sequence, settings);
    match finished {
        Some(FinishReason::Stop) => totals.stopped += 1,
        Some(FinishReason::Length) => totals.length += 1,
        Some(FinishReason::Abort) | None => {}
    }
    Output {
        request: sequence.id,
        token,
        prefilled,
        finished,
    }
}

fn finish_reason(sequence: &Sequence, settings: &Settings) -> Option<FinishReason> {
    let generated = sequence.generated();
    let at_length =
        sequence.request.max_tokens == Some(generated) || sequence.len >= settings.max_model_len;
    if at_length {
        Some(FinishReason::Length)
    } else if !sequence.request.ignore_eos && generated >= settings.answer_tokens {
        Some(FinishReason::Stop)
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
