//! The log of a target in a real journal: what `journalctl` finds by priority and by field.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use ringfab_tests::{free_port, have, not_run, program};
use serde_json::Value;

const NQN: &str = "nqn.2026-11.org.ringfab";

/// What each query found, by its arguments.
struct Found(BTreeMap<String, Vec<String>>);

impl Found {
    fn parse(output: &str) -> Self {
        let (mut found, mut query) = (BTreeMap::new(), String::new());
        for line in output.lines() {
            match line.strip_prefix("== ") {
                Some(next) => query = next.to_owned(),
                None => found.entry(query.clone()).or_insert_with(Vec::new).push(line.to_owned()),
            }
        }
        Self(found)
    }

    fn of(&self, query: &str) -> &[String] {
        self.0.get(query).unwrap_or_else(|| panic!("{query}: {:#?}", self.0))
    }

    /// A query found lines that start like this, in this order, and no others.
    fn has(&self, query: &str, expected: &[&str]) {
        let lines = self.of(query);
        let same = lines.iter().zip(expected).all(|(line, start)| line.starts_with(start));
        assert!(same && lines.len() == expected.len(), "{query}: {lines:#?}");
    }
}

/// What the script finds in a journal of its own; none where there can be no such journal.
fn found() -> Option<Found> {
    if !Path::new("/usr/lib/systemd/systemd-journald").exists() || !have("journalctl") || !have("systemd-cat")
    {
        not_run("the log in a real journal: systemd-journald is not installed");
        return None;
    }
    let mut command = Command::new("unshare");
    command.arg("--mount");
    if !nix::unistd::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    if !can_unshare(&command) {
        not_run("the log in a real journal: this user may have no namespace of mounts");
        return None;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/journal.sh");
    command.arg(script).arg(program("ringfab-target")).arg(program("ringfab")).arg(free_port().to_string());
    let output = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    Some(Found::parse(&text))
}

/// Whether a command that runs another in namespaces may do so.
fn can_unshare(command: &Command) -> bool {
    let tried = Command::new(command.get_program()).args(command.get_args()).arg("true").output();
    tried.is_ok_and(|output| output.status.success())
}

#[test]
fn the_journal_finds_lines_by_priority_and_by_field() {
    let Some(found) = found() else { return };
    let failures = ["a disk has failed", "a namespace is no longer served"];
    let flush = "shutdown: a disk could not be flushed";
    found.has("--priority=err --output=cat", &[&failures[..], &[flush]].concat());
    let all = ["serving", "connected", failures[0], failures[1], "shutdown: flushing", flush, "disconnected"];
    found.has(&format!("--output=cat RINGFAB_SUBSYSTEM={NQN}:b"), &all);
    found.has(&format!("--output=cat RINGFAB_HOST={NQN}:stranger"), &["Connect refused"]);
    found.has("--output=cat RINGFAB_NSID=1", &failures);
    let refused = found.of(&format!("--priority=warning --output=json RINGFAB_SUBSYSTEM={NQN}:a"));
    assert_eq!(refused.len(), 1, "{refused:#?}");
    let refused: Value = serde_json::from_str(&refused[0]).expect("JSON");
    for (field, begins) in [
        ("PRIORITY", "4"),
        ("SYSLOG_IDENTIFIER", "ringfab-target"),
        ("RINGFAB_HOST", "nqn.2026-11.org.ringfab:stranger"),
        ("RINGFAB_QUEUE", "0"),
        ("RINGFAB_PEER", "127.0.0.1:"),
        ("RINGFAB_REASON", "the host is not among"),
    ] {
        assert!(refused[field].as_str().is_some_and(|value| value.starts_with(begins)), "{field}: {refused}");
    }
}
