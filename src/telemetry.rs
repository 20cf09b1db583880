//! Logs: where they go, in which form, and how their level changes while we run.

use std::io::IsTerminal;
use std::sync::Arc;

use tracing::Subscriber;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

/// The form of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Why logging cannot be as asked.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Not a filter.
    #[error(
        "`{written}` is not a log filter, for example info or info,warmpath::feeds=debug: {reason}"
    )]
    BadFilter {
        /// What was written.
        written: String,
        /// What is wrong with it.
        reason: ParseError,
    },
    /// A word that is neither a level nor one of our modules; taken as a module it would silence everything.
    #[error(
        "`{word}` is no log level: off, error, warn, info, debug or trace, for a module alone as in warmpath::feeds=debug"
    )]
    NoLevel {
        /// What was written.
        word: String,
    },
    /// Somebody else in this process logs already.
    #[error("logging is set up already")]
    AlreadySet,
    /// The subscriber that this controls is gone.
    #[error("logging has ended")]
    Gone,
}

/// Changes the level while the process runs.
#[derive(Clone)]
pub struct LogControl {
    handle: Arc<reload::Handle<EnvFilter, Registry>>,
}

impl LogControl {
    /// From now on `filter` says what is logged.
    ///
    /// # Errors
    /// When `filter` is not one; the old one then stays.
    pub fn set(&self, filter: &str) -> Result<(), LogError> {
        let filter = parse(filter)?;
        self.handle.reload(filter).map_err(|_gone| LogError::Gone)
    }

    /// The filter in force.
    ///
    /// # Errors
    /// When the subscriber is gone.
    pub fn current(&self) -> Result<String, LogError> {
        self.handle
            .with_current(ToString::to_string)
            .map_err(|_gone| LogError::Gone)
    }
}

fn parse(filter: &str) -> Result<EnvFilter, LogError> {
    for word in filter.split(',').map(str::trim) {
        let alone = !word.contains(['=', '[']) && !word.starts_with(env!("CARGO_PKG_NAME"));
        if alone && word.parse::<LevelFilter>().is_err() {
            let word = word.to_owned();
            return Err(LogError::NoLevel { word });
        }
    }
    EnvFilter::builder()
        .parse(filter.trim())
        .map_err(|reason| LogError::BadFilter {
            written: filter.trim().to_owned(),
            reason,
        })
}

/// Logs of the whole process go to standard error from now on.
///
/// # Errors
/// When `filter` is not one, or logging is set up already.
pub fn init(format: Format, filter: &str) -> Result<LogControl, LogError> {
    let colours = std::io::stderr().is_terminal();
    let (subscriber, control) = subscriber(format, filter, std::io::stderr, colours)?;
    tracing::subscriber::set_global_default(subscriber).map_err(|_set| LogError::AlreadySet)?;
    Ok(control)
}

/// A subscriber that writes to `writer`, and its control.
///
/// # Errors
/// When `filter` is not one.
pub fn subscriber<W>(
    format: Format,
    filter: &str,
    writer: W,
    colours: bool,
) -> Result<(impl Subscriber + Send + Sync + use<W>, LogControl), LogError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(parse(filter)?);
    let lines = fmt::layer().with_writer(writer).with_ansi(colours);
    let lines = match format {
        Format::Text => lines.boxed(),
        Format::Json => lines.json().flatten_event(true).boxed(),
    };
    let control = LogControl {
        handle: Arc::new(handle),
    };
    Ok((Registry::default().with(filter).with(lines), control))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use parking_lot::Mutex;

    use super::*;

    /// Keeps what is written.
    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn written(page: &Page) -> String {
        String::from_utf8(page.0.lock().clone()).unwrap()
    }

    #[test]
    fn the_level_changes_while_running_and_a_bad_one_changes_nothing() {
        let page = Page::default();
        let writer = page.clone();
        let (subscriber, control) =
            subscriber(Format::Json, "info", move || writer.clone(), false).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::debug!("first");
            control.set("debug\n").unwrap();
            tracing::debug!(endpoint = "e", "second");
            let error = control.set("warmpath=loud").unwrap_err().to_string();
            assert!(
                error.starts_with("`warmpath=loud` is not a log filter"),
                "{error}"
            );
            assert_eq!(control.current().unwrap(), "debug");
        });
        let line: serde_json::Value = serde_json::from_str(&written(&page)).unwrap();
        assert_eq!(
            (&line["message"], &line["endpoint"]),
            (&"second".into(), &"e".into())
        );
    }

    #[test]
    fn a_control_outlives_its_subscriber_without_harm() {
        let (subscriber, control) = subscriber(Format::Text, "info", std::io::sink, false).unwrap();
        drop(subscriber);
        assert!(matches!(control.set("debug"), Err(LogError::Gone)));
    }
}
