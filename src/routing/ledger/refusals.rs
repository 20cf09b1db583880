//! Does an endpoint refuse what it is sent, and for how long is it left alone then?
//!
//! An engine at the limit of its queue answers 503 (vLLM since 0.29, `--max-num-queued-reqs`), a proxy before one that
//! it does not reach as well. Requests end at once there, so that it would seem the least busy of all and draw the
//! traffic of the whole pool. So a refusal leaves it out for a moment, longer while it goes on.

use std::time::{Duration, Instant};

use super::{BookingId, Ledger};

/// After the first refusal: a busy engine finishes some prefills in that time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// In the long run one request in so much time finds out whether it is over. Longer would cost more than it saves:
/// an endpoint that takes requests again is missed for as long.
const LONGEST_DOUBLED: Duration = Duration::from_secs(8);

/// Whatever `retry-after` says.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The refusals of one endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Refusals {
    last: Option<Refused>,
}

#[derive(Clone, Copy, Debug)]
struct Refused {
    at: Instant,
    pause: Duration,
}

impl Refused {
    fn until(self) -> Instant {
        self.at + self.pause
    }
}

impl Refusals {
    /// It is left alone.
    pub(super) fn hold(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now < last.until())
    }

    /// It refused a request that was sent at `sent`.
    fn refused(&mut self, sent: Instant, retry_after: Option<Duration>, now: Instant) {
        let pause = match self.last {
            // Many are refused together; those sent before the first of them was known tell nothing new.
            Some(last) if sent <= last.at => return,
            // Sent while it was left alone, because nobody else was left: no sign that the pause was too short.
            Some(last) if sent < last.until() => last.pause,
            Some(last) if now < last.until() + LONGEST_PAUSE => {
                (last.pause * 2).min(LONGEST_DOUBLED)
            }
            _ => FIRST_PAUSE,
        };
        let pause = pause
            .max(retry_after.unwrap_or_default())
            .min(LONGEST_PAUSE);
        self.last = Some(Refused { at: now, pause });
    }

    /// It answered a request that was sent at `sent`. One that it took before it refused others tells nothing of now.
    fn answered(&mut self, sent: Instant) {
        if self.last.is_some_and(|last| last.at < sent) {
            self.last = None;
        }
    }
}

impl Ledger {
    /// The endpoint refused this request.
    pub(in crate::routing) fn refused(
        &mut self,
        booking_id: BookingId,
        retry_after: Option<Duration>,
        now: Instant,
    ) {
        if let Some((refusals, sent)) = self.refusals_of(booking_id) {
            refusals.refused(sent, retry_after, now);
        }
    }

    /// The endpoint answered this request.
    pub(in crate::routing) fn answered(&mut self, booking_id: BookingId) {
        if let Some((refusals, sent)) = self.refusals_of(booking_id) {
            refusals.answered(sent);
        }
    }

    fn refusals_of(&mut self, booking_id: BookingId) -> Option<(&mut Refusals, Instant)> {
        let booking = self.bookings.get(&booking_id)?;
        let (id, sent) = (booking.endpoint()?, booking.since());
        Some((&mut self.account_mut(id)?.refusals, sent))
    }
}
