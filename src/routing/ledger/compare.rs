//! What was foreseen of a request's cached blocks, and what to make of the engine's own figure.
//!
//! The prediction is of the moment of the pick and the engine looks a little later. What events say changed between
//! the two is no fault of the view: a block that was removed meanwhile, or that another request brought. The engine's
//! prefix ends at the first block it lacks, so that one block decides.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::super::block::{BlockKey, BlockSize};
use super::super::cache::FeedState;
use super::super::endpoint::EndpointId;
use super::super::index::SourceId;
use super::super::tokens::TokenCount;
use super::account::Account;
use super::booking::Terms;
use super::credit::{Credits, Life};
use super::trust::{Evidence, TrustChange};
use super::{BookingId, FeedId, Ledger, Prefill};

/// Removed blocks remembered for each endpoint with requests in flight: 64 KiB, a quarter of a pool of 512,000 tokens.
const MAX_REMOVALS: usize = 8_192;

/// How far one index said that a prompt is cached.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::routing) struct Reach {
    /// Blocks that it held.
    pub(in crate::routing) held: usize,
    /// The same and those that requests in flight were bringing.
    pub(in crate::routing) foreseen: usize,
}

/// What was foreseen of one request with one prompt of known tokens.
#[derive(Debug)]
pub(super) struct Foreseen {
    pub(super) keys: Arc<[BlockKey]>,
    tokens_a_block: u64,
    /// Blocks that can be served from a cache: never the one of the last token.
    most: usize,
    served: Reach,
    is_approximate: bool,
    /// By the events, whichever index served.
    view: Option<Reach>,
    /// Removals told before.
    removals: u64,
    life: Option<Life>,
}

impl Foreseen {
    /// The first block that an engine computed which had so many tokens cached; `None` where that is the prompt's first
    /// one, or there is no whole one.
    pub(super) fn computed_after(&self, cached: TokenCount) -> Option<BlockKey> {
        let had = usize::try_from(cached.get().checked_div(self.tokens_a_block)?).ok()?;
        let key = self.keys.get(had).copied();
        key.filter(|_| had > 0 && had < self.most)
    }
}

/// All that is needed to judge an answer, taken out of the ledger.
#[derive(Debug)]
pub(in crate::routing) struct Comparison {
    pub(in crate::routing) id: EndpointId,
    pub(in crate::routing) keys: Arc<[BlockKey]>,
    pub(in crate::routing) tokens_a_block: u64,
    /// Blocks that the engine had.
    pub(in crate::routing) reported: usize,
    pub(in crate::routing) most: usize,
    pub(in crate::routing) served: Reach,
    /// The pick was by the approximate index.
    pub(in crate::routing) is_approximate: bool,
    pub(in crate::routing) view: Option<Reach>,
    /// The first block that the engine lacked was removed since the pick, as events tell.
    pub(in crate::routing) was_removed: bool,
    /// The last block that it computed was removed again.
    pub(in crate::routing) computed_was_removed: bool,
    pub(in crate::routing) sources: Vec<SourceId>,
    /// Where to credit, with the life of the pick; `None` where ranks share the endpoint, of which the answer may
    /// come from any.
    pub(in crate::routing) credits: Option<(Arc<Credits>, Life)>,
    pub(in crate::routing) capacity: TokenCount,
    pub(in crate::routing) picked_at: Instant,
    pub(in crate::routing) feed: Standing,
}

/// What the feeds say of themselves, as far as it bears on an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::routing) enum Standing {
    /// The view is whole.
    Whole,
    /// It may lack blocks, and says so.
    Incomplete,
    /// It is being caught up with, or is not there: nothing can be held against it.
    Unsure,
}

/// Blocks removed at an endpoint while something is in flight there, by number instead of time: events carry none.
/// Measured at 1 ns a block in events that take 28.
#[derive(Debug, Default)]
pub(super) struct Removals {
    latest: VecDeque<BlockKey>,
    told: u64,
}

impl Removals {
    /// These left. With nothing in flight nobody will ask.
    fn note(&mut self, keys: &[BlockKey], in_flight: bool) {
        if !in_flight {
            self.latest.clear();
            return;
        }
        self.told += keys.len() as u64;
        let kept = keys.len().min(MAX_REMOVALS);
        let over = (self.latest.len() + kept).saturating_sub(MAX_REMOVALS);
        self.latest.drain(..over);
        self.latest.extend(keys.iter().rev().take(kept).rev());
    }

    /// Whether a block left lately.
    pub(super) fn mention(&self, key: BlockKey) -> bool {
        self.latest.contains(&key)
    }

    /// Whether a block left after so many had. Where that is no longer known it is taken for true: nothing is held
    /// against a view on a guess.
    fn since(&self, told: u64, key: BlockKey) -> bool {
        let known_from = self.told - self.latest.len() as u64;
        let skipped = usize::try_from(told.saturating_sub(known_from)).unwrap_or(usize::MAX);
        told < known_from || self.latest.iter().skip(skipped).any(|here| *here == key)
    }
}

impl Ledger {
    /// What is foreseen of a request that is being booked. `start` and `reach` are the blocks of its one chain in the
    /// index that serves, without and with those in flight.
    pub(super) fn foresee(
        &self,
        id: EndpointId,
        size: BlockSize,
        terms: &Terms<'_>,
        served: Reach,
    ) -> Option<Foreseen> {
        let [chain] = terms.chains else { return None };
        if chain.text || terms.prefill == Prefill::Whole || chain.prompt != terms.prompt {
            return None;
        }
        let account = self.account(id)?;
        let view = account.is_told().then(|| {
            if !account.is_approximate() {
                return served;
            }
            let [found] = terms.found.of_size(size) else {
                return Reach::default();
            };
            let run = self.run_at(id.slot, &self.exact_columns, &found.exact);
            self.extent(id.slot, &chain.keys, run, 0).whole()
        });
        let most = chain
            .prompt
            .get()
            .saturating_sub(1)
            .checked_div(chain.tokens_a_block)?;
        Some(Foreseen {
            keys: Arc::clone(&chain.keys),
            tokens_a_block: chain.tokens_a_block,
            most: usize::try_from(most).unwrap_or(usize::MAX),
            served,
            is_approximate: account.is_approximate(),
            view,
            removals: account.removals.told,
            life: account.only_credits().map(|credits| credits.life()),
        })
    }

    /// The chains of the requests in flight at an endpoint: first those that wait for their prefill in the order of
    /// their picks, then the others.
    pub(in crate::routing) fn chains_at(&self, id: EndpointId) -> Vec<(Arc<[BlockKey]>, Instant)> {
        let here = self
            .bookings
            .iter()
            .filter(|(_, b)| b.endpoint() == Some(id));
        let mut here: Vec<_> = here
            .filter_map(|(&number, booking)| Some((booking, number, booking.foreseen()?)))
            .collect();
        here.sort_unstable_by_key(|(booking, number, _)| (booking.is_prefilled(), *number));
        here.into_iter()
            .map(|(booking, _, foreseen)| (Arc::clone(&foreseen.keys), booking.since()))
            .collect()
    }

    /// The engine removed these blocks.
    pub(in crate::routing) fn removed(&mut self, id: EndpointId, keys: &[BlockKey]) {
        if let Some(account) = self.account_mut(id).filter(|_| !keys.is_empty()) {
            let in_flight = account.in_flight > 0;
            account.removals.note(keys, in_flight);
        }
    }

    /// It is still the source of its endpoint's rank.
    pub(in crate::routing) fn is_attached(&mut self, feed: FeedId) -> bool {
        self.feed_mut(feed).is_some()
    }

    /// A view starts over.
    pub(in crate::routing) fn view_cleared(&mut self, id: EndpointId) {
        if let Some(account) = self.account_mut(id) {
            account.trust.start_over();
        }
    }

    /// What to compare a report of so many cached tokens with; `None` if its endpoint left or nothing was foreseen.
    pub(in crate::routing) fn comparison(
        &self,
        booking: BookingId,
        cached: TokenCount,
    ) -> Option<Comparison> {
        let booking = self.bookings.get(&booking)?;
        let foreseen = booking.foreseen()?;
        let account = self.account(booking.endpoint()?)?;
        let blocks = cached.get().checked_div(foreseen.tokens_a_block)?;
        let reported = usize::try_from(blocks)
            .unwrap_or(usize::MAX)
            .min(foreseen.most)
            .min(foreseen.keys.len());
        let removed = |place: usize| {
            let key = foreseen.keys.get(place);
            key.is_some_and(|key| account.removals.since(foreseen.removals, *key))
        };
        Some(Comparison {
            id: account.id,
            keys: Arc::clone(&foreseen.keys),
            tokens_a_block: foreseen.tokens_a_block,
            reported,
            most: foreseen.most,
            served: foreseen.served,
            is_approximate: foreseen.is_approximate,
            view: foreseen.view,
            was_removed: removed(reported),
            computed_was_removed: foreseen.most > 0 && removed(foreseen.most - 1),
            sources: account.feeds.values().map(|feed| feed.source).collect(),
            credits: account.only_credits().map(Arc::clone).zip(foreseen.life),
            capacity: account.capacity(),
            picked_at: booking.since(),
            feed: account.standing(),
        })
    }

    /// Takes an answer into the endpoint's standing.
    pub(in crate::routing) fn judge(
        &mut self,
        id: EndpointId,
        evidence: Evidence,
        now: Instant,
    ) -> Option<TrustChange> {
        self.account_mut(id)?.trust.note(evidence, now)
    }
}

impl Account {
    /// The credits of its only event source.
    pub(super) fn only_credits(&self) -> Option<&Arc<Credits>> {
        let mut feeds = self.feeds.values();
        let only = feeds.next().filter(|feed| !is_absent(&feed.state))?;
        feeds.next().is_none().then_some(&only.credits)
    }

    /// The credits of all of its event sources.
    pub(super) fn credits(&self) -> Vec<Arc<Credits>> {
        let credits = self.feeds.values().map(|feed| &feed.credits);
        credits.map(Arc::clone).collect()
    }

    fn standing(&self) -> Standing {
        let mut worst = Standing::Whole;
        for feed in self.feeds.values() {
            match feed.state {
                FeedState::Live => {}
                FeedState::Incomplete(_) => worst = Standing::Incomplete,
                FeedState::Suspect | FeedState::Absent(_) => return Standing::Unsure,
            }
        }
        worst
    }
}

pub(super) fn is_absent(state: &FeedState) -> bool {
    matches!(state, FeedState::Absent(_))
}
