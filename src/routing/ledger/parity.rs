//! Does an engine store the first block of our prompts? If not, our tokens are not its tokens.
//!
//! A prompt that the endpoint has nothing of is prefilled from its first block on, so an event must tell that this
//! block was stored, by the very key that the prompt has here. What an event is compared with is kept with the
//! booking: a request is *watched* if its first block was not cached, its endpoint's events are whole, and the size
//! of its blocks was learnt from them. It proves nothing that no event came: only that others came and this one did
//! not (any store will do: where the engine's own prompts begin alike, no beginning is stored twice). Nothing here knows which model or tokenizer it was about.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use super::super::block::BlockKey;
use super::super::cache::FeedState;
use super::super::cost::Run;
use super::super::endpoint::EndpointId;
use super::super::index::Match;
use super::super::router::prompts::Chain;
use super::super::tokens::TokenCount;
use super::account::Account;
use super::{BookingId, FeedId, Ledger};

/// Requests watched at one endpoint; more are not.
const MAX_WATCHED: usize = 1024;

/// Tokens kept of the sequence stored last, to show them beside ours.
pub(in crate::routing) const SHOWN_TOKENS: usize = 16;

/// The beginning of a sequence that was stored.
#[derive(Clone, Debug)]
pub(in crate::routing) struct Root {
    /// Its first tokens, to be shown.
    pub(in crate::routing) tokens: Vec<u32>,
    /// The key that its first block would have without adapter and salt.
    pub(in crate::routing) plain: BlockKey,
}

/// What became of a request's first block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FirstBlockStored {
    /// An event stored it.
    Yes,
    /// Its endpoint stored blocks since, and this was none of them.
    No {
        /// The first tokens of the sequence whose beginning was stored last.
        instead: Vec<u32>,
        /// That one has the tokens of this one's first block, under another adapter or salt.
        same_tokens: bool,
    },
    /// Nothing was stored since, or what is known of the endpoint was lost in between.
    Unclear,
}

/// The watch kept on one request's first block.
#[derive(Debug)]
pub(in crate::routing) struct Watch {
    key: BlockKey,
    stored: AtomicBool,
    /// What its endpoint had told when it was booked.
    then: Told,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Told {
    /// Batches that stored something.
    stores: u64,
    /// Times that all blocks were forgotten.
    clears: u64,
}

/// Beginnings of sequences that one endpoint stored.
#[derive(Debug, Default)]
pub(super) struct Roots {
    told: Told,
    last: Option<Root>,
    watched: Vec<Weak<Watch>>,
}

impl Roots {
    pub(super) fn note_store(&mut self) {
        self.told.stores += 1;
    }

    fn rooted(&mut self, keys: &[BlockKey], last: Root) {
        self.last = Some(last);
        self.watched.retain(|watch| {
            let Some(watch) = watch.upgrade() else {
                return false;
            };
            let found = keys.contains(&watch.key);
            watch.stored.fetch_or(found, Ordering::Relaxed);
            !found
        });
    }

    fn watch(&mut self, key: BlockKey) -> Option<Arc<Watch>> {
        if self.watched.len() >= MAX_WATCHED {
            self.watched.retain(|watch| watch.strong_count() > 0);
        }
        let watch = Arc::new(Watch {
            key,
            stored: AtomicBool::new(false),
            then: self.told,
        });
        (self.watched.len() < MAX_WATCHED).then(|| {
            self.watched.push(Arc::downgrade(&watch));
            watch
        })
    }
}

impl Watch {
    pub(in crate::routing) fn key(&self) -> BlockKey {
        self.key
    }
}

impl Account {
    /// Watches a prompt's first block, if what becomes of it will tell something.
    pub(super) fn watch_first_block(
        &mut self,
        chains: &[Chain],
        matches: &[Run],
    ) -> Option<Arc<Watch>> {
        let [chain] = chains else { return None };
        let cold = matches.iter().all(|run| run.at_hand + run.beneath == 0);
        let first = chain.keys.first().filter(|_| cold && !chain.text)?;
        (self.block_size.is_some() && self.is_whole()).then(|| self.roots.watch(*first))?
    }

    /// Every event source of it is live.
    fn is_whole(&self) -> bool {
        let mut feeds = self.feeds.values();
        !self.feeds.is_empty() && feeds.all(|feed| feed.state == FeedState::Live)
    }
}

impl Ledger {
    /// An endpoint stored these beginnings of sequences; `last` is the last one.
    pub(in crate::routing) fn rooted(&mut self, feed: FeedId, keys: &[BlockKey], last: Root) {
        if self.feed_mut(feed).is_some()
            && let Some(account) = self.account_mut(feed.endpoint)
        {
            account.roots.rooted(keys, last);
        }
    }

    /// The watch kept on a booking's first block, and where. Where the engine says that it had the first ones cached,
    /// no event tells of those: then the first one that it computed is named as well.
    pub(in crate::routing) fn watch_of(
        &self,
        booking_id: BookingId,
        reported: Option<TokenCount>,
    ) -> Option<(EndpointId, Arc<Watch>, Option<BlockKey>)> {
        let booking = self.bookings.get(&booking_id)?;
        let foreseen = booking.foreseen();
        let computed = reported.zip(foreseen);
        let computed = computed.and_then(|(cached, foreseen)| foreseen.computed_after(cached));
        Some((booking.endpoint()?, booking.first_block()?, computed))
    }

    /// All blocks of a feed were forgotten.
    pub(in crate::routing) fn cleared(&mut self, feed: FeedId) {
        if self.feed_mut(feed).is_some()
            && let Some(account) = self.account_mut(feed.endpoint)
        {
            account.roots.told.clears += 1;
        }
    }

    /// What became of a watched block, or of the first one `computed` in its stead; `found` is what the index has of it.
    pub(in crate::routing) fn first_block(
        &self,
        id: EndpointId,
        watch: &Watch,
        computed: Option<BlockKey>,
        found: &[Match],
    ) -> FirstBlockStored {
        if watch.stored.load(Ordering::Relaxed) {
            return FirstBlockStored::Yes;
        }
        let held = |found: &Match| self.exact_columns.slot(found.source) == Some(id.slot);
        let was_removed = |key| {
            let account = self.account(id);
            account.is_some_and(|account| account.removals.mention(key))
        };
        // Credits end where the engine's own figure does, so an event told of this one.
        if computed.is_some_and(|key| found.iter().any(held) || was_removed(key)) {
            return FirstBlockStored::Yes;
        }
        match self.account(id) {
            Some(account)
                if account.is_whole()
                    && account.roots.told.clears == watch.then.clears
                    && account.roots.told.stores > watch.then.stores
                    // A sibling's store between lookup and booking, or a credit: no event of ours.
                    && !found.iter().any(held) =>
            {
                let last = account.roots.last.as_ref();
                FirstBlockStored::No {
                    instead: last.map(|root| root.tokens.clone()).unwrap_or_default(),
                    same_tokens: last.is_some_and(|root| root.plain == watch.key),
                }
            }
            _ => FirstBlockStored::Unclear,
        }
    }
}
