//! Several data-parallel ranks behind one address.

use super::*;

/// Endpoint `n` as one of its ranks.
fn rank(n: u16, rank: u32) -> Endpoint {
    let whole = endpoint(n);
    Endpoint {
        name: whole.name.of_rank(rank),
        rank: Some(rank),
        ..whole
    }
}

/// `servers` addresses with two ranks each: ids and views in the order 0@0, 0@1, 1@0, ...
fn pool(servers: u16) -> Pool {
    let mut pool = Pool::new(0);
    for n in 0..servers {
        pool.join_as(rank(n, 0));
        pool.join_as(rank(n, 1));
    }
    pool
}

#[test]
fn the_rank_that_holds_the_prefix_is_picked_and_named() {
    let mut pool = pool(2);
    let (a, b) = (tokens(1, 800), tokens(2, 800));
    pool.store(1, &a, 0);
    pool.store(2, &b, 0);
    let (a, b) = (pool.pick(&a), pool.pick(&b));
    assert_eq!((a.address, a.rank), (address(0), Some(1)));
    assert_eq!((b.address, b.rank), (address(1), Some(0)));
    assert_eq!((a.cached.get(), b.cached.get()), (784, 784));
    assert_eq!(a.name.as_str(), "pool/engine-0@1");
    assert_eq!((pool.queued(0), pool.queued(1)), (0, 16));
}

#[test]
fn load_is_kept_by_rank() {
    let pool = pool(1);
    let held: Vec<Decision> = (0..10).map(|n| pool.pick(&tokens(n + 1, 160))).collect();
    assert_eq!((pool.queued(0), pool.queued(1)), (800, 800));
    drop(held);
    pool.assert_empty();
}

#[test]
fn a_subset_names_all_ranks_of_an_address() {
    let pool = pool(2);
    let subset = [SubsetEntry::Endpoint(address(1))];
    let ask = Ask {
        subset: Some(&subset),
        ..pool.ask(1)
    };
    let prepared = pool.prepare(&tokens(1, 160));
    let held: Vec<Decision> = (0..4)
        .map(|_| pool.router.pick(&prepared, &ask).unwrap())
        .collect();
    assert!(held.iter().all(|decision| decision.address == address(1)));
    let ranks: std::collections::BTreeSet<_> = held.iter().map(|held| held.rank).collect();
    assert_eq!(ranks.len(), 2);
}

#[test]
fn served_at_the_address_picked_is_as_picked_whatever_the_rank() {
    let mut pool = pool(2);
    let prompt = tokens(1, 160);
    pool.store(1, &prompt, 0);
    let mut held = pool.pick(&prompt);
    assert_eq!(held.rank, Some(1));
    let served = held.reservation.served_by(address(0), pool.now);
    assert_eq!(served, Served::AsPicked);
    assert_eq!((pool.queued(0), pool.queued(1)), (0, 16));
}

#[test]
fn served_at_another_address_is_booked_on_the_same_rank_there_or_else_on_any() {
    let mut pool = pool(2);
    pool.join(2);
    for (rank, to) in [(0, 2), (1, 3)] {
        let prompt = tokens(rank + 1, 160);
        pool.store(rank as usize, &prompt, 0);
        let mut held = pool.pick(&prompt);
        let served = held.reservation.served_by(address(1), pool.now);
        assert_eq!(served, Served::Moved(pool.ids[to]));
        assert_eq!(pool.queued(to), 160);
        let served = held.reservation.served_by(address(2), pool.now);
        assert_eq!(served, Served::Moved(pool.ids[4]), "it has no ranks");
        let served = held.reservation.served_by(address(0), pool.now);
        assert!(matches!(served, Served::Moved(id) if id == pool.ids[0] || id == pool.ids[1]));
    }
    pool.assert_empty();
}

#[test]
fn alternates_name_each_address_once_and_only_where_the_rank_means_the_same() {
    let mut pool = pool(3);
    pool.join(3);
    let prompt = tokens(1, 160);
    pool.store(1, &prompt, 0);
    // The other rank of the owner's address would be the cheapest of all but the owner.
    pool.store(0, &prompt[..96], 0);
    let ask = Ask {
        alternates: 9,
        ..pool.ask(5)
    };
    let decision = pool.router.pick(&pool.prepare(&prompt), &ask).unwrap();
    assert_eq!((decision.address, decision.rank), (address(0), Some(1)));
    let mut alternates = decision.alternates.clone();
    alternates.sort_unstable();
    assert_eq!(
        alternates,
        [address(1), address(2)],
        "the server without ranks would refuse rank 1"
    );

    let prompt = tokens(2, 160);
    pool.store(6, &prompt, 0);
    let decision = pool.router.pick(&pool.prepare(&prompt), &ask).unwrap();
    assert_eq!((decision.address, decision.rank), (address(3), None));
    let mut alternates = decision.alternates.clone();
    alternates.sort_unstable();
    assert_eq!(alternates, [address(0), address(1), address(2)]);
}

#[test]
fn a_booking_made_before_the_ranks_were_known_ends_quietly() {
    let mut pool = Pool::new(1);
    let mut held = pool.pick(&tokens(1, 160));
    let detached = pool.pick(&tokens(2, 160));
    detached.reservation.detach(pool.now);
    let whole = pool.ids.remove(0);
    pool.views.clear();
    pool.join_as(rank(0, 0));
    pool.join_as(rank(0, 1));
    pool.router.leave(whole);
    held.reservation.prefilled(pool.now);
    let next = pool.pick(&tokens(3, 160));
    assert!(next.rank.is_some());
    assert_eq!(pool.queued(0) + pool.queued(1), 160);
    drop((held, next));
    pool.assert_empty();
}
