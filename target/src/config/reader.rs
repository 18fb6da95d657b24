//! Reads the values of a table one key at a time and remembers the keys. A key that was never read is an unknown key.
//! Mistakes are collected, and reading continues.

use std::cell::RefCell;
use std::ops::Range;

use ringfab_base::{meant, parse_size};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::Errors;

/// A value with its place.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) span: Range<usize>,
}

/// A table being read.
pub(super) struct Reader<'a> {
    table: &'a DeTable<'a>,
    /// Place of the table, for keys that are missing.
    span: Range<usize>,
    path: String,
    asked: RefCell<Vec<&'static str>>,
    lacking: RefCell<Vec<Lacking>>,
}

/// A key that must be there, or one of several, and what to write.
struct Lacking {
    keys: &'static [&'static str],
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(super) fn new(table: &'a DeTable<'a>, span: Range<usize>, path: String) -> Self {
        Self { table, span, path, asked: RefCell::default(), lacking: RefCell::default() }
    }

    pub(super) fn span(&self) -> &Range<usize> {
        &self.span
    }

    /// The full name of a key.
    pub(super) fn key(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// A value must be there, under the first of these keys or one of the others, and is not. What is written under the
    /// first one and is not valid was noted already; one that is only misspelt is noted as that, at the end.
    pub(super) fn missing(&self, keys: &'static [&'static str], what: &'static str) {
        self.lacking.borrow_mut().push(Lacking { keys, what });
    }

    /// As the header of a table is written: the path without indexes.
    fn header(&self, key: &str) -> String {
        let parts = self.path.split('.').map(|part| part.split('[').next().unwrap_or(part));
        parts.filter(|part| !part.is_empty()).chain([key]).collect::<Vec<_>>().join(".")
    }

    pub(super) fn string(&self, key: &'static str, errors: &mut Errors<'_>) -> Option<At<String>> {
        self.scalar(key, "a string", errors, |value| value.as_str().map(str::to_owned))
    }

    pub(super) fn boolean(&self, key: &'static str, errors: &mut Errors<'_>) -> Option<At<bool>> {
        self.scalar(key, "true or false", errors, DeValue::as_bool)
    }

    /// An integer within a range.
    pub(super) fn integer(
        &self,
        key: &'static str,
        range: std::ops::RangeInclusive<u64>,
        errors: &mut Errors<'_>,
    ) -> Option<At<u64>> {
        let (low, high) = (range.start(), range.end());
        let value = self.get(key)?;
        let Some(text) = value.get_ref().as_integer() else {
            let found = value.get_ref().type_str();
            errors.add(&value.span(), self.key(key), format!("must be an integer, not {found}"));
            return None;
        };
        match integer(value.get_ref()).map(u64::try_from) {
            Some(Ok(number)) if range.contains(&number) => Some(At { value: number, span: value.span() }),
            _ => {
                let message = format!("is {text}, but must be from {low} to {high}");
                errors.add(&value.span(), self.key(key), message);
                None
            }
        }
    }

    /// A size in bytes: an integer, or a string with a unit.
    pub(super) fn size(&self, key: &'static str, errors: &mut Errors<'_>) -> Option<At<u64>> {
        let value = self.get(key)?;
        let bytes = match value.get_ref() {
            DeValue::String(text) => parse_size(text).map_err(|error| format!("is \"{text}\", but {error}")),
            other => integer(other).and_then(|number| u64::try_from(number).ok()).ok_or_else(|| {
                let what = "must be a size such as \"16GiB\" or a number of bytes";
                other
                    .as_integer()
                    .map_or_else(|| what.to_owned(), |number| format!("is {number}, but {what}"))
            }),
        };
        match bytes {
            Ok(value_bytes) => Some(At { value: value_bytes, span: value.span() }),
            Err(message) => {
                errors.add(&value.span(), self.key(key), message);
                None
            }
        }
    }

    /// A list of strings, each with its place.
    pub(super) fn strings(&self, key: &'static str, errors: &mut Errors<'_>) -> Option<At<Vec<At<String>>>> {
        let value = self.get(key)?;
        let Some(array) = value.get_ref().as_array() else {
            errors.add(&value.span(), self.key(key), "must be a list of strings");
            return None;
        };
        let mut strings = Vec::new();
        for (index, item) in array.iter().enumerate() {
            match item.get_ref().as_str() {
                Some(text) => strings.push(At { value: text.to_owned(), span: item.span() }),
                None => errors.add(&item.span(), format!("{}[{index}]", self.key(key)), "must be a string"),
            }
        }
        Some(At { value: strings, span: value.span() })
    }

    /// A value of more than one shape; the caller checks it.
    pub(super) fn any(&self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.get(key)
    }

    /// A sub-table; an empty one when it is missing.
    pub(super) fn table(&self, key: &'static str, errors: &mut Errors<'_>) -> Option<Reader<'a>> {
        let value = self.get(key)?;
        let table = value.get_ref().as_table();
        if table.is_none() {
            errors.add(&value.span(), self.key(key), format!("must be a table: [{}]", self.header(key)));
        }
        table.map(|table| Reader::new(table, value.span(), self.key(key)))
    }

    /// The tables of an array of tables.
    pub(super) fn tables(&self, key: &'static str, errors: &mut Errors<'_>) -> Vec<Reader<'a>> {
        let Some(value) = self.get(key) else { return Vec::new() };
        let Some(array) = value.get_ref().as_array() else {
            errors.add(
                &value.span(),
                self.key(key),
                format!("must be a list of tables: [[{}]]", self.header(key)),
            );
            return Vec::new();
        };
        let mut readers = Vec::new();
        for (index, item) in array.iter().enumerate() {
            let path = format!("{}[{index}]", self.key(key));
            match item.get_ref().as_table() {
                Some(table) => readers.push(Reader::new(table, item.span(), path)),
                None => errors.add(&item.span(), path, "must be a table"),
            }
        }
        readers
    }

    /// Notes the keys that nobody asked for, and those that lack. To be called when all known keys were read.
    pub(super) fn finish(self, errors: &mut Errors<'_>) {
        let mut known = self.asked.borrow().clone();
        known.sort_unstable();
        known.dedup();
        let mut replaced = Vec::new();
        for (key, _) in self.table.iter().filter(|(key, _)| !known.contains(&key.get_ref().as_ref())) {
            let lacking = known.iter().copied().filter(|name| !self.table.contains_key(*name));
            let hint = match meant(key.get_ref(), lacking) {
                Some(name) => {
                    replaced.push(name);
                    format!("did you mean {name}?")
                }
                None => format!("known here: {}", known.join(", ")),
            };
            errors.add(&key.span(), self.key(key.get_ref()), format!("is not a known key; {hint}"));
        }
        for Lacking { keys, what } in self.lacking.take() {
            let how = match self.table.get(keys[0]).map(|value| value.get_ref().as_array()) {
                None if keys.iter().any(|key| replaced.contains(key)) => continue,
                None => "missing",
                Some(Some(array)) if array.is_empty() => "empty",
                Some(_) => continue,
            };
            errors.add(&self.span, self.key(keys[0]), format!("is {how}; {what}"));
        }
    }

    fn scalar<T>(
        &self,
        key: &'static str,
        what: &str,
        errors: &mut Errors<'_>,
        convert: impl Fn(&DeValue<'a>) -> Option<T>,
    ) -> Option<At<T>> {
        let value = self.get(key)?;
        let converted = convert(value.get_ref());
        if converted.is_none() {
            let found = value.get_ref().type_str();
            errors.add(&value.span(), self.key(key), format!("must be {what}, not {found}"));
        }
        converted.map(|converted| At { value: converted, span: value.span() })
    }

    fn get(&self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.asked.borrow_mut().push(key);
        self.table.get(key)
    }
}

/// An integer in any of TOML's notations.
pub(super) fn integer(value: &DeValue<'_>) -> Option<i128> {
    let number = value.as_integer()?;
    i128::from_str_radix(number.as_str(), number.radix()).ok()
}
