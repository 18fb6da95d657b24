//! The comments of what is removed: they stay.

use toml_edit::{Decor, Item, Key, RawString, Table, Value};

/// The comments in what stands around a key or a value, a line each.
fn of_raw(raw: Option<&RawString>) -> String {
    let lines = raw.and_then(RawString::as_str).unwrap_or_default().lines().map(str::trim);
    lines.filter(|line| line.starts_with('#')).map(|line| line.to_owned() + "\n").collect()
}

fn of_decor(decor: &Decor) -> String {
    of_raw(decor.prefix()) + &of_raw(decor.suffix())
}

/// The comments above a key.
pub(super) fn of_key(key: Option<&Key>) -> String {
    key.map(|key| of_decor(key.leaf_decor())).unwrap_or_default()
}

/// The comments in a value, and after it on its line.
pub(super) fn of_value(value: &Value) -> String {
    let [before, after] = [value.decor().prefix(), value.decor().suffix()].map(of_raw);
    let within = match value {
        Value::Array(list) => list.iter().map(of_value).collect::<String>() + &of_raw(Some(list.trailing())),
        Value::InlineTable(table) => {
            let keys = table.iter().map(|(key, value)| of_key(table.key(key)) + &of_value(value));
            keys.collect::<String>() + &of_raw(Some(table.trailing()))
        }
        _ => String::new(),
    };
    before + &within + &after
}

/// The comments in all that a key stands for.
pub(super) fn of_item(item: &Item) -> String {
    match item {
        Item::Table(table) => of_table(table),
        Item::ArrayOfTables(list) => list.iter().map(of_table).collect(),
        Item::Value(value) => of_value(value),
        Item::None => String::new(),
    }
}

/// The comments above a table and in it.
pub(super) fn of_table(table: &Table) -> String {
    let keys = table.iter().map(|(key, item)| {
        let above = if item.is_value() { of_key(table.key(key)) } else { String::new() };
        above + &of_item(item)
    });
    of_decor(table.decor()) + &keys.collect::<String>()
}

/// Puts comments above what else is there.
pub(super) fn put_before(decor: &mut Decor, comments: &str) {
    let there = decor.prefix().and_then(RawString::as_str).unwrap_or_default();
    let there = format!("{comments}{there}");
    decor.set_prefix(there);
}
