//! Requests over the control socket and their answers: each is a JSON value on one line.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use ringfab_process::log::NEVER_FOLDED;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Manager;
use super::freeze::{Frozen, NamespaceName};
use super::manager::{Preview, fragment};
use super::masked::{masked, masked_json};
use super::status::View;
use super::timed_mutex::TimedMutex;
use crate::config::{ANA_STATES, Access, Change, ChangeLine, Config, Doubt, doubts};

/// Bytes of a request with its newline.
pub const REQUEST_BYTES_MAX: usize = 256 << 10;

/// A request. Where `subsystem` is left out, there must be only one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Serve one more namespace.
    NamespaceAdd {
        /// NQN of its subsystem.
        #[serde(default)]
        subsystem: Option<String>,
        /// What would stand in `[[subsystem.namespace]]`.
        namespace: Map<String, Value>,
    },
    /// Serve a namespace no longer.
    NamespaceRemove {
        /// NQN of its subsystem.
        #[serde(default)]
        subsystem: Option<String>,
        /// Its identifier.
        nsid: u32,
    },
    /// Look at the size of a namespace's file or device.
    NamespaceResize {
        /// NQN of its subsystem.
        #[serde(default)]
        subsystem: Option<String>,
        /// Its identifier.
        nsid: u32,
        /// Makes a regular file that long before, in bytes; it can only grow.
        #[serde(default)]
        bytes: Option<u64>,
    },
    /// Open a namespace's disk anew on every core.
    NamespaceReopen {
        /// NQN of its subsystem.
        #[serde(default)]
        subsystem: Option<String>,
        /// Its identifier.
        nsid: u32,
    },
    /// Which namespaces there are.
    NamespaceList,
    /// Hold all changes of some namespaces for a while: until this connection says `thaw` or ends, or the time is over.
    Freeze {
        /// Which ones.
        namespaces: Vec<NamespaceName>,
        /// For how long at most, in milliseconds.
        milliseconds: u64,
    },
    /// Let changes go on that this connection has held.
    Thaw,
    /// Serve one more subsystem.
    SubsystemAdd {
        /// What would stand in `[[subsystem]]`, with its namespaces under `namespace`.
        subsystem: Map<String, Value>,
    },
    /// Serve a subsystem no longer, nor its namespaces.
    SubsystemRemove {
        /// Its NQN.
        subsystem: String,
    },
    /// Let one more host use a subsystem.
    HostAllow {
        /// NQN of the subsystem.
        #[serde(default)]
        subsystem: Option<String>,
        /// NQN of the host.
        host: String,
    },
    /// Let a host use a subsystem no longer.
    HostDeny {
        /// NQN of the subsystem.
        #[serde(default)]
        subsystem: Option<String>,
        /// NQN of the host.
        host: String,
    },
    /// End a host's controllers. It may come back.
    HostKick {
        /// NQN of a subsystem; of all when left out.
        #[serde(default)]
        subsystem: Option<String>,
        /// NQN of the host.
        host: String,
    },
    /// Let a host use a subsystem, with keys that it did not have. Where no listener has TLS and it has a key for that,
    /// those of NVMe/TCP allow it from then on.
    HostAdd {
        /// NQN of the subsystem.
        #[serde(default)]
        subsystem: Option<String>,
        /// What would stand in `[[host]]`.
        host: Map<String, Value>,
        /// All hosts of the subsystem have to come over TLS from now on.
        #[serde(default)]
        tls_required: bool,
    },
    /// Give a host other keys; it keeps all else. Its old ones are named as such.
    HostRekey {
        /// What would stand in `[[host]]`.
        host: Map<String, Value>,
        /// How long its old keys count, as `2026-12-31T00:00:00Z`; until they are taken away when left out.
        #[serde(default)]
        old_keys_until: Option<String>,
    },
    /// Take away the keys that a host had before.
    HostRevoke {
        /// NQN of the host.
        host: String,
    },
    /// Give a host shares and limits; what is left out has its default.
    HostSet {
        /// What would stand in `[[host]]`.
        host: Map<String, Value>,
    },
    /// Limit what hosts do with a namespace. What is left out is not limited.
    NamespaceLimit {
        /// NQN of its subsystem.
        #[serde(default)]
        subsystem: Option<String>,
        /// Its identifier.
        nsid: u32,
        /// NQN of the host that is limited; all together when left out.
        #[serde(default)]
        host: Option<String>,
        /// What would stand under `limits` in `[[subsystem.namespace]]`.
        limits: Map<String, Value>,
    },
    /// Show a namespace to some of the subsystem's hosts only.
    NamespaceHosts {
        /// NQN of its subsystem.
        #[serde(default)]
        subsystem: Option<String>,
        /// Its identifier.
        nsid: u32,
        /// NQNs of these hosts; all of the subsystem's when left out.
        #[serde(default)]
        hosts: Option<BTreeSet<String>>,
    },
    /// Let hosts connect at one more address.
    ListenerAdd {
        /// What would stand in `[[listener]]`.
        listener: Map<String, Value>,
    },
    /// Let hosts connect at an address no longer. The controllers that came there are ended.
    ListenerRemove {
        /// The address that it is bound to: `192.0.2.1:4420`.
        address: SocketAddr,
    },
    /// Ask the hosts that came by an address to go elsewhere, wait for a while until they have, and remove the
    /// listener.
    ListenerDrain {
        /// The address that it is bound to: `192.0.2.1:4420`.
        address: SocketAddr,
    },
    /// Put an access group into another state.
    AnaSet {
        /// NQN of its subsystem.
        #[serde(default)]
        subsystem: Option<String>,
        /// Its identifier.
        group: u32,
        /// What would stand in `state` of `[[subsystem.ana]]`.
        state: String,
        /// By these ways only; by all when there is none.
        #[serde(default)]
        listeners: Vec<SocketAddr>,
    },
    /// In which states access groups are.
    AnaShow,
    /// Log other events.
    Log {
        /// What would stand in `target.log`.
        filter: String,
    },
    /// Read the configuration file again, and apply what is different.
    Reload {
        /// Only show what is different.
        #[serde(default)]
        dry_run: bool,
    },
    /// The configuration that runs, as a file.
    Config,
    /// What the target is doing.
    Status,
    /// Versions of the protocol and of the program.
    Version,
}

/// Version of the protocol: it grows when a request or an answer changes so that a program which knows the one before
/// would take it wrongly. New requests and new fields of answers are no such change.
pub const PROTOCOL: u32 = 1;

impl Request {
    /// A request from a line, which its newline may end.
    ///
    /// # Errors
    /// Why it is none, for whoever sent it.
    pub fn parse(line: &[u8]) -> Result<Self, String> {
        if line.len() > REQUEST_BYTES_MAX {
            return Err(format!("a request has at most {REQUEST_BYTES_MAX} bytes"));
        }
        serde_json::from_slice(line).map_err(|error| format!("not a request: {error}"))
    }

    /// The request as a line.
    pub fn to_line(&self) -> String {
        let mut line = serde_json::to_string(self).expect("plain values always serialize");
        line.push('\n');
        line
    }

    /// Does what is asked. Changes take turns; who only looks waits for none of them.
    fn run(
        self,
        view: &View,
        manager: &TimedMutex<Manager>,
        frozen: &mut Option<Frozen>,
    ) -> Result<Value, String> {
        match self {
            Self::Freeze { .. } if frozen.is_some() => {
                Err("this connection has frozen something already: thaw that first".to_owned())
            }
            Self::Freeze { namespaces, milliseconds } => {
                let begun = Frozen::freeze(view, &namespaces, Duration::from_millis(milliseconds))?;
                Ok(frozen.insert(begun).state())
            }
            Self::Thaw => {
                let ended = frozen.take().map(Frozen::thaw);
                ended.ok_or_else(|| "this connection has frozen nothing".to_owned())
            }
            Self::NamespaceList => Ok(json!(view.list())),
            Self::AnaShow => Ok(json!({ "access_groups": view.access_groups() })),
            Self::Status => view.status().map(|status| json!(status)),
            Self::Config => Ok(configuration(view)),
            Self::Version => Ok(json!({ "protocol": PROTOCOL, "version": env!("CARGO_PKG_VERSION") })),
            change => manager.with_lock(change.name(), |manager| change.apply(manager))?,
        }
    }

    /// What is being done, for others who wait for their turn.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::NamespaceAdd { .. } => "namespace add",
            Self::NamespaceRemove { .. } => "namespace remove",
            Self::NamespaceResize { .. } => "namespace resize",
            Self::NamespaceReopen { .. } => "namespace reopen",
            Self::NamespaceList => "namespace list",
            Self::Freeze { .. } => "freeze",
            Self::Thaw => "thaw",
            Self::SubsystemAdd { .. } => "subsystem add",
            Self::SubsystemRemove { .. } => "subsystem remove",
            Self::HostAllow { .. } => "host allow",
            Self::HostDeny { .. } => "host deny",
            Self::HostKick { .. } => "host kick",
            Self::HostAdd { .. } => "host add",
            Self::HostRekey { .. } => "host rekey",
            Self::HostRevoke { .. } => "host revoke",
            Self::HostSet { .. } => "host set",
            Self::NamespaceLimit { .. } => "namespace limit",
            Self::NamespaceHosts { .. } => "namespace hosts",
            Self::ListenerAdd { .. } => "listener add",
            Self::ListenerRemove { .. } => "listener remove",
            Self::ListenerDrain { .. } => "listener drain",
            Self::AnaSet { .. } => "ana set",
            Self::AnaShow => "ana show",
            Self::Log { .. } => "log",
            Self::Reload { .. } => "reload",
            Self::Config => "config",
            Self::Status => "status",
            Self::Version => "version",
        }
    }

    /// Whether it changes anything.
    fn is_change(&self) -> bool {
        let looks = matches!(
            self,
            Self::NamespaceList
                | Self::Status
                | Self::AnaShow
                | Self::Config
                | Self::Version
                | Self::Reload { dry_run: true }
        );
        !looks
    }

    /// Whether it changes what is configured, and the file has nothing of that.
    pub(super) fn is_left_out_of_file(&self) -> bool {
        let others = matches!(
            self,
            Self::Reload { .. }
                | Self::HostKick { .. }
                | Self::NamespaceResize { .. }
                | Self::NamespaceReopen { .. }
                | Self::Freeze { .. }
                | Self::Thaw
        );
        self.is_change() && !others
    }

    fn apply(self, manager: &mut Manager) -> Result<Value, String> {
        match self {
            Self::NamespaceAdd { subsystem, namespace } => {
                manager.add(subsystem.as_deref(), namespace).map(|state| json!(state))
            }
            Self::NamespaceRemove { subsystem, nsid } => {
                manager.remove(subsystem.as_deref(), nsid).map(|state| json!(state))
            }
            Self::NamespaceResize { subsystem, nsid, bytes } => {
                manager.resize(subsystem.as_deref(), nsid, bytes).map(|state| json!(state))
            }
            Self::NamespaceReopen { subsystem, nsid } => {
                manager.reopen(subsystem.as_deref(), nsid).map(|state| json!(state))
            }
            Self::HostKick { subsystem, host } => {
                let ended = manager.kick_host(subsystem.as_deref(), &host)?;
                Ok(json!({ "controllers": ended }))
            }
            Self::ListenerAdd { listener } => {
                let config = fragment("a listener", &listener, Config::parse_listener)?;
                let (port_id, address) = manager.add_listener(config)?;
                Ok(json!({ "port_id": port_id, "address": address }))
            }
            Self::ListenerRemove { address } => {
                let port_id = manager.listener_at(address)?;
                manager.remove_listener(port_id)?;
                Ok(json!({ "port_id": port_id, "address": address }))
            }
            Self::ListenerDrain { address } => {
                let port_id = manager.listener_at(address)?;
                manager.drain_listener(port_id)?;
                Ok(json!({ "port_id": port_id, "address": address }))
            }
            Self::Reload { dry_run: true } => manager.preview().map(|preview| previewed(&preview)),
            other => {
                // What was so before is told again only if the whole file is read.
                let is_reload = matches!(other, Self::Reload { .. });
                let before = if is_reload { Vec::new() } else { doubts(&manager.configured().running) };
                let changes = other.configure(manager)?;
                let now = doubts(&manager.configured().running).into_iter();
                Ok(changed(&changes, &now.filter(|one| !before.contains(one)).collect::<Vec<_>>()))
            }
        }
    }

    /// Changes what is configured; the answer is what is different then.
    fn configure(self, manager: &mut Manager) -> Result<Vec<Change>, String> {
        match self {
            Self::SubsystemAdd { subsystem } => {
                manager.add_subsystem(fragment("a subsystem", &subsystem, Config::parse_subsystem)?)
            }
            Self::SubsystemRemove { subsystem } => manager.remove_subsystem(&subsystem),
            Self::HostAllow { subsystem, host } => manager.allow_host(subsystem.as_deref(), &host),
            Self::HostDeny { subsystem, host } => manager.deny_host(subsystem.as_deref(), &host),
            Self::HostAdd { subsystem, host, tls_required } => {
                let host = fragment("a host", &host, Config::parse_host)?;
                manager.add_host(subsystem.as_deref(), host, tls_required)
            }
            Self::HostRekey { host, old_keys_until } => {
                let mut host = fragment("a host", &host, Config::parse_host)?;
                let until = old_keys_until.map(|text| text.parse()).transpose();
                host.old_keys_until = until.map_err(|why| format!("old_keys_until {why}"))?;
                manager.rekey_host(host)
            }
            Self::HostRevoke { host } => manager.revoke_old_keys(&host),
            Self::HostSet { host } => manager.set_host(fragment("a host", &host, Config::parse_host)?),
            Self::NamespaceLimit { subsystem, nsid, host, limits } => {
                let limits = fragment("limits", &limits, Config::parse_limits)?;
                manager.limit_namespace(subsystem.as_deref(), nsid, host, limits)
            }
            Self::NamespaceHosts { subsystem, nsid, hosts } => {
                let hosts = hosts.map_or(Access::AnyHost, Access::Hosts);
                manager.set_hosts(subsystem.as_deref(), nsid, hosts)
            }
            Self::AnaSet { subsystem, group, state, listeners } => {
                let found = ANA_STATES.iter().find(|(word, _)| *word == state);
                let (_, state) = found.ok_or_else(|| {
                    let known: Vec<&str> = ANA_STATES.iter().map(|(word, _)| *word).collect();
                    format!("{state:?} is no state; these are: {}", known.join(", "))
                })?;
                manager.set_access_state(subsystem.as_deref(), group, *state, &listeners)
            }
            Self::Log { filter } => manager.set_log(&filter),
            Self::Reload { .. } => manager.reload(),
            other => Err(format!("{} changes nothing", other.name())),
        }
    }
}

/// What a change has changed.
fn changed(changes: &[Change], doubts: &[Doubt]) -> Value {
    for doubt in doubts {
        tracing::warn!(name: NEVER_FOLDED, "{doubt}");
    }
    with_warnings(json!({ "changes": lines(changes) }), doubts)
}

/// The answer, with what will not work as meant, if there is anything.
fn with_warnings(mut answer: Value, doubts: &[Doubt]) -> Value {
    if !doubts.is_empty() {
        answer["warnings"] = doubts.iter().map(ToString::to_string).collect();
    }
    answer
}

/// What a reload would change.
fn previewed(preview: &Preview) -> Value {
    let (changes, edited) = (lines(&preview.changes), lines(&preview.edited));
    let answer = json!({ "changes": changes, "edited": edited, "refused": preview.refused });
    with_warnings(answer, &preview.doubts)
}

fn lines(changes: &[Change]) -> Vec<ChangeLine> {
    changes.iter().map(Change::line).collect()
}

/// The configuration that runs, where it comes from, and what of it is in no file.
fn configuration(view: &View) -> Value {
    let configured = view.configured();
    let unsaved = lines(&configured.unsaved());
    json!({ "file": configured.file, "toml": configured.running.to_toml(), "unsaved": unsaved })
}

/// The answer to a line: `{"ok": ...}` or `{"error": "why"}`, with a newline. `frozen` is what its connection has
/// frozen.
pub(super) fn answer(
    line: &[u8],
    by: &str,
    view: &View,
    manager: &TimedMutex<Manager>,
    frozen: &mut Option<Frozen>,
) -> String {
    let request = Request::parse(line);
    let change = request.as_ref().ok().filter(|request| request.is_change()).map(Request::name);
    let outcome = request.and_then(|request| {
        if change.is_some() {
            let details = masked_json(json!(request));
            tracing::info!(name: NEVER_FOLDED, request = change, details, by, "a change is asked for");
        }
        request.run(view, manager, frozen)
    });
    let value = match outcome {
        Ok(value) => json!({ "ok": value }),
        Err(error) => {
            tell_refused(change, &masked(&error), by);
            json!({ "error": error })
        }
    };
    format!("{value}\n")
}

/// A request was refused. What would have changed something has a line as what does; of the others there may be many.
fn tell_refused(change: Option<&'static str>, error: &str, by: &str) {
    if change.is_some() {
        tracing::warn!(name: NEVER_FOLDED, request = change, error, by, "a control request was refused");
    } else {
        tracing::warn!(error, by, "a control request was refused");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn requests_have_their_golden_lines() {
        let request = Request::NamespaceRemove { subsystem: None, nsid: 7 };
        assert_eq!(request.to_line(), "{\"command\":\"namespace-remove\",\"subsystem\":null,\"nsid\":7}\n");
        assert_eq!(Request::parse(b"{\"command\":\"status\"}\n"), Ok(Request::Status));
        let add = "{\"command\":\"namespace-add\",\"subsystem\":\"nqn.x\",\"namespace\":{\"null\":\"1GiB\"}}";
        let Ok(Request::NamespaceAdd { subsystem, namespace }) = Request::parse(add.as_bytes()) else {
            panic!("a request")
        };
        assert_eq!((subsystem.as_deref(), namespace["null"].as_str()), (Some("nqn.x"), Some("1GiB")));
    }

    #[test]
    fn what_is_no_request_is_refused_with_a_reason() {
        for line in [
            "",
            "{}",
            "[]",
            "null",
            "{\"command\":\"reboot\"}",
            "{\"command\":\"namespace-remove\"}",
            "{\"command\":\"namespace-remove\",\"nsid\":-1}",
            "{\"command\":\"namespace-remove\",\"nsid\":1,\"force\":true}",
            "{\"command\":\"status\"} {\"command\":\"status\"}",
            "{\"command\":\"namespace-resize\",\"nsid\":1,\"bytes\":1e300}",
        ] {
            let error = Request::parse(line.as_bytes()).expect_err(line);
            assert!(error.starts_with("not a request"), "{line}: {error}");
        }
        let deep = format!("{{\"command\":\"namespace-add\",\"namespace\":{}", "{\"a\":".repeat(3000));
        assert!(Request::parse(deep.as_bytes()).is_err());
        assert!(Request::parse(&[b' '; REQUEST_BYTES_MAX + 1]).expect_err("long").contains("at most"));
    }

    /// Flow label and scope are not part of the text of an address.
    fn without_scope(address: std::net::SocketAddrV6) -> std::net::SocketAddrV6 {
        std::net::SocketAddrV6::new(*address.ip(), address.port(), 0, 0)
    }

    fn any_request() -> impl Strategy<Value = Request> {
        let subsystem = proptest::option::of(".{0,20}");
        prop_oneof![
            (subsystem.clone(), any::<u32>())
                .prop_map(|(subsystem, nsid)| Request::NamespaceRemove { subsystem, nsid }),
            (subsystem.clone(), any::<u32>())
                .prop_map(|(subsystem, nsid)| Request::NamespaceReopen { subsystem, nsid }),
            (subsystem.clone(), any::<u32>(), any::<Option<u64>>())
                .prop_map(|(subsystem, nsid, bytes)| Request::NamespaceResize { subsystem, nsid, bytes }),
            (subsystem.clone(), ".{0,20}")
                .prop_map(|(subsystem, host)| Request::HostAllow { subsystem, host }),
            (subsystem.clone(), ".{0,20}")
                .prop_map(|(subsystem, host)| Request::HostDeny { subsystem, host }),
            (subsystem.clone(), ".{0,20}")
                .prop_map(|(subsystem, host)| Request::HostKick { subsystem, host }),
            ".{0,20}".prop_map(|host| Request::HostRevoke { host }),
            one_that_changes_keys(),
            any::<std::net::SocketAddrV6>()
                .prop_map(|address| Request::ListenerRemove { address: without_scope(address).into() }),
            (subsystem.clone(), any::<u32>(), proptest::option::of(".{0,20}"), any::<u64>()).prop_map(
                |(subsystem, nsid, host, iops)| {
                    let limits = Map::from_iter([("read_iops".to_owned(), Value::from(iops))]);
                    Request::NamespaceLimit { subsystem, nsid, host, limits }
                }
            ),
            (
                subsystem.clone(),
                any::<u32>(),
                proptest::option::of(proptest::collection::btree_set(".{0,9}", 0..3))
            )
                .prop_map(|(subsystem, nsid, hosts)| Request::NamespaceHosts {
                    subsystem,
                    nsid,
                    hosts
                }),
            (".{0,20}", any::<u32>()).prop_map(|(nqn, shares)| {
                let host = [("nqn", Value::from(nqn)), ("shares", Value::from(shares))];
                Request::HostSet {
                    host: host.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
                }
            }),
            ".{0,20}".prop_map(|filter| Request::Log { filter }),
            ".{0,20}".prop_map(|subsystem| Request::SubsystemRemove { subsystem }),
            any::<bool>().prop_map(|dry_run| Request::Reload { dry_run }),
            one_without_arguments(),
            one_that_freezes(),
            (subsystem, "[a-z]{1,9}", ".{0,30}").prop_map(|(subsystem, key, value)| {
                let namespace = Map::from_iter([(key, Value::from(value))]);
                Request::NamespaceAdd { subsystem, namespace }
            }),
        ]
    }

    fn one_that_freezes() -> impl Strategy<Value = Request> {
        let name = (proptest::option::of(".{0,20}"), any::<u32>());
        let name = name.prop_map(|(subsystem, nsid)| NamespaceName { subsystem, nsid });
        (proptest::collection::vec(name, 0..3), any::<u64>())
            .prop_map(|(namespaces, milliseconds)| Request::Freeze { namespaces, milliseconds })
    }

    fn one_that_changes_keys() -> impl Strategy<Value = Request> {
        let subsystem = proptest::option::of(".{0,20}");
        prop_oneof![
            (subsystem, ".{0,20}", any::<bool>()).prop_map(|(subsystem, nqn, tls_required)| {
                let host = Map::from_iter([("nqn".to_owned(), Value::from(nqn))]);
                Request::HostAdd { subsystem, host, tls_required }
            }),
            (".{0,20}", proptest::option::of(".{0,20}")).prop_map(|(nqn, old_keys_until)| {
                let host = Map::from_iter([("nqn".to_owned(), Value::from(nqn))]);
                Request::HostRekey { host, old_keys_until }
            })
        ]
    }

    fn one_without_arguments() -> impl Strategy<Value = Request> {
        let all = [Request::Config, Request::Version, Request::NamespaceList, Request::Status, Request::Thaw];
        proptest::sample::select(all.to_vec())
    }

    proptest! {
        #[test]
        fn a_request_survives_its_line(request in any_request()) {
            let line = request.to_line();
            prop_assert_eq!(line.matches('\n').count(), 1);
            prop_assert_eq!(Request::parse(line.as_bytes()), Ok(request));
        }

        #[test]
        fn any_bytes_are_a_request_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _either = Request::parse(&bytes);
        }

        #[test]
        fn a_request_with_a_byte_changed_is_a_request_or_refused(
            request in any_request(),
            at in any::<proptest::sample::Index>(),
            byte: u8,
        ) {
            let mut line = request.to_line().into_bytes();
            let at = at.index(line.len());
            line[at] = byte;
            let _either = Request::parse(&line);
        }
    }
}
