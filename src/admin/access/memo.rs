//! What was answered lately? Each question is asked once at a time, and its answer holds for the time that comes with it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::Instant;

/// A question nobody finished asking is forgotten after this time; asking has a shorter deadline of its own.
const LONGEST_ASKING: Duration = Duration::from_secs(10);

/// Answers by question.
///
/// The lock guards the table; it is held for a look or a sweep over at most `capacity` entries, never while asking.
pub(super) struct Memo<K, V> {
    entries: Mutex<HashMap<K, Arc<Entry<V>>>>,
    capacity: usize,
}

struct Entry<V> {
    /// The answer, and when it ends to hold. Whoever comes first asks, the others wait; if the first one goes away
    /// before it has an answer, the next one asks.
    answer: OnceCell<(V, Instant)>,
    asked: Instant,
}

impl<V> Entry<V> {
    fn ends(&self) -> Instant {
        let answered = self.answer.get().map(|(_, ends)| *ends);
        answered.unwrap_or(self.asked + LONGEST_ASKING)
    }
}

impl<K: Eq + Hash + Clone, V: Clone> Memo<K, V> {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            entries: Mutex::default(),
            capacity,
        }
    }

    /// The answer that holds, or the one that `ask` gets, together with the time it holds for.
    pub(super) async fn get<F>(&self, question: K, ask: impl FnOnce() -> F) -> V
    where
        F: Future<Output = (V, Duration)>,
    {
        let entry = self.entry(question);
        let asking = async {
            let (answer, holds) = ask().await;
            (answer, Instant::now() + holds)
        };
        let (answer, _) = entry.answer.get_or_init(|| asking).await;
        answer.clone()
    }

    fn entry(&self, question: K) -> Arc<Entry<V>> {
        let now = Instant::now();
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get(&question).filter(|entry| now < entry.ends()) {
            return Arc::clone(entry);
        }
        if entries.len() >= self.capacity {
            make_room(&mut entries, self.capacity, now);
        }
        let entry = Arc::new(Entry {
            answer: OnceCell::new(),
            asked: now,
        });
        entries.insert(question, Arc::clone(&entry));
        entry
    }
}

/// What has ended goes first, then what ends soonest. Refusals hold for less time than grants, so made-up tokens push
/// each other out and not the scraper's.
fn make_room<K: Eq + Hash + Clone, V>(
    entries: &mut HashMap<K, Arc<Entry<V>>>,
    capacity: usize,
    now: Instant,
) {
    entries.retain(|_, entry| now < entry.ends());
    while entries.len() >= capacity {
        let soonest = entries.iter().min_by_key(|(_, entry)| entry.ends());
        let Some((question, _)) = soonest else { return };
        let question = question.clone();
        entries.remove(&question);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt as _;
    use futures_util::future::join_all;

    use super::*;

    const HOLDS: Duration = Duration::from_secs(60);

    /// A memo of which each question is answered with how many were asked before.
    struct Counted {
        memo: Memo<u32, usize>,
        asked: AtomicUsize,
    }

    impl Counted {
        fn new(capacity: usize) -> Self {
            Self {
                memo: Memo::new(capacity),
                asked: AtomicUsize::new(0),
            }
        }

        async fn get(&self, question: u32, holds: Duration) -> usize {
            let ask = async || {
                let before = self.asked.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_secs(1)).await;
                (before, holds)
            };
            self.memo.get(question, ask).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_who_ask_at_once_get_one_answer() {
        let counted = Counted::new(8);
        let answers = join_all((0..50).map(|_| counted.get(1, HOLDS))).await;
        assert_eq!(answers, [0; 50]);
        assert_eq!(counted.get(2, HOLDS).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_holds_for_its_time_and_no_longer() {
        let counted = Counted::new(8);
        counted.get(1, HOLDS).await;
        tokio::time::advance(HOLDS - Duration::from_millis(1)).await;
        assert_eq!(counted.get(1, HOLDS).await, 0);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(counted.get(1, HOLDS).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_takes_over_from_one_who_goes_away() {
        let counted = Counted::new(8);
        let mut first = Box::pin(counted.get(1, HOLDS));
        assert!(first.as_mut().now_or_never().is_none());
        let mut second = Box::pin(counted.get(1, HOLDS));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        assert_eq!(second.await, 1);
        assert_eq!(counted.get(1, HOLDS).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn many_short_lived_answers_do_not_push_out_a_long_lived_one() {
        let counted = Counted::new(4);
        counted.get(0, HOLDS).await;
        for question in 1..30 {
            counted.get(question, Duration::from_secs(10)).await;
            assert!(counted.memo.entries.lock().len() <= 4);
        }
        assert_eq!(counted.get(0, HOLDS).await, 0);
    }
}
