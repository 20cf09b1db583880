//! What simulated engine has the plan's constants?

use std::time::Duration;

use crate::engine::model::Settings;
use crate::routing::block::BlockSize;

use super::inputs::Inputs;
use super::sums;

/// Blocks of a pool that a simulation can hold in memory; larger pools are cut to it.
pub const MOST_BLOCKS: u64 = 1 << 26;

/// The model draws the tokens of its answers from here; which they are means nothing in a simulation.
const VOCABULARY: u32 = 1024;

impl Inputs {
    /// One replica as an engine: prefill and decoding take what [`super::Sums`] says, and its pool has as many tokens.
    ///
    /// A prompt with its answer may be as long as the pool. Where the weights do not fit, the pool has no block, which
    /// the engine refuses by itself.
    pub fn engine(
        &self,
        block_size: BlockSize,
        max_num_batched_tokens: usize,
        max_num_seqs: usize,
    ) -> Settings {
        let tokens = sums::whole(sums::pool_tokens(self));
        let block_tokens = u64::from(block_size.get());
        let blocks = (tokens / block_tokens).min(MOST_BLOCKS);
        let bytes_per_s = sums::decode_bytes_per_s(self);
        Settings {
            block_size,
            // One block of the pool is never used.
            blocks: to_usize(blocks + 1),
            lower_blocks: 0,
            lower_describes: false,
            load_per_token: Duration::ZERO,
            max_num_seqs,
            max_num_batched_tokens,
            max_model_len: to_usize(blocks * block_tokens),
            step_base: Duration::ZERO,
            prefill_per_token: seconds(sums::prefill_per_token(self)),
            decode_per_step: seconds(self.weight_bytes as f64 / bytes_per_s),
            decode_ns_per_context_token: sums::kv_bytes_held(self) / bytes_per_s * 1e9,
            answer_tokens: to_usize(sums::whole(self.output_tokens.round())).max(1),
            vocabulary: (0..VOCABULARY).collect(),
            seed: 0,
        }
    }
}

fn to_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or(Duration::MAX)
}
