//! How do KV events look on the wire? msgpack in the dialects of vLLM, SGLang and TensorRT-LLM.
//!
//! A batch is always an array `[time, events, rank]`. An event is an array with its name in front and every field of its
//! release, or a map with `type` and without the fields that have their default.

mod dialect;

use std::io;

use rmp::encode::{
    write_array_len, write_bin, write_f64, write_map_len, write_nil, write_sint, write_str,
    write_uint,
};
use xxhash_rust::xxh3::xxh3_128;

use dialect::Field;
pub use dialect::{Encoding, HashForm};

use crate::routing::event::{EngineHash, KvEvent, Medium, Removed, Stored};

/// Encodes batches of one rank.
pub(super) struct Encoder {
    pub(super) encoding: Encoding,
    pub(super) hashes: HashForm,
    /// Adapters by number, counted from 1: vLLM's deprecated `lora_id`.
    pub(super) adapters: Vec<String>,
    /// Whose events they are.
    pub(super) rank: u32,
}

type Written = io::Result<()>;

/// A type that no release has.
const ODD_EVENT: &str = "BlockTranscoded";

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
        write_array_len(out_ref, if self.encoding.tells_rank() { 3 } else { 2 })?;
        write_f64(out_ref, time)?;
        write_array_len(out_ref, length(events.len() + usize::from(odd)))?;
        if odd {
            self.head(out_ref, ODD_EVENT, 1)?;
            self.key(out_ref, "block_hashes")?;
            self.all_hashes(out_ref, &[])?;
        }
        for event in events {
            match event {
                KvEvent::Stored(stored) => self.stored(out_ref, stored)?,
                KvEvent::Removed(removed) => self.removed(out_ref, removed)?,
                KvEvent::Cleared => self.head(out_ref, "AllBlocksCleared", 0)?,
            }
        }
        if self.encoding.tells_rank() {
            write_uint(out_ref, self.rank.into())?;
        }
        Ok(out)
    }

    /// The name of an event that has `fields` more.
    fn head(&self, out: &mut Vec<u8>, name: &str, fields: usize) -> Written {
        if self.encoding.is_map() {
            write_map_len(out, length(fields + 1))?;
            write_str(out, "type")?;
        } else {
            write_array_len(out, length(fields + 1))?;
        }
        Ok(write_str(out, name)?)
    }

    /// The name of a field, where the dialect names them.
    fn key(&self, out: &mut Vec<u8>, name: &str) -> Written {
        if self.encoding.is_map() {
            write_str(out, name)?;
        }
        Ok(())
    }

    fn stored(&self, out: &mut Vec<u8>, stored: &Stored) -> Written {
        let present = |field: &&Field| !self.omits(**field, stored);
        let fields = self.encoding.stored().iter().filter(present);
        self.head(out, "BlockStored", fields.clone().count())?;
        for &field in fields {
            self.key(out, name(field))?;
            self.stored_field(out, field, stored)?;
        }
        Ok(())
    }

    /// A map leaves out what has its default.
    fn omits(&self, field: Field, stored: &Stored) -> bool {
        let nil = match field {
            Field::LoraName => stored.lora_name.is_none(),
            Field::ExtraKeys | Field::SpecKind => stored.tokens.is_empty(),
            Field::Group => stored.group.is_none(),
            Field::SlidingWindow => sliding_window(stored).is_none(),
            Field::CacheSalt => salt(stored, 0).is_none(),
            _ => false,
        };
        nil && self.encoding.is_map() && self.encoding.omits_nil(field)
    }

    fn stored_field(&self, out: &mut Vec<u8>, field: Field, stored: &Stored) -> Written {
        match field {
            Field::Hashes => self.all_hashes(out, &stored.hashes)?,
            Field::Parent => match stored.parent {
                Some(parent) => self.hash(out, parent)?,
                None => write_nil(out)?,
            },
            Field::Tokens => {
                write_array_len(out, length(stored.tokens.len()))?;
                for &token in &stored.tokens {
                    write_uint(out, token.into())?;
                }
            }
            Field::BlockSize => {
                write_uint(out, stored.block_size.into())?;
            }
            Field::LoraId => optional(out, self.adapter_number(stored.lora_name.as_deref()))?,
            Field::Medium => write_str(out, self.medium(stored.medium))?,
            Field::LoraName => optional_text(out, stored.lora_name.as_deref())?,
            // A store that says only where blocks are now has no tokens and nothing that goes with them.
            Field::ExtraKeys | Field::SpecKind if stored.tokens.is_empty() => write_nil(out)?,
            Field::ExtraKeys => extra_keys(out, stored)?,
            Field::Group => optional(out, stored.group.map(u64::from))?,
            Field::SpecKind => write_str(out, spec_kind(stored))?,
            Field::SlidingWindow => optional(out, sliding_window(stored))?,
            Field::CacheSalt => optional_text(out, salt(stored, 0))?,
        }
        Ok(())
    }

    fn removed(&self, out: &mut Vec<u8>, removed: &Removed) -> Written {
        let fields = self.encoding.removed().iter();
        let omitted = |field: Field| {
            self.encoding.is_map() && field == Field::Group && removed.group.is_none()
        };
        let fields = fields.filter(|field| !omitted(**field));
        self.head(out, "BlockRemoved", fields.clone().count())?;
        for &field in fields {
            self.key(out, name(field))?;
            match field {
                Field::Hashes => self.all_hashes(out, &removed.hashes)?,
                Field::Medium => write_str(out, self.medium(removed.medium))?,
                _ => optional(out, removed.group.map(u64::from))?,
            }
        }
        Ok(())
    }

    const fn medium(&self, medium: Medium) -> &'static str {
        let [cpu, storage] = self.encoding.lower_media();
        match medium {
            Medium::Gpu => "GPU",
            Medium::Cpu => cpu,
            Medium::Storage => storage,
        }
    }

    fn all_hashes(&self, out: &mut Vec<u8>, hashes: &[EngineHash]) -> Written {
        write_array_len(out, length(hashes.len()))?;
        hashes.iter().try_for_each(|&hash| self.hash(out, hash))
    }

    fn hash(&self, out: &mut Vec<u8>, hash: EngineHash) -> Written {
        match self.hashes {
            HashForm::Bytes => write_bin(out, &digest(hash))?,
            HashForm::Int if self.encoding.is_signed() => {
                write_sint(out, hash.0.cast_signed())?;
            }
            HashForm::Int => {
                write_uint(out, hash.0)?;
            }
        }
        Ok(())
    }

    fn adapter_number(&self, name: Option<&str>) -> Option<u64> {
        let at = self
            .adapters
            .iter()
            .position(|adapter| Some(adapter.as_str()) == name)?;
        Some(at as u64 + 1)
    }
}

const fn name(field: Field) -> &'static str {
    match field {
        Field::Hashes => "block_hashes",
        Field::Parent => "parent_block_hash",
        Field::Tokens => "token_ids",
        Field::BlockSize => "block_size",
        Field::LoraId => "lora_id",
        Field::Medium => "medium",
        Field::LoraName => "lora_name",
        Field::ExtraKeys => "extra_keys",
        Field::Group => "group_idx",
        Field::SpecKind => "kv_cache_spec_kind",
        Field::SlidingWindow => "kv_cache_spec_sliding_window",
        Field::CacheSalt => "cache_salt",
    }
}

/// The whole digest of which a hash is the end.
fn digest(hash: EngineHash) -> [u8; 32] {
    let rest = xxh3_128(&hash.0.to_be_bytes());
    let mut bytes = [0; 32];
    let words = [(rest >> 64) as u64, rest as u64, !hash.0, hash.0];
    for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *place = word.to_be_bytes();
    }
    bytes
}

fn salt(stored: &Stored, block: usize) -> Option<&str> {
    stored.extras.get(block)?.salt.as_deref()
}

const fn spec_kind(stored: &Stored) -> &'static str {
    if stored.indexable_group {
        "full_attention"
    } else {
        "sliding_window"
    }
}

/// A group that is not of full attention sees the last block only.
fn sliding_window(stored: &Stored) -> Option<u64> {
    (!stored.indexable_group).then(|| stored.block_size.into())
}

/// One entry a block: adapter and salt untagged, as every release publishes them.
fn extra_keys(out: &mut Vec<u8>, stored: &Stored) -> Written {
    write_array_len(out, length(stored.hashes.len()))?;
    for at in 0..stored.hashes.len() {
        let keys = [stored.lora_name.as_deref(), salt(stored, at)];
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

fn optional(out: &mut Vec<u8>, value: Option<u64>) -> Written {
    match value {
        Some(value) => {
            write_uint(out, value)?;
        }
        None => write_nil(out)?,
    }
    Ok(())
}

fn optional_text(out: &mut Vec<u8>, text: Option<&str>) -> Written {
    match text {
        Some(text) => Ok(write_str(out, text)?),
        None => write_nil(out),
    }
}

fn length(items: usize) -> u32 {
    u32::try_from(items).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
