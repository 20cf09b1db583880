//! What kind of engine is it?

use std::sync::Arc;
use std::time::Duration;

use crate::routing::block::BlockSize;

/// What kind of engine it is.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Tokens a block.
    pub block_size: BlockSize,
    /// Blocks of the KV pool (vLLM's `num_gpu_blocks`; one of them is never used).
    pub blocks: usize,
    /// Blocks of a tier beneath the pool, in host memory; 0 for none.
    pub lower_blocks: usize,
    /// Events of that tier tell the whole block, not its hash alone.
    pub lower_describes: bool,
    /// What each token taken from that tier adds to its step.
    pub load_per_token: Duration,
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
    /// What a step takes longer if any request decodes in it (reading the weights).
    pub decode_per_step: Duration,
    /// What each token in the contexts of the decoding requests adds to their step (reading its keys and values),
    /// nanoseconds.
    pub decode_ns_per_context_token: f64,
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
    /// Steps whose ends no clock can tell.
    #[error(
        "a step of this engine could take longer than thirty years, or a time that is no number"
    )]
    Endless,
}

/// Some thirty years, in seconds.
const LONGEST_STEP: f64 = 1e9;

impl Settings {
    /// Refuses an engine in which some request could wait for ever.
    pub(super) fn check(&self) -> Result<(), SettingsError> {
        let positive = [
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("max_model_len", self.max_model_len),
            ("answer_tokens", self.answer_tokens),
            (
                "the number of token ids to answer with",
                self.vocabulary.len(),
            ),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(SettingsError::Zero(name));
        }
        let capacity = self.blocks.saturating_sub(1) * self.block_size.get() as usize;
        if self.max_model_len > capacity {
            return Err(SettingsError::ContextTooLong {
                max_model_len: self.max_model_len,
                capacity,
            });
        }
        // Not a number is not below it either.
        if self.longest_step() < LONGEST_STEP && self.decode_ns_per_context_token >= 0.0 {
            Ok(())
        } else {
            Err(SettingsError::Endless)
        }
    }

    /// What a step takes at the utmost, seconds.
    fn longest_step(&self) -> f64 {
        let contexts = self.max_num_seqs as f64 * self.max_model_len as f64;
        let prefill = contexts.min(self.max_num_batched_tokens as f64);
        self.step_base.as_secs_f64()
            + self.prefill_per_token.as_secs_f64() * prefill
            + self.load_per_token.as_secs_f64() * contexts
            + self.decode_per_step.as_secs_f64()
            + self.decode_ns_per_context_token * 1e-9 * contexts
    }
}
