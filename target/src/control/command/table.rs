//! Tables that fit a terminal.

use std::cmp::Ordering;

use ringfab_process::terminal::shortened;

/// How short names become before columns are left out, and after that.
const NAME_COMFORT: usize = 24;
const NAME_MIN: usize = 8;

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    /// Text, from the left.
    Text(&'static str),
    /// A name that may be shortened in its middle, from the left.
    Name(&'static str),
    /// A number, to the right.
    Number(&'static str),
    /// The same, left out where there is no room.
    Extra(&'static str),
}

/// One value of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    text: String,
    /// What it is sorted by; text when none.
    number: Option<u64>,
}

/// Rows below the names of their columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Table {
    columns: Vec<Column>,
    pub(super) rows: Vec<Vec<Cell>>,
}

impl Cell {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), number: None }
    }

    /// A number, and how it is written.
    pub(super) fn number(number: u64, written: fn(u64) -> String) -> Self {
        Self { text: written(number), number: Some(number) }
    }

    fn cmp(&self, other: &Self) -> Ordering {
        (self.number, &self.text).cmp(&(other.number, &other.text))
    }
}

impl Column {
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Text(title) | Self::Name(title) | Self::Number(title) | Self::Extra(title) => title,
        }
    }

    fn fill(self, cell: &str, width: usize) -> String {
        let cell = shortened(cell, width);
        match self {
            Self::Number(_) | Self::Extra(_) => format!("{cell:>width$}"),
            Self::Text(_) | Self::Name(_) => format!("{cell:<width$}"),
        }
    }
}

impl Table {
    pub(super) fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    pub(super) fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Sorts the rows by a column: numbers from the largest on, text from A to Z, or the other way round.
    pub(super) fn sort(&mut self, column: usize, reversed: bool) {
        let Some(kind) = self.columns.get(column) else { return };
        let descending = matches!(kind, Column::Number(_) | Column::Extra(_)) != reversed;
        self.rows.sort_by(|a, b| {
            let order = a[column].cmp(&b[column]);
            if descending { order.reverse() } else { order }
        });
    }

    /// The columns that are shown in lines of at most `width`, each with its width. First names are shortened, then
    /// extra columns are left out from the right, then names become as short as they may.
    fn fitted(&self, width: usize) -> Vec<(usize, usize)> {
        let longest = |index: usize| {
            let cells = self.rows.iter().map(|row| row[index].text.chars().count());
            cells.chain([self.columns[index].title().chars().count()]).max().unwrap_or(0)
        };
        let mut all: Vec<(usize, usize)> =
            (0..self.columns.len()).map(|index| (index, longest(index))).collect();
        loop {
            let tried = self.shrunk(&all, width, NAME_COMFORT);
            let extra = all.iter().rposition(|(index, _)| matches!(self.columns[*index], Column::Extra(_)));
            match extra {
                Some(extra) if excess(&tried, width) > 0 => drop(all.remove(extra)),
                _ => return self.shrunk(&tried, width, NAME_MIN),
            }
        }
    }

    /// Shortens the widest names, one character after the other, to no less than `name_min`.
    fn shrunk(&self, all: &[(usize, usize)], width: usize, name_min: usize) -> Vec<(usize, usize)> {
        let mut all = all.to_vec();
        for _ in 0..excess(&all, width) {
            let names = all.iter_mut().filter(|(index, _)| matches!(self.columns[*index], Column::Name(_)));
            let Some(widest) = names.filter(|(_, width)| *width > name_min).max_by_key(|(_, width)| *width)
            else {
                break;
            };
            widest.1 -= 1;
        }
        all
    }

    /// The names of the columns, and then a line for each row.
    pub(super) fn lines(&self, width: usize) -> Vec<String> {
        let fitted = self.fitted(width);
        let line = |cell: &dyn Fn(usize) -> String| {
            let filled = fitted.iter().map(|(index, width)| self.columns[*index].fill(&cell(*index), *width));
            filled.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        let titles = line(&|index| self.columns[index].title().to_owned());
        let rows = self.rows.iter().map(|row| line(&|index| row[index].text.clone()));
        [titles].into_iter().chain(rows).collect()
    }
}

/// By how much the columns with two spaces between them are wider than a line.
fn excess(columns: &[(usize, usize)], width: usize) -> usize {
    let cells: usize = columns.iter().map(|(_, width)| width).sum();
    (cells + 2 * columns.len().saturating_sub(1)).saturating_sub(width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&[Column::Name("host"), Column::Number("IOPS")]);
        let mut row = |name: &str, number: u64| {
            table.rows.push(vec![Cell::text(name), Cell::number(number, |number| number.to_string())]);
        };
        row("nqn.2014-08.org.nvmexpress:uuid:0123456789", 12);
        row("short", 3_456_789);
        table
    }

    #[test]
    fn numbers_are_sorted_from_the_largest_and_text_from_a_to_z() {
        let first = |column, reversed| {
            let mut table = table();
            table.sort(column, reversed);
            table.rows[0][0].text.clone()
        };
        assert_eq!((first(1, false).as_str(), first(0, true).as_str()), ("short", "short"));
        assert!(first(1, true).starts_with("nqn") && first(0, false).starts_with("nqn"));
    }

    #[test]
    fn extra_columns_are_left_out_where_there_is_no_room() {
        let mut table = Table::new(&[Column::Name("HOST"), Column::Extra("MORE"), Column::Number("IOPS")]);
        let number = |number| Cell::number(number, |number| number.to_string());
        table.rows.push(vec![Cell::text("a-name-of-24-characters!"), number(1), number(2)]);
        assert!(table.lines(36)[0].contains("MORE"));
        assert_eq!(table.lines(35)[1], "a-name-of-24-characters!     2");
        assert_eq!(table.lines(20)[1].chars().count(), 20);
    }

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let lines = table().lines(usize::MAX);
        assert_eq!(lines[0], format!("{:<42}  {:>7}", "host", "IOPS"));
        assert_eq!(lines[2], format!("{:<42}  3456789", "short"));
    }

    #[test]
    fn names_are_shortened_in_their_middle_so_that_a_line_fits() {
        let lines = table().lines(40);
        assert!(lines.iter().all(|line| line.chars().count() <= 40), "{lines:?}");
        assert!(
            lines[1].starts_with("nqn.2014-08.org")
                && lines[1].contains("…")
                && lines[1].contains("456789  ")
        );
        // What cannot be shortened stays, however narrow the terminal is.
        let narrow = table().lines(3);
        assert_eq!(narrow[2], format!("{:<8}  3456789", "short"));
    }
}
