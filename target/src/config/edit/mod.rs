//! Changes the text of a configuration so that it says something else. What stays the same stays as a person wrote it:
//! comments, order, blank lines and quotes. Defaults are not written.
//!
//! The result is read again. It must mean exactly what is wanted, or the text is not changed at all.

mod comments;
mod list;
mod minimal;
mod place;
mod table;
mod value;

#[cfg(test)]
mod tests;

use toml::Table;
use toml_edit::DocumentMut;

use super::{Config, resolved};
use place::{Orphan, ROOT};

/// The tables of which there are several, and the keys by which two of them are the same one.
const LISTS: [(&str, &[&str]); 8] = [
    ("listener", &["transport", "address", "port"]),
    ("subsystem", &["nqn"]),
    ("namespace", &["nsid"]),
    ("host_limits", &["host"]),
    ("host", &["nqn"]),
    ("ana", &["group"]),
    ("way", &["listener"]),
    ("referral", &["transport", "address", "port"]),
];

/// The least that a configuration has: all else is the default.
const LEAST: &str = "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2024-01.org.example:least\"\n\
                     allow_any_host = true\nnamespace = []\n";

/// The text with changes, so that it means what is wanted. It is returned as it is if it means that already.
///
/// # Errors
/// Why it cannot be changed.
pub(crate) fn edited(text: &str, wanted: &Config) -> Result<String, String> {
    let filed = Config::look_at_text(text, "the file").map_err(|error| error.to_string())?;
    let text = Text::of(text)?;
    let (filed, wanted) = (resolved::to_table(&filed), resolved::to_table(wanted));
    let edited = text.written(&changed(text.document()?, &filed, &wanted)?);
    means(&edited, wanted)?;
    Ok(edited)
}

/// A text for a file that is not there yet.
///
/// # Errors
/// When it would mean something else.
pub(crate) fn written(wanted: &Config) -> Result<String, String> {
    let least = Config::look_at_text(LEAST, "the least").map_err(|error| error.to_string())?;
    let (mut least, wanted) = (resolved::to_table(&least), resolved::to_table(wanted));
    least.retain(|key, _| keys_of(key).is_none());
    let text = changed(DocumentMut::new(), &least, &wanted)?;
    means(&text, wanted)?;
    Ok(text)
}

/// The tables in which something is different, as they would stand in a file.
pub(crate) fn parts(filed: &Config, wanted: &Config) -> String {
    let (filed, mut wanted) = (resolved::to_table(filed), resolved::to_table(wanted));
    let mut before = filed.clone();
    before.retain(|key, _| keys_of(key).is_none());
    let same = |key: &str, one: &Table| {
        let others = filed.get(key).map(value::tables).unwrap_or_default();
        others.contains(&one)
    };
    for (key, list) in wanted.iter_mut().filter(|(key, _)| keys_of(key).is_some()) {
        let Some(list) = list.as_array_mut() else { continue };
        list.retain(|one| one.as_table().is_none_or(|one| !same(key, one)));
    }
    wanted.retain(|_, value| value.as_array().is_none_or(|list| !list.is_empty()));
    changed(DocumentMut::new(), &before, &wanted).unwrap_or_default()
}

/// The document with what leads from one meaning to the other.
fn changed(mut document: DocumentMut, filed: &Table, wanted: &Table) -> Result<String, String> {
    let begins_empty = document.to_string().starts_with('\n');
    let mut edit = Edit { orphans: Vec::new(), gap: place::gap(&document), last: place::last(&document) };
    edit.table(document.as_table_mut(), Meaning { filed, wanted, minimal: wanted }, ROOT)?;
    place::settle(&mut document, edit.orphans);
    let text = document.to_string();
    Ok(if begins_empty { text } else { text.trim_start_matches('\n').to_owned() })
}

/// Reads what was written, and compares.
fn means(text: &str, mut wanted: Table) -> Result<(), String> {
    let found = Config::look_at_text(text, "the new file").map_err(|error| error.to_string())?;
    let mut found = resolved::to_table(&found);
    // Which processors there are is a matter of the process that reads the file.
    if !text.parse::<DocumentMut>().is_ok_and(|one| one.get("target").is_some_and(has_cores)) {
        for one in [&mut found, &mut wanted] {
            one.get_mut("target").and_then(toml::Value::as_table_mut).map(|target| target.remove("cores"));
        }
    }
    sort(&mut found);
    sort(&mut wanted);
    if found == wanted { Ok(()) } else { Err("the changed file would mean something else".to_owned()) }
}

fn has_cores(target: &toml_edit::Item) -> bool {
    target.as_table_like().is_some_and(|target| target.contains_key("cores"))
}

/// Brings lists of tables into an order that does not depend on where they stand.
fn sort(table: &mut Table) {
    for (key, value) in table.iter_mut() {
        let Some(list) = value.as_array_mut() else {
            value.as_table_mut().into_iter().for_each(sort);
            continue;
        };
        list.iter_mut().filter_map(toml::Value::as_table_mut).for_each(sort);
        if keys_of(key).is_some() {
            list.sort_by_cached_key(ToString::to_string);
        }
    }
}

/// The keys that make two tables of a list the same one; none for what is no list of tables.
fn keys_of(key: &str) -> Option<&'static [&'static str]> {
    LISTS.into_iter().find(|(list, _)| *list == key).map(|(_, keys)| keys)
}

/// Changes that are being made.
struct Edit {
    /// Comments of what was removed.
    orphans: Vec<Orphan>,
    /// What stands before the header of a new table.
    gap: &'static str,
    /// Where the last table of the file is.
    last: isize,
}

/// A text, with the line ends of Unix.
struct Text {
    text: String,
    has_carriage_returns: bool,
    is_ended: bool,
}

impl Text {
    fn of(text: &str) -> Result<Self, String> {
        let has_carriage_returns = text.contains("\r\n");
        let plain = text.replace("\r\n", "\n");
        if has_carriage_returns && plain.replace('\n', "\r\n") != text {
            return Err("only some of its lines end as on Windows".to_owned());
        }
        let is_ended = plain.ends_with('\n');
        let text = if is_ended { plain } else { plain + "\n" };
        Ok(Self { text, has_carriage_returns, is_ended })
    }

    /// What is in it, if nothing of how it is written would be lost.
    fn document(&self) -> Result<DocumentMut, String> {
        let document: DocumentMut = self.text.parse().map_err(|error| format!("{error}"))?;
        if document.to_string() != self.text {
            return Err("its lines would not stay as they are written".to_owned());
        }
        Ok(document)
    }

    /// A new text in the same style.
    fn written(&self, text: &str) -> String {
        let text = if self.is_ended { text } else { text.strip_suffix('\n').unwrap_or(text) };
        if self.has_carriage_returns { text.replace('\n', "\r\n") } else { text.to_owned() }
    }
}
