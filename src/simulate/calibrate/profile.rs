//! Engines as they were measured.

use std::sync::Arc;
use std::time::Duration;

use super::Constants;
use crate::engine::model::Settings;
use crate::routing::block::BlockSize;

/// A measured engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// Its name, as in `--profile`.
    pub name: &'static str,
    /// Model, GPUs, engine.
    pub about: &'static str,
    /// Blocks of 16 tokens in its KV pool.
    pub blocks: usize,
    /// Requests running at once.
    pub max_num_seqs: usize,
    /// Token budget of a step.
    pub max_num_batched_tokens: usize,
    /// Prompt and answer together, tokens.
    pub max_model_len: usize,
    /// What its steps take.
    pub constants: Constants,
}

/// All of them. Their pools are as recorded for the RTX 4090; for the others, which never came near theirs, they are
/// what 0.9 of the memory leaves beside weights and some 2 GiB a GPU, rounded down.
pub const PROFILES: &[Profile] = &[
    Profile {
        name: "rtx-pro-6000-llama-3.1-8b",
        about: "Llama 3.1 8B in BF16 on one RTX PRO 6000, vLLM 0.19",
        blocks: 33_000,
        max_num_seqs: 128,
        max_num_batched_tokens: 2048,
        max_model_len: 131_072,
        constants: Constants {
            step_base_us: 1428.0,
            prefill_us_per_token: 41.88,
            decode_us_per_step: 10_935.0,
            decode_ns_per_context_token: 113.33,
        },
    },
    Profile {
        name: "rtx-pro-6000-tp2-qwen3-32b",
        about: "Qwen3 32B in BF16 on two RTX PRO 6000, vLLM 0.19",
        blocks: 25_000,
        max_num_seqs: 128,
        max_num_batched_tokens: 2048,
        max_model_len: 40_960,
        constants: Constants {
            step_base_us: 1180.0,
            prefill_us_per_token: 165.0,
            decode_us_per_step: 27_800.0,
            decode_ns_per_context_token: 232.0,
        },
    },
    Profile {
        name: "rtx-4090-llama-3.1-8b",
        about: "Llama 3.1 8B in BF16 on one RTX 4090, vLLM 0.19",
        blocks: 2588,
        max_num_seqs: 256,
        max_num_batched_tokens: 2048,
        max_model_len: 32_768,
        constants: Constants {
            step_base_us: 2620.0,
            prefill_us_per_token: 88.1,
            decode_us_per_step: 18_000.0,
            decode_ns_per_context_token: 112.5,
        },
    },
];

impl Profile {
    /// The measured engine of this name.
    pub fn by_name(name: &str) -> Option<&'static Self> {
        PROFILES.iter().find(|profile| profile.name == name)
    }

    /// The model's settings for it.
    pub fn settings(&self) -> Settings {
        self.constants.apply(Settings {
            block_size: BlockSize::DEFAULT,
            blocks: self.blocks,
            lower_blocks: 0,
            lower_describes: false,
            load_per_token: Duration::ZERO,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_model_len: self.max_model_len,
            step_base: Duration::ZERO,
            prefill_per_token: Duration::ZERO,
            decode_per_step: Duration::ZERO,
            decode_ns_per_context_token: 0.0,
            answer_tokens: 128,
            vocabulary: Arc::new([0]),
            seed: 0,
        })
    }
}
