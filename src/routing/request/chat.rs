//! A chat body: messages and everything that has a say in how they are rendered.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::body::Fields;
use super::prompts::{Side, Truncation, flag, list, present};
use super::{Content, Inexact};

/// A conversation with what steers its rendering. Values are as the body has them: the
/// normalisation depends on the template and the engine's version and comes later.
#[derive(Clone, Debug)]
pub struct Chat {
    /// The messages, a list of objects with keys in the body's order.
    pub messages: Value,
    /// `tools`; empty where a converted body has none that a template is shown.
    pub tools: Option<Value>,
    /// `documents`, for templates that show them.
    pub documents: Option<Value>,
    /// `chat_template_kwargs` without what the engine leaves out (`null` and `"auto"`).
    pub template_kwargs: Vec<(String, Value)>,
    /// `reasoning_effort`.
    pub reasoning_effort: Option<Value>,
    /// The prompt ends with the opening of an assistant's turn.
    pub add_generation_prompt: bool,
    /// The prompt ends within the last message.
    pub continue_final_message: bool,
    /// The tokenizer adds its special tokens to those of the template.
    pub add_special_tokens: bool,
    /// How a long prompt is cut.
    pub truncation: Option<Truncation>,
    /// The side that is kept where the request does not say.
    pub default_side: Option<Side>,
}

/// Keys of `chat_template_kwargs` that are parameters of `apply_chat_template` itself: they
/// change what happens around the template, and not all engine versions agree how.
const RESERVED_KWARGS: [&str; 15] = [
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "conversation",
    "max_length",
    "messages",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "sanitize_control_tokens",
    "tokenize",
    "tokenizer_kwargs",
    "tools",
    "truncation",
];

/// `/v1/chat/completions`.
pub(super) fn read(
    fields: &mut Fields,
    truncation: Option<Truncation>,
) -> Result<Content, Inexact> {
    chat(fields, truncation, true, Some(Side::Left))
}

/// `/v1/embeddings` with messages: nothing is generated, so no turn is opened by default.
pub(super) fn read_for_embedding(
    fields: &mut Fields,
    truncation: Option<Truncation>,
) -> Result<Content, Inexact> {
    chat(fields, truncation, false, None)
}

fn chat(
    fields: &mut Fields,
    truncation: Option<Truncation>,
    opens_turn: bool,
    default_side: Option<Side>,
) -> Result<Content, Inexact> {
    if present(fields.chat_template.as_ref()).is_some() {
        return Err(Inexact::RequestTemplate);
    }
    let reasoning_effort = present(fields.reasoning_effort.as_ref()).cloned();
    let template_kwargs = template_kwargs(
        fields.chat_template_kwargs.as_ref(),
        reasoning_effort.is_some(),
    )?;
    let tools = tools(fields.tools.as_ref())?;
    let documents = documents(fields.documents.as_ref())?;
    let bool_of = |field, value: &Option<Value>, default| flag(field, value.as_ref(), default);
    let add_generation_prompt = bool_of(
        "add_generation_prompt",
        &fields.add_generation_prompt,
        opens_turn,
    )?;
    let continue_final_message = bool_of(
        "continue_final_message",
        &fields.continue_final_message,
        false,
    )?;
    let add_special_tokens = bool_of("add_special_tokens", &fields.add_special_tokens, false)?;
    if add_generation_prompt && continue_final_message {
        return Err(Inexact::Shape {
            field: "continue_final_message",
            expected: "false while add_generation_prompt is true",
        });
    }
    let are_objects = |messages: &[Value]| {
        !messages.is_empty() && messages.iter().all(|one| one.kind() == ValueKind::Map)
    };
    let messages = fields
        .messages
        .take_if(|messages| list(messages).is_some_and(are_objects))
        .ok_or(Inexact::Shape {
            field: "messages",
            expected: "a list of messages that is not empty",
        })?;
    Ok(Content::Chat(Box::new(Chat {
        messages,
        tools,
        documents,
        template_kwargs,
        reasoning_effort,
        add_generation_prompt,
        continue_final_message,
        add_special_tokens,
        truncation,
        default_side,
    })))
}

fn tools(value: Option<&Value>) -> Result<Option<Value>, Inexact> {
    let Some(tools) = present(value) else {
        return Ok(None);
    };
    let is_tool = |tool: &Value| {
        tool.get_attr("function")
            .and_then(|function| function.get_attr("name"))
            .is_ok_and(|name| name.as_str().is_some())
    };
    match list(tools) {
        Some(items) if !items.is_empty() && items.iter().all(is_tool) => Ok(Some(tools.clone())),
        _ => Err(Inexact::Shape {
            field: "tools",
            expected: "a list of functions with names that is not empty",
        }),
    }
}

fn documents(value: Option<&Value>) -> Result<Option<Value>, Inexact> {
    let Some(documents) = present(value) else {
        return Ok(None);
    };
    match list(documents) {
        Some(items) if items.iter().all(|item| item.kind() == ValueKind::Map) => {
            Ok(Some(documents.clone()))
        }
        _ => Err(Inexact::Shape {
            field: "documents",
            expected: "a list of objects",
        }),
    }
}

/// Named arguments of the template. Where an effort is given, even an empty `enable_thinking` counts: it keeps the
/// engine from setting it.
pub(super) fn template_kwargs(
    value: Option<&Value>,
    with_effort: bool,
) -> Result<Vec<(String, Value)>, Inexact> {
    let Some(kwargs) = present(value) else {
        return Ok(Vec::new());
    };
    let pairs = kwargs
        .as_object()
        .filter(|_| kwargs.kind() == ValueKind::Map)
        .and_then(|object| object.try_iter_pairs())
        .ok_or(Inexact::Shape {
            field: "chat_template_kwargs",
            expected: "an object",
        })?;
    let mut kept = Vec::new();
    for (key, value) in pairs {
        let key = key.as_str().unwrap_or_default();
        if RESERVED_KWARGS.contains(&key) {
            return Err(Inexact::TemplateArgument(key.to_owned()));
        }
        if !value.is_none() && value.as_str() != Some("auto") {
            kept.push((key.to_owned(), value));
        } else if with_effort && key == "enable_thinking" {
            return Err(Inexact::TemplateArgument(key.to_owned()));
        }
    }
    Ok(kept)
}
