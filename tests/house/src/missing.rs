//! The one list of what is not there, and who refers to it.

use super::{files, root};
use std::fs;

/// The first cells of the rows of a table below a heading.
fn first_cells(document: &str, heading: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(document)).expect(document);
    let (_, rest) = text.split_once(&format!("\n{heading}\n")).expect(heading);
    let chapter = rest.split("\n## ").next().unwrap_or(rest);
    let rows = chapter.lines().filter_map(|line| line.strip_prefix("| ")).skip(2);
    let cells: Vec<String> = rows.filter_map(|row| row.split(" | ").next()).map(str::to_owned).collect();
    assert!(cells.len() > 3, "{document}, {heading}: the table has another form now");
    cells
}

/// The names in a cell.
fn names(cell: &str) -> impl Iterator<Item = &str> {
    cell.split([',', ':']).map(str::trim)
}

#[test]
fn the_conformance_table_names_a_test_for_all_that_is_not_there_and_for_nothing_else() {
    let list = first_cells("docs/not-there.md", "## Of the specifications");
    let table = first_cells("tests/CONFORMANCE.md", "## What is not there");
    for what in &table {
        assert!(
            list.contains(what),
            "docs/not-there.md does not list `{what}`, which tests/CONFORMANCE.md has"
        );
    }
    for what in &list {
        assert!(table.contains(what), "tests/CONFORMANCE.md has no row for `{what}` of docs/not-there.md");
    }
}

#[test]
fn where_it_would_go_is_said_of_what_is_listed_as_not_there() {
    let mut list = first_cells("docs/not-there.md", "## Of the specifications");
    list.extend(first_cells("docs/not-there.md", "## Beside the specifications"));
    let listed: Vec<&str> = list.iter().flat_map(|cell| names(cell)).collect();
    for cell in first_cells("ARCHITECTURE.md", "## Where would it go") {
        for name in names(&cell) {
            assert!(listed.contains(&name), "docs/not-there.md does not list `{name}`");
        }
    }
}

#[test]
fn nobody_else_has_a_list_of_what_is_not_there() {
    for document in ["README.md", "initiator/library/src/lib.rs", "target/src/lib.rs"] {
        let text = fs::read_to_string(root().join(document)).expect(document);
        let (_, rest) = text.split_once("# What is not there\n").expect(document);
        let lines = rest.lines().map(|line| line.trim_start_matches("//!").trim());
        let chapter: Vec<&str> =
            lines.skip_while(|line| line.is_empty()).take_while(|line| !line.is_empty()).collect();
        assert!(chapter.concat().contains("docs/not-there.md"), "{document} does not lead to the list");
        assert!(chapter.len() <= 2, "{document} has a list of its own");
    }
    for (path, text) in [".md", ".rs"].into_iter().flat_map(files) {
        let own = text.lines().any(|line| line.contains("# What it does not do"));
        assert!(
            !own || path.starts_with(super::OWN_FOLDER),
            "{path} has a list of its own: see docs/not-there.md"
        );
    }
}
