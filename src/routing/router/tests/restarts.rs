//! The engine's process is another one, though the endpoint's life goes on.

use super::*;

const STEP: Duration = Duration::from_secs(10);

fn without_events(n: u16) -> Pool {
    let mut pool = Pool::new(n);
    for view in &mut pool.views {
        view.set_feed(FeedState::Absent("off".to_owned()));
    }
    pool
}

#[test]
fn what_was_sent_to_the_former_process_is_cold_and_what_was_sent_since_is_warm() {
    let mut pool = without_events(1);
    let (old, both, new) = (tokens(1, 800), tokens(2, 800), tokens(3, 800));
    pool.serve(&old);
    pool.serve(&both);
    pool.now += STEP;
    let since = pool.now;
    pool.now += STEP;
    pool.serve(&both);
    pool.serve(&new);
    pool.now += STEP;
    pool.router.restarted(pool.ids[0], since, pool.now);
    let cached = [&old, &both, &new].map(|prompt| pool.pick(prompt).cached.get());
    assert_eq!(cached, [0, 784, 784]);
}

#[test]
fn a_late_word_of_a_restart_changes_nothing_of_what_events_tell() {
    let mut pool = Pool::new(1);
    let prompt = tokens(1, 800);
    pool.store(0, &prompt, 0);
    pool.now += STEP;
    pool.router.restarted(pool.ids[0], pool.now, pool.now);
    assert_eq!(pool.pick(&prompt).cached.get(), 784);
}

#[test]
fn bookings_nobody_ends_go_with_the_former_process_and_those_of_streams_stay() {
    let mut pool = Pool::new(1);
    let streaming = pool.pick(&tokens(1, 160));
    pool.pick(&tokens(2, 32_000)).reservation.detach(pool.now);
    let since = pool.now + Duration::from_millis(1);
    pool.now += Duration::from_millis(2);
    pool.pick(&tokens(3, 48_000)).reservation.detach(pool.now);
    assert_eq!(pool.queued(0), 160 + 32_000 + 48_000);
    pool.router.restarted(pool.ids[0], since, pool.now);
    assert_eq!(pool.queued(0), 160 + 48_000);
    drop(streaming);
    assert_eq!(pool.view(0).in_flight, 1);
}

#[test]
fn a_report_of_the_former_process_is_forgotten_and_a_newer_one_is_not() {
    let mut pool = Pool::new(1);
    let full = Report {
        kv_usage: 0.99,
        running: 7,
        ..Report::default()
    };
    let id = pool.ids[0];
    pool.router.report(id, ReportOutcome::Fresh(full), pool.now);
    assert!(pool.router.is_busy(id));
    pool.now += STEP;
    let since = pool.now;
    pool.router.restarted(id, since, pool.now);
    let view = pool.view(0);
    assert_eq!(view.report, None);
    assert_eq!(view.excluded, None, "the next report is owed from now on");
    assert!(!pool.router.is_busy(id));

    pool.router.report(id, ReportOutcome::Fresh(full), pool.now);
    pool.now += STEP;
    pool.router.restarted(id, since, pool.now);
    assert!(pool.view(0).report.is_some());
}

#[test]
fn labels_change_within_a_life() {
    let pool = Pool::new(1);
    let labels = BTreeMap::from([("zone".to_owned(), "b".to_owned())]);
    pool.router.set_labels(pool.ids[0], labels.clone());
    let view = pool.view(0);
    assert_eq!(view.endpoint.labels, labels);
    assert!(view.ready);
}
