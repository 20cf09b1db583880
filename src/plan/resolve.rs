//! Where does each input come from?
//!
//! A figure is taken from the first of these that has it: flag, trace, file, GPU, model, preset, what is assumed.

use serde::Serialize;

use super::given::{Given, check};
use super::inputs::{Inputs, InputsError};
use super::measure::Measured;
use super::presets::{self, Gpu, Model};

/// The layer of what was counted.
const TRACE: &str = "trace";

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
    // What a GPU's precision is told by has to make sense already.
    check(&flags)?;
    check(&file)?;
    let named = flags.clone().over(&file);
    let preset = named.preset.as_deref().map(presets::preset).transpose()?;
    let model_name = named
        .model
        .as_deref()
        .or_else(|| preset.map(|preset| preset.model));
    let model = model_name.map(presets::model).transpose()?;
    let gpu_name = named
        .gpu
        .as_deref()
        .or_else(|| preset.map(|preset| preset.gpu));
    let gpu = gpu_name.map(presets::gpu).transpose()?;

    let mut layers = vec![("flag".to_owned(), flags)];
    if let Some(measured) = measured {
        layers.push((TRACE.to_owned(), measured.given()));
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
    own_popularity(&mut layers);
    hottest_is_hot(&layers)?;
    let merged = layers
        .iter()
        .fold(Given::default(), |given, (_, layer)| given.over(layer));
    let inputs = Inputs::try_from(merged.clone())?;
    let mut origins = Vec::new();
    for (at, (field, value)) in merged.figures().into_iter().enumerate() {
        // Where nothing is shared, no prefix is the hottest, whatever was said of it.
        if field.name == "hot_share" && inputs.hot_share.is_none() {
            continue;
        }
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

/// Whoever gives how many prefixes there are, or how their popularity falls, does not mean the hottest one's share that
/// stands in a lower layer.
fn own_popularity(layers: &mut [(String, Given)]) {
    let mut told = false;
    for (_, layer) in layers {
        if told {
            layer.hot_share = None;
        }
        told |= layer.prefixes.is_some() || layer.skew.is_some();
    }
}

/// Refuses a hottest prefix with less than the mean one's share, but for rounding (0.33 of 3 prefixes). Counted figures
/// are left alone: a trace has requests without a shared prefix, and tells its set as so many prefixes of mean length.
fn hottest_is_hot(layers: &[(String, Given)]) -> Result<(), InputsError> {
    const ROUNDED: f64 = 0.98;
    let prefixes = layers
        .iter()
        .find_map(|(from, layer)| Some((from, layer.prefixes?)));
    let hot = layers
        .iter()
        .find_map(|(from, layer)| Some((from, layer.hot_share?)));
    match (prefixes, hot) {
        (Some((counted, _)), _) | (_, Some((counted, _))) if counted == TRACE => Ok(()),
        (Some((_, prefixes)), Some((_, hot))) if hot * (prefixes as f64) < ROUNDED => {
            Err(InputsError::ColdestHot { hot, prefixes })
        }
        _ => Ok(()),
    }
}

fn worked_out(field: &str, inputs: &Inputs) -> Option<(f64, String)> {
    let value = match field {
        "active_parameters" => inputs.active_parameters as f64,
        "kv_bytes_per_token" => inputs.kv_bytes_per_token,
        "tensor_parallel" => inputs.tensor_parallel as f64,
        "hot_share" => inputs.hot_share?,
        _ => return None,
    };
    Some((value, "worked out".to_owned()))
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
}
