//! How are delays, outages and the like given on the command line?

use std::str::FromStr;
use std::time::Duration;

use super::{Outage, Settings, WarmUp};
use crate::config::units::{Span, SpanOrZero};

/// How the fleet is observed and what befalls it; what kind of engines it has is told elsewhere.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Fleet")]
pub struct Args {
    /// How late the picker knows KV events
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub event_delay: SpanOrZero,
    /// How late engines' reports are
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub report_delay: SpanOrZero,
    /// Time between two reports of an engine
    #[arg(long, value_name = "DURATION", default_value = "125ms")]
    pub report_interval: Span,
    /// A replica (counted from 0) dies at a time for a time, for example 3@60s+30s; may be repeated
    #[arg(long = "outage", value_name = "REPLICA@AT+FOR")]
    pub outages: Vec<Outage>,
    /// Time at the beginning whose requests do not count
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub warm_up: SpanOrZero,
    /// How long a request is offered again while no replica can take it
    #[arg(long, value_name = "DURATION", default_value = "1m")]
    pub patience: SpanOrZero,
}

impl Args {
    /// Enters them into the settings of a fleet.
    pub fn apply(&self, settings: &mut Settings) {
        settings.event_delay = self.event_delay.0;
        settings.report_delay = self.report_delay.0;
        settings.report_interval = self.report_interval.0;
        settings.outages.clone_from(&self.outages);
        settings.warm_up = WarmUp::Time(self.warm_up.0);
        settings.patience = self.patience.0;
    }
}

/// Why an outage was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not an outage: a replica's number, when it dies and for how long, for example 3@60s+30s"
)]
pub struct BadOutage(String);

impl FromStr for Outage {
    type Err = BadOutage;

    fn from_str(written: &str) -> Result<Self, BadOutage> {
        parse(written).ok_or_else(|| BadOutage(written.to_owned()))
    }
}

fn parse(written: &str) -> Option<Outage> {
    let (replica, times) = written.trim().split_once('@')?;
    let (at, lasts) = times.split_once('+')?;
    let duration = |text: &str| -> Option<Duration> {
        let SpanOrZero(span) = text.parse().ok()?;
        Some(span)
    };
    Some(Outage {
        replica: replica.parse().ok()?,
        at: duration(at)?,
        lasts: duration(lasts)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_a_replica_a_time_and_a_length_and_nothing_else() {
        let outage = Outage {
            replica: 3,
            at: Duration::from_secs(60),
            lasts: Duration::from_millis(500),
        };
        assert_eq!("3@60s+500ms".parse(), Ok(outage));
        for bad in [
            "",
            "3",
            "3@60s",
            "@60s+1s",
            "3@60+1s",
            "-1@1s+1s",
            "3@1s+1s+1s",
        ] {
            assert_eq!(bad.parse::<Outage>(), Err(BadOutage(bad.to_owned())));
        }
    }
}
