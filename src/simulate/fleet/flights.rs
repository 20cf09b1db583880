//! Which requests are between their arrival and their end?

use std::sync::Arc;
use std::time::Duration;

use super::names::names;
use super::run::Told;
use crate::engine::model::Named;
use crate::routing::block::{BlockKey, BlockSize, Scope, prompt_keys};
use crate::routing::router::{Prepared, Reservation};
use crate::routing::tokens::TokenCount;
use crate::simulate::workload::Arrival;

/// A request's place in the list; used again after its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlightId(usize);

/// One request.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) arrival: Arrival,
    /// It came after the warm-up.
    pub(super) counted: bool,
    pub(super) keys: Arc<[BlockKey]>,
    /// The same with the blocks of the answer, until an engine is asked; none where engines go by token ids.
    all_keys: Option<Vec<BlockKey>>,
    pub(super) prepared: Prepared,
    /// Held while it is on a replica.
    pub(super) reservation: Option<Reservation>,
    /// Cached tokens foreseen there.
    pub(super) foreseen: u64,
    /// When its client saw the first token. A request that is sent again keeps it.
    pub(super) first_token: Option<Duration>,
    /// It is offered until then.
    pub(super) patience: Option<Duration>,
}

impl Flight {
    /// Of a request that is to come.
    pub(super) fn new(arrival: Arrival) -> Self {
        Self {
            arrival,
            counted: false,
            keys: Arc::new([]),
            all_keys: None,
            prepared: Prepared::default(),
            reservation: None,
            foreseen: 0,
            first_token: None,
            patience: None,
        }
    }

    /// Whether an engine with this context length takes it. If not, that is so for ever.
    pub(super) fn fits(&self, max_model_len: usize) -> bool {
        let lengths = Named {
            prompt: self.arrival.prompt.tokens() as usize,
            output: self.arrival.output as usize,
            keys: Vec::new(),
        };
        lengths.check(max_model_len).is_ok()
    }

    /// Cuts its prompt into blocks, and the answer as well where engines go by names.
    pub(super) fn cut(&mut self, told: Told, size: BlockSize) {
        let prompt = &self.arrival.prompt;
        match told {
            Told::Keys => {
                let all_keys = self.names(size);
                let whole = (prompt.tokens() / size.get()) as usize;
                self.keys = all_keys.get(..whole).unwrap_or_default().into();
                self.all_keys = Some(all_keys);
            }
            Told::Events => {
                self.keys = prompt_keys(&prompt.token_ids(), size, &Scope::default()).into();
            }
        }
        let tokens = TokenCount::new(u64::from(prompt.tokens()));
        self.prepared = Prepared::of_keys(Arc::clone(&self.keys), tokens, size);
    }

    fn names(&self, size: BlockSize) -> Vec<BlockKey> {
        let mut segments = self.arrival.prompt.segments().to_vec();
        segments.push(self.arrival.answer_segment());
        names(&segments, size)
    }

    /// What an engine is asked, by names. Most requests are sent once: only for another time they are made again.
    pub(super) fn named(&mut self, size: BlockSize) -> Named {
        let all_keys = self.all_keys.take();
        Named {
            prompt: self.arrival.prompt.tokens() as usize,
            output: self.arrival.output as usize,
            keys: all_keys.unwrap_or_else(|| self.names(size)),
        }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Flights {
    places: Vec<Option<Flight>>,
    free: Vec<usize>,
}

impl Flights {
    pub(super) fn add(&mut self, flight: Flight) -> FlightId {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        if let Some(empty) = self.places.get_mut(place) {
            *empty = Some(flight);
        }
        FlightId(place)
    }

    pub(super) fn get_mut(&mut self, id: FlightId) -> Option<&mut Flight> {
        self.places.get_mut(id.0)?.as_mut()
    }

    pub(super) fn take(&mut self, id: FlightId) -> Option<Flight> {
        let flight = self.places.get_mut(id.0)?.take()?;
        self.free.push(id.0);
        Some(flight)
    }

    /// None is left.
    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }
}
