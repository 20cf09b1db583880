//! What can be given: each figure with its unit and its bounds, as a flag and as a key of a file.

use std::path::Path;

use serde::Deserialize;

use super::inputs::InputsError;

/// What is known of one kind of figure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    least: f64,
    most: f64,
}

impl Field {
    const fn new(name: &'static str, placeholder: &str, least: f64, most: f64) -> Self {
        Self {
            name,
            unit: unit(placeholder),
            least,
            most,
        }
    }
}

/// The unit for which a flag's placeholder stands; nothing for what is counted, and for shares.
const fn unit(placeholder: &str) -> &'static str {
    match placeholder.as_bytes() {
        b"BYTES" => "bytes",
        b"GB" => "GB",
        b"TFLOPS" => "TFLOP/s",
        b"TB_PER_S" => "TB/s",
        b"PER_SECOND" => "a second",
        b"TOKENS" => "tokens",
        b"DOLLARS" => "dollars",
        _ => "",
    }
}

/// Numbers that a figure can be.
trait Figure: Copy {
    fn as_f64(self) -> f64;
}

impl Figure for f64 {
    fn as_f64(self) -> f64 {
        self
    }
}

impl Figure for u64 {
    fn as_f64(self) -> f64 {
        self as f64
    }
}

/// One line a figure makes the flag, the key in the file, the bounds and the merging, so that none can be forgotten.
macro_rules! figures {
    ($($(#[$doc:meta])+ $name:ident: $kind:ty, $unit:literal, $least:literal ..= $most:literal;)+) => {
        /// Figures as given in one place; those not given there are `None`.
        #[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Given {
            /// A whole case by name (--list), for example llama-3.3-70b-h200
            #[arg(long, value_name = "NAME")]
            pub preset: Option<String>,
            /// A model by name (--list)
            #[arg(long, value_name = "NAME")]
            pub model: Option<String>,
            /// A GPU by name (--list)
            #[arg(long, value_name = "NAME")]
            pub gpu: Option<String>,
            $(
                $(#[$doc])+
                #[arg(long, value_name = $unit, allow_negative_numbers = true)]
                pub $name: Option<$kind>,
            )+
        }

        impl Given {
            /// These figures, and those of `lower` where there is none.
            pub(super) fn over(self, lower: &Self) -> Self {
                Self {
                    preset: self.preset.or_else(|| lower.preset.clone()),
                    model: self.model.or_else(|| lower.model.clone()),
                    gpu: self.gpu.or_else(|| lower.gpu.clone()),
                    $($name: self.$name.or(lower.$name),)+
                }
            }

            /// Every figure, given or not.
            pub(super) fn figures(&self) -> Vec<(Field, Option<f64>)> {
                vec![$((
                    Field::new(stringify!($name), $unit, $least, $most),
                    self.$name.map(Figure::as_f64),
                ),)+]
            }
        }
    };
}

figures! {
    /// Parameters of the model
    parameters: u64, "COUNT", 1e6 ..= 1e14;
    /// Parameters that each token passes through, where fewer (mixture of experts) [default: all]
    active_parameters: u64, "COUNT", 1e6 ..= 1e14;
    /// Weights of one replica, on all its GPUs together
    weight_bytes: u64, "BYTES", 1e5 ..= 1e15;
    /// Layers that keep keys and values of the whole context
    layers: u64, "COUNT", 1.0 ..= 1e4;
    /// Heads of keys and values; more GPUs than these hold copies
    kv_heads: u64, "COUNT", 1.0 ..= 1e4;
    /// Size of a head
    head_dim: u64, "COUNT", 1.0 ..= 1e5;
    /// Bytes of one value in the KV cache: 2 for BF16, 1 for FP8
    kv_value_bytes: f64, "BYTES", 0.25 ..= 8.0;
    /// Bytes of a token's keys and values [default: 2 x layers x kv heads x head dim x bytes of a value]
    kv_bytes_per_token: f64, "BYTES", 1.0 ..= 1e9;
    /// GPUs of a replica [default: the fewest, doubling, that hold the weights and the decode batch]
    tensor_parallel: u64, "COUNT", 1.0 ..= 1024.0;
    /// Memory of a GPU, in 10^9 bytes
    gpu_memory_gb: f64, "GB", 1.0 ..= 1e5;
    /// Share of it that the engine may use (vLLM's --gpu-memory-utilization)
    memory_fraction: f64, "SHARE", 0.01 ..= 1.0;
    /// What of that goes to activations and graphs on each GPU, in 10^9 bytes
    reserved_gb: f64, "GB", 0.0 ..= 1e5;
    /// Peak dense 10^12 operations a second of a GPU, in the precision computed in
    tflops: f64, "TFLOPS", 0.1 ..= 1e6;
    /// Share of it that prefill attains
    mfu: f64, "SHARE", 0.001 ..= 1.0;
    /// Memory bandwidth of a GPU, in 10^12 bytes a second
    bandwidth_tb_per_s: f64, "TB_PER_S", 0.001 ..= 1e4;
    /// Share of it that decoding attains
    mbu: f64, "SHARE", 0.001 ..= 1.0;
    /// Requests a second, of the whole fleet
    rate: f64, "PER_SECOND", 1e-6 ..= 1e7;
    /// Mean length of a prompt
    prompt_tokens: f64, "TOKENS", 1.0 ..= 1e8;
    /// What of it others have as well
    shared_tokens: f64, "TOKENS", 0.0 ..= 1e8;
    /// Distinct shared prefixes
    prefixes: u64, "COUNT", 1.0 ..= 1e9;
    /// Zipf exponent of the prefixes' popularity; 0: all alike
    skew: f64, "EXPONENT", 0.0 ..= 5.0;
    /// Tenants that use the prefixes each with a cache salt of its own: as many copies of each prefix
    tenants_with_salts: u64, "COUNT", 0.0 ..= 1e6;
    /// Mean length of an answer
    output_tokens: f64, "TOKENS", 1.0 ..= 1e7;
    /// Requests that decode together on a replica
    decode_batch: u64, "COUNT", 1.0 ..= 65536.0;
    /// Share of a replica's time that may be in use
    utilisation: f64, "SHARE", 0.01 ..= 1.0;
    /// Share of requests whose prefix was asked for before, so that it is cached if it was kept
    warm_share: f64, "SHARE", 0.0 ..= 1.0;
    /// Share of the traffic that the hottest prefix has [default: by prefixes and skew]
    hot_share: f64, "SHARE", 1e-9 ..= 1.0;
    /// Price of a GPU for an hour, in dollars
    price_per_gpu_hour: f64, "DOLLARS", 0.0 ..= 1e6;
}

/// Refuses what is out of its bounds, and what is no number.
pub(super) fn check(given: &Given) -> Result<(), InputsError> {
    for (field, value) in given.figures() {
        if let Some(value) = value
            && !(field.least..=field.most).contains(&value)
        {
            return Err(InputsError::OutOfBounds {
                field: field.name,
                value,
                least: field.least,
                most: field.most,
                unit: field.unit,
            });
        }
    }
    Ok(())
}

/// Reads a file of figures.
///
/// # Errors
/// When it cannot be read, is no YAML, or has keys or values that make no sense.
pub(super) fn read_file(path: &Path) -> Result<Given, InputsError> {
    let text = std::fs::read_to_string(path).map_err(|error| InputsError::File {
        path: path.to_owned(),
        problem: error.to_string(),
    })?;
    crate::yaml::read(&text).map_err(|located| InputsError::Text {
        path: path.to_owned(),
        line: located.line,
        column: located.column,
        problem: located.problem,
    })
}
