//! Models whose chats the engine renders by its own code instead of a template.
//!
//! vLLM chooses by `--tokenizer-mode auto`: Harmony by the model type `gpt_oss`, Mistral's by files (`tekken.json`
//! or `tokenizer.model.v*` beside its `consolidated` weights), the others by architecture. All but Harmony are also
//! what `/tokenize` does, so those chats are handed to the engine. `/tokenize` never speaks Harmony: it prints
//! the template, whose ids are not what is prefilled, so nobody can be asked for those.

use serde_json::{Map, Value as Json};

use super::templates::Templates;

/// Who renders a model's chats, where a template does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnRenderer {
    /// Harmony, with today's date; the engine's `/tokenize` does not tell its ids either.
    Harmony,
    /// Code of the engine's, in these words; `/tokenize` runs it too.
    Engine(&'static str),
}

impl OwnRenderer {
    /// In words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Harmony => "Harmony, with today's date",
            Self::Engine(why) => why,
        }
    }
}

/// Where Harmony is chosen: this very type, not one that begins so.
const HARMONY: &str = "gpt_oss";

const MISTRAL: &str = "mistral_common may render it";

/// Beginnings of `model_type` or of an architecture, and why their template (if there is one) is not what counts.
/// Texts for completions are tokenized here all the same.
const OWN_RENDERERS: [(&str, &str); 16] = [
    ("deepseek_v32", "DeepSeek V3.2's own encoding"),
    ("deepseek_v4", "DeepSeek V4's own encoding"),
    ("kimi_k3", "Kimi K3's own encoding"),
    ("kimi_audio", "Kimi Audio's own encoding"),
    ("moonshot_kimia", "Kimi Audio's own encoding"),
    ("inkling", "Inkling's own encoding"),
    ("cohere", "Cohere's own encoding"),
    ("grok", "Grok's own encoding"),
    ("step_audio", "Step Audio's own encoding"),
    ("opuslm", "OpusLM's own layout"),
    ("qwen_vl", "Qwen-VL's own encoding"),
    // Whether its repository has the files that decide is not always visible here.
    ("mistral", MISTRAL),
    ("ministral", MISTRAL),
    ("mixtral", MISTRAL),
    ("pixtral", MISTRAL),
    ("voxtral", MISTRAL),
];

/// Who renders a model's chats, if not its template. `mistral_files`: the files that make an engine choose Mistral's
/// tokenizer are beside it.
pub(super) fn own(
    config: &Map<String, Json>,
    templates: &Templates,
    mistral_files: bool,
) -> Option<OwnRenderer> {
    let model_type = config.get("model_type").and_then(Json::as_str);
    if model_type.map_or_else(|| templates.is_harmony(), |name| name == HARMONY) {
        return Some(OwnRenderer::Harmony);
    }
    if mistral_files {
        return Some(OwnRenderer::Engine(MISTRAL));
    }
    let text_type = config
        .get("text_config")
        .and_then(|text_config| text_config.get("model_type")?.as_str());
    let architectures = config
        .get("architectures")
        .and_then(Json::as_array)
        .into_iter()
        .flatten()
        .filter_map(Json::as_str);
    let names = model_type.into_iter().chain(text_type).chain(architectures);
    names
        .map(|name| name.to_lowercase().replace('-', "_"))
        .find_map(|name| {
            OWN_RENDERERS
                .iter()
                .find(|(start, _)| {
                    name.starts_with(start) || name.starts_with(&start.replace('_', ""))
                })
                .map(|(_, why)| OwnRenderer::Engine(why))
        })
}
