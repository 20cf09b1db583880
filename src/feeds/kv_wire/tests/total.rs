//! Any bytes at all: an answer, no panic, no memory by claim, no stack by depth.

use proptest::prelude::*;
use rmp::encode::{self as mp, ByteBuf};

use super::*;

#[test]
fn lengths_that_the_bytes_cannot_hold_are_refused_without_reserving() {
    // Arrays, maps, texts and binaries of four billion, at each place a length may stand.
    for marker in [0xdd, 0xdf, 0xdb, 0xc6] {
        for prefix in [
            &[][..],
            &[0x92, 0x01],
            &[0x92, 0x01, 0x91],
            &[0x92, 0x01, 0x91, 0x92, 0xa1, b'x'],
        ] {
            let mut payload = prefix.to_vec();
            payload.extend([marker, 0xff, 0xff, 0xff, 0xff, 0x01]);
            match decode(&payload) {
                Ok(batch) => assert!(batch.events.is_empty()),
                Err(error) => assert_ne!(error.to_string(), ""),
            }
        }
    }
}

#[test]
fn a_million_levels_of_nesting_cost_no_stack() {
    for marker in [0x91_u8, 0x81] {
        let mut payload = vec![0x93, 0x01, 0x92];
        payload.extend(std::iter::repeat_n(marker, 1_000_000));
        let batch = decode(&payload).expect("a batch");
        assert_eq!(
            batch.skipped.iter().collect::<Vec<_>>(),
            vec![(SkipReason::Framing, 2)]
        );
    }
    // The same, well framed: passed over, and the next event is read.
    let mut payload = vec![0x93, 0x01, 0x92];
    payload.extend(std::iter::repeat_n(0x91, 1_000_000));
    payload.extend([0xc0, 0x91, 0xb0]);
    payload.extend(b"AllBlocksCleared");
    payload.push(0x00);
    let batch = decode(&payload).expect("a batch");
    assert_eq!(batch.events, vec![KvEvent::Cleared]);
}

/// How one event is written: the shape, the order of its fields, and strangers among them.
#[derive(Clone, Debug)]
struct Dialect {
    map: bool,
    order: Vec<usize>,
    strangers: u32,
    digests: bool,
}

fn dialect() -> impl Strategy<Value = Dialect> {
    let order = Just((0..8).collect::<Vec<_>>()).prop_shuffle();
    (any::<bool>(), order, 0_u32..3, any::<bool>()).prop_map(|(map, order, strangers, digests)| {
        Dialect {
            map,
            order,
            strangers,
            digests,
        }
    })
}

fn any_stored() -> impl Strategy<Value = Stored> {
    (
        proptest::collection::vec(any::<u64>(), 0..5),
        proptest::option::of(any::<u64>()),
        proptest::collection::vec(any::<u32>(), 0..9),
        any::<u32>(),
        proptest::option::of("[a-z]{1,40}"),
        proptest::option::of(0_u32..3),
        prop::sample::select(vec![
            (Medium::Gpu, "GPU"),
            (Medium::Cpu, "cpu"),
            (Medium::Storage, "FS"),
        ]),
    )
        .prop_map(
            |(hashes, parent, tokens, block_size, lora_name, group, medium)| Stored {
                hashes: hashes.into_iter().map(EngineHash).collect(),
                parent: parent.map(EngineHash),
                tokens,
                opaque_tokens: false,
                block_size,
                lora_name,
                extras: vec![],
                medium: medium.0,
                group,
                indexable_group: matches!(group, None | Some(0)),
            },
        )
}

fn write_hash(out: &mut ByteBuf, hash: EngineHash, digests: bool) {
    if digests {
        let mut digest = [3; 16];
        digest[8..].copy_from_slice(&hash.0.to_be_bytes());
        mp::write_bin(out, &digest).expect("write");
    } else {
        // Negative where it fits, as signed engines write it.
        mp::write_sint(out, hash.0.cast_signed()).expect("write");
    }
}

/// Writes field `at` (0 to 7, in positional order) of a store.
fn write_field(out: &mut ByteBuf, stored: &Stored, at: usize, digests: bool) {
    let len = |n: usize| u32::try_from(n).expect("few");
    match at {
        0 => {
            mp::write_array_len(out, len(stored.hashes.len())).expect("write");
            for hash in &stored.hashes {
                write_hash(out, *hash, digests);
            }
        }
        1 => match stored.parent {
            Some(hash) => write_hash(out, hash, digests),
            None => mp::write_nil(out).expect("write"),
        },
        2 => {
            mp::write_array_len(out, len(stored.tokens.len())).expect("write");
            for token in &stored.tokens {
                mp::write_uint(out, u64::from(*token)).expect("write");
            }
        }
        3 => {
            mp::write_uint(out, u64::from(stored.block_size)).expect("write");
        }
        5 => {
            let name = match stored.medium {
                Medium::Gpu => "GPU",
                Medium::Cpu => "cpu",
                Medium::Storage => "FS",
            };
            mp::write_str(out, name).expect("write");
        }
        6 => match &stored.lora_name {
            Some(name) => mp::write_str(out, name).expect("write"),
            None => mp::write_nil(out).expect("write"),
        },
        8 => match stored.group {
            Some(group) => {
                mp::write_uint(out, u64::from(group)).expect("write");
            }
            None => mp::write_nil(out).expect("write"),
        },
        _ => mp::write_nil(out).expect("write"),
    }
}

const NAMES: [&str; 9] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
];

fn write_event(out: &mut ByteBuf, stored: &Stored, dialect: &Dialect) {
    if !dialect.map {
        mp::write_array_len(out, 10).expect("write");
        mp::write_str(out, "BlockStored").expect("write");
        for at in 0..9 {
            write_field(out, stored, at, dialect.digests);
        }
        return;
    }
    mp::write_map_len(out, 10 + dialect.strangers).expect("write");
    for at in dialect.order.iter().copied().chain([8]) {
        mp::write_str(out, NAMES[at]).expect("write");
        write_field(out, stored, at, dialect.digests);
        if at == 3 {
            mp::write_str(out, "type").expect("write");
            mp::write_str(out, "BlockStored").expect("write");
            for stranger in 0..dialect.strangers {
                mp::write_str(out, &format!("stranger{stranger}")).expect("write");
                mp::write_array_len(out, 1).expect("write");
                mp::write_map_len(out, 0).expect("write");
            }
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(payload in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _answer = decode(&payload);
    }

    /// Random bytes rarely get past the first marker; a real payload with wounds gets everywhere.
    #[test]
    fn wounded_payloads_never_panic(
        which in 0_usize..3,
        wounds in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut payload = bytes(GOLDEN[which]);
        for (at, byte) in wounds {
            let at = at.index(payload.len());
            payload[at] = byte;
        }
        let _whole = decode(&payload);
        let _cut = decode(&payload[..cut.index(payload.len())]);
    }

    /// Whatever the shape, the order and the strangers, the same event comes out.
    #[test]
    fn every_dialect_says_the_same(
        events in proptest::collection::vec((any_stored(), dialect()), 0..5),
        rank in proptest::option::of(any::<u32>()),
    ) {
        let mut out = ByteBuf::new();
        mp::write_array_len(&mut out, 3).expect("write");
        mp::write_f64(&mut out, 2.5).expect("write");
        mp::write_array_len(&mut out, u32::try_from(events.len()).expect("few")).expect("write");
        for (stored, dialect) in &events {
            write_event(&mut out, stored, dialect);
        }
        match rank {
            Some(rank) => {
                mp::write_uint(&mut out, u64::from(rank)).expect("write");
            }
            None => mp::write_nil(&mut out).expect("write"),
        }
        let batch = decode(&out.into_vec()).expect("a batch");
        let expected = Batch {
            ts: 2.5,
            rank,
            events: events.into_iter().map(|(stored, _)| KvEvent::Stored(stored)).collect(),
            skipped: Skipped::default(),
        };
        prop_assert_eq!(batch, expected);
    }
}
