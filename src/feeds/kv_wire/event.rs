//! One event: a tagged array or a map, into our own words.

use super::SkipReason;
use super::extras::{self, Keys};
use super::reader::{Broken, Head, Reader};
use crate::routing::event::{EngineHash, KvEvent, Medium, Removed, Stored};

/// Why an event gave nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Its bytes cannot be followed any further.
    Broken,
    /// It is well framed but makes no sense.
    Odd(SkipReason),
}

impl From<Broken> for Fault {
    fn from(_: Broken) -> Self {
        Self::Broken
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Stored,
    Removed,
    Cleared,
}

impl Kind {
    fn of(tag: &[u8]) -> Option<Self> {
        match tag {
            b"BlockStored" => Some(Self::Stored),
            b"BlockRemoved" => Some(Self::Removed),
            b"AllBlocksCleared" => Some(Self::Cleared),
            _ => None,
        }
    }
}

/// The fields we know, by meaning; the wire may give them in any order.
#[derive(Clone, Copy)]
enum Field {
    Hashes,
    Parent,
    Tokens,
    BlockSize,
    Medium,
    /// The adapter's name; some SGLang releases put a map with the salt in its place.
    LoraName,
    ExtraKeys,
    /// The cache group; Dynamo puts multimodal infos in its place.
    Group,
    GroupKind,
    Salt,
    Ignored,
}

/// Fields of an array event by position, after the type.
const STORED: [Field; 10] = [
    Field::Hashes,
    Field::Parent,
    Field::Tokens,
    Field::BlockSize,
    // The adapter's number: local to a process, so it names nothing.
    Field::Ignored,
    Field::Medium,
    Field::LoraName,
    Field::ExtraKeys,
    Field::Group,
    Field::GroupKind,
];
const REMOVED: [Field; 3] = [Field::Hashes, Field::Medium, Field::Group];

impl Field {
    fn of(key: &[u8]) -> Self {
        match key {
            b"block_hashes" => Self::Hashes,
            b"parent_block_hash" => Self::Parent,
            b"token_ids" => Self::Tokens,
            b"block_size" => Self::BlockSize,
            b"medium" => Self::Medium,
            b"lora_name" => Self::LoraName,
            b"extra_keys" => Self::ExtraKeys,
            b"group_idx" => Self::Group,
            b"kv_cache_spec_kind" => Self::GroupKind,
            b"cache_salt" => Self::Salt,
            _ => Self::Ignored,
        }
    }
}

/// What an event said so far.
#[derive(Default)]
struct Fields<'a> {
    hashes: Option<Vec<EngineHash>>,
    parent: Option<EngineHash>,
    tokens: Vec<u32>,
    opaque_tokens: bool,
    block_size: u32,
    medium: Option<Medium>,
    lora_name: Option<&'a str>,
    /// Where the extra keys begin: they are read last, since the adapter's name says how.
    extra_keys: Option<Reader<'a>>,
    salt: Option<&'a str>,
    /// Something that our keys would have to cover has a shape we do not know.
    unknown_keys: bool,
    group: Option<u32>,
    group_kind: Option<&'a [u8]>,
    /// The first field that made no sense.
    odd: Option<SkipReason>,
}

/// Reads one event. After [`Fault::Odd`] the reader stands somewhere inside it.
pub(super) fn read(reader: &mut Reader<'_>) -> Result<KvEvent, Fault> {
    match reader.head()? {
        Head::Array(n) if n > 0 => read_array(reader, n),
        Head::Map(n) => read_map(reader, n),
        _ => Err(Fault::Odd(SkipReason::Untyped)),
    }
}

fn read_array(reader: &mut Reader<'_>, n: usize) -> Result<KvEvent, Fault> {
    let Head::Text(tag) = reader.head()? else {
        return Err(Fault::Odd(SkipReason::Untyped));
    };
    let kind = Kind::of(tag).ok_or(Fault::Odd(SkipReason::UnknownType))?;
    let layout: &[Field] = match kind {
        Kind::Stored => &STORED,
        Kind::Removed => &REMOVED,
        Kind::Cleared => &[],
    };
    let mut fields = Fields::default();
    for position in 0..n - 1 {
        fields.take(*layout.get(position).unwrap_or(&Field::Ignored), reader)?;
    }
    fields.finish(kind)
}

fn read_map(reader: &mut Reader<'_>, n: usize) -> Result<KvEvent, Fault> {
    let mut fields = Fields::default();
    let mut tag = None;
    for _ in 0..n {
        let Head::Text(key) = reader.head()? else {
            return Err(Fault::Odd(SkipReason::Untyped));
        };
        if key == b"type" {
            let Head::Text(text) = reader.head()? else {
                return Err(Fault::Odd(SkipReason::Untyped));
            };
            tag = Some(text);
        } else {
            fields.take(Field::of(key), reader)?;
        }
    }
    let tag = tag.ok_or(Fault::Odd(SkipReason::Untyped))?;
    let kind = Kind::of(tag).ok_or(Fault::Odd(SkipReason::UnknownType))?;
    fields.finish(kind)
}

impl<'a> Fields<'a> {
    /// Reads one field's value. One that makes no sense is noted and passed over:
    /// whether it matters depends on the type, which a map may name last.
    fn take(&mut self, field: Field, reader: &mut Reader<'a>) -> Result<(), Broken> {
        let start = *reader;
        match self.read(field, reader) {
            Ok(()) => Ok(()),
            Err(Fault::Broken) => Err(Broken),
            Err(Fault::Odd(reason)) => {
                self.odd.get_or_insert(reason);
                *reader = start;
                reader.skip()
            }
        }
    }

    fn read(&mut self, field: Field, reader: &mut Reader<'a>) -> Result<(), Fault> {
        match field {
            Field::Hashes => self.hashes = Some(hashes(reader)?),
            Field::Parent => {
                self.parent = match reader.head()? {
                    Head::Nil => None,
                    head => Some(hash(head).ok_or(Fault::Odd(SkipReason::Parent))?),
                }
            }
            Field::Tokens => self.read_tokens(reader)?,
            Field::BlockSize => {
                let size = number(reader, SkipReason::BlockSize)?;
                self.block_size = size.unwrap_or(0);
            }
            Field::Medium => self.medium = text(reader)?.map(medium),
            Field::LoraName => self.read_lora_name(reader)?,
            Field::ExtraKeys => {
                self.extra_keys = Some(*reader);
                reader.skip()?;
            }
            Field::Group => self.read_group(reader)?,
            Field::GroupKind => self.group_kind = text(reader)?.map(str::as_bytes),
            Field::Salt => self.salt = text(reader)?,
            Field::Ignored => reader.skip()?,
        }
        Ok(())
    }

    /// Ids that are not small numbers (pairs of SGLang's EAGLE, strings of TensorRT-LLM)
    /// leave the blocks resident but without a key of ours.
    fn read_tokens(&mut self, reader: &mut Reader<'a>) -> Result<(), Fault> {
        let n = match reader.head()? {
            Head::Nil => return Ok(()),
            Head::Array(n) => n,
            _ => return Err(Fault::Odd(SkipReason::Tokens)),
        };
        // `n` is no more than the bytes left.
        let mut tokens = Vec::with_capacity(n);
        for _ in 0..n {
            if let Some(id) = reader.id() {
                tokens.push(id);
                continue;
            }
            let value = *reader;
            match reader.head()? {
                Head::Unsigned(id) => match u32::try_from(id) {
                    Ok(id) => tokens.push(id),
                    Err(_) => self.opaque_tokens = true,
                },
                Head::Array(_) | Head::Map(_) => {
                    self.opaque_tokens = true;
                    *reader = value;
                    reader.skip()?;
                }
                _ => self.opaque_tokens = true,
            }
        }
        if self.opaque_tokens {
            tokens = Vec::new();
        }
        self.tokens = tokens;
        Ok(())
    }

    fn read_lora_name(&mut self, reader: &mut Reader<'a>) -> Result<(), Fault> {
        let Head::Map(n) = reader.peek()? else {
            self.lora_name = text(reader)?;
            return Ok(());
        };
        reader.head()?;
        for _ in 0..n {
            match reader.head()? {
                Head::Text(b"cache_salt") => self.salt = text(reader)?,
                Head::Array(_) | Head::Map(_) => return Err(Fault::Odd(SkipReason::Attribute)),
                _ => reader.skip()?,
            }
        }
        Ok(())
    }

    fn read_group(&mut self, reader: &mut Reader<'a>) -> Result<(), Fault> {
        if let Head::Array(n) = reader.peek()? {
            self.unknown_keys |= n > 0;
            reader.skip()?;
            return Ok(());
        }
        self.group = number(reader, SkipReason::Attribute)?;
        Ok(())
    }

    fn finish(self, kind: Kind) -> Result<KvEvent, Fault> {
        if kind == Kind::Cleared {
            return Ok(KvEvent::Cleared);
        }
        if let Some(reason) = self.odd {
            return Err(Fault::Odd(reason));
        }
        let hashes = self.hashes.ok_or(Fault::Odd(SkipReason::Hashes))?;
        // Events that name no medium are about the accelerator's pool.
        let medium = self.medium.unwrap_or(Medium::Gpu);
        if kind == Kind::Removed {
            return Ok(KvEvent::Removed(Removed {
                hashes,
                medium,
                group: self.group,
            }));
        }
        let extras = extras::read(&Keys {
            extra_keys: self.extra_keys,
            lora_name: self.lora_name,
            salt: self.salt,
            starts_sequence: self.parent.is_none(),
            unknown: self.unknown_keys,
            n_blocks: hashes.len(),
        });
        Ok(KvEvent::Stored(Stored {
            hashes,
            parent: self.parent,
            tokens: self.tokens,
            opaque_tokens: self.opaque_tokens,
            block_size: self.block_size,
            lora_name: self.lora_name.map(str::to_owned),
            extras,
            medium,
            group: self.group,
            indexable_group: match self.group_kind {
                Some(kind) => matches!(
                    kind,
                    b"full_attention" | b"mla_attention" | b"sink_full_attention"
                ),
                // Before vLLM 0.22 the kind is not said: then the first group is the one with full attention.
                None => matches!(self.group, None | Some(0)),
            },
        }))
    }
}

fn hashes(reader: &mut Reader<'_>) -> Result<Vec<EngineHash>, Fault> {
    let Head::Array(n) = reader.head()? else {
        return Err(Fault::Odd(SkipReason::Hashes));
    };
    // `n` is no more than the bytes left.
    let mut hashes = Vec::with_capacity(n);
    for _ in 0..n {
        hashes.push(hash(reader.head()?).ok_or(Fault::Odd(SkipReason::Hashes))?);
    }
    Ok(hashes)
}

/// Signed and unsigned views of one hash are equal by two's complement. Of a digest
/// the last eight bytes, big-endian, are taken: vLLM's integer view of it.
fn hash(head: Head<'_>) -> Option<EngineHash> {
    match head {
        Head::Unsigned(value) => Some(EngineHash(value)),
        Head::Negative(value) => Some(EngineHash(value.cast_unsigned())),
        Head::Binary(digest) if !digest.is_empty() => {
            let folded = digest
                .iter()
                .fold(0_u64, |folded, byte| (folded << 8) | u64::from(*byte));
            Some(EngineHash(folded))
        }
        _ => None,
    }
}

fn number(reader: &mut Reader<'_>, reason: SkipReason) -> Result<Option<u32>, Fault> {
    match reader.head()? {
        Head::Nil => Ok(None),
        Head::Unsigned(value) => u32::try_from(value)
            .map(Some)
            .map_err(|_| Fault::Odd(reason)),
        _ => Err(Fault::Odd(reason)),
    }
}

fn text<'a>(reader: &mut Reader<'a>) -> Result<Option<&'a str>, Fault> {
    match reader.head()? {
        Head::Nil => Ok(None),
        Head::Text(bytes) => std::str::from_utf8(bytes)
            .map(Some)
            .map_err(|_| Fault::Odd(SkipReason::Attribute)),
        _ => Err(Fault::Odd(SkipReason::Attribute)),
    }
}

fn medium(name: &str) -> Medium {
    if name.eq_ignore_ascii_case("gpu") {
        Medium::Gpu
    } else if name.eq_ignore_ascii_case("cpu") || name.eq_ignore_ascii_case("cpu_pinned") {
        Medium::Cpu
    } else {
        Medium::Storage
    }
}
