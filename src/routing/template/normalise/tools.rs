//! The tools of a request as the engine hands them to a template.

use minijinja::Value;

use super::{Unfit, Version, shape};
use crate::routing::request::list;

/// Since this version unknown fields of tools are dropped.
const UNKNOWN_TOOL_FIELDS_DROPPED: Version = (0, 24);

/// The tools of a template: known fields in their order, absent descriptions as `null`.
pub fn tools(tools: &Value, version: Option<Version>) -> Result<Value, Unfit> {
    let tools = list(tools).ok_or(shape("tools", "a list"))?;
    tools.iter().map(|one| tool(one, version)).collect()
}

fn tool(tool: &Value, version: Option<Version>) -> Result<Value, Unfit> {
    let function = tool.get_attr("function").unwrap_or_default();
    let field = |name: &str| function.get_attr(name).unwrap_or_default();
    let or_null = |name: &str| match field(name) {
        value if value.is_undefined() => Value::from(()),
        value => value,
    };
    let mut inner = vec![
        (Value::from("name"), field("name")),
        (Value::from("description"), or_null("description")),
        (Value::from("parameters"), or_null("parameters")),
    ];
    for name in ["strict", "defer_loading"] {
        if !field(name).is_undefined() {
            inner.push((Value::from(name), field(name)));
        }
    }
    let unknown = |object: &Value, known: &[&str]| -> Vec<(Value, Value)> {
        let pairs = object
            .as_object()
            .and_then(|object| object.try_iter_pairs());
        pairs
            .into_iter()
            .flatten()
            .filter(|(key, _)| !known.contains(&key.as_str().unwrap_or_default()))
            .collect()
    };
    let in_function = unknown(
        &function,
        &[
            "name",
            "description",
            "parameters",
            "strict",
            "defer_loading",
        ],
    );
    let in_tool = unknown(tool, &["type", "function"]);
    let kind = tool.get_attr("type").unwrap_or_default();
    let kind = if kind.is_undefined() {
        Value::from("function")
    } else {
        kind
    };
    let mut outer = vec![(Value::from("type"), kind)];
    let keeps_unknown = match version {
        _ if in_function.is_empty() && in_tool.is_empty() => false,
        Some(version) => version < UNKNOWN_TOOL_FIELDS_DROPPED,
        None => return Err(Unfit::UnknownVersion("unknown fields of tools")),
    };
    if keeps_unknown {
        inner.extend(in_function);
    }
    outer.push((Value::from("function"), Value::from_pairs(inner)));
    if keeps_unknown {
        outer.extend(in_tool);
    }
    Ok(Value::from_pairs(outer))
}
