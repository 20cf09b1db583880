//! How is what is known of one resource kept up to date? List, watch from there, and again after whatever happens.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::collection::{Collection, Kind, Line, Listed, Trouble, Watch};
use super::object::{Object, Refusal};

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Until a page of a list is there, or a watch open.
    pub answer: Duration,
    /// How long a watch is asked to last. The API server may be lost without a word (its machine is gone, a firewall
    /// forgot us), and a watch may be silent for as long as nothing changes: so this bounds for how long we would
    /// not notice. Opening one again costs next to nothing.
    pub watch: Duration,
    /// How much longer than that we wait for the server to end it.
    pub grace: Duration,
    /// The first pause after a failure; each one after that is twice as long.
    pub first_pause: Duration,
    /// The longest pause.
    pub longest_pause: Duration,
    /// How long changes are gathered before the pool has a new version: 300 Pods that come at once are a few versions.
    pub gather: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(20),
            watch: Duration::from_secs(60),
            grace: Duration::from_secs(15),
            first_pause: Duration::from_millis(200),
            longest_pause: Duration::from_secs(10),
            gather: Duration::from_millis(25),
        }
    }
}

/// A watch that lasted this long was a sound one: what comes after it is a new trouble.
const SOUND: Duration = Duration::from_secs(5);

/// Troubles younger than this are counted and not told. An API server that starts refuses what it has not loaded yet:
/// with 403 before the roles, with 404 before the definitions. The advice for those would send people astray.
const CALM: Duration = Duration::from_secs(3);

/// What happens to a resource.
pub(super) enum Event<T> {
    /// These are all.
    Listed(Vec<Result<T, Refusal>>),
    /// One is new or another now.
    Applied(Result<T, Refusal>),
    /// One is gone.
    Deleted { name: String },
    /// From now on changes are told as they happen.
    Connected,
    /// The watch ended before its time, or a try failed; it may be that nothing is wrong.
    Lost(Trouble),
    /// It is not to be had for a while now; it will be tried again.
    Failed(Trouble),
}

/// Tells of a resource until nobody listens.
pub(super) async fn follow<T: Object>(
    collection: Collection,
    pace: Pace,
    events: mpsc::Sender<Event<T>>,
) {
    let mut follower = Follower {
        collection,
        pace,
        events,
        failures: 0,
        well: Instant::now(),
    };
    // Ends only with `Deaf`.
    follower.run().await.err();
}

/// Nobody listens any more.
struct Deaf;

struct Follower<T> {
    collection: Collection,
    pace: Pace,
    events: mpsc::Sender<Event<T>>,
    /// Since the last watch that was sound.
    failures: u32,
    /// When the last watch was open, or when we began.
    well: Instant,
}

impl<T: Object> Follower<T> {
    async fn run(&mut self) -> Result<std::convert::Infallible, Deaf> {
        loop {
            match self.collection.list(self.pace.answer).await {
                Ok(Listed { objects, version }) => {
                    self.tell(Event::Listed(objects)).await?;
                    self.watch_from(version).await?;
                }
                Err(trouble) => self.fail(trouble).await?,
            }
            self.pause().await;
        }
    }

    /// Watches, in one watch after the other, until one does not end in order: what was missed then is unknown, and a
    /// list knows everything. It costs one page for 500 objects.
    async fn watch_from(&mut self, mut version: String) -> Result<(), Deaf> {
        loop {
            let opened = Instant::now();
            let Pace { answer, watch, .. } = self.pace;
            let mut open = match self.collection.watch(&version, watch, answer).await {
                Ok(open) => open,
                Err(expired) if expired.kind == Kind::Expired => return Ok(()),
                Err(trouble) => return self.fail(trouble).await,
            };
            self.tell(Event::Connected).await?;
            let ended = self.follow_lines(&mut open, &mut version).await?;
            self.well = Instant::now();
            let sound = opened.elapsed() >= SOUND;
            if sound {
                self.failures = 0;
            }
            match ended {
                Ok(()) if sound => {}
                // A server that closes every watch at once must not be asked without pause.
                Ok(()) => self.pause().await,
                Err(expired) if expired.kind == Kind::Expired => return Ok(()),
                Err(trouble) => return self.tell(Event::Lost(trouble)).await,
            }
        }
    }

    /// Until the server closes the watch.
    async fn follow_lines(
        &self,
        open: &mut Watch,
        version: &mut String,
    ) -> Result<Result<(), Trouble>, Deaf> {
        let deadline = self.pace.watch + self.pace.grace;
        loop {
            let (line, next) = match open.next(&self.collection, deadline).await {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(Ok(())),
                Err(trouble) => return Ok(Err(trouble)),
            };
            match line {
                Line::Applied(object) => self.tell(Event::Applied(object)).await?,
                Line::Deleted { name } => self.tell(Event::Deleted { name }).await?,
                Line::Bookmark => {}
            }
            if !next.is_empty() {
                *version = next;
            }
        }
    }

    async fn tell(&self, event: Event<T>) -> Result<(), Deaf> {
        self.events.send(event).await.map_err(|_closed| Deaf)
    }

    async fn fail(&self, trouble: Trouble) -> Result<(), Deaf> {
        let event = match self.well.elapsed() < CALM {
            true => Event::Lost(trouble),
            false => Event::Failed(trouble),
        };
        self.tell(event).await
    }

    async fn pause(&mut self) {
        let doubled = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let pause = self.pace.first_pause.saturating_mul(doubled);
        let pause = pause.min(self.pace.longest_pause);
        self.failures = self.failures.saturating_add(1);
        // Many pickers lose the API server at the same moment, and must not all come back at the same moment.
        sleep(pause.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
    }
}
