//! The token ids of a store: plain, in pairs, or of a kind that cannot be keyed.
//!
//! SGLang with an EAGLE draft model keys its pages by pairs of neighbours, `(t0, t1), (t1, t2), …`.
//! That is the first of each pair as the content and one more token that the last pair of a
//! page looks ahead to, so it is keyed as a block with a lookahead of one.

use super::SkipReason;
use super::event::Fault;
use super::reader::{Broken, Head, Reader};

/// What stood under `token_ids`.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    /// The ids, of pairs the first ones; empty when they are opaque.
    pub(super) ids: Vec<u32>,
    /// The second of each pair, when there are pairs.
    seconds: Vec<u32>,
    /// Something that is neither a small number nor a pair of such (strings of TensorRT-LLM).
    pub(super) opaque: bool,
}

enum Token {
    Id(u32),
    Pair(u32, u32),
    Opaque,
}

impl Tokens {
    /// Reads the list. Ids that cannot be keyed leave the blocks resident but without a key of ours.
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, Fault> {
        let n = match reader.head()? {
            Head::Nil => return Ok(Self::default()),
            Head::Array(n) => n,
            _ => return Err(Fault::Odd(SkipReason::Tokens)),
        };
        let mut tokens = Self {
            // `n` is no more than the bytes left.
            ids: Vec::with_capacity(n),
            ..Self::default()
        };
        for _ in 0..n {
            if let Some(id) = reader.id() {
                tokens.ids.push(id);
                continue;
            }
            match token(reader)? {
                Token::Id(id) => tokens.ids.push(id),
                Token::Pair(first, second) => {
                    tokens.ids.push(first);
                    tokens.seconds.push(second);
                }
                Token::Opaque => tokens.opaque = true,
            }
        }
        let follow = |(second, next): (&u32, &u32)| second == next;
        let chained = tokens
            .seconds
            .iter()
            .zip(tokens.ids.iter().skip(1))
            .all(follow);
        let paired = tokens.seconds.len() == tokens.ids.len() && chained;
        if tokens.opaque || !(tokens.seconds.is_empty() || paired) {
            return Ok(Self {
                opaque: true,
                ..Self::default()
            });
        }
        Ok(tokens)
    }

    /// The token that each block of pairs looks ahead to; nothing for plain ids.
    pub(super) fn lookahead(&self, block_size: u32) -> Vec<Vec<u32>> {
        let size = usize::try_from(block_size).unwrap_or(usize::MAX);
        if size == 0 {
            return Vec::new();
        }
        let blocks = self.seconds.chunks_exact(size);
        blocks
            .filter_map(|block| block.last().map(|&last| vec![last]))
            .collect()
    }
}

fn token(reader: &mut Reader<'_>) -> Result<Token, Broken> {
    let start = *reader;
    match reader.head()? {
        Head::Unsigned(id) => Ok(u32::try_from(id).map_or(Token::Opaque, Token::Id)),
        Head::Array(2) => {
            if let (Some(first), Some(second)) = (id(reader)?, id(reader)?) {
                return Ok(Token::Pair(first, second));
            }
            *reader = start;
            reader.skip()?;
            Ok(Token::Opaque)
        }
        Head::Array(_) | Head::Map(_) => {
            *reader = start;
            reader.skip()?;
            Ok(Token::Opaque)
        }
        _ => Ok(Token::Opaque),
    }
}

/// One id; `None` may leave the reader inside another value.
pub(super) fn id(reader: &mut Reader<'_>) -> Result<Option<u32>, Broken> {
    match reader.head()? {
        Head::Unsigned(id) => Ok(u32::try_from(id).ok()),
        _ => Ok(None),
    }
}
