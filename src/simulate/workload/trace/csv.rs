//! Tables: a request a row, with its time and lengths, and perhaps its prefix and its conversation.

use std::path::PathBuf;
use std::time::Duration;

use rustc_hash::FxHashMap;
use xxhash_rust::xxh3::xxh3_64;

use super::Trace;
use super::files::Lines;
use super::recording::{Call, Recording};
use crate::simulate::prompt::Segment;
use crate::simulate::workload::names::{Kind, name};
use crate::simulate::workload::spec::OpenError;

/// What a column holds, and what it may be called.
const TIME: &[&str] = &["timestamp", "arrival", "arrival_time", "time"];
const TIME_MS: &[&str] = &["timestamp_ms", "arrival_ms", "time_ms"];
const INPUT: &[&str] = &[
    "contexttokens",
    "input_tokens",
    "prompt_tokens",
    "input_length",
];
const OUTPUT: &[&str] = &[
    "generatedtokens",
    "output_tokens",
    "completion_tokens",
    "output_length",
];
const PREFIX: &[&str] = &["prefix", "prefix_id"];
const PREFIX_TOKENS: &[&str] = &["prefix_tokens"];
const SESSION: &[&str] = &["session", "session_id", "conversation"];

/// Where each column is.
struct Columns {
    time: usize,
    /// Milliseconds rather than seconds.
    milliseconds: bool,
    input: usize,
    output: usize,
    prefix: Option<(usize, usize)>,
    session: Option<usize>,
}

/// A row.
struct Row {
    at: Duration,
    input: u32,
    output: u32,
    prefix: Option<(u64, u32)>,
    session: Option<usize>,
}

/// Whether a line names the columns that are needed.
pub(super) fn is_header(line: &str) -> bool {
    Columns::find(line).is_ok()
}

impl Columns {
    fn find(header: &str) -> Result<Self, String> {
        let names: Vec<String> = fields(header)
            .iter()
            .map(|field| field.to_ascii_lowercase())
            .collect();
        let place = |known: &[&str]| names.iter().position(|name| known.contains(&name.as_str()));
        let needed = |known: &[&str]| {
            place(known)
                .ok_or_else(|| format!("the first line names no column {}", known.join(" or ")))
        };
        let milliseconds = place(TIME_MS);
        let prefix = match (place(PREFIX), place(PREFIX_TOKENS)) {
            (Some(prefix), Some(tokens)) => Some((prefix, tokens)),
            (None, None) => None,
            _ => return Err("`prefix` and `prefix_tokens` go together".to_owned()),
        };
        Ok(Self {
            time: milliseconds.map_or_else(|| needed(TIME), Ok)?,
            milliseconds: milliseconds.is_some(),
            input: needed(INPUT)?,
            output: needed(OUTPUT)?,
            prefix,
            session: place(SESSION),
        })
    }

    fn row(&self, line: &str, sessions: &mut FxHashMap<String, usize>) -> Result<Row, String> {
        let fields = fields(line);
        let field = |place: usize| {
            let field = fields.get(place).map(String::as_str);
            field.ok_or_else(|| {
                format!(
                    "{} columns, and column {} is needed",
                    fields.len(),
                    place + 1
                )
            })
        };
        let tokens = |place: usize| {
            let field = field(place)?;
            let number = field.parse::<f64>().ok();
            number
                .and_then(whole)
                .ok_or_else(|| format!("`{field}` is not a number of tokens"))
        };
        let input = tokens(self.input)?.max(1);
        let prefix = match self.prefix {
            Some((prefix, length)) if !field(prefix)?.is_empty() => {
                let length = tokens(length)?;
                if length > input {
                    return Err(format!(
                        "a prefix of {length} tokens in a prompt of {input}"
                    ));
                }
                Some((
                    name(Kind::Prefix, xxh3_64(field(prefix)?.as_bytes()), 0),
                    length,
                ))
            }
            _ => None,
        };
        let session = match self.session.map(field).transpose()? {
            None | Some("") => None,
            Some(session) => {
                let next = sessions.len();
                Some(*sessions.entry(session.to_owned()).or_insert(next))
            }
        };
        Ok(Row {
            at: time(field(self.time)?, self.milliseconds)?,
            input,
            output: tokens(self.output)?.max(1),
            prefix,
            session,
        })
    }
}

/// A number of tokens, also when written as 12.0.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "within bounds, and cut off on purpose"
)]
fn whole(number: f64) -> Option<u32> {
    (0.0..=f64::from(u32::MAX >> 4))
        .contains(&number)
        .then_some(number as u32)
}

/// A time: a number, or a date with a time of day.
fn time(text: &str, milliseconds: bool) -> Result<Duration, String> {
    let wrong =
        || format!("`{text}` is not a time: a number of seconds or such as 2023-11-16 18:17:03.98");
    if let Ok(number) = text.parse::<f64>() {
        let seconds = if milliseconds {
            number / 1000.0
        } else {
            number
        };
        return Duration::try_from_secs_f64(seconds).map_err(|_| wrong());
    }
    let since_1970 = match text.parse::<jiff::Timestamp>() {
        Ok(moment) => moment.duration_since(jiff::Timestamp::UNIX_EPOCH),
        Err(_) => {
            let date: jiff::civil::DateTime = text.parse().map_err(|_| wrong())?;
            date.duration_since(jiff::civil::date(1970, 1, 1).at(0, 0, 0, 0))
        }
    };
    Duration::try_from(since_1970).map_err(|_| wrong())
}

/// The fields of a line; commas within quotes do not part them.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            _ => {
                if let Some(field) = fields.last_mut() {
                    field.push(c);
                }
            }
        }
    }
    for field in &mut fields {
        let trimmed = field.trim();
        if trimmed.len() != field.len() {
            *field = trimmed.to_owned();
        }
    }
    fields
}

/// Reads the rows of all files, in order of time.
pub(super) fn read(trace: &Trace, files: &[PathBuf]) -> Result<Vec<Recording>, OpenError> {
    let mut rows = Vec::new();
    let mut sessions = FxHashMap::default();
    for file in files {
        let mut lines = Lines::open(file)?;
        let Some(header) = lines.next()? else {
            continue;
        };
        let columns = Columns::find(&String::from_utf8_lossy(header));
        let columns = columns.map_err(|problem| lines.wrong(problem))?;
        // A conversation may go on in any later row.
        let most = trace
            .limit
            .filter(|_| columns.session.is_none())
            .unwrap_or(u64::MAX);
        while (rows.len() as u64) < most
            && let Some(line) = lines.next()?
        {
            let row = columns.row(&String::from_utf8_lossy(line), &mut sessions);
            rows.push(row.map_err(|problem| lines.wrong(problem))?);
        }
    }
    rows.sort_by_key(|row| row.at);
    let mut all: Vec<Recording> = (0..sessions.len() as u64).map(Recording::new).collect();
    let mut talks: Vec<Talk> = all.iter().map(|_| Talk::default()).collect();
    for row in &rows {
        let place = row.session.unwrap_or(all.len());
        if place == all.len() {
            all.push(Recording::new(place as u64));
            talks.push(Talk::default());
        }
        if let (Some(recording), Some(talk)) = (all.get_mut(place), talks.get_mut(place)) {
            talk.add(trace, row, recording);
        }
    }
    Ok(all)
}

/// What a conversation has come to.
#[derive(Default)]
struct Talk {
    prompt: Vec<Segment>,
    tokens: u32,
    prefix: Option<(u64, u32)>,
    output: u32,
    /// When the latest answer should have ended.
    free: Duration,
}

impl Talk {
    /// Adds a request. A prompt that has room for its predecessor, or for that one and its answer, goes on with it; any
    /// other begins anew, after its prefix.
    fn add(&mut self, trace: &Trace, row: &Row, recording: &mut Recording) {
        let turn = recording.turns() as u64;
        let goes_on = turn > 0 && row.prefix == self.prefix && row.input >= self.tokens;
        if goes_on && row.input >= self.tokens.saturating_add(self.output) {
            let id = Recording::answer(recording.number, turn - 1);
            self.add_piece(id, self.output);
        } else if !goes_on {
            self.prompt.clear();
            self.tokens = 0;
            if let Some((prefix, tokens)) = row.prefix {
                self.add_piece(prefix, tokens);
            }
        }
        let own = name(Kind::Own, recording.number, turn);
        self.add_piece(own, row.input - self.tokens);
        recording.push(&Call {
            at: row.at,
            think: row.at.saturating_sub(self.free),
            prompt: &self.prompt,
            output: row.output,
            prefix: row.prefix.map(|(prefix, _)| prefix),
        });
        self.output = row.output;
        self.prefix = row.prefix;
        self.free = row.at.saturating_add(trace.service.time(row.output));
    }

    fn add_piece(&mut self, id: u64, tokens: u32) {
        if tokens > 0 {
            self.prompt.push(Segment { id, tokens });
            self.tokens += tokens;
        }
    }
}
