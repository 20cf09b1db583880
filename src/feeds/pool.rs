//! The pool: which endpoints there are, and what differs between two versions of it. Pure.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use crate::routing::endpoint::{Endpoint, EndpointName};

/// A set of endpoints; names and addresses are unique in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    endpoints: BTreeMap<EndpointName, Endpoint>,
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
    pub joined: Vec<Endpoint>,
    /// Lives that ended. An endpoint that moved or restarted is in both lists.
    pub left: Vec<Endpoint>,
    /// The same lives with other labels.
    pub changed: Vec<Endpoint>,
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
    pub fn add(&mut self, endpoint: Endpoint) -> Result<(), PoolError> {
        if self.pool.endpoints.contains_key(&endpoint.name) {
            return Err(PoolError::DuplicateName(endpoint.name));
        }
        if let Some(holder) = self.addresses.get(&endpoint.address) {
            return Err(PoolError::DuplicateAddress {
                address: endpoint.address,
                holder: holder.clone(),
            });
        }
        self.addresses
            .insert(endpoint.address, endpoint.name.clone());
        self.pool.endpoints.insert(endpoint.name.clone(), endpoint);
        Ok(())
    }

    /// The pool of what was added.
    pub fn finish(self) -> Pool {
        self.pool
    }
}

impl Pool {
    /// The endpoints in the order of their names.
    pub fn endpoints(&self) -> impl ExactSizeIterator<Item = &Endpoint> {
        self.endpoints.values()
    }

    /// What joined, left and changed on the way from `self` to `next`.
    pub fn diff(&self, next: &Self) -> Diff {
        let mut diff = Diff::default();
        for (name, new) in &next.endpoints {
            match self.endpoints.get(name) {
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
        let gone = |name: &EndpointName| !next.endpoints.contains_key(name);
        diff.left.extend(
            self.endpoints
                .iter()
                .filter(|(name, _)| gone(name))
                .map(|(_, old)| old.clone()),
        );
        diff
    }
}

/// Labels may change in a life; name, address and incarnation make it.
fn same_life(a: &Endpoint, b: &Endpoint) -> bool {
    a.name == b.name && a.address == b.address && a.incarnation == b.incarnation
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn endpoint(name: u8, port: u16, incarnation: u8, label: u8) -> Endpoint {
        Endpoint {
            name: EndpointName::new("default", &format!("e{name}")),
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            labels: [("l".to_owned(), label.to_string())].into(),
            incarnation: incarnation.to_string(),
        }
    }

    /// Later endpoints that clash with earlier ones are left out.
    fn pool(endpoints: impl IntoIterator<Item = Endpoint>) -> Pool {
        let mut builder = PoolBuilder::default();
        for endpoint in endpoints {
            builder.add(endpoint).ok();
        }
        builder.finish()
    }

    #[test]
    fn a_taken_name_or_address_is_refused() {
        let mut builder = PoolBuilder::default();
        builder.add(endpoint(1, 8000, 0, 0)).unwrap();
        assert!(matches!(
            builder.add(endpoint(1, 8001, 0, 0)),
            Err(PoolError::DuplicateName(_))
        ));
        let error = builder.add(endpoint(2, 8000, 0, 0)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the address 127.0.0.1:8000 is taken by the endpoint default/e1"
        );
    }

    #[test]
    fn a_new_incarnation_or_address_is_a_new_life_and_a_new_label_is_not() {
        let old = pool([
            endpoint(1, 1, 0, 0),
            endpoint(2, 2, 0, 0),
            endpoint(3, 3, 0, 0),
        ]);
        let new = pool([
            endpoint(1, 1, 1, 0),
            endpoint(2, 9, 0, 0),
            endpoint(3, 3, 0, 7),
        ]);
        let diff = old.diff(&new);
        assert_eq!(diff.joined, [endpoint(1, 1, 1, 0), endpoint(2, 9, 0, 0)]);
        assert_eq!(diff.left, [endpoint(1, 1, 0, 0), endpoint(2, 2, 0, 0)]);
        assert_eq!(diff.changed, [endpoint(3, 3, 0, 7)]);
    }

    fn any_pool() -> impl Strategy<Value = Pool> {
        let any_endpoint = (0_u8..6, 1_u16..8, 0_u8..2, 0_u8..2)
            .prop_map(|(name, port, incarnation, label)| endpoint(name, port, incarnation, label));
        proptest::collection::vec(any_endpoint, 0..8).prop_map(pool)
    }

    proptest! {
        #[test]
        fn applying_a_diff_gives_the_next_pool(old in any_pool(), new in any_pool()) {
            let diff = old.diff(&new);
            let mut lives: Vec<Endpoint> = old.endpoints().cloned().collect();
            lives.retain(|life| !diff.left.contains(life));
            lives.retain(|life| !diff.changed.iter().any(|c| c.name == life.name));
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
