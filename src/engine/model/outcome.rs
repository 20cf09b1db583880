//! What comes out of a step, and what is counted?

use std::time::Duration;

use crate::routing::event::{KeyChange, KvEvent};

/// Names a request of this model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(super) u64);

/// A step that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepPlan {
    /// Call [`super::Model::end_step`] when this has passed.
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
    /// The engine gave it up: it was sent to sleep.
    Abort,
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

/// One generated token, or the end of an answer without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// Whose.
    pub request: RequestId,
    /// The token. `None` at an end that is an [`FinishReason::Abort`], and of a [`super::Named`] request.
    pub token: Option<u32>,
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
    /// The same by key, where the model tells that instead.
    pub changes: Vec<KeyChange>,
    /// Tokens, in the order of the running requests. Of a [`super::Named`] request only the first and the last one.
    pub outputs: Vec<Output>,
    /// How many tokens were generated, those not among the outputs included.
    pub generated: usize,
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
    /// Of these, from the tier beneath the pool.
    pub prompt_tokens_loaded: u64,
    /// Generated.
    pub generation_tokens: u64,
    /// Requests that lost their blocks to an older one.
    pub preemptions: u64,
    /// Answers that ended by themselves.
    pub stopped: u64,
    /// Answers that ended at their length.
    pub length: u64,
    /// Answers that the engine gave up.
    pub aborted: u64,
    /// Steps.
    pub steps: u64,
}
