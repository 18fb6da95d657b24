//! The commands that manage a running target.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Map, Value};

use super::Request;
use super::client::{AskError, ask};
use crate::config::{CONTROL_SOCKET, parse_size};

/// How to reach the target.
#[derive(Debug, Args)]
pub struct Place {
    /// The control socket of the target.
    #[arg(long, value_name = "PATH", default_value = CONTROL_SOCKET, global = true)]
    socket: PathBuf,
    /// Print JSON for programs.
    #[arg(long, global = true)]
    json: bool,
}

/// What to do with namespaces.
#[derive(Debug, Subcommand)]
pub enum NamespaceCommand {
    /// List the namespaces, with the identifiers that a configuration needs to keep them.
    List,
    /// Add a namespace. The configuration file is not changed, so the namespace is gone after a restart.
    Add(AddArguments),
    /// Remove a namespace. Commands that have begun finish. A configured namespace is back after a restart.
    Remove {
        /// Its identifier.
        nsid: u32,
        /// NQN of its subsystem; not needed when there is only one.
        #[arg(long, value_name = "NQN")]
        subsystem: Option<String>,
    },
    /// Open a namespace's file or device again on every core. After a failed write-back, no Flush succeeds until then:
    /// the system reports lost data only once, and this command confirms that an administrator knows.
    Reopen {
        /// Its identifier.
        nsid: u32,
        /// NQN of its subsystem; not needed when there is only one.
        #[arg(long, value_name = "NQN")]
        subsystem: Option<String>,
    },
    /// Check the size of a file or device now, and notify the hosts of a new one. The target also does this by itself.
    Resize {
        /// Its identifier.
        nsid: u32,
        /// NQN of its subsystem; not needed when there is only one.
        #[arg(long, value_name = "NQN")]
        subsystem: Option<String>,
        /// First extend a regular file to this size, for instance 20GiB.
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        size: Option<u64>,
    },
}

/// A namespace to add.
#[derive(Debug, Args)]
pub struct AddArguments {
    /// The file or block device. The target must be able to open it.
    #[arg(required_unless_present_any = ["memory", "null"], conflicts_with_all = ["memory", "null"])]
    path: Option<PathBuf>,
    /// Serve this much memory of the target instead.
    #[arg(long, value_name = "SIZE", conflicts_with = "null")]
    memory: Option<String>,
    /// Serve zeroes of this size instead. Writes have no effect.
    #[arg(long, value_name = "SIZE")]
    null: Option<String>,
    /// NQN of its subsystem; not needed when there is only one.
    #[arg(long, value_name = "NQN")]
    subsystem: Option<String>,
    /// Its identifier; by default the next free one.
    #[arg(long)]
    nsid: Option<u32>,
    /// Bytes of a logical block: 512 or 4096.
    #[arg(long, value_name = "BYTES")]
    block_bytes: Option<u32>,
    /// Refuse writes.
    #[arg(long)]
    read_only: bool,
    /// Use the page cache.
    #[arg(long)]
    page_cache: bool,
    /// Allow other programs to use the same disk.
    #[arg(long)]
    shared: bool,
    /// Its UUID; by default a new one.
    #[arg(long)]
    uuid: Option<String>,
    /// Its NGUID; by default a new one.
    #[arg(long)]
    nguid: Option<String>,
}

impl AddArguments {
    fn into_request(self) -> io::Result<Request> {
        let mut table = Map::new();
        let mut set = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                table.insert(key.to_owned(), value);
            }
        };
        if let Some(path) = &self.path {
            // The target's working directory is another one.
            let path = std::path::absolute(path)?;
            let path = path.to_str().ok_or_else(|| io::Error::other("the path is not UTF-8"))?;
            set("path", Some(Value::from(path)));
        }
        set("memory", self.memory.map(Value::from));
        set("null", self.null.map(Value::from));
        set("nsid", self.nsid.map(Value::from));
        set("block_bytes", self.block_bytes.map(Value::from));
        set("read_only", self.read_only.then(|| Value::from(true)));
        set("shared", self.shared.then(|| Value::from(true)));
        set("direct", self.page_cache.then(|| Value::from(false)));
        set("allow_page_cache", self.page_cache.then(|| Value::from(true)));
        set("uuid", self.uuid.map(Value::from));
        set("nguid", self.nguid.map(Value::from));
        Ok(Request::NamespaceAdd { subsystem: self.subsystem, namespace: table })
    }
}

impl NamespaceCommand {
    fn into_request(self) -> io::Result<Request> {
        Ok(match self {
            Self::List => Request::NamespaceList,
            Self::Add(arguments) => arguments.into_request()?,
            Self::Remove { nsid, subsystem } => Request::NamespaceRemove { subsystem, nsid },
            Self::Reopen { nsid, subsystem } => Request::NamespaceReopen { subsystem, nsid },
            Self::Resize { nsid, subsystem, size } => {
                Request::NamespaceResize { subsystem, nsid, bytes: size }
            }
        })
    }
}

/// Asks about namespaces, and prints the answer.
///
/// # Errors
/// When the target cannot be asked or refuses.
pub fn namespace(place: &Place, command: NamespaceCommand, output: &mut impl Write) -> Result<(), AskError> {
    let request = command.into_request().map_err(|error| AskError::Refused(error.to_string()))?;
    let answer = ask(&place.socket, &request)?;
    let text = if place.json { format!("{answer}\n") } else { namespace_lines(&answer) };
    print(output, &text, &place.socket)
}

/// Asks what the target is doing, and prints it.
///
/// # Errors
/// When the target cannot be asked.
pub fn status(place: &Place, output: &mut impl Write) -> Result<(), AskError> {
    let answer = ask(&place.socket, &Request::Status)?;
    let text = if place.json { format!("{answer}\n") } else { status_lines(&answer) };
    print(output, &text, &place.socket)
}

fn print(output: &mut impl Write, text: &str, path: &Path) -> Result<(), AskError> {
    let failed = |source| AskError::Unreachable { path: path.to_owned(), source };
    output.write_all(text.as_bytes()).map_err(failed)
}

/// A line for each namespace of an answer, which is one or a list.
fn namespace_lines(answer: &Value) -> String {
    let all = answer.as_array().map_or(std::slice::from_ref(answer), Vec::as_slice);
    let line = |one: &Value| {
        let mut line = format!("{} {}", text(one, "subsystem"), text(one, "nsid"));
        for key in ["state", "bytes", "block_bytes", "source", "nguid", "uuid"] {
            line.push_str(&format!(" {key}={}", text(one, key)));
        }
        if one["read_only"] == true {
            line.push_str(" read_only");
        }
        for key in ["unused_bytes", "media_errors"] {
            if let Some(count) = one[key].as_u64().filter(|count| *count > 0) {
                line.push_str(&format!(" {key}={count}"));
            }
        }
        if let Some(reason) = one["reason"].as_str() {
            line.push_str(&format!(" reason={reason:?}"));
        }
        line + "\n"
    };
    all.iter().map(line).collect()
}

fn status_lines(answer: &Value) -> String {
    let mut lines = String::new();
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

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// A field as text, without the quotes of a string. What hosts say of themselves has no control characters.
fn text(value: &Value, key: &str) -> String {
    value[key].as_str().map_or_else(|| value[key].to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_namespace_is_a_line() {
        let one = json!({
            "subsystem": "nqn.x", "nsid": 3, "state": "ready", "bytes": 4096, "block_bytes": 512,
            "read_only": true, "source": "null", "nguid": "aa", "uuid": "bb",
        });
        let line = "nqn.x 3 state=ready bytes=4096 block_bytes=512 source=null nguid=aa uuid=bb read_only\n";
        assert_eq!(namespace_lines(&one), line);
        assert_eq!(namespace_lines(&json!([one, one])), line.repeat(2));
        assert_eq!(namespace_lines(&json!([])), "");
        let mut ill = one.clone();
        ill["unused_bytes"] = json!(511);
        ill["media_errors"] = json!(2);
        ill["reason"] = json!("a flush failed");
        let more = " unused_bytes=511 media_errors=2 reason=\"a flush failed\"\n";
        assert_eq!(namespace_lines(&ill), line.trim_end().to_owned() + more);
    }

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
            "open_files": 21,
            "cores": [usage],
            "controllers": [{ "id": 7, "host": "nqn.h", "subsystem": "nqn.x", "queues": [queue] }],
            "namespaces": [],
        });
        let expected = "core 0: 2 queues, 3 commands, 1 queue pairs, 1 TCP connections, 4 regions, 5 disks; \
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
