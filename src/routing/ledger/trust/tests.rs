use proptest::prelude::*;

use super::*;

fn answer(verdict: Verdict, served_right: bool) -> Evidence {
    Evidence {
        view: Some(verdict),
        served_right,
        computed: None,
    }
}

fn is_doubted(change: Option<&TrustChange>) -> bool {
    matches!(change, Some(TrustChange::Doubted { .. }))
}

#[test]
fn half_of_the_window_wrong_is_a_doubt_and_less_is_none() {
    let now = Instant::now();
    let mut trust = Trust::default();
    for round in 0..40 {
        let verdict = if round % 16 < 7 {
            Verdict::TooLow
        } else {
            Verdict::Right
        };
        assert_eq!(trust.note(answer(verdict, true), now), None, "{round}");
    }
    let mut trust = Trust::default();
    for _ in 0..7 {
        assert_eq!(trust.note(answer(Verdict::TooHigh, false), now), None);
    }
    let change = trust.note(answer(Verdict::TooLow, false), now);
    let Some(TrustChange::Doubted { cause, reason }) = change else {
        panic!("{change:?}");
    };
    assert_eq!(cause, DoubtCause::TooHigh);
    assert!(reason.starts_with("7 of the last 8 answers"), "{reason}");
    assert_eq!(trust.doubt(), Some(reason.as_str()));
}

#[test]
fn a_store_that_comes_a_little_late_is_no_silence() {
    let start = Instant::now();
    let mut trust = Trust::default();
    for round in 0..40 {
        let key = BlockKey(round);
        let now = start + Duration::from_millis(400 * round);
        let computed = Evidence {
            computed: Some((key, false)),
            ..Evidence::default()
        };
        assert_eq!(trust.note(computed, now), None);
        trust.announced(&[BlockKey(999), key]);
    }
    assert!(trust.awaited.is_empty());
}

#[test]
fn a_new_view_is_judged_anew_and_the_doubt_stays_until_it_was_right() {
    let now = Instant::now();
    let mut trust = Trust::default();
    for _ in 0..8 {
        trust.note(answer(Verdict::TooHigh, false), now);
    }
    assert!(trust.doubt().is_some());
    for _ in 0..15 {
        trust.note(answer(Verdict::Right, false), now);
    }
    trust.start_over();
    for _ in 0..15 {
        assert_eq!(trust.note(answer(Verdict::Right, false), now), None);
        assert!(trust.doubt().is_some());
    }
    let change = trust.note(answer(Verdict::Right, false), now);
    assert_eq!(change, Some(TrustChange::Trusted));
}

fn evidence() -> impl Strategy<Value = (Evidence, u64)> {
    let verdict = prop::option::of(prop_oneof![
        Just(Verdict::Right),
        Just(Verdict::TooLow),
        Just(Verdict::TooHigh)
    ]);
    let computed = prop::option::of((0_u64..50, any::<bool>()));
    (verdict, any::<bool>(), computed, 0_u64..2_000).prop_map(|(view, right, computed, ms)| {
        let evidence = Evidence {
            view,
            served_right: right,
            computed: computed.map(|(key, told)| (BlockKey(key), told)),
        };
        (evidence, ms)
    })
}

proptest! {
    #[test]
    fn it_goes_to_and_fro_in_turn_and_stays_small(steps in prop::collection::vec(evidence(), 0..300)) {
        let mut trust = Trust::default();
        let mut now = Instant::now();
        for (evidence, ms) in steps {
            now += Duration::from_millis(ms);
            let before = trust.doubt().is_some();
            let change = trust.note(evidence, now);
            let after = trust.doubt().is_some();
            prop_assert_eq!(is_doubted(change.as_ref()), !before && after);
            prop_assert_eq!(change == Some(TrustChange::Trusted), before && !after);
            prop_assert!(trust.answers.len() <= WINDOW && trust.announcements.len() <= WINDOW);
            prop_assert!(trust.awaited.len() <= WINDOW);
        }
    }
}
