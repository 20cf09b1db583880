//! Which token ids has a chat here? Those of the model's own template, unless a fault puts something before them.

use serde_json::{Value, json};

use super::{App, unix_time};
use crate::engine::fault::Fault;
use crate::engine::tokenizer::ChatError;
use crate::routing::model::RenderContext;

/// What an operator's template may say first and the model's own does not.
const PREAMBLE: &str = "Answer briefly and in plain words.";

impl App {
    /// The ids of a chat, for `/tokenize` as for answers. `raw` is the request's body, `messages` its field of that
    /// name.
    ///
    /// # Errors
    /// When the chat cannot be rendered.
    pub(super) fn chat_tokens(
        &self,
        raw: &[u8],
        messages: &[Value],
    ) -> Result<Vec<u32>, ChatError> {
        let context = self.render_context();
        if !self.faults().has(Fault::WrongTokens) {
            return self.tokenizer.chat(raw, messages, &context);
        }
        let mut longer = vec![json!({"role": "system", "content": PREAMBLE})];
        longer.extend_from_slice(messages);
        let mut body: Value = serde_json::from_slice(raw).unwrap_or_default();
        if let Some(fields) = body.as_object_mut() {
            fields.insert("messages".to_owned(), json!(longer));
        }
        self.tokenizer
            .chat(body.to_string().as_bytes(), &longer, &context)
    }

    pub(super) fn render_context(&self) -> RenderContext {
        RenderContext {
            engine_version: Some(self.settings.version.number),
            unix_time: i64::try_from(unix_time()).unwrap_or_default(),
            max_model_len: u32::try_from(self.settings.core.max_model_len).ok(),
        }
    }
}
