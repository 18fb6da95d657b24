//! How a line looks: for the journal, for a terminal, for a file.

use std::env;
use std::fmt::Write as _;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::stat::fstat;
use tracing::{Event, Level};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

use super::format::{Format, Parts};
use super::{journal, line, record};
use crate::terminal::{self, Stream};

/// How events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// Lines with time and level, with colours or without.
    Text {
        /// Whether there are colours.
        colour: bool,
    },
    /// Lines that begin with their priority, for the standard error that is the journal's.
    JournalLine,
    /// Records of the journal's native protocol, for its socket.
    JournalRecord,
    /// JSON.
    Json,
}

/// Whether the standard error has become a stream of the journal since the log was started.
static HAS_STREAM: AtomicBool = AtomicBool::new(false);

/// From now on, lines of text begin with their priority.
pub(super) fn has_stream() {
    HAS_STREAM.store(true, Ordering::Release);
}

/// What stands around the text of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Style {
    pub(super) written: Written,
    pub(super) parts: Parts,
}

impl Style {
    /// As it was asked for, or as the standard error wants it.
    pub(super) fn chosen(format: Format, parts: Parts) -> Self {
        let journal = is_journal();
        let colour = !journal && terminal::is_coloured(terminal::Stream::Err);
        let written = match format {
            Format::Json => Written::Json,
            Format::Text => Written::Text { colour },
            Format::Auto if !journal => Written::Text { colour },
            Format::Auto if journal::is_there() => Written::JournalRecord,
            Format::Auto => Written::JournalLine,
        };
        Self { written, parts }
    }

    /// How events are written at this moment.
    fn written_now(self, has_stream: bool) -> Written {
        match self.written {
            Written::Text { .. } if has_stream => Written::JournalLine,
            written => written,
        }
    }

    fn now(self) -> Written {
        self.written_now(HAS_STREAM.load(Ordering::Acquire))
    }

    /// The line of an event.
    pub(super) fn event(self, event: &Event<'_>) -> String {
        match self.written {
            Written::JournalRecord => record::journal_event(event, journal::program()),
            Written::Json => record::json_event(event, &time()),
            Written::Text { .. } | Written::JournalLine => {
                let metadata = event.metadata();
                self.line(*metadata.level(), metadata.target(), &line::text_of(event))
            }
        }
    }

    /// A line with everything around its text.
    pub(super) fn line(self, level: Level, target: &str, text: &str) -> String {
        let mut line = String::with_capacity(text.len() + target.len() + 48);
        match self.now() {
            Written::JournalRecord => return record::journal_line(level, target, text, journal::program()),
            Written::Json => return record::json_line(&time(), level, target, text),
            Written::JournalLine => line.push_str(&prefix(level)),
            Written::Text { colour } => {
                let (on, off) = if colour { ("\x1b[2m", "\x1b[0m ") } else { ("", " ") };
                line.push_str(&format!("{on}{}{off}", time()));
                push_level(&mut line, level, colour);
            }
        }
        if self.parts == Parts::Named {
            line.push_str(target);
            line.push_str(": ");
        }
        line.push_str(text);
        line.push('\n');
        line
    }

    /// Texts with nothing around them, each to be written at once. The journal gets their priority.
    pub(super) fn plain(self, level: Level, text: &str) -> Vec<String> {
        // What others chose is escaped in it. The colours are ours.
        let text = &terminal::visible_text(Stream::Err, text);
        let lines = || text.lines();
        match self.now() {
            Written::Text { .. } => vec![lines().map(|line| format!("{line}\n")).collect()],
            Written::JournalLine => vec![lines().map(|line| format!("{}{line}\n", prefix(level))).collect()],
            Written::JournalRecord => {
                let program = journal::program();
                lines().map(|line| record::journal_line(level, program, line, program)).collect()
            }
            Written::Json => vec![record::json_line(&time(), level, journal::program(), text.trim_end())],
        }
    }
}

/// The time now.
fn time() -> String {
    let mut text = String::new();
    if SystemTime.format_time(&mut Writer::new(&mut text)).is_err() {
        text.clear();
    }
    text
}

fn push_level(line: &mut String, level: Level, colours: bool) {
    let written = if colours {
        write!(line, "\x1b[{}m{:>5}\x1b[0m ", colour(level), level.as_str())
    } else {
        write!(line, "{:>5} ", level.as_str())
    };
    written.expect("a string takes everything");
}

/// Whether the standard error is the stream that a service manager has named as the journal's. One that was sent
/// elsewhere since then is not.
fn is_journal() -> bool {
    let Some(named) = env::var_os("JOURNAL_STREAM") else { return false };
    let Ok(file) = fstat(io::stderr()) else { return false };
    named.to_str() == Some(&format!("{}:{}", file.st_dev, file.st_ino))
}

/// A priority as the journal reads it at the beginning of a line.
fn prefix(level: Level) -> String {
    format!("<{}>", record::priority(level))
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

    const FILE: Style = Style { written: Written::Text { colour: false }, parts: Parts::Named };

    #[test]
    fn the_journal_gets_a_priority_and_no_time() {
        let style = Style { written: Written::JournalLine, ..FILE };
        assert_eq!(style.line(Level::WARN, "part", "text"), "<4>part: text\n");
        assert_eq!(style.plain(Level::ERROR, "one\ntwo"), ["<3>one\n<3>two\n"]);
    }

    #[test]
    fn a_stream_of_the_journal_that_comes_later_gets_priorities() {
        let coloured = Style { written: Written::Text { colour: true }, ..FILE };
        for style in [FILE, coloured] {
            assert_eq!(style.written_now(true), Written::JournalLine);
            assert_eq!(style.written_now(false), style.written);
        }
        for written in [Written::JournalLine, Written::JournalRecord, Written::Json] {
            assert_eq!(Style { written, ..FILE }.written_now(true), written);
        }
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
