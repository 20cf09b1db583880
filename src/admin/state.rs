//! One endpoint as `/debug/state` shows it: every number the decision uses, in plain words.

use serde_json::{Value, json};

use crate::metrics::fleet::feed_word;
use crate::routing::cache::FeedState;
use crate::routing::router::{EndpointView, Exclusion};

/// The JSON of one endpoint; `engine` is what the engine told of itself.
pub(super) fn endpoint(view: &EndpointView, engine: Value) -> Value {
    json!({
        "name": view.endpoint.name.as_str(),
        "address": view.endpoint.address.to_string(),
        "rank": view.endpoint.rank,
        "labels": view.endpoint.labels,
        "incarnation": view.endpoint.incarnation,
        "ready": view.ready,
        "excluded": view.excluded.map(Exclusion::as_str),
        "queued_tokens": view.queued.get(),
        "in_flight": view.in_flight,
        "report": report(view),
        "feeds": view.feeds.iter().map(feed).collect::<Vec<_>>(),
        "approximate": view.approximate,
        "approximate_overflow": view.approximate_overflow,
        "doubt": view.doubt,
        "block_size_tokens": view.block_size.map(|size| size.get()),
        "cached_blocks": view.blocks,
        "credited_blocks": view.credited_blocks,
        "orphan_blocks": view.orphans,
        "prefill_us_per_token": view.prefill_us_per_token,
        "engine": engine,
    })
}

fn report(view: &EndpointView) -> Value {
    let Some((report, age)) = &view.report else {
        return json!({ "no_page": view.no_report_page });
    };
    json!({
        "no_page": view.no_report_page,
        "age_ms": u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
        "kv_usage": report.kv_usage,
        "running": report.running,
        "waiting": report.waiting,
        "block_size_tokens": report.block_size,
        "kv_capacity_tokens": report.kv_capacity.map(|tokens| tokens.get()),
    })
}

/// One event source: how far it can be trusted, and why not further.
pub(super) fn feed((rank, state): &(u32, FeedState)) -> Value {
    let cause = match state {
        FeedState::Live | FeedState::Suspect => None,
        FeedState::Incomplete(cause) | FeedState::Absent(cause) => Some(cause),
    };
    json!({ "rank": rank, "state": feed_word(state), "cause": cause })
}
