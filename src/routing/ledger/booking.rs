//! One request's booking: made, covered by events, prefilled, moved, ended.
//!
//! What is booked lies in two parts. Each block that the endpoint does not have yet
//! and nobody else is bringing is a *charge* on the block itself, so an event that
//! stores the block finds it, and siblings find it as good as cached. What fits no
//! block (the last tokens, or the whole block that a fully cached prompt computes
//! again) is the booking's *tail*.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::block::BlockKey;
use super::super::cost::{self, Cached, Run};
use super::super::endpoint::EndpointId;
use super::super::router::prompts::{Chain, Found};
use super::super::tokens::TokenCount;
use super::account::Account;
use super::compare::{Foreseen, Reach};
use super::flights::Left;
use super::{BookingId, Ledger, Prefill, Watch};

/// A request on its endpoint.
#[derive(Debug)]
pub(super) struct Booking {
    /// `None` once its endpoint left.
    endpoint: Option<EndpointId>,
    /// Every block of its prompts that was not in the index when it was picked.
    keys: Vec<BlockKey>,
    /// How many of them it owns that still carry a charge.
    charged: usize,
    /// Some of them were flying already.
    shares: bool,
    /// Tokens booked that are no whole uncached block.
    tail: u64,
    prefilled: bool,
    /// Nobody will tell of its end.
    detached: bool,
    /// From when its prefill is timed; `None` when that would teach nothing.
    timed_from: Option<Instant>,
    since: Instant,
    /// Tokens to prefill before its first token: the queue ahead of it and its own.
    work: u64,
    /// What its answer is compared with, if that can be compared.
    foreseen: Option<Foreseen>,
    first_block: Option<Arc<Watch>>,
}

impl Booking {
    pub(super) fn endpoint(&self) -> Option<EndpointId> {
        self.endpoint
    }

    /// Its endpoint left: nothing is booked any more.
    pub(super) fn void(&mut self) {
        self.endpoint = None;
        self.keys.clear();
        self.charged = 0;
        self.tail = 0;
        self.foreseen = None;
    }

    pub(super) fn foreseen(&self) -> Option<&Foreseen> {
        self.foreseen.as_ref()
    }

    pub(super) fn since(&self) -> Instant {
        self.since
    }

    pub(super) fn is_prefilled(&self) -> bool {
        self.prefilled
    }

    /// Its first block, where what becomes of it tells something.
    pub(super) fn first_block(&self) -> Option<Arc<Watch>> {
        self.first_block.clone()
    }

    pub(super) fn is_detached(&self) -> bool {
        self.detached
    }

    pub(super) fn was_made_before(&self, moment: Instant) -> bool {
        self.since < moment
    }

    #[cfg(test)]
    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    #[cfg(test)]
    pub(super) fn charged(&self) -> usize {
        self.charged
    }
}

/// How a request is booked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms<'a> {
    pub(super) chains: &'a [Chain],
    pub(super) found: &'a Found,
    /// The whole request's tokens; more than the chains' when they could not be cut.
    pub(super) prompt: TokenCount,
    pub(super) prefill: Prefill,
    pub(super) now: Instant,
}

/// What an endpoint has of one chain, in blocks from the first one on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// By the index.
    matched: Run,
    /// At hand by the index, or brought by an earlier prompt of the same request.
    start: usize,
    /// The same, and then what requests in flight bring.
    reach: usize,
}

impl Extent {
    /// The same with the blocks on a slower tier, which an engine reports as cached as well.
    pub(super) fn whole(self) -> Reach {
        let Run {
            at_hand, beneath, ..
        } = self.matched;
        let found = usize::try_from(at_hand + beneath).unwrap_or(usize::MAX);
        Reach {
            held: self.start.max(found),
            foreseen: self.reach.max(found),
        }
    }
}

impl Ledger {
    /// How far a chain is cached at an endpoint by what an index found there.
    pub(super) fn extent(
        &self,
        slot: u32,
        keys: &[BlockKey],
        matched: Run,
        brought: usize,
    ) -> Extent {
        let at_hand = usize::try_from(matched.at_hand).unwrap_or(usize::MAX);
        let start = at_hand.max(brought);
        Extent {
            matched,
            start,
            reach: self.reach_at(slot, keys, start),
        }
    }

    /// Books a request on an endpoint; `None` when the endpoint is gone.
    pub(super) fn book(&mut self, id: EndpointId, terms: Terms<'_>) -> Option<BookingId> {
        let size = self.size_of(self.account(id)?);
        let matches = self.matches_at(id.slot, size, terms.found);
        let booking_id = self.next_booking;
        self.next_booking = booking_id.next();
        let mut booking = Booking {
            endpoint: Some(id),
            keys: Vec::new(),
            charged: 0,
            shares: false,
            tail: 0,
            prefilled: false,
            detached: false,
            timed_from: Some(terms.now),
            since: terms.now,
            work: 0,
            foreseen: None,
            first_block: None,
        };
        let ahead = self.account(id)?.queued;
        let in_chains: TokenCount = terms.chains.iter().map(|chain| chain.prompt).sum();
        let mut own = terms.prompt.saturating_sub(in_chains).get();
        booking.tail = own;
        for (i, chain) in terms.chains.iter().enumerate() {
            let matched = matches.get(i).copied().unwrap_or_default();
            let extent = self.extent(id.slot, &chain.keys, matched, chain.brought);
            booking.foreseen = self.foresee(id, size, &terms, extent.whole());
            own += self.book_chain(id, booking_id, &mut booking, chain, extent, terms.prefill);
        }
        booking.work = ahead.saturating_add(own);
        let tail = booking.tail;
        let account = self.account_mut(id)?;
        account.queued = account.queued.saturating_add(tail);
        account.in_flight += 1;
        account.booked += 1;
        account.note_busy(terms.now);
        account.progress.booked(terms.now);
        // What does not look into the cache is computed whether or not it is there.
        if terms.prefill == Prefill::Uncached {
            booking.first_block = account.watch_first_block(terms.chains, &matches);
        }
        self.bookings.insert(booking_id, booking);
        Some(booking_id)
    }

    /// Books one prompt; its uncached tokens, and what bringing others from a slower tier costs.
    fn book_chain(
        &mut self,
        id: EndpointId,
        booking_id: BookingId,
        booking: &mut Booking,
        chain: &Chain,
        extent: Extent,
        prefill: Prefill,
    ) -> u64 {
        let Extent {
            matched,
            start,
            reach,
        } = extent;
        let cached = match prefill {
            Prefill::Uncached => {
                let run = matched.reaching(reach as u64);
                cost::cached(chain.prompt, chain.tokens_a_block, run)
            }
            Prefill::Whole => Cached::default(),
        };
        let uncached = chain.prompt.saturating_sub(cached.tokens).get();
        // Blocks from a slower tier are brought, not computed: siblings find them, but no store
        // that tells of one ends a part of the prefill.
        let below = cached.below.get().checked_div(chain.tokens_a_block);
        let brought_until = reach + usize::try_from(below.unwrap_or(0)).unwrap_or(0);
        // A prompt that does not look into the cache is computed whole: its blocks
        // come, but no store tells how far it is.
        let charge = match prefill {
            Prefill::Uncached => u32::try_from(chain.tokens_a_block).unwrap_or(u32::MAX),
            Prefill::Whole => 0,
        };
        let Some(account) = self
            .accounts
            .get_mut(id.slot as usize)
            .and_then(Option::as_mut)
        else {
            return 0;
        };
        let mut in_blocks = 0;
        for (i, &key) in chain.keys.iter().enumerate().skip(start) {
            let charge = if (reach..brought_until).contains(&i) {
                0
            } else {
                charge
            };
            if account.flights.join(key, booking_id, charge) {
                self.flying.set(key, id.slot);
                account.queued = account.queued.saturating_add(charge.into());
                booking.charged += usize::from(charge > 0);
                in_blocks += u64::from(charge);
            } else {
                booking.shares = true;
                // Somebody pays for it already, though it lies behind a gap.
                in_blocks += if i >= reach { u64::from(charge) } else { 0 };
            }
        }
        booking.keys.extend(chain.keys.iter().skip(start));
        let load = cached.load.get();
        booking.tail += uncached.saturating_sub(in_blocks) + load;
        uncached + load
    }

    /// The engine stored these blocks: whoever booked them is so much further.
    pub(in crate::routing) fn stored(&mut self, id: EndpointId, keys: &[BlockKey]) {
        let mut covered = Vec::new();
        let Some(account) = self
            .accounts
            .get_mut(id.slot as usize)
            .and_then(Option::as_mut)
        else {
            return;
        };
        if account.id != id || keys.is_empty() {
            return;
        }
        account.roots.note_store();
        account.trust.announced(keys);
        account.uncharge(keys, &mut covered);
        self.uncharge_owners(covered);
    }

    /// The first data came: all of the prompt is prefilled.
    pub(in crate::routing) fn prefilled(&mut self, booking_id: BookingId, now: Instant) {
        let Some(booking) = self.bookings.get_mut(&booking_id).filter(|b| !b.prefilled) else {
            return;
        };
        booking.prefilled = true;
        let (work, timed_from) = (booking.work, booking.timed_from.take());
        // Mostly events have told of all of its blocks.
        let is_charged = booking.charged > 0 || booking.shares;
        let keys = std::mem::take(&mut booking.keys);
        let tail = std::mem::take(&mut booking.tail);
        let Some(id) = booking.endpoint else {
            return;
        };
        let mut covered = Vec::new();
        if let Some(account) = self.account_mut(id) {
            if is_charged {
                account.uncharge(&keys, &mut covered);
            }
            account.take_charge(tail);
            if let Some(from) = timed_from.filter(|&from| account.progress.is_steady_since(from)) {
                account.learn_prefill(work, now.saturating_duration_since(from));
            }
            account.progress.sign(now);
        }
        // The blocks stay as good as cached for siblings until the request ends: the
        // event that puts them into the index may come a little later than the data.
        if let Some(booking) = self.bookings.get_mut(&booking_id) {
            booking.keys = keys;
        }
        self.uncharge_owners(covered);
    }

    /// The request is over, however it ended: whatever is still booked is given back.
    pub(in crate::routing) fn end(&mut self, booking_id: BookingId) {
        let Some(booking) = self.bookings.remove(&booking_id) else {
            return;
        };
        let Some(account) = booking
            .endpoint
            .and_then(|id| self.accounts.get_mut(id.slot as usize))
            .and_then(Option::as_mut)
        else {
            return;
        };
        account.take_charge(booking.tail);
        let mut given_back = 0;
        for &key in &booking.keys {
            match account.flights.leave(key, booking_id) {
                Left::Stays => {}
                Left::Gone(charge) => {
                    given_back += u64::from(charge);
                    self.flying.clear(key, account.id.slot);
                }
                Left::Inherited(heir, charge) => {
                    if charge > 0
                        && let Some(heir) = self.bookings.get_mut(&heir)
                    {
                        heir.charged += 1;
                    }
                }
            }
        }
        account.take_charge(given_back);
        account.in_flight = account.in_flight.saturating_sub(1);
        let detached = u32::from(booking.detached);
        account.detached = account.detached.saturating_sub(detached);
        account.progress.ended(booking.since);
        account.note_released();
    }

    /// Nobody will tell of this request's end, at most that its answer began.
    pub(in crate::routing) fn detach(
        &mut self,
        booking_id: BookingId,
        answered: bool,
        now: Instant,
    ) {
        let Some(booking) = self.bookings.get_mut(&booking_id) else {
            return;
        };
        booking.detached = true;
        booking.timed_from = None;
        let (since, work) = (booking.since, booking.work);
        let (charged, tail, endpoint) = (booking.charged, booking.tail, booking.endpoint);
        if let Some(account) = endpoint.and_then(|id| self.account_mut(id)) {
            account.note_detached(answered, now);
        }
        let Some(id) = endpoint.filter(|_| charged > 0 || tail > 0) else {
            self.end(booking_id);
            return;
        };
        let until = since + self.prefill_time(id, work);
        if until <= now {
            self.end(booking_id);
        } else {
            self.detached.push(Reverse((until, booking_id)));
        }
    }

    /// Ends detached bookings whose prefill must be over.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(&Reverse((until, booking_id))) = self.detached.peek()
            && until <= now
        {
            self.detached.pop();
            self.end(booking_id);
        }
    }

    /// So many blocks are no longer charged to these bookings; one that has none left is
    /// as good as prefilled, its tail with it.
    fn uncharge_owners(&mut self, owners: Vec<(BookingId, usize)>) {
        for (owner, blocks) in owners {
            let Some(booking) = self.bookings.get_mut(&owner) else {
                continue;
            };
            booking.charged = booking.charged.saturating_sub(blocks);
            if booking.charged > 0 {
                continue;
            }
            let tail = std::mem::take(&mut booking.tail);
            let (endpoint, over) = (booking.endpoint, booking.is_detached());
            if let Some(account) = endpoint.and_then(|id| self.account_mut(id)) {
                account.take_charge(tail);
                account.note_released();
            }
            if over {
                self.end(owner);
            }
        }
    }

    /// How long the endpoint is taken to need for so many tokens.
    fn prefill_time(&self, id: EndpointId, tokens: u64) -> Duration {
        let us_per_token = self
            .account(id)
            .and_then(|account| account.prefill_us_per_token)
            .unwrap_or_else(|| self.typical_prefill_us_per_token());
        let seconds = us_per_token * tokens as f64 / 1e6;
        // A prompt of absurd length waits an hour rather than overflow the clock.
        Duration::try_from_secs_f64(seconds)
            .unwrap_or(LONGEST_PREFILL)
            .min(LONGEST_PREFILL)
    }

    /// Moves a booking to the endpoint that really serves the request.
    pub(super) fn rebook(
        &mut self,
        old: BookingId,
        to: EndpointId,
        terms: Terms<'_>,
    ) -> Option<BookingId> {
        let was_prefilled = self.bookings.get(&old).is_some_and(|b| b.prefilled);
        self.end(old);
        let new = self.book(to, terms)?;
        if let Some(booking) = self.bookings.get_mut(&new) {
            // When the endpoint got the request is not known, so its time teaches nothing.
            booking.timed_from = None;
        }
        if was_prefilled {
            self.prefilled(new, terms.now);
        }
        Some(new)
    }
}

impl Account {
    /// These blocks are prefilled: takes their charges, and counts whose they were.
    fn uncharge(&mut self, keys: &[BlockKey], owners: &mut Vec<(BookingId, usize)>) {
        // All charges are part of it.
        if self.queued == 0 {
            return;
        }
        for &key in keys {
            if let Some((owner, charge)) = self.flights.uncharge(key) {
                note(owners, owner);
                self.take_charge(charge.into());
            }
        }
    }
}

/// No detached booking outlives this.
const LONGEST_PREFILL: Duration = Duration::from_secs(3600);

/// Counts one more block of an owner; a prompt's blocks mostly have the same one.
fn note(owners: &mut Vec<(BookingId, usize)>, owner: BookingId) {
    match owners.last_mut() {
        Some((last, blocks)) if *last == owner => *blocks += 1,
        _ => owners.push((owner, 1)),
    }
}
