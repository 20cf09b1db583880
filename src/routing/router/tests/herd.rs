//! Many picks at once.

use super::*;

fn in_flight(pool: &Pool) -> Vec<u32> {
    let views = pool.router.endpoints(pool.now);
    views.iter().map(|view| view.in_flight).collect()
}

fn spread<T: Copy + Ord + std::ops::Sub<Output = T>>(numbers: &[T]) -> T {
    *numbers.iter().max().unwrap() - *numbers.iter().min().unwrap()
}

/// Picks all prompts from eight threads that start together, and keeps the decisions.
fn all_at_once(pool: &Pool, prompts: &[Vec<u32>]) -> Vec<Decision> {
    let start = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        let (start, router, now) = (&start, &pool.router, pool.now);
        let pickers: Vec<_> = prompts
            .chunks(prompts.len().div_ceil(8))
            .enumerate()
            .map(|(n, mine)| {
                scope.spawn(move || {
                    let mut chance = n as u64;
                    start.wait();
                    let pick = |tokens: &Vec<u32>| {
                        chance = chance
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1);
                        let sequences = [Sequence::Tokens(tokens.clone())];
                        let prepared = router.prepare(&sequences, &Scope::default());
                        let ask = Ask {
                            subset: None,
                            alternates: 0,
                            now,
                            chance,
                        };
                        router.pick(&prepared, &ask).unwrap()
                    };
                    mine.iter().map(pick).collect::<Vec<_>>()
                })
            })
            .collect();
        pickers
            .into_iter()
            .flat_map(|picker| picker.join().unwrap())
            .collect()
    })
}

#[test]
fn equal_cold_picks_at_once_spread_to_within_one() {
    for size in [8, 40, 1_000] {
        let pool = Pool::new(10);
        let prompts: Vec<Vec<u32>> = (0..200).map(|n| tokens(n + 1, size)).collect();
        let held = all_at_once(&pool, &prompts);
        let counts = in_flight(&pool);
        assert_eq!(counts.iter().sum::<u32>(), 200);
        assert!(spread(&counts) <= 1, "{size} tokens: {counts:?}");
        drop(held);
        pool.assert_empty();
    }
}

#[test]
fn mixed_cold_picks_leave_queues_no_further_apart_than_the_largest_request_and_a_tie() {
    let pool = Pool::new(10);
    let prompts: Vec<Vec<u32>> = (0..200_u32)
        .map(|n| tokens(n + 1, 1 + (n as usize * 7_919) % 3_000))
        .collect();
    let largest = prompts.iter().map(Vec::len).max().unwrap() as u64;
    let held = all_at_once(&pool, &prompts);
    let views = pool.router.endpoints(pool.now);
    let queued: Vec<u64> = views.iter().map(|view| view.queued.get()).collect();
    let booked: u64 = queued.iter().sum();
    assert_eq!(
        booked,
        prompts
            .iter()
            .map(|prompt| prompt.len() as u64)
            .sum::<u64>()
    );
    // Costs less than a tie apart count as equal, so the least queue may be passed over by that.
    assert!(spread(&queued) < largest + 64, "{queued:?}");
    drop(held);
    pool.assert_empty();
}

#[test]
fn a_herd_on_one_cold_prefix_books_it_once_an_endpoint() {
    let pool = Pool::new(4);
    let shared = tokens(1, 1_600);
    let prompts: Vec<Vec<u32>> = (0..40)
        .map(|n| joined(&[&shared, &tokens(n + 10, 160)]))
        .collect();
    let held = all_at_once(&pool, &prompts);
    let views = pool.router.endpoints(pool.now);
    for view in &views {
        let own = u64::from(view.in_flight) * 160;
        let shared = if view.in_flight == 0 { 0 } else { 1_600 };
        assert_eq!(view.queued.get(), own + shared, "{:?}", view.id);
    }
    drop(held);
    pool.assert_empty();
}
