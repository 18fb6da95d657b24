//! What goes to the standard output: text for people, JSON for programs.

use std::io::{self, Write};

use anyhow::{Context, Result};
use ringfab_base::visible;
use ringfab_process::table::{self, Column};
use ringfab_process::terminal::{self, Stream};
use serde_json::Value;

/// Nobody reads the standard output any more. The command ends as others do then: quietly, by SIGPIPE.
#[derive(Debug, thiserror::Error)]
#[error("nobody reads the standard output any more")]
pub struct ReaderGone;

/// Writes lines for people. What could not be seen in them is escaped.
pub fn text(text: &str) -> Result<()> {
    let text = terminal::visible_text(Stream::Out, text.trim_end_matches('\n'));
    write_all(format!("{text}\n").as_bytes())
}

/// Writes a document for programs.
pub fn json(value: &Value) -> Result<()> {
    let mut bytes = serde_json::to_vec_pretty(value).context("make JSON")?;
    bytes.push(b'\n');
    write_all(&bytes)
}

/// Writes either, as the user asked.
pub fn either(as_json: bool, value: impl FnOnce() -> Value, lines: impl FnOnce() -> String) -> Result<()> {
    if as_json { json(&value()) } else { text(&lines()) }
}

/// As [`either`], for what a service says when it begins to serve. Who uses it need not be who started it, so it goes
/// on when nobody takes that.
pub fn announce(as_json: bool, value: impl FnOnce() -> Value, lines: impl FnOnce() -> String) {
    if let Err(error) = either(as_json, value, lines) {
        tracing::warn!("{error:#}");
    }
}

/// Names in one column, values in the next. No value can end its line.
pub fn pairs(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:width$}  {}\n", visible(value))).collect()
}

/// A table in the width of the terminal, see [`table`](ringfab_process::table).
pub fn table(columns: &[Column], rows: &[Vec<String>]) -> String {
    table::text(columns, rows, terminal::width(Stream::Out).unwrap_or(usize::MAX))
}

/// A reader that went away (`ringfab list | head -1`) gets no message: see [`ReaderGone`].
pub fn write_all(bytes: &[u8]) -> Result<()> {
    let mut output = io::stdout().lock();
    match output.write_all(bytes).and_then(|()| output.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        result => result.context("write to the standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_columns_and_a_value_ends_no_line() {
        assert_eq!(pairs(&[("a", "1".into()), ("long", "2".into())]), "a     1\nlong  2\n");
        assert_eq!(pairs(&[("a", "/mnt/\u{1b}[2J\nb".into())]), "a  /mnt/\\u{1b}[2J\\nb\n");
    }
}
