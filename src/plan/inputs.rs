//! What do the sums need to know? Every figure checked, and what follows from others filled in.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::given::{Given, check};
use super::popularity::Popularity;
use super::presets;
use super::sums::{self, SumsError};

/// Everything the sums need. Checked: every figure is finite and within the bounds of its flag.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Given")]
pub struct Inputs {
    /// Parameters of the model.
    pub parameters: u64,
    /// Parameters that each token passes through.
    pub active_parameters: u64,
    /// Weights of one replica, on all its GPUs together.
    pub weight_bytes: u64,
    /// Heads of keys and values, if known.
    pub kv_heads: Option<u64>,
    /// Keys and values of a token, bytes, counted once.
    pub kv_bytes_per_token: f64,
    /// GPUs of a replica.
    pub tensor_parallel: u64,
    /// Memory of a GPU, 10^9 bytes.
    pub gpu_memory_gb: f64,
    /// Share of it that the engine may use.
    pub memory_fraction: f64,
    /// What of that goes to activations and graphs on each GPU, 10^9 bytes.
    pub reserved_gb: f64,
    /// Peak dense 10^12 operations a second of a GPU.
    pub tflops: f64,
    /// Share of it that prefill attains.
    pub mfu: f64,
    /// Memory bandwidth of a GPU, 10^12 bytes a second.
    pub bandwidth_tb_per_s: f64,
    /// Share of it that decoding attains.
    pub mbu: f64,
    /// Requests a second, of the whole fleet.
    pub rate: f64,
    /// Mean length of a prompt.
    pub prompt_tokens: f64,
    /// What of it others have as well; below the prompt's length.
    pub shared_tokens: f64,
    /// Distinct shared prefixes.
    pub prefixes: u64,
    /// Zipf exponent of their popularity.
    pub skew: f64,
    /// Tenants with cache salts of their own; 0 and 1 are the same.
    pub tenants_with_salts: u64,
    /// Mean length of an answer.
    pub output_tokens: f64,
    /// Requests that decode together on a replica.
    pub decode_batch: u64,
    /// Share of a replica's time that may be in use.
    pub utilisation: f64,
    /// Share of requests whose prefix was asked for before.
    pub warm_share: f64,
    /// Share of the traffic that the hottest prefix has; none where nothing is shared.
    pub hot_share: Option<f64>,
    /// Price of a GPU for an hour, dollars; without it no cost is told.
    pub price_per_gpu_hour: Option<f64>,
}

/// Why there is nothing to work with.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum InputsError {
    /// A figure makes no sense.
    #[error("{field} must be between {least} and {most}{}{unit}, not {value}", if unit.is_empty() { "" } else { " " })]
    OutOfBounds {
        /// Its name.
        field: &'static str,
        /// What was given.
        value: f64,
        /// The least that is taken.
        least: f64,
        /// The most that is taken.
        most: f64,
        /// Its unit.
        unit: &'static str,
    },
    /// A figure that nothing stands in for is not there.
    #[error("{field} is missing: give it, or {instead}")]
    Missing {
        /// Its name.
        field: &'static str,
        /// What can be given in its place.
        instead: &'static str,
    },
    /// A name that is none of ours.
    #[error("no {kind} is called `{name}`; there are {known}")]
    UnknownName {
        /// Of what.
        kind: &'static str,
        /// As given.
        name: String,
        /// Those there are.
        known: String,
    },
    /// Some of each prompt is its own: at least its last token is always computed.
    #[error("shared_tokens ({shared}) must be below prompt_tokens ({prompt})")]
    AllShared {
        /// As given.
        shared: f64,
        /// As given.
        prompt: f64,
    },
    /// The hottest prefix cannot be asked for less than the mean one.
    #[error(
        "hot_share ({hot}) must be at least 1 / prefixes (1 / {prefixes}): the hottest of them has no less than the mean"
    )]
    ColdestHot {
        /// As given.
        hot: f64,
        /// As given.
        prefixes: u64,
    },
    /// More parameters at work than there are.
    #[error("active_parameters ({active}) must not be above parameters ({all})")]
    MoreActive {
        /// As given.
        active: u64,
        /// As given.
        all: u64,
    },
    /// The file cannot be read.
    #[error("cannot read {path}: {problem}")]
    File {
        /// Its path.
        path: PathBuf,
        /// What the system says.
        problem: String,
    },
    /// The file is not what it should be.
    #[error("{path}, line {line}, column {column}: {problem}")]
    Text {
        /// Its path.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// Counted from 1.
        column: u64,
        /// What is wrong.
        problem: String,
    },
    /// No number of GPUs that was tried holds it.
    #[error(transparent)]
    NoFit(#[from] SumsError),
}

fn need<T>(field: &'static str, value: Option<T>, instead: &'static str) -> Result<T, InputsError> {
    value.ok_or(InputsError::Missing { field, instead })
}

/// Bytes of a token's keys and values.
fn kv_bytes(given: &Given) -> Result<f64, InputsError> {
    const INSTEAD: &str = "kv_bytes_per_token, or name a model";
    if let Some(bytes) = given.kv_bytes_per_token {
        return Ok(bytes);
    }
    Ok(sums::kv_bytes_per_token(
        need("layers", given.layers, INSTEAD)?,
        need("kv_heads", given.kv_heads, INSTEAD)?,
        need("head_dim", given.head_dim, INSTEAD)?,
        given.kv_value_bytes.unwrap_or(2.0),
    ))
}

impl TryFrom<Given> for Inputs {
    type Error = InputsError;

    /// Names in it are not looked up: [`super::resolve()`] does that.
    fn try_from(given: Given) -> Result<Self, InputsError> {
        const MODEL: &str = "name a model";
        const GPU: &str = "name a GPU";
        check(&given)?;
        let given = given.over(&presets::assumed());
        let load = "take what is assumed";
        let parameters = need("parameters", given.parameters, MODEL)?;
        let prefixes = need("prefixes", given.prefixes, load)?;
        let skew = need("skew", given.skew, load)?;
        let shared_tokens = need("shared_tokens", given.shared_tokens, load)?;
        let top = || Popularity::zipf(prefixes, skew, 1).top();
        let mut inputs = Self {
            parameters,
            active_parameters: given.active_parameters.unwrap_or(parameters),
            weight_bytes: need("weight_bytes", given.weight_bytes, MODEL)?,
            kv_heads: given.kv_heads,
            kv_bytes_per_token: kv_bytes(&given)?,
            tensor_parallel: 1,
            gpu_memory_gb: need("gpu_memory_gb", given.gpu_memory_gb, GPU)?,
            memory_fraction: need("memory_fraction", given.memory_fraction, load)?,
            reserved_gb: need("reserved_gb", given.reserved_gb, load)?,
            tflops: need("tflops", given.tflops, GPU)?,
            mfu: need("mfu", given.mfu, load)?,
            bandwidth_tb_per_s: need("bandwidth_tb_per_s", given.bandwidth_tb_per_s, GPU)?,
            mbu: need("mbu", given.mbu, load)?,
            rate: need("rate", given.rate, load)?,
            prompt_tokens: need("prompt_tokens", given.prompt_tokens, load)?,
            shared_tokens,
            prefixes,
            skew,
            tenants_with_salts: given.tenants_with_salts.unwrap_or(0),
            output_tokens: need("output_tokens", given.output_tokens, load)?,
            decode_batch: need("decode_batch", given.decode_batch, load)?,
            utilisation: need("utilisation", given.utilisation, load)?,
            warm_share: need("warm_share", given.warm_share, load)?,
            hot_share: (shared_tokens > 0.0).then(|| given.hot_share.unwrap_or_else(top)),
            price_per_gpu_hour: given.price_per_gpu_hour,
        };
        inputs.consistent()?;
        inputs.tensor_parallel = match given.tensor_parallel {
            Some(gpus) => gpus,
            None => sums::fewest_gpus(&inputs)?,
        };
        Ok(inputs)
    }
}

impl Inputs {
    fn consistent(&self) -> Result<(), InputsError> {
        if self.shared_tokens >= self.prompt_tokens {
            return Err(InputsError::AllShared {
                shared: self.shared_tokens,
                prompt: self.prompt_tokens,
            });
        }
        if self.active_parameters > self.parameters {
            return Err(InputsError::MoreActive {
                active: self.active_parameters,
                all: self.parameters,
            });
        }
        Ok(())
    }

    /// Copies of each prefix: one for each salt.
    pub fn copies(&self) -> u64 {
        self.tenants_with_salts.max(1)
    }
}
