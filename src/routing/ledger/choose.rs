//! One pick under the ledger's lock: see every endpoint, choose, book.

use std::net::SocketAddr;
use std::sync::Arc;

use super::super::approximate::Recent;
use super::super::block::BlockSize;
use super::super::candidates::in_subset;
use super::super::cost::{self, Cached, Run};
use super::super::endpoint::{Endpoint, EndpointId, EndpointName};
use super::super::index::Match;
use super::super::pick::{Runner, best, tie_width};
use super::super::router::prompts::{Chain, ChainFound, Found, Prompts};
use super::super::router::{Ask, Candidate, Exclusion, Policy, Refusal, Settings};
use super::super::tokens::TokenCount;
use super::account::Account;
use super::booking::Terms;
use super::progress::Pulse;
use super::{BookingId, Columns, Ledger, Prefill, Served};

/// The request to choose for.
#[derive(Clone, Copy, Debug)]
pub(in crate::routing) struct Wanted<'a> {
    pub(in crate::routing) prompts: &'a Prompts,
    pub(in crate::routing) found: &'a Found,
    pub(in crate::routing) prompt: TokenCount,
    pub(in crate::routing) prefill: Prefill,
}

/// What was chosen, and everything that was seen.
#[derive(Debug)]
pub(in crate::routing) struct Chosen {
    pub(in crate::routing) id: EndpointId,
    pub(in crate::routing) name: EndpointName,
    pub(in crate::routing) address: SocketAddr,
    pub(in crate::routing) rank: Option<u32>,
    pub(in crate::routing) alternates: Vec<SocketAddr>,
    pub(in crate::routing) cached: TokenCount,
    pub(in crate::routing) cached_below: TokenCount,
    pub(in crate::routing) queued: TokenCount,
    pub(in crate::routing) price: f64,
    pub(in crate::routing) guards_overruled: bool,
    pub(in crate::routing) woke: bool,
    pub(in crate::routing) considered: Vec<Candidate>,
    pub(in crate::routing) booking: BookingId,
    pub(in crate::routing) sent: Sent,
}

/// Where to note that a request was sent, for the approximate index.
#[derive(Clone, Debug)]
pub(in crate::routing) struct Sent {
    pub(in crate::routing) recent: Arc<Recent>,
    pub(in crate::routing) capacity: TokenCount,
    pub(in crate::routing) block_size: BlockSize,
    /// Token keys too, not only text keys. Not for an endpoint that events serve, though it may be doubted one
    /// day: a pick of 8,000 tokens takes 42 µs with it instead of 16, and each 20,000 blocks a MiB. One that
    /// is doubted learns a prefix at the first request with it instead.
    pub(in crate::routing) approximate: bool,
    /// Where each chunk of the answer is told.
    pub(in crate::routing) pulse: Arc<Pulse>,
}

impl Ledger {
    /// Chooses an endpoint and books the request there.
    pub(in crate::routing) fn choose(
        &mut self,
        settings: &Settings,
        wanted: Wanted<'_>,
        ask: &Ask<'_>,
    ) -> Result<Chosen, Refusal> {
        self.expire(ask.now);
        let considered = self.consider(settings, wanted, ask);
        let (runners, guards_overruled) = runners(&considered);
        let price = self.busy.price();
        if !runners.is_empty() && self.is_of_all(&considered) {
            let none_free = none_free(&considered, &runners);
            self.busy.saw(f64::from(u8::from(none_free)));
        }
        let sizes = self
            .accounts
            .iter()
            .flatten()
            .filter_map(Account::known_block_size);
        let width = tie_width(sizes.map(BlockSize::get));
        let endpoint = |runner: &Runner| {
            let candidate = considered.get(runner.place)?;
            Some(&self.account(candidate.id)?.endpoint)
        };
        let goes_with = |named: &[Runner], other: &Runner| {
            let first = named.first().and_then(endpoint);
            let last = named.last().and_then(endpoint);
            let other = endpoint(other);
            // It was asked about those before the last already.
            last.zip(other).is_some_and(|(a, b)| a.address != b.address)
                && first.zip(other).is_some_and(|(a, b)| may_follow(a, b))
        };
        let count = ask.alternates.saturating_add(1);
        let winners = best(runners, count, width, ask.chance, goes_with);
        let mut winners = winners.iter();
        let winner = winners
            .next()
            .and_then(|winner| considered.get(winner.place));
        let Some(winner) = winner else {
            return Err(match ask.subset {
                Some(_) => Refusal::EmptySubset,
                None => Refusal::NothingReady,
            });
        };
        let alternates = winners
            .filter_map(|runner| Some(endpoint(runner)?.address))
            .collect();
        // Found a line ago, under the same lock.
        let account = self.account(winner.id).ok_or(Refusal::NothingReady)?;
        let Endpoint { address, rank, .. } = account.endpoint;
        let name = account.endpoint.name.clone();
        let woke = account.is_idle();
        let sent = self.sent(account);
        let terms = Terms {
            chains: wanted.prompts.of_size(sent.block_size),
            found: wanted.found,
            prompt: wanted.prompt,
            prefill: wanted.prefill,
            now: ask.now,
        };
        let (id, cached, queued) = (winner.id, winner.cached, winner.queued);
        let cached_below = winner.cached_below;
        let booking = self.book(id, terms).ok_or(Refusal::NothingReady)?;
        Ok(Chosen {
            id,
            name,
            address,
            rank,
            alternates,
            cached,
            cached_below,
            queued,
            price,
            guards_overruled,
            woke,
            considered,
            booking,
            sent,
        })
    }

    /// Every endpoint with its numbers for this request; nobody is chosen and nothing is booked.
    pub(in crate::routing) fn survey(
        &mut self,
        settings: &Settings,
        wanted: Wanted<'_>,
        ask: &Ask<'_>,
    ) -> Vec<Candidate> {
        self.expire(ask.now);
        self.consider(settings, wanted, ask)
    }

    /// The endpoint that has this address, unless the booking is on it already.
    pub(in crate::routing) fn elsewhere(
        &self,
        booking: BookingId,
        address: SocketAddr,
    ) -> Result<EndpointId, Served> {
        let now_at = self
            .bookings
            .get(&booking)
            .and_then(|booking| self.account(booking.endpoint()?));
        // Whichever rank of it: the gateway names the address alone, and the request was pinned.
        if now_at.is_some_and(|account| account.endpoint.address == address) {
            return Err(Served::AsPicked);
        }
        let rank = now_at.and_then(|account| account.endpoint.rank);
        self.at_address(address, rank).ok_or(Served::Unknown)
    }

    /// Moves a booking; the new one, and where to note the request as sent.
    pub(in crate::routing) fn move_to(
        &mut self,
        booking: BookingId,
        to: EndpointId,
        wanted: Wanted<'_>,
        now: std::time::Instant,
    ) -> Option<(BookingId, Sent)> {
        self.expire(now);
        let sent = self.sent(self.account(to)?);
        let terms = Terms {
            chains: wanted.prompts.of_size(sent.block_size),
            found: wanted.found,
            prompt: wanted.prompt,
            prefill: wanted.prefill,
            now,
        };
        Some((self.rebook(booking, to, terms)?, sent))
    }

    /// No subset leaves out anybody who is ready. What is asked of a part of the pool says nothing of the whole; some
    /// gateways name the whole pool as the subset of each request.
    fn is_of_all(&self, considered: &[Candidate]) -> bool {
        let mut outside = considered
            .iter()
            .filter(|candidate| candidate.excluded == Some(Exclusion::Subset));
        !outside.any(|candidate| self.account(candidate.id).is_some_and(|it| it.ready))
    }

    fn sent(&self, account: &Account) -> Sent {
        Sent {
            recent: Arc::clone(&account.recent),
            capacity: account.capacity(),
            block_size: self.size_of(account),
            approximate: account.is_approximate(),
            pulse: account.progress.pulse(),
        }
    }

    /// Every endpoint with its numbers for this request.
    fn consider(
        &mut self,
        settings: &Settings,
        wanted: Wanted<'_>,
        ask: &Ask<'_>,
    ) -> Vec<Candidate> {
        let cached = match wanted.prefill {
            Prefill::Uncached => self.cached_by_slot(wanted),
            Prefill::Whole => Vec::new(),
        };
        let price = self.busy.price();
        let mut considered = Vec::with_capacity(self.accounts.len());
        for account in self.accounts.iter_mut().flatten() {
            account.health.known_since.get_or_insert(ask.now);
            account.look(ask.now);
            let excluded = if !in_subset(ask.subset, account.endpoint.address) {
                Some(Exclusion::Subset)
            } else {
                account.exclusion(settings, ask.now)
            };
            let cached = cached
                .get(account.id.slot as usize)
                .copied()
                .unwrap_or_default();
            let queued = account.queued();
            considered.push(Candidate {
                id: account.id,
                cached: cached.tokens,
                cached_below: cached.below,
                queued,
                in_flight: account.in_flight,
                cost: cost::cost(settings.policy, price, queued, wanted.prompt, cached),
                excluded,
            });
        }
        if settings.policy == Policy::LeastPrefill {
            owners_stay(&mut considered, wanted.prompt);
        }
        considered
    }

    /// This request's cached tokens at every endpoint, blocks in flight included.
    fn cached_by_slot(&self, wanted: Wanted<'_>) -> Vec<Cached> {
        let mut cached = vec![Cached::default(); self.accounts.len()];
        let assumed = self.assumed_block_size();
        for (size, chains) in wanted.prompts.by_size() {
            let here: Vec<&Account> = self
                .accounts
                .iter()
                .flatten()
                .filter(|account| account.known_block_size().unwrap_or(assumed) == size)
                .collect();
            if here.is_empty() {
                continue;
            }
            for (chain, found) in chains.iter().zip(wanted.found.of_size(size)) {
                for (slot, run) in self.reach(&here, chain, found) {
                    if let Some(cached) = cached.get_mut(slot as usize) {
                        *cached += cost::cached(chain.prompt, chain.tokens_a_block, run);
                    }
                }
            }
        }
        cached
    }

    /// What of a chain each of these endpoints has: what its index holds, then what is in
    /// flight, and what of the slower tier's run is left behind that.
    fn reach(&self, here: &[&Account], chain: &Chain, found: &ChainFound) -> Vec<(u32, Run)> {
        let mut held = self.by_slot(&self.exact_columns, &found.exact);
        let approximate = self.by_slot(&self.approximate_columns, &found.approximate);
        let mut reach = Vec::with_capacity(here.len());
        for account in here {
            let slot = account.id.slot as usize;
            let (Some(held), Some(approximate)) = (held.get_mut(slot), approximate.get(slot))
            else {
                continue;
            };
            if chain.text || account.is_approximate() {
                *held = *approximate;
            }
            let blocks = usize::try_from(held.at_hand).unwrap_or(usize::MAX);
            let start = blocks.max(chain.brought).min(chain.keys.len());
            reach.push((account.id.slot, start));
        }
        let run = |(slot, reach): (u32, usize)| {
            let held = held.get(slot as usize).copied().unwrap_or_default();
            (slot, held.reaching(reach as u64))
        };
        self.fly(reach, chain).into_iter().map(run).collect()
    }

    /// The best that one of an endpoint's columns holds, for every slot.
    fn by_slot(&self, columns: &Columns, matches: &[Match]) -> Vec<Run> {
        let mut runs = vec![Run::default(); self.accounts.len()];
        for found in matches {
            let Some(slot) = columns.slot(found.source) else {
                continue;
            };
            if let Some(best) = runs.get_mut(slot as usize) {
                *best = best.better(self.run_of(slot, found));
            }
        }
        runs
    }

    /// Carries each endpoint's reach on through the blocks in flight there: one walk
    /// over the keys for all endpoints, as in the index.
    fn fly(&self, mut reach: Vec<(u32, usize)>, chain: &Chain) -> Vec<(u32, usize)> {
        if self.flying.len() == 0 {
            return reach;
        }
        reach.sort_unstable_by_key(|&(_, blocks)| blocks);
        let mut done = Vec::with_capacity(reach.len());
        let mut front = vec![0_u64; self.accounts.len().div_ceil(64)];
        let mut starters = reach.into_iter().peekable();
        let mut depth = 0;
        loop {
            if front.iter().all(|bits| *bits == 0) {
                let Some(&(_, start)) = starters.peek() else {
                    return done;
                };
                depth = start;
            }
            while let Some((slot, _)) = starters.next_if(|&(_, start)| start == depth) {
                if let Some(bits) = front.get_mut((slot / 64) as usize) {
                    *bits |= 1 << (slot % 64);
                }
            }
            let row = chain
                .keys
                .get(depth)
                .and_then(|key| self.flying.row(*key))
                .unwrap_or_default();
            for (word, bits) in front.iter_mut().enumerate() {
                let kept = *bits & row.get(word).copied().unwrap_or(0);
                let mut gone = *bits & !kept;
                *bits = kept;
                while gone != 0 {
                    let slot = u32::try_from(word * 64).unwrap_or(u32::MAX) + gone.trailing_zeros();
                    done.push((slot, depth));
                    gone &= gone - 1;
                }
            }
            depth += 1;
        }
    }
}

/// Whether the gateway may be told to try `other` when `first` fails. It sends the rank of the
/// first wherever it tries, so a pinned request may go only to the same rank elsewhere: a server
/// without ranks would refuse rank 1, and another rank's cache is not this one's.
fn may_follow(first: &Endpoint, other: &Endpoint) -> bool {
    first.rank.is_none() || first.rank == other.rank
}

/// Whether all that are in the running have tokens queued.
fn none_free(considered: &[Candidate], runners: &[Runner]) -> bool {
    let mut seen = runners
        .iter()
        .filter_map(|runner| considered.get(runner.place));
    seen.all(|candidate| candidate.queued > TokenCount::default())
}

/// A full KV pool leaves nobody out who has the greater part of the prompt, and more of it than anybody with room: the
/// request takes less room there than elsewhere, and elsewhere it would push out what others have cached. Where a fleet's
/// pools are full, its owners would otherwise lose their requests to cold endpoints, and those their caches (mean time to
/// first token 15 to 30 s instead of 1 to 5 under `b2b`, docs/policies.md).
fn owners_stay(considered: &mut [Candidate], prompt: TokenCount) {
    let with_room = considered
        .iter()
        .filter(|candidate| candidate.excluded.is_none());
    let Some(most) = with_room.map(|candidate| candidate.cached).max() else {
        return;
    };
    for candidate in considered {
        let greater_part = candidate.cached > prompt.saturating_sub(candidate.cached);
        if candidate.excluded == Some(Exclusion::KvUsage) && candidate.cached > most && greater_part
        {
            candidate.excluded = None;
        }
    }
}

/// Who is in the running. When the guards leave nobody, those they left out are.
fn runners(considered: &[Candidate]) -> (Vec<Runner>, bool) {
    let those = |wanted: fn(&Candidate) -> bool| -> Vec<Runner> {
        considered
            .iter()
            .enumerate()
            .filter(|(_, candidate)| wanted(candidate))
            .map(|(place, candidate)| Runner {
                place,
                cost: candidate.cost,
                in_flight: candidate.in_flight,
            })
            .collect()
    };
    let allowed = those(|candidate| candidate.excluded.is_none());
    if !allowed.is_empty() {
        return (allowed, false);
    }
    let guarded = those(|candidate| candidate.excluded.is_some_and(Exclusion::is_guard));
    let overruled = !guarded.is_empty();
    (guarded, overruled)
}
