//! For tests: msgpack of any shape into JSON, to look at recorded and published events.

use rmp::Marker;
use rmp::decode::{self, RmpRead};
use serde_json::{Value, json};

pub(super) fn unpack(bytes: &mut &[u8]) -> Value {
    let list = |bytes: &mut &[u8], len: u32| (0..len).map(|_| unpack(bytes)).collect();
    let text = |bytes: &mut &[u8], len: u32| {
        let mut text = vec![0; len as usize];
        bytes.read_exact_buf(&mut text).unwrap();
        Value::String(String::from_utf8(text).unwrap())
    };
    match decode::read_marker(bytes).unwrap() {
        Marker::Null => Value::Null,
        Marker::FixPos(value) => json!(value),
        Marker::FixNeg(value) => json!(value),
        Marker::I8 => json!(bytes.read_data_i8().unwrap()),
        Marker::I16 => json!(bytes.read_data_i16().unwrap()),
        Marker::I32 => json!(bytes.read_data_i32().unwrap()),
        Marker::I64 => json!(bytes.read_data_i64().unwrap()),
        Marker::U8 => json!(bytes.read_data_u8().unwrap()),
        Marker::U16 => json!(bytes.read_data_u16().unwrap()),
        Marker::U32 => json!(bytes.read_data_u32().unwrap()),
        Marker::U64 => json!(bytes.read_data_u64().unwrap()),
        Marker::F64 => json!(bytes.read_data_f64().unwrap()),
        Marker::FixStr(len) => text(bytes, u32::from(len)),
        Marker::Str8 => {
            let len = bytes.read_data_u8().unwrap();
            text(bytes, u32::from(len))
        }
        Marker::FixArray(len) => Value::Array(list(bytes, u32::from(len))),
        Marker::Array16 => {
            let len = bytes.read_data_u16().unwrap();
            Value::Array(list(bytes, u32::from(len)))
        }
        Marker::FixMap(len) => Value::Object(
            (0..len)
                .map(|_| {
                    let key = unpack(bytes).as_str().unwrap().to_owned();
                    (key, unpack(bytes))
                })
                .collect(),
        ),
        other => panic!("the recording has no {other:?}"),
    }
}

/// The items of an array of numbers; none for anything else.
pub(super) fn numbers<T: TryFrom<u64, Error: std::fmt::Debug>>(value: &Value) -> Vec<T> {
    let values = value.as_array().into_iter().flatten();
    values
        .map(|v| T::try_from(v.as_u64().unwrap()).unwrap())
        .collect()
}
