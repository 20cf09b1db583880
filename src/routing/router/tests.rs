use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::block::{Scope, Sequence};
use super::super::cache::{CacheView, FeedState};
use super::super::endpoint::{Endpoint, EndpointId, EndpointName, Report, ReportOutcome};
use super::super::event::{EngineHash, KvEvent, Medium, Removed, Stored};
use super::super::ledger::Served;
use super::super::tokens::TokenCount;
use super::*;

mod flight;
mod guards;
mod herd;
mod lasting;
mod learnt;
mod ledger;
mod parity;
mod price;
mod progress;
mod ranks;
mod refusals;
mod restarts;
mod tiers;
mod trust;

pub(super) fn settings(policy: Policy) -> Settings {
    Settings {
        policy,
        kv_usage_limit: 0.95,
        report_age_limit: Duration::from_millis(500),
        idle_report_age_limit: Duration::from_secs(6),
        tiers: Tiers::default(),
    }
}

pub(super) fn endpoint(n: u16) -> Endpoint {
    Endpoint {
        name: EndpointName::new("pool", &format!("engine-{n}")),
        address: address(n),
        labels: BTreeMap::new(),
        incarnation: String::new(),
        rank: None,
    }
}

pub(super) fn address(n: u16) -> SocketAddr {
    let [high, low] = n.to_be_bytes();
    ([10, 0, high, low], 8000).into()
}

/// A router with `n` ready endpoints whose caches events tell, at 16 tokens a block.
pub(super) struct Pool {
    pub(super) router: Arc<Router>,
    pub(super) ids: Vec<EndpointId>,
    pub(super) views: Vec<CacheView>,
    pub(super) now: Instant,
}

impl Pool {
    pub(super) fn new(n: u16) -> Self {
        Self::with(n, Policy::LeastPrefill)
    }

    pub(super) fn with(n: u16, policy: Policy) -> Self {
        let router = Router::new(settings(policy));
        let now = Instant::now();
        let mut pool = Self {
            router,
            ids: Vec::new(),
            views: Vec::new(),
            now,
        };
        for n in 0..n {
            pool.join(n);
        }
        pool
    }

    pub(super) fn join(&mut self, n: u16) {
        self.join_as(endpoint(n));
    }

    pub(super) fn join_as(&mut self, endpoint: Endpoint) {
        let rank = endpoint.rank.unwrap_or(0);
        let id = self.router.join(endpoint);
        let mut view = self.router.cache_view(id, rank);
        view.set_feed(FeedState::Live);
        self.router.set_ready(id, true);
        self.router.report(id, ReportOutcome::NoPage, self.now);
        self.ids.push(id);
        self.views.push(view);
    }

    pub(super) fn prepare(&self, tokens: &[u32]) -> Prepared {
        self.router
            .prepare(&[Sequence::Tokens(tokens.to_vec())], &Scope::default())
    }

    pub(super) fn ask(&self, chance: u64) -> Ask<'static> {
        Ask {
            subset: None,
            alternates: 0,
            now: self.now,
            chance,
        }
    }

    pub(super) fn pick(&self, tokens: &[u32]) -> Decision {
        self.router
            .pick(&self.prepare(tokens), &self.ask(7))
            .unwrap()
    }

    /// A request that is picked for, prefilled and answered.
    pub(super) fn serve(&self, tokens: &[u32]) -> EndpointId {
        let mut decision = self.pick(tokens);
        decision.reservation.answered(200);
        decision.reservation.prefilled(self.now);
        decision.reservation.end(self.now);
        decision.id
    }

    /// Time passes, and the endpoints are looked at as reports and picks do.
    pub(super) fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now = until.min(self.now + Duration::from_millis(250));
            self.router.endpoints(self.now);
        }
    }

    pub(super) fn pick_on(&self, n: u16, tokens: &[u32]) -> Decision {
        let subset = [SubsetEntry::Endpoint(address(n))];
        let ask = Ask {
            subset: Some(&subset),
            ..self.ask(7)
        };
        self.router.pick(&self.prepare(tokens), &ask).unwrap()
    }

    /// The engine stores the whole blocks of a prompt from block `from` on.
    pub(super) fn store(&mut self, n: usize, tokens: &[u32], from: usize) {
        let event = stored(tokens, from);
        if !event.hashes.is_empty() {
            self.views[n].apply(&[KvEvent::Stored(event)]);
        }
    }

    /// The engine's connector copies the whole blocks of a prompt from block `from` on to the host's
    /// memory, and the accelerator drops them.
    pub(super) fn offload(&mut self, n: usize, tokens: &[u32], from: usize) {
        let event = Stored {
            medium: Medium::Cpu,
            ..stored(tokens, from)
        };
        if event.hashes.is_empty() {
            return;
        }
        let removed = Removed {
            hashes: event.hashes.clone(),
            medium: Medium::Gpu,
            group: None,
        };
        self.views[n].apply(&[KvEvent::Stored(event), KvEvent::Removed(removed)]);
    }

    pub(super) fn queued(&self, n: usize) -> u64 {
        self.view(n).queued.get()
    }

    pub(super) fn view(&self, n: usize) -> EndpointView {
        let id = self.ids[n];
        let mut views = self.router.endpoints(self.now).into_iter();
        views.find(|view| view.id == id).unwrap()
    }

    pub(super) fn assert_empty(&self) {
        for view in self.router.endpoints(self.now) {
            assert_eq!((view.queued.get(), view.in_flight), (0, 0), "{:?}", view.id);
            assert!(!self.router.is_busy(view.id));
        }
    }
}

/// An engine's event for a prompt's blocks from `from` on; its hashes are chained as real ones are.
pub(super) fn stored(tokens: &[u32], from: usize) -> Stored {
    let hashes: Vec<EngineHash> = (1..=tokens.len() / 16)
        .map(|blocks| engine_hash(&tokens[..blocks * 16]))
        .collect();
    Stored {
        hashes: hashes[from..].to_vec(),
        parent: from.checked_sub(1).map(|before| hashes[before]),
        tokens: tokens[from * 16..hashes.len() * 16].to_vec(),
        opaque_tokens: false,
        block_size: 16,
        lora_name: None,
        extras: Vec::new(),
        medium: Medium::Gpu,
        group: None,
        indexable_group: true,
    }
}

pub(super) fn engine_hash(prefix: &[u32]) -> EngineHash {
    let hash = prefix
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &token| {
            (hash ^ u64::from(token)).wrapping_mul(0x0100_0000_01b3)
        });
    EngineHash(hash)
}

/// `n` tokens that no other prompt number shares.
pub(super) fn tokens(prompt: u32, n: usize) -> Vec<u32> {
    (0..u32::try_from(n).unwrap())
        .map(|i| prompt.wrapping_mul(1_000_003) ^ i)
        .collect()
}

pub(super) fn joined(parts: &[&[u32]]) -> Vec<u32> {
    parts.concat()
}

#[test]
fn the_owner_of_a_warm_prefix_wins_until_its_queue_costs_more_than_the_hit_saves() {
    let mut pool = Pool::new(2);
    let warm = tokens(1, 8_000);
    pool.store(0, &warm, 0);
    let mut held = vec![pool.pick_on(0, &tokens(2, 5_000))];
    let decision = pool.pick(&warm);
    assert_eq!(decision.id, pool.ids[0], "5,000 queued against 7,984 saved");
    assert_eq!(
        (decision.cached.get(), decision.queued.get()),
        (7_984, 5_000)
    );
    drop(decision);
    held.push(pool.pick_on(0, &tokens(3, 3_000)));
    assert_eq!(
        pool.pick(&warm).id,
        pool.ids[1],
        "8,000 queued against 7,984 saved"
    );
}

#[test]
fn the_spill_threshold_is_the_saved_tokens_within_one_block() {
    for warm in [160_u32, 1_600, 6_000] {
        let prompt = joined(&[&tokens(1, warm as usize), &tokens(2, 2_000)]);
        let leaves = (0..=warm + 64).step_by(16).find(|&queued| {
            let mut pool = Pool::new(2);
            pool.store(0, &tokens(1, warm as usize), 0);
            let _held = (queued > 0).then(|| pool.pick_on(0, &tokens(3, queued as usize)));
            pool.pick(&prompt).id == pool.ids[1]
        });
        let leaves = leaves.expect("a queue beyond the hit is left");
        let saved = warm / 16 * 16;
        assert!(
            leaves.abs_diff(saved) <= 16,
            "{saved} tokens saved, left at a queue of {leaves}"
        );
    }
}

#[test]
fn a_hot_prefix_gains_owners_under_load_and_only_then() {
    let mut pool = Pool::new(8);
    let hot = tokens(1, 4_000);
    pool.store(0, &hot, 0);
    let mut held = Vec::new();
    let mut owners = std::collections::BTreeSet::from([0_u32]);
    for n in 0..100 {
        let request = joined(&[&hot, &tokens(100 + n, 1_000)]);
        let decision = pool.pick(&request);
        owners.insert(decision.id.slot);
        let slot = decision.id.slot as usize;
        pool.store(slot, &hot, 0);
        held.push(decision);
        if n < 3 {
            assert_eq!(owners.len(), 1, "the queue is still shorter than the hit");
        }
    }
    assert_eq!(
        owners.len(),
        8,
        "100,000 queued tokens are worth warming everybody"
    );
}

#[test]
fn a_request_that_does_not_read_the_cache_costs_its_full_length() {
    let mut pool = Pool::new(2);
    let warm = tokens(1, 800);
    pool.store(0, &warm, 0);
    let prepared = pool.prepare(&warm).bypassing_cache();
    let decision = pool.router.pick(&prepared, &pool.ask(3)).unwrap();
    assert!(
        decision
            .considered
            .iter()
            .all(|candidate| candidate.cost.get() == 800)
    );
    assert_eq!(decision.cached, TokenCount::ZERO);
    assert_eq!(pool.queued(decision.id.slot as usize), 800);
}

#[test]
fn least_queued_ignores_the_cache_but_reports_and_books_what_is_true() {
    let mut pool = Pool::with(2, Policy::LeastQueued);
    let warm = tokens(1, 8_000);
    pool.store(0, &warm, 0);
    let held = pool.pick_on(0, &tokens(2, 100));
    let decision = pool.pick(&warm);
    assert_eq!(decision.id, pool.ids[1]);
    assert_eq!(decision.considered[0].cached.get(), 7_984);
    assert_eq!(decision.considered[1].cost.get(), 8_000);
    drop((held, decision));
    let warm_pick = pool.pick_on(0, &warm);
    assert_eq!(pool.queued(0), 16);
    drop(warm_pick);
    pool.assert_empty();
}

#[test]
fn prompts_of_one_request_share_what_they_have_in_common() {
    let pool = Pool::new(1);
    let shared = tokens(1, 1_600);
    let prompts: Vec<Sequence> = (0..3)
        .map(|n| Sequence::Tokens(joined(&[&shared, &tokens(10 + n, 160)])))
        .collect();
    let prepared = pool.router.prepare(&prompts, &Scope::default());
    let decision = pool.router.pick(&prepared, &pool.ask(1)).unwrap();
    assert_eq!(decision.prompt.get(), 3 * 1_760);
    assert_eq!(decision.cached.get(), 2 * 1_600);
    assert_eq!(pool.queued(0), 1_600 + 3 * 160);
    drop(decision);
    pool.assert_empty();
}

#[test]
fn an_endpoint_without_events_is_served_by_what_was_sent_to_it() {
    let mut pool = Pool::new(2);
    for view in &mut pool.views {
        view.set_feed(FeedState::Absent("no socket".to_owned()));
    }
    let prompt = tokens(1, 1_600);
    let owner = pool.serve(&prompt);
    let second = pool.pick(&prompt);
    assert_eq!((second.id, second.cached.get()), (owner, 1_584));
    drop(second);
    pool.views[owner.slot as usize].restarted();
    assert_eq!(
        pool.pick(&prompt).cached,
        TokenCount::ZERO,
        "a restart forgets"
    );
    assert!(pool.view(0).approximate && pool.view(1).approximate);
}

#[test]
fn text_without_ids_is_found_again_on_any_endpoint() {
    let pool = Pool::new(4);
    let estimate = |tail: &str| {
        let text = format!("{}{tail}", "a long system prompt. ".repeat(200));
        let tokens = TokenCount::new(text.len() as u64 / 4);
        let sequences = [Sequence::Estimate {
            tokens,
            text: text.into_bytes(),
        }];
        let prepared = pool.router.prepare(&sequences, &Scope::default());
        pool.router.pick(&prepared, &pool.ask(5)).unwrap()
    };
    let mut first = estimate("first question");
    assert_eq!(first.cached, TokenCount::ZERO);
    let id = first.id;
    first.reservation.prefilled(pool.now);
    drop(first);
    let second = estimate("second question");
    assert_eq!(second.id, id);
    assert!(second.cached.get() > second.prompt.get() * 9 / 10);
    drop(second);
    pool.assert_empty();
}

#[test]
fn an_endpoints_cache_is_the_best_of_its_ranks_and_not_their_union() {
    let mut pool = Pool::new(1);
    let prompt = tokens(1, 160);
    let mut second = pool.router.cache_view(pool.ids[0], 1);
    second.set_feed(FeedState::Live);
    pool.store(0, &prompt[..64], 0);
    second.apply(&[KvEvent::Stored(stored(&prompt[..96], 0))]);
    assert_eq!(pool.pick(&prompt).cached.get(), 96);
    pool.views[0].set_feed(FeedState::Absent("gone".to_owned()));
    assert!(!pool.view(0).approximate, "one rank still tells");
    second.set_feed(FeedState::Absent("gone".to_owned()));
    assert!(pool.view(0).approximate);
}

#[test]
fn a_second_view_of_a_rank_starts_cold_and_silences_the_first() {
    let mut pool = Pool::new(1);
    let prompt = tokens(1, 160);
    pool.store(0, &prompt, 0);
    let _second = pool.router.cache_view(pool.ids[0], 0);
    assert_eq!(pool.view(0).blocks, 0);
    pool.store(0, &tokens(2, 160), 0);
    assert_eq!(pool.view(0).blocks, 0);
}

#[test]
fn the_next_life_of_a_slot_inherits_nothing() {
    let mut pool = Pool::new(1);
    let prompt = tokens(1, 1_600);
    pool.store(0, &prompt[..800], 0);
    let mut held = pool.pick(&prompt);
    pool.router.leave(pool.ids[0]);
    let mut old_view = pool.views.remove(0);
    let old_id = pool.ids.remove(0);
    pool.join(0);
    assert_eq!(pool.ids[0].slot, old_id.slot);
    old_view.apply(&[KvEvent::Stored(stored(&prompt, 0))]);
    old_view.set_feed(FeedState::Suspect);
    pool.router.set_ready(old_id, false);
    held.reservation.prefilled(pool.now);
    let view = pool.view(0);
    assert_eq!((view.queued.get(), view.in_flight, view.blocks), (0, 0, 0));
    assert!(view.ready);
    assert_eq!(view.prefill_us_per_token, None);
    let decision = pool.pick(&prompt);
    assert_eq!(decision.cached, TokenCount::ZERO);
    drop(held);
    assert_eq!(pool.queued(0), 1_600);
    assert_eq!(decision.reservation.prepared.prompt.get(), 1_600);
}

#[test]
fn block_sizes_may_differ_within_a_pool() {
    let mut pool = Pool::new(2);
    let prompt = tokens(1, 320);
    pool.store(0, &prompt[..32], 0);
    let mut wide = stored(&prompt, 0);
    wide.block_size = 64;
    wide.hashes.truncate(5);
    pool.views[1].apply(&[KvEvent::Stored(wide)]);
    let decision = pool.pick(&prompt);
    assert_eq!(decision.considered[0].cached.get(), 32);
    assert_eq!(decision.considered[1].cached.get(), 256);
}

#[test]
fn served_by_names_what_happened() {
    let pool = Pool::new(2);
    let prompt = tokens(1, 160);
    let mut decision = pool.pick_on(0, &prompt);
    let reservation = &mut decision.reservation;
    assert_eq!(
        reservation.served_by(address(0), pool.now),
        Served::AsPicked
    );
    assert_eq!(pool.queued(0), 160);
    assert_eq!(
        reservation.served_by(address(1), pool.now),
        Served::Moved(pool.ids[1])
    );
    assert_eq!((pool.queued(0), pool.queued(1)), (0, 160));
    assert_eq!(reservation.served_by(address(9), pool.now), Served::Unknown);
    pool.assert_empty();
}
