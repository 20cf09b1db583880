//! The workloads of LLMServingSim: prompts as token ids, with times of arrival.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Trace;
use super::files::Lines;
use super::recording::{Call, Recording};
use crate::simulate::prompt::Segment;
use crate::simulate::workload::spec::OpenError;

/// Tokens of a piece.
const PIECE: usize = 16;

/// A line.
#[derive(Debug, Deserialize)]
struct Row {
    arrival_time_ns: u64,
    output_toks: u32,
    input_tok_ids: Vec<u32>,
}

/// Reads the requests of all files; they belong to no conversations.
pub(super) fn read(trace: &Trace, files: &[PathBuf]) -> Result<Vec<Recording>, OpenError> {
    let most = trace.limit.unwrap_or(u64::MAX);
    let mut all = Vec::new();
    for file in files {
        let mut lines = Lines::open(file)?;
        while (all.len() as u64) < most
            && let Some(row) = lines.next_json::<Row>()?
        {
            if row.input_tok_ids.is_empty() {
                return Err(lines.wrong("a prompt has tokens, and `input_tok_ids` is empty"));
            }
            let mut recording = Recording::new(all.len() as u64);
            recording.push(&Call {
                at: Duration::from_nanos(row.arrival_time_ns),
                think: Duration::ZERO,
                prompt: &pieces(&row.input_tok_ids),
                output: row.output_toks,
                prefix: None,
            });
            all.push(recording);
        }
    }
    Ok(all)
}

/// Pieces of a prompt, each named by itself and all before it.
fn pieces(ids: &[u32]) -> Vec<Segment> {
    let mut before = 0;
    let mut bytes = Vec::with_capacity(PIECE * size_of::<u32>());
    let piece = |ids: &[u32]| {
        bytes.clear();
        bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
        before = xxh3_64_with_seed(&bytes, before);
        // There are at most `PIECE`.
        let tokens = ids.iter().map(|_| 1).sum();
        Segment { id: before, tokens }
    };
    ids.chunks(PIECE).map(piece).collect()
}
