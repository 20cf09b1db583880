//! Models whose chats the engine renders by its own code instead of a template.

use serde_json::{Map, Value as Json};

use super::templates::Templates;

/// Beginnings of `model_type`, and why their template (if there is one) is not what counts.
/// Texts for completions are tokenized here all the same.
const OWN_RENDERERS: [(&str, &str); 14] = [
    ("gpt_oss", "Harmony, with today's date"),
    ("deepseek_v32", "DeepSeek V3.2's own encoding"),
    ("deepseek_v4", "DeepSeek V4's own encoding"),
    ("kimi_k3", "Kimi K3's own encoding"),
    ("kimi_audio", "Kimi Audio's own encoding"),
    ("inkling", "Inkling's own encoding"),
    ("cohere", "Cohere's own encoding"),
    ("grok", "Grok's own encoding"),
    ("step_audio", "Step Audio's own encoding"),
    // mistral_common serves these where the repository has its tokenizer files.
    ("mistral", "mistral_common may render it"),
    ("ministral", "mistral_common may render it"),
    ("mixtral", "mistral_common may render it"),
    ("pixtral", "mistral_common may render it"),
    ("voxtral", "mistral_common may render it"),
];

/// Why the engine renders a model's chats itself, if it does.
pub(super) fn own(config: &Map<String, Json>, templates: &Templates) -> Option<&'static str> {
    if templates.is_harmony() {
        return Some("Harmony, with today's date");
    }
    let text_config = config.get("text_config").and_then(Json::as_object);
    let model_types = [Some(config), text_config]
        .into_iter()
        .flatten()
        .filter_map(|config| config.get("model_type").and_then(Json::as_str));
    let architectures = config
        .get("architectures")
        .and_then(Json::as_array)
        .into_iter()
        .flatten()
        .filter_map(Json::as_str);
    model_types
        .chain(architectures)
        .map(|name| name.to_lowercase().replace('-', "_"))
        .find_map(|name| {
            OWN_RENDERERS
                .iter()
                .find(|(start, _)| {
                    name.starts_with(start) || name.starts_with(&start.replace('_', ""))
                })
                .map(|(_, why)| *why)
        })
}
