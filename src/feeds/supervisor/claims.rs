//! Do several servers say that their KV events are at the same place?
//!
//! Engines that share a host can share a port by mistake, or by the guess that all of them are at the usual one.
//! Only one of them can have opened it, and whoever follows it for another would believe a
//! stranger's cache to be its own.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::plan::Plan;
use crate::routing::endpoint::EndpointName;

/// All claims. The lock guards the map, for as long as it takes to read or write one member's sources.
#[derive(Debug, Default)]
pub(super) struct Claims {
    places: Mutex<Places>,
    /// Counts the changes after which a place has come to be, or is no longer, claimed by several.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Places {
    next: u64,
    /// By place and claimant.
    claims: HashMap<String, BTreeMap<u64, Claim>>,
}

#[derive(Clone, Debug)]
struct Claim {
    name: EndpointName,
    server: SocketAddr,
    known: bool,
}

/// One member's claims, given up when it is dropped.
#[derive(Debug)]
pub(super) struct Claimant {
    claims: Arc<Claims>,
    number: u64,
    name: EndpointName,
    server: SocketAddr,
    places: Vec<String>,
}

impl Claims {
    /// A member joins and claims nothing yet. Another life of a server at the same address is no rival.
    pub(super) fn join(self: &Arc<Self>, name: EndpointName, server: SocketAddr) -> Claimant {
        let mut places = self.places.lock();
        places.next += 1;
        Claimant {
            claims: Arc::clone(self),
            number: places.next,
            name,
            server,
            places: Vec::new(),
        }
    }
}

impl Places {
    fn give_up(&mut self, number: u64, place: &str) -> bool {
        let Some(claims) = self.claims.get_mut(place) else {
            return false;
        };
        claims.remove(&number);
        if claims.is_empty() {
            self.claims.remove(place);
            return false;
        }
        true
    }
}

impl Claimant {
    /// Hears when a place has come to be, or is no longer, claimed by several.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.claims.changes.subscribe()
    }

    /// Claims the places of a plan, and no others any more.
    pub(super) fn claim(&mut self, plan: &Plan) {
        let sources: Vec<_> = plan.sources.values().flatten().collect();
        let mut places = self.claims.places.lock();
        let mut contested = false;
        for place in self.places.drain(..) {
            contested |= places.give_up(self.number, &place);
        }
        for source in sources {
            let claim = Claim {
                name: self.name.clone(),
                server: self.server,
                known: source.known,
            };
            let claims = places.claims.entry(source.live.clone()).or_default();
            claims.insert(self.number, claim);
            contested |= claims.len() > 1;
            self.places.push(source.live.clone());
        }
        drop(places);
        if contested {
            self.claims.changes.send_modify(|n| *n = n.wrapping_add(1));
        }
    }

    /// The plan without the sources that cannot be told from another server's.
    pub(super) fn uncontested(&self, mut plan: Plan) -> Plan {
        let places = self.claims.places.lock();
        for source in plan.sources.values_mut() {
            let Ok(told) = source else { continue };
            let rival = places.claims.get(&told.live).and_then(|claims| {
                claims.values().find(|claim| {
                    // A guess yields to knowledge, and of two that are equal neither can be believed.
                    claim.server != self.server && (claim.known || !told.known)
                })
            });
            if let Some(rival) = rival {
                *source = Err(format!(
                    "the KV events at {} may be those of {}, which is on the same host: give each engine a port of its \
                     own, and say which one it is where the engine cannot tell",
                    told.live, rival.name
                ));
            }
        }
        plan
    }
}

impl Drop for Claimant {
    fn drop(&mut self) {
        let mut places = self.claims.places.lock();
        let mut contested = false;
        for place in &self.places {
            contested |= places.give_up(self.number, place);
        }
        drop(places);
        if contested {
            self.claims.changes.send_modify(|n| *n = n.wrapping_add(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feeds::kv_events::Source;

    fn plan(live: &str, known: bool) -> Plan {
        let source = Source {
            live: live.to_owned(),
            known,
            ..Source::default()
        };
        Plan {
            sources: BTreeMap::from([(0, Ok(source))]),
            ..Plan::default()
        }
    }

    fn claimant(claims: &Arc<Claims>, name: &str, port: u16) -> Claimant {
        claims.join(EndpointName::new("ns", name), ([127, 0, 0, 1], port).into())
    }

    fn why(claimant: &Claimant, plan: &Plan) -> Option<String> {
        claimant.uncontested(plan.clone()).sources[&0].clone().err()
    }

    #[test]
    fn of_two_servers_that_say_the_same_neither_is_believed_until_one_is_gone() {
        let claims = Arc::new(Claims::default());
        let (mut a, mut b) = (claimant(&claims, "a", 1), claimant(&claims, "b", 2));
        let mut changes = a.changes();
        for known in [true, false] {
            let plan = plan("tcp://127.0.0.1:5557", known);
            a.claim(&plan);
            assert_eq!(why(&a, &plan), None);
            b.claim(&plan);
            assert!(changes.has_changed().unwrap());
            changes.mark_unchanged();
            assert!(why(&a, &plan).unwrap().contains("ns/b"));
            assert!(why(&b, &plan).unwrap().contains("ns/a"));
            b.claim(&self::plan("tcp://127.0.0.1:5558", known));
            assert!(changes.has_changed().unwrap());
            changes.mark_unchanged();
            assert_eq!(why(&a, &plan), None);
        }
        let plan = plan("tcp://127.0.0.1:5557", true);
        a.claim(&plan);
        b.claim(&plan);
        drop(b);
        assert!(changes.has_changed().unwrap());
        assert_eq!(why(&a, &plan), None);
    }

    #[test]
    fn a_guess_yields_to_what_an_engine_told_of_itself() {
        let claims = Arc::new(Claims::default());
        let (mut a, mut b) = (claimant(&claims, "a", 1), claimant(&claims, "b", 2));
        let (told, guess) = (plan("tcp://h:5557", true), plan("tcp://h:5557", false));
        a.claim(&told);
        b.claim(&guess);
        assert_eq!(why(&a, &told), None);
        assert!(why(&b, &guess).is_some());
    }

    #[test]
    fn the_next_life_of_a_server_is_no_rival_and_the_old_ones_end_takes_nothing_from_it() {
        let claims = Arc::new(Claims::default());
        let (mut old, mut new) = (claimant(&claims, "a", 1), claimant(&claims, "a", 1));
        let plan = plan("tcp://h:5557", true);
        old.claim(&plan);
        new.claim(&plan);
        assert_eq!((why(&old, &plan), why(&new, &plan)), (None, None));
        drop(old);
        let mut other = claimant(&claims, "b", 2);
        other.claim(&plan);
        assert!(why(&new, &plan).is_some());
        drop((new, other));
        assert!(claims.places.lock().claims.is_empty());
    }
}
