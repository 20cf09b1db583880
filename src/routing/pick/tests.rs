use super::*;

fn runners(list: &[(u64, u32)]) -> Vec<Runner> {
    list.iter()
        .enumerate()
        .map(|(place, &(cost, in_flight))| Runner {
            place,
            cost: TokenCount::new(cost),
            in_flight,
        })
        .collect()
}

fn places(list: &[(u64, u32)], count: usize, width: u64, chance: u64) -> Vec<usize> {
    let anyone = |_: &[Runner], _: &Runner| true;
    best(runners(list), count, TokenCount::new(width), chance, anyone)
        .into_iter()
        .map(|runner| runner.place)
        .collect()
}

#[test]
fn the_least_cost_wins_whatever_chance_says() {
    for chance in [0, 1, u64::MAX / 2, u64::MAX] {
        assert_eq!(places(&[(500, 0), (100, 9), (300, 0)], 1, 16, chance), [1]);
    }
}

#[test]
fn within_a_block_the_fewest_in_flight_win_and_at_a_block_they_do_not() {
    assert_eq!(places(&[(100, 5), (115, 1)], 1, 16, 0), [1]);
    assert_eq!(places(&[(100, 5), (116, 1)], 1, 16, 0), [0]);
}

#[test]
fn chance_reaches_every_equal_about_as_often() {
    let mut wins = [0_u32; 5];
    let mut chance = 1;
    for _ in 0..5_000 {
        chance = another(chance);
        wins[places(&[(7, 2); 5], 1, 16, chance)[0]] += 1;
    }
    assert!(wins.iter().all(|&n| (850..1_150).contains(&n)), "{wins:?}");
}

#[test]
fn alternates_come_in_order_without_repeats() {
    let list = [(900, 0), (100, 0), (500, 0), (505, 3)];
    assert_eq!(places(&list, 4, 16, 3), [1, 2, 3, 0]);
    assert_eq!(places(&list, 9, 16, 3).len(), 4);
    assert!(places(&[], 3, 16, 3).is_empty());
}

#[test]
fn whoever_does_not_go_with_the_named_is_not_named_after_them() {
    let list = [(900, 0), (100, 0), (500, 0), (300, 0)];
    let same_half = |named: &[Runner], other: &Runner| named[0].place / 2 == other.place / 2;
    let named = best(runners(&list), 4, TokenCount::new(16), 3, same_half);
    let places: Vec<usize> = named.iter().map(|runner| runner.place).collect();
    assert_eq!(places, [1, 0]);
}

#[test]
fn the_tie_is_as_wide_as_the_smallest_block_but_not_wider_than_64() {
    assert_eq!(tie_width([128, 16].into_iter()).get(), 16);
    assert_eq!(tie_width([2096, 528].into_iter()).get(), 64);
    assert_eq!(tie_width(std::iter::empty()).get(), 64);
}
