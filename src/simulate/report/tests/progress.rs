//! What a long run shows of itself, with time as an argument.

use std::time::{Duration, Instant};

use crate::simulate::report::Progress;

/// What is written when `done` requests have ended after so many milliseconds, for each pair, and at the end.
fn written(is_terminal: bool, total: Option<u64>, steps: &[(u64, u64)], end: (u64, u64)) -> String {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let mut out = Vec::new();
    let mut progress = Progress::new(&mut out, is_terminal, "least-prefill", total, start);
    for &(ms, done) in steps {
        progress.update(done, at(ms)).expect("memory takes it");
    }
    progress.finish(end.1, at(end.0)).expect("memory takes it");
    String::from_utf8(out).expect("UTF-8")
}

#[test]
fn a_terminal_sees_one_line_that_is_written_over_and_closed_at_the_end() {
    let text = written(
        true,
        Some(1_000),
        &[(500, 250), (550, 260), (1_000, 500)],
        (2_000, 1_000),
    );
    let lines: Vec<&str> = text.split('\r').collect();
    assert_eq!(
        lines.len(),
        4,
        "the update after 50 ms is left out: {text:?}"
    );
    assert!(
        lines[1].contains(" 25 % 250 requests, 500/s, 0:00, 0:01 left"),
        "{text:?}"
    );
    assert!(
        lines[2].contains("███████████░░░░░░░░░░░░ 50 %"),
        "{text:?}"
    );
    assert_eq!(
        lines[3],
        "least-prefill 1,000 requests, 500/s, 0:02\x1b[K\n"
    );
    assert_eq!(text.matches('\n').count(), 1);
}

#[test]
fn a_log_gets_a_plain_line_every_ten_seconds() {
    let steps: Vec<(u64, u64)> = (1..=35)
        .map(|second| (second * 1_000, second * 100))
        .collect();
    let text = written(false, Some(5_000), &steps, (36_000, 3_600));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert_eq!(
        lines[0],
        "least-prefill 20 % 1,000 requests, 100/s, 0:10, 0:40 left"
    );
    assert!(!text.contains(['\r', '\x1b', '█']), "{text:?}");
}

#[test]
fn a_run_of_unknown_length_tells_what_is_done() {
    let text = written(false, None, &[(10_000, 70)], (20_000, 140));
    assert!(
        text.starts_with("least-prefill 70 requests, 7.00/s, 0:10\n"),
        "{text}"
    );
}

#[test]
fn extremes_neither_panic_nor_wrap_a_line() {
    for total in [None, Some(0), Some(1), Some(u64::MAX)] {
        let text = written(
            true,
            total,
            &[(0, 0), (200, 0), (400, 1), (600, u64::MAX)],
            (700, u64::MAX),
        );
        for line in text.split('\r') {
            let shown = line.trim_end_matches("\x1b[K\n").trim_end_matches("\x1b[K");
            assert!(shown.chars().count() <= 79, "{line:?}");
        }
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text:?}");
    }
}
