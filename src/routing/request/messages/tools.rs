//! The tools of a Messages body as chat bodies have them.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::SHOWS_DEFER_LOADING;
use crate::routing::request::Inexact;
use crate::routing::request::convert::{Target, Version, field, function_tool, shape, text_field};

/// Since this version `strict` of a tool is shown to the template.
const SHOWS_STRICT: Version = (0, 24);

/// One tool.
pub(super) fn shown(tool: &Value, target: &Target<'_>) -> Result<Value, Inexact> {
    let name = text_field(tool, "name").ok_or(shape("tools[].name", "a text"))?;
    let Some(schema) = field(tool, "input_schema") else {
        // A tool that Anthropic's own servers run.
        let kind = text_field(tool, "type").unwrap_or_else(|| name.clone());
        return Err(Inexact::Foreign(
            kind.as_str().unwrap_or_default().to_owned(),
        ));
    };
    if schema.kind() != ValueKind::Map {
        return Err(shape("tools[].input_schema", "an object"));
    }
    let schema = with_type(schema);
    let description = field(tool, "description").unwrap_or_else(|| Value::from(()));
    let mut function = vec![
        ("name", name),
        ("description", description),
        ("parameters", schema),
    ];
    for (name, since) in [
        ("strict", SHOWS_STRICT),
        ("defer_loading", SHOWS_DEFER_LOADING),
    ] {
        if let Some(value) = field(tool, name)
            && target.is_since(since, "`strict` or `defer_loading` in /v1/messages")?
        {
            function.push((name, value));
        }
    }
    Ok(function_tool(function))
}

/// A schema without a type is one of an object.
fn with_type(schema: Value) -> Value {
    let has_type = schema
        .get_attr("type")
        .is_ok_and(|kind| !kind.is_undefined());
    if has_type {
        return schema;
    }
    let pairs = schema
        .as_object()
        .and_then(|object| object.try_iter_pairs());
    let kind = (Value::from("type"), Value::from("object"));
    Value::from_pairs(pairs.into_iter().flatten().chain([kind]))
}
