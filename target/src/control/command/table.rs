//! Tables of a target's answer, whose rows can be sorted.

use std::cmp::Ordering;

use ringfab_process::table::{Column, Layout, text};

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
        let descending = kind.is_number() != reversed;
        self.rows.sort_by(|a, b| {
            let order = a[column].cmp(&b[column]);
            if descending { order.reverse() } else { order }
        });
    }

    fn cells(&self) -> Vec<Vec<String>> {
        self.rows.iter().map(|row| row.iter().map(|cell| cell.text.clone()).collect()).collect()
    }

    /// The table in lines of at most `width`, a line for each row.
    pub(super) fn layout(&self, width: usize) -> Layout {
        Layout::new(&self.columns, &self.cells(), width)
    }

    /// The table as text for the standard output.
    pub(super) fn text(&self, width: usize) -> String {
        text(&self.columns, &self.cells(), width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_sorted_from_the_largest_and_text_from_a_to_z() {
        let first = |column, reversed| {
            let mut table = Table::new(&[Column::name("host"), Column::number("IOPS")]);
            for (name, number) in [("nqn.2014-08.org.nvmexpress:uuid:0123456789", 12), ("short", 3_456_789)] {
                table.rows.push(vec![Cell::text(name), Cell::number(number, |number| number.to_string())]);
            }
            table.sort(column, reversed);
            table.rows[0][0].text.clone()
        };
        assert_eq!((first(1, false).as_str(), first(0, true).as_str()), ("short", "short"));
        assert!(first(1, true).starts_with("nqn") && first(0, false).starts_with("nqn"));
    }
}
