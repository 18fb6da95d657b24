//! What goes to the standard output: text for people, JSON for programs.

use std::io::{self, Write};

use anyhow::{Context, Result};
use ringfab_base::visible;
use ringfab_process::terminal::{self, Paint, Stream};
use serde_json::Value;

/// As short as a column becomes where a terminal is too narrow.
const COLUMN_MIN: usize = 9;

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

/// Columns as wide as their widest cell; the last one is not padded. Where that is wider than the terminal, the widest
/// ones are shortened.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    table_with_whole(head, rows, &[])
}

/// The same, but the columns `whole`, by their number, are never shortened: what is in them can be copied.
pub fn table_with_whole(head: &[&str], rows: &[Vec<String>], whole: &[usize]) -> String {
    let text = fitted(head, rows, whole, terminal::width(Stream::Out));
    match text.split_once('\n') {
        Some((head, rows)) => format!("{}\n{rows}", terminal::painted(Stream::Out, Paint::Head, head)),
        None => text,
    }
}

fn fitted(head: &[&str], rows: &[Vec<String>], whole: &[usize], line_width: Option<usize>) -> String {
    // Or a name could make a row.
    let escaped = |row: &Vec<String>| row.iter().map(|cell| visible(cell).to_string()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(escaped).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..head.len()).map(width).collect();
    let all = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
    for _ in 0..line_width.map_or(0, |width| all.saturating_sub(width)) {
        let short = |(column, _): &(usize, &mut usize)| !whole.contains(column);
        let widest = widths.iter_mut().enumerate().filter(short).max_by_key(|(_, width)| **width);
        match widest {
            Some((_, width)) if *width > COLUMN_MIN => *width -= 1,
            _ => break,
        }
    }
    let line = |cells: Vec<&str>| {
        let padded: Vec<String> = cells
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{:width$}", terminal::shortened(cell, *width)))
            .collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    let mut text = line(head.to_vec());
    for row in &rows {
        text.push_str(&line(row.iter().map(String::as_str).collect()));
    }
    text
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

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [row(&["1", "10 GiB"]), row(&["1000", "1 B"])];
        assert_eq!(fitted(&["ns", "size"], &rows, &[], None), "ns    size\n1     10 GiB\n1000  1 B\n");
        assert_eq!(pairs(&[("a", "1".into()), ("long", "2".into())]), "a     1\nlong  2\n");
    }

    #[test]
    fn a_name_ends_no_line_and_moves_no_cursor() {
        const EVIL: &str = "/mnt/\u{1b}[2J\nmount  forged\u{202e}";
        const SHOWN: &str = "/mnt/\\u{1b}[2J\\nmount  forged\\u{202e}";
        let text = fitted(&["where"], &[row(&[EVIL])], &[], None);
        assert_eq!(text, format!("where\n{SHOWN}\n"));
        assert_eq!(pairs(&[("a", EVIL.into())]), format!("a  {SHOWN}\n"));
    }

    #[test]
    fn the_widest_columns_make_room_and_those_that_are_copied_do_not() {
        let rows = [row(&["1", "nqn.2014-08.org.nvmexpress:uuid:0123", "uuid 0123456789abcdef"])];
        let text = fitted(&["ns", "name", "identifier"], &rows, &[], Some(40));
        assert_eq!(text, "ns  name               identifier\n1   nqn.2014…uid:0123  uuid 012…89abcdef\n");
        let text = fitted(&["ns", "name", "identifier"], &rows, &[1], Some(40));
        assert!(text.contains(&rows[0][1]) && text.contains("uuid…cdef\n"), "{text}");
        let narrow = fitted(&["ns", "name", "identifier"], &rows, &[], Some(1));
        assert!(narrow.lines().all(|line| line.chars().count() <= 2 + 2 * 2 + 2 * COLUMN_MIN), "{narrow}");
    }
}
