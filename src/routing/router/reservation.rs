//! What becomes of a pick's booking: prefilled, moved, left to itself, given back.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::block::BlockKey;
use super::super::endpoint::EndpointId;
use super::super::ledger::{BookingId, FirstBlockStored, Sent, Served, Watch};
use super::super::tokens::TokenCount;
use super::{Compared, Prepared, State};

/// Tokens booked on an endpoint for one request. Dropping it returns whatever is still booked.
pub struct Reservation {
    state: Arc<State>,
    /// `None` once detached, or given back because an unknown endpoint served.
    booking: Option<BookingId>,
    pub(super) prepared: Prepared,
    sent: Sent,
    /// When it was sent there.
    since: Instant,
    progress: Progress,
}

/// What is known of how the endpoint takes the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Nothing.
    Sent,
    /// It has begun to answer.
    Answered,
    /// It has prefilled the prompt.
    Prefilled,
    /// It does not compute it.
    Failed,
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
    pub(super) fn new(
        state: Arc<State>,
        booking: BookingId,
        prepared: Prepared,
        sent: Sent,
        since: Instant,
    ) -> Self {
        Self {
            state,
            booking: Some(booking),
            prepared,
            sent,
            since,
            progress: Progress::Sent,
        }
    }

    /// The answer began with this HTTP status, which is no refusal: the endpoint takes requests. After an error nothing
    /// is computed any more, so what is booked is given back.
    pub fn answered(&mut self, status: u16) {
        let Some(booking) = self.booking else {
            return;
        };
        self.state.ledger.lock().answered(booking);
        if status >= 400 {
            self.progress = Progress::Failed;
            self.give_back();
        } else {
            self.progress = Progress::Answered;
        }
    }

    /// The endpoint refused the request, as it would any other: it is left out for a moment, longer if that goes on or
    /// if it names a longer time. The booking is given back.
    pub fn refused(&mut self, retry_after: Option<Duration>, now: Instant) {
        if let Some(booking) = self.booking {
            self.state.ledger.lock().refused(booking, retry_after, now);
        }
        self.progress = Progress::Failed;
        self.give_back();
    }

    /// More data of the answer arrived. Costs next to nothing: no lock, no clock.
    pub fn more_data(&self) {
        // Once given back it says nothing of the endpoint: another one answers, or what came was an error.
        if self.booking.is_some() {
            self.sent.pulse.beat();
        }
    }

    /// The first data of the answer arrived: the prompt is prefilled.
    pub fn prefilled(&mut self, now: Instant) {
        let Some(booking) = self.booking else {
            return;
        };
        self.state.ledger.lock().prefilled(booking, now);
        if self.progress != Progress::Prefilled {
            self.progress = Progress::Prefilled;
            self.note_sent();
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
        (self.sent, self.since) = (sent, now);
        if self.progress == Progress::Prefilled {
            self.note_sent();
        }
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

    /// The watch on the request's first block; `None` where what becomes of that tells nothing. It outlives the
    /// reservation, because events may come a little later than the answer's end.
    /// `reported` are the prompt's tokens that the engine says it had cached.
    pub fn first_block(&self, reported: Option<TokenCount>) -> Option<FirstBlock> {
        let ledger = self.state.ledger.lock();
        let (endpoint, watch, computed) = ledger.watch_of(self.booking?, reported)?;
        drop(ledger);
        Some(FirstBlock {
            state: Arc::clone(&self.state),
            endpoint,
            watch,
            computed,
        })
    }

    /// There will be no response phase: the booking stays until KV events cover it,
    /// or until the prefill time learnt for that endpoint has passed.
    pub fn detach(mut self, now: Instant) {
        let Some(booking) = self.booking.take() else {
            return;
        };
        // What will become of it nobody tells, so it is taken to be computed.
        if self.progress != Progress::Prefilled {
            self.note_sent();
        }
        let answered = self.progress == Progress::Answered;
        self.state.ledger.lock().detach(booking, answered, now);
    }

    /// The request is over.
    pub fn end(mut self, now: Instant) {
        if let Some(booking) = self.booking.take() {
            self.state.ledger.lock().end_at(booking, now);
        }
    }

    /// From now on the prompt is taken to be cached there, where no event will tell. Until now it was as good as that
    /// for siblings, being booked; noted as it was sent, a prompt that was refused would pass for cached.
    fn note_sent(&self) {
        self.state.note_sent(&self.prepared, &self.sent, self.since);
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
    /// The first block that the engine computed, if it had the prompt's first one cached.
    computed: Option<BlockKey>,
}

impl FirstBlock {
    /// What has become of it by now. Once [`FirstBlockStored::Yes`] it stays so.
    pub fn stored(&self) -> FirstBlockStored {
        // The index is asked first: the two locks are never held together.
        let key = self.computed.unwrap_or_else(|| self.watch.key());
        let found = self.state.index.lookup(&[key]);
        let ledger = self.state.ledger.lock();
        ledger.first_block(self.endpoint, &self.watch, self.computed, &found)
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
