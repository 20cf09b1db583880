//! How far is a long run? One line that is written over on a terminal, a line every ten seconds elsewhere.

use std::io::{self, IsTerminal, Stderr, Write};
use std::time::{Duration, Instant};

use super::numbers::{clock, grouped, significant};
use super::text::plain;

/// Often enough to look alive, seldom enough to cost nothing.
const REDRAW: Duration = Duration::from_millis(100);
/// A log should not fill with it.
const LINE: Duration = Duration::from_secs(10);
/// The bar's characters, where there is room for them.
const BAR: u64 = 24;
const SHORTEST_BAR: u64 = 5;
/// A longer line wraps on a common terminal, and what is wrapped is not written over.
const COLUMNS: usize = 79;

/// Shows how far a run is. The caller tells it in its loop; most calls cost a comparison of times.
pub struct Progress<W> {
    out: W,
    is_terminal: bool,
    label: String,
    total: Option<u64>,
    started: Instant,
    next: Instant,
}

impl Progress<Stderr> {
    /// One on standard error.
    #[must_use]
    pub fn on_stderr(label: &str, total: Option<u64>, now: Instant) -> Self {
        let out = io::stderr();
        let is_terminal = out.is_terminal();
        Self::new(out, is_terminal, label, total, now)
    }
}

impl<W: Write> Progress<W> {
    /// One that writes to `out`: over the same line if that is a terminal. `total` is the number of requests of the
    /// whole run, where it is known.
    pub fn new(out: W, is_terminal: bool, label: &str, total: Option<u64>, now: Instant) -> Self {
        let next = if is_terminal { now } else { now + LINE };
        let label = plain(label);
        let total = total.filter(|&total| total > 0);
        Self {
            out,
            is_terminal,
            label,
            total,
            started: now,
            next,
        }
    }

    /// Says that `done` requests have ended. Writes only when the last writing is long enough ago.
    ///
    /// # Errors
    /// Those of writing, for example to a closed pipe. A run need not end for them.
    pub fn update(&mut self, done: u64, now: Instant) -> io::Result<()> {
        if now < self.next {
            return Ok(());
        }
        self.next = now + if self.is_terminal { REDRAW } else { LINE };
        self.write(done, now, false)
    }

    /// Says that the run has ended: the line is written a last time and closed.
    ///
    /// # Errors
    /// Those of writing.
    pub fn finish(mut self, done: u64, now: Instant) -> io::Result<()> {
        self.write(done, now, true)
    }

    fn write(&mut self, done: u64, now: Instant, ended: bool) -> io::Result<()> {
        let mut line: String = self.line(done, now, ended).chars().take(COLUMNS).collect();
        if self.is_terminal {
            // Back to the start, and everything to the right is erased.
            line = format!("\r{line}\x1b[K");
        }
        if ended || !self.is_terminal {
            line.push('\n');
        }
        self.out.write_all(line.as_bytes())?;
        self.out.flush()
    }

    fn line(&self, done: u64, now: Instant, ended: bool) -> String {
        let elapsed = now.saturating_duration_since(self.started);
        let total = self.total.filter(|_| !ended);
        let mut said = String::new();
        if let Some(total) = total {
            let percent = done.min(total) as f64 * 100.0 / total as f64;
            said.push_str(&format!(" {percent:.0} %"));
        }
        said.push_str(&format!(" {} requests", grouped(&done.to_string())));
        if !elapsed.is_zero() {
            let rate = done as f64 / elapsed.as_secs_f64();
            said.push_str(&format!(", {}/s", significant(rate)));
        }
        said.push_str(&format!(", {}", clock(elapsed.as_secs())));
        if let Some(total) = total.filter(|_| done > 0 && !elapsed.is_zero()) {
            let left = elapsed.as_secs_f64() * total.saturating_sub(done) as f64 / done as f64;
            let left = Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX);
            said.push_str(&format!(", {} left", clock(left.as_secs())));
        }
        let bar = total.filter(|_| self.is_terminal).map(|total| {
            let room =
                COLUMNS.saturating_sub(self.label.chars().count() + said.chars().count() + 1);
            bar(done, total, room as u64)
        });
        format!("{}{}{said}", self.label, bar.unwrap_or_default())
    }
}

/// A bar for what is done of the total, in at most `room` characters; nothing where it would be too short to read.
fn bar(done: u64, total: u64, room: u64) -> String {
    let length = BAR.min(room);
    if length < SHORTEST_BAR {
        return String::new();
    }
    let filled = u128::from(done.min(total)) * u128::from(length) / u128::from(total.max(1));
    let bar = (0..u128::from(length)).map(|place| if place < filled { '█' } else { '░' });
    [' '].into_iter().chain(bar).collect()
}
