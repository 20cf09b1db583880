//! What single fields may look like in the dialects that are about.

use rmp::encode::{self as mp, ByteBuf};

use super::*;

/// The extra keys of a store's blocks, strings only; `None` is nil.
type Keys<'a> = &'a [Option<&'a [&'a str]>];

/// Writes one value.
pub(super) type Write<'a> = &'a dyn Fn(&mut ByteBuf);

/// A batch of one event that `write` puts.
pub(super) fn batch_of(n: u32, write: Write<'_>) -> Vec<u8> {
    let mut out = ByteBuf::new();
    mp::write_array_len(&mut out, 3).expect("write");
    mp::write_f64(&mut out, 2.0).expect("write");
    mp::write_array_len(&mut out, n).expect("write");
    write(&mut out);
    mp::write_uint(&mut out, 3).expect("write");
    out.into_vec()
}

fn hashes_and_tokens(out: &mut ByteBuf, n_blocks: u32) {
    text(out, "block_hashes");
    mp::write_array_len(out, n_blocks).expect("write");
    for block in 0..n_blocks {
        mp::write_uint(out, u64::from(block) + 10).expect("write");
    }
    text(out, "token_ids");
    mp::write_array_len(out, n_blocks * 4).expect("write");
    for token in 0..n_blocks * 4 {
        mp::write_uint(out, u64::from(token % 4) + 1).expect("write");
    }
    text(out, "block_size");
    mp::write_uint(out, 4).expect("write");
}

pub(super) fn text(out: &mut ByteBuf, text: &str) {
    mp::write_str(out, text).expect("write");
}

/// A map event of `n_blocks` blocks with `n_more` further pairs that `more` writes; the type comes last.
pub(super) fn store(n_blocks: u32, n_more: u32, more: Write<'_>) -> Stored {
    let payload = batch_of(1, &|out| {
        mp::write_map_len(out, 4 + n_more).expect("write");
        hashes_and_tokens(out, n_blocks);
        more(out);
        text(out, "type");
        text(out, "BlockStored");
    });
    let batch = decode(&payload).expect("a batch");
    assert_eq!(batch.skipped, Skipped::default());
    assert_eq!(batch.rank, Some(3));
    let [KvEvent::Stored(stored)] = &batch.events[..] else {
        panic!("one store, got {:?}", batch.events);
    };
    stored.clone()
}

pub(super) fn salt(salt: &str) -> BlockExtra {
    BlockExtra {
        salt: Some(salt.to_owned()),
        ..BlockExtra::default()
    }
}

pub(super) fn items(items: &[(&str, Option<i64>)]) -> BlockExtra {
    BlockExtra {
        items: items
            .iter()
            .map(|(id, offset)| ((*id).to_owned(), *offset))
            .collect(),
        ..BlockExtra::default()
    }
}

pub(super) fn unknown() -> BlockExtra {
    BlockExtra {
        unknown: true,
        ..BlockExtra::default()
    }
}

fn extra_keys(out: &mut ByteBuf, blocks: Keys<'_>) {
    text(out, "extra_keys");
    mp::write_array_len(out, u32::try_from(blocks.len()).expect("few")).expect("write");
    for block in blocks {
        match block {
            None => mp::write_nil(out).expect("write"),
            Some(keys) => {
                mp::write_array_len(out, u32::try_from(keys.len()).expect("few")).expect("write");
                for key in *keys {
                    text(out, key);
                }
            }
        }
    }
}

#[test]
fn adapter_and_salt_are_told_apart_in_every_combination() {
    let rows: [(Option<&str>, Keys<'_>, Vec<BlockExtra>); 7] = [
        (None, &[None, None], vec![]),
        (Some("sql"), &[Some(&["sql"]), Some(&["sql"])], vec![]),
        (
            None,
            &[Some(&["t1"]), None],
            vec![salt("t1"), BlockExtra::default()],
        ),
        (
            Some("sql"),
            &[Some(&["sql", "t1"]), Some(&["sql"])],
            vec![salt("t1"), BlockExtra::default()],
        ),
        // The salt is the adapter's name.
        (
            Some("sql"),
            &[Some(&["sql", "sql"]), Some(&["sql"])],
            vec![salt("sql"), BlockExtra::default()],
        ),
        // The base model, salted with an adapter's name: only the missing name tells.
        (
            None,
            &[Some(&["sql"]), None],
            vec![salt("sql"), BlockExtra::default()],
        ),
        // Two bare strings in the first block: item ids of old releases, or an id and a salt.
        (
            None,
            &[Some(&["id1", "t1"]), Some(&["id1"])],
            vec![
                BlockExtra {
                    unknown: true,
                    ..salt("id1")
                },
                items(&[("id1", None)]),
            ],
        ),
    ];
    for (adapter, keys, expected) in rows {
        let stored = store(2, 2, &|out| {
            // The name comes after the keys that need it.
            extra_keys(out, keys);
            text(out, "lora_name");
            match adapter {
                Some(name) => text(out, name),
                None => mp::write_nil(out).expect("write"),
            }
        });
        assert_eq!(stored.extras, expected, "{adapter:?} {keys:?}");
        assert_eq!(stored.lora_name.as_deref(), adapter);
    }
}

#[test]
fn a_bare_string_in_a_block_that_starts_no_sequence_is_an_item() {
    let stored = store(1, 2, &|out| {
        extra_keys(out, &[Some(&["id1"])]);
        text(out, "parent_block_hash");
        mp::write_uint(out, 9).expect("write");
    });
    assert_eq!(stored.extras, vec![items(&[("id1", None)])]);
}

#[test]
fn items_with_offsets_are_items_and_digests_are_unknown() {
    let stored = store(4, 1, &|out| {
        text(out, "extra_keys");
        mp::write_array_len(out, 3).expect("write");
        mp::write_array_len(out, 2).expect("write");
        for (id, offset) in [("img1", 3), ("img2", -2)] {
            mp::write_array_len(out, 2).expect("write");
            text(out, id);
            mp::write_sint(out, offset).expect("write");
        }
        mp::write_array_len(out, 1).expect("write");
        mp::write_bin(out, &[7; 32]).expect("write");
        mp::write_nil(out).expect("write");
    });
    assert_eq!(
        stored.extras,
        vec![
            items(&[("img1", Some(3)), ("img2", Some(-2))]),
            unknown(),
            BlockExtra::default(),
            // The list is shorter than the blocks: what the last one has is not known.
            unknown(),
        ]
    );
}

#[test]
fn extra_keys_of_another_shape_leave_every_block_unknown() {
    let stored = store(2, 1, &|out| {
        text(out, "extra_keys");
        mp::write_uint(out, 5).expect("write");
    });
    assert_eq!(stored.extras, vec![unknown(), unknown()]);
}

#[test]
fn a_salt_by_name_belongs_to_the_first_block_of_a_sequence() {
    let root = store(2, 1, &|out| {
        text(out, "cache_salt");
        text(out, "t1");
    });
    assert_eq!(root.extras, vec![salt("t1"), BlockExtra::default()]);
    let child = store(2, 2, &|out| {
        text(out, "cache_salt");
        text(out, "t1");
        text(out, "parent_block_hash");
        mp::write_sint(out, -1).expect("write");
    });
    assert_eq!(child.extras, vec![]);
    assert_eq!(child.parent, Some(EngineHash(u64::MAX)));
}

/// An array store with the first six fields, then what `more` writes (`n_more` values).
pub(super) fn array_store(n_more: u32, more: Write<'_>) -> Batch {
    let payload = batch_of(1, &|out| {
        mp::write_array_len(out, 7 + n_more).expect("write");
        text(out, "BlockStored");
        mp::write_array_len(out, 1).expect("write");
        mp::write_uint(out, 5).expect("write");
        mp::write_nil(out).expect("write");
        mp::write_array_len(out, 4).expect("write");
        for token in 1..5 {
            mp::write_uint(out, token).expect("write");
        }
        mp::write_uint(out, 4).expect("write");
        mp::write_nil(out).expect("write");
        text(out, "gpu");
        more(out);
    });
    decode(&payload).expect("a batch")
}

#[test]
fn a_map_in_the_adapters_place_is_the_salt_of_sglang() {
    let batch = array_store(1, &|out| {
        mp::write_map_len(out, 1).expect("write");
        text(out, "cache_salt");
        text(out, "t1");
    });
    let expected = Stored {
        extras: vec![salt("t1")],
        ..stored(5)
    };
    assert_eq!(batch.events, vec![KvEvent::Stored(expected)]);
}

#[test]
fn a_list_in_the_groups_place_is_dynamos_and_leaves_the_block_unkeyed() {
    let batch = array_store(3, &|out| {
        mp::write_nil(out).expect("write");
        mp::write_nil(out).expect("write");
        mp::write_array_len(out, 1).expect("write");
        mp::write_map_len(out, 0).expect("write");
    });
    let expected = Stored {
        extras: vec![unknown()],
        ..stored(5)
    };
    assert_eq!(batch.events, vec![KvEvent::Stored(expected)]);
}

#[test]
fn trailing_fields_that_nobody_knows_are_ignored() {
    let batch = array_store(7, &|out| {
        for _ in 0..4 {
            mp::write_nil(out).expect("write");
        }
        mp::write_uint(out, 128).expect("write");
        text(out, "LOCAL");
        mp::write_array_len(out, 2).expect("write");
        mp::write_nil(out).expect("write");
        mp::write_map_len(out, 0).expect("write");
    });
    assert_eq!(batch.events, vec![KvEvent::Stored(stored(5))]);
    assert_eq!(batch.rank, Some(3), "the batch goes on after the event");
}

#[test]
fn only_dense_groups_of_full_attention_are_indexable() {
    let rows = [
        (None, None, true),
        (None, Some(0), true),
        (None, Some(1), false),
        (Some("full_attention"), Some(1), true),
        (Some("mla_attention"), Some(0), true),
        (Some("sink_full_attention"), None, true),
        (Some("sliding_window"), Some(0), false),
        (Some("mamba"), Some(2), false),
        (Some("unknown"), Some(0), false),
    ];
    for (kind, group, indexable) in rows {
        let stored = store(1, 2, &|out| {
            text(out, "kv_cache_spec_kind");
            match kind {
                Some(kind) => text(out, kind),
                None => mp::write_nil(out).expect("write"),
            }
            text(out, "group_idx");
            match group {
                Some(group) => {
                    mp::write_uint(out, group).expect("write");
                }
                None => mp::write_nil(out).expect("write"),
            }
        });
        assert_eq!(stored.indexable_group, indexable, "{kind:?} {group:?}");
    }
}

#[test]
fn media_are_folded_whatever_their_case() {
    for (name, medium) in [
        ("GPU", Medium::Gpu),
        ("gpu", Medium::Gpu),
        ("CPU", Medium::Cpu),
        ("cpu", Medium::Cpu),
        ("CPU_PINNED", Medium::Cpu),
        ("DISK", Medium::Storage),
        ("STORAGE", Medium::Storage),
        ("FS", Medium::Storage),
        ("EXTERNAL", Medium::Storage),
    ] {
        let stored = store(1, 1, &|out| {
            text(out, "medium");
            text(out, name);
        });
        assert_eq!(stored.medium, medium, "{name}");
    }
}

#[test]
fn pairs_strings_and_numbers_out_of_range_make_tokens_opaque() {
    let writers: [Write<'_>; 4] = [
        &|out| {
            mp::write_array_len(out, 2).expect("write");
            mp::write_uint(out, 1).expect("write");
            mp::write_uint(out, 2).expect("write");
        },
        &|out| text(out, "mm"),
        &|out| {
            mp::write_uint(out, 1 << 32).expect("write");
        },
        &|out| {
            mp::write_sint(out, -1).expect("write");
        },
    ];
    for odd in writers {
        let payload = batch_of(1, &|out| {
            mp::write_map_len(out, 3).expect("write");
            text(out, "type");
            text(out, "BlockStored");
            text(out, "block_hashes");
            mp::write_array_len(out, 1).expect("write");
            mp::write_uint(out, 5).expect("write");
            text(out, "token_ids");
            mp::write_array_len(out, 2).expect("write");
            mp::write_uint(out, 1).expect("write");
            odd(out);
        });
        let batch = decode(&payload).expect("a batch");
        let expected = Stored {
            tokens: vec![],
            opaque_tokens: true,
            block_size: 0,
            ..stored(5)
        };
        assert_eq!(batch.events, vec![KvEvent::Stored(expected)]);
    }
}

#[test]
fn a_bad_event_costs_itself_and_nothing_else() {
    let payload = batch_of(9, &|out| {
        let good = |out: &mut ByteBuf| {
            mp::write_array_len(out, 1).expect("write");
            text(out, "AllBlocksCleared");
        };
        good(out);
        // No type at all.
        mp::write_uint(out, 5).expect("write");
        mp::write_array_len(out, 0).expect("write");
        mp::write_map_len(out, 1).expect("write");
        text(out, "block_hashes");
        mp::write_array_len(out, 0).expect("write");
        // A type from the future, with a field of ours in another shape.
        mp::write_map_len(out, 2).expect("write");
        text(out, "block_hashes");
        text(out, "later");
        text(out, "type");
        text(out, "BlockMoved");
        good(out);
        // A hash that is none, deep inside.
        mp::write_array_len(out, 2).expect("write");
        text(out, "BlockRemoved");
        mp::write_array_len(out, 2).expect("write");
        mp::write_uint(out, 1).expect("write");
        mp::write_array_len(out, 1).expect("write");
        mp::write_f64(out, 1.0).expect("write");
        // A store without hashes.
        mp::write_array_len(out, 1).expect("write");
        text(out, "BlockStored");
        good(out);
    });
    let batch = decode(&payload).expect("a batch");
    assert_eq!(batch.events, vec![KvEvent::Cleared; 3]);
    assert_eq!(
        batch.skipped.iter().collect::<Vec<_>>(),
        vec![
            (SkipReason::UnknownType, 1),
            (SkipReason::Untyped, 3),
            (SkipReason::Hashes, 2),
        ]
    );
    assert_eq!(batch.skipped.lost(), 5, "an unknown type is no loss");
    assert_eq!(batch.rank, Some(3));
}

#[test]
fn a_batch_that_breaks_off_keeps_what_came_before() {
    let whole = bytes(GOLDEN[2]);
    let cut = &whole[..whole.len() - 30];
    let batch = decode(cut).expect("a batch");
    assert_eq!(batch.events.len(), 1);
    assert_eq!(
        batch.skipped.iter().collect::<Vec<_>>(),
        vec![(SkipReason::Framing, 2)]
    );
}

#[test]
fn digests_of_any_length_fold_to_their_last_eight_bytes() {
    let payload = batch_of(1, &|out| {
        mp::write_array_len(out, 2).expect("write");
        text(out, "BlockRemoved");
        mp::write_array_len(out, 4).expect("write");
        let mut digest = [9_u8; 32];
        digest[24..].copy_from_slice(&0x0102_0304_0506_0708_u64.to_be_bytes());
        mp::write_bin(out, &digest).expect("write");
        mp::write_bin(out, &digest[16..]).expect("write");
        mp::write_bin(out, &[1, 2]).expect("write");
        mp::write_sint(out, -1).expect("write");
    });
    let batch = decode(&payload).expect("a batch");
    let expected = [
        0x0102_0304_0506_0708,
        0x0102_0304_0506_0708,
        0x0102,
        u64::MAX,
    ];
    assert_eq!(
        batch.events,
        vec![KvEvent::Removed(Removed {
            hashes: expected.map(EngineHash).to_vec(),
            medium: Medium::Gpu,
            group: None,
        })]
    );
}
