//! What is held of one source, and what each message, silence and loss does to it.

mod catch_up;
mod repair;
mod silence;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};
use xxhash_rust::xxh3::xxh3_64;
use zeromq::{ZmqError, ZmqMessage};

use super::demands::{Demands, Inbox};
use super::quiet::Quiet;
use super::socket::{Link, Lost, Message, parse};
use super::{Settings, Source, View};
use crate::feeds::kv_cursor::{Cursor, Step};
use crate::feeds::kv_wire::{self, Batch, DecodeError};
use crate::metrics::events::SourceMetrics;
use crate::routing::cache::FeedState;
use crate::routing::event::KvEvent;
use repair::{Jumps, Rebuilds};
use silence::Backoff;

/// One source as we stand with it.
pub(super) struct Follower<'a, V> {
    endpoint: &'a str,
    source: Source,
    view: V,
    inbox: Inbox,
    settings: Settings,
    metrics: SourceMetrics,
    cursor: Cursor,
    /// The first number held since the view was last empty.
    base: Option<u64>,
    /// Hash of the payload of the cursor's last number, to know it again.
    print: u64,
    /// Why the view may miss blocks, if it may.
    incomplete: Option<String>,
    /// Why nothing can be believed that comes, or does not come, from here.
    unusable: Option<String>,
    /// The connection was given up on a mere suspicion, and there is no replay socket to ask: the
    /// next number decides.
    kept: bool,
    rebuilds: Rebuilds,
    quiet: Quiet,
    jumps: Jumps,
    /// The replay socket did not answer when it was asked for the whole.
    unanswered: bool,
    /// Until when batches that cannot be read are not asked for again: the ring's last one was no better.
    illegible_until: Option<Instant>,
    /// Something was heard (a live batch or a replay's answer) on this connection.
    heard: bool,
    /// Something was ever heard.
    ever_heard: bool,
    connected: bool,
    /// What kept the last attempt from connecting.
    trouble: Option<ZmqError>,
    /// Until when silence is nothing to speak of; `None` once it was spoken of.
    silent_by: Option<Instant>,
    /// The causes of a known source's silence were logged.
    warned: bool,
    /// What the view was last told.
    told: Option<FeedState>,
    breather: Breather,
}

impl<'a, V: View> Follower<'a, V> {
    pub(super) fn new(
        endpoint: &'a str,
        source: Source,
        view: V,
        demands: watch::Receiver<Demands>,
        settings: Settings,
        metrics: SourceMetrics,
    ) -> Self {
        let quiet = Quiet::new(settings.quiet_timeout, Instant::now());
        Self {
            endpoint,
            source,
            view,
            inbox: Inbox::new(demands),
            settings,
            metrics,
            cursor: Cursor::default(),
            base: None,
            print: 0,
            incomplete: None,
            unusable: None,
            kept: false,
            rebuilds: Rebuilds::default(),
            quiet,
            jumps: Jumps::default(),
            unanswered: false,
            illegible_until: None,
            heard: false,
            ever_heard: false,
            connected: false,
            trouble: None,
            silent_by: None,
            warned: false,
            told: None,
            breather: Breather::default(),
        }
    }

    /// Connects, follows, and starts over, for ever.
    pub(super) async fn run(mut self) {
        let mut backoff = Backoff::default();
        self.tell(FeedState::Suspect);
        self.silent_by = Some(Instant::now() + self.settings.guess_timeout);
        loop {
            let mut pause = None;
            match self.connect().await {
                Ok(mut link) => {
                    self.connected = true;
                    let lost = self.session(&mut link).await;
                    drop(link);
                    self.disconnected(&lost);
                    pause = matches!(lost, Lost::Interleaved).then_some(repair::QUARANTINE);
                    if std::mem::take(&mut self.heard) {
                        backoff = Backoff::default();
                    }
                }
                Err(error) => {
                    self.trouble = Some(error);
                    self.let_go();
                }
            }
            let pause = pause.unwrap_or_else(|| backoff.next(self.cap()));
            self.wait(pause).await;
        }
    }

    async fn connect(&mut self) -> Result<Link, ZmqError> {
        let address = self.source.live.clone();
        let mut connecting = std::pin::pin!(Link::connect(&address));
        loop {
            tokio::select! {
                connected = &mut connecting => return connected,
                () = until(self.silent_by) => self.silence(),
                demand = self.inbox.next() => self.obey_apart(demand),
            }
        }
    }

    async fn wait(&mut self, pause: Duration) {
        let over = Instant::now() + pause;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(over) => return,
                demand = self.inbox.next() => self.obey_apart(demand),
            }
        }
    }

    /// One connection, until it is lost.
    async fn session(&mut self, link: &mut Link) -> Lost {
        let patience = self.settings.guess_timeout;
        let look_every = self.quiet.look_every();
        let connected = Instant::now();
        self.inbox.connected();
        self.jumps = Jumps::default();
        let mut ask_again = connected + silence::ask_again_after(patience);
        let mut look_at = connected + look_every;
        let mut nudge_at = connected + silence::nudge_after();
        if let Err(lost) = self.join(link).await {
            return lost;
        }
        loop {
            let silent_by = self.silent_by.filter(|_| !self.heard);
            let ask_at = self.unanswered.then_some(ask_again);
            let rebuild_at = self.rebuilds.due();
            let outcome = tokio::select! {
                demand = self.inbox.next() => self.obey(demand, connected),
                received = link.next() => match received {
                    Ok(message) => self.receive(message, link).await,
                    Err(lost) => Err(lost),
                },
                () = until(silent_by) => {
                    self.silence();
                    Ok(())
                }
                () = until(ask_at) => {
                    ask_again = Instant::now() + silence::ask_again_after(patience);
                    self.ask_again(link).await
                }
                () = until(rebuild_at) => self.rebuild(link).await,
                () = tokio::time::sleep_until(look_at) => {
                    look_at = Instant::now() + look_every;
                    self.look()
                }
                () = tokio::time::sleep_until(nudge_at) => {
                    nudge_at = Instant::now() + silence::nudge_after();
                    link.nudge().await
                }
            };
            if let Err(lost) = outcome {
                return lost;
            }
            self.breather.pause().await;
        }
    }

    fn disconnected(&mut self, lost: &Lost) {
        self.connected = false;
        self.kept = lost.is_suspicion() && self.source.replay.is_none();
        if !self.kept {
            self.cursor.disconnected();
        }
        // One that was given up is tried for ever, and its comings and goings are no news.
        if !matches!(self.told, Some(FeedState::Absent(_))) {
            info!(endpoint = self.endpoint, rank = self.source.rank, error = %lost, "KV event source lost");
            self.tell(FeedState::Suspect);
            self.silent_by = Some(Instant::now() + self.settings.guess_timeout);
        }
    }

    async fn receive(&mut self, message: ZmqMessage, link: &mut Link) -> Result<(), Lost> {
        let Some(message) = parse(message) else {
            // Its number, if it had one, shows as a gap with the next message.
            self.metrics.unreadable();
            return Ok(());
        };
        self.heard();
        self.quiet.heard(Instant::now());
        self.live(message, link).await
    }

    async fn live(&mut self, message: Message, link: &mut Link) -> Result<(), Lost> {
        let seq = message.seq;
        let batch = kv_wire::decode(&message.payload);
        let mut tried = false;
        loop {
            // One that cannot be read may be whole in the engine's ring, as one that was lost on the way.
            if batch.is_err() && !tried && self.may_be_legible_in_the_ring() {
                tried = true;
                self.recover(link).await?;
                continue;
            }
            // Numbers before the first one we see may still be in the engine's ring.
            if self.cursor.last().is_none() && seq > 0 && !tried && !self.unanswered {
                tried = true;
                self.recover(link).await?;
                continue;
            }
            match self.cursor.observe_live(seq) {
                Step::Contiguous => break,
                Step::Duplicate => {
                    match batch {
                        Ok(_) => self.metrics.duplicate(),
                        Err(_) => self.metrics.unreadable(),
                    }
                    self.tell_standing();
                    return Ok(());
                }
                Step::Initial if seq == 0 => {
                    self.incomplete = None;
                    self.unanswered = false;
                    break;
                }
                Step::Initial => {
                    self.incomplete.get_or_insert_with(|| {
                        format!("batches before number {seq} were not seen")
                    });
                    break;
                }
                Step::Restarted => {
                    self.metrics.restart();
                    self.forget_as(V::restarted);
                    self.unanswered = false;
                    if self.jumps.again(Instant::now()) {
                        return Err(self.interleaved());
                    }
                }
                Step::Gap { expected, got } if tried => self.lose(expected, got),
                Step::Gap { .. } => {
                    self.metrics.gap();
                    tried = true;
                    self.recover(link).await?;
                }
            }
        }
        self.apply(&message, batch, true);
        self.tell_standing();
        Ok(())
    }

    /// The batches from `expected` to before `got` cannot be had: nothing that was held can be trusted.
    fn lose(&mut self, expected: u64, got: u64) {
        self.forget();
        let last = got.saturating_sub(1);
        self.incomplete = Some(format!("batches {expected} to {last} are lost"));
    }

    /// Forgets what was held: it cannot be known any more whether it is there.
    fn forget(&mut self) {
        self.forget_as(V::clear);
    }

    /// The same, with the view told why.
    fn forget_as(&mut self, tell: fn(&mut V)) {
        if self.cursor.last().is_some() {
            tell(&mut self.view);
            self.metrics.clear();
        }
        self.cursor.reset();
        self.base = None;
        self.incomplete = None;
        self.unusable = None;
    }

    /// Applies a batch whose number the cursor has just taken.
    fn apply(&mut self, message: &Message, batch: Result<Batch, DecodeError>, live: bool) {
        self.metrics.received(message.payload.len());
        self.base.get_or_insert(message.seq);
        self.print = xxh3_64(&message.payload);
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => {
                self.metrics.unreadable();
                if !live {
                    self.illegible_until = Some(Instant::now() + repair::ILLEGIBLE_PAUSE);
                }
                // What it took out of the cache is still held.
                self.view.clear();
                self.metrics.clear();
                self.unread(message.seq, &error.to_string());
                return;
            }
        };
        if let Some(rank) = batch.rank.filter(|rank| *rank != self.source.rank) {
            self.metrics.rank_mismatch();
            if self.source.one_of_several {
                self.foreign(rank);
                return;
            }
        }
        self.unusable = None;
        let applied = self.view.apply(&batch.events);
        let lag = live.then(|| lag(batch.ts)).flatten();
        self.metrics.applied(&batch.events, applied, lag);
        for (reason, n) in batch.skipped.iter() {
            self.metrics.skipped(reason.as_str(), n);
        }
        if batch.events.contains(&KvEvent::Cleared) {
            // Whatever was missed is gone from the engine as well.
            self.incomplete = None;
            self.unanswered = false;
        }
        if batch.skipped.lost() > 0 {
            let lost = batch.skipped.lost();
            self.unread(message.seq, &format!("{lost} events make no sense"));
        }
    }

    fn unread(&mut self, seq: u64, what: &str) {
        self.incomplete
            .get_or_insert_with(|| format!("batch {seq} could not be read: {what}"));
    }

    fn heard(&mut self) {
        self.heard = true;
        self.ever_heard = true;
        self.silent_by = None;
    }

    /// Says where we stand, a connection standing and no replay under way.
    fn tell_standing(&mut self) {
        let state = match (&self.unusable, &self.incomplete) {
            (Some(cause), _) => FeedState::Absent(cause.clone()),
            (None, Some(cause)) => FeedState::Incomplete(cause.clone()),
            (None, None) => FeedState::Live,
        };
        if self.told.as_ref() == Some(&state) {
            return;
        }
        // A guess that came to nothing stays one until something is heard.
        if !self.heard && matches!(self.told, Some(FeedState::Absent(_))) {
            return;
        }
        self.tell(state);
    }

    /// Tells the view, and the log when it is news.
    fn tell(&mut self, state: FeedState) {
        if self.told.as_ref() == Some(&state) {
            return;
        }
        let (endpoint, rank) = (self.endpoint, self.source.rank);
        match &state {
            FeedState::Live => info!(endpoint, rank, "KV events are live"),
            FeedState::Suspect => info!(endpoint, rank, "KV events are being caught up with"),
            FeedState::Incomplete(cause) => {
                warn!(endpoint, rank, cause, "KV events are incomplete");
            }
            FeedState::Absent(cause) => info!(endpoint, rank, cause, "no KV events"),
        }
        self.view.set_feed(state.clone());
        self.told = Some(state);
    }
}

/// Keeps a burst of batches from holding a thread against its other tasks. Going to the
/// scheduler after every batch would cost more than the batch itself: at 20,000 batches of 650
/// bytes a second 14.6 µs of CPU each instead of 3.2 µs (a release build, decoding included).
#[derive(Default)]
struct Breather {
    since: Option<Instant>,
}

impl Breather {
    /// Lets others run if it has been a while.
    async fn pause(&mut self) {
        const A_WHILE: Duration = Duration::from_micros(200);
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() > A_WHILE {
            tokio::task::yield_now().await;
            self.since = None;
        }
    }
}

/// Sleeps until `deadline`; without one, for ever.
async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Seconds since the engine's `ts`; a clock that runs ahead of ours counts as no lag.
fn lag(ts: f64) -> Option<f64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or(Duration::ZERO).as_secs_f64();
    let lag = (now - ts).max(0.0);
    ts.is_finite().then_some(lag)
}
