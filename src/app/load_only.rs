//! A pick by load alone, for a build without the request's path between wire and decision.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::extproc::pick::{Flight, Pick, Rejection, RequestBody, RequestHead, Usage};
use crate::feeds::load::Waker;
use crate::routing::router::{Ask, Prepared, Refusal, Reservation, Router};

/// Picks the endpoint with the least queued tokens; bodies are not read.
pub(super) struct LoadOnly {
    router: Arc<Router>,
    waker: Arc<Waker>,
    alternates: usize,
}

impl LoadOnly {
    pub(super) const fn new(router: Arc<Router>, waker: Arc<Waker>, alternates: usize) -> Self {
        Self {
            router,
            waker,
            alternates,
        }
    }
}

impl Pick for LoadOnly {
    type Flight = Booked;

    async fn pick(&self, head: RequestHead, _body: RequestBody) -> Result<Booked, Rejection> {
        let ask = Ask {
            subset: head.subset.as_deref(),
            alternates: self.alternates,
            now: Instant::now(),
            chance: fastrand::u64(..),
        };
        let unavailable = |refusal: Refusal| Rejection::Unavailable(refusal.to_string());
        let decision = self
            .router
            .pick(&Prepared::default(), &ask)
            .map_err(unavailable)?;
        if decision.woke {
            self.waker.wake(decision.id);
        }
        let choices = std::iter::once(decision.address).chain(decision.alternates);
        let destination = choices
            .map(|address| address.to_string())
            .collect::<Vec<_>>()
            .join(",");
        Ok(Booked {
            destination,
            reservation: decision.reservation,
        })
    }
}

/// A pick in flight.
pub(super) struct Booked {
    destination: String,
    reservation: Reservation,
}

impl Flight for Booked {
    fn destination(&self) -> &str {
        &self.destination
    }

    fn response_started(&mut self, _status: u16) {}

    fn served_by(&mut self, address: SocketAddr) {
        self.reservation.served_by(address, Instant::now());
    }

    fn first_data(&mut self) {
        self.reservation.prefilled(Instant::now());
    }

    fn usage(&mut self, _usage: Usage) {}

    fn completed(&mut self) {}

    fn no_response_phase(self) {
        self.reservation.detach(Instant::now());
    }
}
