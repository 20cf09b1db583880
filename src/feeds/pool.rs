//! The pool: which endpoints there are, and what differs between two versions of it. Pure.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::watch;

use crate::routing::endpoint::{Endpoint, EndpointName};

/// Versions of the pool as its source sends them. `None`: there is no pool (not yet, or no longer),
/// so that nobody can be picked and we are not ready.
pub type Versions = watch::Receiver<Option<Arc<Pool>>>;

/// What a pool's source knows of one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Who it is. Another name, address or incarnation is another life; labels may change within one.
    pub endpoint: Endpoint,
    /// It may take requests. One that is not ready keeps its feeds.
    pub ready: bool,
    /// How often the engine's container was restarted. The count comes seconds after the engine's
    /// new life began, so a higher one does not end the life here: it asks the feeds to make sure.
    pub restarts: u32,
    /// Where its KV events are, as far as its source tells; the engine's own word comes first.
    pub events: EventHints,
}

/// What stands beside an endpoint about its KV events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventHints {
    /// Port of the live socket of rank 0.
    pub live_port: Option<u16>,
    /// Port of the replay socket of rank 0.
    pub replay_port: Option<u16>,
    /// The data-parallel rank that this endpoint is, where each rank has a server of its own:
    /// its sockets are then so many ports on. `None`: the source knows of no such thing.
    pub rank: Option<u32>,
}

/// No deployment has higher data-parallel ranks, for their sockets' ports would hardly fit. What
/// an engine says of others is nonsense, and must not make an endpoint each.
pub const LAST_RANK: u32 = 1023;

/// A set of endpoints; names and addresses are unique in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    members: BTreeMap<EndpointName, Member>,
}

/// Why a set of endpoints is not a pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// Two endpoints have one name.
    #[error("the name {0} is taken by an earlier endpoint")]
    DuplicateName(EndpointName),
    /// Two endpoints have one address.
    #[error("the address {address} is taken by the endpoint {holder}")]
    DuplicateAddress {
        /// The address.
        address: SocketAddr,
        /// Who has it already.
        holder: EndpointName,
    },
}

/// What has to happen to make one pool into another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diff {
    /// New lives, in the order of their names.
    pub joined: Vec<Member>,
    /// Lives that ended. An endpoint that moved or became another is in both lists.
    pub left: Vec<Member>,
    /// The same lives, of which something else is known now.
    pub changed: Vec<Member>,
}

/// Collects a pool, refusing what would make it ambiguous.
#[derive(Debug, Default)]
pub struct PoolBuilder {
    pool: Pool,
    addresses: HashMap<SocketAddr, EndpointName>,
}

impl PoolBuilder {
    /// Adds an endpoint.
    ///
    /// # Errors
    /// When its name or its address is taken.
    pub fn add(&mut self, member: Member) -> Result<(), PoolError> {
        let Endpoint { name, address, .. } = &member.endpoint;
        if self.pool.members.contains_key(name) {
            return Err(PoolError::DuplicateName(name.clone()));
        }
        if let Some(holder) = self.addresses.get(address) {
            return Err(PoolError::DuplicateAddress {
                address: *address,
                holder: holder.clone(),
            });
        }
        self.addresses.insert(*address, name.clone());
        self.pool.members.insert(name.clone(), member);
        Ok(())
    }

    /// The pool of what was added.
    pub fn finish(self) -> Pool {
        self.pool
    }
}

impl Pool {
    /// The endpoints in the order of their names.
    pub fn members(&self) -> impl ExactSizeIterator<Item = &Member> {
        self.members.values()
    }

    /// What joined, left and changed on the way from `self` to `next`.
    pub fn diff(&self, next: &Self) -> Diff {
        let mut diff = Diff::default();
        for (name, new) in &next.members {
            match self.members.get(name) {
                Some(old) if same_life(old, new) => {
                    if old != new {
                        diff.changed.push(new.clone());
                    }
                }
                Some(old) => {
                    diff.left.push(old.clone());
                    diff.joined.push(new.clone());
                }
                None => diff.joined.push(new.clone()),
            }
        }
        let gone = |name: &EndpointName| !next.members.contains_key(name);
        diff.left.extend(
            self.members
                .iter()
                .filter(|(name, _)| gone(name))
                .map(|(_, old)| old.clone()),
        );
        diff
    }
}

/// Name, address and incarnation make a life; all else may change in it.
fn same_life(a: &Member, b: &Member) -> bool {
    let (a, b) = (&a.endpoint, &b.endpoint);
    a.name == b.name && a.address == b.address && a.incarnation == b.incarnation
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn member(name: u8, port: u16, incarnation: u8, restarts: u32) -> Member {
        let endpoint = Endpoint {
            name: EndpointName::new("default", &format!("e{name}")),
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            labels: BTreeMap::new(),
            incarnation: incarnation.to_string(),
            rank: None,
        };
        Member {
            endpoint,
            ready: restarts == 0,
            restarts,
            events: EventHints::default(),
        }
    }

    /// Later endpoints that clash with earlier ones are left out.
    fn pool(members: impl IntoIterator<Item = Member>) -> Pool {
        let mut builder = PoolBuilder::default();
        for member in members {
            builder.add(member).ok();
        }
        builder.finish()
    }

    #[test]
    fn a_taken_name_or_address_is_refused() {
        let mut builder = PoolBuilder::default();
        builder.add(member(1, 8000, 0, 0)).unwrap();
        assert!(matches!(
            builder.add(member(1, 8001, 0, 0)),
            Err(PoolError::DuplicateName(_))
        ));
        let error = builder.add(member(2, 8000, 0, 0)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the address 127.0.0.1:8000 is taken by the endpoint default/e1"
        );
    }

    #[test]
    fn a_new_incarnation_or_address_is_a_new_life_and_a_restart_count_is_not() {
        let old = pool([member(1, 1, 0, 0), member(2, 2, 0, 0), member(3, 3, 0, 0)]);
        let new = pool([member(1, 1, 1, 0), member(2, 9, 0, 0), member(3, 3, 0, 7)]);
        let diff = old.diff(&new);
        assert_eq!(diff.joined, [member(1, 1, 1, 0), member(2, 9, 0, 0)]);
        assert_eq!(diff.left, [member(1, 1, 0, 0), member(2, 2, 0, 0)]);
        assert_eq!(diff.changed, [member(3, 3, 0, 7)]);
    }

    fn any_pool() -> impl Strategy<Value = Pool> {
        let any_member = (0_u8..6, 1_u16..8, 0_u8..2, 0_u32..2).prop_map(
            |(name, port, incarnation, restarts)| member(name, port, incarnation, restarts),
        );
        proptest::collection::vec(any_member, 0..8).prop_map(pool)
    }

    proptest! {
        #[test]
        fn applying_a_diff_gives_the_next_pool(old in any_pool(), new in any_pool()) {
            let diff = old.diff(&new);
            let mut lives: Vec<Member> = old.members().cloned().collect();
            lives.retain(|life| !diff.left.contains(life));
            lives.retain(|life| !diff.changed.iter().any(|c| c.endpoint.name == life.endpoint.name));
            lives.extend(diff.joined);
            lives.extend(diff.changed);
            prop_assert_eq!(pool(lives), new);
        }

        #[test]
        fn a_pool_does_not_differ_from_itself(same in any_pool()) {
            prop_assert_eq!(same.diff(&same), Diff::default());
        }
    }
}
