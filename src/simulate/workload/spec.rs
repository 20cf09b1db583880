//! Where do requests come from? A description as plain data, opened to a stream of requests.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::generated::Generated;
use super::generator::Generator;
use super::replay::Replay;
use super::trace::Trace;
use super::{Loop, Workload};
use crate::yaml;

/// A workload, described.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(clippy::large_enum_variant, reason = "there is one of it in a run")]
pub enum Spec {
    /// Made by chance.
    Generated(Generated),
    /// Read from a recording.
    Trace(Trace),
}

/// Why a workload cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A setting makes no sense.
    #[error("workload setting `{field}`: {problem}")]
    Setting {
        /// Its name, as in YAML.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// No request waits for an answer, so there is nothing that a closed loop would do otherwise than an open one.
    #[error("there is no closed loop: {reason}")]
    NoClosedLoop {
        /// Why not.
        reason: &'static str,
    },
    /// Conversations are to be chosen, and there are none.
    #[error("{}: its requests belong to no conversations, so none can be chosen; use --limit", path.display())]
    NoSessions {
        /// The trace.
        path: PathBuf,
    },
    /// There is no ready-made load of this name, nor a file.
    #[error("`{name}` is neither a file nor one of {}", Spec::NAMES.join(", "))]
    UnknownName {
        /// What was asked for.
        name: String,
    },
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A description is not as expected.
    #[error("{}:{line}:{column}: {problem}", path.display())]
    Yaml {
        /// The file.
        path: PathBuf,
        /// Counted from 1; 0 when unknown.
        line: u64,
        /// Counted from 1; 0 when unknown.
        column: u64,
        /// What is wrong.
        problem: String,
    },
    /// It cannot be told what kind of trace a file is.
    #[error("{}: {problem}; name the format with --trace-format", path.display())]
    UnknownFormat {
        /// The file or folder.
        path: PathBuf,
        /// What it looks like.
        problem: String,
    },
    /// A line of a trace is not as expected.
    #[error("{}:{line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A trace that is read and cannot be replayed.
    #[error("{}: {problem}", path.display())]
    Unusable {
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        problem: String,
    },
    /// A trace has no requests.
    #[error("{}: no requests in it", path.display())]
    Empty {
        /// The file or folder.
        path: PathBuf,
    },
}

impl OpenError {
    pub(super) const fn setting(field: &'static str, problem: String) -> Self {
        Self::Setting { field, problem }
    }

    pub(super) fn read(path: &Path, source: std::io::Error) -> Self {
        Self::Read {
            path: path.to_owned(),
            source,
        }
    }

    pub(super) fn line(path: &Path, line: u64, problem: impl Into<String>) -> Self {
        Self::Line {
            path: path.to_owned(),
            line,
            problem: problem.into(),
        }
    }
}

impl Spec {
    /// Starts the workload. Equal seeds give equal requests.
    ///
    /// # Errors
    /// When a setting makes no sense, a trace cannot be read, or there is no loop of this kind.
    pub fn open(&self, seed: u64, kind: Loop) -> Result<Box<dyn Workload>, OpenError> {
        match self {
            Self::Generated(load) => {
                load.check()?;
                if kind == Loop::Closed && load.conversation.is_none() {
                    return Err(OpenError::NoClosedLoop {
                        reason: "each generated request stands alone; give them more turns",
                    });
                }
                let generator = Generator::new(load, seed);
                Ok(Box::new(Replay::new(generator, kind, load.requests)))
            }
            Self::Trace(trace) => {
                trace.check()?;
                let recorded = trace.read(seed)?;
                if kind == Loop::Closed && !recorded.has_conversations() {
                    return Err(OpenError::NoClosedLoop {
                        reason: "no request of this trace goes on with an earlier one",
                    });
                }
                Ok(Box::new(Replay::new(recorded, kind, trace.limit)))
            }
        }
    }

    /// Reads a description in YAML.
    ///
    /// # Errors
    /// When it is none.
    pub fn read(path: &Path) -> Result<Self, OpenError> {
        let text = std::fs::read_to_string(path).map_err(|error| OpenError::read(path, error))?;
        yaml::read(&text).map_err(|located| OpenError::Yaml {
            path: path.to_owned(),
            line: located.line,
            column: located.column,
            problem: located.problem,
        })
    }
}
