//! Endpoints that have stopped: when that is seen, what ends it, and what is not mistaken for it.

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const STALLED: Option<Exclusion> = Some(Exclusion::Stalled);

/// Two endpoints, of which the second one never stops and is never idle.
struct Pair {
    pool: Pool,
    lively: Decision,
}

impl Pair {
    fn new() -> Self {
        let pool = Pool::new(2);
        let lively = pool.pick_on(1, &tokens(900, 20_000));
        Self { pool, lively }
    }

    fn pass(&mut self, time: Duration) {
        let until = self.pool.now + time;
        while self.pool.now < until {
            self.lively.reservation.more_data();
            let step = until.duration_since(self.pool.now);
            self.pool.pass(step.min(SECOND));
        }
    }

    fn excluded(&self) -> Option<Exclusion> {
        self.pool.view(0).excluded
    }
}

fn report(pool: &Pool, computed: u64) {
    let report = Report {
        computed: Some(computed),
        running: 1,
        ..Report::default()
    };
    pool.router
        .report(pool.ids[0], ReportOutcome::Fresh(report), pool.now);
}

#[test]
fn an_endpoint_where_nothing_moves_is_left_out_after_ten_seconds_unless_it_leaves_nobody() {
    let mut pair = Pair::new();
    let _stuck = pair.pool.pick_on(0, &tokens(1, 100));
    pair.pass(10 * SECOND - SECOND / 4);
    assert_eq!(pair.excluded(), None);
    pair.pass(SECOND / 2);
    assert_eq!(pair.excluded(), STALLED);
    let decision = pair.pool.pick(&tokens(2, 100));
    assert_eq!(decision.id, pair.pool.ids[1]);
    assert_eq!(decision.considered[0].excluded, STALLED);
    pair.pool.router.set_ready(pair.pool.ids[1], false);
    let decision = pair.pool.pick(&tokens(3, 100));
    assert!(decision.guards_overruled);
}

#[test]
fn any_sign_of_progress_keeps_an_endpoint_in_and_brings_it_back() {
    type Sign = fn(&mut Pool, &mut Decision, u32);
    let signs: [(&str, Sign); 4] = [
        ("bytes", |_, stuck, _| stuck.reservation.more_data()),
        ("a report", |pool, _, n| report(pool, u64::from(n))),
        ("events", |pool, _, n| {
            pool.store(0, &tokens(500 + n, 16), 0);
        }),
        ("first data", |pool, _, n| {
            let mut other = pool.pick_on(0, &tokens(600 + n, 16));
            other.reservation.prefilled(pool.now);
        }),
    ];
    for (name, sign) in signs {
        let mut pair = Pair::new();
        report(&pair.pool, 1_000);
        pair.pool
            .router
            .report(pair.pool.ids[1], ReportOutcome::NoPage, pair.pool.now);
        let mut stuck = pair.pool.pick_on(0, &tokens(1, 100));
        let excluded = |pair: &Pair| {
            // That its report is too old is another guard's business.
            pair.excluded().filter(|&why| why != Exclusion::ReportAge)
        };
        for n in 0..6 {
            pair.pass(8 * SECOND);
            assert_eq!(excluded(&pair), None, "{name}");
            sign(&mut pair.pool, &mut stuck, n);
        }
        pair.pass(11 * SECOND);
        assert_eq!(excluded(&pair), STALLED, "{name}");
        sign(&mut pair.pool, &mut stuck, 7);
        assert_eq!(excluded(&pair), None, "{name}");
    }
}

#[test]
fn it_stays_left_out_when_its_clients_have_given_up_but_for_one_probe_at_a_time() {
    let mut pair = Pair::new();
    let stuck = pair.pool.pick_on(0, &tokens(1, 100));
    pair.pass(11 * SECOND);
    stuck.reservation.end(pair.pool.now);
    assert_eq!(
        pair.pool.view(0).queued.get(),
        0,
        "it looks the least busy of all"
    );
    let mut waits = Vec::new();
    let mut last = pair.pool.now;
    for n in 0..400 {
        let decision = pair.pool.pick(&tokens(10 + n, 100));
        if decision.id == pair.pool.ids[0] {
            assert!(!decision.guards_overruled);
            waits.push(pair.pool.now.duration_since(last).as_secs());
            last = pair.pool.now;
        }
        decision.reservation.end(pair.pool.now);
        assert_eq!(pair.excluded(), STALLED);
        pair.pass(SECOND);
    }
    // The verdict was up to a second before the first pick; the wait is longer each time, and at most a minute.
    assert!((4..=5).contains(&waits[0]), "{waits:?}");
    assert_eq!(waits[1..], [10, 20, 40, 60, 60, 60, 60, 60], "{waits:?}");
}

#[test]
fn the_first_data_of_a_probe_brings_it_back() {
    let mut pair = Pair::new();
    let stuck = pair.pool.pick_on(0, &tokens(1, 100));
    pair.pass(11 * SECOND);
    stuck.reservation.end(pair.pool.now);
    pair.pass(6 * SECOND);
    let mut probe = pair.pool.pick(&tokens(2, 100));
    assert_eq!(probe.id, pair.pool.ids[0]);
    let next = pair.pool.pick(&tokens(3, 100));
    assert_eq!(next.id, pair.pool.ids[1]);
    probe.reservation.prefilled(pair.pool.now);
    assert_eq!(pair.excluded(), None);
    drop((probe, next));
    assert_eq!(pair.pool.pick(&tokens(4, 100)).id, pair.pool.ids[0]);
}

#[test]
fn clients_that_wait_for_less_than_the_limit_do_not_hide_it() {
    let mut pair = Pair::new();
    for n in 0..3 {
        let stuck = pair.pool.pick_on(0, &tokens(n, 100));
        pair.pass(3 * SECOND);
        // Nobody looks while it is idle, and idle time counts for nothing.
        stuck.reservation.end(pair.pool.now);
        pair.pool.now += 100 * SECOND;
        assert_eq!(pair.excluded(), None);
    }
    let _stuck = pair.pool.pick_on(0, &tokens(4, 100));
    pair.pass(2 * SECOND);
    assert_eq!(pair.excluded(), STALLED, "9 s before and 2 s now");
}

#[test]
fn a_client_that_gives_up_and_a_falling_report_are_no_signs() {
    let mut pair = Pair::new();
    let mut stuck: Vec<Decision> = (0..12)
        .map(|n| pair.pool.pick_on(0, &tokens(n, 100)))
        .collect();
    for n in 0..12_u64 {
        let report = Report {
            computed: Some(5),
            kv_usage: 0.5 - n as f64 / 100.0,
            running: 0,
            waiting: 12 - n,
            finished: Some(n),
            ..Report::default()
        };
        let outcome = ReportOutcome::Fresh(report);
        pair.pool
            .router
            .report(pair.pool.ids[0], outcome, pair.pool.now);
        stuck.pop();
        pair.pass(SECOND);
    }
    assert_eq!(pair.excluded(), Some(Exclusion::Stalled));
}

#[test]
fn a_long_queue_is_given_several_times_the_time_that_it_should_take() {
    let mut pair = Pair::new();
    for n in 0..4 {
        let mut teacher = pair.pool.pick_on(0, &tokens(100 + n, 1_000));
        pair.pass(SECOND);
        teacher.reservation.prefilled(pair.pool.now);
        teacher.reservation.end(pair.pool.now);
    }
    let _queue = pair.pool.pick_on(0, &tokens(1, 10_000));
    pair.pass(39 * SECOND);
    assert_eq!(pair.excluded(), None, "four times ten seconds");
    pair.pass(3 * SECOND);
    assert_eq!(pair.excluded(), STALLED);
}

#[test]
fn requests_that_were_only_long_are_not_called_a_stall_again_and_again() {
    let mut pair = Pair::new();
    // Nothing tells of it: no report, no events, one answer in one piece after 20 minutes.
    pair.pool.views[0].set_feed(FeedState::Absent("none".to_owned()));
    let mut long = pair.pool.pick_on(0, &tokens(1, 100));
    let (mut left_out, mut verdicts, mut before) = (0, 0, None);
    for second in 0..1_200 {
        pair.pass(SECOND);
        let excluded = pair.excluded();
        left_out += u32::from(excluded.is_some());
        verdicts += u32::from(excluded.is_some() && before.is_none());
        before = excluded;
        // Somebody asks for something short, and gets it.
        if second % 5 == 0 && excluded.is_some() {
            let mut probe = pair.pool.pick(&tokens(1_000 + second, 10));
            if probe.id == pair.pool.ids[0] {
                probe.reservation.prefilled(pair.pool.now);
            }
        }
    }
    assert!(verdicts <= 7, "{verdicts}");
    assert!(left_out <= 70, "{left_out} s of 1,200");
    long.reservation.prefilled(pair.pool.now);
    long.reservation.end(pair.pool.now);
    assert_eq!(pair.excluded(), None);
}

#[test]
fn where_nothing_can_give_a_sign_nothing_is_held_against_an_endpoint() {
    for witness in [false, true] {
        let mut pair = Pair::new();
        pair.pool.views[0].set_feed(FeedState::Absent("none".to_owned()));
        // A gateway that shows no response, and new work before the old is done.
        for n in 0..60 {
            if witness {
                report(&pair.pool, 7);
            }
            let mut hidden = pair.pool.pick_on(0, &tokens(n, 20_000));
            hidden.reservation.answered(200);
            hidden.reservation.detach(pair.pool.now);
            pair.pass(SECOND);
            assert!(witness || pair.excluded().is_none());
        }
        let stalled = pair.excluded() == STALLED;
        assert_eq!(stalled, witness, "a report that counts tokens would tell");
    }
}

#[test]
fn events_of_a_replay_are_old_and_no_sign() {
    let mut pair = Pair::new();
    let _stuck = pair.pool.pick_on(0, &tokens(1, 100));
    pair.pass(6 * SECOND);
    pair.pool.views[0].set_feed(FeedState::Suspect);
    pair.pool.store(0, &tokens(2, 160), 0);
    pair.pool.views[0].set_feed(FeedState::Live);
    pair.pass(5 * SECOND);
    assert_eq!(pair.excluded(), STALLED);
}

#[test]
fn what_was_seen_of_the_former_process_says_nothing_of_the_next() {
    let mut pair = Pair::new();
    let stuck = pair.pool.pick_on(0, &tokens(1, 1_000));
    pair.pass(11 * SECOND);
    assert_eq!(pair.excluded(), STALLED);
    pair.pool
        .router
        .restarted(pair.pool.ids[0], pair.pool.now, pair.pool.now);
    assert_eq!(pair.excluded(), None);
    drop(stuck);
    pair.pool.router.leave(pair.pool.ids[0]);
    let mut other = Pair::new();
    let mut old = other.pool.pick_on(0, &tokens(1, 1_000));
    other.pool.router.leave(other.pool.ids[0]);
    other.pool.ids.remove(0);
    other.pool.join(0);
    let _new = other.pool.pick_on(0, &tokens(2, 1_000));
    let new = |other: &Pair| other.pool.view(1).excluded;
    for _ in 0..6 {
        other.pass(2 * SECOND);
        old.reservation.more_data();
        old.reservation.prefilled(other.pool.now);
    }
    assert_eq!(
        new(&other),
        STALLED,
        "the old life's end tells nothing of it"
    );
}

#[test]
fn a_wait_through_a_stall_teaches_no_speed() {
    let mut pair = Pair::new();
    let mut one = pair.pool.pick_on(0, &tokens(1, 1_000));
    let mut other = pair.pool.pick_on(0, &tokens(2, 1_000));
    pair.pass(60 * SECOND);
    for reservation in [&mut one.reservation, &mut other.reservation] {
        reservation.prefilled(pair.pool.now);
    }
    assert_eq!(pair.pool.view(0).prefill_us_per_token, None);
    let mut next = pair.pool.pick_on(0, &tokens(3, 1_000));
    pair.pass(SECOND);
    next.reservation.prefilled(pair.pool.now);
    assert!(pair.pool.view(0).prefill_us_per_token.unwrap() < 1_100.0);
}

#[test]
fn an_endpoint_that_sleeps_is_never_picked_and_does_not_stall() {
    let mut pair = Pair::new();
    let _held = pair.pool.pick_on(0, &tokens(1, 100));
    let tell = |pool: &Pool, asleep| {
        let report = Report {
            asleep,
            ..Report::default()
        };
        pool.router
            .report(pool.ids[0], ReportOutcome::Fresh(report), pool.now);
    };
    for _ in 0..60 {
        tell(&pair.pool, true);
        pair.pass(SECOND / 2);
        assert_eq!(pair.excluded(), Some(Exclusion::Asleep));
    }
    pair.pool.router.set_ready(pair.pool.ids[1], false);
    let prepared = pair.pool.prepare(&tokens(2, 100));
    let refusal = pair
        .pool
        .router
        .pick(&prepared, &pair.pool.ask(1))
        .unwrap_err();
    assert_eq!(
        refusal,
        Refusal::NothingReady,
        "it cannot answer, so it is no way out"
    );
    tell(&pair.pool, false);
    assert_eq!(pair.excluded(), None);
    assert_eq!(pair.pool.pick(&tokens(3, 100)).id, pair.pool.ids[0]);
}

#[test]
fn an_answer_of_somebody_else_is_no_sign_of_the_endpoint_picked() {
    let mut pair = Pair::new();
    let _stuck = pair.pool.pick_on(0, &tokens(1, 100));
    let mut elsewhere = pair.pool.pick_on(0, &tokens(2, 100));
    elsewhere.reservation.served_by(address(9), pair.pool.now);
    for _ in 0..12 {
        pair.pass(SECOND);
        elsewhere.reservation.more_data();
    }
    assert_eq!(pair.excluded(), STALLED);
}
