//! The settings file: which keys there are, their defaults, and what each becomes.
//!
//! Strict YAML: an unknown key, a value out of bounds or without its unit is refused with
//! file, line, column and what was expected. Every key has a default, so no file is needed.
//! `docs/configuration.md` documents each; a test holds the two together.

use std::path::{Path, PathBuf};

pub mod endpoint_picker;
pub mod file;
pub mod units;

use crate::extproc::server;
use crate::feeds;
use crate::routing::router;
use crate::tokens;
use crate::yaml::{self, Located};

/// The validated settings, each in the type of the module that obeys them.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The decision.
    pub router: router::Settings,
    /// The wire.
    pub wire: server::Settings,
    /// How engines are asked for reports.
    pub reports: feeds::load::Settings,
    /// How KV events are followed.
    pub kv_events: feeds::kv_events::Settings,
    /// How token ids are made.
    pub tokens: tokens::Settings,
    /// Further choices named to the gateway, in order, besides the first.
    pub alternates: usize,
    /// Decisions kept for `/debug/decisions`.
    pub decisions: usize,
    /// The file's keys with the values in force, for `/debug/state`.
    pub summary: serde_json::Value,
}

/// Why a settings file was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("cannot read the settings file {}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is the reference pickers' kind of file.
    #[error(
        "{} is an EndpointPickerConfig: pass it by --config-file; --config takes a settings file of Warmpath",
        .path.display()
    )]
    OfAnotherPicker {
        /// The file.
        path: PathBuf,
    },
    /// It was understood up to here.
    #[error("{}:{line}:{column}: {problem}", .path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// Counted from 1.
        column: u64,
        /// What is wrong there, and what was expected.
        problem: String,
    },
}

impl Settings {
    /// Reads and validates `path`; without one, the defaults.
    ///
    /// # Errors
    /// When the file cannot be read or is not a valid settings file.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(path) = path else {
            return Ok(Self::from(file::File::default()));
        };
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text, path)
    }

    /// Validates a settings file's text; `path` is for messages only.
    ///
    /// # Errors
    /// When it is not a valid settings file.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        if endpoint_picker::is_one(text) {
            let path = path.to_owned();
            return Err(ConfigError::OfAnotherPicker { path });
        }
        let file: file::File = yaml::read(text).map_err(
            |Located {
                 line,
                 column,
                 problem,
             }| {
                ConfigError::Invalid {
                    path: path.to_owned(),
                    line,
                    column,
                    problem,
                }
            },
        )?;
        Ok(Self::from(file))
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::from(file::File::default())
    }
}

impl From<file::File> for Settings {
    fn from(file: file::File) -> Self {
        let summary = serde_json::to_value(&file).unwrap_or(serde_json::Value::Null);
        let reports = feeds::load::Settings {
            path: file.reports.path.0.clone(),
            idle_interval: file.reports.idle_interval.0,
            age_limit: file.guards.report_age_limit.0,
        };
        Self {
            router: router::Settings {
                policy: file.policy.into(),
                kv_usage_limit: file.guards.kv_usage_limit.0,
                report_age_limit: reports.age_limit,
                idle_report_age_limit: reports.idle_age_limit(),
                tiers: file.tiers.into(),
            },
            wire: file.wire(),
            reports,
            kv_events: file.kv_events.into(),
            tokens: file.tokenizers.into(),
            alternates: file.alternates.as_usize(),
            decisions: file.decisions.as_usize(),
            summary,
        }
    }
}
