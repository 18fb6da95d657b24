//! `ringfab-target status`.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use ringfab_base::counted;
use ringfab_process::terminal::{self, Paint, Stream};
use serde_json::Value;

use super::changes::change_line;
use super::table::Table;
use super::{Place, amount, limits, list, paths, tables, text, visible};
use crate::control::client::AskError;
use crate::control::request::Request;

/// Asks what the target is doing, and prints it.
///
/// # Errors
/// When the target cannot be asked.
pub fn status(place: &Place, output: &mut impl Write) -> Result<(), AskError> {
    place.show(&Request::Status, output, |answer| page(answer, width(), SystemTime::now()))
}

/// How wide the terminal is; what is not a terminal takes everything.
pub(super) fn width() -> usize {
    terminal::width(Stream::Out).unwrap_or(usize::MAX)
}

/// The page, with tables in lines of at most so many characters.
fn page(answer: &Value, width: usize, now: SystemTime) -> String {
    let mut page = head(answer, now);
    let mut part = |table: Table, notes: String| {
        if !table.rows.is_empty() {
            page.push('\n');
            page.push_str(&table.text(width));
        }
        page.push_str(&notes);
    };
    part(tables::listeners(answer), String::new());
    part(tables::subsystems(answer), paths::lines(answer));
    let shares: String = list(answer, "hosts").iter().map(limits::host_line).collect();
    let errors: String = list(answer, "controllers").iter().map(last_error_line).collect();
    part(tables::hosts(answer), errors + &shares);
    let notes = |one: &Value| {
        reason_line(one) + &detail_lines(one) + &shown_line(one) + &limits::namespace_lines(one)
    };
    part(tables::namespaces(answer), list(answer, "namespaces").iter().map(notes).collect());
    part(
        tables::cores(answer),
        list(answer, "cores").iter().enumerate().map(|(core, usage)| core_notes(core, usage)).collect(),
    );
    page
}

/// What the target as a whole is doing, in a few lines.
pub(super) fn head(answer: &Value, now: SystemTime) -> String {
    let uptime = amount::age(answer["uptime_seconds"].as_u64().unwrap_or(0));
    let mut lines = format!("ringfab-target {}, running for {uptime}", text(answer, "version"));
    if let Some(files) = answer["open_files"].as_u64() {
        lines.push_str(&format!(", {files} open files"));
    }
    lines.push('\n');
    lines.push_str(&configuration_lines(&answer["configuration"], now));
    for one in list(answer, "confinement").iter().filter(|one| one["state"] != "holds") {
        let [layer, state, reason] = ["layer", "state", "reason"].map(|key| text(one, key));
        lines.push_str(&format!("confinement of {layer}: {state}: {reason}\n"));
    }
    for one in list(answer, "hanging") {
        let [what, path, seconds] = ["what", "path", "seconds"].map(|key| text(one, key));
        lines.push_str(&format!("{what} {path} has not returned for {seconds} s\n"));
    }
    lines
}

/// Where the configuration comes from, and what was changed since.
fn configuration_lines(configuration: &Value, now: SystemTime) -> String {
    let since_1970 = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let age = since_1970.saturating_sub(configuration["applied_at"].as_u64().unwrap_or(since_1970));
    let file = visible(configuration["file"].as_str().unwrap_or("of no file"));
    let (age, generation) = (amount::age(age), text(configuration, "generation"));
    let mut lines = format!("configuration {file}, applied {age} ago, change {generation}\n");
    let log = &configuration["log"];
    if log.is_object() && log["from"] != "configuration" {
        lines.push_str(&format!("  the log has {:?}, by {}\n", text(log, "filter"), text(log, "from")));
    }
    for change in list(configuration, "unsaved") {
        lines.push_str(&format!("  not in the file: {}\n", change_line(change)));
    }
    lines
}

fn last_error_line(controller: &Value) -> String {
    let error = &controller["last_error"];
    if !error.is_object() {
        return String::new();
    }
    let host = text(controller, "host");
    let [status, queue, nsid, lba] = ["status", "queue", "nsid", "lba"].map(|key| text(error, key));
    let age = amount::age(error["seconds_ago"].as_u64().unwrap_or(0));
    format!("  last error of {host}, {age} ago: {status} (queue {queue}, namespace {nsid}, block {lba})\n")
}

pub(super) fn reason_line(namespace: &Value) -> String {
    let Some(reason) = namespace["reason"].as_str() else { return String::new() };
    let [state, nsid, subsystem] = ["state", "nsid", "subsystem"].map(|key| text(namespace, key));
    let line = format!("  namespace {nsid} of {subsystem} is {state}: {reason}");
    terminal::painted(Stream::Out, Paint::Care, &line) + "\n"
}

/// What there is to say of what stands behind a namespace.
pub(super) fn detail_lines(namespace: &Value) -> String {
    let [nsid, subsystem] = ["nsid", "subsystem"].map(|key| text(namespace, key));
    let line = |one: &Value| {
        let [name, what] = ["name", "text"].map(|key| text(one, key));
        format!("  {name} of namespace {nsid} of {subsystem}: {what}\n")
    };
    list(namespace, "details").iter().map(line).collect()
}

/// For which hosts a namespace is, if not for all of its subsystem.
pub(super) fn shown_line(namespace: &Value) -> String {
    let Some(hosts) = namespace["hosts"].as_array() else { return String::new() };
    let hosts: Vec<String> =
        hosts.iter().filter_map(Value::as_str).map(|host| visible(host).to_string()).collect();
    let [nsid, subsystem] = ["nsid", "subsystem"].map(|key| text(namespace, key));
    format!("  namespace {nsid} of {subsystem} is for these hosts only: {}\n", hosts.join(", "))
}

/// What there is to say of a core that few have.
fn core_notes(core: usize, usage: &Value) -> String {
    let disks: String = list(usage, "silent_disks").iter().map(silent_disk_line).collect();
    states_line(core, list(usage, "states")) + &disks
}

/// In which states commands are, if there are any.
fn states_line(core: usize, states: &[Value]) -> String {
    let states: Vec<String> = states
        .iter()
        .filter(|state| state["commands"] != 0)
        .map(|state| format!("{} {}", text(state, "commands"), text(state, "state")))
        .collect();
    if states.is_empty() {
        return String::new();
    }
    format!("  commands of core {core} by state: {}\n", states.join(", "))
}

fn silent_disk_line(disk: &Value) -> String {
    let [subsystem, nsid, source, command, commands, seconds] =
        ["subsystem", "nsid", "source", "command", "commands", "seconds"].map(|key| text(disk, key));
    let hung = if disk["hung"] == true { "; further commands for it wait" } else { "" };
    format!(
        "  {source} (namespace {nsid} of {subsystem}) has answered nothing for {seconds} s: {}, {command} for \
         one{hung}\n",
        counted(commands, "command")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn work(read: u64) -> Value {
        json!({ "commands": { "read": read, "write": 2, "other": 3 }, "bytes": { "read": 4096, "written": 5 } })
    }

    fn status() -> Value {
        let buffers = json!({ "taken": 1, "taken_max": 6, "total": 9 });
        let usage = json!({
            "queues": 2, "commands": 3, "queue_pairs": 1, "tcp_connections": 1, "regions": 4, "disks": 5,
            "io_buffers": buffers, "admin_buffers": buffers, "compare_buffers": buffers,
            "copied_bytes": { "received": 1000, "sent": 20, "disks": 4 },
            "states": [
                { "state": "at_disk", "commands": 2 }, { "state": "data_in", "commands": 0 },
                { "state": "parked", "commands": 1 },
            ],
            "silent_disks": [{
                "subsystem": "nqn.x", "nsid": 2, "source": "/srv/a", "command": "Write", "commands": 3, "seconds": 12,
                "hung": true,
            }],
        });
        let configuration = json!({
            "file": "/etc/ringfab/target.toml", "generation": 4, "applied_at": 100, "unsaved": [
                { "kind": "removed", "what": "namespace 2 of nqn.x", "detail": "/srv/b", "needs_restart": false },
            ],
        });
        json!({
            "version": "0.1.0", "uptime_seconds": 3700, "configuration": configuration, "open_files": 21,
            "confinement": [
                { "layer": "files", "state": "holds", "reason": null },
                { "layer": "network", "state": "missing", "reason": "it takes ABI 4" },
            ],
            "cores": [usage],
            "listeners": [{
                "address": "10.0.0.5:4420", "transport": "tcp", "provider": "auto", "tls": "allowed", "controllers": 1,
            }],
            "subsystems": [{
                "nqn": "nqn.x", "serial": "S", "model": "M", "allow_any_host": false, "allowed_hosts": ["nqn.h"],
                "namespaces": 1, "controllers": 1,
            }],
            "hosts": [{ "nqn": "nqn.h", "shares": 200, "limits": null }],
            "controllers": [controller()],
            "namespaces": [{
                "subsystem": "nqn.x", "nsid": 2, "state": "not ready", "reason": "it is missing", "bytes": 1_048_576,
                "source": "/srv/a", "read_only": true, "media_errors": 0, "controllers": 1, "hosts": ["nqn.h"],
            }],
            "hanging": [{ "what": "opening", "path": "/mnt/x", "seconds": 9 }],
        })
    }

    fn controller() -> Value {
        let queue = json!({ "id": 1, "core": 1, "entries": 128, "peer": "10.0.0.1:4711" });
        let error = json!({ "status": "Write Fault", "queue": 1, "nsid": 2, "lba": 77, "seconds_ago": 130 });
        let authentication = json!({ "hash": "SHA-256", "group": "3072-bit", "both_ways": true });
        Value::from_iter([
            ("total".to_owned(), work(1)),
            ("host".to_owned(), json!("nqn.2014-08.org.nvmexpress:uuid:0123456789abcdef")),
            ("subsystem".to_owned(), json!("nqn.x")),
            ("address".to_owned(), json!("10.0.0.1")),
            ("transport".to_owned(), json!("tcp")),
            ("connected_seconds".to_owned(), json!(70)),
            ("per_second".to_owned(), work(12_345)),
            ("errors".to_owned(), json!(1)),
            ("latency".to_owned(), json!({ "sampled": 9, "p50_us": 6, "p99_us": 1000 })),
            ("last_error".to_owned(), error),
            ("authentication".to_owned(), authentication),
            ("tls".to_owned(), json!({ "suite": "TLS_AES_128_GCM_SHA256", "identity_version": 1 })),
            ("queues".to_owned(), json!([queue])),
        ])
    }

    #[test]
    fn the_page_says_all_of_it() {
        let page = page(&status(), usize::MAX, UNIX_EPOCH + std::time::Duration::from_secs(105));
        let expected = [
            "ringfab-target 0.1.0, running for 1h 1m, 21 open files",
            "configuration /etc/ringfab/target.toml, applied 5s ago, change 4",
            "  not in the file: - namespace 2 of nqn.x: /srv/b",
            "confinement of network: missing: it takes ABI 4",
            "opening /mnt/x has not returned for 9 s",
            "",
            "LISTENER       TRANSPORT  PROVIDER  TLS      CONTROLLERS",
            "10.0.0.5:4420  tcp        -         allowed            1",
            "",
            "SUBSYSTEM  SERIAL  MODEL  ALLOWED HOSTS  NAMESPACES  CONTROLLERS",
            "nqn.x      S       M      1                       1            1",
            "",
            concat!(
                "HOST                                              SUBSYSTEM  ADDRESS   VIA  SECURITY      ",
                "   SINCE  QUEUES",
                "  READS/S  WRITES/S  READ/S  WRITTEN/S   READ  WRITTEN   P50   P99  ERRORS",
            ),
            concat!(
                "nqn.2014-08.org.nvmexpress:uuid:0123456789abcdef  nqn.x      10.0.0.1  tcp  TLS, both ends",
                "  1m 10s       1",
                "    12.3k         2   4 KiB        5 B  4 KiB      5 B  6 µs  1 ms       1",
            ),
            "  last error of nqn.2014-08.org.nvmexpress:uuid:0123456789abcdef, 2m 10s ago: Write Fault (queue 1, \
             namespace 2, block 77)",
        ];
        let lines: Vec<&str> = page.lines().collect();
        assert_eq!(lines[..expected.len()], expected, "{page}");
        for line in [
            "nqn.x         2  not ready  1 MiB  /srv/a (read-only)  1          1        -",
            "  namespace 2 of nqn.x is for these hosts only: nqn.h",
            "  namespace 2 of nqn.x is not ready: it is missing",
            "  nqn.h has 200 shares",
            "  commands of core 0 by state: 2 at_disk, 1 parked",
            "  /srv/a (namespace 2 of nqn.x) has answered nothing for 12 s: 3 commands, Write for one; \
             further commands for it wait",
        ] {
            assert!(lines.iter().any(|one| one.starts_with(line)), "{line} in {page}");
        }
    }

    /// Two disks and two hosts whose names differ at their ends only, a state of two words, and large numbers.
    fn wide_status() -> Value {
        let mut status = status();
        let twice = |value: &Value, key: &str, names: [&str; 2]| {
            names.map(|name| {
                let mut one = value.clone();
                one[key] = json!(name);
                one
            })
        };
        let disk = &mut status["namespaces"][0];
        disk["subsystem"] = json!("nqn.2026-11.com.example:the-subsystem-of-all-disks");
        disk["per_second"] = work(123_456_789);
        let disks = ["/srv/ringfab/images/database-1.img", "/srv/ringfab/images/database-2.img"];
        let disks = twice(&status["namespaces"][0], "source", disks);
        let hosts = ["nqn.2014-08.org.nvmexpress:uuid:00000001", "nqn.2014-08.org.nvmexpress:uuid:00000002"];
        let hosts = twice(&status["controllers"][0], "host", hosts);
        (status["namespaces"], status["controllers"]) = (json!(disks), json!(hosts));
        status["cores"] = json!(vec![status["cores"][0].clone(); 3]);
        status
    }

    #[test]
    fn every_table_fits_every_terminal_and_says_what_it_leaves_out() {
        let status = wide_status();
        type Made = fn(&Value) -> Table;
        let all: [(&str, Made); 7] = [
            ("listeners", tables::listeners),
            ("subsystems", tables::subsystems),
            ("hosts", tables::hosts),
            ("namespaces", tables::namespaces),
            ("queues", tables::queues),
            ("cores", tables::cores),
            ("listed", |status| tables::listed_namespaces(&status["namespaces"])),
        ];
        for (name, table) in all {
            for width in [40, 60, 80, 100, 160] {
                let table = table(&status);
                let text = table.text(width);
                // A name in a paragraph that has no room in any line is whole.
                let is_name = |line: &str| !table.layout(width).fits() && line.starts_with(['n', '/']);
                let fits = |line: &str| line.chars().count() <= width || is_name(line);
                assert!(text.lines().all(fits), "{name} at {width}:\n{text}");
                let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
                for column in table.columns() {
                    assert!(
                        words.contains(column.title()),
                        "{} of {name} at {width}:\n{text}",
                        column.title()
                    );
                }
                // In `top`, a row is a line however narrow it is.
                assert!(
                    table.layout(width).fits() || ["listed", "listeners"].contains(&name),
                    "{name} at {width}"
                );
                let lines = table.layout(width).lines();
                let rows = &lines[1..];
                if ["namespaces", "listed"].contains(&name) {
                    assert_eq!(text.matches("not ready").count(), 2, "{name} at {width}:\n{text}");
                }
                let disks_are_there = lines[0].contains("DISK") && name == "namespaces";
                if name == "hosts" || disks_are_there {
                    assert_ne!(rows[0], rows[1], "{name} at {width}");
                    assert!(width > 60 || rows.iter().all(|row| row.contains('…')), "{rows:#?}");
                }
            }
        }
    }

    #[test]
    fn names_make_room_in_a_narrow_terminal() {
        let page = page(&status(), 80, SystemTime::now());
        let hosts = page.lines().find(|line| line.contains("12.3k")).expect("a host");
        assert!(hosts.chars().count() <= 80 && hosts.contains("…"), "{page}");
        assert!(page.contains("  too narrow for: ") && page.contains("QUEUES"), "{page}");
    }
}
