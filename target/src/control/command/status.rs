//! `ringfab-target status`.

use std::io::Write;

use serde_json::Value;

use super::configure::change_line;
use super::namespace::namespace_lines;
use super::{Place, list, text};
use crate::control::client::AskError;
use crate::control::request::Request;

/// Asks what the target is doing, and prints it.
///
/// # Errors
/// When the target cannot be asked.
pub fn status(place: &Place, output: &mut impl Write) -> Result<(), AskError> {
    place.show(&Request::Status, output, status_lines)
}

fn status_lines(answer: &Value) -> String {
    let mut lines = configuration_lines(&answer["configuration"]);
    for (core, usage) in list(answer, "cores").iter().enumerate() {
        lines.push_str(&core_line(core, usage));
        list(usage, "silent_disks").iter().for_each(|one| lines.push_str(&silent_disk_line(one)));
    }
    if let Some(files) = answer["open_files"].as_u64() {
        lines.push_str(&format!("{files} open files\n"));
    }
    for controller in list(answer, "controllers") {
        let [id, host, subsystem] = ["id", "host", "subsystem"].map(|key| text(controller, key));
        lines.push_str(&format!("controller {id}: {host} at {subsystem}\n"));
        for queue in list(controller, "queues") {
            let [id, core, entries, peer] = ["id", "core", "entries", "peer"].map(|key| text(queue, key));
            let (commands, bytes) = (text(queue, "commands"), text(queue, "bytes"));
            lines.push_str(&format!(
                "  queue {id}: core {core}, {entries} entries, {peer}, commands {commands}, bytes {bytes}\n"
            ));
        }
    }
    for one in list(answer, "hanging") {
        let [what, path, seconds] = ["what", "path", "seconds"].map(|key| text(one, key));
        lines.push_str(&format!("{what} {path} has not returned for {seconds} s\n"));
    }
    lines + &namespace_lines(&answer["namespaces"])
}

/// Where the configuration comes from, and what was changed since.
fn configuration_lines(configuration: &Value) -> String {
    let Some(file) = configuration["file"].as_str() else { return String::new() };
    let mut lines = format!("configuration {file}, change {}\n", text(configuration, "generation"));
    for change in list(configuration, "unsaved") {
        lines.push_str(&format!("  not in the file: {}\n", change_line(change)));
    }
    lines
}

fn core_line(core: usize, usage: &Value) -> String {
    let [queues, commands, queue_pairs, connections, regions, disks] =
        ["queues", "commands", "queue_pairs", "tcp_connections", "regions", "disks"]
            .map(|key| text(usage, key));
    let [io, admin, compare] = ["io_buffers", "admin_buffers", "compare_buffers"].map(|key| {
        let [taken, taken_max, total] = ["taken", "taken_max", "total"].map(|part| text(&usage[key], part));
        format!("{taken} of {total} (at most {taken_max})")
    });
    let [received, sent, of_disks] =
        ["received", "sent", "disks"].map(|part| text(&usage["copied_bytes"], part));
    format!(
        "core {core}: {queues} queues, {commands} commands, {queue_pairs} queue pairs, {connections} TCP connections, \
         {regions} regions, {disks} disks; buffers: io {io}, admin {admin}, compare {compare}; bytes copied: \
         received {received}, sent {sent}, disks {of_disks}\n{}",
        states_line(list(usage, "states"))
    )
}

/// In which states commands are, if there are any.
fn states_line(states: &[Value]) -> String {
    let states: Vec<String> = states
        .iter()
        .filter(|state| state["commands"] != 0)
        .map(|state| format!("{} {}", text(state, "commands"), text(state, "state")))
        .collect();
    if states.is_empty() { String::new() } else { format!("  commands by state: {}\n", states.join(", ")) }
}

fn silent_disk_line(disk: &Value) -> String {
    let [subsystem, nsid, source, command, commands, seconds] =
        ["subsystem", "nsid", "source", "command", "commands", "seconds"].map(|key| text(disk, key));
    let hung = if disk["hung"] == true { "; further commands for it wait" } else { "" };
    format!(
        "  {source} (namespace {nsid} of {subsystem}) has answered nothing for {seconds} s: {commands} commands, \
         {command} for one{hung}\n"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_status_has_cores_controllers_queues_and_namespaces() {
        let queue = json!({
            "id": 1, "core": 1, "entries": 128, "peer": "10.0.0.1:4711", "commands": [1, 2, 3], "bytes": [4, 5],
        });
        let buffers = json!({ "taken": 1, "taken_max": 6, "total": 9 });
        let usage = json!({
            "queues": 2, "commands": 3, "queue_pairs": 1, "tcp_connections": 1, "regions": 4, "disks": 5,
            "io_buffers": buffers, "admin_buffers": buffers, "compare_buffers": buffers,
            "copied_bytes": { "received": 10, "sent": 11, "disks": 12 },
            "states": [
                { "state": "at_disk", "commands": 2 }, { "state": "data_in", "commands": 0 },
                { "state": "parked", "commands": 1 },
            ],
            "silent_disks": [{
                "subsystem": "nqn.x", "nsid": 2, "source": "/srv/a", "command": "Write", "commands": 3, "seconds": 12,
                "hung": true,
            }],
        });
        let status = json!({
            "configuration": { "file": "/etc/ringfab/target.toml", "generation": 4, "unsaved": [
                { "kind": "removed", "what": "namespace 2 of nqn.x", "detail": "/srv/b", "needs_restart": false },
            ] },
            "open_files": 21,
            "cores": [usage],
            "controllers": [{ "id": 7, "host": "nqn.h", "subsystem": "nqn.x", "queues": [queue] }],
            "namespaces": [],
        });
        let expected = "configuration /etc/ringfab/target.toml, change 4\n  \
             not in the file: - namespace 2 of nqn.x: /srv/b\n\
             core 0: 2 queues, 3 commands, 1 queue pairs, 1 TCP connections, 4 regions, 5 disks; \
             buffers: io 1 of 9 (at most 6), admin 1 of 9 (at most 6), compare 1 of 9 (at most 6); \
             bytes copied: received 10, sent 11, disks 12\n  \
             commands by state: 2 at_disk, 1 parked\n  \
             /srv/a (namespace 2 of nqn.x) has answered nothing for 12 s: 3 commands, Write for one; \
             further commands for it wait\n\
             21 open files\ncontroller 7: nqn.h at nqn.x\n  \
             queue 1: core 1, 128 entries, 10.0.0.1:4711, commands [1,2,3], bytes [4,5]\n";
        assert_eq!(status_lines(&status), expected);
    }
}
