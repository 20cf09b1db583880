//! What becomes of a pick's booking: prefilled, moved, left to itself, given back.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::super::endpoint::EndpointId;
use super::super::ledger::{BookingId, FirstBlockStored, Served, Watch};
use super::{Prepared, State};

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

    /// The watch on the request's first block; `None` where what becomes of that tells nothing. It outlives the
    /// reservation, because events may come a little later than the answer's end.
    pub fn first_block(&self) -> Option<FirstBlock> {
        let (endpoint, watch) = self.state.ledger.lock().watch_of(self.booking?)?;
        Some(FirstBlock {
            state: Arc::clone(&self.state),
            endpoint,
            watch,
        })
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

/// A request's first block at the endpoint that got it.
pub struct FirstBlock {
    state: Arc<State>,
    endpoint: EndpointId,
    watch: Arc<Watch>,
}

impl FirstBlock {
    /// What has become of it by now. Once [`FirstBlockStored::Yes`] it stays so.
    pub fn stored(&self) -> FirstBlockStored {
        // The index is asked first: the two locks are never held together.
        let found = self.state.index.lookup(&[self.watch.key()]);
        let ledger = self.state.ledger.lock();
        ledger.first_block(self.endpoint, &self.watch, &found)
    }
}

impl fmt::Debug for FirstBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirstBlock")
            .field("endpoint", &self.endpoint)
            .field("watch", &self.watch)
            .finish_non_exhaustive()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.give_back();
    }
}
