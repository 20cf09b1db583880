//! A message's content as text parts, whatever its shape in the body.

use minijinja::Value;

use super::{Unfit, Version, shape};
use crate::routing::request::list;
use crate::routing::template::ContentFormat;

/// Since this version the line that Claude Code puts before its system prompt is dropped.
const BILLING_LINE_DROPPED: Version = (0, 32);
/// How that line starts; the rest differs with each request.
const BILLING_LINE: &str = "x-anthropic-billing-header";

/// A text part, or the name of a tool that the template is to show in full.
pub(super) struct Part {
    pub(super) text: Value,
    /// Fields that the API does not define.
    extra: Vec<(Value, Value)>,
    pub(super) is_reference: bool,
    /// Sent as a plain text or as a part of the type `text`, which is where engines look for a billing line.
    is_text: bool,
}

impl Part {
    fn plain(text: Value) -> Self {
        Self {
            text,
            extra: Vec::new(),
            is_reference: false,
            is_text: true,
        }
    }

    fn as_str(&self) -> &str {
        self.text.as_str().unwrap_or_default()
    }

    pub(super) fn into_value(self) -> Value {
        if self.is_reference {
            let kind = Value::from("tool_reference");
            return Value::from_pairs([("type", kind), ("name", self.text)]);
        }
        let known = [
            (Value::from("type"), Value::from("text")),
            (Value::from("text"), self.text),
        ];
        Value::from_pairs(known.into_iter().chain(self.extra))
    }
}

pub(super) fn joined(parts: &[Part]) -> String {
    parts
        .iter()
        .map(Part::as_str)
        .collect::<Vec<_>>()
        .join("\n")
}

/// The text parts of a content: one for a string, none for `null`.
pub(super) fn parts(content: Option<&Value>, format: ContentFormat) -> Result<Vec<Part>, Unfit> {
    let Some(content) = content else {
        return Ok(Vec::new());
    };
    let parts = if content.as_str().is_some() {
        vec![Part::plain(content.clone())]
    } else {
        let items = list(content).ok_or(shape(
            "messages[].content",
            "a string or a list of content parts",
        ))?;
        let mut parts = Vec::with_capacity(items.len());
        for item in items {
            parts.extend(part(item)?);
        }
        parts
    };
    Ok(match format {
        // Empty texts leave no line of their own behind.
        ContentFormat::String => parts
            .into_iter()
            .filter(|part| !part.as_str().is_empty())
            .collect(),
        ContentFormat::Parts => parts,
    })
}

/// Fields of the content parts that the API defines: they are not passed on.
const PART_FIELDS: [&str; 18] = [
    "audio_embeds",
    "audio_url",
    "closed",
    "data",
    "detail",
    "file",
    "image_embeds",
    "image_pil",
    "image_url",
    "input_audio",
    "name",
    "prompt_embeds",
    "refusal",
    "text",
    "thinking",
    "type",
    "uuid",
    "video_url",
];

fn part(item: &Value) -> Result<Option<Part>, Unfit> {
    if item.as_str().is_some() {
        return Ok(Some(Part::plain(item.clone())));
    }
    let attr = |name: &str| item.get_attr(name).unwrap_or_default();
    let kind = attr("type");
    let kind = kind
        .as_str()
        .ok_or(shape("messages[].content[].type", "a string"))?;
    let text = match kind {
        "text" | "input_text" | "output_text" => attr("text"),
        "refusal" => attr("refusal"),
        "thinking" => attr("thinking"),
        "tool_reference" => attr("name"),
        other => return Err(Unfit::Media(other.to_owned())),
    };
    if (text.is_none() || text.is_undefined()) && matches!(kind, "text" | "refusal") {
        return Ok(None);
    }
    if text.as_str().is_none() {
        return Err(shape("messages[].content[].text", "a string"));
    }
    if !attr("uuid").is_undefined() && !attr("uuid").is_none() {
        return Err(Unfit::Unsure("a text part has a uuid"));
    }
    let pairs = item.as_object().and_then(|object| object.try_iter_pairs());
    let extra = pairs
        .into_iter()
        .flatten()
        .filter(|(key, _)| !PART_FIELDS.contains(&key.as_str().unwrap_or_default()))
        .collect();
    Ok(Some(Part {
        text,
        extra,
        is_reference: kind == "tool_reference",
        is_text: kind == "text",
    }))
}

/// Drops the first line of system texts that Claude Code changes with each request.
pub(super) fn drop_billing_line(
    parts: &mut Vec<Part>,
    version: Option<Version>,
) -> Result<(), Unfit> {
    let has_line = |part: &Part| part.is_text && part.as_str().starts_with(BILLING_LINE);
    if !parts.iter().any(has_line) {
        return Ok(());
    }
    let version = version.ok_or(Unfit::UnknownVersion("the billing line of Claude Code"))?;
    if version < BILLING_LINE_DROPPED {
        return Ok(());
    }
    parts.retain_mut(|part| {
        if !has_line(part) {
            return true;
        }
        let rest = part.as_str().split_once('\n').map_or("", |(_, rest)| rest);
        part.text = Value::from(rest);
        !part.as_str().is_empty()
    });
    Ok(())
}
