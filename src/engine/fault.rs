//! What may be made to go wrong: a small closed set, applied where the simulated engine meets the world.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use parking_lot::Mutex;

/// One way to misbehave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The next batches are numbered and kept for replay, but not sent (a gap).
    DropEvents(u32),
    /// Batches are neither numbered, kept nor sent.
    SilentPublisher,
    /// Numbering begins again at 0 and the kept batches are gone, as after a restart. Happens once.
    RestartSeq,
    /// Replay requests are not answered.
    NoReplay,
    /// Replays stop before their end marker.
    LoseEndMarker,
    /// A pause before each replayed batch.
    SlowReplay(Duration),
    /// HTTP requests are taken and never answered (the routes under `/sim` still are).
    HangHttp,
    /// The metrics page answers 500.
    Metrics500,
    /// The metrics page answers 404.
    NoMetrics,
    /// The metrics page answers 200 without any sample.
    EmptyMetrics,
    /// The metrics page stays as it was when the fault was set.
    StaleMetrics,
}

/// Text that names no fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no fault: drop-events=N, silent-publisher, restart-seq, no-replay, lose-end-marker, slow-replay=MS, \
     hang-http, metrics-500, no-metrics, empty-metrics or stale-metrics"
)]
pub struct UnknownFault(String);

impl FromStr for Fault {
    type Err = UnknownFault;

    fn from_str(text: &str) -> Result<Self, UnknownFault> {
        let unknown = || UnknownFault(text.to_owned());
        let number = |value: Option<&str>| {
            let digits = value.ok_or_else(unknown)?;
            digits.parse::<u32>().map_err(|_| unknown())
        };
        let (name, value) = text
            .split_once('=')
            .map_or((text, None), |(name, value)| (name, Some(value)));
        match (name, value) {
            ("drop-events", value) => number(value).map(Self::DropEvents),
            ("slow-replay", value) => {
                let ms = number(value)?;
                Ok(Self::SlowReplay(Duration::from_millis(ms.into())))
            }
            ("silent-publisher", None) => Ok(Self::SilentPublisher),
            ("restart-seq", None) => Ok(Self::RestartSeq),
            ("no-replay", None) => Ok(Self::NoReplay),
            ("lose-end-marker", None) => Ok(Self::LoseEndMarker),
            ("hang-http", None) => Ok(Self::HangHttp),
            ("metrics-500", None) => Ok(Self::Metrics500),
            ("no-metrics", None) => Ok(Self::NoMetrics),
            ("empty-metrics", None) => Ok(Self::EmptyMetrics),
            ("stale-metrics", None) => Ok(Self::StaleMetrics),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DropEvents(batches) => write!(f, "drop-events={batches}"),
            Self::SlowReplay(pause) => write!(f, "slow-replay={}", pause.as_millis()),
            Self::SilentPublisher => f.write_str("silent-publisher"),
            Self::RestartSeq => f.write_str("restart-seq"),
            Self::NoReplay => f.write_str("no-replay"),
            Self::LoseEndMarker => f.write_str("lose-end-marker"),
            Self::HangHttp => f.write_str("hang-http"),
            Self::Metrics500 => f.write_str("metrics-500"),
            Self::NoMetrics => f.write_str("no-metrics"),
            Self::EmptyMetrics => f.write_str("empty-metrics"),
            Self::StaleMetrics => f.write_str("stale-metrics"),
        }
    }
}

impl Fault {
    /// It befalls the server, whichever rank computes.
    const fn is_of_server(self) -> bool {
        matches!(
            self,
            Self::HangHttp
                | Self::Metrics500
                | Self::NoMetrics
                | Self::EmptyMetrics
                | Self::StaleMetrics
        )
    }
}

/// A fault, and the rank that it befalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankFault {
    /// What goes wrong.
    pub fault: Fault,
    /// Where. `None`: at the first rank, or at the server if the fault is of that kind.
    pub rank: Option<u32>,
}

impl From<Fault> for RankFault {
    fn from(fault: Fault) -> Self {
        Self { fault, rank: None }
    }
}

/// Text that names no fault of a rank.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RankFaultError {
    /// Of no kind at all.
    #[error(transparent)]
    Unknown(#[from] UnknownFault),
    /// What stands behind the `@` is no number.
    #[error("{0:?} is not the number of a rank")]
    Rank(String),
    /// The server is one, however many ranks it has.
    #[error("{0} befalls the server and cannot be told a rank")]
    OfServer(Fault),
}

impl FromStr for RankFault {
    type Err = RankFaultError;

    fn from_str(text: &str) -> Result<Self, RankFaultError> {
        let Some((fault, rank)) = text.split_once('@') else {
            return Ok(text.parse::<Fault>()?.into());
        };
        let fault: Fault = fault.parse()?;
        if fault.is_of_server() {
            return Err(RankFaultError::OfServer(fault));
        }
        let number = rank
            .parse()
            .map_err(|_| RankFaultError::Rank(rank.to_owned()))?;
        Ok(Self {
            fault,
            rank: Some(number),
        })
    }
}

impl fmt::Display for RankFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fault.fmt(f)?;
        match self.rank {
            Some(rank) => write!(f, "@{rank}"),
            None => Ok(()),
        }
    }
}

/// The faults in force. The lock is held for a look at a handful of values.
#[derive(Debug, Default)]
pub(super) struct Faults(Mutex<Vec<Fault>>);

impl Faults {
    /// Those that befall rank `rank` from the start; the first rank's set is the server's as well.
    pub(super) fn of_rank(rank: u32, is_first: bool, initial: &[RankFault]) -> Self {
        let here = |at: Option<u32>| at.map_or(is_first, |at| at == rank);
        let faults = initial
            .iter()
            .filter(|fault| here(fault.rank))
            .map(|fault| fault.fault);
        Self(Mutex::new(faults.collect()))
    }

    /// Adds one; a second one of the same kind replaces the first.
    pub(super) fn set(&self, fault: Fault) {
        let mut active = self.0.lock();
        active.retain(|other| std::mem::discriminant(other) != std::mem::discriminant(&fault));
        active.push(fault);
    }

    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }

    pub(super) fn active(&self) -> Vec<Fault> {
        self.0.lock().clone()
    }

    pub(super) fn has(&self, fault: Fault) -> bool {
        self.0.lock().contains(&fault)
    }

    /// Uses up one of the batches to be dropped.
    pub(super) fn drops_this_batch(&self) -> bool {
        let mut active = self.0.lock();
        let left = active.iter_mut().find_map(|fault| match fault {
            Fault::DropEvents(left) => Some(left),
            _ => None,
        });
        let Some(left) = left else { return false };
        let drops = *left > 0;
        *left = left.saturating_sub(1);
        active.retain(|fault| *fault != Fault::DropEvents(0));
        drops
    }

    /// True once after the fault was set.
    pub(super) fn takes_restart(&self) -> bool {
        let mut active = self.0.lock();
        let before = active.len();
        active.retain(|fault| *fault != Fault::RestartSeq);
        active.len() < before
    }

    pub(super) fn replay_pause(&self) -> Option<Duration> {
        self.0.lock().iter().find_map(|fault| match fault {
            Fault::SlowReplay(pause) => Some(*pause),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_reads_back_as_it_prints() {
        for text in [
            "drop-events=3",
            "silent-publisher",
            "restart-seq",
            "no-replay",
            "lose-end-marker",
            "slow-replay=20",
            "hang-http",
            "metrics-500",
            "no-metrics",
            "empty-metrics",
            "stale-metrics",
        ] {
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        }
        for text in ["", "drop-events", "drop-events=x", "no-replay=1", "unplug"] {
            assert_eq!(text.parse::<Fault>(), Err(UnknownFault(text.to_owned())));
        }
    }

    #[test]
    fn a_fault_may_name_its_rank_unless_it_is_the_servers() {
        for text in ["drop-events=3@1", "no-replay@0", "no-replay", "hang-http"] {
            assert_eq!(text.parse::<RankFault>().unwrap().to_string(), text);
        }
        let refused = |text: &str| text.parse::<RankFault>().unwrap_err();
        assert_eq!(refused("no-replay@x"), RankFaultError::Rank("x".to_owned()));
        assert_eq!(
            refused("hang-http@1"),
            RankFaultError::OfServer(Fault::HangHttp)
        );
        assert_eq!(
            refused("unplug@1"),
            RankFaultError::Unknown(UnknownFault("unplug".to_owned()))
        );
        let initial: Vec<RankFault> =
            vec![Fault::NoReplay.into(), "restart-seq@5".parse().unwrap()];
        let [first, second] =
            [(4, true), (5, false)].map(|(rank, first)| Faults::of_rank(rank, first, &initial));
        assert_eq!(first.active(), [Fault::NoReplay]);
        assert_eq!(second.active(), [Fault::RestartSeq]);
    }

    #[test]
    fn dropped_batches_are_used_up_and_a_restart_happens_once() {
        let initial =
            ["drop-events=2", "restart-seq", "no-replay@1"].map(|text| text.parse().unwrap());
        let faults = Faults::of_rank(0, true, &initial);
        assert_eq!(
            [(); 3].map(|()| faults.drops_this_batch()),
            [true, true, false]
        );
        assert_eq!([(); 2].map(|()| faults.takes_restart()), [true, false]);
        assert!(faults.active().is_empty());
    }
}
