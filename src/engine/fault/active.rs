//! Which faults are in force at a rank? Whoever they befall asks here, and whoever waits is told of changes.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Fault, RankFault};

/// The faults in force. The lock is held for a look at a handful of values.
#[derive(Debug, Default)]
pub(in crate::engine) struct Faults {
    active: Mutex<Vec<Fault>>,
    /// Told of every change; the rank's driver is the only one that waits.
    changed: Notify,
}

impl Faults {
    /// Those that befall rank `rank` from the start; the first rank's set is the server's as well.
    pub(in crate::engine) fn of_rank(rank: u32, is_first: bool, initial: &[RankFault]) -> Self {
        let here = |at: Option<u32>| at.map_or(is_first, |at| at == rank);
        let faults = initial
            .iter()
            .filter(|fault| here(fault.rank))
            .map(|fault| fault.fault);
        Self {
            active: Mutex::new(faults.collect()),
            changed: Notify::new(),
        }
    }

    /// Adds one; a second one of the same kind replaces the first.
    pub(in crate::engine) fn set(&self, fault: Fault) {
        {
            let mut active = self.active.lock();
            active.retain(|other| std::mem::discriminant(other) != std::mem::discriminant(&fault));
            active.push(fault);
        }
        self.changed.notify_one();
    }

    /// Ends one kind.
    pub(in crate::engine) fn end(&self, fault: Fault) {
        self.active
            .lock()
            .retain(|other| std::mem::discriminant(other) != std::mem::discriminant(&fault));
        self.changed.notify_one();
    }

    pub(in crate::engine) fn clear(&self) {
        self.active.lock().clear();
        self.changed.notify_one();
    }

    /// Returns when the set has changed since the last call returned.
    pub(in crate::engine) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(in crate::engine) fn active(&self) -> Vec<Fault> {
        self.active.lock().clone()
    }

    pub(in crate::engine) fn has(&self, fault: Fault) -> bool {
        self.active.lock().contains(&fault)
    }

    /// True once after the fault was set.
    pub(in crate::engine) fn take_once(&self, fault: Fault) -> bool {
        let mut active = self.active.lock();
        let before = active.len();
        active.retain(|other| *other != fault);
        active.len() < before
    }

    /// Uses up one of the times that a counted fault has left.
    pub(in crate::engine) fn take_one(&self, kind: fn(u32) -> Fault) -> bool {
        let mut active = self.active.lock();
        let kind = std::mem::discriminant(&kind(0));
        let Some(at) = active
            .iter()
            .position(|fault| std::mem::discriminant(fault) == kind)
        else {
            return false;
        };
        let Some(left) = active.get_mut(at).and_then(Fault::times) else {
            return false;
        };
        let takes = *left > 0;
        *left = left.saturating_sub(1);
        if *left == 0 {
            active.remove(at);
        }
        takes
    }

    pub(in crate::engine) fn replay_pause(&self) -> Option<Duration> {
        self.find(|fault| match fault {
            Fault::SlowReplay(pause) => Some(pause),
            _ => None,
        })
    }

    pub(in crate::engine) fn publish_delay(&self) -> Option<Duration> {
        self.find(|fault| match fault {
            Fault::SlowPublish(delay) => Some(delay),
            _ => None,
        })
    }

    fn find<T>(&self, of: impl Fn(Fault) -> Option<T>) -> Option<T> {
        self.active.lock().iter().find_map(|fault| of(*fault))
    }
}

impl Fault {
    /// How many times a counted fault has left.
    const fn times(&mut self) -> Option<&mut u32> {
        match self {
            Self::DropEvents(left)
            | Self::DropRemovals(left)
            | Self::DropStores(left)
            | Self::GarbageBatch(left)
            | Self::OddEvent(left)
            | Self::Refuse(left) => Some(left),
            _ => None,
        }
    }
}
