//! Which listeners serve clear text to hosts that have a key for TLS.

use super::Finding;
use crate::config::{Access, Config, ListenerConfig, ListenerTls, SubsystemConfig};

/// The most names that are told.
const NAMES_MAX: usize = 3;

/// The listeners where hosts with a key may do without TLS. Whoever comes there without TLS, or takes it away on the
/// network, needs no key.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let open = |one: &&SubsystemConfig| !one.demands.tls;
    let subsystems: Vec<&SubsystemConfig> = config.subsystems.iter().filter(open).collect();
    let may = |nqn: &String| {
        let allows = |one: &&SubsystemConfig| match &one.access {
            Access::AnyHost => true,
            Access::Hosts(hosts) => hosts.contains(nqn),
        };
        subsystems.iter().any(allows)
    };
    let with_key = config.hosts.iter().filter(|host| host.tls.is_some()).map(|host| &host.nqn);
    let hosts: Vec<&String> = with_key.filter(|nqn| may(nqn)).collect();
    let in_clear = |one: &&ListenerConfig| one.tls != ListenerTls::Required && !one.discovery_only;
    if hosts.is_empty() {
        return Vec::new();
    }
    let names: Vec<&str> = hosts.iter().take(NAMES_MAX).map(|nqn| nqn.as_str()).collect();
    let more = if hosts.len() > NAMES_MAX { ", ..." } else { "" };
    let names = format!("{}{more}", names.join(", "));
    let finding = |listener: &ListenerConfig| Finding {
        what: format!("listener {} {}", listener.transport.name(), listener.place()),
        message: format!("it serves clear text, also to hosts with a tls_key ({names})"),
        advice: "write tls = \"required\" in their subsystems, or in the listener".into(),
    };
    config.listeners.iter().filter(in_clear).map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::key_file;
    use super::*;

    #[test]
    fn a_listener_without_tls_is_named_where_a_host_with_a_key_may_come() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let text = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
        let key = key_file(file.path(), text);
        let found = |host: &str, demand: &str| -> Vec<String> {
            let text = format!(
                "[[listener]]\naddress = \"127.0.0.1\"\ntransport = \"tcp\"\nport = 1\ntls = \"allowed\"\n\
                 [[listener]]\naddress = \"127.0.0.1\"\ntransport = \"tcp\"\nport = 2\ntls = \"required\"\n\
                 [[listener]]\naddress = \"127.0.0.1\"\nport = 3\n\
                 [[subsystem]]\nnqn = \"nqn.2026-11.org.ringfab:a\"\nallowed_hosts = [\"nqn.2026-11.org.ringfab:h\"]\n\
                 {demand}\n[[subsystem.namespace]]\nnull = \"1MiB\"\n\
                 [[host]]\nnqn = {host:?}\ntls_key = {key}\n"
            );
            let config = Config::parse(&text, "test").unwrap_or_else(|error| panic!("{error}"));
            findings(&config).iter().map(|finding| finding.to_string()).collect()
        };
        let said = found("nqn.2026-11.org.ringfab:h", "");
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(
            said[0].starts_with("listener tcp 127.0.0.1:1: it serves clear text, also to hosts"),
            "{said:?}"
        );
        assert!(said[1].starts_with("listener rdma 127.0.0.1:3: "), "{said:?}");
        assert_eq!(found("nqn.2026-11.org.ringfab:h", "tls = \"required\""), [""; 0]);
        assert_eq!(found("nqn.2026-11.org.ringfab:other", ""), [""; 0]);
    }
}
