//! Who is promised how many tokens: bookings, their release, and the lock that makes a pick and its booking one.
