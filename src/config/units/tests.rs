//! What is accepted, what is refused, and that printing and parsing agree.

use proptest::prelude::*;

use super::*;

#[test]
fn durations_take_their_unit() {
    for (written, ms) in [
        ("500ms", 500),
        ("2s", 2_000),
        ("3 s", 3_000),
        ("1m", 60_000),
        ("1h", 3_600_000),
    ] {
        assert_eq!(written.parse(), Ok(Span(Duration::from_millis(ms))));
    }
}

#[test]
fn a_duration_without_a_known_unit_is_refused_with_what_was_expected() {
    for written in [
        "500",
        "2 seconds",
        "-1s",
        "1.5s",
        "",
        "s",
        "99999999999999999999s",
    ] {
        let error = written.parse::<Span>().unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("`{written}` is not a duration")),
            "{error}"
        );
        assert!(error.contains("500ms"), "{error}");
    }
    assert!("0s".parse::<Span>().is_err());
    assert_eq!("0s".parse(), Ok(SpanOrZero(Duration::ZERO)));
}

#[test]
fn sizes_are_powers_of_1024() {
    assert_eq!("32MiB".parse(), Ok(Size(32 << 20)));
    for written in ["32MB", "32", "0MiB", "18446744073709551615GiB"] {
        assert!(written.parse::<Size>().is_err(), "{written}");
    }
}

#[test]
fn bounded_numbers_name_their_bounds() {
    let error = "70000".parse::<Port>().unwrap_err().to_string();
    assert_eq!(error, "`70000` is not a whole number from 1 to 65535");
    assert!("0".parse::<Port>().is_err());
    assert!("NaN".parse::<Share>().is_err());
    assert!("1.01".parse::<Share>().is_err());
    assert!("inf".parse::<Positive>().is_err());
    assert!("metrics".parse::<UrlPath>().is_err());
    assert!("/metrics?x".parse::<UrlPath>().is_err());
}

proptest! {
    #[test]
    fn what_is_printed_parses_to_the_same_value(ms in 1_u64..10_000_000_000, bytes in 1_usize..1 << 40) {
        let span = Span(Duration::from_millis(ms));
        prop_assert_eq!(span.to_string().parse(), Ok(span));
        let size = Size(bytes);
        prop_assert_eq!(size.to_string().parse(), Ok(size));
    }

    #[test]
    fn no_text_panics(text in ".*") {
        let refused = [
            text.parse::<Span>().is_err(),
            text.parse::<Size>().is_err(),
            text.parse::<Port>().is_err(),
            text.parse::<Share>().is_err(),
        ];
        prop_assert!(refused.contains(&true), "{text:?} cannot be all of these");
    }
}
