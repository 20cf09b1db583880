//! Batches of real engines and of the engines' own encoder.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::*;

/// The shared test data, if there is any.
fn shared(part: &str) -> Option<PathBuf> {
    if let Some(root) = std::env::var_os("WARMPATH_SHARED") {
        Some(Path::new(&root).join("data").join(part))
    } else {
        println!("left out: WARMPATH_SHARED is not set, so {part} is not read");
        None
    }
}

fn lines(path: &Path) -> Vec<Value> {
    let text =
        std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines()
        .map(|line| serde_json::from_str(line).expect("a JSON line"))
        .collect()
}

fn hash(value: &Value) -> EngineHash {
    if let Some(digest) = value.get("bytes_hex").and_then(Value::as_str) {
        let digest = bytes(digest);
        let low = digest.last_chunk().expect("eight bytes or more");
        return EngineHash(u64::from_be_bytes(*low));
    }
    EngineHash(value.as_u64().expect("an unsigned hash"))
}

fn hashes(value: &Value) -> Vec<EngineHash> {
    value.as_array().expect("hashes").iter().map(hash).collect()
}

/// What an event must become, from the decoded form that stands beside the payload.
fn expected(event: &Value) -> KvEvent {
    let names: &[&str] = &[
        "type",
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
    ];
    let removed_names: &[&str] = &["type", "block_hashes", "medium", "group_idx"];
    let kind = event.get(0).or_else(|| event.get("type"));
    let kind = kind.and_then(Value::as_str).expect("a type");
    let names = if kind == "BlockRemoved" {
        removed_names
    } else {
        names
    };
    let field = |name: &str| {
        let value = match event.as_array() {
            Some(array) => names
                .iter()
                .position(|n| *n == name)
                .and_then(|at| array.get(at)),
            None => event.get(name),
        };
        value.filter(|value| !value.is_null())
    };
    let group = field("group_idx").map(|g| u32::try_from(g.as_u64().expect("group")).expect("u32"));
    let medium = match field("medium").map(|m| m.as_str().expect("medium")) {
        None | Some("GPU") => Medium::Gpu,
        other => panic!("medium {other:?} is not in this data"),
    };
    match kind {
        "AllBlocksCleared" => KvEvent::Cleared,
        "BlockRemoved" => KvEvent::Removed(Removed {
            hashes: hashes(field("block_hashes").expect("hashes")),
            medium,
            group,
        }),
        "BlockStored" => {
            let hashes = hashes(field("block_hashes").expect("hashes"));
            KvEvent::Stored(Stored {
                parent: field("parent_block_hash").map(hash),
                tokens: field("token_ids")
                    .and_then(Value::as_array)
                    .expect("tokens")
                    .iter()
                    .map(|t| u32::try_from(t.as_u64().expect("id")).expect("u32"))
                    .collect(),
                opaque_tokens: false,
                block_size: u32::try_from(
                    field("block_size").and_then(Value::as_u64).expect("size"),
                )
                .expect("u32"),
                lora_name: field("lora_name")
                    .and_then(Value::as_str)
                    .map(str::to_owned),
                // An adapter that has only a number leaves its blocks without a key.
                extras: match (field("lora_id"), field("lora_name")) {
                    (Some(_), None) => {
                        let unknown = BlockExtra {
                            unknown: true,
                            ..BlockExtra::default()
                        };
                        vec![unknown; hashes.len()]
                    }
                    _ => Vec::new(),
                },
                hashes,
                medium,
                group,
                indexable_group: matches!(
                    field("kv_cache_spec_kind").and_then(Value::as_str),
                    None | Some("full_attention")
                ),
            })
        }
        other => panic!("type {other}"),
    }
}

fn expected_batch(decoded: &Value) -> Batch {
    let (ts, events, rank) = match decoded.as_array() {
        Some(array) => (&array[0], &array[1], array.get(2)),
        None => (
            &decoded["ts"],
            &decoded["events"],
            decoded.get("data_parallel_rank"),
        ),
    };
    Batch {
        ts: ts.as_f64().expect("ts"),
        rank: rank
            .and_then(Value::as_u64)
            .map(|rank| u32::try_from(rank).expect("u32")),
        events: events
            .as_array()
            .expect("events")
            .iter()
            .map(expected)
            .collect(),
        skipped: Skipped::default(),
    }
}

#[test]
fn every_wire_generation_reads_as_its_decoded_form_says() {
    let Some(path) = shared("events/vllm-encoded/kv_event_batches.jsonl") else {
        return;
    };
    let rows = lines(&path);
    assert!(rows.len() > 50, "{} rows", rows.len());
    for row in &rows {
        let payload = bytes(row["payload_hex"].as_str().expect("hex"));
        let batch = decode(&payload).expect("a batch");
        let expected = expected_batch(&row["decoded"]);
        assert_eq!(batch, expected, "{} {}", row["wire"], row["case"]);
    }
}

#[test]
fn batches_that_users_posted_are_read() {
    let Some(path) = shared("events/issue-captures/captures.json") else {
        return;
    };
    let text = std::fs::read_to_string(&path).expect("captures");
    let captures: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    let mut read = 0;
    for capture in &captures {
        if let Some(hex) = capture["payload_hex"].as_str() {
            let batch = decode(&bytes(hex)).expect("a batch");
            assert_eq!(batch, expected_batch(&capture["decoded_batch"]));
            read += 1;
        }
    }
    assert!(read > 0, "no capture with bytes in {}", path.display());
}

/// The KV-event messages of one recorded line, in each of the forms the recordings use.
fn payloads(row: &Value) -> Vec<Vec<u8>> {
    let part = row.get("frames").or_else(|| row.get("kv_events"));
    let frames = part.and_then(Value::as_array).cloned().unwrap_or_default();
    frames
        .iter()
        .map(|message| message.get("frames").unwrap_or(message))
        .filter_map(|frames| frames.as_array()?.last()?.as_str())
        .filter(|hex| !hex.is_empty())
        .map(bytes)
        .collect()
}

#[test]
fn everything_real_engines_sent_is_read_without_a_skip() {
    let Some(folder) = shared("captures") else {
        return;
    };
    for name in [
        "vllm-0.31-qwen3.jsonl",
        "qwen3-array-0.20.jsonl",
        "qwen3-lora.jsonl",
        "qwen3-restart.jsonl",
        "qwen3-stream.jsonl",
    ] {
        let (mut batches, mut blocks, mut removed, mut cleared, mut salted) = (0, 0, 0, 0, 0);
        let mut adapters = std::collections::BTreeSet::new();
        for payload in lines(&folder.join(name)).iter().flat_map(payloads) {
            let batch = decode(&payload).expect("a batch");
            assert_eq!(batch.skipped, Skipped::default(), "{name}");
            assert!(batch.ts > 1.7e9, "{name}: ts {}", batch.ts);
            assert_eq!(batch.rank, Some(0), "{name}");
            batches += 1;
            for event in &batch.events {
                match event {
                    KvEvent::Stored(stored) => {
                        assert_eq!(stored.block_size, 32);
                        assert_eq!(stored.tokens.len(), stored.hashes.len() * 32);
                        assert!(stored.indexable_group);
                        assert!(!stored.opaque_tokens);
                        assert!(stored.extras.iter().all(|extra| !extra.unknown));
                        assert!(stored.extras.iter().all(|extra| extra.items.is_empty()));
                        blocks += stored.hashes.len();
                        salted += usize::from(stored.extras.iter().any(|e| e.salt.is_some()));
                        adapters.extend(stored.lora_name.clone());
                    }
                    KvEvent::Removed(gone) => removed += gone.hashes.len(),
                    KvEvent::Cleared => cleared += 1,
                }
            }
        }
        println!(
            "{name}: {batches} batches, {blocks} blocks stored ({salted} salted stores), \
             {removed} removed, {cleared} clears, adapters {adapters:?}"
        );
        assert!(batches > 0 && blocks > 0, "{name} holds no events");
    }
}
