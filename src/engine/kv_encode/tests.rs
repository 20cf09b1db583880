//! Claims about how events look on the wire, byte for byte where an engine's own bytes are known.

use clap::ValueEnum as _;

use super::*;
use crate::engine::unpack::unpack;
use crate::feeds::kv_wire;
use crate::routing::event::BlockExtra;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn encoder(encoding: Encoding) -> Encoder {
    Encoder {
        encoding,
        hashes: HashForm::Int,
        adapters: vec!["legal".to_owned(), "sql".to_owned()],
        rank: 0,
    }
}

fn stored() -> Stored {
    Stored {
        hashes: vec![EngineHash(u64::MAX)],
        parent: Some(EngineHash(7)),
        tokens: vec![1, 2, 3, 4],
        opaque_tokens: false,
        block_size: 4,
        lora_name: None,
        extras: Vec::new(),
        medium: Medium::Gpu,
        group: Some(0),
        indexable_group: true,
    }
}

fn events() -> [KvEvent; 3] {
    let removed = Removed {
        hashes: vec![EngineHash(u64::MAX)],
        medium: Medium::Gpu,
        group: Some(0),
    };
    [
        KvEvent::Stored(stored()),
        KvEvent::Removed(removed),
        KvEvent::Cleared,
    ]
}

/// The bytes msgspec makes of vLLM's own structs (0.24 and later).
const MAP: &str = "93cb3ff8000000000000938ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cfffff\
    ffffffffffffb1706172656e745f626c6f636b5f6861736807a9746f6b656e5f6964739401020304aa626c6f636b5f73697a6504\
    a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797391c0a967726f75705f69\
    647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e84a474797065ac426c6f636b52656d\
    6f766564ac626c6f636b5f68617368657391cfffffffffffffffffa66d656469756da3475055a967726f75705f6964780081a474\
    797065b0416c6c426c6f636b73436c656172656400";

#[test]
fn the_map_dialect_is_msgspecs_byte_for_byte() {
    assert_eq!(
        hex(&encoder(Encoding::Map).batch(&events(), false, 1.5).unwrap()),
        MAP
    );
}

#[test]
fn the_array_dialect_has_every_field_in_its_place() {
    let expected = "93cb3ff8000000000000939cab426c6f636b53746f72656491cfffffffffffffffff0794010203\
        0404c0a3475055c091c000ae66756c6c5f617474656e74696f6ec094ac426c6f636b52656d6f76656491cfffffffffffffff\
        ffa34750550091b0416c6c426c6f636b73436c656172656400";
    assert_eq!(
        hex(&encoder(Encoding::Array)
            .batch(&events(), false, 1.5)
            .unwrap()),
        expected
    );
}

#[test]
fn adapter_and_salt_stand_untagged_in_the_extra_keys() {
    let salted = BlockExtra {
        salt: Some("t1".to_owned()),
        ..BlockExtra::default()
    };
    let event = KvEvent::Stored(Stored {
        hashes: vec![EngineHash(1), EngineHash(2)],
        tokens: (0..8).collect(),
        lora_name: Some("sql".to_owned()),
        extras: vec![salted, BlockExtra::default()],
        ..stored()
    });
    let bytes = hex(&encoder(Encoding::Map).batch(&[event], false, 1.5).unwrap());
    // "extra_keys": [["sql", "t1"], ["sql"]], and the second adapter's number.
    assert!(
        bytes.contains("aa65787472615f6b6579739292a373716ca2743191a373716c"),
        "{bytes}"
    );
    assert!(bytes.contains("a76c6f72615f696402"), "{bytes}");
}

/// The bytes msgspec makes of the structs of vLLM 0.9.0 and of 0.10.2 (engines.md).
#[test]
fn old_array_dialects_are_msgspecs_byte_for_byte() {
    let hash = EngineHash((-5_i64).cast_unsigned());
    let store = Stored {
        hashes: vec![hash],
        parent: None,
        ..stored()
    };
    let removal = Removed {
        hashes: vec![hash],
        medium: Medium::Gpu,
        group: Some(0),
    };
    let old = [
        KvEvent::Stored(store),
        KvEvent::Removed(removal),
        KvEvent::Cleared,
    ];
    let bytes =
        |encoding, events: &[KvEvent]| hex(&encoder(encoding).batch(events, false, 1.5).unwrap());
    assert_eq!(
        bytes(Encoding::Vllm9, &old),
        "92cb3ff80000000000009396ab426c6f636b53746f72656491fbc0940102030404c092ac426c6f636b52656d6f76656491fb91b041\
         6c6c426c6f636b73436c6561726564"
    );
    assert_eq!(
        bytes(Encoding::Vllm10, &events()),
        "93cb3ff80000000000009397ab426c6f636b53746f72656491cfffffffffffffffff07940102030404c0a347505593ac426c6f636b\
         52656d6f76656491cfffffffffffffffffa347505591b0416c6c426c6f636b73436c656172656400"
    );
}

#[test]
fn every_dialect_is_read_as_what_it_was_made_of_in_either_form_of_hashes() {
    for &encoding in Encoding::value_variants() {
        for hashes in [HashForm::Int, HashForm::Bytes] {
            let encoder = Encoder {
                hashes,
                rank: 3,
                ..encoder(encoding)
            };
            let batch = kv_wire::decode(&encoder.batch(&events(), false, 1.5).unwrap()).unwrap();
            assert_eq!(batch.skipped, kv_wire::Skipped::default());
            assert_eq!(batch.rank, encoding.tells_rank().then_some(3));
            let group = encoding.has_groups().then_some(0);
            let expected = events().map(|event| match event {
                KvEvent::Stored(stored) => KvEvent::Stored(Stored { group, ..stored }),
                KvEvent::Removed(removed) => KvEvent::Removed(Removed { group, ..removed }),
                KvEvent::Cleared => KvEvent::Cleared,
            });
            assert_eq!(batch.events, expected, "{encoding:?} {hashes:?}");
        }
    }
}

#[test]
fn an_odd_event_costs_nothing_but_itself_in_any_dialect() {
    for &encoding in Encoding::value_variants() {
        let bytes = encoder(encoding).batch(&events(), true, 1.5).unwrap();
        let batch = kv_wire::decode(&bytes).unwrap();
        assert_eq!(batch.events.len(), 3, "{encoding:?}");
        assert_ne!(batch.skipped, kv_wire::Skipped::default());
    }
}

#[test]
fn sglang_has_names_of_its_own_for_salt_and_host_memory() {
    let salted = BlockExtra {
        salt: Some("t1".to_owned()),
        ..BlockExtra::default()
    };
    let event = KvEvent::Stored(Stored {
        parent: None,
        extras: vec![salted],
        medium: Medium::Cpu,
        ..stored()
    });
    let bytes = encoder(Encoding::SglangMap)
        .batch(&[event], false, 1.5)
        .unwrap();
    let event = &unpack(&mut bytes.as_slice())[1][0];
    assert_eq!(event["cache_salt"], "t1");
    assert_eq!(event["medium"], "CPU_PINNED");
    assert_eq!(event["block_hashes"][0], -1);
    assert_eq!(event.get("lora_name"), None);
}

#[test]
fn a_store_without_tokens_says_only_where_its_blocks_are() {
    let event = KvEvent::Stored(Stored {
        parent: None,
        tokens: Vec::new(),
        block_size: 0,
        medium: Medium::Cpu,
        group: None,
        ..stored()
    });
    let bytes = encoder(Encoding::Map).batch(&[event], false, 1.5).unwrap();
    let event = unpack(&mut bytes.as_slice())[1][0].clone();
    let expected = serde_json::json!({
        "type": "BlockStored", "block_hashes": [u64::MAX], "parent_block_hash": null, "token_ids": [], "block_size": 0,
        "lora_id": null, "medium": "CPU", "lora_name": null,
    });
    assert_eq!(event, expected);
}
