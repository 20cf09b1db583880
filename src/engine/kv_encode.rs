//! How do KV events look on the wire? msgpack in the two dialects vLLM has spoken.
//!
//! A batch is always `[time, events, rank]`. Up to 0.23 an event is an array with its name in front and every
//! field present; since 0.24 it is a map with `type`, without the fields that have their default.

use std::io;

use rmp::encode::{write_array_len, write_f64, write_map_len, write_nil, write_str, write_uint};

use crate::routing::event::{EngineHash, KvEvent, Removed, Stored};

/// The dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Encoding {
    /// vLLM 0.24 and later.
    Map,
    /// vLLM 0.23.
    Array,
}

impl Encoding {
    /// It is one of vLLM's.
    pub(super) const fn is_vllm(self) -> bool {
        match self {
            Self::Map | Self::Array => true,
        }
    }
}

/// Encodes batches of one rank.
pub(super) struct Encoder {
    pub(super) encoding: Encoding,
    /// Adapters by number, counted from 1: vLLM's deprecated `lora_id`.
    pub(super) adapters: Vec<String>,
    /// Whose events they are.
    pub(super) rank: u32,
}

type Written = io::Result<()>;

/// A type that no release has.
const ODD_EVENT: &str = "BlockTranscoded";
const MEDIUM: &str = "GPU";
const SPEC_KIND: &str = "full_attention";

impl Encoder {
    /// One batch, `odd` with an event before the others that no reader knows. `time` is in seconds since the epoch.
    ///
    /// # Errors
    /// Never in practice: memory is written.
    pub(super) fn batch(&self, events: &[KvEvent], odd: bool, time: f64) -> io::Result<Vec<u8>> {
        let tokens: usize = events
            .iter()
            .map(|event| match event {
                KvEvent::Stored(stored) => stored.tokens.len() + 2 * stored.hashes.len(),
                _ => 8,
            })
            .sum();
        let mut out = Vec::with_capacity(64 + 5 * tokens);
        let out_ref = &mut out;
        write_array_len(out_ref, 3)?;
        write_f64(out_ref, time)?;
        write_array_len(out_ref, length(events.len() + usize::from(odd)))?;
        if odd {
            self.head(out_ref, ODD_EVENT, 1)?;
            self.key(out_ref, "block_hashes")?;
            hashes(out_ref, &[])?;
        }
        for event in events {
            match event {
                KvEvent::Stored(stored) => self.stored(out_ref, stored)?,
                KvEvent::Removed(removed) => self.removed(out_ref, removed)?,
                KvEvent::Cleared => self.head(out_ref, "AllBlocksCleared", 0)?,
            }
        }
        write_uint(out_ref, self.rank.into())?;
        Ok(out)
    }

    /// The name of an event that has `fields` more.
    fn head(&self, out: &mut Vec<u8>, name: &str, fields: u32) -> Written {
        match self.encoding {
            Encoding::Map => {
                write_map_len(out, fields + 1)?;
                write_str(out, "type")?;
            }
            Encoding::Array => {
                write_array_len(out, fields + 1)?;
            }
        }
        Ok(write_str(out, name)?)
    }

    /// The name of a field, where the dialect names them.
    fn key(&self, out: &mut Vec<u8>, name: &str) -> Written {
        match self.encoding {
            Encoding::Map => Ok(write_str(out, name)?),
            Encoding::Array => Ok(()),
        }
    }

    fn stored(&self, out: &mut Vec<u8>, stored: &Stored) -> Written {
        // The array has the sliding window as an eleventh field, which is nil here and so left out of the map.
        let fields = match self.encoding {
            Encoding::Map => 10,
            Encoding::Array => 11,
        };
        self.head(out, "BlockStored", fields)?;
        self.key(out, "block_hashes")?;
        hashes(out, &stored.hashes)?;
        self.key(out, "parent_block_hash")?;
        optional(out, stored.parent.map(|hash| hash.0))?;
        self.key(out, "token_ids")?;
        write_array_len(out, length(stored.tokens.len()))?;
        for &token in &stored.tokens {
            write_uint(out, token.into())?;
        }
        self.key(out, "block_size")?;
        write_uint(out, stored.block_size.into())?;
        self.key(out, "lora_id")?;
        optional(out, self.adapter_number(stored.lora_name.as_deref()))?;
        self.key(out, "medium")?;
        write_str(out, MEDIUM)?;
        self.key(out, "lora_name")?;
        match &stored.lora_name {
            Some(name) => write_str(out, name)?,
            None => write_nil(out)?,
        }
        self.key(out, "extra_keys")?;
        extra_keys(out, stored)?;
        self.key(out, "group_idx")?;
        optional(out, stored.group.map(u64::from))?;
        self.key(out, "kv_cache_spec_kind")?;
        write_str(out, SPEC_KIND)?;
        match self.encoding {
            Encoding::Map => Ok(()),
            Encoding::Array => write_nil(out),
        }
    }

    fn removed(&self, out: &mut Vec<u8>, removed: &Removed) -> Written {
        self.head(out, "BlockRemoved", 3)?;
        self.key(out, "block_hashes")?;
        hashes(out, &removed.hashes)?;
        self.key(out, "medium")?;
        write_str(out, MEDIUM)?;
        self.key(out, "group_idx")?;
        optional(out, removed.group.map(u64::from))
    }

    fn adapter_number(&self, name: Option<&str>) -> Option<u64> {
        let at = self
            .adapters
            .iter()
            .position(|adapter| Some(adapter.as_str()) == name)?;
        Some(at as u64 + 1)
    }
}

/// One entry a block: adapter and salt untagged, as every release publishes them.
fn extra_keys(out: &mut Vec<u8>, stored: &Stored) -> Written {
    write_array_len(out, length(stored.hashes.len()))?;
    for at in 0..stored.hashes.len() {
        let salt = stored
            .extras
            .get(at)
            .and_then(|extra| extra.salt.as_deref());
        let keys = [stored.lora_name.as_deref(), salt];
        let keys = keys.iter().flatten();
        match keys.clone().count() {
            0 => write_nil(out)?,
            count => {
                write_array_len(out, length(count))?;
                for key in keys {
                    write_str(out, key)?;
                }
            }
        }
    }
    Ok(())
}

fn hashes(out: &mut Vec<u8>, hashes: &[EngineHash]) -> Written {
    write_array_len(out, length(hashes.len()))?;
    for hash in hashes {
        write_uint(out, hash.0)?;
    }
    Ok(())
}

fn optional(out: &mut Vec<u8>, value: Option<u64>) -> Written {
    match value {
        Some(value) => {
            write_uint(out, value)?;
        }
        None => write_nil(out)?,
    }
    Ok(())
}

fn length(items: usize) -> u32 {
    u32::try_from(items).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::event::{BlockExtra, Medium};

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn encoder(encoding: Encoding) -> Encoder {
        Encoder {
            encoding,
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
}
