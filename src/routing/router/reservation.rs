//! What becomes of a pick's booking: prefilled, moved, left to itself, given back.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::super::ledger::{BookingId, Served};
use super::super::tokens::TokenCount;
use super::{Compared, Prepared, State};

/// Tokens booked on an endpoint for one request. Dropping it returns whatever is still booked.
pub struct Reservation {
    state: Arc<State>,
    /// `None` once detached, or given back because an unknown endpoint served.
    booking: Option<BookingId>,
    pub(super) prepared: Prepared,
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("booking", &self.booking)
            .field("prompt", &self.prepared.prompt)
            .finish_non_exhaustive()
    }
}

impl Reservation {
    pub(super) fn new(state: Arc<State>, booking: BookingId, prepared: Prepared) -> Self {
        Self {
            state,
            booking: Some(booking),
            prepared,
        }
    }

    /// The first data of the answer arrived: the prompt is prefilled.
    pub fn prefilled(&mut self, now: Instant) {
        if let Some(booking) = self.booking {
            self.state.ledger.lock().prefilled(booking, now);
        }
    }

    /// The gateway says another endpoint served: the booking moves there. An address
    /// that no endpoint of the pool has gives it back; the answer tells which it was.
    pub fn served_by(&mut self, address: SocketAddr, now: Instant) -> Served {
        let Some(booking) = self.booking else {
            return Served::Unknown;
        };
        let elsewhere = self.state.ledger.lock().elsewhere(booking, address);
        let to = match elsewhere {
            Ok(to) => to,
            Err(served) => {
                if served == Served::Unknown {
                    self.give_back();
                }
                return served;
            }
        };
        let found = self.state.look_up(&self.prepared);
        let wanted = self.prepared.wanted(&found);
        let moved = self.state.ledger.lock().move_to(booking, to, wanted, now);
        let Some((booking, sent)) = moved else {
            // It left between the two locks.
            self.give_back();
            return Served::Unknown;
        };
        self.booking = Some(booking);
        self.state.note_sent(&self.prepared, &sent, now);
        Served::Moved(to)
    }

    /// The answer ended in full and reported so many of the prompt's tokens as cached: learns from it, and says how
    /// it compares with what was foreseen. For answers of the endpoint picked alone, to requests whose tokens are known.
    pub fn reported(&self, cached: TokenCount, now: Instant) -> Compared {
        let Some(booking) = self.booking else {
            return Compared::UNKNOWN;
        };
        self.state.compare(booking, cached, now)
    }

    /// There will be no response phase: the booking stays until KV events cover it,
    /// or until the prefill time learnt for that endpoint has passed.
    pub fn detach(mut self, now: Instant) {
        if let Some(booking) = self.booking.take() {
            self.state.ledger.lock().detach(booking, now);
        }
    }

    fn give_back(&mut self) {
        if let Some(booking) = self.booking.take() {
            self.state.ledger.lock().end(booking);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.give_back();
    }
}
