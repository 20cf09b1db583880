//! Chat templates as transformers renders them: from a conversation to the prompt's text.
//!
//! Templates are part of a model's files; what clients control are messages, tools and named
//! arguments. Rendering is bounded by fuel, and every refusal is a value.

mod content_format;
mod environment;
mod filters;
mod generation;
mod normalise;
mod python;
mod tojson;

use std::collections::HashSet;

use minijinja::{Environment, Value};

pub use content_format::ContentFormat;
pub use normalise::{Reading, Target, Unfit, conversation, has_two_readings, tools};

/// The name under which an environment holds its template; no file ending, so no escaping.
const NAME: &str = "chat";

/// The trace that a continued message leaves in the rendered text: transformers' own marker,
/// whose last character tells whether the template kept trailing space.
const CONTINUE_MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Why a template cannot be used, or refuses a conversation.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The template itself is broken, or refuses (roles, tool calls), or runs out of fuel.
    #[error("the chat template failed: {0}")]
    Engine(#[from] minijinja::Error),
    /// The last message cannot be continued.
    #[error("the final message cannot be continued: {0}")]
    Continue(&'static str),
}

/// One compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    format: ContentFormat,
    mentions: HashSet<String>,
    names_developer: bool,
    reads_content: bool,
    system_first: bool,
}

/// What one rendering gets.
#[derive(Clone, Debug)]
pub struct Variables<'a> {
    /// The messages, normalised.
    pub messages: Vec<Value>,
    /// The tools, normalised.
    pub tools: Option<Value>,
    /// `documents`.
    pub documents: Option<Value>,
    /// Special tokens by their names (`bos_token`, …).
    pub special_tokens: &'a [(String, Value)],
    /// Named arguments; those that the template does not mention are not passed.
    pub kwargs: Vec<(String, Value)>,
    /// The prompt ends with the opening of an assistant's turn.
    pub add_generation_prompt: bool,
    /// The prompt ends within the last message.
    pub continue_final_message: bool,
    /// Unix time in seconds, for `strftime_now`.
    pub unix_time: i64,
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// When it is not a Jinja template.
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        let format = ContentFormat::detect(source);
        let mut environment = environment::new()?;
        let rewritten = generation::rewrite(source);
        // The engine's own trial knows nothing of generation tags, and takes a failure for a refusal.
        let is_plain = rewritten == source;
        environment.add_template_owned(NAME, rewritten.into_owned())?;
        let mentions = environment.get_template(NAME)?.undeclared_variables(false);
        let system_first = !is_plain || refuses_late_system(&environment)?;
        Ok(Self {
            environment,
            format,
            system_first,
            mentions,
            names_developer: source.contains("'developer'") || source.contains("\"developer\""),
            reads_content: source.contains("content"),
        })
    }

    /// The shape in which it expects a message's content.
    pub fn content_format(&self) -> ContentFormat {
        self.format
    }

    /// It has a case for the role `developer`.
    pub fn names_developer(&self) -> bool {
        self.names_developer
    }

    /// It refuses a system message that is not the first one. As vLLM finds out (`vllm/entrypoints/anthropic/serving.py`):
    /// by trial, with no variables but the messages.
    pub fn system_first(&self) -> bool {
        self.system_first
    }

    /// It looks at a variable of that name.
    pub fn mentions(&self, name: &str) -> bool {
        self.mentions.contains(name)
    }

    /// The prompt's text.
    ///
    /// # Errors
    /// When the template refuses, or the last message cannot be continued.
    pub fn render(&self, mut variables: Variables<'_>) -> Result<String, TemplateError> {
        let continued = if variables.continue_final_message {
            Some(self.mark_final_message(&mut variables.messages)?)
        } else {
            None
        };
        let context = self.context(variables);
        let rendered = self.environment.get_template(NAME)?.render(context)?;
        match continued {
            None => Ok(rendered),
            Some(text) => cut_at_mark(rendered, &text),
        }
    }

    fn context(&self, variables: Variables<'_>) -> Value {
        let unix_time = variables.unix_time;
        let absent = || Value::from(());
        let mut pairs: Vec<(String, Value)> = vec![
            ("messages".to_owned(), Value::from(variables.messages)),
            ("tools".to_owned(), variables.tools.unwrap_or_else(absent)),
            (
                "documents".to_owned(),
                variables.documents.unwrap_or_else(absent),
            ),
            (
                "add_generation_prompt".to_owned(),
                Value::from(variables.add_generation_prompt),
            ),
        ];
        if self.mentions("strftime_now") {
            let now =
                Value::from_function(move |format: &str| environment::strftime(unix_time, format));
            pairs.push(("strftime_now".to_owned(), now));
        }
        pairs.extend(
            variables
                .special_tokens
                .iter()
                .cloned()
                .chain(variables.kwargs)
                .filter(|(name, _)| self.mentions(name)),
        );
        Value::from_pairs(pairs)
    }

    /// Puts the mark at the end of the last message's text and returns that text.
    fn mark_final_message(&self, messages: &mut [Value]) -> Result<String, TemplateError> {
        let refuse = TemplateError::Continue;
        if !self.reads_content {
            return Err(refuse("the template does not read a message's content"));
        }
        let message = messages.last_mut().ok_or_else(|| refuse("there is none"))?;
        let content = message
            .get_attr("content")
            .ok()
            .filter(|content| !content.is_none() && !content.is_undefined())
            .ok_or_else(|| refuse("it has no content"))?;
        let (text, marked) = if let Some(text) = content.as_str() {
            (
                text.to_owned(),
                Value::from(format!("{text}{CONTINUE_MARK}")),
            )
        } else {
            mark_last_text(&content).ok_or_else(|| refuse("it has no text"))?
        };
        *message = with_entry(message, "content", marked);
        Ok(text)
    }
}

fn refuses_late_system(environment: &Environment<'_>) -> Result<bool, TemplateError> {
    let message = |role: &str| Value::from_pairs([("role", role), ("content", "t")]);
    let messages = ["system", "user", "system", "user"].map(message);
    let context = Value::from_pairs([
        ("messages", Value::from(messages.to_vec())),
        ("add_generation_prompt", Value::from(false)),
    ]);
    Ok(environment.get_template(NAME)?.render(context).is_err())
}

/// Marks the last part that has a text.
fn mark_last_text(content: &Value) -> Option<(String, Value)> {
    let mut parts: Vec<Value> = content.try_iter().ok()?.collect();
    let part = parts.iter_mut().rev().find(|part| {
        part.get_attr("text")
            .is_ok_and(|text| text.as_str().is_some())
    })?;
    let text = part.get_attr("text").ok()?.as_str()?.to_owned();
    *part = with_entry(part, "text", Value::from(format!("{text}{CONTINUE_MARK}")));
    Some((text, Value::from(parts)))
}

/// A copy of an object with one entry replaced.
fn with_entry(object: &Value, key: &str, value: Value) -> Value {
    let pairs = object
        .as_object()
        .and_then(|object| object.try_iter_pairs());
    Value::from_pairs(
        pairs
            .into_iter()
            .flatten()
            .filter(|(name, _)| name.as_str() != Some(key))
            .chain([(Value::from(key), value)]),
    )
}

fn cut_at_mark(mut rendered: String, text: &str) -> Result<String, TemplateError> {
    let gone = TemplateError::Continue("the template leaves it out of the prompt");
    if !rendered.contains(text.trim()) {
        return Err(gone);
    }
    let Some(at) = rendered.rfind(CONTINUE_MARK.trim_end()) else {
        return Err(gone);
    };
    let kept_space = rendered
        .get(at..)
        .is_some_and(|rest| rest.starts_with(CONTINUE_MARK));
    rendered.truncate(at);
    if !kept_space {
        // The template trims, so the text before the mark counts as trimmed as well.
        rendered.truncate(python::trim_end(&rendered).len());
    }
    Ok(rendered)
}

#[cfg(test)]
mod tests;
