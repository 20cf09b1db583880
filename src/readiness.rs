//! What has to be ready before we are, what is degraded, and whether we are leaving.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;

/// The process's readiness. Clones share it.
///
/// The lock guards the lists; it is held for moments, by start-up, shutdown and pages.
#[derive(Clone, Debug)]
pub struct Readiness {
    state: Arc<Mutex<State>>,
    ready: Arc<watch::Sender<bool>>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    awaited: BTreeMap<u64, Cow<'static, str>>,
    degraded: BTreeMap<&'static str, String>,
    leaving: bool,
}

/// What a page shows of readiness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Detail {
    /// New streams are welcome.
    pub ready: bool,
    /// The process was told to end.
    pub leaving: bool,
    /// What is still awaited.
    pub awaited: Vec<Cow<'static, str>>,
    /// What works, but not as it should, and why.
    pub degraded: BTreeMap<&'static str, String>,
}

/// Something that is awaited; it is there once this is dropped.
#[derive(Debug)]
pub struct Awaited {
    readiness: Readiness,
    number: u64,
    what: Cow<'static, str>,
}

impl Awaited {
    /// What is awaited.
    pub fn what(&self) -> &Cow<'static, str> {
        &self.what
    }
}

impl Readiness {
    /// Not ready until everything awaited has come; with nothing awaited it is ready.
    pub fn new() -> Self {
        Self {
            state: Arc::default(),
            ready: Arc::new(watch::Sender::new(true)),
        }
    }

    /// Awaits `what` until the value returned is dropped.
    pub fn wait_for(&self, what: impl Into<Cow<'static, str>>) -> Awaited {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        let what = what.into();
        state.awaited.insert(number, what.clone());
        self.publish(&state);
        Awaited {
            readiness: self.clone(),
            number,
            what,
        }
    }

    /// Says why `what` is not as it should be, or that it is again. Does not change readiness.
    pub fn set_degraded(&self, what: &'static str, why: Option<String>) {
        let mut state = self.state.lock();
        match why {
            Some(why) => state.degraded.insert(what, why),
            None => state.degraded.remove(what),
        };
    }

    /// The process will end: never ready again.
    pub fn leave(&self) {
        let mut state = self.state.lock();
        state.leaving = true;
        self.publish(&state);
    }

    /// Follows readiness.
    pub fn watch(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    /// All there is to say.
    pub fn detail(&self) -> Detail {
        let state = self.state.lock();
        Detail {
            ready: state.ready(),
            leaving: state.leaving,
            awaited: state.awaited.values().cloned().collect(),
            degraded: state.degraded.clone(),
        }
    }

    /// Called with the lock held, so that the last word published is the last state.
    fn publish(&self, state: &State) {
        self.ready.send_replace(state.ready());
    }
}

impl Default for Readiness {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    fn ready(&self) -> bool {
        self.awaited.is_empty() && !self.leaving
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let mut state = self.readiness.state.lock();
        state.awaited.remove(&self.number);
        self.readiness.publish(&state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_the_last_awaited_thing_has_come() {
        let readiness = Readiness::new();
        let ready = readiness.watch();
        let pool = readiness.wait_for("pool");
        let socket = readiness.wait_for("socket");
        assert!(!*ready.borrow());
        drop(pool);
        assert_eq!(readiness.detail().awaited, ["socket"]);
        assert!(!*ready.borrow());
        drop(socket);
        assert!(*ready.borrow());
    }

    #[test]
    fn leaving_is_for_good() {
        let readiness = Readiness::new();
        let late = readiness.wait_for("pool");
        readiness.leave();
        drop(late);
        assert!(!*readiness.watch().borrow());
        assert!(readiness.detail().leaving);
    }

    #[test]
    fn degraded_is_told_and_taken_back_without_losing_readiness() {
        let readiness = Readiness::new();
        readiness.set_degraded("endpoints file", Some("line 3".to_owned()));
        assert_eq!(readiness.detail().degraded["endpoints file"], "line 3");
        assert!(readiness.detail().ready);
        readiness.set_degraded("endpoints file", None);
        assert!(readiness.detail().degraded.is_empty());
    }
}
