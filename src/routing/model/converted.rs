//! What does a conversion to a chat learn of this model's templates?

use minijinja::Value;

use super::{Model, RenderContext, TokensError};
use crate::routing::request::{Chat, ConversionTarget, Inexact, TemplateFacts};
use crate::routing::template::ChatTemplate;

impl Model {
    /// The chat that the engine makes of a body.
    ///
    /// # Errors
    /// When an own renderer does it, or it is not known what the engine makes of it.
    pub(super) fn converted(
        &self,
        convert: impl FnOnce(&ConversionTarget<'_>) -> Result<Chat, Inexact>,
        context: &RenderContext,
    ) -> Result<Chat, TokensError> {
        if let Some(why) = self.own_renderer {
            return Err(TokensError::OwnRenderer(why));
        }
        let facts = Facts {
            model: self,
            context,
        };
        Ok(convert(&ConversionTarget {
            version: context.engine_version,
            template: Some(&facts),
        })?)
    }
}

struct Facts<'a> {
    model: &'a Model,
    context: &'a RenderContext,
}

impl Facts<'_> {
    fn templates(&self) -> [Option<&ChatTemplate>; 2] {
        [false, true].map(|with_tools| self.model.templates.select(with_tools))
    }

    /// What the engine's own trial with an effort renders.
    fn trial(&self, effort: &'static str) -> Option<String> {
        let message = Value::from_pairs([("role", "user"), ("content", "Hi")]);
        let chat = Chat {
            messages: Value::from(vec![message]),
            tools: None,
            documents: None,
            template_kwargs: Vec::new(),
            reasoning_effort: Some(Value::from(effort)),
            add_generation_prompt: true,
            continue_final_message: false,
            add_special_tokens: false,
            truncation: None,
            default_side: None,
        };
        self.model.render(&chat, self.context).ok()
    }
}

/// Efforts of the Messages API, which vLLM compares with none (`vllm/entrypoints/anthropic/serving.py`).
const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];

impl TemplateFacts for Facts<'_> {
    fn mentions(&self, name: &str) -> bool {
        let [default, tool_use] = self.templates();
        default
            .into_iter()
            .chain(tool_use)
            .any(|template| template.mentions(name))
    }

    fn system_first(&self) -> bool {
        let of = |template: Option<&ChatTemplate>| template.is_none_or(ChatTemplate::system_first);
        self.templates().into_iter().any(of)
    }

    /// `low` where the template refuses `none`, or takes it for an effort.
    fn effort_without_thinking(&self) -> &'static str {
        let none = self.trial("none");
        let is_ignored = none.is_none() || EFFORTS.iter().any(|effort| self.trial(effort) == none);
        if is_ignored { "low" } else { "none" }
    }
}
