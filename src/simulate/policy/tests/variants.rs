//! Least prefill with a term more: which replica does each take where the plain cost is no answer?
//!
//! Two replicas, a request of 320 tokens. In the table's engine a step that decodes costs 140 prompt tokens, a token of
//! context 0.0006, and 8,192 tokens fill a step.

use super::*;

/// Picks that are seen before the one that counts, so that the load is known.
const BEFORE: u64 = 2_000;

/// What a variant takes when it has seen the fleet like this for long.
fn settled(fleet: &Fleet, name: &str) -> BTreeSet<usize> {
    let asked = request(1, Some(7), 320);
    let mut policy = fleet.policy(name);
    (0..BEFORE + 50)
        .map(|chance| (chance, fleet.pick(&mut *policy, &asked, chance)))
        .filter(|(chance, _)| *chance >= BEFORE)
        .map(|(_, taken)| taken)
        .collect()
}

#[test]
fn step_counts_the_weights_where_anything_decodes_and_all_contexts_there() {
    let fleet = Fleet::idle(2);
    // Work of 320 against 420 and one step each: the weights are worth 140 tokens.
    fleet.change(0, |seen| seen.in_flight = 1);
    fleet.change(1, |seen| seen.queued = 100);
    assert_eq!(settled(&fleet, "least-prefill-step"), BTreeSet::from([1]));
    fleet.change(1, |seen| seen.queued = 200);
    assert_eq!(settled(&fleet, "least-prefill-step"), BTreeSet::from([0]));
    // With as much in flight there, contexts decide: 300,000 tokens are worth 180.
    fleet.change(1, |seen| (seen.in_flight, seen.queued) = (1, 100));
    assert_eq!(settled(&fleet, "least-prefill-step"), BTreeSet::from([0]));
    fleet.change(0, |seen| seen.context = 300_000);
    assert_eq!(settled(&fleet, "least-prefill-step"), BTreeSet::from([1]));
}

#[test]
fn load_weighs_work_by_the_share_of_replicas_that_are_busy() {
    let fleet = Fleet::idle(2);
    // A hit of 160 tokens behind a queue of 250: 410 against 320. With half of the fleet busy, 570 against 640.
    fleet.change(0, |seen| (seen.cached, seen.queued) = (160, 250));
    assert_eq!(settled(&fleet, "least-prefill-load"), BTreeSet::from([0]));
    assert_eq!(settled(&fleet, "least-prefill-plain"), BTreeSet::from([1]));
    let once = fleet.pick(
        &mut *fleet.policy("least-prefill-load"),
        &request(1, Some(7), 320),
        0,
    );
    assert_eq!(once, 1, "as long as nothing is known of the load");
}
