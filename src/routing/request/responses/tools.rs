//! The tools of a Responses body that a template is shown: functions, and what stands for one.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::in_namespace;
use crate::routing::request::Inexact;
use crate::routing::request::convert::{Target, Version, field, function_tool, shape, text_field};
use crate::routing::request::prompts::list;

/// Since this version tools are shown as chat tools are, and tools that are no functions are left out.
const SHOWS_FUNCTIONS_ONLY: Version = (0, 27);
/// Since this version tools with free text are shown as functions with one argument.
pub(super) const KNOWS_CUSTOM_TOOLS: Version = (0, 32);

/// The functions; an empty list where there are other tools only.
pub(super) fn shown(tools: &[Value], target: &Target<'_>) -> Result<Value, Inexact> {
    target.since(SHOWS_FUNCTIONS_ONLY, "tools in /v1/responses")?;
    let mut shown = Vec::with_capacity(tools.len());
    for tool in tools {
        match field(tool, "type").as_ref().and_then(Value::as_str) {
            Some("function") => shown.push(flat_function(tool, None)?),
            Some("namespace") => {
                let name = text_field(tool, "name");
                let inner = field(tool, "tools");
                let (Some(name), Some(inner)) = (name, inner.as_ref().and_then(list)) else {
                    return Err(shape("tools[].tools", "a list of functions"));
                };
                for function in inner {
                    if text_field(function, "type")
                        .is_some_and(|kind| kind.as_str() == Some("function"))
                    {
                        shown.push(flat_function(function, Some(&name))?);
                    }
                }
            }
            Some("custom") => {
                if target.is_since(KNOWS_CUSTOM_TOOLS, "custom tools in /v1/responses")? {
                    shown.push(custom_function(tool)?);
                }
            }
            Some(_) => {}
            None => return Err(shape("tools[].type", "a text")),
        }
    }
    Ok(Value::from(shown))
}

fn flat_function(tool: &Value, namespace: Option<&Value>) -> Result<Value, Inexact> {
    let name = text_field(tool, "name").ok_or(shape("tools[].name", "a text"))?;
    let parameters = field(tool, "parameters");
    if parameters
        .as_ref()
        .is_some_and(|schema| schema.kind() != ValueKind::Map)
    {
        return Err(shape("tools[].parameters", "an object"));
    }
    let name = namespace.map_or_else(|| name.clone(), |namespace| in_namespace(namespace, &name));
    let absent = || Value::from(());
    let always = [
        ("name", name),
        (
            "description",
            field(tool, "description").unwrap_or_else(absent),
        ),
        ("parameters", parameters.unwrap_or_else(absent)),
    ];
    let given = ["strict", "defer_loading"].map(|name| Some((name, field(tool, name)?)));
    Ok(function_tool(
        always.into_iter().chain(given.into_iter().flatten()),
    ))
}

/// The function that stands for a tool which takes free text.
fn custom_function(tool: &Value) -> Result<Value, Inexact> {
    let name = text_field(tool, "name").ok_or(shape("tools[].name", "a text"))?;
    let format = field(tool, "format").and_then(|format| text_field(&format, "type"));
    if format.is_some_and(|format| format.as_str() == Some("grammar")) {
        return Err(Inexact::Foreign("custom tool with a grammar".to_owned()));
    }
    let text = |text: &'static str| Value::from(text);
    let input = Value::from_pairs([
        ("type", text("string")),
        ("description", text(CUSTOM_INPUT)),
    ]);
    let schema = Value::from_pairs([
        ("type", text("object")),
        ("properties", Value::from_pairs([("input", input)])),
        ("required", Value::from(vec![text("input")])),
        ("additionalProperties", Value::from(false)),
    ]);
    Ok(function_tool([
        ("name", name),
        (
            "description",
            field(tool, "description").unwrap_or_else(|| Value::from(())),
        ),
        ("parameters", schema),
    ]))
}

/// What the engine tells the model of that argument; the prompt has these very words.
const CUSTOM_INPUT: &str = "The freeform text payload for this tool.";
