//! A model's tokenizer and chat template together: from a request to the token ids its engine prefills.
//!
//! Exact or not at all: where the ids cannot be known here for certain, the error says why and
//! somebody else (the engine, an estimate) takes over.

mod converted;
mod renderer;
mod templates;
mod truncate;

use super::request::{Chat, Content, Inexact, Prompt, Prompts, Request};
use super::template::{
    ChatTemplate, Reading, Target, TemplateError, Unfit, Variables, conversation, has_two_readings,
    tools,
};
use super::tokenize::{EncodeError, Tokenizer, TokenizerError};
use templates::Templates;

pub use renderer::OwnRenderer;

/// The files of a model folder that matter here, as bytes (reading them is the shell's work).
#[derive(Clone, Debug, Default)]
pub struct ModelFiles {
    /// `tokenizer.json`
    pub tokenizer: Vec<u8>,
    /// `tokenizer_config.json`
    pub tokenizer_config: Option<Vec<u8>>,
    /// `chat_template.jinja`, or `chat_template.json`'s template
    pub chat_template: Option<String>,
    /// `config.json`
    pub config: Option<Vec<u8>>,
    /// `tekken.json` or a `tokenizer.model.v*` lies beside them, by which engines choose Mistral's own tokenizer.
    pub mistral: bool,
}

/// The engine's side of rendering: what differs between its versions and moments.
#[derive(Clone, Debug, Default)]
pub struct RenderContext {
    /// vLLM's version as (major, minor), if known: the developer role depends on it.
    pub engine_version: Option<(u32, u32)>,
    /// Unix time in seconds, for templates that print today's date.
    pub unix_time: i64,
    /// The engine's context length, for truncation.
    pub max_model_len: Option<u32>,
}

/// Why a model folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The tokenizer.
    #[error("tokenizer.json cannot be used")]
    Tokenizer(#[from] TokenizerError),
    /// A configuration file.
    #[error("{file} is not a JSON object")]
    Config {
        /// Which.
        file: &'static str,
        /// Where it breaks.
        #[source]
        source: serde_json::Error,
    },
    /// The chat template.
    #[error("the chat template `{name}` cannot be compiled")]
    Template {
        /// Its name among the model's templates.
        name: String,
        /// Where it breaks.
        #[source]
        source: TemplateError,
    },
}

/// Why this request's tokens cannot be made here (the engine is asked instead).
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// No chat template.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The engine renders this model's chats with code of its own.
    #[error("the engine renders chats of this model without a template: {}", .0.as_str())]
    OwnRenderer(OwnRenderer),
    /// The body itself has no exact ids.
    #[error(transparent)]
    Inexact(#[from] Inexact),
    /// Messages or tools have no exact rendering here.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// The template refused.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The request is cut to the context length, which is not known.
    #[error("the prompt is cut to the engine's context length, which is not known")]
    ContextLength,
    /// The tokenizer refused.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

impl TokensError {
    /// A label of a closed set, for logs and metrics.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NoTemplate => "no_template",
            Self::OwnRenderer(OwnRenderer::Harmony) => HARMONY,
            Self::OwnRenderer(OwnRenderer::Engine(_)) => "own_renderer",
            Self::Inexact(why) => why.reason(),
            Self::Unfit(Unfit::Media(_)) => "media",
            Self::Unfit(Unfit::Shape { .. }) => "unknown_shape",
            Self::Unfit(Unfit::UnknownVersion(_)) => "unknown_engine_version",
            Self::Unfit(Unfit::Unsure(_)) => "unsure",
            Self::Template(_) => "template_refused",
            Self::ContextLength => "unknown_context_length",
            Self::Encode(_) => "tokenizer_refused",
        }
    }
}

/// The reason by which it is known that nobody can be asked for a chat's ids.
pub const HARMONY: &str = "harmony";

/// Bytes for pieces of text seen before, where nobody says otherwise: about 5 M tokens.
const CACHE_BYTES: usize = 64 << 20;

/// A loaded model. Cheap to share; `sequences` takes `&self` from many threads.
pub struct Model {
    tokenizer: Tokenizer,
    templates: Templates,
    own_renderer: Option<OwnRenderer>,
}

impl Model {
    /// Loads tokenizer and template.
    ///
    /// # Errors
    /// When the tokenizer or the template cannot be understood.
    pub fn load(files: &ModelFiles) -> Result<Self, LoadError> {
        Self::load_with_cache(files, CACHE_BYTES)
    }

    /// The same with a bound for the cache of text pieces, in bytes (0: none).
    ///
    /// # Errors
    /// When the tokenizer or the template cannot be understood.
    pub fn load_with_cache(files: &ModelFiles, cache_bytes: usize) -> Result<Self, LoadError> {
        let tokenizer_config = templates::object("tokenizer_config.json", &files.tokenizer_config)?;
        let config = templates::object("config.json", &files.config)?;
        let templates = Templates::load(&tokenizer_config, files.chat_template.as_deref())?;
        let own_renderer = renderer::own(&config, &templates, files.mistral);
        let tokenizer = Tokenizer::load(
            &files.tokenizer,
            files.tokenizer_config.as_deref(),
            cache_bytes,
        )?;
        Ok(Self {
            tokenizer,
            templates,
            own_renderer,
        })
    }

    /// The token ids of each prompt of a request, in order.
    ///
    /// # Errors
    /// When the template refuses the messages, or content has no text form here (images).
    pub fn sequences(
        &self,
        request: &Request,
        context: &RenderContext,
    ) -> Result<Vec<Vec<u32>>, TokensError> {
        match &request.content {
            Content::Chat(chat) => Ok(vec![self.chat(chat, context)?]),
            Content::Responses(body) => {
                let chat = self.converted(|target| body.chat(target), context)?;
                Ok(vec![self.chat(&chat, context)?])
            }
            Content::Messages(body) => {
                let chat = self.converted(|target| body.chat(target), context)?;
                Ok(vec![self.chat(&chat, context)?])
            }
            Content::Prompts(prompts) => self.prompts(prompts, context),
            Content::Inexact { why, .. } => Err(why.clone().into()),
        }
    }

    /// The text a chat renders to, before tokenizing.
    ///
    /// # Errors
    /// As [`Self::sequences`].
    pub fn render(&self, chat: &Chat, context: &RenderContext) -> Result<String, TokensError> {
        if let Some(why) = self.own_renderer {
            return Err(TokensError::OwnRenderer(why));
        }
        let template = self
            .templates
            .select(chat.tools.is_some())
            .ok_or(TokensError::NoTemplate)?;
        let target = Target {
            format: template.content_format(),
            names_developer: template.names_developer(),
            version: context.engine_version,
            reading: Reading::AsSent,
        };
        let rendered = self.render_by(template, chat, target, context)?;
        if has_two_readings(&chat.messages) {
            let target = Target {
                reading: Reading::BySchema,
                ..target
            };
            if self.render_by(template, chat, target, context)? != rendered {
                return Err(Unfit::Unsure(
                    "engine versions differ on `reasoning_content` or on the keys of tool calls",
                )
                .into());
            }
        }
        Ok(rendered)
    }

    fn render_by(
        &self,
        template: &ChatTemplate,
        chat: &Chat,
        target: Target,
        context: &RenderContext,
    ) -> Result<String, TokensError> {
        Ok(template.render(Variables {
            messages: conversation(&chat.messages, target)?,
            tools: chat
                .tools
                .as_ref()
                .map(|list| tools(list, context.engine_version))
                .transpose()?,
            documents: chat.documents.clone(),
            special_tokens: self.templates.special_tokens(),
            kwargs: templates::kwargs(chat, template, context.engine_version)?,
            add_generation_prompt: chat.add_generation_prompt,
            continue_final_message: chat.continue_final_message,
            unix_time: context.unix_time,
        })?)
    }

    fn chat(&self, chat: &Chat, context: &RenderContext) -> Result<Vec<u32>, TokensError> {
        let text = self.render(chat, context)?;
        let ids = self.tokenizer.encode(&text, false)?;
        let cut = self.cut(chat.truncation, chat.default_side, context)?;
        Ok(cut.text(ids, &self.tokenizer, chat.add_special_tokens))
    }

    fn prompts(
        &self,
        prompts: &Prompts,
        context: &RenderContext,
    ) -> Result<Vec<Vec<u32>>, TokensError> {
        let cut = self.cut(prompts.truncation, prompts.default_side, context)?;
        prompts
            .items
            .iter()
            .map(|prompt| match prompt {
                Prompt::Ids(ids) => Ok(cut.ids(ids.clone())),
                Prompt::Text(text) => {
                    let ids = self.tokenizer.encode(text, false)?;
                    Ok(cut.text(ids, &self.tokenizer, prompts.add_special_tokens))
                }
            })
            .collect()
    }

    /// Token ids of a plain text; none if the tokenizer refuses it (none is known to).
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Vec<u32> {
        self.tokenizer
            .encode(text, add_special_tokens)
            .unwrap_or_default()
    }

    /// The text of token ids (for the simulated engine).
    pub fn decode(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids)
    }

    /// The tokenizer, for what it says of itself.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Why the engine, not a template, renders this model's chats; `None` when a template does.
    pub fn own_renderer(&self) -> Option<OwnRenderer> {
        self.own_renderer
    }

    /// A template of it looks at the clock, so that what it prints is not the same for ever.
    pub fn tells_time(&self) -> bool {
        let templates = [false, true].map(|with_tools| self.templates.select(with_tools));
        let mut templates = templates.into_iter().flatten();
        templates.any(|template| template.mentions("strftime_now"))
    }

    /// The template for a chat with or without tools.
    pub fn template(&self, with_tools: bool) -> Option<&ChatTemplate> {
        self.templates.select(with_tools)
    }
}

#[cfg(test)]
mod tests;
