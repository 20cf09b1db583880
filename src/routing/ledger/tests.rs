//! Checks of the ledger's invariants, for the property tests at the router's door.

use super::*;

impl Ledger {
    /// Every endpoint's queued tokens are what its blocks and bookings still carry, and
    /// the overlay names exactly the blocks in flight.
    pub(in crate::routing) fn check(&self) {
        let mut flights = 0;
        for account in self.accounts.iter().flatten() {
            let charges: u64 = account.flights.all().map(|it| u64::from(it.2)).sum();
            let here = self
                .bookings
                .values()
                .filter(|b| b.endpoint() == Some(account.id));
            let (mut tails, mut in_flight, mut detached) = (0, 0, 0);
            for booking in here {
                tails += booking.tail();
                in_flight += 1;
                detached += u32::from(booking.is_detached());
            }
            assert_eq!(account.queued, charges + tails, "{:?}", account.id);
            assert_eq!(account.in_flight, in_flight, "{:?}", account.id);
            assert_eq!(account.detached, detached, "{:?}", account.id);
            assert!(account.flights.shared() <= account.flights.all().count());
            for (key, owner, _) in account.flights.all() {
                assert!(self.bookings.contains_key(&owner));
                let row = self.flying.row(key).unwrap();
                let slot = account.id.slot;
                assert_eq!(row[(slot / 64) as usize] >> (slot % 64) & 1, 1);
                flights += 1;
            }
        }
        for (id, booking) in &self.bookings {
            let flights = self.accounts.iter().flatten().flat_map(|a| a.flights.all());
            let owned = flights
                .filter(|&(_, owner, charge)| owner == *id && charge > 0)
                .count();
            assert_eq!(owned, booking.charged(), "{id:?}");
        }
        assert!(self.flying.len() <= flights);
    }

    /// No booking, no block in flight.
    pub(in crate::routing) fn assert_nothing_held(&self) {
        assert!(self.bookings.is_empty());
        assert_eq!(self.flying.len(), 0);
        assert!(
            self.accounts
                .iter()
                .flatten()
                .all(|account| account.flights.all().next().is_none())
        );
    }
}
