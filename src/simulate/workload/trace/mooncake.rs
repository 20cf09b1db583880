//! Mooncake's traces: block names and lengths. Which request goes on with which is told by their blocks.

use std::path::PathBuf;
use std::time::Duration;

use rustc_hash::FxHashMap;
use serde::Deserialize;

use super::Trace;
use super::files::Lines;
use super::recording::{Call, Recording};
use crate::simulate::prompt::Segment;
use crate::simulate::workload::names::{Kind, name};
use crate::simulate::workload::spec::OpenError;

/// Tokens of a block in the traces that Mooncake published.
const BLOCK: u32 = 512;

/// A line.
#[derive(Debug, Deserialize)]
struct Row {
    /// Milliseconds.
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    /// Each stands for the whole prompt up to the end of its block.
    hash_ids: Vec<u64>,
}

/// Reads the rows of all files, in order of time.
pub(super) fn read(trace: &Trace, files: &[PathBuf]) -> Result<Vec<Recording>, OpenError> {
    let block = trace.block.unwrap_or(BLOCK);
    let most = trace.limit.unwrap_or(u64::MAX);
    let mut rows = Vec::new();
    for file in files {
        let mut lines = Lines::open(file)?;
        while (rows.len() as u64) < most
            && let Some(row) = lines.next_json::<Row>()?
        {
            check(&row, block).map_err(|problem| lines.wrong(problem))?;
            rows.push(row);
        }
    }
    rows.sort_by(|a, b| a.timestamp.total_cmp(&b.timestamp));
    let mut conversations = Conversations::new(trace, block);
    for row in &rows {
        conversations.add(row);
    }
    Ok(conversations.all)
}

/// Refuses rows that contradict themselves.
fn check(row: &Row, block: u32) -> Result<(), String> {
    if Duration::try_from_secs_f64(row.timestamp / 1000.0).is_err() {
        return Err(format!(
            "{} is not a timestamp in milliseconds",
            row.timestamp
        ));
    }
    if row.input_length == 0 {
        return Err("a prompt has tokens, and `input_length` is 0".to_owned());
    }
    let blocks = row.input_length.div_ceil(block) as usize;
    if blocks != row.hash_ids.len() {
        return Err(format!(
            "{} tokens are {blocks} blocks of {block}, and there are {} `hash_ids`; \
             give the tokens of a block with --trace-block",
            row.input_length,
            row.hash_ids.len()
        ));
    }
    Ok(())
}

/// Finds out which request goes on with which.
///
/// A request goes on with the latest one of a conversation when it has all whole blocks of that one's prompt, and the
/// last of these belongs to the conversation alone: it came up in it first, and is not the first of the prompt. So a beginning that many share joins no
/// conversations, and a prompt that branches off earlier begins one of its own.
struct Conversations<'a> {
    trace: &'a Trace,
    block: u32,
    all: Vec<Recording>,
    /// For each last whole block of a conversation's latest prompt: the conversation.
    tips: FxHashMap<u64, usize>,
    /// By conversation: its tip, and when an answer to its latest request should have ended.
    latest: Vec<(Option<u64>, Duration)>,
    /// Blocks seen so far, and the conversation in which each came up.
    origin: FxHashMap<u64, usize>,
}

impl<'a> Conversations<'a> {
    fn new(trace: &'a Trace, block: u32) -> Self {
        Self {
            trace,
            block,
            all: Vec::new(),
            tips: FxHashMap::default(),
            latest: Vec::new(),
            origin: FxHashMap::default(),
        }
    }

    fn add(&mut self, row: &Row) {
        let at = Duration::try_from_secs_f64(row.timestamp / 1000.0).unwrap_or_default();
        let deepest = row.hash_ids.iter().rev();
        let place = deepest.clone().find_map(|id| self.tips.get(id)).copied();
        let place = place.unwrap_or_else(|| {
            self.all.push(Recording::new(self.all.len() as u64));
            self.latest.push((None, at));
            self.all.len() - 1
        });
        let prompt = segments(row, self.block);
        let service = self.trace.service.time(row.output_length);
        let (Some(recording), Some((tip, free))) =
            (self.all.get_mut(place), self.latest.get_mut(place))
        else {
            return;
        };
        recording.push(&Call {
            at,
            think: at.saturating_sub(*free),
            prompt: &prompt,
            output: row.output_length,
            // The first block may be everybody's.
            prefix: row
                .hash_ids
                .get(1)
                .or_else(|| row.hash_ids.first())
                .copied(),
        });
        *free = at.saturating_add(service);
        for id in &row.hash_ids {
            self.origin.entry(*id).or_insert(place);
        }
        if let Some(tip) = tip.take() {
            self.tips.remove(&tip);
        }
        let whole = (row.input_length / self.block) as usize;
        // A first block may be everybody's, and nobody else's only for now.
        let last = whole.checked_sub(1).filter(|last| *last > 0);
        let last = last.and_then(|last| row.hash_ids.get(last));
        if let Some(last) = last
            && self.origin.get(last) == Some(&place)
        {
            self.tips.insert(*last, place);
            *tip = Some(*last);
        }
    }
}

/// The prompt: whole blocks, and what the length leaves for the last one.
fn segments(row: &Row, block: u32) -> Vec<Segment> {
    let mut left = row.input_length;
    let of_block = |id: &u64| {
        let tokens = left.min(block);
        left -= tokens;
        Segment {
            id: name(Kind::Block, *id, 0),
            tokens,
        }
    };
    row.hash_ids.iter().map(of_block).collect()
}
