//! How is one object of the API read without trusting it? Each alone: one that is malformed costs nobody else.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Which object, and which version of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Identity {
    /// `metadata.name`; unique in a namespace.
    pub(super) name: String,
    /// `metadata.uid`: another object of the same name has another.
    pub(super) uid: String,
    /// `metadata.resourceVersion`; empty when it was not told.
    pub(super) version: String,
}

/// Something that is read out of an object of the API.
pub(super) trait Object: Sized + Send + 'static {
    /// Which object it was read from.
    fn identity(&self) -> &Identity;

    /// Reads the fields that are used out of an object's JSON.
    ///
    /// # Errors
    /// When one that cannot be done without is missing or means nothing.
    fn read(json: &str) -> Result<Self, Malformed>;
}

/// What is wrong with an object.
#[derive(Debug, thiserror::Error)]
pub(super) enum Malformed {
    /// Its large parts are not of the kind they should be.
    #[error("it is not of the expected form: {0}")]
    Form(#[from] serde_json::Error),
    /// A field is not there, or of another kind.
    #[error("it has no usable {0}")]
    Missing(&'static str),
    /// A field is there and means nothing.
    #[error("{field} `{written}` is not {expected}")]
    Meaningless {
        field: &'static str,
        written: String,
        expected: &'static str,
    },
    /// Pool: its selector is no label selector.
    #[error("spec.selector.matchLabels: {0}")]
    Selector(#[from] super::selector::SelectorError),
    /// Pool: its ports cannot all be endpoints.
    #[error("spec.targetPorts: {0}")]
    Ports(#[from] super::members::PortsError),
}

/// An object that was skipped.
#[derive(Debug)]
pub(super) struct Refusal {
    /// As far as it can be read; empty where not.
    pub(super) identity: Identity,
    pub(super) problem: Box<Malformed>,
}

/// Reads an object, or tells which one cannot be read and why.
pub(super) fn read<T: Object>(json: &str) -> Result<T, Refusal> {
    T::read(json).map_err(|problem| Refusal {
        identity: identity(json),
        problem: Box::new(problem),
    })
}

/// The identity of any object, as far as it can be read.
pub(super) fn identity(json: &str) -> Identity {
    #[derive(Deserialize)]
    struct Any {
        #[serde(default)]
        metadata: Lenient<RawMetadata>,
    }
    let any = serde_json::from_str::<Any>(json).ok();
    let metadata = any.and_then(|any| any.metadata.0).unwrap_or_default();
    Identity {
        name: metadata.name.0.unwrap_or_default(),
        uid: metadata.uid.0.unwrap_or_default(),
        version: metadata.resource_version.0.unwrap_or_default(),
    }
}

/// The fields of `metadata` that any object has.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawMetadata {
    #[serde(default)]
    pub(super) name: Lenient<String>,
    #[serde(default)]
    pub(super) uid: Lenient<String>,
    #[serde(default)]
    pub(super) resource_version: Lenient<String>,
    #[serde(default)]
    pub(super) creation_timestamp: Lenient<String>,
    /// Its presence is all that counts.
    #[serde(default)]
    pub(super) deletion_timestamp: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    pub(super) labels: Texts,
    #[serde(default)]
    pub(super) annotations: Texts,
}

impl RawMetadata {
    /// The identity, which must be whole.
    pub(super) fn identity(&mut self) -> Result<Identity, Malformed> {
        let whole = |text: &mut Lenient<String>| text.0.take().filter(|text| !text.is_empty());
        Ok(Identity {
            name: whole(&mut self.name).ok_or(Malformed::Missing("metadata.name"))?,
            uid: whole(&mut self.uid).ok_or(Malformed::Missing("metadata.uid"))?,
            version: self.resource_version.0.take().unwrap_or_default(),
        })
    }
}

/// A map of texts, of which those that are none are left out.
#[derive(Default)]
pub(super) struct Texts(pub(super) std::collections::BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        let Value::Object(map) = Value::deserialize(json)? else {
            return Ok(Self::default());
        };
        let texts = map.into_iter().filter_map(|(key, value)| match value {
            Value::String(text) => Some((key, text)),
            _ => None,
        });
        Ok(Self(texts.collect()))
    }
}

/// A value that may be of any kind: another than expected is as good as none.
pub(super) struct Lenient<T>(pub(super) Option<T>);

impl<T> Default for Lenient<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        Ok(Self(T::deserialize(Value::deserialize(json)?).ok()))
    }
}

/// A list of which the elements of another kind are left out; no list at all is an empty one.
pub(super) fn elements<T>(list: Lenient<Vec<Lenient<T>>>) -> impl Iterator<Item = T> {
    list.0
        .unwrap_or_default()
        .into_iter()
        .filter_map(|element| element.0)
}
