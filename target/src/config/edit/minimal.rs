//! A table without what it means anyway.

use toml::{Table, Value};

use super::{LEAST, value};
use crate::config::Config;

/// The table under a key, without keys whose values are the defaults.
pub(super) fn of(key: &str, table: &Table) -> Table {
    match key {
        "listener" => without_defaults(table, &[], |text| Config::parse_listener(text).ok()),
        "host" => without_defaults(table, &[], |text| Config::parse_host(text).ok()),
        "limits" => without_defaults(table, &[], |text| Config::parse_limits(text).ok()),
        "host_limits" => {
            let mut limits = table.clone();
            let mut host: Table =
                limits.remove("host").map(|host| ("host".to_owned(), host)).into_iter().collect();
            host.extend(of("limits", &limits));
            host
        }
        "namespace" => {
            let table = with_minimal(table, &["limits", "host_limits"]);
            without_defaults(&table, &["nsid"], |text| Config::parse_namespace(text).ok())
        }
        "subsystem" => {
            let mut table = with_minimal(table, &["namespace"]);
            // Its namespaces have been looked at, and there may be many.
            let namespaces = table.insert("namespace".to_owned(), Value::Array(Vec::new()));
            let mut table =
                without_defaults(&table, &["namespace"], |text| Config::parse_subsystem(text).ok());
            table.extend(namespaces.map(|namespaces| ("namespace".to_owned(), namespaces)));
            table
        }
        "target" | "memory" | "control" | "metrics" | "confinement" | "discovery" => {
            without_defaults(table, &[], |text| {
                // Referrals are tables below this one.
                let table: Table = toml::from_str(text).ok()?;
                let process = Table::from_iter([(key.to_owned(), Value::Table(table))]);
                Config::look_at_text(&format!("{LEAST}{process}"), "a table").ok()
            })
        }
        _ => table.clone(),
    }
}

/// The table, with those below it as they must be written.
fn with_minimal(table: &Table, keys: &[&str]) -> Table {
    let mut table = table.clone();
    for (key, value) in table.iter_mut().filter(|(key, _)| keys.contains(&key.as_str())) {
        *value = match &*value {
            Value::Table(below) => Value::Table(of(key, below)),
            list => {
                Value::Array(value::tables(list).into_iter().map(|one| Value::Table(of(key, one))).collect())
            }
        };
    }
    table
}

/// Leaves out each key without which the table means the same. What cannot be read alone stays as it is.
fn without_defaults<T: PartialEq>(table: &Table, kept: &[&str], read: impl Fn(&str) -> Option<T>) -> Table {
    let read = |table: &Table| read(&table.to_string());
    let mut table = table.clone();
    let Some(meaning) = read(&table) else { return table };
    let keys: Vec<String> = table.keys().filter(|key| !kept.contains(&key.as_str())).cloned().collect();
    for key in keys {
        let mut shorter = table.clone();
        shorter.remove(&key);
        if read(&shorter).as_ref() == Some(&meaning) {
            table = shorter;
        }
    }
    table
}
