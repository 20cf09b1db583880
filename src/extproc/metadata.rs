//! What does the gateway say in `metadata_context`: whom may we choose from, and who served?

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use prost::Message as _;
use prost_types::{Value, value::Kind};

use super::proto::envoy::config::core::v3::Metadata;
use crate::metrics::wire::Oddity;
use crate::routing::router::SubsetEntry;

/// Header and metadata key of the endpoint we chose.
pub const DESTINATION: &str = "x-gateway-destination-endpoint";
/// Metadata namespace of the endpoint we chose and of the one that served.
pub const LB_NAMESPACE: &str = "envoy.lb";
/// Metadata key of the endpoint that served.
pub const SERVED: &str = "x-gateway-destination-endpoint-served";
/// Metadata namespace of the subset hint.
pub const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";
/// Metadata key of the subset hint.
pub const SUBSET: &str = "x-gateway-destination-endpoint-subset";

/// Request header by which the conformance suite restricts a pick.
pub const TEST_SELECTION: &str = "test-epp-endpoint-selection";
/// Response header by which the conformance suite learns what the gateway said of who served.
pub const TEST_SERVED: &str = "x-conformance-test-served-endpoint";

/// The subset hint, as far as it could be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Subset {
    /// Whom the pick is restricted to; empty means nobody.
    pub(super) entries: Vec<SubsetEntry>,
    /// Entries that are neither `ip:port` nor `ip`.
    pub(super) unparsed: usize,
}

/// The subset hint; `None` when the key is absent. A key that is there restricts, whatever its value: an unreadable
/// one must not open the whole pool.
pub(super) fn subset(metadata: &Bytes) -> Result<Option<Subset>, Oddity> {
    let Some(value) = lookup(metadata, SUBSET_NAMESPACE, SUBSET)? else {
        return Ok(None);
    };
    let mut subset = Subset {
        entries: Vec::new(),
        unparsed: 0,
    };
    match value.kind {
        Some(Kind::StringValue(list)) => subset.read_list(&list),
        Some(Kind::ListValue(list)) => {
            for value in list.values {
                match value.kind {
                    Some(Kind::StringValue(entry)) => subset.read_list(&entry),
                    _ => subset.unparsed += 1,
                }
            }
        }
        Some(Kind::NullValue(_)) | None => {}
        Some(_) => subset.unparsed += 1,
    }
    Ok(Some(subset))
}

/// The conformance suite's way to write a subset: a comma list, as in the hint.
pub(super) fn test_selection(list: &str) -> Subset {
    let mut subset = Subset {
        entries: Vec::new(),
        unparsed: 0,
    };
    subset.read_list(list);
    subset
}

/// What the conformance suite wants to read in [`TEST_SERVED`]: who served in the gateway's own words, or in the
/// suite's words what the gateway did not send.
pub(super) fn test_served(metadata: &Bytes) -> String {
    let namespaces = Metadata::decode(metadata.clone()).unwrap_or_default();
    let Some(said) = namespaces.filter_metadata.get(LB_NAMESPACE) else {
        return "fail: missing envoy lb metadata".to_owned();
    };
    match said
        .fields
        .get(SERVED)
        .and_then(|value| value.kind.as_ref())
    {
        Some(Kind::StringValue(served)) => served.clone(),
        _ => "fail: missing destination endpoint served metadata".to_owned(),
    }
}

/// Who served; `None` when the gateway does not say (yet).
pub(super) fn served(metadata: &Bytes) -> Result<Option<SocketAddr>, Oddity> {
    match lookup(metadata, LB_NAMESPACE, SERVED)?.and_then(|value| value.kind) {
        Some(Kind::StringValue(address)) => {
            address.trim().parse().map(Some).map_err(|_| Oddity::Served)
        }
        Some(_) => Err(Oddity::Served),
        None => Ok(None),
    }
}

impl Subset {
    /// Envoy's own way from a header to metadata makes one string of a list, hence the commas.
    fn read_list(&mut self, list: &str) {
        for entry in list.split(',').map(str::trim).filter(|e| !e.is_empty()) {
            match parse_entry(entry) {
                Some(entry) => self.entries.push(entry),
                None => self.unparsed += 1,
            }
        }
    }
}

fn parse_entry(entry: &str) -> Option<SubsetEntry> {
    if let Ok(endpoint) = entry.parse::<SocketAddr>() {
        return Some(SubsetEntry::Endpoint(endpoint));
    }
    let bare = entry
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(entry);
    bare.parse::<IpAddr>().ok().map(SubsetEntry::Address)
}

fn lookup(metadata: &Bytes, namespace: &str, key: &str) -> Result<Option<Value>, Oddity> {
    if metadata.is_empty() {
        return Ok(None);
    }
    let mut metadata = Metadata::decode(metadata.clone()).map_err(|_| Oddity::Metadata)?;
    Ok(metadata
        .filter_metadata
        .get_mut(namespace)
        .and_then(|entries| entries.fields.remove(key)))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use prost_types::{ListValue, Struct};

    use super::*;

    fn encoded(namespace: &str, key: &str, kind: Option<Kind>) -> Bytes {
        let fields = BTreeMap::from([(key.to_owned(), Value { kind })]);
        Metadata {
            filter_metadata: HashMap::from([(namespace.to_owned(), Struct { fields })]),
        }
        .encode_to_vec()
        .into()
    }

    fn hint(kind: Kind) -> Subset {
        subset(&encoded(SUBSET_NAMESPACE, SUBSET, Some(kind)))
            .unwrap()
            .unwrap()
    }

    fn string(text: &str) -> Kind {
        Kind::StringValue(text.to_owned())
    }

    fn list(kinds: Vec<Kind>) -> Kind {
        let values = kinds
            .into_iter()
            .map(|kind| Value { kind: Some(kind) })
            .collect();
        Kind::ListValue(ListValue { values })
    }

    #[test]
    fn lists_and_strings_mean_the_same() {
        let expected = vec![
            SubsetEntry::Endpoint("10.0.0.1:8000".parse().unwrap()),
            SubsetEntry::Address("10.0.0.2".parse().unwrap()),
            SubsetEntry::Endpoint("[fd00::1]:8000".parse().unwrap()),
            SubsetEntry::Address("fd00::2".parse().unwrap()),
            SubsetEntry::Address("fd00::3".parse().unwrap()),
        ];
        let parts = [
            "10.0.0.1:8000",
            "10.0.0.2",
            "[fd00::1]:8000",
            "fd00::2",
            "[fd00::3]",
        ];
        assert_eq!(hint(string(&parts.join(" , "))).entries, expected);
        assert_eq!(
            hint(list(parts.iter().map(|p| string(p)).collect())).entries,
            expected
        );
    }

    #[test]
    fn a_hint_that_is_there_restricts_even_when_it_says_nothing() {
        for kind in [
            string(""),
            string(" , "),
            list(Vec::new()),
            Kind::NullValue(0),
        ] {
            let read = hint(kind);
            assert_eq!(read.entries, Vec::new());
            assert_eq!(read.unparsed, 0);
        }
        let absent = encoded(SUBSET_NAMESPACE, "other", Some(string("10.0.0.1:1")));
        assert_eq!(subset(&absent), Ok(None));
        assert_eq!(subset(&Bytes::new()), Ok(None));
    }

    #[test]
    fn unreadable_entries_are_left_out_and_counted() {
        let read = hint(list(vec![
            string("engine-0:8000"),
            string("10.0.0.1:99999"),
            Kind::NumberValue(1.0),
            string("10.0.0.1:80"),
        ]));
        assert_eq!(
            read.entries,
            [SubsetEntry::Endpoint("10.0.0.1:80".parse().unwrap())]
        );
        assert_eq!(read.unparsed, 3);
        assert_eq!(hint(Kind::BoolValue(true)).unparsed, 1);
    }

    #[test]
    fn the_suite_reads_who_served_or_what_is_missing() {
        let served = |namespace, key, kind| test_served(&encoded(namespace, key, Some(kind)));
        assert_eq!(
            served(LB_NAMESPACE, SERVED, string("[fd00::1]:3000")),
            "[fd00::1]:3000"
        );
        for kind in [
            served(LB_NAMESPACE, DESTINATION, string("x")),
            served(LB_NAMESPACE, SERVED, Kind::BoolValue(true)),
        ] {
            assert_eq!(kind, "fail: missing destination endpoint served metadata");
        }
        for missing in [
            served("other", SERVED, string("x")),
            test_served(&Bytes::new()),
            test_served(&Bytes::from_static(b"\xff")),
        ] {
            assert_eq!(missing, "fail: missing envoy lb metadata");
        }
    }

    #[test]
    fn served_is_one_endpoint_or_odd() {
        let with = |kind| served(&encoded(LB_NAMESPACE, SERVED, Some(kind)));
        assert_eq!(
            with(string("10.0.0.1:8000")),
            Ok(Some("10.0.0.1:8000".parse().unwrap()))
        );
        assert_eq!(with(string("10.0.0.1")), Err(Oddity::Served));
        assert_eq!(with(Kind::NumberValue(1.0)), Err(Oddity::Served));
        assert_eq!(
            served(&encoded(LB_NAMESPACE, DESTINATION, Some(string("x")))),
            Ok(None)
        );
        assert_eq!(served(&Bytes::from_static(b"\xff")), Err(Oddity::Metadata));
    }
}
