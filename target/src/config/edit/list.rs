//! Changes of lists of tables: listeners, subsystems, namespaces, hosts.

use toml::{Table, Value};
use toml_edit::{Array, ArrayOfTables, Item, TableLike};

use super::place::{Orphan, ROOT, last_of_table};
use super::table::{Change, Meaning};
use super::{Edit, comments, keys_of, minimal, value};

impl Edit {
    /// Changes a list. What it has and what is wanted are matched by the keys that say which is which.
    pub(super) fn list(
        &mut self,
        table: &mut dyn TableLike,
        key: &str,
        change: Change<'_>,
        position: isize,
    ) -> Result<(), String> {
        let filed = change.filed.map(value::tables).unwrap_or_default();
        let wanted = value::tables(change.wanted);
        let written = table.get(key).map(written).unwrap_or_default();
        let filed = match_written(key, &written, &filed).ok_or_else(|| strange(key))?;
        let (plan, new) = plan(key, &filed, &wanted);
        let new: Vec<Table> = new.into_iter().map(|one| minimal::of(key, one)).collect();
        match table.get_mut(key) {
            Some(Item::ArrayOfTables(list)) => {
                self.in_tables(list, key, &plan)?;
                let place = list.iter().map(last_of_table).max();
                self.append(list, &new, place.unwrap_or(position));
                if list.is_empty() {
                    empty(table, key);
                }
            }
            Some(Item::Value(toml_edit::Value::Array(list))) if !list.is_empty() => {
                self.in_array(list, key, &plan)?;
                for one in &new {
                    value::push(list, value::new(&Value::Table(one.clone())));
                }
                if list.is_empty() {
                    empty(table, key);
                }
            }
            Some(Item::Value(toml_edit::Value::Array(_))) | None => {
                // Namespaces follow what is said of their subsystem.
                let place = if position == ROOT { self.last } else { position };
                self.remove(table, key, position)?;
                let mut list = ArrayOfTables::new();
                self.append(&mut list, &new, place);
                table.insert(key, Item::ArrayOfTables(list));
            }
            Some(_) => return Err(strange(key)),
        }
        Ok(())
    }

    fn in_tables(&mut self, list: &mut ArrayOfTables, key: &str, plan: &[Planned<'_>]) -> Result<(), String> {
        for (index, (filed, wanted)) in plan.iter().enumerate().rev() {
            let Some(table) = list.get_mut(index) else { return Err(strange(key)) };
            let position = table.position().unwrap_or(self.last);
            match wanted {
                Some(wanted) => {
                    number(table, key, wanted, plan[..index].iter());
                    let minimal = minimal::of(key, wanted);
                    self.table(table, Meaning { filed, wanted, minimal: &minimal }, position)?;
                }
                None => {
                    let comments = comments::of_table(table);
                    list.remove(index);
                    self.orphans.push(Orphan { position, comments });
                }
            }
        }
        Ok(())
    }

    fn in_array(&mut self, list: &mut Array, key: &str, plan: &[Planned<'_>]) -> Result<(), String> {
        for (index, (filed, wanted)) in plan.iter().enumerate().rev() {
            let Some(wanted) = wanted else {
                value::take(list, index);
                continue;
            };
            let found = list.get_mut(index).and_then(toml_edit::Value::as_inline_table_mut);
            let table = found.ok_or_else(|| strange(key))?;
            let is_same = *filed == *wanted;
            if !is_same || needs_number(table, key, wanted, plan[..index].iter()) {
                number(table, key, wanted, plan[..index].iter());
                let minimal = minimal::of(key, wanted);
                let mut item = Item::Value(toml_edit::Value::InlineTable(table.clone()));
                self.below(&mut item, key, Meaning { filed, wanted, minimal: &minimal }, self.last)?;
                *table = item.as_inline_table().cloned().ok_or_else(|| strange(key))?;
            }
        }
        Ok(())
    }

    fn append(&self, list: &mut ArrayOfTables, new: &[Table], place: isize) {
        for one in new {
            list.push(value::new_table(one, place, self.gap));
        }
    }
}

/// A table of the file: what it means, and what is wanted of it, if it stays.
type Planned<'a> = (&'a Table, Option<&'a Table>);

/// What becomes of the tables in the order of the file, and which ones are new.
fn plan<'a>(key: &str, filed: &[&'a Table], wanted: &[&'a Table]) -> (Vec<Planned<'a>>, Vec<&'a Table>) {
    let is_one = |one: &Table, other: &Table| {
        keys_of(key).into_iter().flatten().all(|key| one.get(*key) == other.get(*key))
    };
    let mut left = wanted.to_vec();
    let mut take = |same: &dyn Fn(&Table) -> bool| {
        let index = left.iter().position(|one| same(one))?;
        Some(left.remove(index))
    };
    // Several listeners may ask for any free port: those that are equal belong together.
    let equal: Vec<_> = filed.iter().map(|one| take(&|other| *one == other)).collect();
    let pairs = filed.iter().zip(equal);
    let plan =
        pairs.map(|(one, equal)| (*one, equal.or_else(|| take(&|other| is_one(one, other))))).collect();
    (plan, left)
}

/// What each table of the file means. The file has them in its order, the meaning may have another one.
fn match_written<'a>(key: &str, written: &[Written], filed: &[&'a Table]) -> Option<Vec<&'a Table>> {
    if written.len() != filed.len() {
        return None;
    }
    let find = |same: &dyn Fn(&Table) -> bool| filed.iter().copied().find(|one| same(one));
    let mut largest = 0;
    let one = |(index, one): (usize, &Written)| match key {
        "namespace" => {
            let nsid = one.nsid.unwrap_or(largest + 1);
            largest = largest.max(nsid);
            find(&|table| table.get("nsid").and_then(Value::as_integer) == Some(nsid))
        }
        "host_limits" => {
            let host = one.host.as_deref()?;
            find(&|table| table.get("host").and_then(Value::as_str) == Some(host))
        }
        _ => filed.get(index).copied(),
    };
    written.iter().enumerate().map(one).collect()
}

/// What a table of the file says of which one it is.
struct Written {
    nsid: Option<i64>,
    host: Option<String>,
}

impl Written {
    fn of(table: &dyn TableLike) -> Self {
        let nsid = table.get("nsid").and_then(Item::as_integer);
        let host = table.get("host").and_then(Item::as_str).map(str::to_owned);
        Self { nsid, host }
    }
}

fn written(item: &Item) -> Vec<Written> {
    match item {
        Item::ArrayOfTables(list) => list.iter().map(|table| Written::of(table)).collect(),
        Item::Value(toml_edit::Value::Array(list)) => {
            let tables = list.iter().filter_map(toml_edit::Value::as_inline_table);
            tables.map(|table| Written::of(table)).collect()
        }
        _ => Vec::new(),
    }
}

/// Whether a namespace without a number would get another one than it has: those before it are not what they were.
fn needs_number<'a>(
    table: &dyn TableLike,
    key: &str,
    wanted: &Table,
    before: impl Iterator<Item = &'a Planned<'a>>,
) -> bool {
    let number = |table: &Table| table.get("nsid").and_then(Value::as_integer);
    let stays = before.filter_map(|(_, wanted)| number((*wanted)?));
    key == "namespace" && !table.contains_key("nsid") && number(wanted) != Some(stays.max().unwrap_or(0) + 1)
}

/// Writes the number of a namespace that would have another one.
fn number<'a>(
    table: &mut dyn TableLike,
    key: &str,
    wanted: &Table,
    before: impl Iterator<Item = &'a Planned<'a>>,
) {
    if needs_number(table, key, wanted, before) {
        let nsid = wanted.get("nsid").and_then(Value::as_integer).unwrap_or_default();
        table.insert("nsid", toml_edit::value(nsid));
    }
}

/// A list without tables: where it must be there, it is an empty one.
fn empty(table: &mut dyn TableLike, key: &str) {
    table.remove(key);
    if key == "namespace" {
        table.insert(key, toml_edit::value(Array::new()));
    }
}

fn strange(key: &str) -> String {
    format!("the list {key} is written in a way that this program does not change")
}
