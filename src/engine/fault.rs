//! What may be made to go wrong: a closed set, applied where the simulated engine meets the world.

mod active;
mod of_rank;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub(super) use active::Faults;
pub use of_rank::{RankFault, RankFaultError};

/// What stands behind a fault's `=`.
trait Argument: Copy {
    fn read(text: &str) -> Option<Self>;
    fn number(self) -> u128;
}

/// So many times.
impl Argument for u32 {
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn number(self) -> u128 {
        self.into()
    }
}

/// In milliseconds.
impl Argument for Duration {
    fn read(text: &str) -> Option<Self> {
        let ms: u32 = text.parse().ok()?;
        Some(Self::from_millis(ms.into()))
    }

    fn number(self) -> u128 {
        self.as_millis()
    }
}

/// Makes the set, its names and its help of one table: a line for each says what it does and whom it befalls.
macro_rules! faults {
    (@read $variant:ident, $value:expr) => { $value.is_none().then_some(Self::$variant) };
    (@read $variant:ident, $value:expr, $argument:tt) => {
        $value.and_then(<$argument as Argument>::read).map(Self::$variant)
    };
    (@any $argument:tt) => { _ };
    (@placeholder u32) => { "=N" };
    (@placeholder Duration) => { "=MS" };
    (@is_server server) => { true };
    (@is_server rank) => { false };
    ($(#[doc = $what:literal] $variant:ident $(($binding:ident: $argument:tt))? = $name:literal of $whom:tt;)+) => {
        /// One way to misbehave. One with a count ends when that is used up, the others when they are told to or have
        /// happened.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Fault {
            $(#[doc = $what] $variant $(($argument))?,)+
        }

        /// Every fault as it is written, and what it does.
        const LIST: &[(&str, &str)] = &[
            $((concat!($name, $(faults!(@placeholder $argument))?), $what),)+
        ];

        impl Fault {
            fn read(name: &str, value: Option<&str>) -> Option<Self> {
                match name {
                    $($name => faults!(@read $variant, value $(, $argument)?),)+
                    _ => None,
                }
            }

            /// It befalls the server, whichever rank computes.
            const fn is_of_server(self) -> bool {
                match self {
                    $(Self::$variant $((faults!(@any $argument)))? => faults!(@is_server $whom),)+
                }
            }
        }

        impl fmt::Display for Fault {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$variant $(($binding))? => {
                        f.write_str($name)?;
                        $(write!(f, "={}", $binding.number())?;)?
                    })+
                }
                Ok(())
            }
        }
    };
}

faults! {
    #[doc = "The next batches are numbered and kept for replay, but not sent (a gap)."]
    DropEvents(batches: u32) = "drop-events" of rank;
    #[doc = "The next removals are in no batch, live or replayed: phantoms for whoever believes the events."]
    DropRemovals(events: u32) = "drop-removals" of rank;
    #[doc = "The next stores are in no batch, live or replayed."]
    DropStores(events: u32) = "drop-stores" of rank;
    #[doc = "The next batches are sent as bytes that nobody can read; a replay has them whole."]
    GarbageBatch(batches: u32) = "garbage-batch" of rank;
    #[doc = "The next batches begin with an event of a type that nobody knows."]
    OddEvent(batches: u32) = "odd-event" of rank;
    #[doc = "Every batch is sent twice."]
    DuplicateBatch = "duplicate-batch" of rank;
    #[doc = "Every second batch is sent before the one that it follows."]
    Reorder = "reorder" of rank;
    #[doc = "Batches are numbered, kept and sent that much late."]
    SlowPublish(delay: Duration) = "slow-publish" of rank;
    #[doc = "Batches wait unnumbered until this ends, then leave in order; a full queue of them stops the engine."]
    HoldEvents = "hold-events" of rank;
    #[doc = "Batches are neither numbered, kept nor sent."]
    SilentPublisher = "silent-publisher" of rank;
    #[doc = "Connections to the live events stay open but nothing comes; batches are numbered and kept."]
    HalfOpen = "half-open" of rank;
    #[doc = "The live events' socket does not listen, as vLLM's for tcp://0.0.0.0; batches are numbered and kept."]
    PublishNowhere = "publish-nowhere" of rank;
    #[doc = "Numbering begins again at 0 and the kept batches are gone, as after a restart. Happens once."]
    RestartSeq = "restart-seq" of rank;
    #[doc = "Replay requests are not answered."]
    NoReplay = "no-replay" of rank;
    #[doc = "Replays stop before their end marker."]
    LoseEndMarker = "lose-end-marker" of rank;
    #[doc = "Replays leave out a third of their batches, in the middle."]
    LoseReplayBatches = "lose-replay-batches" of rank;
    #[doc = "A pause before each replayed batch."]
    SlowReplay(pause: Duration) = "slow-replay" of rank;
    #[doc = "The cache is cleared, and says so only with the next step. Happens once, as soon as no request runs."]
    ResetWithoutEvent = "reset-without-event" of rank;
    #[doc = "Asleep, as after POST /sleep?level=1: requests wait, the cache is gone and says so only when awake."]
    Sleep = "sleep" of rank;
    #[doc = "The scheduler makes no step: requests wait for ever, while health and metrics answer."]
    Stall = "stall" of rank;
    #[doc = "The next requests are answered 503."]
    Refuse(requests: u32) = "refuse" of server;
    #[doc = "All requests are answered 503, as if --max-num-queued-reqs were always reached."]
    QueueFull = "queue-full" of server;
    #[doc = "Answers do not tell how many prompt tokens were cached."]
    NoUsageDetails = "no-usage-details" of server;
    #[doc = "Chats are rendered with a preamble that the model's files do not have, as by --chat-template."]
    WrongTokens = "wrong-tokens" of server;
    #[doc = "HTTP requests are taken and never answered (the routes under /sim still are)."]
    HangHttp = "hang-http" of server;
    #[doc = "The metrics page answers 500."]
    Metrics500 = "metrics-500" of server;
    #[doc = "The metrics page answers 404."]
    NoMetrics = "no-metrics" of server;
    #[doc = "The metrics page answers 200 without any sample."]
    EmptyMetrics = "empty-metrics" of server;
    #[doc = "The metrics page stays as it was when the fault was set."]
    StaleMetrics = "stale-metrics" of server;
}

/// Text that names no fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no fault; there are:\n{list}", list = help())]
pub struct UnknownFault(String);

impl FromStr for Fault {
    type Err = UnknownFault;

    fn from_str(text: &str) -> Result<Self, UnknownFault> {
        let (name, value) = text
            .split_once('=')
            .map_or((text, None), |(name, value)| (name, Some(value)));
        Self::read(name, value).ok_or_else(|| UnknownFault(text.to_owned()))
    }
}

/// All faults, a line each, for the command line's help.
pub(super) fn help() -> String {
    let line = |(name, what): &(&str, &str)| format!("  {name:<22}{what}\n");
    LIST.iter().map(line).collect()
}

#[cfg(test)]
mod tests;
