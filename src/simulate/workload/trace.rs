//! What is replayed, and how? A recording's place, form, speed and part; and the readers of each form.

mod claude_code;
mod csv;
mod files;
mod lmcache;
mod mooncake;
mod recording;
mod serving_sim;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::generated::{RATES, Service, within};
use super::spec::OpenError;
use crate::config::units::Span;
use recording::{Recorded, Recording};

/// A recording to replay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Trace {
    /// A file, plain or gzipped, or a folder of them.
    pub path: PathBuf,
    /// What it is; by its text, when not given.
    #[serde(default)]
    pub format: Option<Format>,
    /// Tokens of a block, for Mooncake's form; 512 when not given.
    #[serde(default)]
    pub block: Option<u32>,
    /// How many times faster than recorded.
    #[serde(default = "as_recorded")]
    pub speed: f64,
    /// At most so many requests.
    #[serde(default)]
    pub limit: Option<u64>,
    /// Only so many conversations, chosen by the seed.
    #[serde(default)]
    pub sessions: Option<u64>,
    /// Conversations begun a second, where the trace does not tell when they began.
    #[serde(default = "session_rate")]
    pub session_rate: f64,
    /// The longest wait between an answer and the next prompt.
    #[serde(default)]
    pub max_think: Option<Span>,
    /// Tokens that all conversations begin with, in the place of as many of their own first ones (Claude Code only).
    #[serde(default)]
    pub common_head: u32,
    /// How long answers took when they were recorded, where the trace does not tell.
    #[serde(default)]
    pub service: Service,
}

const fn as_recorded() -> f64 {
    1.0
}

const fn session_rate() -> f64 {
    0.05
}

/// The form of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// JSON lines with `timestamp`, `input_length`, `output_length`, `hash_ids`.
    Mooncake,
    /// A conversation a file, with `block_size` and `requests`, as kv-cache-tester has them.
    ClaudeCode,
    /// JSON lines with `timestamp`, `input`, `output` (text) and `session_id`.
    Lmcache,
    /// JSON lines with `arrival_time_ns`, `input_tok_ids`, `output_toks`.
    ServingSim,
    /// A table with columns for time, input tokens and output tokens, and perhaps prefix and session.
    Csv,
}

impl Trace {
    /// A recording, all of it as it was.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            format: None,
            block: None,
            speed: as_recorded(),
            limit: None,
            sessions: None,
            session_rate: session_rate(),
            max_think: None,
            common_head: 0,
            service: Service::default(),
        }
    }

    /// Refuses settings that make no sense.
    pub(super) fn check(&self) -> Result<(), OpenError> {
        within("speed", self.speed, 1e-9..=1e9)?;
        within("session-rate", self.session_rate, RATES)?;
        if self.block == Some(0) {
            return Err(OpenError::setting("block", "a block has tokens".to_owned()));
        }
        Ok(())
    }

    /// Reads all that will be replayed. Requests are kept in few bytes: of each prompt what its predecessor does not
    /// have.
    pub(super) fn read(&self, seed: u64) -> Result<Recorded, OpenError> {
        let files = files::list(&self.path)?;
        let format = match self.format {
            Some(format) => format,
            None => files::detect(&self.path, &files)?,
        };
        let recordings: Vec<Recording> = match format {
            Format::Mooncake => mooncake::read(self, &files)?,
            Format::ClaudeCode => claude_code::read(self, files, seed)?,
            Format::Lmcache => lmcache::read(self, &files)?,
            Format::ServingSim => serving_sim::read(self, &files)?,
            Format::Csv => csv::read(self, &files)?,
        };
        Recorded::new(self, recordings, seed)
    }
}

#[cfg(test)]
mod tests;
