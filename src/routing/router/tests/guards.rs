//! Who is left out, why, and what becomes of a pick when nobody is left.

use super::*;

#[test]
fn guards_leave_out_within_the_subset_and_are_overruled_when_nobody_is_left() {
    let pool = Pool::new(3);
    let full = Report {
        kv_usage: 0.99,
        ..Report::default()
    };
    pool.router
        .report(pool.ids[0], ReportOutcome::Fresh(full), pool.now);
    pool.router
        .report(pool.ids[1], ReportOutcome::Fresh(full), pool.now);
    let decision = pool.pick(&tokens(1, 100));
    assert_eq!(decision.id, pool.ids[2]);
    assert_eq!(decision.considered[0].excluded, Some(Exclusion::KvUsage));
    assert!(!decision.guards_overruled);
    let subset = [
        SubsetEntry::Endpoint(address(0)),
        SubsetEntry::Endpoint(address(1)),
    ];
    let ask = Ask {
        subset: Some(&subset),
        alternates: 5,
        ..pool.ask(1)
    };
    let decision = pool
        .router
        .pick(&pool.prepare(&tokens(2, 100)), &ask)
        .unwrap();
    assert!(decision.guards_overruled);
    assert_ne!(decision.id, pool.ids[2]);
    assert_eq!(decision.considered[2].excluded, Some(Exclusion::Subset));
    assert_eq!(decision.alternates.len(), 1);
}

#[test]
fn nobody_ready_and_an_empty_subset_are_refused_differently() {
    let pool = Pool::new(2);
    let prepared = pool.prepare(&tokens(1, 100));
    let nobody = Ask {
        subset: Some(&[]),
        ..pool.ask(1)
    };
    assert_eq!(
        pool.router.pick(&prepared, &nobody).unwrap_err(),
        Refusal::EmptySubset
    );
    for &id in &pool.ids {
        pool.router.set_ready(id, false);
    }
    let refusal = pool.router.pick(&prepared, &pool.ask(1)).unwrap_err();
    assert_eq!(refusal, Refusal::NothingReady);
}

#[test]
fn silence_excludes_an_endpoint_that_should_report() {
    let mut pool = Pool::new(2);
    pool.router.report(
        pool.ids[0],
        ReportOutcome::Fresh(Report::default()),
        pool.now,
    );
    pool.router.report(
        pool.ids[1],
        ReportOutcome::Fresh(Report::default()),
        pool.now,
    );
    let held = pool.pick_on(0, &tokens(1, 100));
    assert!(held.woke);
    pool.now += Duration::from_millis(501);
    pool.router
        .report(pool.ids[0], ReportOutcome::Failed, pool.now);
    let decision = pool.pick(&tokens(2, 100));
    assert_eq!(decision.id, pool.ids[1]);
    assert_eq!(decision.considered[0].excluded, Some(Exclusion::ReportAge));
}

#[test]
fn an_endpoint_where_nobody_listens_is_left_out_until_it_answers() {
    let pool = Pool::new(2);
    let tell = |outcome| pool.router.report(pool.ids[0], outcome, pool.now);
    for answer in [
        ReportOutcome::Fresh(Report::default()),
        ReportOutcome::NoPage,
    ] {
        tell(ReportOutcome::Refused);
        // A hang proves nothing of who listens.
        tell(ReportOutcome::Failed);
        let decision = pool.pick(&tokens(1, 100));
        assert_eq!(decision.id, pool.ids[1]);
        assert_eq!(
            decision.considered[0].excluded,
            Some(Exclusion::Unreachable)
        );
        tell(answer);
        let decision = pool.pick(&tokens(1, 100));
        assert_eq!(decision.considered[0].excluded, None);
    }
    for &id in &pool.ids {
        pool.router.report(id, ReportOutcome::Refused, pool.now);
    }
    assert!(
        pool.pick(&tokens(1, 100)).guards_overruled,
        "somebody is better than nobody"
    );
}
