//! When was a block last touched? Moments in four bytes, because there is one for each of millions of blocks.

use std::time::Instant;

/// The clock of one list of blocks. A tick is 16 ms, so 32 bits last for two years.
#[derive(Debug, Default)]
pub(super) struct Ticks {
    began: Option<Instant>,
    /// The last tick noted: requests are noted in the order in which they come here, which
    /// may differ a little from the order of their picks.
    latest: u32,
    /// The engine has been another process since: what was picked for the former is not noted.
    since: u32,
}

impl Ticks {
    /// The tick under which to note something of this moment, never below the last one;
    /// `None` if another process has run since.
    pub(super) fn note(&mut self, moment: Instant) -> Option<u32> {
        let tick = self.at(moment);
        if tick < self.since {
            return None;
        }
        self.latest = self.latest.max(tick);
        Some(self.latest)
    }

    /// Another process has run since `moment`: the first tick of what is to stay. A request of
    /// that very tick counts as sent after it.
    pub(super) fn cut(&mut self, moment: Instant) -> u32 {
        let tick = self.at(moment);
        self.since = self.since.max(tick);
        tick
    }

    fn at(&mut self, moment: Instant) -> u32 {
        let began = *self.began.get_or_insert(moment);
        let ticks = moment.saturating_duration_since(began).as_millis() / 16;
        u32::try_from(ticks).unwrap_or(u32::MAX)
    }
}
