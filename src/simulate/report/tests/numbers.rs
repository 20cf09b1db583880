//! Numbers of all sizes stay short and true.

use proptest::prelude::*;

use crate::simulate::report::numbers::{
    NONE, TimeUnit, clock, grouped, percent, short, significant, time,
};

#[test]
fn three_digits_count_and_whole_numbers_are_whole() {
    for (value, text) in [
        (0.0, "0"),
        (0.001_234, "0.00123"),
        (0.099_99, "0.100"),
        (0.999_9, "1.00"),
        (9.999, "10.0"),
        (99.99, "100"),
        (1_908.4, "1,908"),
        (1_234_567.0, "1,234,567"),
        (-12.34, "-12.3"),
        (1e13, "1.0e13"),
        (4e-7, "4.0e-7"),
        (f64::NAN, NONE),
        (f64::NEG_INFINITY, NONE),
    ] {
        assert_eq!(significant(value), text, "{value}");
    }
}

#[test]
fn words_for_times_shares_and_clocks() {
    assert_eq!(time(0.1234), "123 ms");
    assert_eq!(time(1.5), "1.50 s");
    assert_eq!(percent(0.715), "71.5 %");
    assert_eq!(percent(f64::NAN), NONE);
    assert_eq!(clock(7), "0:07");
    assert_eq!(clock(3_723), "1:02:03");
    assert_eq!(grouped("-1234.5"), "-1,234.5");
    assert_eq!(short(2.0), "2");
    assert_eq!(short(0.25), "0.25");
    assert_eq!(short(100.0), "100");
}

#[test]
fn a_column_is_in_seconds_where_milliseconds_would_be_long() {
    assert_eq!(TimeUnit::of([0.2, 9.0].into_iter()), TimeUnit::Milliseconds);
    assert_eq!(TimeUnit::of([0.2, 10.0].into_iter()), TimeUnit::Seconds);
    assert_eq!(TimeUnit::of([1.2, 3.0].into_iter()), TimeUnit::Seconds);
    assert_eq!(TimeUnit::of(std::iter::empty()), TimeUnit::Milliseconds);
    assert_eq!(
        TimeUnit::of([f64::NAN, 0.0].into_iter()),
        TimeUnit::Milliseconds
    );
}

proptest! {
    #[test]
    fn a_written_number_is_short_and_within_half_a_per_cent(value in proptest::num::f64::NORMAL) {
        let text = significant(value);
        prop_assert!(text.len() <= 16, "{}", text);
        let read: f64 = text.replace(',', "").parse().expect("a number");
        let close = if (1e-3..1e12).contains(&value.abs()) { 0.0051 } else { 0.051 };
        prop_assert!((read - value).abs() <= value.abs() * close || read.is_infinite(), "{} for {}", text, value);
    }
}
