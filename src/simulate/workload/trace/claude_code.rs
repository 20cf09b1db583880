//! Sessions of Claude Code as kv-cache-tester records them: a conversation a file, blocks named within it.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::Trace;
use super::files;
use super::recording::{Call, Recording, sample};
use crate::simulate::prompt::Segment;
use crate::simulate::workload::arrivals::{Arrivals, Times};
use crate::simulate::workload::names::{Kind, name};
use crate::simulate::workload::spec::OpenError;

/// A file.
#[derive(Debug, Deserialize)]
struct Conversation {
    /// Tokens of a block.
    block_size: u32,
    requests: Vec<Entry>,
}

/// A request, or a sub-agent with requests of its own.
#[derive(Debug, Deserialize)]
struct Entry {
    /// Seconds from the start of the conversation, or of the sub-agent: a request's beginning, a sub-agent's end.
    t: f64,
    #[serde(rename = "in", default)]
    input: u32,
    #[serde(default)]
    out: u32,
    #[serde(default)]
    hash_ids: Vec<u64>,
    /// Seconds that the answer took.
    api_time: Option<f64>,
    /// Seconds from the end of the answer before.
    think_time: Option<f64>,
    /// Milliseconds that a sub-agent ran.
    duration_ms: Option<f64>,
    /// A sub-agent's.
    requests: Option<Vec<Self>>,
}

/// A request in its place among those of the conversation and all its sub-agents.
struct Flat<'a> {
    /// Seconds from the start of the conversation.
    at: f64,
    entry: &'a Entry,
    /// The conversation itself, or which sub-agent.
    speaker: usize,
}

/// Reads the conversations chosen by the seed, as many as the limit needs; they begin at random times.
pub(super) fn read(
    trace: &Trace,
    mut files: Vec<PathBuf>,
    seed: u64,
) -> Result<Vec<Recording>, OpenError> {
    if let Some(sessions) = trace.sessions {
        sample(&mut files, sessions, seed);
    }
    let mut starts = Times::steady(Arrivals::Poisson, trace.session_rate, None, seed);
    let mut all = Vec::new();
    let mut requests = 0;
    for file in files {
        if trace.limit.is_some_and(|limit| requests >= limit) {
            break;
        }
        // Of the times there is no end.
        let start = starts.next().unwrap_or_default();
        let recording = conversation(trace, &file, all.len() as u64, start)?;
        requests += recording.turns() as u64;
        all.push(recording);
    }
    Ok(all)
}

fn conversation(
    trace: &Trace,
    file: &Path,
    number: u64,
    start: Duration,
) -> Result<Recording, OpenError> {
    let mut text = Vec::new();
    files::open(file)?
        .take(files::MOST_BYTES + 1)
        .read_to_end(&mut text)
        .map_err(|error| OpenError::read(file, error))?;
    if text.len() as u64 > files::MOST_BYTES {
        return Err(OpenError::line(file, 1, files::too_long()));
    }
    let read: Conversation = serde_json::from_slice(&text).map_err(|error| {
        let problem = format!("not a conversation of this format: {error}");
        OpenError::line(file, error.line() as u64, problem)
    })?;
    let wrong = |problem: String| OpenError::line(file, 1, problem);
    if read.block_size == 0 {
        return Err(wrong("`block_size` is 0".to_owned()));
    }
    let mut flat = Vec::new();
    flatten(&read.requests, 0.0, &mut 0, &mut flat);
    flat.sort_by(|a, b| a.at.total_cmp(&b.at));
    let names = Names {
        number,
        block: read.block_size,
        first: flat
            .first()
            .map_or(&[], |first| first.entry.hash_ids.as_slice()),
        head: (trace.common_head / read.block_size) as usize,
    };
    let mut recording = Recording::new(number);
    let mut before: Option<&Flat<'_>> = None;
    let mut prompt = Vec::new();
    for one in &flat {
        let turn = recording.turns() as u64;
        names
            .prompt(one.entry, turn, &mut prompt)
            .map_err(|problem| {
                wrong(format!(
                    "request {} (t {}): {problem}",
                    turn + 1,
                    one.entry.t
                ))
            })?;
        recording.push(&Call {
            at: start + seconds(one.at),
            think: before.map_or(Duration::ZERO, |before| think(trace, before, one)),
            prompt: &prompt,
            output: one.entry.out,
            prefix: Some(name(Kind::Prefix, number, 0)),
        });
        before = Some(one);
    }
    Ok(recording)
}

/// Puts requests into one list, those of sub-agents at the times they came.
fn flatten<'a>(entries: &'a [Entry], start: f64, speakers: &mut usize, into: &mut Vec<Flat<'a>>) {
    let speaker = *speakers;
    for entry in entries {
        let at = start + entry.t;
        match &entry.requests {
            None => into.push(Flat { at, entry, speaker }),
            Some(requests) => {
                *speakers += 1;
                let began = at - entry.duration_ms.unwrap_or(0.0) / 1000.0;
                flatten(requests, began.max(start), speakers, into);
            }
        }
    }
}

/// How long nobody waited for an answer. Between requests of one speaker it is recorded; a change of speakers comes
/// after what the answer took.
fn think(trace: &Trace, before: &Flat<'_>, now: &Flat<'_>) -> Duration {
    match now.entry.think_time {
        Some(think) if before.speaker == now.speaker => seconds(think),
        _ => {
            let service = before
                .entry
                .api_time
                .map_or_else(|| trace.service.time(before.entry.out), seconds);
            seconds(now.at - before.at).saturating_sub(service)
        }
    }
}

/// Never negative, and what is longer than any trace may be no longer than can be added up.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.clamp(0.0, 1e12)).unwrap_or(Duration::ZERO)
}

/// What blocks are called.
struct Names<'a> {
    number: u64,
    block: u32,
    /// The blocks of the first prompt.
    first: &'a [u64],
    /// So many of them are those of all conversations.
    head: usize,
}

impl Names<'_> {
    /// The prompt: its blocks, and what is left of its length.
    fn prompt(&self, entry: &Entry, turn: u64, into: &mut Vec<Segment>) -> Result<(), String> {
        let (tokens, blocks) = (entry.input, entry.hash_ids.len());
        let whole = (tokens / self.block) as usize;
        if tokens == 0 || (blocks != whole && blocks != tokens.div_ceil(self.block) as usize) {
            return Err(format!(
                "`in` is {tokens}: that is not {blocks} `hash_ids` of {} tokens",
                self.block
            ));
        }
        into.clear();
        let mut left = tokens;
        for (place, id) in entry.hash_ids.iter().enumerate() {
            let everybodys = place < self.head && self.first.get(place) == Some(id);
            let id = if everybodys {
                name(Kind::Head, place as u64, 0)
            } else {
                name(Kind::Block, self.number, *id)
            };
            let tokens = left.min(self.block);
            left -= tokens;
            into.push(Segment { id, tokens });
        }
        if left > 0 {
            let id = name(Kind::Own, self.number, turn);
            into.push(Segment { id, tokens: left });
        }
        Ok(())
    }
}
