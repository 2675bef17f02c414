//! Prints lines, and a line of progress, which is overwritten if possible.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Standard output.
pub(crate) struct Screen {
    /// Whether the output is a terminal. A file or a pipe gets a new line at intervals instead.
    terminal: bool,
    progress_at: Instant,
    /// Whether the cursor is behind an unfinished line of progress.
    unfinished: bool,
}

impl Screen {
    pub(crate) fn new() -> Self {
        Self {
            terminal: io::stdout().is_terminal(),
            progress_at: Instant::now(),
            unfinished: false,
        }
    }

    /// Prints lines that stay.
    pub(crate) fn say(&mut self, lines: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if self.unfinished {
            write!(out, "\r\x1b[K")?;
            self.unfinished = false;
        }
        writeln!(out, "{lines}")?;
        out.flush()
    }

    /// Prints the progress, if the last print was long enough ago.
    pub(crate) fn progress(&mut self, line: impl FnOnce() -> String) -> io::Result<()> {
        let pause = Duration::from_millis(if self.terminal { 80 } else { 1_000 });
        if self.progress_at.elapsed() < pause {
            return Ok(());
        }
        self.progress_at = Instant::now();
        if !self.terminal {
            return self.say(&line());
        }
        let mut out = io::stdout().lock();
        // A narrow terminal cuts the line, because a wrapped line cannot be overwritten.
        write!(out, "\r\x1b[?7l{}\x1b[K\x1b[?7h", line())?;
        self.unfinished = true;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.unfinished {
            let _ = writeln!(io::stdout());
        }
    }
}
