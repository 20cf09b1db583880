//! JSON straight into template values: keys keep their order, the last of two equal keys wins.

use std::cell::Cell;
use std::fmt;

use minijinja::Value;
use minijinja::value::ValueKind;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Whether a number was met that has another spelling here than in Python.
#[derive(Debug, Default)]
pub(super) struct Oddity(Cell<Option<&'static str>>);

impl Oddity {
    pub(super) fn found(&self) -> Option<&'static str> {
        self.0.get()
    }
}

/// Reads any JSON value.
#[derive(Clone, Copy)]
pub(super) struct AnyValue<'a>(pub(super) &'a Oddity);

impl<'de> DeserializeSeed<'de> for AnyValue<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// From here on a float may have been written as an integer: Python prints all its digits.
const INTEGERS_END: f64 = 9_223_372_036_854_775_808.0;

impl<'de> Visitor<'de> for AnyValue<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        // `-0` and integers beyond 64 bits arrive here as floats too.
        if value.abs() >= INTEGERS_END || (value == 0.0 && value.is_sign_negative()) {
            self.0
                .0
                .set(Some("a number that may be an integer of many digits"));
        }
        Ok(Value::from(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::from(()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::from(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut pairs: Vec<(Value, Value)> = Vec::new();
        while let Some(key) = entries.next_key_seed(self)? {
            pairs.push((key, entries.next_value_seed(self)?));
        }
        // Collecting into an ordered map keeps a key's first place and its last value, as a
        // Python dict does.
        Ok(Value::from_pairs(pairs))
    }
}

/// A value that came from JSON as JSON again, keys in their order.
pub fn to_json(value: &Value) -> serde_json::Value {
    use serde_json::Value as Json;
    if let Some(text) = value.as_str() {
        return Json::from(text);
    }
    if let Some(items) = super::list(value) {
        return items.iter().map(to_json).collect();
    }
    match value.kind() {
        ValueKind::Bool => Json::from(value.is_true()),
        ValueKind::Number => number(value),
        ValueKind::Map => {
            let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
            let pairs = pairs.into_iter().flatten();
            let pairs = pairs
                .map(|(key, value)| (key.as_str().unwrap_or_default().to_owned(), to_json(&value)));
            Json::Object(pairs.collect())
        }
        _ => Json::Null,
    }
}

fn number(value: &Value) -> serde_json::Value {
    if !value.is_integer() {
        return f64::try_from(value.clone())
            .map_or(serde_json::Value::Null, serde_json::Value::from);
    }
    match value.as_i64() {
        Some(number) => serde_json::Value::from(number),
        None => {
            u64::try_from(value.clone()).map_or(serde_json::Value::Null, serde_json::Value::from)
        }
    }
}

/// Reads one JSON document; used for the tool arguments that messages carry as strings.
///
/// # Errors
/// When it is not JSON, or uses what only Python's reader takes.
pub(in crate::routing) fn value_of(text: &str) -> Result<Value, serde_json::Error> {
    let oddity = Oddity::default();
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = AnyValue(&oddity).deserialize(&mut deserializer)?;
    deserializer.end()?;
    match oddity.found() {
        Some(what) => Err(serde_json::Error::custom(what)),
        None => Ok(value),
    }
}
