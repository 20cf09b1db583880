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
    /// The tokens after each block that its hash covers, one list a block; empty when it covers none.
    pub(super) lookahead: Vec<Vec<u32>>,
    /// Stands before the multimodal items of the blocks, where they are apart from the extra keys.
    pub(super) items: Option<Reader<'a>>,
}

/// One entry a block, or none at all when no block has any.
pub(super) fn read(mut keys: Keys<'_>) -> Vec<BlockExtra> {
    let mut extras = match keys.extra_keys {
        None => Vec::new(),
        // The value was passed over once, so its framing holds.
        Some(mut reader) => list(&mut reader, &keys).unwrap_or_else(|Broken| all_unknown(&keys)),
    };
    let lookahead = std::mem::take(&mut keys.lookahead);
    let odd_lookahead = !lookahead.is_empty() && lookahead.len() != keys.n_blocks;
    if keys.unknown || odd_lookahead {
        return all_unknown(&keys);
    }
    if let (Some(salt), true) = (keys.salt, keys.starts_sequence) {
        extras.resize(keys.n_blocks, BlockExtra::default());
        if let Some(first) = extras.first_mut() {
            first.salt = Some(salt.to_owned());
        }
    }
    if !lookahead.is_empty() {
        extras.resize(keys.n_blocks, BlockExtra::default());
        for (extra, ahead) in extras.iter_mut().zip(lookahead) {
            extra.lookahead = ahead;
        }
    }
    if let Some(mut reader) = keys.items {
        mark_items(&mut reader, &mut extras, keys.n_blocks).unwrap_or_else(|Broken| {
            extras = all_unknown(&keys);
        });
    }
    extras
}

/// Blocks with items named apart from the extra keys are left without a key: no prompt with such
/// items is ever cut into blocks here, and without them two images would have one key.
fn mark_items(
    reader: &mut Reader<'_>,
    extras: &mut Vec<BlockExtra>,
    n_blocks: usize,
) -> Result<(), Broken> {
    let n = match reader.head()? {
        Head::Nil => return Ok(()),
        Head::Array(n) => n,
        _ => return Err(Broken),
    };
    // `n` is no more than the bytes left.
    let mut with_items = Vec::with_capacity(n);
    for _ in 0..n {
        with_items.push(!matches!(reader.peek()?, Head::Nil | Head::Array(0)));
        reader.skip()?;
    }
    if !with_items.contains(&true) {
        return Ok(());
    }
    extras.resize(n_blocks, BlockExtra::default());
    // A list of another length does not say whose items they are.
    if n != n_blocks {
        with_items = vec![true; n_blocks];
    }
    for (extra, with_items) in extras.iter_mut().zip(with_items) {
        extra.unknown |= with_items;
    }
    Ok(())
}

/// Whether a value of unknown meaning is a list with Dynamo's multimodal infos.
pub(super) fn has_dynamos_infos(mut reader: Reader<'_>) -> Result<bool, Broken> {
    let Head::Array(n) = reader.head()? else {
        return Ok(false);
    };
    for _ in 0..n {
        let value = reader;
        if let Head::Map(1..) = reader.head()?
            && reader.peek()? == Head::Text(b"mm_objects")
        {
            return Ok(true);
        }
        reader = value;
        reader.skip()?;
    }
    Ok(false)
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
        let first = block == 0 && keys.starts_sequence;
        let ahead = keys.lookahead.get(block).map_or(&[][..], Vec::as_slice);
        let extra = entry_ahead(reader, keys, first, ahead)?;
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

/// An entry that ends with the tokens its hash looks ahead to: `[E, next tokens…]`, where `E` is the
/// entry as it is without. Any other is read as it stands.
fn entry_ahead(
    reader: &mut Reader<'_>,
    keys: &Keys<'_>,
    first: bool,
    ahead: &[u32],
) -> Result<BlockExtra, Broken> {
    let start = *reader;
    if !ahead.is_empty() && reader.head()? == Head::Array(ahead.len() + 1) {
        let mut inner = *reader;
        reader.skip()?;
        let mut equal = true;
        for &token in ahead {
            equal &= reader.peek()? == Head::Unsigned(u64::from(token));
            reader.skip()?;
        }
        if equal {
            return entry(&mut inner, keys, first);
        }
    }
    *reader = start;
    entry(reader, keys, first)
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
