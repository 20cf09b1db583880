//! LMCache's agent logs: prompts as text. Equal text, cut at equal places, is an equal segment.

use std::path::PathBuf;
use std::time::Duration;

use rustc_hash::FxHashMap;
use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Trace;
use super::files::Lines;
use super::recording::{Call, Recording};
use crate::simulate::prompt::Segment;
use crate::simulate::workload::names::{Kind, name};
use crate::simulate::workload::spec::OpenError;

/// Bytes of English text and code a token, about, with current tokenizers. There is no tokenizer here.
const BYTES_PER_TOKEN: usize = 4;
/// Bytes of a piece: a block of 16 tokens.
const PIECE_BYTES: usize = 16 * BYTES_PER_TOKEN;

/// A line.
#[derive(Debug, Deserialize)]
struct Row {
    /// Microseconds.
    timestamp: u64,
    input: String,
    output: String,
    session_id: String,
}

/// A call, its text no longer kept.
struct Asked {
    at: Duration,
    session: usize,
    prompt: Box<[Segment]>,
    output: u32,
}

/// Reads the calls of all files, in order of time.
pub(super) fn read(trace: &Trace, files: &[PathBuf]) -> Result<Vec<Recording>, OpenError> {
    let mut numbers: FxHashMap<String, usize> = FxHashMap::default();
    let mut calls = Vec::new();
    for file in files {
        let mut lines = Lines::open(file)?;
        while let Some(row) = lines.next_json::<Row>()? {
            let next = numbers.len();
            calls.push(Asked {
                at: Duration::from_micros(row.timestamp),
                session: *numbers.entry(row.session_id).or_insert(next),
                prompt: pieces(&row.input),
                output: tokens(row.output.len()),
            });
        }
    }
    calls.sort_by_key(|call| call.at);
    let mut all: Vec<Recording> = (0..numbers.len() as u64).map(Recording::new).collect();
    // When the answer to each session's latest call should have ended.
    let mut free = vec![Duration::ZERO; all.len()];
    for call in &calls {
        let (Some(recording), Some(free)) = (all.get_mut(call.session), free.get_mut(call.session))
        else {
            continue;
        };
        recording.push(&Call {
            at: call.at,
            think: call.at.saturating_sub(*free),
            prompt: &call.prompt,
            output: call.output,
            prefix: Some(name(Kind::Prefix, call.session as u64, 0)),
        });
        *free = call.at.saturating_add(trace.service.time(call.output));
    }
    Ok(all)
}

/// Tokens of so many bytes; nothing is asked or answered in none.
fn tokens(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BYTES_PER_TOKEN)).map_or(u32::MAX >> 4, |tokens| tokens.max(1))
}

/// Pieces of text, each named by itself and all before it.
fn pieces(text: &str) -> Box<[Segment]> {
    let mut before = 0;
    let piece = |bytes: &[u8]| {
        before = xxh3_64_with_seed(bytes, before);
        Segment {
            id: before,
            tokens: tokens(bytes.len()),
        }
    };
    if text.is_empty() {
        return Box::new([piece_of_nothing()]);
    }
    text.as_bytes().chunks(PIECE_BYTES).map(piece).collect()
}

/// What stands for an empty prompt: engines take none.
const fn piece_of_nothing() -> Segment {
    Segment {
        id: name(Kind::Block, 0, 0),
        tokens: 1,
    }
}
