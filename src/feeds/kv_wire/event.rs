//! One event: a tagged array or a map, into our own words.

use super::SkipReason;
use super::extras::{self, Keys};
use super::reader::{Broken, Head, Reader};
use super::tokens::{self, Tokens};
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
    /// The adapter's number: local to a process, so it names nothing, but it says that there is one.
    LoraId,
    Medium,
    /// The adapter's name; some SGLang releases put a map with the salt in its place.
    LoraName,
    ExtraKeys,
    /// The cache group; Dynamo puts multimodal infos in its place.
    Group,
    GroupKind,
    Salt,
    /// `REMOTE`: not on the engine's own machine.
    Locality,
    /// Tokens after each block that its hash covers.
    Lookahead,
    /// What multimodal items each block overlaps: `mm_keys` of TensorRT-LLM, Dynamo's infos.
    Items,
    /// Behind all fields that have a place; Dynamo's infos may be here.
    Trailing,
    Ignored,
}

/// Fields of an array event by position, after the type.
const STORED: [Field; 10] = [
    Field::Hashes,
    Field::Parent,
    Field::Tokens,
    Field::BlockSize,
    Field::LoraId,
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
            b"lora_id" => Self::LoraId,
            b"medium" => Self::Medium,
            b"lora_name" => Self::LoraName,
            b"extra_keys" => Self::ExtraKeys,
            b"group_idx" => Self::Group,
            b"kv_cache_spec_kind" => Self::GroupKind,
            b"cache_salt" => Self::Salt,
            b"locality" => Self::Locality,
            b"lookahead_token_ids" => Self::Lookahead,
            b"mm_keys" | b"block_mm_infos" => Self::Items,
            // `ownership` says which of several slower tiers, `session_id` whose request it was.
            _ => Self::Ignored,
        }
    }
}

/// What an event said so far.
#[derive(Default)]
struct Fields<'a> {
    hashes: Option<Vec<EngineHash>>,
    parent: Option<EngineHash>,
    tokens: Tokens,
    block_size: u32,
    has_adapter: bool,
    medium: Option<Medium>,
    is_remote: bool,
    lookahead: Vec<Vec<u32>>,
    /// Where the items begin: how many blocks there are may be said later.
    items: Option<Reader<'a>>,
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
        fields.take(*layout.get(position).unwrap_or(&Field::Trailing), reader)?;
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
            Field::Tokens => self.tokens = Tokens::read(reader)?,
            Field::BlockSize => {
                let size = number(reader, SkipReason::BlockSize)?;
                self.block_size = size.unwrap_or(0);
            }
            // vLLM's count begins at 1.
            Field::LoraId => {
                self.has_adapter = !matches!(reader.peek()?, Head::Nil | Head::Unsigned(0));
                reader.skip()?;
            }
            Field::Medium => self.medium = text(reader)?.map(medium),
            Field::LoraName => self.read_lora_name(reader)?,
            Field::ExtraKeys => {
                self.extra_keys = Some(*reader);
                reader.skip()?;
            }
            Field::Group => self.read_group(reader)?,
            Field::GroupKind if matches!(reader.peek()?, Head::Array(_)) => {
                self.read_items(reader)?;
            }
            Field::GroupKind => self.group_kind = text(reader)?.map(str::as_bytes),
            Field::Salt => self.salt = text(reader)?,
            Field::Locality => {
                let locality = text(reader)?.unwrap_or_default();
                self.is_remote = locality.eq_ignore_ascii_case("remote");
            }
            Field::Lookahead => self.read_lookahead(reader)?,
            Field::Items => self.read_items(reader)?,
            Field::Trailing if extras::has_dynamos_infos(*reader)? => self.read_items(reader)?,
            Field::Trailing => reader.skip()?,
            Field::Ignored => reader.skip()?,
        }
        Ok(())
    }

    /// One list of tokens a block; anything else is a shape we do not know.
    fn read_lookahead(&mut self, reader: &mut Reader<'a>) -> Result<(), Fault> {
        let start = *reader;
        let n = match reader.head()? {
            Head::Nil => return Ok(()),
            Head::Array(n) => n,
            _ => return self.pass_unknown(start, reader),
        };
        for _ in 0..n {
            let Head::Array(n) = reader.head()? else {
                return self.pass_unknown(start, reader);
            };
            let mut ahead = Vec::with_capacity(n);
            for _ in 0..n {
                let Some(id) = tokens::id(reader)? else {
                    return self.pass_unknown(start, reader);
                };
                ahead.push(id);
            }
            self.lookahead.push(ahead);
        }
        Ok(())
    }

    /// Keys of an unknown shape: the event's blocks cannot be keyed, but it is no broken event.
    fn pass_unknown(&mut self, start: Reader<'a>, reader: &mut Reader<'a>) -> Result<(), Fault> {
        self.unknown_keys = true;
        *reader = start;
        reader.skip()?;
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
        if let Head::Array(_) = reader.peek()? {
            return self.read_items(reader);
        }
        self.group = number(reader, SkipReason::Attribute)?;
        Ok(())
    }

    fn read_items(&mut self, reader: &mut Reader<'a>) -> Result<(), Fault> {
        self.items = Some(*reader);
        reader.skip()?;
        Ok(())
    }

    /// Where the blocks lie. Events that name no medium are about the accelerator's pool; what is
    /// on another machine has to come over a network, whatever it lies on there.
    fn medium(&self) -> Medium {
        if self.is_remote {
            return Medium::Storage;
        }
        self.medium.unwrap_or(Medium::Gpu)
    }

    fn finish(mut self, kind: Kind) -> Result<KvEvent, Fault> {
        if kind == Kind::Cleared {
            return Ok(KvEvent::Cleared);
        }
        if let Some(reason) = self.odd {
            return Err(Fault::Odd(reason));
        }
        let medium = self.medium();
        let hashes = self.hashes.ok_or(Fault::Odd(SkipReason::Hashes))?;
        // Before vLLM 0.14 an adapter has a number and no name: its blocks are not the model's own.
        self.unknown_keys |= self.has_adapter && self.lora_name.is_none();
        if self.lookahead.is_empty() {
            self.lookahead = self.tokens.lookahead(self.block_size);
        }
        if kind == Kind::Removed {
            return Ok(KvEvent::Removed(Removed {
                hashes,
                medium,
                group: self.group,
            }));
        }
        let extras = extras::read(Keys {
            extra_keys: self.extra_keys,
            lora_name: self.lora_name,
            salt: self.salt,
            starts_sequence: self.parent.is_none(),
            unknown: self.unknown_keys,
            lookahead: self.lookahead,
            items: self.items,
            n_blocks: hashes.len(),
        });
        Ok(KvEvent::Stored(Stored {
            hashes,
            parent: self.parent,
            tokens: self.tokens.ids,
            opaque_tokens: self.tokens.opaque,
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
