//! How is a recorded conversation kept, and given out again? As what each prompt adds to the one before it.

use std::time::Duration;

use fastrand::Rng;

use super::Trace;
use crate::simulate::prompt::{Prompt, Segment};
use crate::simulate::workload::names::{Kind, name};
use crate::simulate::workload::replay::{Script, Session, Sessions, Turn};
use crate::simulate::workload::spec::OpenError;
use crate::simulate::workload::{LONGEST, MOST_TOKENS};

/// One request as its reader found it.
#[derive(Clone, Debug)]
pub(super) struct Call<'a> {
    /// From the start of the recording, or of the conversation where only that is known.
    pub(super) at: Duration,
    /// From the end of the answer before it.
    pub(super) think: Duration,
    pub(super) prompt: &'a [Segment],
    pub(super) output: u32,
    pub(super) prefix: Option<u64>,
}

/// A conversation.
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) number: u64,
    /// When it began, from the start of the recording.
    pub(super) at: Duration,
    /// When its last turn so far came.
    last_at: Duration,
    turns: Vec<Kept>,
    /// Tokens of the longest prompt or answer.
    longest: u64,
    /// The last prompt so far.
    last: Vec<Segment>,
}

/// A turn, as what it has beside its predecessor.
#[derive(Debug)]
struct Kept {
    gap: Duration,
    think: Duration,
    /// Segments that it has in common with its predecessor.
    common: usize,
    own: Box<[Segment]>,
    output: u32,
    prefix: Option<u64>,
}

impl Recording {
    /// A conversation of no turns yet. Its number is like no other's.
    pub(super) const fn new(number: u64) -> Self {
        Self {
            number,
            at: Duration::ZERO,
            last_at: Duration::ZERO,
            turns: Vec::new(),
            longest: 0,
            last: Vec::new(),
        }
    }

    /// Adds a turn; it comes no earlier than the one before.
    pub(super) fn push(&mut self, call: &Call<'_>) {
        let common = std::iter::zip(&self.last, call.prompt)
            .take_while(|(before, now)| before == now)
            .count();
        let own = call.prompt.get(common..).unwrap_or_default();
        if self.turns.is_empty() {
            self.at = call.at;
            self.last_at = call.at;
        }
        self.turns.push(Kept {
            gap: call.at.saturating_sub(self.last_at),
            think: call.think,
            common,
            own: own.into(),
            output: call.output.max(1),
            prefix: call.prefix,
        });
        self.last_at = self.last_at.max(call.at);
        let tokens = call.prompt.iter().map(|piece| u64::from(piece.tokens));
        self.longest = self.longest.max(tokens.sum()).max(call.output.into());
        self.last.truncate(common);
        self.last.extend_from_slice(own);
    }

    /// When its last turn comes at the earliest, in the slower of both loops.
    fn ends(&self) -> Duration {
        let sum = |time: fn(&Kept) -> Duration| {
            // Nobody waits for the first.
            let times = self.turns.iter().skip(1).map(time);
            times.fold(self.at, Duration::saturating_add)
        };
        sum(|turn| turn.gap).max(sum(|turn| turn.think))
    }

    /// Its turns so far.
    pub(super) const fn turns(&self) -> usize {
        self.turns.len()
    }

    /// The name of the answer to this turn.
    pub(super) const fn answer(number: u64, turn: u64) -> u64 {
        name(Kind::Answer, number, turn)
    }

    /// Frees what only `push` needs.
    fn close(&mut self) {
        self.last = Vec::new();
        self.turns.shrink_to_fit();
    }
}

/// All of a recording that will be replayed.
pub(in crate::simulate::workload) struct Recorded {
    left: std::vec::IntoIter<Recording>,
    turns_left: u64,
    longest: usize,
}

impl Recorded {
    /// Chooses, orders and scales conversations.
    pub(super) fn new(
        trace: &Trace,
        mut all: Vec<Recording>,
        seed: u64,
    ) -> Result<Self, OpenError> {
        all.retain(|recording| !recording.turns.is_empty());
        if let Some(sessions) = trace.sessions {
            if all.iter().all(|recording| recording.turns() == 1) {
                return Err(OpenError::NoSessions {
                    path: trace.path.clone(),
                });
            }
            sample(&mut all, sessions, seed);
        }
        if all.is_empty() {
            return Err(OpenError::Empty {
                path: trace.path.clone(),
            });
        }
        all.sort_by_key(|recording| (recording.at, recording.number));
        let start = all.first().map_or(Duration::ZERO, |first| first.at);
        for recording in &mut all {
            recording.close();
            recording.at = scaled(recording.at.saturating_sub(start), trace.speed);
            for turn in &mut recording.turns {
                let think = trace
                    .max_think
                    .map_or(turn.think, |most| turn.think.min(most.0));
                // An open loop waits less by what is thought less.
                turn.gap = scaled(turn.gap.saturating_sub(turn.think - think), trace.speed);
                turn.think = scaled(think, trace.speed);
            }
        }
        refuse_the_impossible(trace, &all)?;
        Ok(Self {
            turns_left: all.iter().map(|recording| recording.turns() as u64).sum(),
            longest: all.iter().map(Recording::turns).max().unwrap_or(0),
            left: all.into_iter(),
        })
    }

    /// Whether any request goes on with another.
    pub(in crate::simulate::workload) const fn has_conversations(&self) -> bool {
        self.longest > 1
    }
}

/// Refuses recordings that no engine and nobody's patience could be meant for.
fn refuse_the_impossible(trace: &Trace, all: &[Recording]) -> Result<(), OpenError> {
    let unusable = |problem: String| OpenError::Unusable {
        path: trace.path.clone(),
        problem,
    };
    let longest = all.iter().map(|recording| recording.longest).max();
    if let Some(tokens) = longest.filter(|tokens| *tokens > u64::from(MOST_TOKENS)) {
        let problem =
            format!("a prompt or answer of {tokens} tokens; at most {MOST_TOKENS} are taken");
        return Err(unusable(problem));
    }
    if all.iter().any(|recording| recording.ends() > LONGEST) {
        let problem = "it takes longer than a year; see --speed, --session-rate and --max-think";
        return Err(unusable(problem.to_owned()));
    }
    Ok(())
}

/// Keeps so many, chosen by the seed, in their order.
pub(super) fn sample<T>(all: &mut Vec<T>, count: u64, seed: u64) {
    let mut places: Vec<usize> = (0..all.len()).collect();
    Rng::with_seed(seed).shuffle(&mut places);
    places.truncate(usize::try_from(count).unwrap_or(usize::MAX));
    let mut keep = vec![false; all.len()];
    for place in places {
        if let Some(keep) = keep.get_mut(place) {
            *keep = true;
        }
    }
    let mut keep = keep.into_iter();
    all.retain(|_| keep.next().unwrap_or(false));
}

fn scaled(time: Duration, speed: f64) -> Duration {
    #[expect(
        clippy::float_cmp,
        reason = "as recorded is exactly that, and loses no nanosecond"
    )]
    if speed == 1.0 {
        return time;
    }
    Duration::try_from_secs_f64(time.as_secs_f64() / speed).unwrap_or(Duration::MAX)
}

impl Sessions for Recorded {
    fn next(&mut self) -> Option<Session> {
        let recording = self.left.next()?;
        let turns = recording.turns() as u64;
        self.turns_left -= turns;
        let mut playing = Playing {
            number: recording.number,
            turn: 0,
            turns: recording.turns.into_iter(),
            prompt: Vec::new(),
        };
        let first = playing.next()?;
        Some(Session {
            at: recording.at,
            number: recording.number,
            first,
            turns,
            rest: (turns > 1).then(|| -> Box<dyn Script> { Box::new(playing) }),
        })
    }

    fn turns_left(&self) -> Option<u64> {
        Some(self.turns_left)
    }
}

/// A conversation that is replayed.
struct Playing {
    number: u64,
    turn: u64,
    turns: std::vec::IntoIter<Kept>,
    prompt: Vec<Segment>,
}

impl Script for Playing {
    fn next(&mut self) -> Option<Turn> {
        let kept = self.turns.next()?;
        self.prompt.truncate(kept.common);
        self.prompt.extend_from_slice(&kept.own);
        let answer = Recording::answer(self.number, self.turn);
        self.turn += 1;
        Some(Turn {
            gap: kept.gap,
            think: kept.think,
            prompt: Prompt::new(self.prompt.iter().copied()),
            output: kept.output,
            answer,
            prefix: kept.prefix,
        })
    }
}
