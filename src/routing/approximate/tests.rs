use super::*;

fn keys(range: std::ops::Range<u64>) -> Vec<BlockKey> {
    range
        .map(|n| BlockKey(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
        .collect()
}

fn matched(index: &PrefixIndex, keys: &[BlockKey]) -> u32 {
    index.lookup(keys).first().map_or(0, |found| found.blocks)
}

#[test]
fn what_was_sent_is_found_and_the_least_recent_goes_first() {
    let index = PrefixIndex::new();
    let recent = Recent::new(index.open());
    let (a, b, c) = (keys(1..11), keys(101..111), keys(201..211));
    let capacity = TokenCount::new(25 * 16);
    recent.touch(&index, &a, 16, capacity);
    recent.touch(&index, &b, 16, capacity);
    recent.touch(&index, &a, 16, capacity);
    recent.touch(&index, &c, 16, capacity);
    assert_eq!(matched(&index, &a), 10);
    assert_eq!(matched(&index, &b), 5, "the tail of the older prompt went");
    assert_eq!(matched(&index, &c), 10);
}

#[test]
fn never_more_than_the_capacity_is_remembered() {
    let index = PrefixIndex::new();
    let recent = Recent::new(index.open());
    for start in 0..200 {
        recent.touch(
            &index,
            &keys(start * 7 + 1..start * 7 + 40),
            64,
            TokenCount::new(5000),
        );
        assert!(index.blocks(recent.source()) * 64 <= 5000);
    }
    assert_eq!(recent.sent.lock().keys().count(), 78);
    recent.clear(&index);
    assert!(index.is_empty());
}
