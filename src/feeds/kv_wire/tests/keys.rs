//! What a block's key has to cover besides plain token ids, in each dialect that says it its own way.

use rmp::encode::{self as mp, ByteBuf};

use super::dialects::{Write, array_store, batch_of, items, salt, store, text, unknown};
use super::*;

fn nil(out: &mut ByteBuf) {
    mp::write_nil(out).expect("write");
}

fn text_or_nil(out: &mut ByteBuf, value: Option<&str>) {
    match value {
        Some(value) => text(out, value),
        None => nil(out),
    }
}

fn array(out: &mut ByteBuf, n: u32) {
    mp::write_array_len(out, n).expect("write");
}

fn number(out: &mut ByteBuf, number: u64) {
    mp::write_uint(out, number).expect("write");
}

fn ahead(tokens: &[u32]) -> BlockExtra {
    BlockExtra {
        lookahead: tokens.to_vec(),
        ..BlockExtra::default()
    }
}

fn only_store(batch: &Batch) -> Stored {
    assert_eq!(batch.skipped, Skipped::default());
    let [KvEvent::Stored(stored)] = &batch.events[..] else {
        panic!("one store, got {:?}", batch.events);
    };
    stored.clone()
}

#[test]
fn what_is_on_another_machine_is_storage_whatever_its_medium() {
    for (locality, medium) in [
        (Some("REMOTE"), Medium::Storage),
        (Some("remote"), Medium::Storage),
        (Some("LOCAL"), Medium::Cpu),
        (None, Medium::Cpu),
    ] {
        let write = |out: &mut ByteBuf| {
            text(out, "locality");
            text_or_nil(out, locality);
            text(out, "medium");
            text(out, "CPU");
        };
        assert_eq!(store(1, 2, &write).medium, medium, "{locality:?}");
        let payload = batch_of(1, &|out| {
            mp::write_map_len(out, 4).expect("write");
            text(out, "type");
            text(out, "BlockRemoved");
            text(out, "block_hashes");
            array(out, 0);
            write(out);
        });
        let batch = decode(&payload).expect("a batch");
        let [KvEvent::Removed(removed)] = &batch.events[..] else {
            panic!("one removal, got {:?}", batch.events);
        };
        assert_eq!(removed.medium, medium, "{locality:?}");
    }
}

#[test]
fn ownership_and_session_change_nothing() {
    let told = store(1, 2, &|out| {
        text(out, "ownership");
        text(out, "tier-2");
        text(out, "session_id");
        text(out, "s");
    });
    assert_eq!(told, stored(10));
}

/// `lookahead_token_ids` with these lists.
fn lookahead(out: &mut ByteBuf, blocks: &[&[u32]]) {
    text(out, "lookahead_token_ids");
    array(out, u32::try_from(blocks.len()).expect("few"));
    for tokens in blocks {
        array(out, u32::try_from(tokens.len()).expect("few"));
        for token in *tokens {
            number(out, u64::from(*token));
        }
    }
}

#[test]
fn tokens_that_a_hash_looks_ahead_to_belong_to_their_block() {
    let plain = store(2, 1, &|out| lookahead(out, &[&[7], &[8]]));
    assert_eq!(plain.extras, [ahead(&[7]), ahead(&[8])]);
    let none = store(2, 1, &|out| {
        text(out, "lookahead_token_ids");
        nil(out);
    });
    assert_eq!(none.extras, []);
    // Extra keys as they are without, and as `(E, next tokens…)`.
    let nested = store(3, 2, &|out| {
        text(out, "extra_keys");
        array(out, 3);
        array(out, 2);
        array(out, 1);
        text(out, "t1");
        number(out, 7);
        array(out, 2);
        nil(out);
        number(out, 8);
        array(out, 1);
        array(out, 2);
        text(out, "img");
        number(out, 2);
        lookahead(out, &[&[7], &[8], &[9]]);
    });
    let with = |extra: BlockExtra, token| BlockExtra {
        lookahead: vec![token],
        ..extra
    };
    let expected = [
        with(salt("t1"), 7),
        ahead(&[8]),
        with(items(&[("img", Some(2))]), 9),
    ];
    assert_eq!(nested.extras, expected);
}

#[test]
fn a_lookahead_of_another_shape_leaves_the_blocks_without_a_key() {
    let writers: [Write<'_>; 4] = [
        &|out| lookahead(out, &[&[7]]),
        &|out| {
            text(out, "lookahead_token_ids");
            number(out, 7);
        },
        &|out| {
            text(out, "lookahead_token_ids");
            array(out, 2);
            number(out, 7);
            number(out, 8);
        },
        &|out| {
            text(out, "lookahead_token_ids");
            array(out, 2);
            array(out, 1);
            text(out, "x");
            nil(out);
        },
    ];
    for write in writers {
        assert_eq!(store(2, 1, write).extras, [unknown(), unknown()]);
    }
}

/// A store of two blocks of two tokens under `token_ids` that are pairs.
fn pairs(pairs: &[(u64, u64)]) -> Stored {
    let payload = batch_of(1, &|out| {
        mp::write_map_len(out, 4).expect("write");
        text(out, "type");
        text(out, "BlockStored");
        text(out, "block_hashes");
        array(out, 2);
        number(out, 5);
        number(out, 6);
        text(out, "token_ids");
        array(out, u32::try_from(pairs.len()).expect("few"));
        for (first, second) in pairs {
            array(out, 2);
            number(out, *first);
            number(out, *second);
        }
        text(out, "block_size");
        number(out, 2);
    });
    only_store(&decode(&payload).expect("a batch"))
}

#[test]
fn pairs_of_neighbours_are_tokens_with_one_to_look_ahead_to() {
    let stored = pairs(&[(1, 2), (2, 3), (3, 4), (4, 500)]);
    assert_eq!(stored.tokens, [1, 2, 3, 4]);
    assert!(!stored.opaque_tokens);
    assert_eq!(stored.extras, [ahead(&[3]), ahead(&[500])]);
    for odd in [
        [(1, 2), (3, 3), (3, 4), (4, 500)],
        [(1, 2), (2, 3), (3, 4), (4, 1 << 32)],
    ] {
        let stored = pairs(&odd);
        assert!(stored.opaque_tokens && stored.tokens.is_empty(), "{odd:?}");
    }
}

#[test]
fn an_adapter_without_a_name_leaves_its_blocks_without_a_key() {
    for (id, name, extras) in [
        (Some(1), None, vec![unknown()]),
        (Some(1), Some("sql"), vec![]),
        (Some(0), None, vec![]),
        (None, None, vec![]),
    ] {
        let by_map = store(1, 2, &|out| {
            text(out, "lora_name");
            text_or_nil(out, name);
            text(out, "lora_id");
            match id {
                Some(id) => number(out, id),
                None => nil(out),
            }
        });
        assert_eq!(by_map.extras, extras, "{id:?} {name:?}");
    }
    // vLLM 0.9: five fields and no name at all.
    let payload = batch_of(1, &|out| {
        array(out, 6);
        text(out, "BlockStored");
        array(out, 1);
        number(out, 5);
        nil(out);
        array(out, 4);
        for token in 1..5 {
            number(out, token);
        }
        number(out, 4);
        number(out, 3);
    });
    let stored = only_store(&decode(&payload).expect("a batch"));
    assert_eq!(stored.extras, [unknown()]);
}

#[test]
fn items_named_apart_leave_their_blocks_without_a_key_and_the_others_with_one() {
    for name in ["mm_keys", "block_mm_infos"] {
        let of = |n: u32, write: Write<'_>| {
            store(2, 1, &|out| {
                text(out, name);
                array(out, n);
                write(out);
            })
            .extras
        };
        let none = of(2, &|out| {
            nil(out);
            array(out, 0);
        });
        assert_eq!(none, [], "{name}");
        let item = |out: &mut ByteBuf| {
            array(out, 1);
            mp::write_map_len(out, 1).expect("write");
            text(out, "hash");
            text(out, "00ff");
        };
        let second = of(2, &|out| {
            nil(out);
            item(out);
        });
        assert_eq!(second, [BlockExtra::default(), unknown()], "{name}");
        let of_another_length = of(1, &item);
        assert_eq!(of_another_length, [unknown(), unknown()], "{name}");
    }
    let number = store(1, 1, &|out| {
        text(out, "mm_keys");
        number(out, 5);
    });
    assert_eq!(number.extras, [unknown()]);
}

#[test]
fn dynamos_infos_are_found_behind_whichever_field_they_stand() {
    let infos = |out: &mut ByteBuf| {
        array(out, 1);
        mp::write_map_len(out, 1).expect("write");
        text(out, "mm_objects");
        array(out, 0);
    };
    for nils_before in [2, 3, 4, 5] {
        let with = array_store(nils_before + 1, &|out| {
            (0..nils_before).for_each(|_| nil(out));
            infos(out);
        });
        assert_eq!(only_store(&with).extras, [unknown()], "{nils_before}");
        let without = array_store(nils_before + 1, &|out| {
            (0..nils_before).for_each(|_| nil(out));
            array(out, 1);
            nil(out);
        });
        assert_eq!(only_store(&without), stored(5), "{nils_before}");
    }
}

#[test]
fn pages_of_one_token_come_as_a_chain_in_one_event() {
    let payload = batch_of(1, &|out| {
        array(out, 5);
        text(out, "BlockStored");
        array(out, 3);
        for hash in [-3, 4, -5] {
            mp::write_sint(out, hash).expect("write");
        }
        mp::write_sint(out, -2).expect("write");
        array(out, 3);
        for token in [11, 12, 13] {
            number(out, token);
        }
        number(out, 1);
    });
    let expected = Stored {
        hashes: [-3_i64, 4, -5]
            .map(|hash| EngineHash(hash.cast_unsigned()))
            .to_vec(),
        parent: Some(EngineHash((-2_i64).cast_unsigned())),
        tokens: vec![11, 12, 13],
        block_size: 1,
        ..stored(0)
    };
    assert_eq!(only_store(&decode(&payload).expect("a batch")), expected);
}

#[test]
fn strings_among_the_tokens_of_tensorrt_keep_the_blocks_resident() {
    let payload = batch_of(1, &|out| {
        mp::write_map_len(out, 7).expect("write");
        text(out, "type");
        text(out, "BlockStored");
        text(out, "block_hashes");
        array(out, 1);
        mp::write_sint(out, -9).expect("write");
        text(out, "parent_block_hash");
        nil(out);
        text(out, "token_ids");
        array(out, 2);
        number(out, 1);
        text(out, "mm:0");
        text(out, "block_size");
        number(out, 2);
        text(out, "lora_name");
        nil(out);
        text(out, "mm_keys");
        array(out, 1);
        array(out, 0);
    });
    let stored = only_store(&decode(&payload).expect("a batch"));
    assert!(stored.opaque_tokens && stored.extras.is_empty());
    assert_eq!(stored.hashes, [EngineHash((-9_i64).cast_unsigned())]);
}
