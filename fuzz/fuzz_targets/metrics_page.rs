//! Any bytes as an engine's metrics page.

#![no_main]

use libfuzzer_sys::fuzz_target;
use warmpath::feeds::load_text::{self, Page};

fuzz_target!(|page: &[u8]| {
    if let Page::Told(whole, ranks) = load_text::parse(page) {
        for report in std::iter::once(&whole).chain(ranks.values()) {
            assert!((0.0..=1.0).contains(&report.kv_usage), "{report:?}");
        }
    }
});
