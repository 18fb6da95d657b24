//! `ringfab-target namespace`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use ringfab_base::parse_size;
use serde_json::{Map, Value};

use super::changes::change_lines;
use super::limits::LimitArguments;
use super::status::{reason_line, shown_line, width};
use super::{Place, absolute, examples, tables, text};
use crate::control::client::AskError;
use crate::control::request::Request;

/// What to do with namespaces.
#[derive(Debug, Subcommand)]
pub enum NamespaceCommand {
    /// List the namespaces, with the identifiers that a configuration needs to keep them.
    #[command(after_help = examples::NAMESPACE_LIST)]
    List,
    /// Add a namespace. The configuration file is not changed, so the namespace is gone after a restart.
    #[command(after_help = examples::NAMESPACE_ADD)]
    Add(AddArguments),
    /// Remove a namespace. Commands that have begun finish. A configured namespace is back after a restart.
    #[command(after_help = examples::NAMESPACE_REMOVE)]
    Remove {
        /// Its identifier.
        nsid: u32,
        /// NQN of its subsystem; not needed when there is only one.
        #[arg(long, value_name = "NQN")]
        subsystem: Option<String>,
    },
    /// Open a namespace's file or device again on every core. After a failed write-back, no Flush succeeds until then:
    /// the system reports lost data only once, and this command confirms that an administrator knows. A disk with the
    /// identifiers of another disk needs this command, too. Until then, no host can use it.
    #[command(after_help = examples::NAMESPACE_REOPEN)]
    Reopen {
        /// Its identifier.
        nsid: u32,
        /// NQN of its subsystem; not needed when there is only one.
        #[arg(long, value_name = "NQN")]
        subsystem: Option<String>,
    },
    /// Check the size of a file or device now, and notify the hosts of a new one. The target also does this by itself.
    #[command(after_help = examples::NAMESPACE_RESIZE)]
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
    /// Limit what hosts do with a namespace. Whatever is not named is not limited any more.
    #[command(after_help = examples::NAMESPACE_LIMIT)]
    Limit {
        /// Its identifier.
        nsid: u32,
        /// NQN of its subsystem; not needed when there is only one.
        #[arg(long, value_name = "NQN")]
        subsystem: Option<String>,
        /// NQN of the host that is limited; by default all hosts together.
        #[arg(long, value_name = "NQN")]
        host: Option<String>,
        /// The limits.
        #[command(flatten)]
        limits: LimitArguments,
    },
    /// Show a namespace to some of the subsystem's hosts only.
    #[command(after_help = examples::NAMESPACE_HOSTS)]
    Hosts {
        /// Its identifier.
        nsid: u32,
        /// NQN of its subsystem; not needed when there is only one.
        #[arg(long, value_name = "NQN")]
        subsystem: Option<String>,
        /// NQN of a host that sees it; may be given several times.
        #[arg(long, value_name = "NQN", required_unless_present = "all")]
        host: Vec<String>,
        /// All hosts of the subsystem see it.
        #[arg(long, conflicts_with = "host")]
        all: bool,
    },
}

/// A namespace to add.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("source").required(true).args(["path", "nbd", "rbd", "memory", "null"])))]
pub struct AddArguments {
    /// The file or block device. The target must be able to open it.
    path: Option<PathBuf>,
    /// Serve the export of an NBD server instead: nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH.
    #[arg(long, value_name = "ADDRESS")]
    nbd: Option<String>,
    /// Have the NBD server put each write on stable storage before it is acknowledged.
    #[arg(long, requires = "nbd")]
    write_through: bool,
    /// Serve an image of a Ceph cluster instead: POOL/IMAGE or POOL/NAMESPACE/IMAGE; with @SNAPSHOT, read only.
    #[arg(long, value_name = "IMAGE")]
    rbd: Option<String>,
    /// The cluster of the image, if it is not "ceph".
    #[arg(long, value_name = "NAME", requires = "rbd")]
    cluster: Option<String>,
    /// Serve this much memory of the target instead.
    #[arg(long, value_name = "SIZE")]
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
            set("path", Some(Value::from(absolute(path)?)));
        }
        set("nbd", self.nbd.map(Value::from));
        set("write_through", self.write_through.then(|| Value::from(true)));
        set("rbd", self.rbd.map(Value::from));
        set("cluster", self.cluster.map(Value::from));
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
            Self::Limit { nsid, subsystem, host, limits } => {
                Request::NamespaceLimit { subsystem, nsid, host, limits: limits.into_table() }
            }
            Self::Hosts { nsid, subsystem, host, all } => {
                let hosts = (!all).then(|| host.into_iter().collect());
                Request::NamespaceHosts { subsystem, nsid, hosts }
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
    match request {
        Request::NamespaceLimit { .. } | Request::NamespaceHosts { .. } => {
            place.show(&request, output, change_lines)
        }
        Request::NamespaceList => place.show(&request, output, namespace_table),
        _ => place.show(&request, output, namespace_lines),
    }
}

/// The namespaces as a table. What is said of single ones follows it.
fn namespace_table(answer: &Value) -> String {
    let table = tables::listed_namespaces(answer);
    let notes = answer.as_array().into_iter().flatten().map(|one| reason_line(one) + &shown_line(one));
    if table.rows.is_empty() { String::new() } else { table.text(width()) + &notes.collect::<String>() }
}

/// A line for each namespace of an answer, which is one or a list.
pub(super) fn namespace_lines(answer: &Value) -> String {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_is_a_table() {
        let one = json!({
            "subsystem": "nqn.x", "nsid": 3, "state": "not ready", "bytes": 1 << 20, "block_bytes": 512,
            "read_only": true, "source": "/srv/a", "nguid": "aa", "uuid": "bb", "hosts": ["nqn.h", "nqn.i"],
            "reason": "it is missing",
        });
        let other = json!({
            "subsystem": "nqn.x", "nsid": 4, "state": "ready", "bytes": 4096, "block_bytes": 4096,
            "read_only": false, "source": "null", "nguid": "cc", "uuid": "dd", "hosts": null,
        });
        let lines = [
            "SUBSYSTEM  NSID  STATE       SIZE  BLOCK  DISK                HOSTS  NGUID  UUID",
            "nqn.x         3  not ready  1 MiB    512  /srv/a (read-only)  2      aa     bb",
            "nqn.x         4  ready      4 KiB   4096  null                all    cc     dd",
            "  namespace 3 of nqn.x is not ready: it is missing",
            "  namespace 3 of nqn.x is for these hosts only: nqn.h, nqn.i",
        ];
        assert_eq!(namespace_table(&json!([one, other])).lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn a_namespace_is_a_line() {
        let one = json!({
            "subsystem": "nqn.x", "nsid": 3, "state": "ready", "bytes": 4096, "block_bytes": 512,
            "read_only": true, "source": "null", "nguid": "aa", "uuid": "bb",
        });
        let line = "nqn.x 3 state=ready bytes=4096 block_bytes=512 source=null nguid=aa uuid=bb read_only\n";
        assert_eq!(namespace_lines(&one), line);
        assert_eq!(namespace_lines(&json!([one, one])), line.repeat(2));
        assert_eq!((namespace_lines(&json!([])), namespace_table(&json!([]))), Default::default());
        let mut ill = one.clone();
        ill["unused_bytes"] = json!(511);
        ill["media_errors"] = json!(2);
        ill["reason"] = json!("a flush failed");
        let more = " unused_bytes=511 media_errors=2 reason=\"a flush failed\"\n";
        assert_eq!(namespace_lines(&ill), line.trim_end().to_owned() + more);
    }
}
