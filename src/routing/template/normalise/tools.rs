//! The tools of a request as the engine hands them to a template.
//!
//! Facts: `FunctionDefinition` and `ChatCompletionToolsParam` of vLLM's releases 0.16 to 0.33.

use minijinja::Value;

use super::{Unfit, Version, shape};
use crate::routing::request::{list, to_json};

/// Since this version `defer_loading` belongs to the schema: it has its place, and is left out where it is `null`.
const KNOWS_DEFER_LOADING: Version = (0, 21);
/// Since this version `strict` does as well.
const KNOWS_STRICT: Version = (0, 24);
/// Since this version fields that the schema does not have are dropped.
const UNKNOWN_TOOL_FIELDS_DROPPED: Version = (0, 27);
/// One version of each kind.
const KINDS: [Version; 4] = [
    (0, 0),
    KNOWS_DEFER_LOADING,
    KNOWS_STRICT,
    UNKNOWN_TOOL_FIELDS_DROPPED,
];

/// The tools of a template: known fields in their order, absent descriptions as `null`.
pub fn tools(tools: &Value, version: Option<Version>) -> Result<Value, Unfit> {
    let tools = list(tools).ok_or(shape("tools", "a list"))?;
    tools.iter().map(|one| tool(one, version)).collect()
}

fn tool(tool: &Value, version: Option<Version>) -> Result<Value, Unfit> {
    if let Some(version) = version {
        return Ok(shown(tool, version));
    }
    let [first, others @ ..] = KINDS.map(|version| shown(tool, version));
    let text = |tool: &Value| to_json(tool).to_string();
    let is_plain = fields(tool).len() <= 2
        && fields(&tool.get_attr("function").unwrap_or_default())
            .iter()
            .all(|(name, _)| FIRST_FIELDS.contains(&name.as_str().unwrap_or_default()));
    if is_plain || others.iter().all(|other| text(other) == text(&first)) {
        Ok(first)
    } else {
        Err(Unfit::UnknownVersion("unusual fields of tools"))
    }
}

/// Fields of a function that all versions have.
const FIRST_FIELDS: [&str; 3] = ["name", "description", "parameters"];

fn fields(object: &Value) -> Vec<(Value, Value)> {
    let pairs = object
        .as_object()
        .and_then(|object| object.try_iter_pairs());
    pairs.into_iter().flatten().collect()
}

fn shown(tool: &Value, version: Version) -> Value {
    let function = tool.get_attr("function").unwrap_or_default();
    let given = |object: &Value, name: &str| {
        let value = object.get_attr(name).unwrap_or_default();
        (!value.is_undefined() && !value.is_none()).then_some(value)
    };
    let later: &[&str] = match version {
        _ if version >= KNOWS_STRICT => &["strict", "defer_loading"],
        _ if version >= KNOWS_DEFER_LOADING => &["defer_loading"],
        _ => &[],
    };
    let defers = later
        .contains(&"defer_loading")
        .then(|| given(tool, "defer_loading"))
        .flatten();
    let mut inner: Vec<(Value, Value)> = FIRST_FIELDS
        .iter()
        .map(|name| {
            let value = given(&function, name).unwrap_or_else(|| Value::from(()));
            (Value::from(*name), value)
        })
        .collect();
    for name in later {
        let outer = defers.clone().filter(|_| *name == "defer_loading");
        if let Some(value) = given(&function, name).or(outer) {
            inner.push((Value::from(*name), value));
        }
    }
    let kind = given(tool, "type").unwrap_or_else(|| Value::from("function"));
    let mut outer = vec![(Value::from("type"), kind)];
    let unknown = |object: &Value, known: &[&[&str]]| -> Vec<(Value, Value)> {
        let is_known = |name: &Value| known.concat().contains(&name.as_str().unwrap_or_default());
        let mut fields = fields(object);
        fields.retain(|(name, _)| version < UNKNOWN_TOOL_FIELDS_DROPPED && !is_known(name));
        fields
    };
    inner.extend(unknown(&function, &[&FIRST_FIELDS, later]));
    outer.push((Value::from("function"), Value::from_pairs(inner)));
    outer.extend(defers.map(|value| (Value::from("defer_loading"), value)));
    let beside: &[&str] = if version >= KNOWS_DEFER_LOADING {
        &["type", "function", "defer_loading"]
    } else {
        &["type", "function"]
    };
    outer.extend(unknown(tool, &[beside]));
    Value::from_pairs(outer)
}
