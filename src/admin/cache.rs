//! One endpoint's cache as `/debug/cache/NAMESPACE/NAME` shows it: every block that it is believed to hold.

use serde_json::{Value, json};

use super::state;
use crate::routing::block::BlockKey;
use crate::routing::router::Contents;

/// The JSON of the page. Keys are the picker's own, in 16 hex digits, sorted.
pub(super) fn page(contents: Contents) -> Value {
    let Contents {
        endpoint,
        told,
        credited,
        sent,
    } = contents;
    let feeds: Vec<Value> = told
        .into_iter()
        .map(|(rank, keys)| {
            let known = endpoint.feeds.iter().find(|(of, _)| *of == rank);
            let mut feed = known.map_or_else(|| json!({ "rank": rank }), state::feed);
            if let Some(fields) = feed.as_object_mut() {
                fields.insert("cached_blocks".to_owned(), keys.len().into());
                fields.insert("keys".to_owned(), sorted(keys));
            }
            feed
        })
        .collect();
    json!({
        "name": endpoint.endpoint.name.as_str(),
        "address": endpoint.endpoint.address.to_string(),
        "block_size_tokens": endpoint.block_size.map(|size| size.get()),
        "approximate": endpoint.approximate,
        "cached_blocks": endpoint.blocks,
        "orphan_blocks": endpoint.orphans,
        "feeds": feeds,
        "credited": { "blocks": credited.len(), "keys": sorted(credited) },
        "sent": { "blocks": sent.len(), "keys": sorted(sent) },
    })
}

fn sorted(mut keys: Vec<BlockKey>) -> Value {
    keys.sort_unstable();
    keys.iter()
        .map(|BlockKey(key)| Value::String(format!("{key:016x}")))
        .collect()
}
