//! Getting what was missed: replays, and the proof that they are of the same life.

use super::super::View;
use super::super::replay::{Replay, ReplayError, Reply};
use super::super::socket::{Link, Lost, Message};
use super::Follower;
use crate::feeds::kv_cursor::Step;
use crate::feeds::kv_wire;
use crate::metrics::events::ReplayOutcome;
use crate::routing::cache::FeedState;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

/// Requests without any progress before a replay is given up.
const MAX_FRUITLESS: u32 = 3;

/// How the answers to one request ended.
enum Answered {
    /// With the end marker.
    ToTheEnd,
    /// What we hold is not in the ring, or is not the same there.
    Otherwise(ReplayOutcome),
}

/// How a whole replay ended.
enum CaughtUp {
    /// All that the engine remembers is applied.
    Yes,
    /// It did not work, for this reason.
    No(String),
}

impl<V: View> Follower<'_, V> {
    /// A connection stands: gets all that was missed.
    pub(super) async fn join(&mut self, link: &mut Link) -> Result<(), Lost> {
        if !matches!(self.told, Some(FeedState::Absent(_))) {
            self.tell(FeedState::Suspect);
        }
        let kept = std::mem::take(&mut self.kept);
        if let CaughtUp::No(cause) = self.catch_up(link).await?
            && !kept
        {
            // Whether it is still the same life cannot be told.
            self.forget();
            self.incomplete = Some(cause);
        }
        self.tell_standing();
        Ok(())
    }

    /// Numbers are missing on a standing connection: gets them if they can be had.
    pub(super) async fn recover(&mut self, link: &mut Link) -> Result<(), Lost> {
        self.tell(FeedState::Suspect);
        if let CaughtUp::No(cause) = self.catch_up(link).await? {
            self.incomplete.get_or_insert(cause);
        }
        Ok(())
    }

    /// The replay socket did not answer when the connection was made: tries again, and if it
    /// now reaches further back than what is held, starts over with it.
    pub(super) async fn ask_again(&mut self, link: &mut Link) -> Result<(), Lost> {
        let Some(address) = self.source.replay.clone() else {
            self.unanswered = false;
            return Ok(());
        };
        let timeout = self.settings.replay_timeout;
        let first = async {
            let mut replay = Replay::connect(&address, timeout).await?;
            replay.ask(0).await?;
            replay.next().await
        };
        match (link.beside(first).await?, self.base) {
            (Err(_), _) => return Ok(()),
            // One that begins at 0 has everything, also what of it could not be read when it came.
            (Ok(Reply::Batch(Message { seq, .. })), Some(base)) if seq >= base && seq > 0 => {
                self.incomplete = Some(ring_begins_at(seq));
            }
            // A ring that is always empty.
            (Ok(Reply::End), Some(_)) => {}
            (Ok(_), _) => {
                self.forget();
                return self.join(link).await;
            }
        }
        self.unanswered = false;
        self.tell_standing();
        Ok(())
    }

    async fn catch_up(&mut self, link: &mut Link) -> Result<CaughtUp, Lost> {
        let Some(address) = self.source.replay.clone() else {
            return Ok(CaughtUp::No(
                "the engine has no replay socket: what it stored before is not known".to_owned(),
            ));
        };
        let (mut fruitless, mut lives, mut hole) = (0, 0, None);
        loop {
            let before = self.cursor.last();
            let mut proven = false;
            let outcome = self.replay(link, &address, &mut proven, &mut hole).await?;
            let no_progress = self.cursor.last() == before;
            let error = match outcome {
                Ok(Answered::ToTheEnd) => return Ok(self.caught_up(ReplayOutcome::Complete)),
                Ok(Answered::Otherwise(outcome)) if lives < MAX_FRUITLESS => {
                    lives += 1;
                    self.metrics.replay(outcome);
                    if outcome == ReplayOutcome::Restarted {
                        self.metrics.restart();
                        self.forget_as(V::restarted);
                    } else {
                        self.forget();
                    }
                    continue;
                }
                Ok(Answered::Otherwise(_)) => ReplayError::Fickle,
                // What is held is right, and whatever lies beyond it will show as a gap.
                Err(ReplayError::Silent(_)) if proven && no_progress => {
                    return Ok(self.caught_up(ReplayOutcome::Partial));
                }
                // Connecting was tried again and again already.
                Err(error @ ReplayError::Connect(_)) => error,
                Err(error) => {
                    fruitless = if no_progress { fruitless + 1 } else { 0 };
                    if fruitless < MAX_FRUITLESS {
                        continue;
                    }
                    error
                }
            };
            self.unanswered = true;
            self.metrics.replay(ReplayOutcome::Unanswered);
            let cause = self.advised(format!("no replay answer: {address} {error}"));
            return Ok(CaughtUp::No(cause));
        }
    }

    fn caught_up(&mut self, outcome: ReplayOutcome) -> CaughtUp {
        self.unanswered = false;
        self.metrics.replay(outcome);
        CaughtUp::Yes
    }

    /// One request, from the last number held. That batch comes back first and proves that it
    /// is the same life; `proven` says that it did (or that nothing had to be proven).
    async fn replay(
        &mut self,
        link: &mut Link,
        address: &str,
        proven: &mut bool,
        hole: &mut Option<u64>,
    ) -> Result<Result<Answered, ReplayError>, Lost> {
        let mut held = self.cursor.last();
        let connect = Replay::connect(address, self.settings.replay_timeout);
        let mut replay = match link.beside(connect).await? {
            Ok(replay) => replay,
            Err(error) => return Ok(Err(error)),
        };
        // Only now, so that addresses where nobody answers do not hold up the others. The
        // semaphore is never closed; if it were, going on without a permit would be right.
        let replays = self.settings.replays.clone();
        let _permit = link.beside(replays.acquire()).await?.ok();
        if let Err(error) = replay.ask(held.unwrap_or(0)).await {
            return Ok(Err(error));
        }
        loop {
            let reply = match link.beside(replay.next()).await? {
                Ok(reply) => reply,
                Err(error) => return Ok(Err(error)),
            };
            self.heard();
            let message = match (reply, held) {
                (Reply::End, None) => return Ok(Ok(Answered::ToTheEnd)),
                // An engine's ring always holds its last batch. This one never sent ours.
                (Reply::End, Some(_)) => {
                    return Ok(Ok(Answered::Otherwise(ReplayOutcome::Restarted)));
                }
                (Reply::Batch(message), _) => message,
            };
            match held.take() {
                None => {
                    if let Err(error) = self.replayed(&message, hole) {
                        return Ok(Err(error));
                    }
                }
                Some(last) if message.seq > last => {
                    return Ok(Ok(Answered::Otherwise(ReplayOutcome::Overrun)));
                }
                Some(_) if xxh3_64(&message.payload) != self.print => {
                    return Ok(Ok(Answered::Otherwise(ReplayOutcome::Restarted)));
                }
                Some(_) => {}
            }
            *proven = true;
            self.breather.pause().await;
        }
    }

    /// A batch out of a replay. Numbers missing inside it are asked for once more; if they are
    /// missing again, the engine never had them (a batch it failed to encode, for one).
    fn replayed(&mut self, message: &Message, hole: &mut Option<u64>) -> Result<(), ReplayError> {
        let seq = message.seq;
        match self.cursor.observe_replayed(seq) {
            Step::Contiguous => {}
            Step::Duplicate | Step::Restarted => return Ok(()),
            Step::Initial if seq == 0 => {}
            Step::Initial => {
                self.incomplete.get_or_insert_with(|| ring_begins_at(seq));
            }
            Step::Gap { expected, got } => {
                if hole.replace(expected) != Some(expected) {
                    return Err(ReplayError::Hole(expected));
                }
                self.metrics.gap();
                self.lose(expected, got);
                self.cursor.observe_replayed(seq);
            }
        }
        self.quiet.heard(Instant::now());
        self.apply(message, kv_wire::decode(&message.payload), false);
        Ok(())
    }
}

fn ring_begins_at(seq: u64) -> String {
    format!("the engine's replay begins at batch {seq}: what it stored before is not known")
}
