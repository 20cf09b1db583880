//! KV events off the wire: msgpack of every dialect into our own events; total on any bytes.
//!
//! vLLM up to 0.23, older SGLang and their kin send an event as an array that starts
//! with its type; newer ones send a map. Fields come and go between releases. So each
//! event is read by itself, in whichever shape it has: missing and unknown fields are
//! no matter, an event that makes no sense is counted and passed over, and only broken
//! msgpack framing costs the rest of its batch.
//!
//! Measured on one core (release build, blocks of 16 tokens): 0.5 µs for an array event of 8
//! blocks, 0.7 µs as a map, 5.3 µs for 128 blocks; 12 to 24 million blocks a second.

mod event;
mod extras;
mod reader;
mod tokens;

#[cfg(test)]
mod tests;

use crate::routing::event::KvEvent;
use event::Fault;
use reader::{Broken, Head, Reader};

/// Why an event was passed over. A closed set: these are metric labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// A type that this version does not know; nothing is lost that could be used.
    UnknownType,
    /// Neither an array that starts with its type nor a map that has one.
    Untyped,
    /// No block hashes, or something that is no hash among them.
    Hashes,
    /// The parent is no hash.
    Parent,
    /// The token ids are no list.
    Tokens,
    /// The block size is no count.
    BlockSize,
    /// The medium, adapter name, group or group kind has a type of its own.
    Attribute,
    /// The msgpack framing broke here: this event and the rest of the batch are lost.
    Framing,
}

impl SkipReason {
    /// All of them, in the order of their discriminants.
    pub const ALL: [Self; 8] = [
        Self::UnknownType,
        Self::Untyped,
        Self::Hashes,
        Self::Parent,
        Self::Tokens,
        Self::BlockSize,
        Self::Attribute,
        Self::Framing,
    ];

    /// The metric label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UnknownType => "unknown_type",
            Self::Untyped => "untyped",
            Self::Hashes => "hashes",
            Self::Parent => "parent",
            Self::Tokens => "tokens",
            Self::BlockSize => "block_size",
            Self::Attribute => "attribute",
            Self::Framing => "framing",
        }
    }
}

/// Events of one batch that were passed over, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped([u64; SkipReason::ALL.len()]);

impl Skipped {
    fn add(&mut self, reason: SkipReason, n: u64) {
        if let Some(count) = self.0.get_mut(reason as usize) {
            *count = count.saturating_add(n);
        }
    }

    /// The reasons that occurred and how many events each cost.
    pub fn iter(&self) -> impl Iterator<Item = (SkipReason, u64)> + '_ {
        SkipReason::ALL
            .into_iter()
            .zip(self.0)
            .filter(|(_, n)| *n > 0)
    }

    /// Events of known types that were lost: the view may now differ from the engine.
    pub fn lost(&self) -> u64 {
        self.iter()
            .filter(|(reason, _)| *reason != SkipReason::UnknownType)
            .map(|(_, n)| n)
            .sum()
    }
}

/// One batch: what an engine's step did to its cache.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// The engine's clock when it was made, in seconds of Unix time.
    pub ts: f64,
    /// The data-parallel rank it came from, if it says.
    pub rank: Option<u32>,
    /// What could be read, in order.
    pub events: Vec<KvEvent>,
    /// What could not.
    pub skipped: Skipped,
}

/// Why a payload is no batch at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It is not an array `[ts, events, …]` nor a map with these keys.
    #[error("payload is no event batch: neither an array of two or more elements nor a map")]
    Shape,
    /// The time is not a number (a payload of another kind).
    #[error("payload is no event batch: its time is not a number")]
    Time,
    /// There is no list of events.
    #[error("payload is no event batch: it has no list of events")]
    Events,
    /// It ends, or its framing breaks, before its events.
    #[error("payload is cut off or not msgpack")]
    Framing,
}

impl From<Broken> for DecodeError {
    fn from(_: Broken) -> Self {
        Self::Framing
    }
}

/// Reads one batch. Bytes after it are ignored. Memory is bounded by the payload's
/// own length, whatever lengths it claims.
///
/// # Errors
/// When the payload is no batch. Bad events inside one are not errors: see [`Batch::skipped`].
pub fn decode(payload: &[u8]) -> Result<Batch, DecodeError> {
    let mut reader = Reader::new(payload);
    match reader.head()? {
        Head::Array(n) if n >= 2 => array_batch(&mut reader, n),
        Head::Map(n) => map_batch(&mut reader, n),
        _ => Err(DecodeError::Shape),
    }
}

fn array_batch(reader: &mut Reader<'_>, n: usize) -> Result<Batch, DecodeError> {
    let mut batch = Batch {
        ts: time(reader)?,
        ..Batch::default()
    };
    let whole = events(reader, &mut batch)?;
    if whole && n > 2 {
        batch.rank = rank(reader);
    }
    Ok(batch)
}

/// No engine is known to send its batch as a map, but it is one struct option away.
fn map_batch(reader: &mut Reader<'_>, n: usize) -> Result<Batch, DecodeError> {
    let mut batch = Batch::default();
    let (mut timed, mut listed) = (false, false);
    for _ in 0..n {
        let pair = map_pair(reader, &mut batch, &mut timed, &mut listed);
        // A batch that breaks after its events is still worth them.
        match pair {
            Ok(true) => {}
            Ok(false) => return Ok(batch),
            Err(DecodeError::Framing) if listed => return Ok(batch),
            Err(error) => return Err(error),
        }
    }
    match (timed, listed) {
        (_, false) => Err(DecodeError::Events),
        (false, true) => Err(DecodeError::Time),
        (true, true) => Ok(batch),
    }
}

/// Reads one key and its value; `false` when the events broke off and nothing after them can be read.
fn map_pair(
    reader: &mut Reader<'_>,
    batch: &mut Batch,
    timed: &mut bool,
    listed: &mut bool,
) -> Result<bool, DecodeError> {
    let Head::Text(key) = reader.head()? else {
        return Err(DecodeError::Shape);
    };
    match key {
        b"ts" => {
            batch.ts = time(reader)?;
            *timed = true;
        }
        b"events" => {
            *listed = true;
            return events(reader, batch);
        }
        b"data_parallel_rank" if matches!(reader.peek()?, Head::Unsigned(_) | Head::Nil) => {
            batch.rank = rank(reader);
        }
        _ => reader.skip()?,
    }
    Ok(true)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "seconds of Unix time fit a float's 53 bits"
)]
fn time(reader: &mut Reader<'_>) -> Result<f64, DecodeError> {
    match reader.head()? {
        Head::Float(ts) => Ok(ts),
        Head::Unsigned(ts) => Ok(ts as f64),
        Head::Negative(ts) => Ok(ts as f64),
        _ => Err(DecodeError::Time),
    }
}

/// A rank that is no small number is no rank; bytes that break here cost nothing, the events being read.
fn rank(reader: &mut Reader<'_>) -> Option<u32> {
    match reader.head() {
        Ok(Head::Unsigned(rank)) => u32::try_from(rank).ok(),
        _ => None,
    }
}

/// Reads the list of events; `false` when the framing broke in it and nothing after it can be read.
fn events(reader: &mut Reader<'_>, batch: &mut Batch) -> Result<bool, DecodeError> {
    let Head::Array(n) = reader.head()? else {
        return Err(DecodeError::Events);
    };
    // No capacity up front: `n` is a claim, and most batches hold one to three events.
    for done in 0..n {
        let start = *reader;
        let skipped = match event::read(reader) {
            Ok(event) => {
                batch.events.push(event);
                continue;
            }
            Err(Fault::Odd(reason)) => {
                *reader = start;
                reader.skip().map(|()| reason)
            }
            Err(Fault::Broken) => Err(Broken),
        };
        match skipped {
            Ok(reason) => batch.skipped.add(reason, 1),
            Err(Broken) => {
                batch.skipped.add(SkipReason::Framing, (n - done) as u64);
                return Ok(false);
            }
        }
    }
    Ok(true)
}
