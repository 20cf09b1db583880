//! The chat templates of a model, their choice, and the variables that come with them.

use minijinja::Value;
use serde_json::{Map, Value as Json};

use crate::routing::request::{Chat, Side};
use crate::routing::template::{ChatTemplate, Unfit};
use crate::routing::tokenize::load::token_text;

use super::{LoadError, TokensError};

/// Special tokens that transformers passes to templates under these names.
const SPECIAL_TOKENS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// Since this version a `reasoning_effort` also sets `enable_thinking`.
const EFFORT_SETS_THINKING: (u32, u32) = (0, 22);

/// A model's templates.
pub(super) struct Templates {
    default: Option<ChatTemplate>,
    tool_use: Option<ChatTemplate>,
    special_tokens: Vec<(String, Value)>,
    truncation_side: Side,
    is_harmony: bool,
}

/// A JSON file that holds an object; an absent one is empty.
pub(super) fn object(
    file: &'static str,
    bytes: &Option<Vec<u8>>,
) -> Result<Map<String, Json>, LoadError> {
    bytes.as_ref().map_or_else(
        || Ok(Map::new()),
        |bytes| serde_json::from_slice(bytes).map_err(|source| LoadError::Config { file, source }),
    )
}

impl Templates {
    /// Compiles the template of the model folder's own file, else those of its
    /// `tokenizer_config.json`: one, or several by name.
    pub(super) fn load(config: &Map<String, Json>, file: Option<&str>) -> Result<Self, LoadError> {
        let of_config = config.get("chat_template");
        let named = |wanted: &str| {
            of_config?.as_array()?.iter().find_map(|entry| {
                (entry.get("name")?.as_str()? == wanted).then(|| entry.get("template")?.as_str())?
            })
        };
        let file = file.filter(|template| !template.trim().is_empty());
        let default = file
            .or_else(|| of_config?.as_str())
            .or_else(|| named("default"));
        let tool_use = match file {
            Some(_) => None,
            None => named("tool_use"),
        };
        let compile = |name: &str, source: Option<&str>| {
            source
                .map(ChatTemplate::new)
                .transpose()
                .map_err(|source| LoadError::Template {
                    name: name.to_owned(),
                    source,
                })
        };
        Ok(Self {
            is_harmony: default.is_some_and(|source| {
                source.contains("<|channel|>") && source.contains("<|start|>")
            }),
            default: compile("default", default)?,
            tool_use: compile("tool_use", tool_use)?,
            special_tokens: special_tokens(config),
            truncation_side: match config.get("truncation_side").and_then(Json::as_str) {
                Some("left") => Side::Left,
                _ => Side::Right,
            },
        })
    }

    /// The template for a chat.
    pub(super) fn select(&self, with_tools: bool) -> Option<&ChatTemplate> {
        self.tool_use
            .as_ref()
            .filter(|_| with_tools)
            .or(self.default.as_ref())
    }

    pub(super) fn special_tokens(&self) -> &[(String, Value)] {
        &self.special_tokens
    }

    /// The tokenizer's own side, for models that do not generate.
    pub(super) fn truncation_side(&self) -> Side {
        self.truncation_side
    }

    /// The template writes OpenAI's Harmony format, which engines render by code.
    pub(super) fn is_harmony(&self) -> bool {
        self.is_harmony
    }
}

fn special_tokens(config: &Map<String, Json>) -> Vec<(String, Value)> {
    let mut tokens: Vec<(String, Value)> = SPECIAL_TOKENS
        .iter()
        .filter_map(|name| {
            let token = token_text(config.get(*name))?;
            Some(((*name).to_owned(), Value::from(token)))
        })
        .collect();
    if let Some(more) = config
        .get("additional_special_tokens")
        .and_then(Json::as_array)
    {
        let more: Vec<Value> = more
            .iter()
            .filter_map(|token| token_text(Some(token)).map(Value::from))
            .collect();
        tokens.push(("additional_special_tokens".to_owned(), Value::from(more)));
    }
    tokens
}

/// The named arguments of a chat: the request's own, below what its other fields say.
pub(super) fn kwargs(
    chat: &Chat,
    template: &ChatTemplate,
    version: Option<(u32, u32)>,
) -> Result<Vec<(String, Value)>, TokensError> {
    let mut kwargs = chat.template_kwargs.clone();
    if chat.documents.is_some() {
        kwargs.retain(|(name, _)| name != "documents");
    }
    let Some(effort) = &chat.reasoning_effort else {
        return Ok(kwargs);
    };
    kwargs.retain(|(name, _)| name != "reasoning_effort");
    kwargs.push(("reasoning_effort".to_owned(), effort.clone()));
    let explicit = kwargs.iter().any(|(name, _)| name == "enable_thinking");
    if !explicit && template.mentions("enable_thinking") {
        let version = version.ok_or(Unfit::UnknownVersion("`reasoning_effort`"))?;
        if version >= EFFORT_SETS_THINKING {
            let thinks = effort.as_str() != Some("none");
            kwargs.push(("enable_thinking".to_owned(), Value::from(thinks)));
        }
    }
    Ok(kwargs)
}
