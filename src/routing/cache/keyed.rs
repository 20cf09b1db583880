//! A cache whose engine calls its blocks by the index's own keys: nothing has to be translated or remembered.

use super::super::block::BlockSize;
use super::super::event::KeyChange;
use super::CacheView;
use super::write::Write;

impl CacheView {
    /// Applies one batch told by keys, in order, and releases the bookings that its stores cover. A view lives by
    /// this or by [`CacheView::apply`], never by both: here the index alone counts how often a block is there.
    pub fn apply_keys(&mut self, changes: &[KeyChange], size: BlockSize) {
        if self.block_size != Some(size) {
            self.learn(size);
        }
        for &KeyChange { key, stored } in changes {
            if stored {
                self.batch.writes.push(Write::Store(key));
                self.batch.stored.push(key);
            } else {
                self.batch.writes.push(Write::Remove(key));
                self.batch.removed.push(key);
            }
        }
        self.write();
        let credits = &self.credits;
        credits.drop_all_of(&self.state.index, &self.batch.stored);
        self.tell_ledger(!changes.is_empty());
        self.batch.stored.clear();
        self.batch.removed.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::routing::block::BlockKey;
    use crate::routing::cache::FeedState;
    use crate::routing::cost::Tiers;
    use crate::routing::endpoint::{Endpoint, EndpointName};
    use crate::routing::router::{Ask, Policy, Prepared, Router, Settings};
    use crate::routing::tokens::TokenCount;

    #[test]
    fn a_block_told_by_key_is_cached_until_its_last_copy_left_and_a_store_releases_its_booking() {
        let router = Router::new(Settings {
            policy: Policy::LeastPrefill,
            kv_usage_limit: 0.95,
            report_age_limit: Duration::from_secs(1),
            idle_report_age_limit: Duration::from_secs(1),
            tiers: Tiers::default(),
        });
        let id = router.join(Endpoint {
            name: EndpointName::new("fleet", "0"),
            address: "10.0.0.1:8000".parse().unwrap(),
            labels: BTreeMap::new(),
            incarnation: String::new(),
            rank: None,
        });
        let mut view = router.cache_view(id, 0);
        view.set_feed(FeedState::Live);
        router.set_ready(id, true);
        let size = BlockSize::DEFAULT;
        let keys: Arc<[BlockKey]> = [BlockKey(1), BlockKey(2)].into();
        let prepared = Prepared::of_keys(keys, TokenCount::new(40), size);
        let ask = Ask {
            subset: None,
            alternates: 0,
            now: Instant::now(),
            chance: 0,
        };
        let seen = || {
            let seen = router.survey(&prepared, &ask);
            (
                seen[0].cached.get(),
                seen[0].queued.get(),
                seen[0].in_flight,
            )
        };
        let change = |key, stored| KeyChange {
            key: BlockKey(key),
            stored,
        };
        assert_eq!(seen(), (0, 0, 0), "looking books nothing");
        let booked = router.pick(&prepared, &ask).unwrap();
        assert_eq!(
            seen(),
            (32, 40, 1),
            "what is in flight is as good as cached"
        );
        view.apply_keys(&[change(1, true)], size);
        assert_eq!(seen(), (32, 24, 1));
        drop(booked);
        assert_eq!(seen(), (16, 0, 0));
        view.apply_keys(&[change(1, true), change(2, true), change(1, false)], size);
        assert_eq!(seen(), (32, 0, 0));
        view.apply_keys(&[change(1, false)], size);
        assert_eq!(seen(), (0, 0, 0));
    }
}
