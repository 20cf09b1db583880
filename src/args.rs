//! The command line: commands, flags, and what each flag may be.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{ArgAction, Parser, Subcommand};

use crate::config::units::{Span, SpanOrZero};
use crate::telemetry::Format;

mod discovery;

pub use discovery::Discovery;

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
    /// Form of the log lines on standard error
    #[arg(long, global = true, value_enum, default_value = "text")]
    pub log_format: Format,
    /// What is logged: a level, or levels by module such as info,warmpath::feeds=debug [default: info; warn for demo]
    #[arg(long, global = true, env = "RUST_LOG")]
    pub log_level: Option<String>,
}

impl Args {
    /// What is logged.
    pub fn log_level(&self) -> &str {
        let default = match self.command {
            // Its log lines would stand in the middle of its table.
            Command::Demo(_) => "warn",
            _ => "info",
        };
        self.log.log_level.as_deref().unwrap_or(default)
    }
}

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
    /// Prints the version
    Version,
}

/// Flags of `warmpath serve`.
#[derive(Clone, Debug, clap::Args)]
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
        default_value_t = true, default_missing_value = "true"
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
    /// After that: how long streams in flight may take to end
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    pub drain_timeout: Span,
    /// Whether pages of the metrics port are shown only to whom the API server lets (TokenReview, SubjectAccessReview)
    #[arg(
        long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_value_t = false, default_missing_value = "true"
    )]
    pub metrics_endpoint_auth: bool,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::CommandFactory;

    use super::*;

    fn serve(flags: &[&str]) -> Result<Serve, clap::Error> {
        let line = ["warmpath", "serve", "--endpoints-file", "f"];
        match Args::try_parse_from(line.iter().chain(flags))?.command {
            Command::Serve(serve) => Ok(serve),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn defaults_are_those_of_a_gateways_endpoint_picker() {
        let serve = serve(&[]).unwrap();
        assert_eq!(
            (serve.grpc_port, serve.grpc_health_port, serve.metrics_port),
            (9002, 9003, 9090)
        );
        assert!(serve.secure_serving);
        assert_eq!(serve.drain_timeout.0, Duration::from_secs(30));
    }

    #[test]
    fn secure_serving_takes_an_optional_value() {
        assert!(serve(&["--secure-serving"]).unwrap().secure_serving);
        assert!(!serve(&["--secure-serving=false"]).unwrap().secure_serving);
    }

    #[test]
    fn a_duration_without_unit_is_refused_with_an_example() {
        let error = serve(&["--drain-timeout", "30"]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(
            error.to_string().contains("`30` is not a duration"),
            "{error}"
        );
        assert!(
            serve(&["--drain-delay", "0s"])
                .unwrap()
                .drain_delay
                .0
                .is_zero()
        );
    }
}
