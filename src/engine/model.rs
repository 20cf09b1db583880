//! What would vLLM do? A model of its engine core without sockets, clock or tasks: time is an argument.
//!
//! ```text
//! submit ─▶ begin_step(now) ─▶ the caller lets the step's duration pass ─▶ end_step(now) ─▶ events, tokens
//! ```
//!
//! `warmpath engine` drives it with a real clock, the simulator with a virtual one. It follows vLLM 0.31 as
//! read and measured: chunked prefill under a token budget, prefix hits fixed when a request is first
//! scheduled, LRU eviction from the tail, events published with the end of their step.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::block_cache::CachedBlock;
use super::scheduler::Scheduler;
use super::sequence::Sequence;
use crate::routing::block::{BlockSize, Scope};
use crate::routing::event::KvEvent;

/// What kind of engine it is.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Tokens a block.
    pub block_size: BlockSize,
    /// Blocks of the KV pool (vLLM's `num_gpu_blocks`; one of them is never used).
    pub blocks: usize,
    /// Requests running at once.
    pub max_num_seqs: usize,
    /// Token budget of a step.
    pub max_num_batched_tokens: usize,
    /// Prompt and answer together, tokens.
    pub max_model_len: usize,
    /// What every step takes.
    pub step_base: Duration,
    /// What each prefilled token adds to its step.
    pub prefill_per_token: Duration,
    /// What a step takes longer if any request decodes in it.
    pub decode_per_step: Duration,
    /// Length of an answer that nothing else ends.
    pub answer_tokens: usize,
    /// The token ids that answers are made of.
    pub vocabulary: Arc<[u32]>,
    /// Answers depend on this and on the prompt.
    pub seed: u64,
}

/// Why such an engine cannot work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// No request could ever run.
    #[error("{0} must not be zero")]
    Zero(&'static str),
    /// A request of full length could never be admitted.
    #[error("max model length {max_model_len} does not fit the KV pool of {capacity} tokens")]
    ContextTooLong {
        /// As set.
        max_model_len: usize,
        /// Tokens of the usable blocks.
        capacity: usize,
    },
}

/// One prompt to be computed and answered.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its token ids.
    pub prompt: Vec<u32>,
    /// Adapter and salt.
    pub scope: Scope,
    /// Longest answer. `None`: as long as the context allows.
    pub max_tokens: Option<usize>,
    /// The answer does not end by itself.
    pub ignore_eos: bool,
    /// Its prefix may come from the cache (false with `prompt_logprobs`). It is stored all the same.
    pub reads_cache: bool,
    /// Token ids to answer with instead of made-up ones, as far as they go (a recorded run).
    pub answer: Vec<u32>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Nothing to compute.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// Nothing to generate.
    #[error("max_tokens must be at least 1")]
    NoTokens,
    /// Over the context length.
    #[error(
        "{prompt} prompt tokens and {output} output tokens exceed the context length of {limit} tokens"
    )]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens asked for.
        output: usize,
        /// The context length.
        limit: usize,
    },
}

/// Names a request of this model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(u64);

/// A step that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepPlan {
    /// Call [`Model::end_step`] when this has passed.
    pub duration: Duration,
    /// Prompt tokens it computes.
    pub prefill_tokens: usize,
    /// Requests that get one more token.
    pub decodes: usize,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// By itself.
    Stop,
    /// At `max_tokens` or the context length.
    Length,
}

/// The end of a prefill, as the engine saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefilled {
    /// Prompt tokens that came from the cache.
    pub cached_tokens: usize,
    /// From arrival to the first step.
    pub queued: Duration,
    /// From the first step to the first token.
    pub prefill: Duration,
}

/// One generated token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// Whose.
    pub request: RequestId,
    /// The token.
    pub token: u32,
    /// It is the first of its answer.
    pub prefilled: Option<Prefilled>,
    /// It is the last of its answer.
    pub finished: Option<FinishReason>,
}

/// What a step brought.
#[derive(Debug, Default)]
pub struct StepOutcome {
    /// To be published, in order. Empty for most decode steps.
    pub events: Vec<KvEvent>,
    /// Tokens, in the order of the running requests.
    pub outputs: Vec<Output>,
}

/// Requests and KV pool at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gauges {
    /// Requests being computed.
    pub running: usize,
    /// Requests waiting for a place.
    pub waiting: usize,
    /// Share of the pool in use by running requests, 0 to 1.
    pub kv_usage: f64,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Prompt tokens looked up in the cache.
    pub prefix_queries: u64,
    /// Of these, found.
    pub prefix_hits: u64,
    /// Prompt tokens whose prefill ended, cached ones included.
    pub prompt_tokens: u64,
    /// Of these, from the cache.
    pub prompt_tokens_cached: u64,
    /// Generated.
    pub generation_tokens: u64,
    /// Requests that lost their blocks to an older one.
    pub preemptions: u64,
    /// Answers that ended by themselves.
    pub stopped: u64,
    /// Answers that ended at their length.
    pub length: u64,
    /// Steps.
    pub steps: u64,
}

/// A simulated engine core.
pub struct Model {
    settings: Settings,
    scheduler: Scheduler,
    totals: Totals,
    next_id: u64,
    in_step: bool,
}

impl Model {
    /// An idle engine with an empty cache.
    ///
    /// # Errors
    /// When no request could ever run.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        let positive = [
            ("max_num_seqs", settings.max_num_seqs),
            ("max_num_batched_tokens", settings.max_num_batched_tokens),
            ("max_model_len", settings.max_model_len),
            ("answer_tokens", settings.answer_tokens),
            (
                "the number of token ids to answer with",
                settings.vocabulary.len(),
            ),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(SettingsError::Zero(name));
        }
        let capacity = settings.blocks.saturating_sub(1) * settings.block_size.get() as usize;
        if settings.max_model_len > capacity {
            return Err(SettingsError::ContextTooLong {
                max_model_len: settings.max_model_len,
                capacity,
            });
        }
        Ok(Self {
            scheduler: Scheduler::new(&settings),
            settings,
            totals: Totals::default(),
            next_id: 0,
            in_step: false,
        })
    }

    /// Queues a request. A step in flight does not see it.
    ///
    /// # Errors
    /// When the request can never be computed.
    pub fn submit(&mut self, request: Request, now: Instant) -> Result<RequestId, SubmitError> {
        request.check(self.settings.max_model_len)?;
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let block_size = self.settings.block_size.get() as usize;
        let sequence = Sequence::new(id, request, block_size, self.settings.seed, now);
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

    /// Schedules a step. `None` if there is nothing to do, or a step is in flight already.
    pub fn begin_step(&mut self, now: Instant) -> Option<StepPlan> {
        if self.in_step {
            return None;
        }
        let tokens = self
            .scheduler
            .schedule(&self.settings, &mut self.totals, now)?;
        self.in_step = true;
        self.totals.steps += 1;
        let prefill = u32::try_from(tokens.prefill).unwrap_or(u32::MAX);
        let mut duration = self.settings.step_base + self.settings.prefill_per_token * prefill;
        if tokens.decode > 0 {
            duration += self.settings.decode_per_step;
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
        for mut sequence in std::mem::take(&mut self.scheduler.running) {
            let took_part = std::mem::take(&mut sequence.scheduled) > 0;
            let mut ended = sequence.aborted;
            if !ended && took_part && sequence.uncomputed() == 0 {
                let output = self.sample(&mut sequence, now);
                ended = output.finished.is_some();
                outcome.outputs.push(output);
            }
            if ended {
                self.scheduler.cache.release(&sequence.blocks);
            } else {
                self.scheduler.running.push(sequence);
            }
        }
        outcome.events = std::mem::take(&mut self.scheduler.events);
        outcome
    }

    fn sample(&mut self, sequence: &mut Sequence, now: Instant) -> Output {
        let settings = &self.settings;
        let first = sequence.generated() == 0;
        let token = sequence.generate(&settings.vocabulary, settings.block_size.get() as usize);
        self.totals.generation_tokens += 1;
        let prefilled = first.then(|| {
            let started = sequence.first_scheduled.unwrap_or(now);
            Prefilled {
                cached_tokens: sequence.cached.unwrap_or_default(),
                queued: started.saturating_duration_since(sequence.arrived),
                prefill: now.saturating_duration_since(started),
            }
        });
        if let Some(prefilled) = prefilled {
            self.totals.prompt_tokens += sequence.prompt_len as u64;
            self.totals.prompt_tokens_cached += prefilled.cached_tokens as u64;
        }
        let finished = finish_reason(sequence, settings);
        match finished {
            Some(FinishReason::Stop) => self.totals.stopped += 1,
            Some(FinishReason::Length) => self.totals.length += 1,
            None => {}
        }
        Output {
            request: sequence.id,
            token,
            prefilled,
            finished,
        }
    }

    /// Forgets the whole cache; the next step announces it. Nothing happens, and the answer is
    /// false, while running requests hold blocks.
    pub fn reset_prefix_cache(&mut self) -> bool {
        let done = self.scheduler.cache.clear();
        if done {
            self.scheduler.events.push(KvEvent::Cleared);
        }
        done
    }

    /// Every cached content, sorted by hash: what the published events must add up to
    /// (with a step in flight, its events are not published yet).
    pub fn dump_blocks(&self) -> Vec<CachedBlock> {
        self.scheduler.cache.dump()
    }

    /// Requests and KV pool at this moment.
    pub fn gauges(&self) -> Gauges {
        Gauges {
            running: self.scheduler.running.len(),
            waiting: self.scheduler.waiting.len(),
            kv_usage: self.scheduler.cache.usage(),
        }
    }

    /// Counts since the start.
    pub const fn totals(&self) -> Totals {
        self.totals
    }
}

impl Request {
    /// Says whether an engine with this context length can compute it.
    ///
    /// # Errors
    /// When it cannot.
    pub fn check(&self, max_model_len: usize) -> Result<(), SubmitError> {
        if self.prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        if self.max_tokens == Some(0) {
            return Err(SubmitError::NoTokens);
        }
        let output = self.max_tokens.unwrap_or(1);
        if self.prompt.len().saturating_add(output) > max_model_len {
            return Err(SubmitError::TooLong {
                prompt: self.prompt.len(),
                output,
                limit: max_model_len,
            });
        }
        Ok(())
    }
}

fn finish_reason(sequence: &Sequence, settings: &Settings) -> Option<FinishReason> {
    let generated = sequence.generated();
    let at_length = sequence.request.max_tokens == Some(generated)
        || sequence.tokens.len() >= settings.max_model_len;
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
