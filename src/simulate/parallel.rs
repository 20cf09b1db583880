//! How are independent runs spread over the cores, so that their results do not depend on it?

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;

/// Does every job, on at most `threads` threads at once; results in the order of the jobs.
pub fn each<J: Sync, R: Send>(jobs: &[J], threads: usize, run: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(jobs.len()));
    thread::scope(|scope| {
        for _ in 0..threads.clamp(1, jobs.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(at) else {
                        return;
                    };
                    let result = run(job);
                    done.lock().push((at, result));
                }
            });
        }
    });
    let mut done = done.into_inner();
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// As many threads as there are cores.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_jobs_whatever_the_threads() {
        let jobs: Vec<u64> = (0..100).collect();
        for threads in [0, 1, 3, 200] {
            let results = each(&jobs, threads, |n| n * n);
            assert!(results.iter().copied().eq(jobs.iter().map(|n| n * n)));
        }
        assert!(each(&[] as &[u8], 4, |n| *n).is_empty());
    }
}
