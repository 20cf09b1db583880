//! Models, GPUs and whole cases by name, each with its source.

use std::fmt::Write as _;

use super::given::Given;
use super::inputs::InputsError;

/// A model as it is usually served.
#[derive(Clone, Copy, Debug)]
pub(super) struct Model {
    pub(super) name: &'static str,
    parameters: u64,
    active_parameters: Option<u64>,
    weight_bytes: u64,
    kv: Kv,
    /// Its products are computed in FP8 where the GPU can; else in BF16.
    pub(super) fp8: bool,
    pub(super) source: &'static str,
}

/// How a token's keys and values come to their size.
#[derive(Clone, Copy, Debug)]
enum Kv {
    /// Layers that keep the whole context, heads, size of a head; BF16.
    Heads(u64, u64, u64),
    /// One compressed vector a layer for all heads, so that every GPU holds all of it; bytes a token.
    Latent(f64),
}

/// A GPU: its data sheet, dense figures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gpu {
    pub(super) name: &'static str,
    memory_gb: f64,
    bandwidth_tb_per_s: f64,
    bf16_tflops: f64,
    fp8_tflops: Option<f64>,
    pub(super) source: &'static str,
}

/// A model on a GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Preset {
    pub(super) name: &'static str,
    pub(super) model: &'static str,
    pub(super) gpu: &'static str,
    /// GPUs a replica, share of the hottest prefix, dollars a GPU-hour; where it is a case of its own, with the assumed
    /// load as its own.
    case: Option<(u64, f64, f64)>,
    pub(super) source: &'static str,
}

const MODELS: &[Model] = &[
    Model {
        name: "llama-3.3-70b-fp8",
        parameters: 70_553_706_496,
        active_parameters: None,
        weight_bytes: 70_553_706_496,
        kv: Kv::Heads(80, 8, 128),
        fp8: true,
        source: "meta-llama/Llama-3.3-70B-Instruct config.json (80 layers, 8 KV heads of 128); a byte a parameter",
    },
    Model {
        name: "llama-3.3-70b",
        parameters: 70_553_706_496,
        active_parameters: None,
        weight_bytes: 141_107_412_992,
        kv: Kv::Heads(80, 8, 128),
        fp8: false,
        source: "meta-llama/Llama-3.3-70B-Instruct config.json (80 layers, 8 KV heads of 128); BF16",
    },
    Model {
        name: "llama-3.1-8b",
        parameters: 8_030_261_248,
        active_parameters: None,
        weight_bytes: 16_060_522_496,
        kv: Kv::Heads(32, 8, 128),
        fp8: false,
        source: "meta-llama/Llama-3.1-8B-Instruct config.json (32 layers, 8 KV heads of 128); BF16",
    },
    Model {
        name: "qwen3-8b",
        parameters: 8_190_735_360,
        active_parameters: None,
        weight_bytes: 16_381_470_720,
        kv: Kv::Heads(36, 8, 128),
        fp8: false,
        source: "Qwen/Qwen3-8B config.json (36 layers, 8 KV heads of 128); BF16",
    },
    Model {
        name: "qwen3-32b",
        parameters: 32_762_123_264,
        active_parameters: None,
        weight_bytes: 65_524_246_528,
        kv: Kv::Heads(64, 8, 128),
        fp8: false,
        source: "Qwen/Qwen3-32B config.json (64 layers, 8 KV heads of 128); BF16",
    },
    Model {
        name: "gpt-oss-120b",
        parameters: 116_830_000_000,
        active_parameters: Some(5_130_000_000),
        weight_bytes: 65_280_000_000,
        // The other half of its 36 layers sees 128 tokens and keeps no more.
        kv: Kv::Heads(18, 8, 64),
        fp8: false,
        source: "OpenAI's gpt-oss model card (116.83B parameters, 5.13B active, 60.8 GiB in MXFP4) and config.json (36 layers, \
                 every second one a window of 128; 8 KV heads of 64); products in BF16",
    },
    Model {
        name: "deepseek-v3",
        parameters: 671_000_000_000,
        active_parameters: Some(37_000_000_000),
        // The embedding and the output layer (2 × 129,280 × 7,168) stay BF16, a byte more each.
        weight_bytes: 672_900_000_000,
        kv: Kv::Latent(70_272.0),
        fp8: true,
        source: "DeepSeek-V3 technical report (671B parameters, 37B active) and config.json (61 layers; 512 + 64 latent values \
                 in BF16, on every GPU of a tensor-parallel group); FP8 but for embedding and output, no MTP",
    },
];

const GPUS: &[Gpu] = &[
    Gpu {
        name: "a100-80gb",
        memory_gb: 80.0,
        bandwidth_tb_per_s: 2.039,
        bf16_tflops: 312.0,
        fp8_tflops: None,
        source: "NVIDIA A100 data sheet, 80 GB SXM",
    },
    Gpu {
        name: "h100-sxm",
        memory_gb: 80.0,
        bandwidth_tb_per_s: 3.35,
        bf16_tflops: 989.0,
        fp8_tflops: Some(1979.0),
        source: "NVIDIA H100 data sheet, SXM; half of the figures with sparsity",
    },
    Gpu {
        name: "h200",
        memory_gb: 141.0,
        bandwidth_tb_per_s: 4.8,
        bf16_tflops: 989.0,
        fp8_tflops: Some(1979.0),
        source: "NVIDIA H200 data sheet, SXM; half of the figures with sparsity",
    },
    Gpu {
        name: "l40s",
        memory_gb: 48.0,
        bandwidth_tb_per_s: 0.864,
        bf16_tflops: 362.05,
        fp8_tflops: Some(733.0),
        source: "NVIDIA L40S data sheet; figures without sparsity",
    },
    Gpu {
        name: "rtx-4090",
        memory_gb: 24.0,
        bandwidth_tb_per_s: 1.008,
        bf16_tflops: 165.2,
        fp8_tflops: Some(330.3),
        source: "NVIDIA Ada GPU architecture white paper; without sparsity, sums in FP32",
    },
    Gpu {
        name: "b200",
        memory_gb: 180.0,
        bandwidth_tb_per_s: 8.0,
        bf16_tflops: 2250.0,
        fp8_tflops: Some(4500.0),
        source: "NVIDIA HGX B200 data sheet, a GPU of eight; half of the figures with sparsity",
    },
];

const fn case(name: &'static str, model: &'static str, gpu: &'static str) -> Preset {
    Preset {
        name,
        model,
        gpu,
        case: None,
        source: "the model on that GPU, the assumed load; no price",
    }
}

const PRESETS: &[Preset] = &[
    Preset {
        name: "llama-3.3-70b-h200",
        model: "llama-3.3-70b-fp8",
        gpu: "h200",
        case: Some((2, 0.10, 3.5)),
        source: "the reference case of docs/plan.md",
    },
    case("llama-3.1-8b-l40s", "llama-3.1-8b", "l40s"),
    case("llama-3.1-8b-rtx-4090", "llama-3.1-8b", "rtx-4090"),
    case("qwen3-8b-a100", "qwen3-8b", "a100-80gb"),
    case("qwen3-32b-h100", "qwen3-32b", "h100-sxm"),
    case("gpt-oss-120b-h100", "gpt-oss-120b", "h100-sxm"),
    case("deepseek-v3-h200", "deepseek-v3", "h200"),
    case("llama-3.3-70b-b200", "llama-3.3-70b-fp8", "b200"),
];

/// What is taken for what nobody says: the reference load, and the usual efficiencies.
pub(super) fn assumed() -> Given {
    Given {
        memory_fraction: Some(0.92),
        reserved_gb: Some(3.0),
        mfu: Some(0.5),
        mbu: Some(0.75),
        rate: Some(40.0),
        prompt_tokens: Some(8000.0),
        shared_tokens: Some(6000.0),
        prefixes: Some(200),
        skew: Some(0.0),
        tenants_with_salts: Some(0),
        output_tokens: Some(300.0),
        decode_batch: Some(64),
        utilisation: Some(0.65),
        warm_share: Some(0.9),
        ..Given::default()
    }
}

impl Model {
    pub(super) fn given(&self) -> Given {
        let given = Given {
            parameters: Some(self.parameters),
            active_parameters: Some(self.active_parameters.unwrap_or(self.parameters)),
            weight_bytes: Some(self.weight_bytes),
            ..Given::default()
        };
        match self.kv {
            Kv::Heads(layers, heads, size) => Given {
                layers: Some(layers),
                kv_heads: Some(heads),
                head_dim: Some(size),
                kv_value_bytes: Some(2.0),
                ..given
            },
            Kv::Latent(bytes) => Given {
                kv_heads: Some(1),
                kv_bytes_per_token: Some(bytes),
                ..given
            },
        }
    }
}

impl Gpu {
    pub(super) fn given(&self, fp8: bool) -> Given {
        let fast = self.fp8_tflops.filter(|_| fp8);
        Given {
            gpu_memory_gb: Some(self.memory_gb),
            bandwidth_tb_per_s: Some(self.bandwidth_tb_per_s),
            tflops: Some(fast.unwrap_or(self.bf16_tflops)),
            ..Given::default()
        }
    }
}

impl Preset {
    /// What it says beside its model and its GPU.
    pub(super) fn given(&self) -> Given {
        let Some((gpus, hot_share, price)) = self.case else {
            return Given::default();
        };
        Given {
            tensor_parallel: Some(gpus),
            hot_share: Some(hot_share),
            price_per_gpu_hour: Some(price),
            ..assumed()
        }
    }
}

pub(super) fn model(name: &str) -> Result<&'static Model, InputsError> {
    find("model", name, MODELS, |model| model.name)
}

pub(super) fn gpu(name: &str) -> Result<&'static Gpu, InputsError> {
    find("GPU", name, GPUS, |gpu| gpu.name)
}

pub(super) fn preset(name: &str) -> Result<&'static Preset, InputsError> {
    find("preset", name, PRESETS, |preset| preset.name)
}

fn find<T>(
    kind: &'static str,
    name: &str,
    all: &'static [T],
    name_of: impl Fn(&T) -> &'static str,
) -> Result<&'static T, InputsError> {
    all.iter()
        .find(|one| name_of(one) == name)
        .ok_or_else(|| InputsError::UnknownName {
            kind,
            name: name.to_owned(),
            known: all.iter().map(name_of).collect::<Vec<_>>().join(", "),
        })
}

/// The names of all presets.
pub fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|preset| preset.name)
}

/// The names of all models and of all GPUs.
pub fn parts() -> (
    impl Iterator<Item = &'static str>,
    impl Iterator<Item = &'static str> + Clone,
) {
    let gpus = GPUS.iter().map(|gpu| gpu.name);
    (MODELS.iter().map(|model| model.name), gpus)
}

/// Every name with its source.
pub(super) fn listing() -> String {
    let mut text = String::from("presets (--preset)\n");
    // A string takes whatever is written to it.
    for Preset {
        name,
        model,
        gpu,
        source,
        ..
    } in PRESETS
    {
        let _infallible = writeln!(text, "  {name:<22} {model} on {gpu}: {source}");
    }
    text.push_str("\nmodels (--model)\n");
    for Model { name, source, .. } in MODELS {
        let _infallible = writeln!(text, "  {name:<22} {source}");
    }
    text.push_str("\nGPUs (--gpu)\n");
    for Gpu { name, source, .. } in GPUS {
        let _infallible = writeln!(text, "  {name:<22} {source}");
    }
    text.trim_end().to_owned()
}
