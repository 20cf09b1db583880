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

/// Endpoint 0 has `cached` tokens of the prompt and a KV pool that is nearly full, endpoint 1 has `elsewhere` of them and room.
fn owner_is_full(policy: Policy, cached: usize, elsewhere: usize) -> (Pool, Vec<u32>) {
    let mut pool = Pool::with(2, policy);
    let prompt = tokens(1, 1_600);
    pool.store(0, &prompt[..cached], 0);
    pool.store(1, &prompt[..elsewhere], 0);
    fill(&pool, 0);
    (pool, prompt)
}

fn fill(pool: &Pool, n: usize) {
    let full = Report {
        kv_usage: 0.99,
        ..Report::default()
    };
    let outcome = ReportOutcome::Fresh(full);
    pool.router.report(pool.ids[n], outcome, pool.now);
}

#[test]
fn a_full_pool_does_not_leave_out_who_has_the_greater_part_of_the_prompt() {
    let chosen = |policy, cached, elsewhere| {
        let (pool, prompt) = owner_is_full(policy, cached, elsewhere);
        let decision = pool.pick(&prompt);
        assert!(!decision.guards_overruled);
        let left_out = decision.considered[0].excluded == Some(Exclusion::KvUsage);
        assert_eq!(
            left_out,
            decision.id == pool.ids[1],
            "{cached} and {elsewhere}"
        );
        decision.id.slot
    };
    assert_eq!(chosen(Policy::LeastPrefill, 1_200, 0), 0);
    assert_eq!(chosen(Policy::LeastPrefill, 1_200, 1_184), 0);
    // As much is to be had where there is room.
    assert_eq!(chosen(Policy::LeastPrefill, 1_200, 1_200), 1);
    // The request would take more room than it finds.
    assert_eq!(chosen(Policy::LeastPrefill, 800, 0), 1);
    assert_eq!(chosen(Policy::LeastQueued, 1_200, 0), 1);
}

#[test]
fn where_nobody_has_room_the_least_cost_is_taken_owner_or_not() {
    let (pool, prompt) = owner_is_full(Policy::LeastPrefill, 1_200, 0);
    fill(&pool, 1);
    let _held = pool.pick_on(0, &tokens(2, 1_500));
    let decision = pool.pick(&prompt);
    assert!(decision.guards_overruled);
    assert_eq!(decision.id, pool.ids[1], "1,500 queued against 1,200 saved");
}
