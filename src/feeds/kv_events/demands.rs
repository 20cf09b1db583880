//! What is asked of the followers of one endpoint, and what its reports say of its work.
//!
//! Whoever asks never waits and nothing piles up: the channel holds counts and moments, and a
//! follower acts once on whatever rose since it last looked.

use tokio::sync::watch;
use tokio::time::Instant;

use super::quiet::Work;

/// All that was asked so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demands {
    /// Times that the engine's container was started again, as somebody counted late or early:
    /// the same life is to be proven.
    pub proofs: u32,
    /// When the engine was last found away that is back now: a connection of before has to be
    /// made anew, and the same life to be proven on it.
    pub away_at: Option<Instant>,
    /// Times that the engine answered again after a silence: the connection may be dead without
    /// having said so.
    pub reconnects: u32,
    /// Times that the view was found to be wrong: it starts over from a replay of everything.
    pub rebuilds: u32,
    /// Times that the cache was found to be gone: nothing is cached, and the numbers go on.
    pub empties: u32,
    /// Times that an adapter was replaced under its name: the view knows which blocks were its.
    pub adapters: u32,
    /// What the engine last reported of its work. News of it wake nobody.
    pub work: Option<Work>,
}

/// What a follower is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// Forget the blocks, keep the place.
    Empty,
    /// Forget the blocks of adapters that were replaced.
    Adapters,
    /// Start over from a replay of everything.
    Rebuild,
    /// Prove that it is the same life, whenever the connection was made.
    Prove,
    /// Prove it if the connection is older than this.
    ProveSince(Instant),
    /// Connect anew.
    Reconnect,
}

/// The follower's end.
pub(super) struct Inbox {
    demands: watch::Receiver<Demands>,
    /// What was acted on.
    seen: Demands,
}

impl Inbox {
    /// What was asked before the follower began is no concern of a view that begins with nothing.
    pub(super) fn new(mut demands: watch::Receiver<Demands>) -> Self {
        let seen = *demands.borrow_and_update();
        Self { demands, seen }
    }

    /// Waits for the next demand; for ever once nobody can make one. May be dropped without loss.
    pub(super) async fn next(&mut self) -> Demand {
        loop {
            if let Some(demand) = self.take() {
                return demand;
            }
            if self.demands.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// A connection was made: what is proven from here on is proven of the engine that runs now.
    pub(super) fn connected(&mut self) {
        let asked = *self.demands.borrow();
        self.seen.proofs = asked.proofs;
        self.seen.away_at = asked.away_at;
        self.seen.reconnects = asked.reconnects;
    }

    /// What the engine last reported of its work.
    pub(super) fn work(&self) -> Option<Work> {
        self.demands.borrow().work
    }

    /// First what takes away, since a block that is not there costs more than one not known of.
    fn take(&mut self) -> Option<Demand> {
        let asked = *self.demands.borrow_and_update();
        let seen = &mut self.seen;
        if seen.empties != asked.empties {
            seen.empties = asked.empties;
            return Some(Demand::Empty);
        }
        if seen.adapters != asked.adapters {
            seen.adapters = asked.adapters;
            return Some(Demand::Adapters);
        }
        if seen.proofs != asked.proofs {
            seen.proofs = asked.proofs;
            return Some(Demand::Prove);
        }
        if seen.away_at != asked.away_at {
            seen.away_at = asked.away_at;
            return asked.away_at.map(Demand::ProveSince);
        }
        if seen.rebuilds != asked.rebuilds {
            seen.rebuilds = asked.rebuilds;
            return Some(Demand::Rebuild);
        }
        if seen.reconnects != asked.reconnects {
            seen.reconnects = asked.reconnects;
            return Some(Demand::Reconnect);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn each_kind_is_acted_on_once_however_often_it_was_asked_meanwhile() {
        let (sender, receiver) = watch::channel(Demands::default());
        let mut inbox = Inbox::new(receiver);
        assert_eq!(inbox.next().now_or_never(), None);
        sender.send_modify(|demands| {
            demands.rebuilds += 2;
            demands.empties += 3;
            demands.proofs += 1;
        });
        assert_eq!(inbox.next().now_or_never(), Some(Demand::Empty));
        assert_eq!(inbox.next().now_or_never(), Some(Demand::Prove));
        assert_eq!(inbox.next().now_or_never(), Some(Demand::Rebuild));
        assert_eq!(inbox.next().now_or_never(), None);
    }

    #[test]
    fn a_new_connection_answers_the_proofs_asked_before_it_and_nothing_else() {
        let (sender, receiver) = watch::channel(Demands::default());
        let mut inbox = Inbox::new(receiver);
        sender.send_modify(|demands| {
            demands.proofs += 1;
            demands.reconnects += 1;
            demands.away_at = Some(Instant::now());
            demands.empties += 1;
        });
        inbox.connected();
        assert_eq!(inbox.next().now_or_never(), Some(Demand::Empty));
        assert_eq!(inbox.next().now_or_never(), None);
    }

    #[test]
    fn when_nobody_can_ask_any_more_it_waits_for_ever() {
        let (sender, receiver) = watch::channel(Demands::default());
        let mut inbox = Inbox::new(receiver);
        drop(sender);
        assert_eq!(inbox.next().now_or_never(), None);
    }
}
