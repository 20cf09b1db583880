//! The command line: commands, flags, and what each flag may be.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{ArgAction, CommandFactory as _, Parser, Subcommand};

use crate::config::units::SpanOrZero;
use crate::telemetry::Format;

mod discovery;
mod go_style;
mod other_pickers;

pub use discovery::Discovery;
pub use other_pickers::{Note, OtherPickers, ZapEncoder, ZapLevel};

/// An endpoint picker for the Gateway API Inference Extension.
///
/// Sends each request where it adds the least prefill work: prompt tokens already queued
/// there + this request's tokens that are not cached there.
#[derive(Debug, Parser)]
#[command(name = "warmpath", version)]
pub struct Args {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
    /// How logs look
    #[command(flatten)]
    pub log: Log,
}

/// Flags of every command.
#[derive(Debug, clap::Args)]
pub struct Log {
    /// Form of the log lines on standard error [default: text]
    #[arg(long, global = true, value_enum)]
    pub log_format: Option<Format>,
    /// What is logged: a level, or levels by module such as info,warmpath::feeds=debug [default: info; warn for demo]
    #[arg(long, global = true, env = "RUST_LOG")]
    pub log_level: Option<String>,
}

impl Args {
    /// Reads a command line, program name first; the words after `serve` also in the forms that Go's flags take.
    ///
    /// # Errors
    /// When a flag or value is not one of ours, or help or the version is asked for.
    pub fn read(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut words: Vec<OsString> = words.into_iter().collect();
        if let Some(at) = words.iter().position(|word| word == SERVE) {
            let mut command = Self::command();
            // Only then do subcommands have the flags that hold for all.
            command.build();
            if let Some(serve) = command.find_subcommand(SERVE) {
                let flags = words.split_off(at + 1);
                words.extend(go_style::rewrite(flags, &go_style::flags_of(serve)));
            }
        }
        Self::try_parse_from(words)
    }

    /// What is logged.
    pub fn log_level(&self) -> &str {
        let default = match &self.command {
            // Its log lines would stand in the middle of its table.
            Command::Demo(_) => "warn",
            // What it finds is its output.
            Command::Check(_) => "error",
            // The simulated routers would tell of every endpoint of every run.
            Command::Simulate(_) | Command::Study(_) => "error",
            Command::Serve(serve) => serve.other_pickers.log_level().unwrap_or("info"),
            _ => "info",
        };
        let asked = self.log.log_level.as_deref();
        // A variable that is set to nothing asks for nothing; as a filter it would hide all but errors.
        asked
            .filter(|level| !level.trim().is_empty())
            .unwrap_or(default)
    }

    /// The form of log lines.
    pub fn log_format(&self) -> Format {
        let by_others = match &self.command {
            Command::Serve(serve) => serve.other_pickers.log_format(),
            _ => None,
        };
        self.log.log_format.or(by_others).unwrap_or(Format::Text)
    }
}

/// The command that takes the flags of other pickers.
const SERVE: &str = "serve";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Picks endpoints for a gateway (Envoy ext-proc over gRPC)
    Serve(Serve),
    /// Simulates a vLLM engine: HTTP API, metrics, KV events
    Engine(crate::engine::Args),
    /// Shows the main job on one machine: engines, picker, Envoy and traffic
    Demo(crate::demo::Args),
    /// Measures a picker: plays a gateway's side of ext-proc
    Bench(Box<crate::bench::Args>),
    /// Asks live engines whether everything is there that exact picks need, and says what to change
    Check(crate::check::Args),
    /// Works out what a fleet costs with and without affinity, and whether affinity is worth having
    Plan(Box<crate::plan::Args>),
    /// Runs a load or a trace on a simulated fleet under several policies, in virtual time
    Simulate(Box<crate::simulate::Args>),
    /// Runs every policy over many loads, and writes the tables of docs/policies.md
    Study(crate::simulate::study::Args),
    /// Prints the version
    Version,
}

/// Flags of `warmpath serve`. Of a flag given twice the last one counts, as it does for other endpoint pickers: charts
/// put a user's flags behind their own.
#[derive(Clone, Debug, clap::Args)]
#[command(args_override_self = true)]
pub struct Serve {
    /// Where the endpoints come from
    #[command(flatten)]
    pub discovery: Discovery,
    /// Port of the ext-proc service
    #[arg(long, value_name = "PORT", default_value_t = 9002)]
    pub grpc_port: u16,
    /// Port of the gRPC health service, always in plain text
    #[arg(long, value_name = "PORT", default_value_t = 9003)]
    pub grpc_health_port: u16,
    /// Port of /metrics, /livez, /readyz and the debug pages
    #[arg(long, value_name = "PORT", default_value_t = 9090)]
    pub metrics_port: u16,
    /// Address to listen on; by default all, of IPv6 and IPv4
    #[arg(long, value_name = "ADDRESS")]
    pub bind: Option<IpAddr>,
    /// Whether the ext-proc port speaks TLS
    #[arg(
        long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_value_t = true, default_missing_value = "true", value_parser = go_style::boolean
    )]
    pub secure_serving: bool,
    /// Directory with tls.crt and tls.key, read again when they change [default: self-signed]
    #[arg(long, value_name = "DIR")]
    pub cert_path: Option<PathBuf>,
    /// Settings file (docs/configuration.md)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// After SIGTERM: how long new streams are still accepted while not ready, so that gateways notice
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    pub drain_delay: SpanOrZero,
    /// After that: how long streams in flight may take to end; also as 1m30s
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = drain_timeout)]
    pub drain_timeout: SpanOrZero,
    /// Whether pages of the metrics port are shown only to whom the API server lets (TokenReview, SubjectAccessReview)
    #[arg(
        long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_value_t = false, default_missing_value = "true", value_parser = go_style::boolean
    )]
    pub metrics_endpoint_auth: bool,
    /// For the gateway conformance suite alone: a request's header test-epp-endpoint-selection restricts the pick, and
    /// the response's x-conformance-test-served-endpoint tells who served
    #[arg(
        long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_value_t = false, default_missing_value = "true", value_parser = boolean_or_nothing,
        env = "WARMPATH_CONFORMANCE_TEST_HEADERS"
    )]
    pub conformance_test_headers: bool,
    /// What other endpoint pickers take
    #[command(flatten)]
    pub other_pickers: OtherPickers,
}

/// An environment variable that is set to nothing is as good as none.
fn boolean_or_nothing(written: &str) -> Result<bool, String> {
    match written {
        "" => Ok(false),
        written => go_style::boolean(written),
    }
}

fn drain_timeout(written: &str) -> Result<SpanOrZero, String> {
    go_style::duration(written).map(SpanOrZero)
}

#[cfg(test)]
mod tests;
