//! What a block's hash covers besides its tokens, out of the untagged `extra_keys`.
//!
//! The engine writes them in the order adapter, multimodal items, salt, prompt
//! embeddings, and on the wire nothing says which is which: the adapter's name is
//! stripped once from the front, and a bare string that remains in the first block of
//! a sequence is the salt. Measured right in every combination of adapter and salt.

use super::reader::{Broken, Head, Reader};
use crate::routing::event::BlockExtra;

/// All that says how the extra keys of one store are to be read.
pub(super) struct Keys<'a> {
    /// Stands before the value, if the event has one.
    pub(super) extra_keys: Option<Reader<'a>>,
    pub(super) lora_name: Option<&'a str>,
    /// The salt, where the engine names it as such (SGLang).
    pub(super) salt: Option<&'a str>,
    /// The first block of the store is the first of its sequence.
    pub(super) starts_sequence: bool,
    /// The event has keys of a shape we do not know.
    pub(super) unknown: bool,
    pub(super) n_blocks: usize,
}

/// One entry a block, or none at all when no block has any.
pub(super) fn read(keys: &Keys<'_>) -> Vec<BlockExtra> {
    let mut extras = match keys.extra_keys {
        None => Vec::new(),
        // The value was passed over once, so its framing holds.
        Some(mut reader) => list(&mut reader, keys).unwrap_or_else(|Broken| all_unknown(keys)),
    };
    if keys.unknown {
        extras = all_unknown(keys);
    }
    if let (Some(salt), true) = (keys.salt, keys.starts_sequence) {
        if extras.is_empty() {
            extras.resize(keys.n_blocks, BlockExtra::default());
        }
        if let Some(first) = extras.first_mut() {
            first.salt = Some(salt.to_owned());
        }
    }
    extras
}

fn unknown() -> BlockExtra {
    BlockExtra {
        unknown: true,
        ..BlockExtra::default()
    }
}

fn all_unknown(keys: &Keys<'_>) -> Vec<BlockExtra> {
    vec![unknown(); keys.n_blocks]
}

fn list(reader: &mut Reader<'_>, keys: &Keys<'_>) -> Result<Vec<BlockExtra>, Broken> {
    let n = match reader.head()? {
        Head::Nil => return Ok(Vec::new()),
        Head::Array(n) => n,
        _ => return Ok(all_unknown(keys)),
    };
    // Most stores have `nil` for every block: then nothing is made at all.
    let mut extras = Vec::new();
    for block in 0..n.min(keys.n_blocks) {
        let extra = entry(reader, keys, block == 0 && keys.starts_sequence)?;
        if extra != BlockExtra::default() {
            extras.resize(block, BlockExtra::default());
            extras.push(extra);
        }
    }
    if !extras.is_empty() {
        // Blocks that the list leaves out may have keys all the same.
        extras.resize(n.min(keys.n_blocks), BlockExtra::default());
        extras.resize(keys.n_blocks, unknown());
    }
    Ok(extras)
}

fn entry(reader: &mut Reader<'_>, keys: &Keys<'_>, first: bool) -> Result<BlockExtra, Broken> {
    let start = *reader;
    let n = match reader.head()? {
        Head::Nil => return Ok(BlockExtra::default()),
        Head::Array(n) => n,
        _ => {
            *reader = start;
            reader.skip()?;
            return Ok(unknown());
        }
    };
    let mut extra = BlockExtra::default();
    for position in 0..n {
        let value = *reader;
        match reader.head()? {
            Head::Text(name)
                if position == 0 && keys.lora_name.map(str::as_bytes) == Some(name) => {}
            Head::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) if !first => extra.items.push((text.to_owned(), None)),
                // Two bare strings in the first block: bare item ids of vLLM up to 0.18,
                // perhaps with a salt. They cannot be told apart.
                Ok(text) if extra.salt.is_none() => extra.salt = Some(text.to_owned()),
                _ => extra.unknown = true,
            },
            Head::Array(2) => match item(reader)? {
                Some(item) => extra.items.push(item),
                None => {
                    extra.unknown = true;
                    *reader = value;
                    reader.skip()?;
                }
            },
            Head::Array(_) | Head::Map(_) => {
                extra.unknown = true;
                *reader = value;
                reader.skip()?;
            }
            // Digests of prompt embeddings, and whatever comes next.
            _ => extra.unknown = true,
        }
    }
    Ok(extra)
}

/// `[id, offset]`; `None` leaves the reader somewhere inside.
fn item(reader: &mut Reader<'_>) -> Result<Option<(String, Option<i64>)>, Broken> {
    let Head::Text(id) = reader.head()? else {
        return Ok(None);
    };
    let Ok(id) = std::str::from_utf8(id) else {
        return Ok(None);
    };
    Ok(match reader.head()? {
        Head::Negative(offset) => Some((id.to_owned(), Some(offset))),
        Head::Unsigned(offset) => i64::try_from(offset)
            .ok()
            .map(|offset| (id.to_owned(), Some(offset))),
        _ => None,
    })
}
