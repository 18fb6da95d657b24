//! Listeners and subsystems that ask for keys which no host has, so that nobody can use them.

use super::Finding;
use crate::config::{Access, Config, HostConfig, ListenerTls, SubsystemConfig};

/// Where nobody has the key that is asked for.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let has_no_tls = config.hosts.iter().all(|host| host.tls.is_none());
    let listeners = config.listeners.iter().filter(|one| one.tls == ListenerTls::Required && has_no_tls);
    let listeners = listeners.map(|listener| Finding {
        what: format!("listener {} {}", listener.transport.name(), listener.place()),
        message: "it requires TLS, and no [[host]] has a tls_key, so that nobody can connect".to_owned(),
        advice:
            "give hosts a tls_key: `ringfab-target host add NQN --with-keys --tls` makes it, and its line"
                .into(),
    });
    listeners.chain(config.subsystems.iter().filter_map(|one| subsystem(config, one))).collect()
}

fn subsystem(config: &Config, subsystem: &SubsystemConfig) -> Option<Finding> {
    let demands = subsystem.demands;
    let may_use_it = |host: &&HostConfig| match &subsystem.access {
        Access::AnyHost => true,
        Access::Hosts(hosts) => hosts.contains(&host.nqn),
    };
    let is_able = |host: &HostConfig| {
        let makes_key = host.authentication.as_ref().is_some_and(|one| one.can_make_keys());
        let tls = host.tls.is_some() || (demands.concatenation && makes_key);
        (!demands.authentication || host.authentication.is_some()) && (!demands.tls || tls)
    };
    let demanded = match (demands.authentication, demands.tls) {
        (true, true) => "authentication and TLS",
        (true, false) => "authentication",
        (false, true) => "TLS",
        (false, false) => return None,
    };
    (!config.hosts.iter().filter(may_use_it).any(is_able)).then(|| Finding {
        what: format!("subsystem {}", subsystem.nqn),
        message: format!("it requires {demanded}, and none of its hosts has the keys for that in a [[host]]"),
        advice:
            "give hosts their keys: `ringfab-target host add NQN --with-keys --tls` makes them, and their lines"
                .into(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::key_file;
    use super::*;

    #[test]
    fn who_asks_for_keys_that_nobody_has_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let key = |name: &str, text: &str| key_file(&folder.path().join(name), text);
        let tls = key("tls", "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:");
        let dhchap = key("dhchap", "DHHC-1:00:ycnJycnJycnJycnJycnJycnJycnJycnJycnJycnJyclx132H:");
        let found = |listener: &str, demands: &str, host: &str| -> Vec<String> {
            let text = format!(
                "[[listener]]\naddress = \"127.0.0.1\"\ntransport = \"tcp\"\ntls = {listener:?}\n\
                 [[subsystem]]\nnqn = \"nqn.2026-11.org.ringfab:a\"\n\
                 allowed_hosts = [\"nqn.2026-11.org.ringfab:h\"]\n{demands}\n\
                 [[subsystem.namespace]]\nnull = \"1MiB\"\n{host}"
            );
            let config = Config::parse(&text, "test").unwrap_or_else(|error| panic!("{error}"));
            findings(&config)
                .into_iter()
                .map(|finding| format!("{}: {}", finding.what, finding.message))
                .collect()
        };
        let host = |keys: &str| format!("[[host]]\nnqn = \"nqn.2026-11.org.ringfab:h\"\n{keys}\n");
        let (both, none) = ("authentication = \"required\"\ntls = \"required\"", [""; 0]);
        assert_eq!(found("allowed", "", ""), none);
        let said = found("required", both, "");
        assert!(
            said.len() == 2 && said[0].starts_with("listener tcp 127.0.0.1:4420: it requires TLS"),
            "{said:?}"
        );
        assert!(said[1].contains("it requires authentication and TLS"), "{said:?}");
        assert_eq!(found("required", "", &host(&format!("tls_key = {tls}"))), none);
        assert_eq!(found("allowed", both, &host(&format!("dhchap_key = {dhchap}"))), none, "concatenation");
        let refused = format!("{both}\nconcatenation = \"refused\"");
        assert_eq!(found("allowed", &refused, &host(&format!("dhchap_key = {dhchap}"))).len(), 1);
        assert_eq!(found("allowed", both, &host(&format!("tls_key = {tls}"))).len(), 1);
        let other = host(&format!("tls_key = {tls}\ndhchap_key = {dhchap}"));
        assert_eq!(found("allowed", both, &other), none);
        assert_eq!(
            found("allowed", both, &other.replace("nqn.2026-11.org.ringfab:h", "nqn.2026-11.org.ringfab:i"))
                .len(),
            1,
            "it may not use it"
        );
    }
}
