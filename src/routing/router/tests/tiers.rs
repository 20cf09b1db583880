//! Blocks on slower tiers count as cached, and bringing them has its price.

use super::*;
use crate::routing::router::Agreement;

/// What the picked endpoint was seen with: cached, from beneath, cost.
fn seen(decision: &Decision) -> (u64, u64, u64) {
    let chosen = decision
        .considered
        .iter()
        .find(|seen| seen.id == decision.id);
    let chosen = chosen.unwrap();
    assert_eq!(decision.cached, chosen.cached);
    assert_eq!(decision.cached_below, chosen.cached_below);
    (
        chosen.cached.get(),
        chosen.cached_below.get(),
        chosen.cost.get(),
    )
}

#[test]
fn a_run_that_goes_on_in_host_memory_costs_a_quarter_of_its_tokens() {
    let mut pool = Pool::new(1);
    let prompt = tokens(1, 1_608);
    pool.store(0, &prompt, 0);
    pool.offload(0, &prompt, 50);
    let mut decision = pool.pick(&prompt);
    assert_eq!(seen(&decision), (1_600, 800, 8 + 200));
    assert_eq!(
        pool.queued(0),
        208,
        "as much is booked as it was said to cost"
    );
    decision.reservation.prefilled(pool.now);
    assert_eq!(pool.queued(0), 0);
    drop(decision);
    drop(pool.pick(&prompt));
    pool.assert_empty();
}

#[test]
fn a_prompt_that_is_whole_in_host_memory_computes_its_last_block() {
    let mut pool = Pool::new(1);
    let prompt = tokens(1, 1_600);
    pool.store(0, &prompt, 0);
    pool.offload(0, &prompt, 0);
    let decision = pool.pick(&prompt);
    assert_eq!(seen(&decision), (1_584, 1_584, 16 + 396));
    assert_eq!(pool.queued(0), 412);
    pool.store(0, &prompt, 99);
    assert_eq!(
        pool.queued(0),
        0,
        "the block that it computed ends its prefill"
    );
    drop(decision);
    pool.assert_empty();
}

#[test]
fn an_owner_in_host_memory_wins_over_a_stranger_and_loses_to_an_owner_at_hand() {
    let mut pool = Pool::new(3);
    let prompt = tokens(1, 1_608);
    pool.store(0, &prompt, 0);
    pool.offload(0, &prompt, 0);
    assert_eq!(pool.pick(&prompt).id, pool.ids[0]);
    let queue = pool.pick_on(0, &tokens(2, 1_300));
    let elsewhere = pool.pick(&prompt);
    assert_ne!(
        elsewhere.id, pool.ids[0],
        "1,300 queued against 1,200 saved"
    );
    drop((queue, elsewhere));
    pool.store(1, &prompt, 0);
    assert_eq!(pool.pick(&prompt).id, pool.ids[1]);
}

#[test]
fn a_sibling_finds_at_hand_what_is_being_brought() {
    let mut pool = Pool::new(1);
    let prompt = tokens(1, 1_608);
    pool.store(0, &prompt, 0);
    pool.offload(0, &prompt, 10);
    let first = pool.pick(&prompt[..329]);
    assert_eq!(seen(&first), (320, 160, 9 + 40));
    let second = pool.pick(&prompt);
    assert_eq!(
        seen(&second),
        (1_600, 1_280, 49 + 8 + 320),
        "20 blocks at hand by then, 80 beneath"
    );
    drop(first);
    drop(second);
    pool.assert_empty();
}

#[test]
fn a_request_that_looks_into_no_cache_looks_into_no_tier() {
    let mut pool = Pool::new(1);
    let prompt = tokens(1, 1_608);
    pool.store(0, &prompt, 0);
    pool.offload(0, &prompt, 0);
    let prepared = pool.prepare(&prompt).bypassing_cache();
    let decision = pool.router.pick(&prepared, &pool.ask(1)).unwrap();
    assert_eq!(seen(&decision), (0, 0, 1_608));
    assert_eq!(pool.queued(0), 1_608);
}

#[test]
fn a_tier_at_the_price_of_computing_is_not_looked_at() {
    let mut pool = Pool::new(1);
    let prompt = tokens(1, 1_608);
    pool.store(0, &prompt, 0);
    let event = Stored {
        medium: Medium::Storage,
        ..stored(&prompt, 0)
    };
    let hashes = event.hashes.clone();
    let removed = Removed {
        hashes,
        medium: Medium::Gpu,
        group: None,
    };
    pool.views[0].apply(&[KvEvent::Stored(event), KvEvent::Removed(removed)]);
    assert_eq!(seen(&pool.pick(&prompt)), (0, 0, 1_608));
}

#[test]
fn blocks_that_a_report_says_are_not_in_host_memory_are_believed_there_no_more() {
    let mut pool = Pool::new(1);
    let prompt = tokens(1, 1_608);
    pool.store(0, &prompt, 0);
    pool.offload(0, &prompt, 50);
    // The connector was reset and tells nobody; the engine computes what it had there.
    let held = pool.pick(&prompt);
    pool.store(0, &prompt, 50);
    let compared = held.reservation.reported(TokenCount::new(800), pool.now);
    assert_eq!(compared.agreement, Agreement::TooHigh);
    drop(held);
    pool.store(0, &tokens(2, 16), 0);
    let removed = Removed {
        hashes: stored(&prompt, 50).hashes,
        medium: Medium::Gpu,
        group: None,
    };
    pool.views[0].apply(&[KvEvent::Removed(removed)]);
    assert_eq!(seen(&pool.pick(&prompt)), (800, 0, 808));
}

#[test]
fn a_credit_ends_with_the_removal_of_a_block_that_only_a_slower_tier_named() {
    let mut pool = Pool::new(1);
    let prompt = tokens(1, 1_608);
    pool.store(0, &tokens(77, 16), 0);
    let held = pool.pick(&prompt);
    let compared = held.reservation.reported(TokenCount::new(1_600), pool.now);
    assert_eq!(compared.credited, 100);
    drop(held);
    // Stored before anybody listened; now it goes to the host's memory, and from the accelerator's.
    pool.offload(0, &prompt, 0);
    assert_eq!(pool.view(0).credited_blocks, 0);
    assert_eq!(seen(&pool.pick(&prompt)), (1_600, 1_600, 8 + 400));
}

#[test]
fn a_block_that_host_memory_dropped_after_the_pick_overtakes_the_prediction() {
    let mut pool = Pool::new(1);
    let prompt = tokens(1, 1_608);
    pool.store(0, &prompt, 0);
    pool.offload(0, &prompt, 50);
    let held = pool.pick(&prompt);
    let removed = Removed {
        hashes: stored(&prompt, 80).hashes,
        medium: Medium::Cpu,
        group: None,
    };
    pool.views[0].apply(&[KvEvent::Removed(removed)]);
    let compared = held.reservation.reported(TokenCount::new(1_280), pool.now);
    assert_eq!(compared.agreement, Agreement::Overtaken);
    let compared = held.reservation.reported(TokenCount::new(960), pool.now);
    assert_eq!(compared.agreement, Agreement::TooHigh, "not that block");
}

#[test]
fn a_credit_outlives_the_removal_of_its_copy_in_host_memory() {
    let mut pool = Pool::new(1);
    let prompt = tokens(1, 1_608);
    pool.store(0, &tokens(77, 16), 0);
    let held = pool.pick(&prompt);
    held.reservation.reported(TokenCount::new(1_600), pool.now);
    drop(held);
    let copied = Stored {
        medium: Medium::Cpu,
        ..stored(&prompt, 0)
    };
    let removed = Removed {
        hashes: copied.hashes.clone(),
        medium: Medium::Cpu,
        group: None,
    };
    pool.views[0].apply(&[KvEvent::Stored(copied), KvEvent::Removed(removed)]);
    assert_eq!(seen(&pool.pick(&prompt)), (1_600, 0, 8));
}
