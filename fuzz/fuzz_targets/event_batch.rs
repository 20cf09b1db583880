//! Any bytes as a batch of KV events: read, applied to a view, and forgotten again without a trace.

#![no_main]

use std::collections::BTreeMap;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use warmpath::feeds::kv_wire;
use warmpath::routing::cost::Tiers;
use warmpath::routing::endpoint::{Endpoint, EndpointName};
use warmpath::routing::router::{Policy, Router, Settings};

fuzz_target!(|payload: &[u8]| {
    let Ok(batch) = kv_wire::decode(payload) else {
        return;
    };
    let router = Router::new(Settings {
        policy: Policy::LeastPrefill,
        tiers: Tiers::default(),
        kv_usage_limit: 0.95,
        report_age_limit: Duration::from_millis(500),
        idle_report_age_limit: Duration::from_secs(6),
    });
    let id = router.join(Endpoint {
        name: EndpointName::new("fuzz", "engine"),
        address: ([127, 0, 0, 1], 8000).into(),
        labels: BTreeMap::new(),
        incarnation: String::new(),
        rank: None,
    });
    let mut view = router.cache_view(id, 0);
    // Twice: a batch that comes again must not break the counts.
    let first = view.apply(&batch.events);
    let again = view.apply(&batch.events);
    let seen = router.endpoints(std::time::Instant::now());
    let entered: u64 = [first, again].iter().map(|applied| applied.stored + applied.orphaned).sum();
    assert!(seen[0].blocks <= entered, "{} blocks of {first:?} and {again:?}", seen[0].blocks);
    view.clear();
    let seen = router.endpoints(std::time::Instant::now());
    assert_eq!((seen[0].blocks, seen[0].orphans), (0, 0), "left over after a clear");
});
