//! The sums: each function is one formula, with its unit.
//!
//! They hold for a steady load whose replicas are in use for a given share of the time. Nothing queues here.

use serde::Serialize;

use super::inputs::Inputs;
use super::keeping::Keeping;
use super::reuse::Reuse;

/// Everything worked out from the inputs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sums {
    /// Time to prefill a token, seconds.
    pub prefill_per_token_s: f64,
    /// Prefill time that a hit saves, seconds: how much longer a queue may be for a hit's sake.
    pub saved_per_hit_s: f64,
    /// The same in tokens: the shared part of a prompt.
    pub spill_threshold_tokens: f64,
    /// Prefill of a prompt of which nothing is cached, seconds.
    pub ttft_cold_s: f64,
    /// Prefill of a prompt whose shared part is cached, seconds.
    pub ttft_warm_s: f64,
    /// Tokens of a replica's KV pool.
    pub pool_tokens: f64,
    /// What the decode batch holds there beside shared prefixes, tokens.
    pub unshared_tokens: f64,
    /// What is left for prefixes, tokens.
    pub room_tokens: f64,
    /// Prefixes for which that is room; none when nothing is shared.
    pub room_prefixes: Option<u64>,
    /// Prefixes with all their copies under salts of their own.
    pub prefix_copies: u64,
    /// All of them, tokens.
    pub set_tokens: f64,
    /// All of them in pools.
    pub set_pools: f64,
    /// A step in which the whole batch decodes, seconds.
    pub decode_step_s: f64,
    /// Tokens that a replica decodes a second.
    pub decode_tokens_per_s: f64,
    /// Replica time for the decoding of a request, seconds.
    pub decode_per_request_s: f64,
    /// Replica time for a warm request, prefill and decoding, seconds.
    pub warm_request_s: f64,
    /// Warm requests a second that a replica takes at the utilisation wanted.
    pub warm_requests_per_replica: f64,
    /// Requests a second of the hottest prefix; none when nothing is shared.
    pub hot_rate: Option<f64>,
    /// Replicas that these keep in use.
    pub hot_owners: Option<f64>,
    /// Share of all prompt tokens that hits save with affinity.
    pub saved_share: f64,
    /// No request finds its prefix.
    pub cold: Fleet,
    /// Requests go anywhere, and find their prefix by chance.
    pub chance: Fleet,
    /// Requests go where their prefix is.
    pub affinity: Fleet,
    /// Prefixes a replica with affinity.
    pub prefixes_per_replica: f64,
}

/// A fleet that carries the load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fleet {
    /// Share of requests that find their prefix cached.
    pub warm_share: f64,
    /// Replica-seconds of prefill that arrive a second.
    pub prefill_load: f64,
    /// Replica-seconds of decoding that arrive a second.
    pub decode_load: f64,
    /// Both together.
    pub load: f64,
    /// Replicas.
    pub replicas: u64,
    /// GPUs of these.
    pub gpus: u64,
    /// Dollars for a million output tokens, if there is a price.
    pub dollars_per_million_output: Option<f64>,
}

/// Why a replica cannot serve the load at all.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SumsError {
    /// The weights alone are too large.
    #[error(
        "the weights ({weights_gb:.1} GB) do not fit {gpus} GPUs, which have {usable_gb:.1} GB for them and the KV cache: \
         raise tensor_parallel or gpu_memory_gb"
    )]
    Weights {
        /// Weights, 10^9 bytes.
        weights_gb: f64,
        /// GPUs of the replica.
        gpus: u64,
        /// What the engine may use of them, 10^9 bytes.
        usable_gb: f64,
    },
    /// The pool cannot hold the requests that shall run together.
    #[error(
        "decode_batch {batch} needs {needed:.0} tokens of KV cache and the pool of a replica has {pool:.0}: {advice}"
    )]
    Batch {
        /// As given.
        batch: u64,
        /// Tokens of these requests beside their prefix, and one prefix.
        needed: f64,
        /// Tokens of the pool.
        pool: f64,
        /// What would fit.
        advice: String,
    },
}

/// Bytes of a token's keys and values: `2 × layers × KV heads × head size × bytes of a value`.
pub fn kv_bytes_per_token(layers: u64, kv_heads: u64, head_dim: u64, value_bytes: f64) -> f64 {
    2.0 * layers as f64 * kv_heads as f64 * head_dim as f64 * value_bytes
}

/// Bytes that a token's keys and values take on all GPUs of a replica: `bytes × GPUs / min(GPUs, KV heads)`. A head is
/// not split, so that GPUs beyond the heads hold copies.
pub fn kv_bytes_held(inputs: &Inputs) -> f64 {
    let gpus = inputs.tensor_parallel;
    let split = inputs.kv_heads.map_or(gpus, |heads| heads.clamp(1, gpus));
    inputs.kv_bytes_per_token * gpus as f64 / split as f64
}

/// Seconds to prefill a token: `2 × active parameters / (GPUs × FLOP/s × MFU)`.
pub fn prefill_per_token(inputs: &Inputs) -> f64 {
    2.0 * inputs.active_parameters as f64
        / (inputs.tensor_parallel as f64 * inputs.tflops * 1e12 * inputs.mfu)
}

/// Bytes a second that decoding reads: `GPUs × bandwidth × MBU`.
pub fn decode_bytes_per_s(inputs: &Inputs) -> f64 {
    inputs.tensor_parallel as f64 * inputs.bandwidth_tb_per_s * 1e12 * inputs.mbu
}

/// Bytes that weights and KV cache may take: `GPUs × (memory × fraction − reserved)`.
pub fn usable_bytes(inputs: &Inputs) -> f64 {
    inputs.tensor_parallel as f64
        * (inputs.gpu_memory_gb * inputs.memory_fraction - inputs.reserved_gb)
        * 1e9
}

/// Tokens of a replica's KV pool: `(usable bytes − weights) / bytes held a token`, in whole tokens. Not above 0 when
/// the weights do not fit.
pub fn pool_tokens(inputs: &Inputs) -> f64 {
    ((usable_bytes(inputs) - inputs.weight_bytes as f64) / kv_bytes_held(inputs)).floor()
}

/// Tokens that a running request holds beside its shared prefix, halfway through its answer:
/// `prompt − shared + output / 2`.
pub fn unshared_per_request(inputs: &Inputs) -> f64 {
    inputs.prompt_tokens - inputs.shared_tokens + inputs.output_tokens / 2.0
}

/// Seconds of a decode step: `(weights + batch × (prompt + output / 2) × KV bytes) / bytes a second`.
pub fn decode_step(inputs: &Inputs) -> f64 {
    let context = inputs.prompt_tokens + inputs.output_tokens / 2.0;
    let read = inputs.decode_batch as f64 * context * kv_bytes_held(inputs);
    (inputs.weight_bytes as f64 + read) / decode_bytes_per_s(inputs)
}

/// Refuses a replica that cannot hold the weights, or the batch beside one prefix.
fn fits(inputs: &Inputs) -> Result<(), SumsError> {
    let pool = pool_tokens(inputs);
    if pool < 1.0 {
        return Err(SumsError::Weights {
            weights_gb: inputs.weight_bytes as f64 / 1e9,
            gpus: inputs.tensor_parallel,
            usable_gb: (usable_bytes(inputs) / 1e9).max(0.0),
        });
    }
    let each = unshared_per_request(inputs);
    let needed = inputs.shared_tokens + inputs.decode_batch as f64 * each;
    if needed <= pool {
        return Ok(());
    }
    let most = ((pool - inputs.shared_tokens) / each).floor();
    let advice = if most >= 1.0 {
        format!("lower it to at most {most:.0}, or raise tensor_parallel")
    } else {
        "not even one such request fits; raise tensor_parallel".to_owned()
    };
    Err(SumsError::Batch {
        batch: inputs.decode_batch,
        needed,
        pool,
        advice,
    })
}

/// The fewest GPUs of 1, 2, 4, 8 and 16 that hold the weights and the decode batch.
///
/// # Errors
/// When 16 do not.
pub(super) fn fewest_gpus(inputs: &Inputs) -> Result<u64, SumsError> {
    let mut tried = inputs.clone();
    for gpus in [1, 2, 4, 8] {
        tried.tensor_parallel = gpus;
        if fits(&tried).is_ok() {
            return Ok(gpus);
        }
    }
    tried.tensor_parallel = 16;
    fits(&tried).map(|()| 16)
}

/// Whole numbers of replicas are far below 2^53 for all admissible inputs.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the value is not negative; a float beyond u64 becomes its greatest value"
)]
pub(super) fn whole(value: f64) -> u64 {
    value.max(0.0) as u64
}

/// Replicas for a load: `load / utilisation`, rounded up. A load that is a whole number but for rounding stays one.
fn replicas(load: f64, utilisation: f64) -> u64 {
    let exact = load / utilisation;
    whole((exact * (1.0 - 1e-12)).ceil()).max(1)
}

/// Everything that the fleets' loads depend on.
struct Work<'a> {
    inputs: &'a Inputs,
    ttft_cold_s: f64,
    saved_per_hit_s: f64,
    decode_per_request_s: f64,
}

impl Work<'_> {
    /// Replica-seconds a second: `rate × (cold prefill − warm share × saved)` and `rate × decode time`.
    fn load(&self, warm_share: f64) -> (f64, f64) {
        let rate = self.inputs.rate;
        let prefill = rate * (self.ttft_cold_s - warm_share * self.saved_per_hit_s);
        (prefill, rate * self.decode_per_request_s)
    }

    fn replicas(&self, warm_share: f64) -> u64 {
        let (prefill, decode) = self.load(warm_share);
        replicas(prefill + decode, self.inputs.utilisation)
    }

    /// Dollars for a million output tokens: `GPUs × price / 3600 / (rate × output) × 10^6`.
    fn fleet(&self, warm_share: f64, replicas: u64) -> Fleet {
        let inputs = self.inputs;
        let (prefill_load, decode_load) = self.load(warm_share);
        let gpus = replicas.saturating_mul(inputs.tensor_parallel);
        let output_per_s = inputs.rate * inputs.output_tokens;
        Fleet {
            warm_share,
            prefill_load,
            decode_load,
            load: prefill_load + decode_load,
            replicas,
            gpus,
            dollars_per_million_output: inputs
                .price_per_gpu_hour
                .map(|price| gpus as f64 * price / 3600.0 / output_per_s * 1e6),
        }
    }

    /// The smallest fleet that carries the load with what its pools keep warm. Where requests go where their prefix is,
    /// more replicas keep more, and the load only falls with them. Where they go anywhere it may rise, so small fleets
    /// are tried first.
    fn smallest(&self, warm_share_of: impl Fn(u64) -> f64) -> Fleet {
        let most = self.replicas(0.0);
        let carries = |replicas| self.replicas(warm_share_of(replicas)) <= replicas;
        let (mut low, mut high) = (1, 1);
        while high < most && !carries(high) {
            low = high + 1;
            high = high.saturating_mul(2).min(most);
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if carries(middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        self.fleet(warm_share_of(high), high)
    }
}

impl Sums {
    /// Works everything out, for requests that come independently of one another.
    ///
    /// # Errors
    /// When a replica does not hold the weights or the decode batch.
    pub fn of(inputs: &Inputs) -> Result<Self, SumsError> {
        Self::with(inputs, None)
    }

    /// Works everything out. What pools keep is that of the recording, if there is one.
    ///
    /// # Errors
    /// When a replica does not hold the weights or the decode batch.
    pub fn with(inputs: &Inputs, reuse: Option<&Reuse>) -> Result<Self, SumsError> {
        fits(inputs)?;
        let per_token = prefill_per_token(inputs);
        let shared = inputs.shared_tokens;
        let pool_tokens = pool_tokens(inputs);
        let unshared_tokens = inputs.decode_batch as f64 * unshared_per_request(inputs);
        let room_tokens = pool_tokens - unshared_tokens;
        let prefix_copies = inputs.prefixes.saturating_mul(inputs.copies());
        let decode_step_s = decode_step(inputs);
        let decode_tokens_per_s = inputs.decode_batch as f64 / decode_step_s;
        let work = Work {
            inputs,
            ttft_cold_s: inputs.prompt_tokens * per_token,
            saved_per_hit_s: shared * per_token,
            decode_per_request_s: inputs.output_tokens / decode_tokens_per_s,
        };
        let ttft_warm_s = work.ttft_cold_s - work.saved_per_hit_s;
        let warm_request_s = ttft_warm_s + work.decode_per_request_s;
        let warm_requests_per_replica = inputs.utilisation / warm_request_s;
        let hot_rate = inputs.hot_share.map(|share| share * inputs.rate);

        let keeping = Keeping::of(inputs, reuse);
        // The whole pool: what runs is what was used last, so it is among the requests since.
        let chance = work.smallest(|n| inputs.warm_share * keeping.by_chance(n, pool_tokens));
        let affinity = work.smallest(|n| {
            let kept = keeping.together(n as f64 * pool_tokens);
            (inputs.warm_share * kept).max(chance.warm_share)
        });
        let set_tokens = prefix_copies as f64 * shared;
        Ok(Self {
            prefill_per_token_s: per_token,
            saved_per_hit_s: work.saved_per_hit_s,
            spill_threshold_tokens: shared,
            ttft_cold_s: work.ttft_cold_s,
            ttft_warm_s,
            pool_tokens,
            unshared_tokens,
            room_tokens,
            room_prefixes: (shared > 0.0).then(|| whole(room_tokens / shared)),
            prefix_copies,
            set_tokens,
            set_pools: set_tokens / pool_tokens,
            decode_step_s,
            decode_tokens_per_s,
            decode_per_request_s: work.decode_per_request_s,
            warm_request_s,
            warm_requests_per_replica,
            hot_rate,
            hot_owners: hot_rate.map(|rate| rate / warm_requests_per_replica),
            saved_share: affinity.warm_share * shared / inputs.prompt_tokens,
            cold: work.fleet(0.0, work.replicas(0.0)),
            chance,
            affinity,
            prefixes_per_replica: prefix_copies as f64 / affinity.replicas as f64,
        })
    }
}
