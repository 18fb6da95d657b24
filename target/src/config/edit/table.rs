//! Changes of one table: its keys, and what is below it.

use toml::{Table, Value};
use toml_edit::{Item, TableLike};

use super::place::{Orphan, ROOT, last_of};
use super::{Edit, comments, keys_of, minimal, value};

/// What a table means, what is wanted of it, and what of that must be written.
#[derive(Clone, Copy)]
pub(super) struct Meaning<'a> {
    pub(super) filed: &'a Table,
    pub(super) wanted: &'a Table,
    pub(super) minimal: &'a Table,
}

/// What a key means, if it is there, and what it shall mean.
#[derive(Clone, Copy)]
pub(super) struct Change<'a> {
    pub(super) filed: Option<&'a Value>,
    pub(super) wanted: &'a Value,
}

impl Edit {
    /// Changes a table that begins at a place of the file.
    pub(super) fn table(
        &mut self,
        table: &mut dyn TableLike,
        meaning: Meaning<'_>,
        position: isize,
    ) -> Result<(), String> {
        let Meaning { filed, wanted, minimal } = meaning;
        let gone = filed.keys().filter(|key| !wanted.contains_key(*key));
        for key in gone {
            self.remove(table, key, position)?;
        }
        for (key, wanted) in value::in_order(wanted) {
            let filed = filed.get(key);
            if filed == Some(wanted) {
                continue;
            }
            match (table.get(key).is_some(), minimal.get(key)) {
                (true, _) => self.set(table, key, Change { filed, wanted }, position)?,
                (false, Some(written)) => {
                    self.add(table, key, Change { filed, wanted }, written, position)?;
                }
                (false, None) => {}
            }
        }
        Ok(())
    }

    /// Gives a key that is there another value.
    fn set(
        &mut self,
        table: &mut dyn TableLike,
        key: &str,
        change: Change<'_>,
        position: isize,
    ) -> Result<(), String> {
        if keys_of(key).is_some() && change.wanted.is_array() {
            return self.list(table, key, change, position);
        }
        let item = table.get_mut(key).ok_or_else(|| strange(key))?;
        match (change.wanted, change.filed) {
            (Value::Table(wanted), Some(Value::Table(filed))) => {
                let minimal = minimal::of(key, wanted);
                self.below(item, key, Meaning { filed, wanted, minimal: &minimal }, position)
            }
            (Value::Table(_), _) => Err(strange(key)),
            (wanted, _) => value::replace(item, wanted).ok_or_else(|| strange(key)),
        }
    }

    /// Changes a table that is the value of a key, however it is written.
    pub(super) fn below(
        &mut self,
        item: &mut Item,
        key: &str,
        meaning: Meaning<'_>,
        position: isize,
    ) -> Result<(), String> {
        if let Some(inline) = item.as_inline_table_mut() {
            if value::has_lines(&toml_edit::Value::InlineTable(inline.clone())) {
                return Err(format!("{key} is one value in several lines"));
            }
            self.table(inline, meaning, position)?;
            inline.set_trailing("");
            inline.fmt();
            return Ok(());
        }
        let position = item.as_table().and_then(toml_edit::Table::position).unwrap_or(position);
        self.table(item.as_table_like_mut().ok_or_else(|| strange(key))?, meaning, position)
    }

    /// Writes a key that is not there.
    fn add(
        &mut self,
        table: &mut dyn TableLike,
        key: &str,
        change: Change<'_>,
        written: &Value,
        position: isize,
    ) -> Result<(), String> {
        let is_top = position == ROOT && written.is_table();
        match written {
            Value::Array(list) if value::in_tables(key, list) => self.list(table, key, change, position),
            Value::Table(keys) if is_top => {
                let filed = change.filed.and_then(Value::as_table).cloned().unwrap_or_default();
                let mut different = minimal::of(key, keys);
                // What the table means without being there need not be written.
                different.retain(|key, value| filed.get(key) != Some(value));
                let new = value::new_table(&different, self.last, self.gap);
                table.insert(key, Item::Table(new));
                Ok(())
            }
            written => {
                let style = Style::of(table);
                table.insert(key, Item::Value(value::new(written)));
                style.apply(table, key);
                Ok(())
            }
        }
    }

    /// Removes a key, if it is there. Its comments stay.
    pub(super) fn remove(
        &mut self,
        table: &mut dyn TableLike,
        key: &str,
        position: isize,
    ) -> Result<(), String> {
        let Some(item) = table.get(key) else { return Ok(()) };
        let (mut kept, mut position) = (String::new(), position);
        if let Item::Value(value) = item {
            kept += &comments::of_key(table.key(key));
            kept += &comments::of_value(value);
        } else {
            kept += &comments::of_item(item);
            position = last_of(item).unwrap_or(position);
        }
        let next = table.iter().skip_while(|(one, _)| *one != key).nth(1);
        let next = next.filter(|(_, item)| item.is_value()).map(|(key, _)| key.to_owned());
        table.remove(key);
        if kept.is_empty() {
            return Ok(());
        }
        match next.and_then(|next| table.key_mut(&next)) {
            Some(mut next) => comments::put_before(next.leaf_decor_mut(), &kept),
            None => self.orphans.push(Orphan { position, comments: kept }),
        }
        Ok(())
    }
}

/// How the keys of a table are written.
struct Style {
    indent: String,
    is_tight: bool,
}

impl Style {
    fn of(table: &dyn TableLike) -> Self {
        let last = table.iter().filter(|(_, item)| item.is_value()).last();
        let decor = last.and_then(|(key, _)| table.key(key)).map(|key| key.leaf_decor().clone());
        let [before, after] = decor.map_or_else(Default::default, |decor| {
            [decor.prefix(), decor.suffix()].map(|raw| raw.and_then(|raw| raw.as_str()).map(str::to_owned))
        });
        let indent = before.unwrap_or_default().rsplit('\n').next().unwrap_or_default().to_owned();
        Self { indent, is_tight: after.is_some_and(|after| after.is_empty()) }
    }

    fn apply(&self, table: &mut dyn TableLike, key: &str) {
        let [before, after] = if self.is_tight { ["", ""] } else { [" ", " "] };
        if let Some(mut key) = table.key_mut(key) {
            key.leaf_decor_mut().set_prefix(self.indent.as_str());
            key.leaf_decor_mut().set_suffix(before);
        }
        if let Some(value) = table.get_mut(key).and_then(Item::as_value_mut) {
            value.decor_mut().set_prefix(after);
        }
    }
}

fn strange(key: &str) -> String {
    format!("{key} is written in a way that this program does not change")
}
