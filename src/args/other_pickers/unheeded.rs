//! Which flags of other pickers change nothing here, and what is said of each?
//!
//! Nothing is lost without a word: a flag that asks for something we do not do is told once. One that asks for what
//! happens anyway, or for leaving out what is not there, is not worth a line.

use clap::{Arg, ArgAction, ArgMatches, Command, Error, FromArgMatches};

use super::boolean;

/// What is said of a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// As it may be written: `--name=value`.
    pub flag: String,
    /// What happens instead, and by which setting of ours it changes.
    pub instead: &'static str,
}

/// A flag without a meaning here.
struct Flag {
    name: &'static str,
    takes: Takes,
    /// What happens instead.
    instead: &'static str,
}

#[derive(Clone, Copy)]
enum Takes {
    /// A boolean; this value asks for what happens anyway.
    Bool(bool),
    /// Any text; this one asks for what happens anyway.
    Text(Option<&'static str>),
}

const fn boolean_flag(name: &'static str, here: bool, instead: &'static str) -> Flag {
    Flag {
        name,
        takes: Takes::Bool(here),
        instead,
    }
}

const fn text_flag(name: &'static str, here: Option<&'static str>, instead: &'static str) -> Flag {
    Flag {
        name,
        takes: Takes::Text(here),
        instead,
    }
}

const ENGINES: &str = "engines are asked in plain HTTP at the port that serves requests";
const SERIES: &str = "the series of vLLM, SGLang and TensorRT-LLM are known by their names";
const TLS: &str = "TLS 1.2 and 1.3 with the suites that rustls holds to be safe";
const PAGE: &str = "the metrics port speaks plain HTTP; --metrics-endpoint-auth or a NetworkPolicy keeps others out";
const LINES: &str = "every log line has its time in UTC, and none has a stack trace";

#[rustfmt::skip]
const FLAGS: [Flag; 29] = [
    boolean_flag("enable-cert-reload", true, "the certificate of --cert-path is always read again when it changes"),
    boolean_flag("ha-enable-leader-election", false, "replicas run active-active: each is ready and picks by its own view of the engines; there is no leader and no lease"),
    boolean_flag("disable-endpoint-subset-filter", false, "a gateway's subset hint is always obeyed"),
    boolean_flag("emit-endpoint-scores", false, "/debug/decisions shows every endpoint's figures for each pick"),
    boolean_flag("tracing", false, "no traces are sent; /debug/decisions tells of single requests"),
    boolean_flag("health-checking", true, "gRPC health is always served on the ext-proc port as well"),
    boolean_flag("enable-pprof", false, "there are no profiler pages"),
    boolean_flag("enable-grpc-stream-metrics", true, "streams are always counted: warmpath_streams_in_flight, warmpath_streams_total"),
    boolean_flag("allow-experimental-plugins", false, "there are no plugins"),
    boolean_flag("model-server-metrics-https-insecure-skip-verify", true, ENGINES),
    text_flag("model-server-metrics-scheme", Some("http"), ENGINES),
    text_flag("model-server-metrics-port", Some("0"), ENGINES),
    text_flag("model-server-metrics-path", Some("/metrics"), "reports.path in the settings file (--config) says where engines serve their metrics"),
    text_flag("refresh-metrics-interval", None, "guards.report_age_limit and reports.idle_interval in the settings file (--config) say how often engines are asked"),
    text_flag("refresh-prometheus-metrics-interval", None, "gauges are read at each scrape"),
    text_flag("metrics-staleness-threshold", None, "guards.report_age_limit in the settings file (--config) says how old a report may be"),
    text_flag("total-queued-requests-metric", None, SERIES),
    text_flag("total-running-requests-metric", None, SERIES),
    text_flag("kv-cache-usage-percentage-metric", None, SERIES),
    text_flag("lora-info-metric", None, SERIES),
    text_flag("cache-info-metric", None, SERIES),
    text_flag("grpc-max-recv-msg-size", None, "limits.max_body in the settings file (--config) bounds bodies, and messages with them"),
    text_flag("grpc-max-send-msg-size", None, "bodies go back in pieces of at most 62,000 bytes"),
    text_flag("tls-min-version", Some("VersionTLS12"), TLS),
    text_flag("tls-cipher-suites", None, TLS),
    text_flag("metrics-cert-dir", None, PAGE),
    text_flag("metrics-client-ca-file", None, PAGE),
    text_flag("zap-stacktrace-level", None, LINES),
    text_flag("zap-time-encoding", None, LINES),
];

/// Those of these flags that were given.
#[derive(Clone, Debug, Default)]
pub(super) struct Unheeded(Vec<Note>);

impl Unheeded {
    pub(super) fn notes(&self) -> &[Note] {
        &self.0
    }
}

impl Flag {
    fn argument(&self) -> Arg {
        let argument = Arg::new(self.name)
            .long(self.name)
            .help(format!("No meaning here: {}", self.instead))
            // The short help is for the flags that do something.
            .hide_short_help(true)
            .action(ArgAction::Set);
        match self.takes {
            Takes::Bool(_) => argument
                .value_name("BOOL")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .value_parser(boolean),
            Takes::Text(_) => argument.value_name("VALUE"),
        }
    }

    /// The value given, unless it asks for what happens anyway.
    fn value(&self, matches: &ArgMatches) -> Result<Option<String>, Error> {
        Ok(match self.takes {
            Takes::Bool(here) => given::<bool>(matches, self.name)?
                .filter(|asked| **asked != here)
                .map(ToString::to_string),
            Takes::Text(here) => given::<String>(matches, self.name)?
                .filter(|asked| Some(asked.as_str()) != here)
                .cloned(),
        })
    }
}

fn given<'a, T: Clone + Send + Sync + 'static>(
    matches: &'a ArgMatches,
    name: &str,
) -> Result<Option<&'a T>, Error> {
    matches
        .try_get_one(name)
        .map_err(|_not_declared_so| Error::new(clap::error::ErrorKind::UnknownArgument))
}

impl FromArgMatches for Unheeded {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut notes = Vec::new();
        for flag in &FLAGS {
            if let Some(value) = flag.value(matches)? {
                notes.push(Note {
                    flag: format!("--{}={value}", flag.name),
                    instead: flag.instead,
                });
            }
        }
        Ok(Self(notes))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for Unheeded {
    fn augment_args(command: Command) -> Command {
        command.args(FLAGS.iter().map(Flag::argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
