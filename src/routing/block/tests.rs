use proptest::prelude::*;

use super::*;

fn size(tokens: u32) -> BlockSize {
    BlockSize::new(tokens).unwrap()
}

fn scope(adapter: Option<&str>, salt: Option<&str>) -> Scope {
    Scope {
        adapter: adapter.map(Arc::from),
        salt: salt.map(Arc::from),
    }
}

fn extra(salt: Option<&str>, items: &[(&str, Option<i64>)]) -> BlockExtra {
    BlockExtra {
        salt: salt.map(str::to_owned),
        items: items
            .iter()
            .map(|(id, at)| ((*id).to_owned(), *at))
            .collect(),
        unknown: false,
        lookahead: Vec::new(),
    }
}

#[test]
fn zero_is_no_block_size() {
    assert_eq!(BlockSize::new(0), None);
}

#[test]
fn salt_adapter_both_and_neither_are_four_key_spaces() {
    let tokens: Vec<u32> = (0..16).collect();
    let mut keys: Vec<BlockKey> = [
        scope(None, None),
        scope(Some("x"), None),
        scope(None, Some("x")),
        scope(Some("x"), Some("x")),
        scope(None, Some("")),
    ]
    .iter()
    .map(|scope| prompt_keys(&tokens, size(16), scope)[0])
    .collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 5);
}

#[test]
fn items_change_the_block_they_overlap_and_all_after_it() {
    let tokens: Vec<u32> = (0..8).collect();
    let start = root(size(4), None);
    let plain = block_key(start, &tokens[..4], None);
    assert_eq!(
        plain,
        block_key(start, &tokens[..4], Some(&BlockExtra::default()))
    );
    let image = block_key(start, &tokens[..4], Some(&extra(None, &[("a", Some(0))])));
    let variants = [
        plain,
        image,
        block_key(start, &tokens[..4], Some(&extra(None, &[("a", Some(1))]))),
        block_key(start, &tokens[..4], Some(&extra(None, &[("a", None)]))),
        block_key(start, &tokens[..4], Some(&extra(Some("a"), &[]))),
        block_key(
            start,
            &tokens[..4],
            Some(&extra(None, &[("a", Some(0)), ("b", Some(1))])),
        ),
        block_key(
            start,
            &tokens[..4],
            Some(&extra(None, &[("b", Some(1)), ("a", Some(0))])),
        ),
    ];
    let distinct: std::collections::HashSet<_> = variants.iter().collect();
    assert_eq!(distinct.len(), variants.len());
    assert_ne!(
        block_key(plain, &tokens[4..], None),
        block_key(image, &tokens[4..], None)
    );
}

#[test]
fn block_size_separates_equal_tokens() {
    let tokens = vec![7; 64];
    let small = prompt_keys(&tokens, size(16), &Scope::default());
    let large = prompt_keys(&tokens, size(32), &Scope::default());
    assert_eq!((small.len(), large.len()), (4, 2));
    assert!(small.iter().all(|key| !large.contains(key)));
}

#[test]
fn text_and_token_keys_never_meet() {
    let bytes = vec![1_u8; 1024];
    let tokens = vec![u32::from_le_bytes([1; 4]); 256];
    let text = text_keys(&bytes, &Scope::default());
    assert_eq!(text.len(), 4);
    let ids = prompt_keys(&tokens, size(64), &Scope::default());
    assert!(text.iter().all(|key| !ids.contains(key)));
    assert_ne!(
        text_keys(&bytes, &scope(Some("x"), None)),
        text_keys(&bytes, &scope(None, Some("x")))
    );
}

proptest! {
    #[test]
    fn keys_are_stable_under_growth_and_split_where_prompts_differ(
        shared in prop::collection::vec(any::<u32>(), 0..600),
        left in prop::collection::vec(any::<u32>(), 1..600),
        right in prop::collection::vec(any::<u32>(), 1..600),
        tokens_a_block in prop::sample::select(vec![1_u32, 4, 16, 32, 33, 64, 256, 257, 512]),
    ) {
        let join = |tail: &[u32]| [&shared[..], tail].concat();
        let (a, b) = (join(&left), join(&right));
        let keys_a = prompt_keys(&a, size(tokens_a_block), &Scope::default());
        let keys_b = prompt_keys(&b, size(tokens_a_block), &Scope::default());
        prop_assert_eq!(keys_a.len(), a.len() / tokens_a_block as usize);
        let equal_tokens = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
        let equal_blocks = equal_tokens / tokens_a_block as usize;
        for (i, (x, y)) in keys_a.iter().zip(&keys_b).enumerate() {
            prop_assert_eq!(x == y, i < equal_blocks);
        }
    }

    #[test]
    fn an_event_stored_block_by_block_has_the_prompts_keys(
        tokens in prop::collection::vec(any::<u32>(), 0..700),
        tokens_a_block in prop::sample::select(vec![1_u32, 16, 48, 300]),
        adapter in prop::option::of("[a-z]{0,3}"),
        salt in prop::option::of("[a-z]{0,3}"),
    ) {
        let size = size(tokens_a_block);
        let mut key = root(size, adapter.as_deref());
        let mut keys = Vec::new();
        for (i, block) in tokens.chunks_exact(tokens_a_block as usize).enumerate() {
            let extra = BlockExtra {
                salt: salt.clone().filter(|_| i == 0),
                ..BlockExtra::default()
            };
            key = block_key(key, block, Some(&extra));
            keys.push(key);
        }
        let scope = scope(adapter.as_deref(), salt.as_deref());
        prop_assert_eq!(keys, prompt_keys(&tokens, size, &scope));
    }
}
