//! In what order do the turns of many conversations come? By recorded times, or each after the answer before it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::{Arrival, Loop, Workload};
use crate::simulate::prompt::Prompt;

/// One request of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Turn {
    /// Open loop: from the time of the turn before it.
    pub(super) gap: Duration,
    /// Closed loop: from the end of the turn before it.
    pub(super) think: Duration,
    pub(super) prompt: Prompt,
    pub(super) output: u32,
    pub(super) answer: u64,
    pub(super) prefix: Option<u64>,
}

/// What a conversation still has to say, turn by turn.
pub(super) trait Script {
    fn next(&mut self) -> Option<Turn>;
}

/// A conversation that begins.
pub(super) struct Session {
    pub(super) at: Duration,
    pub(super) number: u64,
    pub(super) first: Turn,
    /// Turns in all, the first one included.
    pub(super) turns: u64,
    /// The later ones; `None` when there is only the first.
    pub(super) rest: Option<Box<dyn Script>>,
}

/// Conversations in order of their beginnings.
pub(super) trait Sessions {
    fn next(&mut self) -> Option<Session>;

    /// Turns of all that are still to come, at most.
    fn turns_left(&self) -> Option<u64>;
}

/// A workload made of conversations.
pub(super) struct Replay<S> {
    sessions: S,
    kind: Loop,
    /// Requests that may still be given out. It is spent when a conversation begins, not when a turn comes, so that the
    /// order of `follow` has no say in what is asked.
    budget: u64,
    upcoming: Option<Session>,
    /// Open loop: the next turn of each conversation that has begun.
    due: BinaryHeap<Reverse<Due>>,
    /// Closed loop: conversations that wait for an answer.
    talking: FxHashMap<u64, Rest>,
}

/// The turns that a conversation still has.
struct Rest {
    script: Box<dyn Script>,
    left: u64,
}

/// A turn whose time is known. Ordered by time, then by conversation.
struct Due {
    at: Duration,
    session: u64,
    turn: Turn,
    rest: Rest,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.session).cmp(&(other.at, other.session))
    }
}

impl<S: Sessions> Replay<S> {
    /// At most `limit` requests of these conversations: the first ones, the last of them perhaps cut short.
    pub(super) fn new(sessions: S, kind: Loop, limit: Option<u64>) -> Self {
        let mut replay = Self {
            sessions,
            kind,
            budget: limit.unwrap_or(u64::MAX),
            upcoming: None,
            due: BinaryHeap::new(),
            talking: FxHashMap::default(),
        };
        replay.upcoming = replay.begin();
        replay
    }

    /// The next conversation, as far as the budget allows.
    fn begin(&mut self) -> Option<Session> {
        if self.budget == 0 {
            return None;
        }
        let mut session = self.sessions.next()?;
        session.turns = session.turns.clamp(1, self.budget);
        self.budget -= session.turns;
        Some(session)
    }

    /// Gives out the first turn of the conversation that begins now, and keeps the rest of it.
    fn open_session(&mut self) -> Option<Arrival> {
        let session = self.upcoming.take()?;
        self.upcoming = self.begin();
        if let Some(script) = session.rest
            && session.turns > 1
        {
            let rest = Rest {
                script,
                left: session.turns - 1,
            };
            match self.kind {
                Loop::Open => self.schedule(session.at, session.number, rest),
                Loop::Closed => {
                    self.talking.insert(session.number, rest);
                }
            }
        }
        Some(arrival(session.at, session.number, session.first))
    }

    /// Puts the next turn of a conversation among those that are due.
    fn schedule(&mut self, before: Duration, session: u64, mut rest: Rest) {
        if rest.left == 0 {
            return;
        }
        rest.left -= 1;
        if let Some(turn) = rest.script.next() {
            self.due.push(Reverse(Due {
                at: before.saturating_add(turn.gap),
                session,
                turn,
                rest,
            }));
        }
    }
}

fn arrival(at: Duration, session: u64, turn: Turn) -> Arrival {
    Arrival {
        at,
        prompt: turn.prompt,
        output: turn.output.max(1),
        answer: turn.answer,
        session,
        prefix: turn.prefix,
    }
}

impl<S: Sessions> Workload for Replay<S> {
    fn next(&mut self) -> Option<Arrival> {
        let due = self.due.peek().map(|Reverse(due)| due.at);
        let begins = self.upcoming.as_ref().map(|session| session.at);
        match (due, begins) {
            (Some(due), begins) if begins.is_none_or(|begins| due < begins) => {
                let Reverse(due) = self.due.pop()?;
                self.schedule(due.at, due.session, due.rest);
                Some(arrival(due.at, due.session, due.turn))
            }
            _ => self.open_session(),
        }
    }

    fn follow(&mut self, session: u64, ended: Duration) -> Option<Arrival> {
        let rest = self.talking.get_mut(&session)?;
        rest.left = rest.left.saturating_sub(1);
        let turn = rest.script.next();
        if rest.left == 0 || turn.is_none() {
            self.talking.remove(&session);
        }
        let turn = turn?;
        Some(arrival(ended.saturating_add(turn.think), session, turn))
    }

    fn len_hint(&self) -> Option<u64> {
        let begun = self.upcoming.as_ref().map_or(0, |session| session.turns);
        let due: u64 = self.due.iter().map(|due| due.0.rest.left + 1).sum();
        let kept = due + self.talking.values().map(|rest| rest.left).sum::<u64>();
        let left = self.sessions.turns_left().map(|left| left.min(self.budget));
        let left = left.or_else(|| (self.budget < u64::MAX >> 1).then_some(self.budget))?;
        Some(left.saturating_add(begun).saturating_add(kept))
    }
}
