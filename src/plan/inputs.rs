//! What is known before the sums: each figure with its unit and bounds, and where it came from.
//!
//! A figure is taken from the first of these that has it: flag, trace, file, GPU, model, preset, what is assumed.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::measure::Measured;
use super::popularity::Popularity;
use super::presets::{self, Gpu, Model};
use super::sums::{self, SumsError};

/// What is known of one kind of figure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    least: f64,
    most: f64,
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
            fn over(self, lower: &Self) -> Self {
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
                    Field { name: stringify!($name), unit: $unit, least: $least, most: $most },
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
    /// Share of the traffic that the hottest prefix has.
    pub hot_share: f64,
    /// Price of a GPU for an hour, dollars; without it no cost is told.
    pub price_per_gpu_hour: Option<f64>,
}

/// Why there is nothing to work with.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum InputsError {
    /// A figure makes no sense.
    #[error("{field} must be between {least} and {most} ({unit}), not {value}")]
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

/// Inputs with the place each came from.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The inputs.
    pub inputs: Inputs,
    /// For each figure in use: name, unit, value, where it came from.
    pub origins: Vec<Origin>,
    /// What the names stand on: one line a preset, model, GPU.
    pub sources: Vec<String>,
}

/// Where a figure came from.
#[derive(Clone, Debug, Serialize)]
pub struct Origin {
    /// The figure's name.
    pub field: &'static str,
    /// Its value.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// Flag, trace, file, GPU, model, preset, assumed, or worked out.
    pub from: String,
}

/// Reads a file of figures.
///
/// # Errors
/// When it cannot be read, is no YAML, or has keys or values that make no sense.
pub fn read_file(path: &Path) -> Result<Given, InputsError> {
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

/// Puts the inputs together.
///
/// # Errors
/// When a name is unknown, or a figure is missing or out of its bounds.
pub fn resolve(
    flags: Given,
    measured: Option<&Measured>,
    file: Option<Given>,
) -> Result<Resolved, InputsError> {
    let file = file.unwrap_or_default();
    let named = flags.clone().over(&file);
    let preset = named.preset.as_deref().map(presets::preset).transpose()?;
    let model_name = named.model.as_deref().or(preset.map(|preset| preset.model));
    let model = model_name.map(presets::model).transpose()?;
    let gpu_name = named.gpu.as_deref().or(preset.map(|preset| preset.gpu));
    let gpu = gpu_name.map(presets::gpu).transpose()?;

    let mut layers = vec![("flag".to_owned(), flags)];
    if let Some(measured) = measured {
        layers.push(("trace".to_owned(), measured.given()));
    }
    layers.push(("file".to_owned(), file));
    if let Some(gpu) = gpu {
        layers.push((format!("GPU {}", gpu.name), gpu_figures(gpu, model, &named)));
    }
    if let Some(model) = model {
        layers.push((format!("model {}", model.name), model.given()));
    }
    if let Some(preset) = preset {
        // What a preset says beside model and GPU holds for these two only.
        let same = named.model.is_none() && named.gpu.is_none();
        let fleet = if same {
            preset.given()
        } else {
            Given::default()
        };
        layers.push((format!("preset {}", preset.name), fleet));
    }
    layers.push(("assumed".to_owned(), presets::assumed()));
    let sources = [
        model.map(|model| format!("model {}: {}", model.name, model.source)),
        gpu.map(|gpu| format!("GPU {}: {}", gpu.name, gpu.source)),
        preset.map(|preset| format!("preset {}: {}", preset.name, preset.source)),
    ];
    finish(layers, sources.into_iter().flatten().collect())
}

/// Which of the two rates of a GPU holds: by the model's own precision, else by the bytes a weight has.
fn gpu_figures(gpu: &Gpu, model: Option<&Model>, named: &Given) -> Given {
    let fp8 = match (model, named.weight_bytes, named.parameters) {
        (Some(model), _, _) => model.fp8,
        (None, Some(bytes), Some(parameters)) => bytes < parameters + parameters / 4,
        _ => false,
    };
    gpu.given(fp8)
}

/// Merges the layers, highest first, and fills in what follows from other figures.
fn finish(mut layers: Vec<(String, Given)>, sources: Vec<String>) -> Result<Resolved, InputsError> {
    for (_, layer) in &layers {
        check(layer)?;
    }
    own_kv(&mut layers);
    let merged = layers
        .iter()
        .fold(Given::default(), |given, (_, layer)| given.over(layer));
    let inputs = Inputs::try_from(merged.clone())?;
    let mut origins = Vec::new();
    for (at, (field, value)) in merged.figures().into_iter().enumerate() {
        let from = |layer: &Given| layer.figures().get(at).is_some_and(|(_, v)| v.is_some());
        let layer = layers.iter().find(|(_, layer)| from(layer));
        let known = value
            .zip(layer)
            .map(|(value, (from, _))| (value, from.clone()));
        if let Some((value, from)) = known.or_else(|| worked_out(field.name, &inputs)) {
            let (field, unit) = (field.name, field.unit);
            origins.push(Origin {
                field,
                value,
                unit,
                from,
            });
        }
    }
    Ok(Resolved {
        inputs,
        origins,
        sources,
    })
}

/// Whoever gives a model's shape, or the size of a value, does not mean the bytes a token that stand in a lower layer.
fn own_kv(layers: &mut [(String, Given)]) {
    let mut shaped = false;
    for (_, layer) in layers {
        if shaped {
            layer.kv_bytes_per_token = None;
        }
        let shape = layer.layers.is_some()
            || layer.head_dim.is_some()
            || layer.kv_value_bytes.is_some()
            || (layer.kv_heads.is_some() && layer.kv_bytes_per_token.is_none());
        shaped |= shape && layer.kv_bytes_per_token.is_none();
    }
}

fn worked_out(field: &str, inputs: &Inputs) -> Option<(f64, String)> {
    let value = match field {
        "active_parameters" => inputs.active_parameters as f64,
        "kv_bytes_per_token" => inputs.kv_bytes_per_token,
        "tensor_parallel" => inputs.tensor_parallel as f64,
        "hot_share" => inputs.hot_share,
        _ => return None,
    };
    Some((value, "worked out".to_owned()))
}

fn check(given: &Given) -> Result<(), InputsError> {
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

    /// Names in it are not looked up: [`resolve`] does that.
    fn try_from(given: Given) -> Result<Self, InputsError> {
        const MODEL: &str = "name a model";
        const GPU: &str = "name a GPU";
        check(&given)?;
        let given = given.over(&presets::assumed());
        let load = "take what is assumed";
        let parameters = need("parameters", given.parameters, MODEL)?;
        let prefixes = need("prefixes", given.prefixes, load)?;
        let skew = need("skew", given.skew, load)?;
        let top = Popularity::zipf(prefixes, skew, 1).top();
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
            shared_tokens: need("shared_tokens", given.shared_tokens, load)?,
            prefixes,
            skew,
            tenants_with_salts: given.tenants_with_salts.unwrap_or(0),
            output_tokens: need("output_tokens", given.output_tokens, load)?,
            decode_batch: need("decode_batch", given.decode_batch, load)?,
            utilisation: need("utilisation", given.utilisation, load)?,
            warm_share: need("warm_share", given.warm_share, load)?,
            hot_share: given.hot_share.unwrap_or(top),
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
    /// The inputs of a preset.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn preset(name: &str) -> Result<Self, InputsError> {
        let named = Given {
            preset: Some(name.to_owned()),
            ..Given::default()
        };
        resolve(named, None, None).map(|resolved| resolved.inputs)
    }

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
