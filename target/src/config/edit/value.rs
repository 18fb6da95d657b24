//! Values as they are written.

use toml::Value;
use toml_edit::{Array, InlineTable, Item, RawString};

use super::{keys_of, place};

/// The tables of a list.
pub(super) fn tables(value: &Value) -> Vec<&toml::Table> {
    value.as_array().into_iter().flatten().filter_map(Value::as_table).collect()
}

/// The keys of a table as people write them: first what says which one it is.
pub(super) fn in_order(table: &toml::Table) -> Vec<(&String, &Value)> {
    const FIRST: [&str; 16] = [
        "target",
        // `memory` is a table of the process, and what a namespace is made of.
        "nsid",
        "memory",
        "control",
        "metrics",
        "confinement",
        "listener",
        "subsystem",
        "nqn",
        "host",
        "transport",
        "address",
        "port",
        "path",
        "null",
        "discovery",
    ];
    let mut keys: Vec<_> = table.iter().collect();
    keys.sort_by_key(|(key, _)| FIRST.iter().position(|first| first == key).unwrap_or(FIRST.len()));
    keys
}

/// Whether a new list has a header for each of its tables.
pub(super) fn in_tables(key: &str, list: &[Value]) -> bool {
    keys_of(key).is_some() && key != "host_limits" && !list.is_empty()
}

/// A value that is not in the file yet.
pub(super) fn new(value: &Value) -> toml_edit::Value {
    match value {
        Value::String(text) => text.as_str().into(),
        Value::Integer(number) => (*number).into(),
        Value::Float(number) => (*number).into(),
        Value::Boolean(whether) => (*whether).into(),
        Value::Datetime(time) => (*time).into(),
        Value::Array(list) => list.iter().map(new).collect::<Array>().into(),
        Value::Table(table) => {
            let keys = in_order(table).into_iter().map(|(key, value)| (key.as_str(), new(value)));
            keys.collect::<InlineTable>().into()
        }
    }
}

/// A table with a header, at a place of the file.
pub(super) fn new_table(keys: &toml::Table, place: isize, gap: &str) -> toml_edit::Table {
    let mut table = toml_edit::Table::new();
    place::mark_new(&mut table, place, gap);
    for (key, value) in in_order(keys) {
        let item = match value {
            Value::Array(list) if in_tables(key, list) => {
                let tables = tables(value).into_iter().map(|one| new_table(one, place, gap));
                Item::ArrayOfTables(tables.collect())
            }
            value => Item::Value(new(value)),
        };
        table.insert(key, item);
    }
    table
}

/// Puts another value into the place of one. Nothing if there is none, but tables.
pub(super) fn replace(item: &mut Item, wanted: &Value) -> Option<()> {
    let there = item.as_value_mut()?;
    if let (toml_edit::Value::Array(list), Value::Array(wanted)) = (&mut *there, wanted) {
        change_list(list, wanted);
        return Some(());
    }
    let mut value = new(wanted);
    if let (toml_edit::Value::String(old), Value::String(text)) = (&*there, wanted)
        && old.display_repr().starts_with('\'')
        && let Ok(literal) = format!("'{text}'").parse()
    {
        value = literal;
    }
    *value.decor_mut() = there.decor().clone();
    *there = value;
    Some(())
}

/// Changes a list of plain values: what stays keeps its line.
fn change_list(list: &mut Array, wanted: &[Value]) {
    let means = |one: &toml_edit::Value, other: &Value| {
        let mut other = new(other);
        let mut one = one.clone();
        one.decor_mut().clear();
        other.decor_mut().clear();
        match (one.as_str(), other.as_str()) {
            (Some(one), Some(other)) => one == other,
            _ => one.to_string() == other.to_string(),
        }
    };
    for index in (0..list.len()).rev() {
        if list.get(index).is_some_and(|one| !wanted.iter().any(|other| means(one, other))) {
            take(list, index);
        }
    }
    for one in wanted {
        if !list.iter().any(|there| means(there, one)) {
            push(list, new(one));
        }
    }
}

fn text(raw: Option<&RawString>) -> String {
    raw.and_then(RawString::as_str).unwrap_or_default().to_owned()
}

/// Takes a value out of a list. The comments around it stay.
pub(super) fn take(list: &mut Array, index: usize) {
    let taken = list.remove(index);
    let is_last = index == list.len();
    let before = text(taken.decor().prefix()) + text(taken.decor().suffix()).trim_end_matches([' ', '\t']);
    let after = match list.get(index) {
        Some(next) => text(next.decor().prefix()),
        None => text(Some(list.trailing())),
    };
    let merged = match (before.contains('#'), after.contains('#')) {
        (false, true) => after,
        // What stands after the last one closes the list.
        (false, false) if is_last => after,
        (false, false) => before,
        (true, false) if !is_last => before,
        (true, _) => before.trim_end_matches([' ', '\t']).to_owned() + after.trim_start_matches('\n'),
    };
    match list.get_mut(index) {
        Some(next) => next.decor_mut().set_prefix(merged),
        None => list.set_trailing(merged),
    }
    if list.is_empty() {
        list.set_trailing_comma(false);
    }
}

/// Adds a value to a list, on a line of its own if the others have one.
pub(super) fn push(list: &mut Array, mut value: toml_edit::Value) {
    let last = list.len().checked_sub(1).and_then(|last| list.get_mut(last));
    let (before, mut tail) = last.map_or_else(Default::default, |last| {
        let tail = text(last.decor().suffix());
        last.decor_mut().set_suffix("");
        (text(last.decor().prefix()), tail)
    });
    tail += &text(Some(list.trailing()));
    let end = tail.rsplit_once('\n').map_or("", |(_, end)| end).to_owned();
    let comments = tail.trim_end().to_owned();
    let comments = if comments.is_empty() { comments } else { format!(" {}", comments.trim_start()) };
    match before.rsplit_once('\n') {
        Some((_, indent)) => {
            value.decor_mut().set_prefix(format!("{comments}\n{indent}"));
            list.set_trailing(format!("\n{end}"));
        }
        None if comments.is_empty() => {
            let space = if list.is_empty() { "" } else { " " };
            value.decor_mut().set_prefix(space);
        }
        None => {
            value.decor_mut().set_prefix(format!("{comments}\n"));
            list.set_trailing("\n");
        }
    }
    list.push_formatted(value);
}

/// Whether a value takes several lines.
pub(super) fn has_lines(value: &toml_edit::Value) -> bool {
    let mut value = value.clone();
    value.decor_mut().clear();
    value.to_string().contains('\n')
}
