//! How a line looks: for the journal, for a terminal, for a file.

use std::env;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};

use nix::sys::stat::fstat;
use tracing::{Event, Level};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

use super::Parts;
use super::line;

/// What stands around the text of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Style {
    pub(super) journal: bool,
    pub(super) colour: bool,
    pub(super) parts: Parts,
}

impl Style {
    /// As the standard error wants it.
    pub(super) fn of_stderr(parts: Parts) -> Self {
        let journal = is_journal();
        let colour = !journal && io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none();
        Self { journal, colour, parts }
    }

    /// The line of an event.
    pub(super) fn event(self, event: &Event<'_>) -> String {
        let metadata = event.metadata();
        self.line(*metadata.level(), metadata.target(), &line::text_of(event))
    }

    /// A line with everything around its text.
    pub(super) fn line(self, level: Level, target: &str, text: &str) -> String {
        let mut line = String::with_capacity(text.len() + target.len() + 48);
        if self.journal {
            line.push_str(priority(level));
        } else {
            self.time(&mut line);
            self.level(&mut line, level);
        }
        if self.parts == Parts::Named {
            line.push_str(target);
            line.push_str(": ");
        }
        line.push_str(text);
        line.push('\n');
        line
    }

    /// Lines with nothing around them; the journal gets their priority.
    pub(super) fn plain(self, level: Level, text: &str) -> String {
        let priority = if self.journal { priority(level) } else { "" };
        text.lines().map(|line| format!("{priority}{line}\n")).collect()
    }

    fn time(self, line: &mut String) {
        let (on, off) = if self.colour { ("\x1b[2m", "\x1b[0m ") } else { ("", " ") };
        line.push_str(on);
        let begin = line.len();
        if SystemTime.format_time(&mut Writer::new(line)).is_err() {
            line.truncate(begin);
        }
        line.push_str(off);
    }

    fn level(self, line: &mut String, level: Level) {
        let written = if self.colour {
            write!(line, "\x1b[{}m{:>5}\x1b[0m ", colour(level), level.as_str())
        } else {
            write!(line, "{:>5} ", level.as_str())
        };
        written.expect("a string takes everything");
    }
}

/// Whether the standard error is the stream that a service manager has named as the journal's. One that was sent
/// elsewhere since then is not.
fn is_journal() -> bool {
    let Some(named) = env::var_os("JOURNAL_STREAM") else { return false };
    let Ok(file) = fstat(io::stderr()) else { return false };
    named.to_str() == Some(&format!("{}:{}", file.st_dev, file.st_ino))
}

/// The priorities of syslog, as the journal reads them at the beginning of a line.
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

fn colour(level: Level) -> u8 {
    match level {
        Level::ERROR => 31,
        Level::WARN => 33,
        Level::INFO => 32,
        Level::DEBUG => 34,
        Level::TRACE => 35,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Style = Style { journal: false, colour: false, parts: Parts::Named };

    #[test]
    fn the_journal_gets_a_priority_and_no_time() {
        let style = Style { journal: true, ..FILE };
        assert_eq!(style.line(Level::WARN, "part", "text"), "<4>part: text\n");
        assert_eq!(style.plain(Level::ERROR, "one\ntwo"), "<3>one\n<3>two\n");
    }

    #[test]
    fn a_file_gets_time_and_level() {
        let line = FILE.line(Level::INFO, "part", "text");
        let (time, rest) = line.split_once(' ').expect("a time");
        assert!(time.ends_with('Z') && time.contains('T'), "{line}");
        assert_eq!(rest, " INFO part: text\n");
        let unnamed = Style { parts: Parts::Unnamed, ..FILE };
        assert!(unnamed.line(Level::ERROR, "part", "text").ends_with("Z ERROR text\n"));
    }
}
