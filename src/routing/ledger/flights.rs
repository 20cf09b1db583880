//! Which blocks do requests in flight bring to one endpoint, and who pays for each?

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

use super::super::block::BlockKey;
use super::BookingId;

/// A block that a request in flight brings, or relies on being brought. Half as large as with the sharers in it, and a
/// pick makes one for each new block.
#[derive(Debug)]
struct Flight {
    /// Whose booking pays for it.
    owner: BookingId,
    /// Tokens booked for it and not yet seen prefilled.
    charge: u32,
    /// Others have it in their prompts as well.
    shared: bool,
}

/// What becomes of a block when a request that has it in its prompt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// Nothing: somebody else pays for it.
    Stays,
    /// A sibling that relied on it has to have it computed itself, for this charge.
    Inherited(BookingId, u32),
    /// Nobody brings it any more; what is given back.
    Gone(u32),
}

/// The flying blocks of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Flights {
    by_key: HashMap<BlockKey, Flight, ByKey>,
    /// Who else than its owner has a block in its prompt, of those that are shared; the first of them pays if the owner
    /// ends early.
    sharers: HashMap<BlockKey, Vec<BookingId>, ByKey>,
}

impl Flights {
    /// A request has the block in its prompt. True if nobody had: then this one pays the charge.
    #[inline]
    pub(super) fn join(&mut self, key: BlockKey, booking: BookingId, charge: u32) -> bool {
        match self.by_key.entry(key) {
            Entry::Occupied(mut place) => {
                place.get_mut().shared = true;
                self.sharers.entry(key).or_default().push(booking);
                false
            }
            Entry::Vacant(place) => {
                place.insert(Flight {
                    owner: booking,
                    charge,
                    shared: false,
                });
                true
            }
        }
    }

    /// The block is prefilled: who paid for it, and the charge, if there still was one.
    pub(super) fn uncharge(&mut self, key: BlockKey) -> Option<(BookingId, u32)> {
        let flight = self.by_key.get_mut(&key).filter(|it| it.charge > 0)?;
        Some((flight.owner, std::mem::take(&mut flight.charge)))
    }

    /// A request that has the block in its prompt ends.
    #[inline]
    pub(super) fn leave(&mut self, key: BlockKey, booking: BookingId) -> Left {
        let Entry::Occupied(mut place) = self.by_key.entry(key) else {
            return Left::Stays;
        };
        let flight = place.get_mut();
        let is_owner = flight.owner == booking;
        let mut heir = None;
        if flight.shared
            && let Entry::Occupied(mut others) = self.sharers.entry(key)
        {
            let sharers = others.get_mut();
            sharers.retain(|&sharer| sharer != booking);
            heir = (is_owner && !sharers.is_empty()).then(|| sharers.remove(0));
            flight.shared = !sharers.is_empty();
            if sharers.is_empty() {
                others.remove();
            }
        }
        match heir {
            _ if !is_owner => Left::Stays,
            Some(heir) => {
                flight.owner = heir;
                Left::Inherited(heir, flight.charge)
            }
            None => Left::Gone(place.remove().charge),
        }
    }

    /// The blocks.
    pub(super) fn keys(&self) -> impl Iterator<Item = BlockKey> {
        self.by_key.keys().copied()
    }

    /// Every block, who pays for it, and how much.
    #[cfg(test)]
    pub(super) fn all(&self) -> impl Iterator<Item = (BlockKey, BookingId, u32)> {
        let flights = self.by_key.iter();
        flights.map(|(&key, flight)| (key, flight.owner, flight.charge))
    }

    /// Blocks that are noted as shared.
    #[cfg(test)]
    pub(super) fn shared(&self) -> usize {
        assert_eq!(
            self.by_key.values().filter(|flight| flight.shared).count(),
            self.sharers.len()
        );
        self.sharers.len()
    }
}

/// Keys are hashes already. Against hashing them again: 0.9 of the time of a simulated request (`benches/simulate.rs`,
/// in turns on a busy machine).
type ByKey = BuildHasherDefault<KeyItself>;

/// Takes a key for its own hash.
#[derive(Debug, Default)]
pub(super) struct KeyItself(u64);

impl Hasher for KeyItself {
    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
