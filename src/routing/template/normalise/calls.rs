//! An assistant's tool calls, whose arguments templates expect as objects.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::{Reading, Unfit, shape};
use crate::routing::request::{is_python_object, json_value, list};

/// An assistant's calls with their arguments as objects; `None` for an empty list.
pub(super) fn with_objects(calls: &Value, reading: Reading) -> Result<Option<Value>, Unfit> {
    let calls = list(calls).ok_or(shape("messages[].tool_calls", "a list"))?;
    if calls.is_empty() {
        return Ok(None);
    }
    calls
        .iter()
        .map(|call| tool_call(call, reading))
        .collect::<Result<Value, _>>()
        .map(Some)
}

fn tool_call(call: &Value, reading: Reading) -> Result<Value, Unfit> {
    let unknown = shape("messages[].tool_calls[]", "a call of a function");
    let kind = call.get_attr("type").unwrap_or_default();
    let function = call.get_attr("function").unwrap_or_default();
    if function.kind() != ValueKind::Map
        || !(kind.is_undefined() || kind.as_str() == Some("function"))
    {
        return Err(unknown);
    }
    let arguments = arguments(&function.get_attr("arguments").unwrap_or_default())?;
    let function = with_value(&function, "arguments", arguments);
    Ok(match reading {
        Reading::AsSent => with_value(call, "function", function),
        Reading::BySchema => {
            let function = only(&function, &FUNCTION_KEYS);
            only(&with_value(call, "function", function), &CALL_KEYS)
        }
    })
}

/// A call's keys in the order of the API's schema.
const CALL_KEYS: [&str; 3] = ["id", "function", "type"];
const FUNCTION_KEYS: [&str; 2] = ["arguments", "name"];

/// Whether calls have the keys of the schema in its order already.
pub(super) fn in_order(calls: &Value) -> bool {
    let has = |object: &Value, keys: &[&str]| {
        let pairs = object
            .as_object()
            .and_then(|object| object.try_iter_pairs());
        pairs.is_some_and(|pairs| {
            pairs
                .map(|(key, _)| key)
                .eq(keys.iter().map(|key| Value::from(*key)))
        })
    };
    list(calls).is_some_and(|calls| {
        calls.iter().all(|call| {
            has(call, &CALL_KEYS)
                && has(
                    &call.get_attr("function").unwrap_or_default(),
                    &FUNCTION_KEYS,
                )
        })
    })
}

/// An object with some of its keys, in that order.
fn only(object: &Value, keys: &[&'static str]) -> Value {
    Value::from_pairs(keys.iter().filter_map(|key| {
        let value = object.get_attr(key).ok()?;
        (!value.is_undefined()).then_some((*key, value))
    }))
}

/// The arguments as an object; whatever is not one counts as empty, as in the engine.
fn arguments(given: &Value) -> Result<Value, Unfit> {
    let empty = || Value::from_pairs::<_, Value, Value>([]);
    if given.kind() == ValueKind::Map {
        return Ok(given.clone());
    }
    let Some(text) = given.as_str().filter(|text| !text.is_empty()) else {
        return Ok(empty());
    };
    match json_value(text) {
        Ok(value) if value.kind() == ValueKind::Map => Ok(value),
        Ok(_) => Ok(empty()),
        // Where Python reads an object that we do not, the template prints that object.
        Err(_) if is_python_object(text) => Err(Unfit::Unsure(
            "tool arguments use JSON that only Python's reader takes",
        )),
        Err(_) => Ok(empty()),
    }
}

/// A copy of an object in which one key, in its place, has another value.
fn with_value(object: &Value, key: &str, value: Value) -> Value {
    let pairs = object
        .as_object()
        .and_then(|object| object.try_iter_pairs());
    let mut pairs: Vec<(Value, Value)> = pairs.into_iter().flatten().collect();
    match pairs
        .iter_mut()
        .find(|(name, _)| name.as_str() == Some(key))
    {
        Some((_, old)) => *old = value,
        None => pairs.push((Value::from(key), value)),
    }
    Value::from_pairs(pairs)
}
