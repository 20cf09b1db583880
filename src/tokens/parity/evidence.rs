//! Do engines store the first blocks of prompts as we cut them? What one way of making tokens has against it. Pure.

/// Prompts in a row whose first block was not stored, before the way is distrusted: events and answers race, and one
/// or two may cross.
const ENOUGH_AGAINST: u32 = 4;

/// Prompts in a row whose first block was stored, before it is trusted again.
const ENOUGH_FOR: u32 = 3;

/// What a prompt began with here and what an engine stored, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Beginnings {
    pub(super) ours: Vec<u32>,
    pub(super) stored: Vec<u32>,
}

/// What was seen of one way.
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence {
    against: u32,
    confirmed: u32,
    distrusted: Option<Beginnings>,
}

impl Evidence {
    /// A prompt's first block was stored.
    pub(super) fn stored(&mut self) {
        self.against = 0;
        self.confirmed = self.confirmed.saturating_add(1);
        if self.confirmed >= ENOUGH_FOR {
            self.distrusted = None;
        }
    }

    /// Another one was stored in its place.
    pub(super) fn missing(&mut self, beginnings: Beginnings) {
        self.confirmed = 0;
        self.against = self.against.saturating_add(1);
        if self.against >= ENOUGH_AGAINST || self.distrusted.is_some() {
            self.distrusted = Some(beginnings);
        }
    }

    /// Why it is distrusted, if it is.
    pub(super) fn distrusted(&self) -> Option<&Beginnings> {
        self.distrusted.as_ref()
    }
}
