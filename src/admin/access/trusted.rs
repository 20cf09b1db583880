//! For which tokens was a page shown lately? Their reviews do not wait behind those of tokens that nobody knows.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::TokenDigest;

/// Tokens at most; a cluster has a handful of scrapers.
const MOST: usize = 64;

/// How long it matters that a page was shown: a scraper comes every minute, or was changed.
const LATELY: Duration = Duration::from_secs(600);

/// Tokens by the time of the last page. It opens nothing: each page is still a question of its own.
///
/// The lock guards the table; it is held for a look or a sweep over at most [`MOST`] entries.
#[derive(Default)]
pub(super) struct Trusted {
    shown: Mutex<HashMap<TokenDigest, Instant>>,
}

impl Trusted {
    pub(super) fn has(&self, token: &TokenDigest) -> bool {
        let shown = self.shown.lock();
        shown.get(token).is_some_and(|last| last.elapsed() < LATELY)
    }

    /// A page is shown for this token.
    pub(super) fn add(&self, token: TokenDigest) {
        let mut shown = self.shown.lock();
        if shown.len() >= MOST && !shown.contains_key(&token) {
            let oldest = shown.iter().min_by_key(|(_, last)| **last);
            if let Some((&oldest, _)) = oldest {
                shown.remove(&oldest);
            }
        }
        shown.insert(token, Instant::now());
    }
}
