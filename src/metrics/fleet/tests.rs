//! What a scrape shows of an endpoint, and that it shows nothing of one that left.

use std::time::Duration;

use prometheus::{Encoder, TextEncoder};

use super::*;
use crate::routing::endpoint::{Endpoint, EndpointId, EndpointName, Report};
use crate::routing::tokens::TokenCount;

fn view() -> EndpointView {
    EndpointView {
        id: EndpointId {
            slot: 0,
            generation: 0,
        },
        endpoint: Endpoint {
            name: EndpointName::new("default", "vllm-0"),
            address: ([127, 0, 0, 1], 8000).into(),
            labels: std::collections::BTreeMap::new(),
            incarnation: String::new(),
            rank: None,
        },
        ready: true,
        queued: TokenCount::new(600),
        in_flight: 2,
        report: None,
        no_report_page: false,
        excluded: None,
        feeds: Vec::new(),
        approximate: true,
        doubt: None,
        approximate_overflow: false,
        credited_blocks: 0,
        block_size: None,
        blocks: 7,
        orphans: 0,
        prefill_us_per_token: None,
    }
}

fn page(views: &[EndpointView]) -> String {
    let mut page = Vec::new();
    TextEncoder::new()
        .encode(&families_of(views), &mut page)
        .unwrap();
    String::from_utf8(page).unwrap()
}

#[test]
fn an_endpoint_without_report_has_no_gauges_of_one() {
    let page = page(&[view()]);
    assert!(page.contains("warmpath_endpoint_queued_tokens{endpoint=\"default/vllm-0\"} 600\n"));
    assert!(page.contains("warmpath_endpoint_approximate{endpoint=\"default/vllm-0\"} 1\n"));
    assert!(!page.contains("kv_usage_ratio"), "{page}");
}

#[test]
fn reports_feeds_and_guards_are_shown_by_closed_sets_of_labels() {
    let report = Report {
        kv_usage: 0.97,
        running: 3,
        ..Report::default()
    };
    let page = page(&[EndpointView {
        report: Some((report, Duration::from_millis(250))),
        excluded: Some(Exclusion::KvUsage),
        feeds: vec![(1, FeedState::Absent("a cause that is no label".to_owned()))],
        ..view()
    }]);
    for line in [
        "warmpath_endpoint_kv_usage_ratio{endpoint=\"default/vllm-0\"} 0.97\n",
        "warmpath_endpoint_report_age_seconds{endpoint=\"default/vllm-0\"} 0.25\n",
        "warmpath_endpoint_excluded{endpoint=\"default/vllm-0\",guard=\"kv_usage\"} 1\n",
        "warmpath_endpoint_excluded{endpoint=\"default/vllm-0\",guard=\"report_age\"} 0\n",
        "warmpath_endpoint_feed_state{endpoint=\"default/vllm-0\",rank=\"1\",state=\"absent\"} 1\n",
        "warmpath_endpoint_feed_state{endpoint=\"default/vllm-0\",rank=\"1\",state=\"live\"} 0\n",
    ] {
        assert!(page.contains(line), "{line}{page}");
    }
    assert!(!page.contains("no label"));
}

#[test]
fn the_collector_registers_once() {
    let router = Router::new(crate::config::Settings::default().router);
    let registry = prometheus::Registry::new();
    let collector = || Box::new(FleetCollector::new(Arc::clone(&router)).unwrap());
    registry.register(collector()).unwrap();
    assert!(registry.register(collector()).is_err());
}
