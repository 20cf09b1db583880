//! What does each rule do, given what it sees? A table to look at, and a real router to book with.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::*;
use crate::routing::block::{BlockSize, Scope, Sequence, prompt_keys};
use crate::routing::cache::{CacheView, FeedState};
use crate::routing::cost::Tiers;
use crate::routing::endpoint::{Endpoint, EndpointId, EndpointName, ReportOutcome};
use crate::routing::router::{Ask, Router, Settings, SubsetEntry};
use crate::simulate::prompt::{Prompt, Segment};

mod keyed;
mod load;
mod peers;
mod table;
mod variants;

const BLOCK: u32 = 16;

/// A table that says what is seen, over a real router without events, which books.
pub(super) struct Fleet {
    pub(super) seen: RefCell<Vec<Seen>>,
    router: Arc<Router>,
    ids: Vec<EndpointId>,
    _views: Vec<CacheView>,
    now: Instant,
}

impl Fleet {
    pub(super) fn new(seen: Vec<Seen>) -> Self {
        let now = Instant::now();
        let router = Router::new(Settings {
            policy: crate::routing::router::Policy::LeastPrefill,
            kv_usage_limit: 0.95,
            report_age_limit: Duration::from_millis(500),
            idle_report_age_limit: Duration::from_secs(6),
            tiers: Tiers::default(),
        });
        let mut views = Vec::new();
        let ids = (0..seen.len())
            .map(|replica| {
                let id = router.join(Endpoint {
                    name: EndpointName::new("fleet", &format!("replica-{replica}")),
                    address: address(replica),
                    labels: BTreeMap::new(),
                    incarnation: String::new(),
                    rank: None,
                });
                let mut view = router.cache_view(id, 0);
                view.set_feed(FeedState::Live);
                views.push(view);
                router.report(id, ReportOutcome::NoPage, now);
                id
            })
            .collect();
        Self {
            seen: RefCell::new(seen),
            router,
            ids,
            _views: views,
            now,
        }
    }

    /// So many ready and idle replicas.
    pub(super) fn idle(replicas: usize) -> Self {
        let ready = |replica| Seen {
            replica,
            ready: true,
            ..Seen::default()
        };
        Self::new((0..replicas).map(ready).collect())
    }

    pub(super) fn change(&self, replica: usize, change: impl FnOnce(&mut Seen)) {
        change(&mut self.seen.borrow_mut()[replica]);
    }

    fn tell_router(&self) {
        for seen in self.seen.borrow().iter() {
            self.router.set_ready(self.ids[seen.replica], seen.ready);
        }
    }

    pub(super) fn context(&self, seed: u64) -> Context {
        Context {
            replicas: self.ids.len(),
            max_num_batched_tokens: 8192,
            decode: DecodeCost {
                step: 140.0,
                context_token: 0.000_6,
            },
            seed,
        }
    }

    pub(super) fn policy(&self, name: &str) -> Box<dyn Policy> {
        by_name(name, &self.context(1)).unwrap()
    }

    /// Which replica a rule takes.
    pub(super) fn try_pick(
        &self,
        policy: &mut dyn Policy,
        request: &Request,
        chance: u64,
    ) -> Result<usize, Refusal> {
        self.tell_router();
        let ids = request.arrival.prompt.token_ids();
        let prepared = self
            .router
            .prepare(&[Sequence::Tokens(ids)], &Scope::default());
        let asked = Asked {
            arrival: &request.arrival,
            prepared: &prepared,
            keys: &request.keys,
            block_size: BLOCK,
            now: self.now,
            chance,
        };
        let decision = policy.pick(&asked, self)?;
        let place = self.ids.iter().position(|&id| id == decision.id);
        Ok(place.unwrap())
    }

    pub(super) fn pick(&self, policy: &mut dyn Policy, request: &Request, chance: u64) -> usize {
        self.try_pick(policy, request, chance).unwrap()
    }

    /// All that a rule takes under different chances.
    pub(super) fn picks(&self, name: &str, request: &Request) -> BTreeSet<usize> {
        (0..200)
            .map(|chance| self.pick(&mut *self.policy(name), request, chance))
            .collect()
    }
}

impl Knowledge for Fleet {
    fn survey(&self, _: &Asked<'_>) -> Vec<Seen> {
        self.seen.borrow().clone()
    }

    fn survey_load(&self, _: &Asked<'_>) -> Vec<Seen> {
        let without = |seen: &Seen| Seen { cached: 0, ..*seen };
        self.seen.borrow().iter().map(without).collect()
    }

    fn book(&self, asked: &Asked<'_>, replica: usize) -> Result<Decision, Refusal> {
        let ask = Ask {
            subset: Some(&[SubsetEntry::Endpoint(address(replica))]),
            alternates: 0,
            now: asked.now,
            chance: asked.chance,
        };
        self.router.pick(asked.prepared, &ask)
    }

    fn pick(&self, asked: &Asked<'_>) -> Result<Decision, Refusal> {
        let ask = Ask {
            subset: None,
            alternates: 0,
            now: asked.now,
            chance: asked.chance,
        };
        self.router.pick(asked.prepared, &ask)
    }

    fn prefill_per_token(&self) -> Option<Duration> {
        None
    }
}

fn address(replica: usize) -> SocketAddr {
    let replica = u8::try_from(replica).unwrap();
    ([10, 0, 0, replica], 8000).into()
}

pub(super) struct Request {
    pub(super) arrival: Arrival,
    pub(super) keys: Arc<[BlockKey]>,
}

/// A prompt of so many tokens that begins with 160 of a prefix, if it is that long.
pub(super) fn request(session: u64, prefix: Option<u64>, tokens: u32) -> Request {
    let shared = tokens.min(160);
    let prompt = Prompt::new([
        Segment {
            id: prefix.unwrap_or(session + 1000),
            tokens: shared,
        },
        Segment {
            id: session + 2000,
            tokens: tokens - shared,
        },
    ]);
    let size = BlockSize::new(BLOCK).unwrap();
    let keys = prompt_keys(&prompt.token_ids(), size, &Scope::default());
    Request {
        arrival: Arrival {
            at: Duration::ZERO,
            prompt,
            output: 10,
            answer: session + 3000,
            session,
            prefix,
        },
        keys: keys.into(),
    }
}
