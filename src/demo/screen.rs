//! How is it shown? Lines, and on a terminal one table that is drawn again in place. All printing goes through here.

use std::io::{self, IsTerminal as _, Write};

use anyhow::Context as _;
use serde_json::Value;

/// Where the demo writes.
pub(super) struct Screen {
    out: Box<dyn Write + Send>,
    /// A terminal, whose lines can be written again.
    live: bool,
    /// Lines of the table that is there now.
    drawn: usize,
}

impl Screen {
    /// Standard output, or standard error where standard output is kept for the JSON.
    pub(super) fn open(json: bool) -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let (out, terminal): (Box<dyn Write + Send>, bool) = if json {
            (Box::new(io::stderr()), io::stderr().is_terminal())
        } else {
            (Box::new(io::stdout()), io::stdout().is_terminal())
        };
        Self::new(out, terminal && !dumb)
    }

    fn new(out: Box<dyn Write + Send>, live: bool) -> Self {
        Self {
            out,
            live,
            drawn: 0,
        }
    }

    /// Whether a table can be drawn again in place.
    pub(super) const fn is_live(&self) -> bool {
        self.live
    }

    /// Prints a line; a table above it stays as it is.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn line(&mut self, line: &str) -> anyhow::Result<()> {
        self.drawn = 0;
        self.write(&format!("{line}\n"))
    }

    /// Draws the table, over the one that was drawn last.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn table(&mut self, lines: &[String]) -> anyhow::Result<()> {
        let mut text = String::new();
        if self.live && self.drawn > 0 {
            text.push_str(&format!("\x1b[{}A\x1b[J", self.drawn));
        }
        if self.live {
            // A line that wrapped would count as two.
            text.push_str("\x1b[?7l");
        }
        for line in lines {
            text.push_str(line);
            text.push('\n');
        }
        if self.live {
            text.push_str("\x1b[?7h");
        }
        self.drawn = lines.len();
        self.write(&text)
    }

    fn write(&mut self, text: &str) -> anyhow::Result<()> {
        let written = self.out.write_all(text.as_bytes());
        written
            .and_then(|()| self.out.flush())
            .context("cannot write")
    }
}

/// Prints the result on standard output.
///
/// # Errors
/// When it cannot be written.
pub(super) fn json(result: &Value) -> anyhow::Result<()> {
    writeln!(io::stdout().lock(), "{result:#}").context("cannot write the JSON")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn drawn(live: bool) -> String {
        let page = Page::default();
        let mut screen = Screen::new(Box::new(page.clone()), live);
        let table = ["a".to_owned(), "b".to_owned()];
        screen.table(&table).unwrap();
        screen.table(&table).unwrap();
        screen.line("end").unwrap();
        screen.table(&table).unwrap();
        let bytes = page.0.lock().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_terminals_table_is_drawn_over_the_last_one_until_a_line_follows() {
        let table = "\x1b[?7la\nb\n\x1b[?7h";
        assert_eq!(
            drawn(true),
            format!("{table}\x1b[2A\x1b[J{table}end\n{table}")
        );
    }

    #[test]
    fn elsewhere_there_are_no_control_characters() {
        assert_eq!(drawn(false), "a\nb\na\nb\nend\na\nb\n");
    }
}
