//! What goes to the standard output: text for people, JSON for programs.

use std::io::{self, Write};

use anyhow::{Context, Result};
use serde_json::Value;

/// Writes lines for people.
pub fn text(text: &str) -> Result<()> {
    write_all(format!("{}\n", text.trim_end_matches('\n')).as_bytes())
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

/// Names in one column, values in the next.
pub fn pairs(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect()
}

/// Columns as wide as their widest cell; the last one is not padded.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded: Vec<String> =
            cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    let mut text = line(head.to_vec());
    for row in rows {
        text.push_str(&line(row.iter().map(String::as_str).collect()));
    }
    text
}

/// A reader that went away (`ringfab list | head -1`) is not an error.
fn write_all(bytes: &[u8]) -> Result<()> {
    let mut output = io::stdout().lock();
    match output.write_all(bytes).and_then(|()| output.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("write to the standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["1".to_owned(), "10 GiB".to_owned()], vec!["1000".to_owned(), "1 B".to_owned()]];
        assert_eq!(table(&["ns", "size"], &rows), "ns    size\n1     10 GiB\n1000  1 B\n");
        assert_eq!(pairs(&[("a", "1".into()), ("long", "2".into())]), "a     1\nlong  2\n");
    }
}
