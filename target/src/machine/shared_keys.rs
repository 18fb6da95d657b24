//! Keys that several have: each of them can be any other.

use super::Finding;
use crate::config::{Config, HostAuthentication, HostConfig};

/// What a host should have alone, and has not.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let hosts = config.hosts.iter().enumerate();
    hosts.flat_map(|(index, host)| of_host(host, &config.hosts[..index])).collect()
}

fn of_host(host: &HostConfig, earlier: &[HostConfig]) -> Vec<Finding> {
    let found = |message: String| Finding {
        what: format!("host {}", host.nqn),
        message,
        advice: "`ringfab-target host add --with-keys` makes keys that nobody else has".into(),
    };
    let both_ends = |own: &HostAuthentication| {
        own.controller_key.as_ref().is_some_and(|controller| controller.key == own.key.key)
    };
    let same = host.authentication.as_ref().is_some_and(both_ends).then(|| {
        found(
            "its dhchap_controller_key is its dhchap_key, so that whoever has it can be either end"
                .to_owned(),
        )
    });
    let has_same = |other: &&HostConfig| {
        let (own, theirs) = (host.authentication.as_ref(), other.authentication.as_ref());
        own.zip(theirs).is_some_and(|(own, theirs)| own.key.key == theirs.key.key)
    };
    let has_same_psk = |other: &&HostConfig| {
        host.tls.as_ref().zip(other.tls.as_ref()).is_some_and(|(own, theirs)| own.key.key == theirs.key.key)
    };
    let shared = |key: &str, other: &HostConfig| {
        found(format!("it has the {key} of {}, so that each of them can be the other", other.nqn))
    };
    let dhchap = earlier.iter().find(has_same).map(|other| shared("dhchap_key", other));
    let psk = earlier.iter().find(has_same_psk).map(|other| shared("tls_key", other));
    same.into_iter().chain(dhchap).chain(psk).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::key_file;
    use super::*;

    #[test]
    fn keys_that_two_have_are_named_and_no_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let key = |name: &str, text: &str| key_file(&folder.path().join(name), text);
        let new = || {
            use ringfab_auth::{DhchapKey, Hash, system_random};
            DhchapKey::generate(Hash::Sha256, None, &mut system_random()).to_text()
        };
        let [a, b, c] = ["a", "b", "c"].map(|name| key(name, new().expose()));
        let tls = key("tls", "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:");
        let found = |hosts: &[(&str, String)]| -> Vec<String> {
            let mut text = "[[listener]]\naddress = \"127.0.0.1\"\ntransport = \"tcp\"\ntls = \"allowed\"\n\
                [[subsystem]]\nnqn = \"nqn.2026-11.org.ringfab:a\"\nallow_any_host = true\n\
                [[subsystem.namespace]]\nnull = \"1MiB\"\n"
                .to_owned();
            for (name, keys) in hosts {
                text += &format!("[[host]]\nnqn = \"nqn.2026-11.org.ringfab:{name}\"\n{keys}\n");
            }
            let config = Config::parse(&text, "test").unwrap_or_else(|error| panic!("{error}"));
            findings(&config).into_iter().map(|one| format!("{}: {}", one.what, one.message)).collect()
        };
        let one = |key: &str| format!("dhchap_key = {key}");
        let both =
            |key: &str, controller: &str| format!("{}\ndhchap_controller_key = {controller}", one(key));
        // A target may be the same to all its hosts.
        let fine =
            [("a", both(&a, &c)), ("b", both(&b, &c) + &format!("\ntls_key = {tls}")), ("c", String::new())];
        assert_eq!(found(&fine), [""; 0]);
        let said = found(&[("a", both(&a, &a)), ("b", one(&a)), ("c", String::new())]);
        assert_eq!(
            said,
            [
                "host nqn.2026-11.org.ringfab:a: its dhchap_controller_key is its dhchap_key, so that whoever has it \
                 can be either end",
                "host nqn.2026-11.org.ringfab:b: it has the dhchap_key of nqn.2026-11.org.ringfab:a, so that each of \
                 them can be the other",
            ]
        );
        let tls = || format!("tls_key = {tls}");
        assert_eq!(
            found(&[("a", tls()), ("b", one(&a)), ("c", tls())]),
            [
                "host nqn.2026-11.org.ringfab:c: it has the tls_key of nqn.2026-11.org.ringfab:a, so that each of them \
                 can be the other"
            ]
        );
    }
}
