//! The fields of a body that matter to routing, in one pass over its bytes.

use std::borrow::Cow;
use std::fmt;

use minijinja::Value;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::Malformed;
use super::json::{AnyValue, Oddity};
use super::python_json::{self, Verdict};

macro_rules! fields {
    ($($field:ident)*) => {
        /// Top-level fields by name; absent ones are `None`, `null` ones are `Some(none)`.
        #[derive(Debug, Default)]
        pub(super) struct Fields {
            $(pub(super) $field: Option<Value>,)*
            /// The body has something that only Python's reader takes in the same way.
            pub(super) python_only: Option<&'static str>,
        }

        impl Fields {
            fn slot(&mut self, name: &str) -> Option<&mut Option<Value>> {
                match name {
                    $(stringify!($field) => Some(&mut self.$field),)*
                    _ => None,
                }
            }
        }
    };
}

fields! {
    model cache_salt stream
    messages tools tool_choice documents chat_template chat_template_kwargs
    add_generation_prompt continue_final_message add_special_tokens reasoning_effort
    prompt prompt_embeds input
    truncate_prompt_tokens truncation_side
    echo logprobs prompt_logprobs
    system instructions
    previous_response_id conversation background previous_input_messages
    truncation reasoning output_config thinking
    max_tokens max_completion_tokens max_output_tokens
}

impl Fields {
    /// Reads a body.
    pub(super) fn read(body: &[u8]) -> Result<Self, Malformed> {
        // Some clients on Windows send a byte order mark; Python's reader drops it too.
        let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
        let oddity = Oddity::default();
        let mut fields = Self::default();
        let mut deserializer = serde_json::Deserializer::from_slice(body);
        let read = TopLevel {
            fields: &mut fields,
            oddity: &oddity,
        }
        .deserialize(&mut deserializer)
        .and_then(|()| deserializer.end());
        match read {
            Ok(()) => {
                fields.python_only = oddity.found();
                Ok(fields)
            }
            Err(error) => Self::read_as_python(body, fields, error),
        }
    }

    /// Strict JSON failed: what Python's reader makes of it decides.
    fn read_as_python(
        body: &[u8],
        fields: Self,
        error: serde_json::Error,
    ) -> Result<Self, Malformed> {
        match python_json::verdict(body) {
            Verdict::Empty => Err(Malformed::Empty),
            Verdict::Other(kind) => Err(Malformed::NotAnObject(kind)),
            Verdict::Invalid => Err(Malformed::Json(error)),
            Verdict::Object { oddity, top_level } => {
                let mut rest = Self {
                    python_only: Some(oddity),
                    ..Self::default()
                };
                // Model, salt and stream are still needed to route; they stand at the top
                // level and are plain themselves, so each can be read by itself.
                for (name, range) in top_level {
                    let plain = body
                        .get(range)
                        .and_then(|bytes| std::str::from_utf8(bytes).ok())
                        .and_then(|text| super::json::value_of(text).ok());
                    if let (Some(slot), Some(value)) = (rest.slot(&name), plain) {
                        *slot = Some(value);
                    }
                }
                drop(fields);
                Ok(rest)
            }
        }
    }

    /// vLLM does not read its prefix cache for requests that want log probabilities of the prompt.
    pub(super) fn reads_cache(&self) -> bool {
        let given = |field: &Option<Value>| field.as_ref().is_some_and(|value| !value.is_none());
        let echo_with_logprobs =
            self.echo.as_ref().is_some_and(Value::is_true) && given(&self.logprobs);
        !given(&self.prompt_logprobs) && !echo_with_logprobs
    }

    /// The values that hold the prompt's text, roughly in the order engines render them.
    pub(super) fn take_texts(&mut self) -> Vec<Value> {
        [
            self.system.take(),
            self.instructions.take(),
            self.tools.take(),
            self.documents.take(),
            self.messages.take(),
            self.input.take(),
            self.prompt.take(),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

struct TopLevel<'a> {
    fields: &'a mut Fields,
    oddity: &'a Oddity,
}

impl<'de> DeserializeSeed<'de> for TopLevel<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TopLevel<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while let Some(name) = entries.next_key_seed(KeySeed)? {
            match self.fields.slot(&name) {
                Some(slot) => *slot = Some(entries.next_value_seed(AnyValue(self.oddity))?),
                None => {
                    entries.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// A key, borrowed from the body where it has no escapes.
struct KeySeed;

impl<'de> DeserializeSeed<'de> for KeySeed {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for KeySeed {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E: Error>(self, key: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(key))
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(key.to_owned()))
    }
}
