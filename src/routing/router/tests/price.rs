//! What work costs where nobody is free.

use super::*;

/// Makes 200 picks that find nobody free; they are over at once, and leave nothing but the price.
fn busy_spell(pool: &Pool) {
    for _ in 0..200 {
        drop(pool.pick(&tokens(9, 32)));
    }
}

/// Two endpoints with 1,000 tokens queued each, and the first has 1,600 of the prompt besides.
fn both_busy() -> (Pool, Vec<Decision>, Vec<u32>) {
    let mut pool = Pool::new(2);
    let warm = tokens(1, 1_600);
    pool.store(0, &warm, 0);
    let prompt = joined(&[&warm, &tokens(2, 400)]);
    let held = vec![
        pool.pick_on(0, &tokens(3, 1_000)),
        pool.pick_on(1, &tokens(4, 1_000)),
    ];
    (pool, held, prompt)
}

#[test]
fn where_nobody_is_free_a_hit_is_worth_a_longer_wait() {
    let (pool, mut held, prompt) = both_busy();
    held.push(pool.pick_on(0, &tokens(5, 2_400)));
    let before = pool.pick(&prompt);
    assert_eq!(
        before.id, pool.ids[1],
        "2,400 more in the queue against 1,600 saved"
    );
    assert!((before.price - 1.0).abs() < 1e-9);
    drop(before);
    busy_spell(&pool);
    let after = pool.pick(&prompt);
    assert!(after.price > 2.0, "{}", after.price);
    assert_eq!(after.id, pool.ids[0], "at a price of {}", after.price);
    let cost = |n: usize| after.considered[n].cost.get() as f64;
    let of = |queued: f64, work: f64| queued + work * after.price;
    assert!((cost(0) - of(3_400.0, 400.0)).abs() <= 0.5);
    assert!((cost(1) - of(1_000.0, 2_000.0)).abs() <= 0.5);
}

#[test]
fn the_price_falls_when_somebody_is_free_and_picks_of_a_part_of_the_pool_do_not_count() {
    let (pool, mut held, prompt) = both_busy();
    busy_spell(&pool);
    held.truncate(1);
    for _ in 0..2_000 {
        drop(pool.pick(&tokens(9, 32)));
    }
    assert!(pool.pick(&prompt).price < 1.01);
    for _ in 0..200 {
        drop(pool.pick_on(0, &tokens(9, 32)));
    }
    assert!(
        pool.pick(&prompt).price < 1.01,
        "endpoint 0 alone was asked for, and busy"
    );
}

#[test]
fn least_queued_knows_no_price() {
    let pool = Pool::with(2, Policy::LeastQueued);
    let _held = [
        pool.pick_on(0, &tokens(3, 1_000)),
        pool.pick_on(1, &tokens(4, 900)),
    ];
    busy_spell(&pool);
    let decision = pool.pick(&tokens(1, 500));
    assert_eq!(decision.id, pool.ids[1]);
    assert_eq!(decision.considered[1].cost.get(), 1_400);
}

#[test]
fn a_subset_of_all_that_are_ready_is_the_pool() {
    let (mut pool, _held, prompt) = both_busy();
    pool.join(2);
    pool.router.set_ready(pool.ids[2], false);
    let subset = [0, 1].map(|n| SubsetEntry::Endpoint(address(n)));
    let ask = Ask {
        subset: Some(&subset),
        ..pool.ask(7)
    };
    let price = |pool: &Pool| {
        let decision = pool.router.pick(&pool.prepare(&prompt), &ask);
        decision.unwrap().price
    };
    for _ in 0..200 {
        price(&pool);
    }
    let before = price(&pool);
    assert!(before > 2.0, "{before}");
    // Somebody else is ready now, and free.
    pool.router.set_ready(pool.ids[2], true);
    for _ in 0..200 {
        price(&pool);
    }
    let after = price(&pool);
    assert!((after - before).abs() < 0.1, "{before}, then {after}");
}
