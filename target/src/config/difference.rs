//! What is different between two configurations, for people and for whoever applies it.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;

use ringfab_base::counted;
use serde::Serialize;

use super::{
    Access, AccessGroup, Config, Demands, HostConfig, ListenerConfig, NamespaceConfig, NamespaceLimits,
    Referral, Source, SubsystemConfig, resolved,
};

/// The keys of the process that can be changed while it runs.
const LIVE_KEYS: [&str; 3] = ["target.log", "target.drain_timeout_s", "discovery.mdns"];

/// One thing that is different, in the order in which it is shown.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A value of the process. Only the log, the drain timeout and mDNS change while it runs.
    Process {
        /// The key: `target.log`.
        key: String,
        /// Its value before.
        old: String,
        /// Its value after.
        new: String,
    },
    /// Hosts may connect at one more address.
    ListenerAdded(ListenerConfig),
    /// Hosts may not connect there any more.
    ListenerRemoved(ListenerConfig),
    /// A listener on the same address has other parameters, which hold for those who connect from now on.
    ListenerChanged {
        /// The listener before.
        old: ListenerConfig,
        /// The listener after.
        new: ListenerConfig,
    },
    /// A subsystem with its namespaces.
    SubsystemAdded(SubsystemConfig),
    /// A subsystem is not served any more, nor are its namespaces.
    SubsystemRemoved(SubsystemConfig),
    /// What stays the same as long as a subsystem is served: its serial number, its model number, or which identifiers
    /// its controllers get.
    SubsystemIdentity {
        /// NVMe Qualified Name.
        nqn: String,
        /// The key.
        key: &'static str,
        /// Its value before.
        old: String,
        /// Its value after.
        new: String,
    },
    /// Discovery demands something else of its hosts.
    DiscoveryDemandsChanged {
        /// Whether it required authentication.
        old: bool,
        /// Whether it requires authentication.
        new: bool,
    },
    /// Other hosts may use a subsystem.
    AccessChanged {
        /// NVMe Qualified Name.
        nqn: String,
        /// Who could.
        old: Access,
        /// Who can.
        new: Access,
    },
    /// A subsystem demands something else of its hosts.
    DemandsChanged {
        /// NQN of the subsystem.
        nqn: String,
        /// What it demanded.
        old: Demands,
        /// What it demands.
        new: Demands,
    },
    /// One more namespace.
    NamespaceAdded {
        /// NQN of its subsystem.
        nqn: String,
        /// The namespace.
        namespace: NamespaceConfig,
    },
    /// A namespace is not served any more.
    NamespaceRemoved {
        /// NQN of its subsystem.
        nqn: String,
        /// The namespace.
        namespace: NamespaceConfig,
    },
    /// Other hosts of its subsystem see a namespace, which stays the same for those that do before and after.
    NamespaceShown {
        /// NQN of its subsystem.
        nqn: String,
        /// Its identifier.
        nsid: u32,
        /// Who could.
        old: Access,
        /// Who can.
        new: Access,
    },
    /// A namespace is in another access group.
    NamespaceGrouped {
        /// NQN of its subsystem.
        nqn: String,
        /// Its identifier.
        nsid: u32,
        /// In which it was.
        old: u32,
        /// In which it is.
        new: u32,
    },
    /// An access group of a subsystem is in another state, by some way at least.
    AnaGroupChanged {
        /// NQN of the subsystem.
        nqn: String,
        /// Its identifier.
        group: u32,
        /// What was said of it before.
        old: AccessGroup,
        /// What is said of it.
        new: AccessGroup,
    },
    /// Discovery names other listeners for a subsystem.
    DiscoveryListenersChanged {
        /// NQN of the subsystem.
        nqn: String,
        /// Which it named; all where there is none.
        old: Vec<SocketAddr>,
        /// Which it names.
        new: Vec<SocketAddr>,
    },
    /// A namespace has other limits.
    NamespaceLimited {
        /// NQN of its subsystem.
        nqn: String,
        /// Its identifier.
        nsid: u32,
        /// The limits before.
        old: NamespaceLimits,
        /// The limits after.
        new: NamespaceLimits,
    },
    /// A host has other shares or other limits.
    HostChanged {
        /// What was said of it before.
        old: Box<HostConfig>,
        /// What is said of it after.
        new: Box<HostConfig>,
    },
    /// Hosts are told of one more discovery subsystem.
    ReferralAdded(Referral),
    /// Hosts are told of a discovery subsystem no longer.
    ReferralRemoved(Referral),
    /// A namespace is another one: hosts see the old one go and this one come.
    NamespaceChanged {
        /// NQN of its subsystem.
        nqn: String,
        /// The namespace before.
        old: NamespaceConfig,
        /// The namespace after.
        new: NamespaceConfig,
    },
}

/// A change as a program reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChangeLine {
    /// `added`, `removed` or `changed`.
    pub kind: &'static str,
    /// What: `namespace 3 of nqn...`.
    pub what: String,
    /// How it is described, or what is different.
    pub detail: String,
    /// Whether it needs a restart.
    pub needs_restart: bool,
}

impl Change {
    /// Whether it cannot be applied while the target runs.
    pub fn needs_restart(&self) -> bool {
        match self {
            Self::Process { key, .. } => !LIVE_KEYS.contains(&key.as_str()),
            Self::SubsystemIdentity { .. } => true,
            _ => false,
        }
    }

    /// The change as a program reads it.
    pub fn line(&self) -> ChangeLine {
        let (kind, what, detail) = self.parts();
        ChangeLine { kind, what, detail, needs_restart: self.needs_restart() }
    }

    fn parts(&self) -> (&'static str, String, String) {
        let changed = |what: String, old: &str, new: &str| ("changed", what, format!("{old} -> {new}"));
        let at = |listener: &ListenerConfig| {
            format!("listener {} {}", listener.transport.name(), listener.place())
        };
        let subsystem = |nqn: &str| format!("subsystem {nqn}");
        match self {
            Self::Process { key, old, new } => changed(key.clone(), old, new),
            Self::ListenerAdded(listener) => ("added", at(listener), String::new()),
            Self::ListenerRemoved(listener) => ("removed", at(listener), String::new()),
            Self::ListenerChanged { old, new } => {
                ("changed", at(new), keys(&resolved::listener_keys(old), &resolved::listener_keys(new)))
            }
            Self::SubsystemAdded(one) => ("added", subsystem(&one.nqn), namespaces(one)),
            Self::SubsystemRemoved(one) => ("removed", subsystem(&one.nqn), namespaces(one)),
            Self::SubsystemIdentity { nqn, key, old, new } => {
                changed(subsystem(nqn), &format!("{key} {old}"), new)
            }
            Self::DiscoveryDemandsChanged { old, new } => changed(
                "discovery.authentication".to_owned(),
                resolved::demand_word(*old),
                resolved::demand_word(*new),
            ),
            Self::AccessChanged { nqn, old, new } => ("changed", subsystem(nqn), hosts(old, new)),
            Self::DemandsChanged { nqn, old, new } => {
                ("changed", subsystem(nqn), keys(&resolved::demand_keys(*old), &resolved::demand_keys(*new)))
            }
            Self::AnaGroupChanged { nqn, group, old, new } => {
                let keys_of = |one| resolved::ana_group_keys(*group, one);
                ("changed", format!("access group {group} of {nqn}"), keys(&keys_of(old), &keys_of(new)))
            }
            Self::DiscoveryListenersChanged { nqn, old, new } => {
                let [old, new] = [old, new].map(|all| addresses(all));
                ("changed", subsystem(nqn), format!("discovery_listeners {old} -> {new}"))
            }
            Self::HostChanged { old, new } => ("changed", format!("host {}", new.nqn), host(old, new)),
            Self::ReferralAdded(one) => ("added", format!("referral {}", one.place()), String::new()),
            Self::ReferralRemoved(one) => ("removed", format!("referral {}", one.place()), String::new()),
            of_namespace => of_namespace.namespace_parts(),
        }
    }

    /// The same for a change of one namespace.
    fn namespace_parts(&self) -> (&'static str, String, String) {
        let name = |nqn: &str, nsid: u32| format!("namespace {nsid} of {nqn}");
        match self {
            Self::NamespaceAdded { nqn, namespace } => {
                ("added", name(nqn, namespace.nsid), namespace.source.to_string())
            }
            Self::NamespaceRemoved { nqn, namespace } => {
                ("removed", name(nqn, namespace.nsid), namespace.source.to_string())
            }
            Self::NamespaceShown { nqn, nsid, old, new } => {
                ("changed", name(nqn, *nsid), format!("hosts {}", hosts(old, new)))
            }
            Self::NamespaceGrouped { nqn, nsid, old, new } => {
                ("changed", name(nqn, *nsid), format!("ana_group {old} -> {new}"))
            }
            Self::NamespaceLimited { nqn, nsid, old, new } => {
                let detail = keys(&resolved::limit_keys(old), &resolved::limit_keys(new));
                ("changed", name(nqn, *nsid), detail)
            }
            Self::NamespaceChanged { nqn, old, new } => {
                let mut detail = keys(&resolved::namespace_keys(old), &resolved::namespace_keys(new));
                if matches!(old.source, Source::Memory(_)) {
                    detail += "; what is in its memory is lost";
                }
                ("changed", name(nqn, new.nsid), detail)
            }
            _ => unreachable!("every other change is described before"),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ChangeLine { kind, what, detail, needs_restart } = self.line();
        let sign = match kind {
            "added" => '+',
            "removed" => '-',
            _ => '~',
        };
        write!(f, "{sign} {what}")?;
        if !detail.is_empty() {
            write!(f, ": {detail}")?;
        }
        if needs_restart { f.write_str(" (needs a restart)") } else { Ok(()) }
    }
}

/// What leads from one configuration to another.
pub fn difference(old: &Config, new: &Config) -> Vec<Change> {
    let mut changes = process(old, new);
    listeners(old, new, &mut changes);
    subsystems(old, new, &mut changes);
    hosts_of(old, new, &mut changes);
    let (before, after) = (&old.discovery, &new.discovery);
    if before.requires_authentication != after.requires_authentication {
        let (old, new) = (before.requires_authentication, after.requires_authentication);
        changes.push(Change::DiscoveryDemandsChanged { old, new });
    }
    let only_in = |one: &Config, other: &Config| -> Vec<Referral> {
        let missing = |it: &&Referral| !other.discovery.referrals.contains(it);
        one.discovery.referrals.iter().filter(missing).cloned().collect()
    };
    changes.extend(only_in(old, new).into_iter().map(Change::ReferralRemoved));
    changes.extend(only_in(new, old).into_iter().map(Change::ReferralAdded));
    changes
}

/// Keys of `[target]`, `[memory]`, `[control]` and `[metrics]`.
fn process(old: &Config, new: &Config) -> Vec<Change> {
    let (old, new) = (resolved::process_keys(old), resolved::process_keys(new));
    let changed = differing(&old, &new);
    changed.map(|(key, old, new)| Change::Process { key: key.clone(), old, new }).collect()
}

/// Two listeners are the same one when they have one transport and one address. Several may ask for any free port.
fn listeners(old: &Config, new: &Config, changes: &mut Vec<Change>) {
    let same = |one: &ListenerConfig, other: &ListenerConfig| {
        one.transport == other.transport && one.address == other.address && one.port == other.port
    };
    let mut left: Vec<&ListenerConfig> = new.listeners.iter().collect();
    for one in &old.listeners {
        let equal = left.iter().position(|other| *other == one);
        match equal.or_else(|| left.iter().position(|other| same(one, other))).map(|index| left.remove(index))
        {
            None => changes.push(Change::ListenerRemoved(one.clone())),
            Some(other) if other == one => {}
            Some(other) => changes.push(Change::ListenerChanged { old: one.clone(), new: other.clone() }),
        }
    }
    changes.extend(left.into_iter().cloned().map(Change::ListenerAdded));
}

fn subsystems(old: &Config, new: &Config, changes: &mut Vec<Change>) {
    for one in &old.subsystems {
        match new.subsystem(&one.nqn) {
            None => changes.push(Change::SubsystemRemoved(one.clone())),
            Some(other) => subsystem(one, other, changes),
        }
    }
    let added = new.subsystems.iter().filter(|one| old.subsystem(&one.nqn).is_none());
    changes.extend(added.cloned().map(Change::SubsystemAdded));
}

/// Of a host of which nothing is said, the defaults are.
fn hosts_of(old: &Config, new: &Config, changes: &mut Vec<Change>) {
    let named: BTreeSet<&String> = old.hosts.iter().chain(&new.hosts).map(|one| &one.nqn).collect();
    let pairs = named.into_iter().map(|nqn| (Box::new(old.host(nqn)), Box::new(new.host(nqn))));
    changes.extend(pairs.filter(|(old, new)| old != new).map(|(old, new)| Change::HostChanged { old, new }));
}

fn subsystem(old: &SubsystemConfig, new: &SubsystemConfig, changes: &mut Vec<Change>) {
    let nqn = &new.nqn;
    let ids = |one: &SubsystemConfig| {
        one.controller_ids.map_or_else(|| "(any)".to_owned(), |(first, last)| format!("{first}-{last}"))
    };
    for (key, before, after) in [
        ("serial", &old.serial, &new.serial),
        ("model", &old.model, &new.model),
        ("controller_ids", &ids(old), &ids(new)),
    ] {
        if before != after {
            let (nqn, old, new) = (nqn.clone(), before.clone(), after.clone());
            changes.push(Change::SubsystemIdentity { nqn, key, old, new });
        }
    }
    if old.demands != new.demands {
        let (old, new) = (old.demands, new.demands);
        changes.push(Change::DemandsChanged { nqn: nqn.clone(), old, new });
    }
    if old.access != new.access {
        let (old, new) = (old.access.clone(), new.access.clone());
        changes.push(Change::AccessChanged { nqn: nqn.clone(), old, new });
    }
    access_groups(old, new, changes);
    namespaces_of(old, new, changes);
}

/// The namespaces of a subsystem.
fn namespaces_of(old: &SubsystemConfig, new: &SubsystemConfig, changes: &mut Vec<Change>) {
    let nqn = &new.nqn;
    for one in &old.namespaces {
        let nqn = nqn.clone();
        match new.namespace(one.nsid) {
            None => changes.push(Change::NamespaceRemoved { nqn, namespace: one.clone() }),
            Some(other) if other == one => {}
            Some(other) if is_same_disk(one, other) => {
                let nsid = one.nsid;
                if one.hosts != other.hosts {
                    let (nqn, old, new) = (nqn.clone(), one.hosts.clone(), other.hosts.clone());
                    changes.push(Change::NamespaceShown { nqn, nsid, old, new });
                }
                if one.ana_group != other.ana_group {
                    let (old, new) = (one.ana_group, other.ana_group);
                    changes.push(Change::NamespaceGrouped { nqn: nqn.clone(), nsid, old, new });
                }
                if one.limits != other.limits {
                    let (old, new) = (one.limits.clone(), other.limits.clone());
                    changes.push(Change::NamespaceLimited { nqn, nsid, old, new });
                }
            }
            Some(other) => {
                changes.push(Change::NamespaceChanged { nqn, old: one.clone(), new: other.clone() });
            }
        }
    }
    for one in new.namespaces.iter().filter(|one| old.namespace(one.nsid).is_none()) {
        changes.push(Change::NamespaceAdded { nqn: nqn.clone(), namespace: one.clone() });
    }
}

/// The access groups of a subsystem, and where discovery says that it is.
fn access_groups(old: &SubsystemConfig, new: &SubsystemConfig, changes: &mut Vec<Change>) {
    let nqn = &new.nqn;
    let named: BTreeSet<u32> = old.ana_groups.keys().chain(new.ana_groups.keys()).copied().collect();
    for group in named {
        let of = |one: &SubsystemConfig| one.ana_groups.get(&group).cloned().unwrap_or_default();
        let (old, new) = (of(old), of(new));
        if old != new {
            changes.push(Change::AnaGroupChanged { nqn: nqn.clone(), group, old, new });
        }
    }
    if old.discovery_listeners != new.discovery_listeners {
        let (old, new) = (old.discovery_listeners.clone(), new.discovery_listeners.clone());
        changes.push(Change::DiscoveryListenersChanged { nqn: nqn.clone(), old, new });
    }
}

/// The addresses of listeners, or that it is all of them.
fn addresses(all: &[SocketAddr]) -> String {
    match all {
        [] => "(all)".to_owned(),
        all => all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
    }
}

/// Whether hosts that see both see the same: who they are and how much they may do has nothing to do with it.
fn is_same_disk(one: &NamespaceConfig, other: &NamespaceConfig) -> bool {
    let (hosts, limits) = (one.hosts.clone(), one.limits.clone());
    NamespaceConfig { hosts, limits, ana_group: one.ana_group, ..other.clone() } == *one
}

/// How many namespaces a subsystem has, in words.
fn namespaces(subsystem: &SubsystemConfig) -> String {
    counted(subsystem.namespaces.len(), "namespace")
}

/// What is different of a host.
fn host(old: &HostConfig, new: &HostConfig) -> String {
    let detail = keys(&resolved::host_keys(old), &resolved::host_keys(new));
    // The same file may have another key.
    if detail.is_empty() { "another key".to_owned() } else { detail }
}

/// Which hosts come and go.
fn hosts(old: &Access, new: &Access) -> String {
    let named = |access: &Access| match access {
        Access::AnyHost => BTreeSet::from(["any host".to_owned()]),
        Access::Hosts(hosts) => hosts.clone(),
    };
    let (old, new) = (named(old), named(new));
    let gone = old.difference(&new).map(|host| format!("-{host}"));
    let come = new.difference(&old).map(|host| format!("+{host}"));
    gone.chain(come).collect::<Vec<_>>().join(" ")
}

/// The keys whose values differ, of two tables as they are written.
fn keys(old: &toml::Table, new: &toml::Table) -> String {
    let lines = differing(old, new).map(|(key, old, new)| format!("{key} {old} -> {new}"));
    lines.collect::<Vec<_>>().join(", ")
}

/// The keys of two tables whose values differ, with both values as text.
fn differing<'a>(
    old: &'a toml::Table,
    new: &'a toml::Table,
) -> impl Iterator<Item = (&'a String, String, String)> {
    let all: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let text = |value: Option<&toml::Value>| value.map_or_else(|| "(none)".to_owned(), ToString::to_string);
    let differ = all.into_iter().filter(|key| old.get(*key) != new.get(*key));
    differ.map(move |key| (key, text(old.get(key)), text(new.get(key))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
[[listener]]
address = "127.0.0.1"
transport = "tcp"
[[subsystem]]
nqn = "nqn.2026-11.org.ringfab:a"
allowed_hosts = ["nqn.2026-11.org.ringfab:h1"]
[[subsystem.namespace]]
null = "1GiB"
[[subsystem.namespace]]
path = "/srv/b"
[[subsystem]]
nqn = "nqn.2026-11.org.ringfab:b"
allow_any_host = true
[[subsystem.namespace]]
memory = "1MiB"
"#;

    fn lines(edits: &[(&str, &str)]) -> Vec<String> {
        let mut text = FILE.to_owned();
        for (from, to) in edits {
            assert!(text.contains(from), "{from}");
            text = text.replacen(from, to, 1);
        }
        let parse = |text: &str| Config::parse(text, "f").unwrap_or_else(|error| panic!("{error}"));
        difference(&parse(FILE), &parse(&text)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_same_configuration_is_no_difference_however_it_is_written() {
        assert_eq!(lines(&[]), Vec::<String>::new());
        assert_eq!(
            lines(&[("null = \"1GiB\"", "null = \"1024MiB\"\nnsid = 1 # the first")]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn each_kind_of_change_has_its_line() {
        assert_eq!(
            lines(&[("transport = \"tcp\"", "transport = \"tcp\"\nport = 4421")]),
            ["- listener tcp 127.0.0.1:4420", "+ listener tcp 127.0.0.1:4421"]
        );
        assert_eq!(
            lines(&[("transport = \"tcp\"", "transport = \"tcp\"\nio_queues_max = 3")]),
            ["~ listener tcp 127.0.0.1:4420: io_queues_max 128 -> 3"]
        );
        assert_eq!(
            lines(&[("org.ringfab:h1\"", "org.ringfab:h2\"")]),
            [
                "~ subsystem nqn.2026-11.org.ringfab:a: -nqn.2026-11.org.ringfab:h1 +nqn.2026-11.org.ringfab:h2"
            ]
        );
        assert_eq!(
            lines(&[("path = \"/srv/b\"", "path = \"/srv/b\"\nread_only = true")]),
            ["~ namespace 2 of nqn.2026-11.org.ringfab:a: read_only false -> true"]
        );
        assert_eq!(
            lines(&[("[[subsystem.namespace]]\npath = \"/srv/b\"\n", "")]),
            ["- namespace 2 of nqn.2026-11.org.ringfab:a: /srv/b"]
        );
        assert_eq!(
            lines(&[("memory = \"1MiB\"", "memory = \"2MiB\"")]),
            [
                "~ namespace 1 of nqn.2026-11.org.ringfab:b: memory \"1MiB\" -> \"2MiB\"; what is in its memory is lost"
            ]
        );
        assert_eq!(
            lines(&[("null = \"1GiB\"", "null = \"1GiB\"\nhosts = [\"nqn.2026-11.org.ringfab:h1\"]")]),
            ["~ namespace 1 of nqn.2026-11.org.ringfab:a: hosts -any host +nqn.2026-11.org.ringfab:h1"]
        );
        assert_eq!(
            lines(&[("\n[[listener]]", "[[discovery.referral]]\naddress = \"192.0.2.7\"\n[[listener]]")]),
            ["+ referral tcp 192.0.2.7:8009"]
        );
        assert_eq!(
            lines(&[("\n[[listener]]", "[discovery]\nmdns = true\n[[listener]]")]),
            ["~ discovery.mdns: false -> true"]
        );
        let renamed = lines(&[("ringfab:b\"", "ringfab:c\"")]);
        assert_eq!(renamed.len(), 2, "{renamed:?}");
        assert_eq!(renamed[0], "- subsystem nqn.2026-11.org.ringfab:b: 1 namespace");
        assert_eq!(
            lines(&[("\n[[listener]]", "[target]\nlog = \"debug\"\ncores = [0]\n[[listener]]")])
                .iter()
                .find(|line| line.contains("log")),
            Some(&"~ target.log: \"info\" -> \"debug\"".to_owned())
        );
    }

    #[test]
    fn limits_and_shares_change_and_disturb_nothing_else() {
        assert_eq!(
            lines(&[("null = \"1GiB\"", "null = \"1GiB\"\nlimits = { read_iops = 10 }")]),
            [
                "~ namespace 1 of nqn.2026-11.org.ringfab:a: limits (none) -> { burst_ms = 50, read_iops = 10 }"
            ]
        );
        assert_eq!(
            lines(&[(
                "\n[[listener]]",
                "[[host]]\nnqn = \"nqn.2026-11.org.ringfab:h1\"\nshares = 7\n[[listener]]"
            )]),
            ["~ host nqn.2026-11.org.ringfab:h1: shares 100 -> 7"]
        );
        assert_eq!(
            lines(&[("\n[[listener]]", "[[host]]\nnqn = \"nqn.2026-11.org.ringfab:h1\"\n[[listener]]")]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn what_discovery_demands_of_its_hosts_has_its_line_and_needs_no_restart() {
        assert_eq!(
            lines(&[("\n[[listener]]", "[discovery]\nauthentication = \"required\"\n[[listener]]")]),
            ["~ discovery.authentication: optional -> required"]
        );
    }

    #[test]
    fn what_needs_a_restart_says_so() {
        let memory = lines(&[("\n[[listener]]", "[memory]\nlarge_buffers = 77\n[[listener]]")]);
        assert!(
            memory[0].starts_with("~ memory.large_buffers: ") && memory[0].ends_with("(needs a restart)")
        );
        let serial = lines(&[("allow_any_host", "serial = \"S9\"\nallow_any_host")]);
        assert!(serial[0].ends_with("-> S9 (needs a restart)"), "{serial:?}");
    }
}
