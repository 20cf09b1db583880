//! Which flags of other endpoint pickers are accepted?
//!
//! A deployment written for the Gateway API Inference Extension's own picker (v1.5) or llm-d's (v0.10) starts this one
//! by a change of the image alone. Those with a meaning here are below; the rest are in `unheeded`.

mod unheeded;

use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgAction, ValueEnum};

pub use self::unheeded::Note;
use self::unheeded::Unheeded;
use super::go_style::boolean;
use crate::telemetry::Format;

/// Flags of the reference endpoint pickers besides those that `serve` has by the same name.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Flags of other endpoint pickers, accepted")]
pub struct OtherPickers {
    /// An EndpointPickerConfig: nothing in it has a meaning here, and what takes the place of each part is logged
    #[arg(long, value_name = "FILE")]
    pub config_file: Option<PathBuf>,
    /// The same as text
    #[arg(long, value_name = "YAML", conflicts_with = "config_file")]
    pub config_text: Option<String>,
    /// Log level by number: up to 3 info, 4 debug, from 5 trace; --log-level comes first
    #[arg(short, long, value_name = "N")]
    pub v: Option<i32>,
    /// Log level: debug, info, error, or a number as for -v; --log-level comes first
    #[arg(long, value_name = "LEVEL")]
    pub zap_log_level: Option<ZapLevel>,
    /// Form of the log lines; --log-format comes first
    #[arg(long, value_name = "FORM")]
    pub zap_encoder: Option<ZapEncoder>,
    /// Logs for development: more, unless one of the flags above says how much
    #[arg(
        long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_parser = boolean
    )]
    pub zap_devel: Option<bool>,
    #[command(flatten)]
    unheeded: Unheeded,
}

/// Zap's forms of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ZapEncoder {
    /// One JSON object a line.
    Json,
    /// For people.
    Console,
}

/// Zap's levels: words, and numbers that count like those of `-v`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZapLevel {
    /// Errors alone.
    Error,
    /// As `-v`.
    Verbosity(i32),
}

/// The numbers of `-v` that the reference pickers name; 2 is their default.
const DEBUG: i32 = 4;
const TRACE: i32 = 5;

impl FromStr for ZapLevel {
    type Err = String;

    fn from_str(written: &str) -> Result<Self, String> {
        Ok(match written {
            "debug" => Self::Verbosity(DEBUG),
            "info" => Self::Verbosity(0),
            "error" | "panic" => Self::Error,
            number => match number.parse() {
                Ok(verbosity) if verbosity > 0 => Self::Verbosity(verbosity),
                _ => {
                    return Err(
                        "debug, info, error, panic or a number above 0 is expected".to_owned()
                    );
                }
            },
        })
    }
}

impl OtherPickers {
    /// What is logged, if these flags say so.
    pub(super) fn log_level(&self) -> Option<&'static str> {
        let by_number = self.v.map(ZapLevel::Verbosity);
        let for_development = (self.zap_devel == Some(true)).then_some(ZapLevel::Verbosity(DEBUG));
        let level = self.zap_log_level.or(by_number).or(for_development)?;
        // More than info is meant for the picker, not for the libraries below it.
        Some(match level {
            ZapLevel::Error => "error",
            ZapLevel::Verbosity(..DEBUG) => "info",
            ZapLevel::Verbosity(DEBUG) => "info,warmpath=debug",
            ZapLevel::Verbosity(TRACE..) => "info,warmpath=trace",
        })
    }

    /// The form of log lines, if these flags say so.
    pub(super) fn log_format(&self) -> Option<Format> {
        self.zap_encoder.map(|encoder| match encoder {
            ZapEncoder::Json => Format::Json,
            ZapEncoder::Console => Format::Text,
        })
    }

    /// One line for each flag that asks for what does not happen here.
    pub fn notes(&self) -> &[Note] {
        self.unheeded.notes()
    }
}
