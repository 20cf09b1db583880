//! How does a generated load come about? Each conversation from a random source of its own.
//!
//! A request of the reference load takes 1.1 microseconds in a build for tests (24,000 of them, one core).

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;

use super::arrivals::Times;
use super::choice::Choice;
use super::distribution::Drawer;
use super::generated::{Burst, Generated, Service};
use super::names::{self, Kind, name};
use super::replay::{Script, Session, Sessions, Turn};
use super::{LONGEST, MOST_TOKENS};
use crate::simulate::prompt::{Prompt, Segment};

/// Numbers of conversations from here on are those of bursts.
const BURST_SESSIONS: u64 = 1 << 40;
/// Streams of chance; those of conversations have the conversation's number.
const TIMES: u64 = u64::MAX;
const DECK: u64 = u64::MAX - 1;
const PREFIX_LENGTHS: u64 = u64::MAX - 2;
const QUESTION_LENGTHS: u64 = u64::MAX - 3;

/// Makes conversations.
pub(super) struct Generator {
    seed: u64,
    times: Times,
    upcoming: Option<Duration>,
    made: u64,
    head: u32,
    choice: Option<Choice>,
    prefix_tokens: Vec<u32>,
    questions: Option<Questions>,
    unshared: Drawer,
    talk: Arc<Talk>,
    turns: Drawer,
    turns_expected: Option<f64>,
    burst: Option<Bursting>,
}

/// Unshared parts that are asked again and again.
struct Questions {
    each: u32,
    tokens: Vec<u32>,
    /// Gone through again and again; empty where popularity decides.
    deck: Vec<u32>,
}

/// What all turns have in common.
struct Talk {
    output: Drawer,
    think: Drawer,
    user: Drawer,
    service: Service,
}

struct Bursting {
    what: Burst,
    done: u32,
}

impl Generator {
    /// The load must have been checked.
    pub(super) fn new(load: &Generated, seed: u64) -> Self {
        let times_seed = names::seed(seed, TIMES);
        let mut times = if load.stages.is_empty() {
            Times::steady(load.arrivals, load.rate, load.ends(), times_seed)
        } else {
            Times::ladder(load.arrivals, load.stages.clone(), times_seed)
        };
        let prefixes = &load.prefixes;
        let mut rng = Rng::with_seed(names::seed(seed, PREFIX_LENGTHS));
        let tokens = prefixes.tokens.drawer();
        let prefix_tokens = (0..prefixes.count).map(|_| tokens.draw_whole(&mut rng));
        let talk = load.conversation.clone().unwrap_or_default();
        let ends = load.ends().is_some() || !load.stages.is_empty();
        let mean_turns = load
            .conversation
            .as_ref()
            .map_or(1.0, |talk| talk.turns.mean());
        Self {
            seed,
            turns_expected: ends.then(|| times.expected() * mean_turns.max(1.0)),
            upcoming: times.next(),
            times,
            made: 0,
            head: load.common_head,
            choice: (prefixes.count > 0)
                .then(|| Choice::new(prefixes.count, prefixes.zipf, prefixes.first_share)),
            prefix_tokens: prefix_tokens.collect(),
            questions: Questions::new(load, seed),
            unshared: load.unshared.drawer(),
            talk: Arc::new(Talk {
                output: load.output.drawer(),
                think: talk.think.drawer(),
                user: talk.user.drawer(),
                service: talk.service,
            }),
            turns: match &load.conversation {
                Some(talk) => talk.turns.drawer(),
                None => Drawer::Fixed(1.0),
            },
            burst: load.burst.clone().map(|what| Bursting { what, done: 0 }),
        }
    }

    /// The next request of the burst, if it is its time.
    fn burst(&mut self) -> Option<Session> {
        let upcoming = self.upcoming;
        let Bursting { what, done } = self.burst.as_mut()?;
        if *done >= what.requests || upcoming.is_some_and(|at| at < what.at.0) {
            return None;
        }
        let number = BURST_SESSIONS + u64::from(*done);
        *done += 1;
        let prefix = name(Kind::Burst, 0, 0);
        let prompt = [
            (name(Kind::Head, 0, 0), self.head),
            (prefix, what.shared),
            (name(Kind::Own, number, 0), what.unshared),
        ];
        Some(Session {
            at: what.at.0,
            number,
            first: Turn {
                gap: Duration::ZERO,
                think: Duration::ZERO,
                prompt: Prompt::new(segments(prompt)),
                output: what.output.max(1),
                answer: name(Kind::Answer, number, 0),
                prefix: Some(prefix),
            },
            turns: 1,
            rest: None,
        })
    }

    /// The prompt a conversation begins with, and its prefix.
    fn first_prompt(&mut self, number: u64, rng: &mut Rng) -> (Prompt, Option<u64>) {
        let head = (name(Kind::Head, 0, 0), self.head);
        let (prefix, own) = self.pick(number, rng);
        let named = |prefix| name(Kind::Prefix, prefix as u64, 0);
        let shared = prefix.map(|prefix| {
            let tokens = self.prefix_tokens.get(prefix).copied();
            (named(prefix), tokens.unwrap_or_default())
        });
        let before = self.head + shared.map_or(0, |(_, tokens)| tokens);
        // A prompt of nothing is none.
        let own = (own.0, own.1.max(u32::from(before == 0)));
        let prompt = Prompt::new(segments([head, shared.unwrap_or_default(), own]));
        (prompt, prefix.map(named))
    }

    /// Which prefix, and what of its own the prompt has.
    fn pick(&self, number: u64, rng: &mut Rng) -> (Option<usize>, (u64, u32)) {
        let Some(questions) = &self.questions else {
            let prefix = self.choice.as_ref().map(|choice| choice.draw(rng));
            let own = name(Kind::Own, number, 0);
            return (prefix, (own, self.unshared.draw_whole(rng)));
        };
        let place = if questions.deck.is_empty() {
            let prefix = self.choice.as_ref().map_or(0, |choice| choice.draw(rng));
            prefix * questions.each as usize + rng.usize(..questions.each as usize)
        } else {
            let turn = number % questions.deck.len() as u64;
            let drawn = usize::try_from(turn).ok();
            let drawn = drawn.and_then(|turn| questions.deck.get(turn));
            drawn.copied().unwrap_or_default() as usize
        };
        let tokens = questions.tokens.get(place).copied().unwrap_or_default();
        let own = name(Kind::Question, place as u64, 0);
        (Some(place / questions.each as usize), (own, tokens))
    }
}

impl Questions {
    fn new(load: &Generated, seed: u64) -> Option<Self> {
        let prefixes = &load.prefixes;
        if prefixes.questions == 0 {
            return None;
        }
        let all = prefixes.count.saturating_mul(prefixes.questions);
        let mut rng = Rng::with_seed(names::seed(seed, QUESTION_LENGTHS));
        let tokens = load.unshared.drawer();
        let tokens = (0..all).map(|_| tokens.draw_whole(&mut rng)).collect();
        let alike = prefixes.zipf == 0.0 && prefixes.first_share.is_none();
        let mut deck: Vec<u32> = (0..if alike { all } else { 0 }).collect();
        Rng::with_seed(names::seed(seed, DECK)).shuffle(&mut deck);
        Some(Self {
            each: prefixes.questions,
            tokens,
            deck,
        })
    }
}

/// Pieces that are there.
fn segments<const N: usize>(pieces: [(u64, u32); N]) -> impl Iterator<Item = Segment> {
    let pieces = pieces.into_iter().filter(|(_, tokens)| *tokens > 0);
    pieces.map(|(id, tokens)| Segment { id, tokens })
}

impl Sessions for Generator {
    fn next(&mut self) -> Option<Session> {
        if let Some(session) = self.burst() {
            return Some(session);
        }
        let at = self.upcoming?;
        self.upcoming = self.times.next();
        let number = self.made;
        self.made += 1;
        let mut rng = Rng::with_seed(names::seed(self.seed, number));
        let (prompt, prefix) = self.first_prompt(number, &mut rng);
        let output = self.talk.output.draw_whole(&mut rng).max(1);
        let turns = u64::from(self.turns.draw_whole(&mut rng).max(1));
        let first = Turn {
            gap: Duration::ZERO,
            think: Duration::ZERO,
            prompt,
            output,
            answer: name(Kind::Answer, number, 0),
            prefix,
        };
        let rest = (turns > 1).then(|| -> Box<dyn Script> {
            Box::new(Chat {
                talk: Arc::clone(&self.talk),
                rng,
                number,
                turn: 0,
                before: first.clone(),
            })
        });
        Some(Session {
            at,
            number,
            first,
            turns,
            rest,
        })
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number of requests, and the cast saturates"
    )]
    fn turns_left(&self) -> Option<u64> {
        let expected = self.turns_expected?;
        // Chance rarely gives six deviations more than expected.
        let most = 6.0f64.mul_add(expected.sqrt(), expected).ceil() as u64;
        let burst = self.burst.as_ref();
        let burst = burst.map_or(0, |burst| u64::from(burst.what.requests - burst.done));
        Some(most.saturating_sub(self.made).saturating_add(burst))
    }
}

/// The later turns of a conversation.
struct Chat {
    talk: Arc<Talk>,
    rng: Rng,
    number: u64,
    turn: u64,
    before: Turn,
}

impl Script for Chat {
    fn next(&mut self) -> Option<Turn> {
        self.turn += 1;
        let before = &self.before;
        let think = self.talk.think.draw(&mut self.rng);
        let think = Duration::try_from_secs_f64(think).map_or(LONGEST, |think| think.min(LONGEST));
        let user = self.talk.user.draw_whole(&mut self.rng).max(1);
        let tokens = before.prompt.tokens().saturating_add(before.output);
        if tokens.saturating_add(user) > MOST_TOKENS {
            // It has said all that a prompt can hold.
            return None;
        }
        let added = [
            (before.answer, before.output),
            (name(Kind::Own, self.number, self.turn), user),
        ];
        let all = before.prompt.segments().iter().copied();
        let turn = Turn {
            gap: self.talk.service.time(before.output).saturating_add(think),
            think,
            prompt: Prompt::new(all.chain(segments(added))),
            output: self.talk.output.draw_whole(&mut self.rng).max(1),
            answer: name(Kind::Answer, self.number, self.turn),
            prefix: before.prefix,
        };
        self.before = turn.clone();
        Some(turn)
    }
}
