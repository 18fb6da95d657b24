//! What is valid, and probably not what somebody means: subsystems that no host may use, hosts that nobody lets in,
//! limits under which commands take longer than hosts wait, and old keys whose time is over.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, SystemTime};

use ringfab_base::{meant, shell_quoted, shown_size};

use super::{Access, CONTROL_SOCKET, Config, NamespaceConfig, RateLimits, SubsystemConfig};
use crate::limits::TRANSFER_BYTES_MAX;

/// How long a Linux host waits for a command before it aborts it (`nvme_core.io_timeout`).
const HOST_WAITS: Duration = Duration::from_secs(30);

/// Something that will not work as meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// The part of the configuration.
    pub what: String,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub advice: Cow<'static, str>,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.what, self.message, self.advice)
    }
}

/// All of a configuration.
pub(crate) fn doubts(config: &Config) -> Vec<Doubt> {
    let mut doubts: Vec<Doubt> =
        config.subsystems.iter().filter_map(|one| without_hosts(config, one)).collect();
    for subsystem in &config.subsystems {
        for namespace in &subsystem.namespaces {
            of_namespace(subsystem, namespace, &mut doubts);
        }
    }
    let known = config.subsystems.iter().map(|one| allowed(&one.access)).collect::<Option<Vec<_>>>();
    let known: Option<BTreeSet<&str>> = known.map(|all| all.into_iter().flatten().collect());
    for host in &config.hosts {
        let what = format!("host {}", host.nqn);
        of_limits(&what, "limits", &host.limits, &mut doubts);
        if host.has_old_keys() && !host.old_keys_count(SystemTime::now()) {
            doubts.push(Doubt {
                what: what.clone(),
                message: "old_keys_until has passed, and its old keys count no more".to_owned(),
                advice: "take the old keys and old_keys_until out".into(),
            });
        }
        if let Some(known) = known.as_ref().filter(|known| !known.contains(host.nqn.as_str())) {
            let message =
                format!("no subsystem has this host in its allowed_hosts{}", near(&host.nqn, known));
            doubts.push(Doubt { what, message, advice: "correct its nqn, allow it, or remove it".into() });
        }
    }
    doubts
}

/// A subsystem whose list of hosts is empty, with the one command that changes that.
fn without_hosts(config: &Config, subsystem: &SubsystemConfig) -> Option<Doubt> {
    if !matches!(&subsystem.access, Access::Hosts(hosts) if hosts.is_empty()) {
        return None;
    }
    let control = config.control.clone().unwrap_or_default();
    let advice = if control.enabled {
        let mut command = "ringfab-target host allow HOSTNQN".to_owned();
        if config.subsystems.len() > 1 {
            command += &format!(" --subsystem {}", shell_quoted(&subsystem.nqn));
        }
        if control.socket.as_os_str() != CONTROL_SOCKET {
            command += &format!(" --socket {}", shell_quoted(&control.socket.to_string_lossy()));
        }
        format!("`{command}` lets one in while the target runs")
    } else {
        "list those that may in its allowed_hosts".to_owned()
    };
    let what = format!("subsystem {}", subsystem.nqn);
    Some(Doubt { what, message: "no host may use it yet".to_owned(), advice: advice.into() })
}

fn of_namespace(subsystem: &SubsystemConfig, namespace: &NamespaceConfig, doubts: &mut Vec<Doubt>) {
    let what = format!("namespace {} of {}", namespace.nsid, subsystem.nqn);
    of_limits(&what, "limits", &namespace.limits.all, doubts);
    for (host, limits) in &namespace.limits.hosts {
        of_limits(&what, &format!("host_limits for {host}"), limits, doubts);
    }
    let Some(known) = allowed(&subsystem.access) else { return };
    let shown = match &namespace.hosts {
        Access::AnyHost => None,
        Access::Hosts(hosts) => Some(hosts),
    };
    let hosts = shown.into_iter().flatten().map(|host| ("hosts", host, "never sees it"));
    let limited = namespace.limits.hosts.keys().map(|host| ("host_limits", host, "is never limited by it"));
    let nobody = shown.is_some_and(|hosts| !hosts.iter().any(|host| known.contains(host.as_str())));
    for (key, host, effect) in hosts.chain(limited).filter(|(_, host, _)| !known.contains(host.as_str())) {
        let hidden = if nobody && key == "hosts" { ", and no host sees this namespace" } else { "" };
        doubts.push(Doubt {
            what: what.clone(),
            message: format!(
                "{key} names {host}, which is not in allowed_hosts of its subsystem and {effect}{hidden}{}",
                near(host, &known)
            ),
            advice: "correct the name, or allow the host".into(),
        });
    }
}

/// The names that may connect, unless every host may.
fn allowed(access: &Access) -> Option<BTreeSet<&str>> {
    match access {
        Access::AnyHost => None,
        Access::Hosts(hosts) => Some(hosts.iter().map(String::as_str).collect()),
    }
}

fn near(host: &str, known: &BTreeSet<&str>) -> String {
    meant(host, known.iter().copied()).map(|name| format!(" (did you mean {name}?)")).unwrap_or_default()
}

/// The largest command that limits let through takes as long as they say.
fn of_limits(what: &str, key: &str, limits: &RateLimits, doubts: &mut Vec<Doubt>) {
    let largest = u64::from(TRANSFER_BYTES_MAX);
    for (limit, rate) in limits.keys() {
        let Some(rate) = rate.filter(|_| limit.ends_with("bytes_per_s")) else { continue };
        let seconds = largest.div_ceil(rate);
        if seconds > HOST_WAITS.as_secs() {
            let (rate, largest, waits) = (shown_size(rate), shown_size(largest), HOST_WAITS.as_secs());
            doubts.push(Doubt {
                what: what.to_owned(),
                message: format!(
                    "{limit} in {key} is {rate}: a command of {largest}, the largest, takes {seconds} s at this \
                     rate, and a Linux host aborts a command after {waits} s"
                ),
                advice: "allow at least 64 KiB a second, or have hosts send small commands or wait longer".into(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(access: &str, namespace: &str, hosts: &str) -> Vec<String> {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\n{access}\n\
             [[subsystem.namespace]]\nnull = \"1GiB\"\n{namespace}\n{hosts}\n"
        );
        let config = Config::parse(&text, "test").unwrap_or_else(|error| panic!("{error}"));
        doubts(&config).iter().map(ToString::to_string).collect()
    }

    const ONE: &str = "allowed_hosts = [\"nqn.2026-11.org.example:alpha\", \"nqn.2026-11.org.example:beta\"]";

    #[test]
    fn names_that_nobody_lets_in_are_named_with_what_may_be_meant() {
        let list = |name: &str| format!("[\"nqn.2026-11.org.example:{name}\"]");
        assert_eq!(said(ONE, &format!("hosts = {}", list("alpha")), ""), [""; 0]);
        assert_eq!(said("allow_any_host = true", &format!("hosts = {}", list("alhpa")), ""), [""; 0]);
        let typo = said(ONE, &format!("hosts = {}", list("alhpa")), "");
        let expected = "namespace 1 of nqn.2026-11.org.example:a: hosts names nqn.2026-11.org.example:alhpa, which is \
                        not in allowed_hosts of its subsystem and never sees it, and no host sees this namespace (did \
                        you mean nqn.2026-11.org.example:alpha?); correct the name, or allow the host";
        assert_eq!(typo, [expected]);
        let both = "hosts = [\"nqn.2026-11.org.example:beta\", \"nqn.2026-11.org.example:xyz\"]";
        let both = said(ONE, both, "");
        assert!(
            both.len() == 1 && !both[0].contains("no host sees") && !both[0].contains("mean"),
            "{both:?}"
        );
        let limits = "host_limits = [{ host = \"nqn.2026-11.org.example:bta\", read_iops = 5 }]";
        let limits = said(ONE, limits, "");
        assert!(limits.len() == 1 && limits[0].contains("never limited by it (did you mean"), "{limits:?}");
        let host = "[[host]]\nnqn = \"nqn.2026-11.org.example:betta\"\nshares = 3";
        let told = said(ONE, "", host);
        assert!(
            told.len() == 1 && told[0].starts_with("host nqn.2026-11.org.example:betta: no sub"),
            "{told:?}"
        );
        assert!(told[0].contains("example:beta?"), "{told:?}");
        assert_eq!(said("allow_any_host = true", "", host), [""; 0]);
        assert_eq!(said(ONE, "", &host.replace("betta", "beta")), [""; 0]);
    }

    #[test]
    fn a_subsystem_without_hosts_is_told_with_the_command_that_allows_one() {
        let nobody = "subsystem nqn.2026-11.org.example:a: no host may use it yet; ";
        let told = |rest: &str| said("allowed_hosts = []", "", rest);
        let lets_in = |more: &str| {
            format!("{nobody}`ringfab-target host allow HOSTNQN{more}` lets one in while the target runs")
        };
        assert_eq!(told(""), [lets_in("")]);
        assert_eq!(told("[control]\nsocket = \"/run/a b/c\""), [lets_in(" --socket '/run/a b/c'")]);
        let other = "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:b\"\nallow_any_host = true\n\
                     [[subsystem.namespace]]\nnull = \"1MiB\"";
        assert_eq!(told(other), [lets_in(" --subsystem nqn.2026-11.org.example:a")]);
        let without = told("[control]\nenabled = false");
        assert_eq!(without, [format!("{nobody}list those that may in its allowed_hosts")]);
        assert_eq!(said("allow_any_host = true", "", ""), [""; 0]);
    }

    #[test]
    fn limits_under_which_hosts_give_up_are_told_with_the_arithmetic() {
        let limit = |rate: u64| format!("limits = {{ read_bytes_per_s = {rate} }}");
        let boundary = (1_u64 << 20).div_ceil(30);
        assert_eq!(said(ONE, &limit(boundary), ""), [""; 0]);
        assert_eq!(said(ONE, &limit(boundary - 1), "").len(), 1);
        let told = said(ONE, &limit(1024), "");
        let expected = "read_bytes_per_s in limits is 1 KiB: a command of 1 MiB, the largest, takes 1024 s at this \
                        rate, and a Linux host aborts a command after 30 s";
        assert!(told.len() == 1 && told[0].contains(expected), "{told:?}");
        let host = "host_limits = [{ host = \"nqn.2026-11.org.example:beta\", write_bytes_per_s = 1 }]";
        let told = said(ONE, host, "");
        assert!(told.len() == 1 && told[0].contains("takes 1048576 s"), "{told:?}");
        let host =
            "[[host]]\nnqn = \"nqn.2026-11.org.example:beta\"\nlimits = { write_bytes_per_s = \"30KiB\" }";
        assert!(said(ONE, "", host)[0].starts_with("host nqn.2026-11.org.example:beta: write_bytes_per_s"));
    }
}
