//! The log of a target in a real journal: what `journalctl` finds by priority and by field.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use ringfab_tests::{free_port, have, not_run, program};
use serde_json::Value;

/// What each query found, by its arguments.
fn found(output: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut found = BTreeMap::new();
    let mut query = "";
    for line in output.lines() {
        match line.strip_prefix("== ") {
            Some(next) => {
                query = next;
                found.insert(query, Vec::new());
            }
            None => found.get_mut(query).expect("a query comes first").push(line),
        }
    }
    found
}

#[test]
fn the_journal_finds_lines_by_priority_and_by_field() {
    if !Path::new("/usr/lib/systemd/systemd-journald").exists() || !have("journalctl") || !have("systemd-cat")
    {
        return not_run("the log in a real journal: systemd-journald is not installed");
    }
    let mut command = Command::new("unshare");
    command.arg("--mount");
    if !nix::unistd::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    if !can_unshare(&command) {
        return not_run("the log in a real journal: this user may have no namespace of mounts");
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/journal.sh");
    command.arg(script).arg(program("ringfab-target")).arg(program("ringfab")).arg(free_port().to_string());
    let output = command.output().expect("it runs");
    let (text, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr).into_owned());
    assert!(output.status.success(), "{text}\n{errors}");
    let found = found(&text);
    let begin = |query: &str| -> Vec<String> {
        let lines = found.get(query).unwrap_or_else(|| panic!("{query} in {text}"));
        lines
            .iter()
            .map(|line| line.split_once(" host=").map_or(*line, |(begin, _)| begin).to_owned())
            .collect()
    };
    let starts = |query: &str, expected: &[&str]| {
        let lines = begin(query);
        assert_eq!(lines.len(), expected.len(), "{query}: {lines:#?}");
        for (line, start) in lines.iter().zip(expected) {
            assert!(line.starts_with(start), "{query}: {lines:#?}");
        }
    };
    let failures = ["a disk has failed", "a namespace is no longer served"];
    let flush = "shutdown: a disk could not be flushed";
    starts("--priority=err --output=cat", &[&failures[..], &[flush]].concat());
    starts(
        "--output=cat RINGFAB_SUBSYSTEM=nqn.2026-11.org.ringfab:b",
        &[
            "serving",
            "connected",
            "a disk has failed",
            "a namespace is no longer served",
            "shutdown: flushing",
            flush,
            "disconnected",
        ],
    );
    starts("--output=cat RINGFAB_HOST=nqn.2026-11.org.ringfab:stranger", &["Connect refused"]);
    starts("--output=cat RINGFAB_NSID=1", &failures);
    let refused = &found["--priority=warning --output=json RINGFAB_SUBSYSTEM=nqn.2026-11.org.ringfab:a"];
    let [refused] = refused[..] else { panic!("{refused:#?}") };
    let refused: Value = serde_json::from_str(refused).expect("JSON");
    for (field, value) in [
        ("PRIORITY", "4"),
        ("SYSLOG_IDENTIFIER", "ringfab-target"),
        ("RINGFAB_HOST", "nqn.2026-11.org.ringfab:stranger"),
        ("RINGFAB_QUEUE", "0"),
    ] {
        assert_eq!(refused[field], value, "{refused}");
    }
    assert!(refused["RINGFAB_PEER"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{refused}");
    assert!(refused["RINGFAB_REASON"].is_string(), "{refused}");
}

/// Whether a command that runs another in namespaces may do so.
fn can_unshare(command: &Command) -> bool {
    let tried = Command::new(command.get_program()).args(command.get_args()).arg("true").output();
    tried.is_ok_and(|output| output.status.success())
}
