//! Configurations, right and wrong.

use proptest::prelude::*;
use ringfab_auth::Derivation;

use super::*;

const MINIMAL: &str = include_str!("../../../configs/minimal.toml");
const FULL: &str = include_str!("../../../configs/full.toml");
/// What the packages and `make install` install.
const INSTALLED: &str = include_str!("../../../configs/target.toml");

/// All mistakes of a text as `line key`.
fn mistakes(text: &str) -> Vec<String> {
    match Config::parse(text, "test.toml") {
        Ok(_) => Vec::new(),
        Err(errors) => errors.errors().iter().map(|one| format!("{} {}", one.line, one.key)).collect(),
    }
}

/// The only mistake of a text.
fn mistake(text: &str) -> ConfigError {
    let errors = Config::parse(text, "test.toml").expect_err("a mistake");
    assert_eq!(errors.errors().len(), 1, "{errors}");
    errors.errors()[0].clone()
}

/// The minimal configuration with other lines in its namespace.
fn with_namespace(lines: &str) -> String {
    MINIMAL.replace("path = \"/srv/ringfab/disk.img\"", lines)
}

#[test]
fn a_log_filter_that_would_silence_everything_is_a_mistake() {
    for (filter, message) in
        [("loud", "names `loud`, which is neither a level"), ("ringfab_target=loud", "is not a log filter")]
    {
        let error = mistake(&format!("[target]\nlog = \"{filter}\"\n{MINIMAL}"));
        assert_eq!((error.line, error.key.as_str()), (2, "target.log"));
        assert!(error.message.starts_with(message), "{}", error.message);
    }
    assert!(
        Config::parse(&format!("[target]\nlog = \"warn,ringfab_fabric=off\"\n{MINIMAL}"), "test.toml")
            .is_ok()
    );
}

#[test]
fn the_minimal_example_has_all_defaults() {
    let config = Config::parse(MINIMAL, "minimal.toml").unwrap();
    assert_eq!(config.listeners[0].place(), "127.0.0.1:4420");
    assert_eq!(config.listeners[0].in_capsule_bytes, 8192);
    assert_eq!(config.listeners[0].queue_depth_max, 1024);
    assert_eq!(config.listeners[0].io_queues_max, 128);
    assert!(config.listeners[0].crc);
    assert_eq!(config.subsystems[0].access, Access::AnyHost);
    assert_eq!(config.subsystems[0].serial.len(), 20);
    let namespace = &config.subsystems[0].namespaces[0];
    assert_eq!((namespace.nsid, namespace.block_bytes), (1, 512));
    assert_eq!(namespace.source, Source::File { path: "/srv/ringfab/disk.img".into(), direct: true });
    assert!(!config.target.cores.is_empty());
}

#[test]
fn metrics_need_an_address_or_a_file() {
    let with = |lines: &str| format!("[metrics]\n{lines}\n{MINIMAL}");
    assert_eq!(Config::parse(MINIMAL, "none").unwrap().metrics, None);
    let metrics = Config::parse(&with("address = \"[::1]:9420\""), "address").unwrap().metrics.unwrap();
    assert_eq!(metrics.address, "[::1]:9420".parse().ok());
    assert_eq!((metrics.file, metrics.file_interval, metrics.queues), (None, Duration::from_secs(15), false));
    for interval in [1, 3600] {
        let text = with(&format!("file = \"/srv/x.prom\"\nfile_interval_s = {interval}\nqueues = true"));
        let config = Config::parse(&text, "file").unwrap();
        assert_eq!(config.metrics.as_ref().unwrap().file_interval.as_secs(), interval);
        assert_eq!(Config::parse(&config.to_toml(), "again").unwrap(), config);
    }
    for (lines, key, message) in [
        ("queues = true", "metrics.address", "is missing; metrics have an address, a file, or both"),
        ("address = \"9420\"", "metrics.address", "is \"9420\", but must be like \"127.0.0.1:9420\""),
        ("file = \"x\"", "metrics.file", "must be an absolute path"),
        ("file = \"/x\"\nfile_interval_s = 0", "metrics.file_interval_s", "must be from 1 to 3600"),
        ("file = \"/x\"\nfile_interval_s = 3601", "metrics.file_interval_s", "must be from 1 to 3600"),
    ] {
        let error = mistake(&with(lines));
        assert_eq!(error.key, key);
        assert!(error.message.contains(message), "{}", error.message);
    }
}

#[test]
fn a_listener_for_tcp_has_no_keys_of_rdma() {
    let listener =
        |lines| format!("{MINIMAL}\n[[listener]]\naddress = \"::1\"\ntransport = \"tcp\"\n{lines}\n");
    let config = Config::parse(&listener("in_capsule_bytes = 0"), "tcp").unwrap();
    assert_eq!(config.listeners[1].transport, Transport::Tcp);
    assert_eq!(Config::parse(&config.to_toml(), "again").unwrap(), config);
    let line = "dscp = 26\nuser_timeout_s = 30\nkeep_alive_s = 15";
    let config = Config::parse(&listener(line), "options").unwrap();
    assert_eq!(config.listeners[1].dscp, Some(26));
    assert_eq!(Config::parse(&config.to_toml(), "again").unwrap(), config);
    assert_eq!(mistakes(&listener("dscp = 64")).len(), 1);
    for line in ["provider = \"auto\"", "crc = true", "mpa_revision = 2"] {
        let key = line.split(' ').next().unwrap();
        let found = mistakes(&listener(line));
        assert!(found.len() == 1 && found[0].ends_with(&format!("listener[1].{key}")), "{found:?}");
    }
}

#[test]
fn tls_is_for_tcp_and_a_subsystem_that_requires_it_needs_a_listener_that_has_it() {
    let listener = |lines: &str| format!("{MINIMAL}\n[[listener]]\naddress = \"::1\"\n{lines}\n");
    for tls in ListenerTls::ALL {
        let text = listener(&format!("transport = \"tcp\"\ntls = \"{}\"", tls.name()));
        let config = Config::parse(&text, "tls").unwrap();
        assert_eq!((config.listeners[0].tls, config.listeners[1].tls), (ListenerTls::Off, tls));
        assert_eq!(Config::parse(&config.to_toml(), "again").unwrap(), config);
    }
    let error = mistake(&listener("tls = \"allowed\""));
    assert_eq!(
        (error.key.as_str(), error.message.as_str()),
        ("listener[1].tls", "is for transport = \"tcp\" only")
    );
    let error = mistake(&listener("transport = \"tcp\"\ntls = true"));
    assert_eq!(error.key, "listener[1].tls");
    let required = |listeners: &str| {
        let subsystem = "[[subsystem]]\nnqn = \"nqn.2024-01.org.example:s\"\nallow_any_host = true\n\
                         tls = \"required\"\n\
                         [[subsystem.namespace]]\nnull = \"1GiB\"\n";
        format!("{}\n{subsystem}", listener(listeners))
    };
    let config = Config::parse(&required("transport = \"tcp\"\ntls = \"allowed\""), "required").unwrap();
    assert!(config.subsystems[1].demands.tls && !config.subsystems[0].demands.tls);
    assert_eq!(Config::parse(&config.to_toml(), "again").unwrap(), config);
    for lines in ["transport = \"tcp\"", "transport = \"tcp\"\ntls = \"allowed\"\ndiscovery_only = true"] {
        let error = mistake(&required(lines));
        assert_eq!(error.key, "listener");
        assert!(error.message.ends_with("and nqn.2024-01.org.example:s requires TLS"), "{}", error.message);
    }
}

#[test]
fn a_host_has_a_key_for_tls_in_a_file() {
    use std::os::unix::fs::PermissionsExt as _;
    const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(file.path(), KEY).unwrap();
    let source = format!("tls_key = \"file:{}\"", file.path().display());
    let host = |lines: &str| format!("{MINIMAL}\n[[host]]\nnqn = \"nqn.2024-01.org.example:h\"\n{lines}\n");
    for (lines, derivation) in [
        ("", Derivation::Specified),
        ("tls_derivation = \"specified\"", Derivation::Specified),
        ("tls_derivation = \"libnvme-before-2025-07\"", Derivation::LibnvmeBefore202507),
    ] {
        let config = Config::parse(&host(&format!("{source}\n{lines}")), "key").unwrap();
        let tls = config.hosts[0].tls.as_ref().unwrap();
        assert_eq!((tls.key.key.to_text().expose(), tls.derivation), (KEY, derivation));
        let text = config.to_toml();
        assert!(!text.contains("NVMeTLSkey"));
        assert_eq!(Config::parse(&text, "again").unwrap(), config);
    }
    assert_eq!(mistake(&host("tls_derivation = \"specified\"")).message, "has no meaning without tls_key");
    assert_eq!(mistake(&host("tls_key = \"file:/nonexistent/key\"")).key, "host[0].tls_key");
    std::fs::write(file.path(), "DHHC-1:00:ycnJycnJycnJycnJycnJycnJycnJycnJycnJycnJyclx132H:").unwrap();
    let other = mistake(&host(&source)).message;
    assert!(
        other.contains("this is a key for authentication (DHHC-1)") && !other.contains("ycnJ"),
        "{other}"
    );
}

#[test]
fn an_unknown_hash_or_group_is_one_mistake_and_so_is_none_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    std::fs::write(&path, "DHHC-1:00:ycnJycnJycnJycnJycnJycnJycnJycnJycnJycnJyclx132H:").unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let host =
        format!("[[host]]\nnqn = \"nqn.2026-11.org.ringfab:h\"\ndhchap_key = \"file:{}\"\n", path.display());
    for (line, key, message) in [
        ("dhchap_hashes = [\"sha1\"]", "host[0].dhchap_hashes[0]", "must be one of sha256, sha384, sha512"),
        ("dhchap_groups = [\"modp2048\"]", "host[0].dhchap_groups[0]", "must be one of null, ffdhe2048"),
        ("dhchap_hashes = []", "host[0].dhchap_hashes", "is empty, so that no host could connect"),
    ] {
        let error = mistake(&format!("{MINIMAL}{host}{line}\n"));
        assert_eq!(error.key, key);
        assert!(error.message.contains(message), "{}", error.message);
    }
}

/// The minimal configuration with a host, and files with keys for it: `{a}`, `{b}` and `{t}`, `{u}` for TLS.
fn with_keys(folder: &std::path::Path, lines: &str) -> String {
    let mut lines = lines.to_owned();
    for (name, text) in [
        ("a", "DHHC-1:00:ycnJycnJycnJycnJycnJycnJycnJycnJycnJycnJyclx132H:"),
        ("b", "DHHC-1:00:Dw8PDw8PDw8PDw8PDw8PDw8PDw8PDw8PDw8PDw8PDw9Be+TM:"),
        ("t", "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:"),
    ] {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        lines = lines.replace(&format!("{{{name}}}"), &format!("file:{}", path.display()));
    }
    format!("{MINIMAL}[[host]]\nnqn = \"nqn.2026-11.org.ringfab:h\"\n{lines}\n")
}

#[test]
fn a_host_may_have_a_new_and_an_old_key() {
    let folder = tempfile::tempdir().unwrap();
    let lines = "dhchap_keys = [\"{b}\", \"{a}\"]\ndhchap_controller_key = \"{b}\"\ntls_keys = [\"{t}\"]\n\
                 old_keys_until = 2926-12-31T01:00:00+01:00";
    let config = Config::parse(&with_keys(folder.path(), lines), "test.toml").expect("a configuration");
    let host = &config.hosts[0];
    let keys = host.authentication.as_ref().expect("keys");
    let old = keys.old.as_ref().expect("an old key");
    assert!(keys.key.source.to_string().ends_with("/b") && old.key.source.to_string().ends_with("/a"));
    assert_eq!(old.controller_key, keys.controller_key, "there is one for both");
    assert!(host.tls.as_ref().is_some_and(|tls| tls.old.is_none()));
    let until = host.old_keys_until.expect("an end");
    let at = |seconds| std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    assert!(until.is_over(at(30_199_910_400)) && !until.is_over(at(30_199_910_399)));
    let over = lines.replace("2926-12-31T01", "2000-01-01T01");
    for (lines, count) in [(lines, 0), (&over, 1)] {
        let config = Config::parse(&with_keys(folder.path(), lines), "test.toml").expect("a configuration");
        let doubts = doubts::doubts(&config);
        let passed = doubts.iter().filter(|doubt| doubt.message.starts_with("old_keys_until has passed"));
        assert_eq!(passed.count(), count, "{doubts:?}");
    }
    // What is printed is read again as the same.
    let printed = config.to_toml();
    assert!(printed.contains("old_keys_until = 2926-12-31T01:00:00+01:00"), "{printed}");
    let again = Config::parse(&printed, "printed.toml").expect("what was printed");
    assert_eq!(again.hosts, config.hosts);
}

#[test]
fn mistakes_with_two_keys_are_told() {
    let folder = tempfile::tempdir().unwrap();
    for (lines, key, message) in [
        ("dhchap_key = \"{a}\"\ndhchap_keys = [\"{b}\"]", "dhchap_keys", "stands beside dhchap_key"),
        ("dhchap_keys = []", "dhchap_keys", "must have one key, or two"),
        ("dhchap_keys = [\"{a}\", \"{b}\", \"{a}\"]", "dhchap_keys", "must have one key, or two"),
        ("dhchap_keys = [\"{a}\", \"{a}\"]", "dhchap_keys[1]", "is the same key as the first one"),
        ("dhchap_keys = [\"{a}\", \"{t}\"]", "dhchap_keys[1]", "this is a key for TLS"),
        ("tls_keys = [\"{t}\", \"{t}\"]", "tls_keys[1]", "is the same key as the first one"),
        (
            "dhchap_key = \"{a}\"\ndhchap_controller_keys = [\"{a}\", \"{b}\"]",
            "dhchap_controller_keys",
            "write dhchap_keys = [new, old]",
        ),
        ("dhchap_controller_keys = [\"{a}\"]", "dhchap_controller_keys", "has no meaning without dhchap_key"),
        (
            "dhchap_key = \"{a}\"\nold_keys_until = 2026-12-31T00:00:00Z",
            "old_keys_until",
            "has no meaning without an old key",
        ),
        (
            "dhchap_keys = [\"{a}\", \"{b}\"]\nold_keys_until = 2026-12-31",
            "old_keys_until",
            "must be a time with its offset",
        ),
        (
            "dhchap_keys = [\"{a}\", \"{b}\"]\nold_keys_until = \"tomorrow\"",
            "old_keys_until",
            "must be a time with its offset",
        ),
    ] {
        let error = mistake(&with_keys(folder.path(), lines));
        assert_eq!(error.key, format!("host[0].{key}"), "{lines}");
        assert!(error.message.contains(message), "{lines}: {}", error.message);
    }
}

#[test]
fn an_unknown_key_is_told_with_each_known_one_once() {
    let listener = "[[listener]]\naddress = \"::1\"\ntransport = \"tcp\"\ncolour = \"red\"\n";
    let message = mistake(&format!("{MINIMAL}\n{listener}")).to_string();
    let (_, known) = message.split_once("known here: ").expect("what is known");
    let known: Vec<&str> = known.split(", ").collect();
    assert!(known.is_sorted_by(|one, next| one < next), "{known:?}");
}

#[test]
fn the_full_example_shows_the_defaults_it_claims() {
    let full = Config::parse(FULL, "full.toml").unwrap();
    let minimal = Config::parse(MINIMAL, "minimal.toml").unwrap();
    assert_eq!(full.memory, minimal.memory);
    assert_eq!(full.target.state_dir, minimal.target.state_dir);
    assert_eq!(full.target.spin, minimal.target.spin);
    assert_eq!(full.target.drain_timeout, minimal.target.drain_timeout);
    let (ports, connect_ports) = (Vec::new(), Vec::new());
    let confinement = ConfinementConfig { paths: None, ports, connect_ports, ..full.confinement };
    assert_eq!(confinement, minimal.confinement);
    let mut listener = full.listeners[0].clone();
    listener.address = minimal.listeners[0].address.clone();
    listener.congestion = None;
    assert_eq!(listener, minimal.listeners[0]);
    assert_eq!(full.subsystems[0].namespaces[1].nsid, 2);
    assert_eq!(full.subsystems[1].namespaces[3].source, Source::Null(1 << 40));
}

#[test]
fn what_is_installed_serves_other_machines_and_lets_nobody_in_until_one_command_does() {
    let mut config = Config::parse(INSTALLED, "target.toml").unwrap();
    let [listener] = config.listeners.as_slice() else { panic!("one listener") };
    assert_eq!((listener.place().as_str(), listener.transport), ("0.0.0.0:4420", Transport::Tcp));
    assert_eq!(config.subsystems[0].access, Access::Hosts(std::collections::BTreeSet::new()));
    let command = "ringfab-target host allow HOSTNQN";
    let doubts = doubts(&config);
    assert!(doubts.len() == 1 && doubts[0].to_string().contains(&format!("`{command}`")), "{doubts:?}");
    assert!(INSTALLED.contains(&format!("\n#   {command}\n")));
    // What the command changes can be saved, and nothing else changes.
    let host = "nqn.2026-11.org.example:host-1".to_owned();
    config.subsystems[0].access = Access::Hosts(std::collections::BTreeSet::from([host.clone()]));
    let saved = edit::edited(INSTALLED, &config).unwrap();
    assert_eq!(saved, INSTALLED.replace("allowed_hosts = []", &format!("allowed_hosts = [{host:?}]")));
}

#[test]
fn the_confinement_is_whole_unless_a_part_is_turned_off() {
    let of = |lines: &str| format!("[confinement]\n{lines}\n{MINIMAL}");
    let parsed = |lines: &str| Config::parse(&of(lines), "test.toml").unwrap().confinement;
    assert_eq!(parsed("").off().count(), 0);
    let off = parsed("files = false\nsystem_calls = false\npaths = []\nports = [1, 65535]");
    assert_eq!(off.off().collect::<Vec<_>>(), ["files", "system_calls"]);
    assert_eq!((off.paths, off.ports), (Some(Vec::new()), vec![1, 65535]));
    for (lines, key) in [
        ("paths = [\"/a\", \"b\"]", "2 confinement.paths[1]"),
        ("paths = [\"/\"]", "2 confinement.paths[0]"),
        ("ports = [0]", "2 confinement.ports"),
        ("ports = 4420", "2 confinement.ports"),
        ("network = 1", "2 confinement.network"),
    ] {
        assert_eq!(mistakes(&of(lines)), [key], "{lines}");
    }
}

#[test]
fn a_resolved_configuration_parses_to_itself() {
    for text in [MINIMAL, FULL] {
        let config = Config::parse(text, "example").unwrap();
        let resolved = config.to_toml();
        assert_eq!(Config::parse(&resolved, "resolved").unwrap(), config, "{resolved}");
    }
}

#[test]
fn all_mistakes_are_reported_at_once_with_line_column_and_key() {
    let text = r#"
[target]
spin_us = "fast"
colour = "red"

[[listener]]
address = "nowhere"
provider = "rxe"

[[subsystem]]
nqn = "disk"

[[subsystem.namespace]]
nsid = 0
memory = 1000
"#;
    assert_eq!(
        mistakes(text),
        [
            "3 target.spin_us",
            "4 target.colour",
            "7 listener[0].address",
            "8 listener[0].provider",
            "10 subsystem[0].allowed_hosts",
            "11 subsystem[0].nqn",
            "14 subsystem[0].namespace[0].nsid",
            "15 subsystem[0].namespace[0].memory",
        ]
    );
    let shown = Config::parse(text, "test.toml").unwrap_err().to_string();
    assert_eq!(shown.lines().count(), 8);
    assert!(shown.starts_with("test.toml:3:11: target.spin_us: must be an integer, not string"), "{shown}");
}

#[test]
fn a_mistake_of_the_syntax_has_its_line() {
    let error = Config::parse("[target]\nspin_us = = 3\n", "test.toml").unwrap_err();
    assert_eq!(error.errors()[0].line, 2, "{error}");
    assert_eq!(error.errors()[0].key, "");
}

#[test]
fn a_link_local_listener_has_its_interface() {
    let with = |address: &str| Config::parse(&MINIMAL.replace("127.0.0.1", address), "test.toml");
    for address in ["fe80::1%eth0", "[fe80::1%eth0]"] {
        let config = with(address).expect("valid");
        assert_eq!(config.listeners[0].place(), "[fe80::1%eth0]:4420");
        assert!(config.to_toml().contains("address = \"fe80::1%eth0\""));
    }
    let missing = with("fe80::1").expect_err("which link is it?").to_string();
    assert!(missing.contains("which is link-local, so that it needs the name of an interface"), "{missing}");
    let global = with("fd00::1%eth0").expect_err("every link has it").to_string();
    assert!(global.contains("which names an interface, which only a link-local"), "{global}");
}

/// A listener, a subsystem and its namespace, as they are right.
fn right_parts() -> (&'static str, String) {
    let namespace = "[[subsystem.namespace]]\nmemory = \"4MiB\"\n";
    let subsystem =
        format!("[[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\nallow_any_host = true\n{namespace}");
    ("[[listener]]\naddress = \"127.0.0.1\"\n", subsystem)
}

/// Each text has one mistake, and what is said about it is one line.
fn check_mistakes(mistakes: &[(String, &str)]) {
    for (text, said) in mistakes {
        let error = Config::parse(text, "test.toml").expect_err("a mistake").to_string();
        let colour = usize::from(text.contains("colour"));
        assert_eq!(error.lines().count(), 1 + colour, "{text}\n{error}");
        assert!(error.contains(said), "{said}\n{error}");
    }
}

#[test]
fn one_mistake_in_a_listener_is_one_line() {
    let (listener, subsystem) = right_parts();
    check_mistakes(&[
        (
            format!("[[listener]]\nadress = \"::1\"\n{subsystem}"),
            "2:1: listener[0].adress: is not a known key; did you mean address?",
        ),
        (
            format!("[listener]\naddress = \"::1\"\n{subsystem}"),
            "1:1: listener: must be a list of tables: [[listener]]",
        ),
        (
            format!("[[Listeners]]\naddress = \"::1\"\n{subsystem}"),
            "1:3: Listeners: is not a known key; did you mean listener?",
        ),
        (
            format!("listener = []\n{subsystem}"),
            "1:1: listener: is empty; write at least one [[listener]] with an address",
        ),
        (
            format!("[[listener]]\naddress = \"::1\"\ntransport = \"tcp\"\nprovider = 5\n{subsystem}"),
            "4:12: listener[0].provider: is for transport",
        ),
        (format!("{listener}port = [0\n{subsystem}"), "4:1: "),
    ]);
}

#[test]
fn one_mistake_in_a_subsystem_is_one_line() {
    let (listener, subsystem) = right_parts();
    let namespace = "[[subsystem.namespace]]\nmemory = \"4MiB\"\n";
    let page_cache = "direct = false\nallow_page_cache = \"yes\"\n";
    // With one thing written in another way.
    let with = |right, wrong| listener.to_owned() + &subsystem.replace(right, wrong);
    check_mistakes(&[
        (with("nqn =", "nnq ="), "4:1: subsystem[0].nnq: is not a known key; did you mean nqn?"),
        (
            with("allow_any_host", "allow_any"),
            "5:1: subsystem[0].allow_any: is not a known key; did you mean allow_any_host?",
        ),
        (with("true", "\"yes\""), "5:18: subsystem[0].allow_any_host: must be true or false, not string"),
        (
            with("true", "false"),
            "3:1: subsystem[0].allowed_hosts: is missing; list the hosts' NQNs, or write allow_any_host = true",
        ),
        (
            with("[[subsystem.namespace]]", "[subsystem.namespace]"),
            "6:1: subsystem[0].namespace: must be a list of tables: [[subsystem.namespace]]",
        ),
        (
            with("memory", "Memory"),
            "7:1: subsystem[0].namespace[0].Memory: is not a known key; did you mean memory?",
        ),
        (with("memory", "colour"), "6:1: subsystem[0].namespace[0].path: is missing"),
        (
            format!("{listener}{subsystem}") + "nsid = \"1\"\n" + namespace,
            "8:8: subsystem[0].namespace[0].nsid: must be an integer, not string",
        ),
        (
            with("memory = \"4MiB\"", "path = \"/a\"") + page_cache,
            "9:20: subsystem[0].namespace[0].allow_page_cache: must be true or false, not string",
        ),
    ]);
}

#[test]
fn an_empty_file_says_what_is_missing() {
    assert_eq!(mistakes(""), ["1 listener", "1 subsystem"]);
}

#[test]
fn what_must_be_unique_is_found_with_the_line_of_the_first() {
    let text = format!(
        "{}{}",
        MINIMAL,
        r#"
[[listener]]
address = "127.0.0.1"

[[subsystem]]
nqn = "nqn.2024-01.org.example:disk"
allow_any_host = true
[[subsystem.namespace]]
path = "/srv//ringfab/./disk.img"
[[subsystem.namespace]]
nsid = 1
null = 4096
"#
    );
    assert_eq!(
        mistakes(&text),
        [
            "15 listener[1].address",
            "18 subsystem[1].nqn",
            "21 subsystem[1].namespace[0].path",
            "23 subsystem[1].namespace[1].nsid"
        ]
    );
    let shown = Config::parse(&text, "test.toml").unwrap_err().to_string();
    assert!(shown.contains("is the same as in line 5"), "{shown}");
}

#[test]
fn the_same_serial_twice_is_a_mistake() {
    let one = "[[subsystem]]\nserial = \"A\"\nallow_any_host = true\n[[subsystem.namespace]]\nnull = 512\n";
    let text = format!(
        "[[listener]]\naddress = \"::1\"\n{}{}",
        one.replace("serial", "nqn = \"nqn.2024-01.org.e:a\"\nserial"),
        one.replace("serial", "nqn = \"nqn.2024-01.org.e:b\"\nserial")
    );
    assert_eq!(mistake(&text).key, "subsystem[1].serial");
}

#[test]
fn listeners_that_cannot_be_there_together_are_a_mistake() {
    let with = |first: &str, second: &str, more: &str| {
        let rest = MINIMAL.replace("[[listener]]\naddress = \"127.0.0.1\"\n", "");
        assert_ne!(rest, MINIMAL);
        mistakes(&format!(
            "[[listener]]\naddress = {first}\n[[listener]]\naddress = {second}\n{more}\n{rest}"
        ))
    };
    let (tcp, verbs) = ("\ntransport = \"tcp\"", "\nprovider = \"verbs\"");
    for (first, second, mistake) in [
        (format!("\"127.0.0.1\"{tcp}"), format!("\"0.0.0.0\"{tcp}"), true),
        ("\"0.0.0.0\"".to_owned(), "\"127.0.0.1\"".to_owned(), true),
        (format!("\"::\"{tcp}"), "\"::1\"\nprovider = \"iwarp\"".to_owned(), true),
        (format!("\"127.0.0.1\"{tcp}"), "\"127.0.0.1\"".to_owned(), true),
        // A device's port is not the kernel's.
        (format!("\"0.0.0.0\"{tcp}"), format!("\"127.0.0.1\"{verbs}"), false),
        (format!("\"0.0.0.0\"{tcp}"), "\"127.0.0.1\"\nport = 4421".to_owned(), false),
    ] {
        let found = with(&first, &second, "");
        let line = 3 + first.matches('\n').count() + 1;
        let expected = if mistake { vec![format!("{line} listener[1].address")] } else { Vec::new() };
        assert_eq!(found, expected, "{first} and {second}");
    }
    let metrics = |address: &str| format!("[metrics]\naddress = {address:?}");
    let (two, port) = (format!("\"127.0.0.2\"{tcp}"), "\"127.0.0.3\"\nport = 9420");
    for (address, is_free) in [("127.0.0.2:4420", false), ("0.0.0.0:4420", false), ("127.0.0.1:4420", true)] {
        let found = with(&two, port, &metrics(address));
        let expected = if is_free { vec![] } else { vec!["8 metrics.address".to_owned()] };
        assert_eq!(found, expected, "{address}");
    }
}

#[test]
fn a_socket_has_a_path_that_the_kernel_takes() {
    let with = |path: &str| mistakes(&format!("[control]\nsocket = {path:?}\n{MINIMAL}"));
    assert_eq!(with(&format!("/{}", "x".repeat(106))), [""; 0]);
    assert_eq!(with(&format!("/{}", "x".repeat(107))), ["2 control.socket"]);
    let text = with_namespace("path = \"/srv/a\\u0000b\"");
    assert!(mistake(&text).message.contains("must be a path without NUL"), "{}", mistake(&text).message);
}

#[test]
fn free_ports_may_be_asked_for_twice() {
    let text = format!(
        "{MINIMAL}\n[[listener]]\naddress = \"::1\"\nport = 0\n[[listener]]\naddress = \"::1\"\nport = 0\n"
    );
    assert_eq!(mistakes(&text), [""; 0]);
}

#[test]
fn who_may_connect_has_to_be_said_once() {
    let none = MINIMAL.replace("allow_any_host = true", "");
    assert!(mistake(&none).message.contains("allow_any_host = true"));
    let no = MINIMAL.replace("allow_any_host = true", "allow_any_host = false");
    assert_eq!(mistake(&no).key, "subsystem[0].allowed_hosts");
    let both = MINIMAL
        .replace("allow_any_host = true", "allow_any_host = true\nallowed_hosts = [\"nqn.2024-01.org.e:h\"]");
    assert_eq!(mistake(&both).key, "subsystem[0].allow_any_host");
    let empty = MINIMAL.replace("allow_any_host = true", "allowed_hosts = []");
    let empty = Config::parse(&empty, "test.toml").expect("it waits for its first host");
    assert_eq!(empty.subsystems[0].access, Access::Hosts(std::collections::BTreeSet::new()));
    let wrong =
        MINIMAL.replace("allow_any_host = true", "allowed_hosts = [\"nqn.2024-01.org.e:h\", \"ho\\nst\"]");
    assert_eq!(mistake(&wrong).key, "subsystem[0].allowed_hosts[1]");
}

#[test]
fn the_page_cache_needs_two_keys() {
    let path = "path = \"/srv/disk\"\n";
    assert_eq!(
        mistake(&with_namespace(&format!("{path}direct = false"))).key,
        "subsystem[0].namespace[0].direct"
    );
    assert_eq!(mistakes(&with_namespace(&format!("{path}direct = false\nallow_page_cache = true"))), [""; 0]);
    assert_eq!(mistakes(&with_namespace(&format!("{path}allow_page_cache = true"))), [""; 0]);
    assert_eq!(mistake(&with_namespace("null = 512\ndirect = true")).key, "subsystem[0].namespace[0].direct");
}

#[test]
fn a_namespace_has_exactly_one_source_of_whole_blocks() {
    assert_eq!(mistake(&with_namespace("")).key, "subsystem[0].namespace[0].path");
    assert_eq!(mistake(&with_namespace("path = \"/a\"\nnull = 512")).key, "subsystem[0].namespace[0].null");
    assert_eq!(mistake(&with_namespace("path = \"disk.img\"")).key, "subsystem[0].namespace[0].path");
    assert_eq!(mistakes(&with_namespace("memory = 4096\nblock_bytes = 4096")), [""; 0]);
    assert_eq!(
        mistake(&with_namespace("memory = 4608\nblock_bytes = 4096")).key,
        "subsystem[0].namespace[0].memory"
    );
    assert_eq!(mistake(&with_namespace("null = 0")).key, "subsystem[0].namespace[0].null");
    assert_eq!(mistake(&with_namespace("null = \"8192PiB\"")).key, "subsystem[0].namespace[0].null");
    assert_eq!(
        mistake(&with_namespace("null = 512\nblock_bytes = 520")).key,
        "subsystem[0].namespace[0].block_bytes"
    );
}

#[test]
fn identifiers_are_sixteen_bytes_not_zero_and_used_once() {
    let good = "null = 512\nuuid = \"6c2a4c0e-31f5-4c5e-8f5e-6f7f1d8f0a01\"";
    assert_eq!(mistakes(&with_namespace(good)), [""; 0]);
    let zero = "null = 512\nnguid = \"00000000000000000000000000000000\"";
    assert_eq!(mistake(&with_namespace(zero)).key, "subsystem[0].namespace[0].nguid");
    let short = "null = 512\nnguid = \"00ff\"";
    assert_eq!(mistake(&with_namespace(short)).key, "subsystem[0].namespace[0].nguid");
    let twice = "null = 512\nnguid = \"6c2a4c0e31f54c5e8f5e6f7f1d8f0a01\"\n\
                 uuid = \"6c2a4c0e-31f5-4c5e-8f5e-6f7f1d8f0a01\"";
    assert_eq!(mistake(&with_namespace(twice)).line, 13);
}

#[test]
fn numbers_are_bounded_from_both_sides() {
    for (key, good, bad) in [
        ("queue_depth_max", ["32", "1024"], ["31", "1025"]),
        ("io_queues_max", ["1", "128"], ["0", "129"]),
        ("mpa_revision", ["1", "2"], ["0", "3"]),
        ("in_capsule_bytes", ["0", "65536"], ["8", "65552"]),
        ("port", ["0", "65535"], ["-1", "65536"]),
    ] {
        let set = |value: &str| {
            MINIMAL.replace("address = \"127.0.0.1\"", &format!("address = \"127.0.0.1\"\n{key} = {value}"))
        };
        good.iter().for_each(|value| assert_eq!(mistakes(&set(value)), [""; 0], "{key} = {value}"));
        bad.iter().for_each(|value| assert_eq!(mistake(&set(value)).line, 6, "{key} = {value}"));
    }
}

#[test]
fn a_number_that_is_too_large_for_any_type_is_told_the_range() {
    for number in ["18446744073709551615", "9223372036854775808", "99999999999999999999999999999999999999999"]
    {
        let text =
            MINIMAL.replace("address = \"127.0.0.1\"", &format!("address = \"127.0.0.1\"\nport = {number}"));
        let error = mistake(&text);
        assert_eq!(error.message, format!("is {number}, but must be from 0 to 65535"));
    }
    let text = with_namespace("null = 99999999999999999999999999999999999999999");
    assert!(mistake(&text).message.contains("999, but must be a size such as"), "{}", mistake(&text));
    let text = with_namespace("null = 512\nlimits = { read_iops = 18446744073709551615 }");
    assert!(mistake(&text).message.starts_with("is 18446744073709551615, but must be from "));
    let error = mistake(&format!("[target]\ncores = 18446744073709551615\n{MINIMAL}"));
    assert!(error.message.starts_with("is 18446744073709551615, but this process may run on"), "{error}");
}

#[test]
fn the_processors_are_a_number_or_a_list_of_available_ones() {
    let available = available_cores();
    let first = available[0];
    let set = |value: &str| format!("[target]\ncores = {value}\n{MINIMAL}");
    assert_eq!(Config::parse(&set("1"), "t").unwrap().target.cores, [first]);
    assert_eq!(Config::parse(&set(&format!("[{first}]")), "t").unwrap().target.cores, [first]);
    for bad in ["0", "100000", "[]", "\"all\"", "[1.5]", "[-1]", "[100000]", &format!("[{first}, {first}]")] {
        assert_eq!(mistake(&set(bad)).key, "target.cores", "{bad}");
    }
}

#[test]
fn a_file_that_cannot_be_read_says_which() {
    let error = Config::load(Path::new("/nonexistent/target.toml")).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/target.toml"), "{error}");
}

#[test]
fn the_largest_command_finds_buffers_for_all_of_it() {
    let memory = |count: u32| format!("{MINIMAL}\n[memory]\nlarge_buffers = {count}\n");
    assert_eq!(mistake(&memory(31)).key, "memory.large_buffers");
    assert_eq!(mistakes(&memory(32)), Vec::<String>::new());
}

proptest! {
    #[test]
    fn a_damaged_configuration_is_accepted_or_refused_with_places_in_it(
        edits in prop::collection::vec((any::<prop::sample::Index>(), ".{0,3}"), 1..6),
    ) {
        let mut characters: Vec<String> = FULL.chars().map(String::from).collect();
        for (place, text) in edits {
            let index = place.index(characters.len());
            characters[index] = text;
        }
        let text = characters.concat();
        match Config::parse(&text, "test.toml") {
            Ok(config) => {
                let again = Config::parse(&config.to_toml(), "again.toml").expect("what it writes, it reads");
                prop_assert_eq!(again, config);
            }
            Err(errors) => {
                prop_assert!(!errors.errors().is_empty());
                let lines = text.lines().count().max(1);
                prop_assert!(errors.errors().iter().all(|one| one.line <= lines + 1));
            }
        }
    }
}

#[test]
fn a_namespace_may_be_for_some_hosts_only() {
    let some = "null = \"1MiB\"\nhosts = [\"nqn.2024-01.org.example:b\", \"nqn.2024-01.org.example:a\"]";
    let config = Config::parse(&with_namespace(some), "some").unwrap();
    let hosts = ["nqn.2024-01.org.example:a", "nqn.2024-01.org.example:b"].map(str::to_owned);
    assert_eq!(config.subsystems[0].namespaces[0].hosts, Access::Hosts(hosts.into()));
    assert_eq!(Config::parse(&config.to_toml(), "again").unwrap(), config);
    let all = Config::parse(&with_namespace("null = \"1MiB\""), "all").unwrap();
    assert_eq!(all.subsystems[0].namespaces[0].hosts, Access::AnyHost);
    let wrong = |hosts: &str| mistake(&with_namespace(&format!("null = \"1MiB\"\nhosts = {hosts}"))).key;
    assert_eq!(wrong("[]"), "subsystem[0].namespace[0].hosts");
    assert_eq!(wrong("[\"\"]"), "subsystem[0].namespace[0].hosts[0]");
    assert_eq!(wrong("\"nqn.2024-01.org.example:a\""), "subsystem[0].namespace[0].hosts");
    let host = "\"nqn.2024-01.org.example:a\"";
    assert_eq!(wrong(&format!("[{host}, {host}]")), "subsystem[0].namespace[0].hosts[1]");
}

#[test]
fn discovery_has_a_name_of_its_own_and_referrals() {
    let with = |lines: &str| format!("{lines}\n{MINIMAL}");
    assert_eq!(Config::parse(MINIMAL, "none").unwrap().discovery, DiscoveryConfig::default());
    let text = "[discovery]\nnqn = \"nqn.2024-01.org.example:discovery\"\n\
                [[discovery.referral]]\naddress = \"192.0.2.7\"\n[[discovery.referral]]\naddress = \"[2001:db8::7]\"\n\
                port = 4420\ntransport = \"rdma\"\nnqn = \"nqn.2024-01.org.example:other\"";
    let config = Config::parse(&with(text), "discovery").unwrap();
    let DiscoveryConfig { nqn, requires_authentication, referrals, mdns } = &config.discovery;
    assert!(!mdns && !requires_authentication);
    assert_eq!(nqn.as_deref(), Some("nqn.2024-01.org.example:discovery"));
    let places: Vec<_> = referrals.iter().map(Referral::place).collect();
    assert_eq!(places, ["tcp 192.0.2.7:8009", "rdma [2001:db8::7]:4420"]);
    assert_eq!(Config::parse(&config.to_toml(), "again").unwrap(), config);
    let told = Config::parse(&with("[discovery]\nmdns = true"), "mdns").unwrap();
    assert!(told.discovery.mdns && Config::parse(&told.to_toml(), "again").unwrap() == told);
    let closed = Config::parse(&with("[discovery]\nauthentication = \"required\""), "closed").unwrap();
    assert!(closed.discovery.requires_authentication);
    assert_eq!(Config::parse(&closed.to_toml(), "again").unwrap(), closed);
    let wrong = |lines: &str| mistake(&with(lines)).key;
    assert_eq!(wrong("[discovery]\nmdns = 1"), "discovery.mdns");
    assert_eq!(wrong("[discovery]\nnqn = \"nqn.2014-08.org.nvmexpress.discovery\""), "discovery.nqn");
    assert_eq!(wrong("[discovery]\nnqn = \"here\""), "discovery.nqn");
    let referral = |lines: &str| wrong(&format!("[[discovery.referral]]\n{lines}"));
    assert_eq!(referral("port = 8009"), "discovery.referral[0].address");
    assert_eq!(referral("address = \"0.0.0.0\""), "discovery.referral[0].address");
    assert_eq!(referral("address = \"elsewhere\""), "discovery.referral[0].address");
    assert_eq!(referral("address = \"::7\"\nport = 0"), "discovery.referral[0].port");
    let twice = "address = \"::7\"\n[[discovery.referral]]\naddress = \"::7\"";
    assert_eq!(referral(twice), "discovery.referral[1].address");
}

#[test]
fn namespaces_and_hosts_may_have_limits() {
    let lines = "null = \"1GiB\"\nlimits = { read_iops = 1000, write_bytes_per_s = \"10MiB\", burst_ms = 200 }\n\
                 host_limits = [{ host = \"nqn.2024-01.org.example:h\", write_iops = 7 }]";
    let host = "[[host]]\nnqn = \"nqn.2024-01.org.example:h\"\nshares = 300\nlimits = { read_iops = 9 }\n";
    let config = Config::parse(&format!("{}\n{host}", with_namespace(lines)), "test.toml").unwrap();
    let limits = &config.subsystems[0].namespaces[0].limits;
    let all = RateLimits {
        read_iops: Some(1000),
        write_bytes_per_s: Some(10 << 20),
        burst: Duration::from_millis(200),
        ..RateLimits::default()
    };
    assert_eq!(limits.all, all);
    let of_host = RateLimits { write_iops: Some(7), ..RateLimits::default() };
    assert_eq!(limits.hosts, [("nqn.2024-01.org.example:h".to_owned(), of_host)].into());
    let known = config.host("nqn.2024-01.org.example:h");
    assert_eq!((known.shares, known.limits.read_iops), (300, Some(9)));
    assert!(config.host("nqn.2024-01.org.example:g").is_default());
    assert_eq!(Config::parse(&config.to_toml(), "resolved").unwrap(), config);
}

#[test]
fn limits_that_mean_nothing_are_mistakes() {
    let of_namespace = |limits: &str| mistake(&with_namespace(&format!("null = \"1GiB\"\n{limits}"))).message;
    assert!(of_namespace("limits = { read_iops = 0 }").starts_with("is 0, but must be from 1 to"));
    assert!(
        of_namespace("limits = { read_bytes_per_s = \"0\" }")
            .starts_with("is 0 bytes, but must be from 1 to")
    );
    assert_eq!(of_namespace("limits = { burst_ms = 7 }"), "has no meaning without a limit");
    assert!(of_namespace("limits = { read_iop = 7 }").ends_with("did you mean read_iops?"));
    let nobody = of_namespace("host_limits = [{ host = \"nqn.2024-01.org.example:h\" }]");
    assert_eq!(nobody, "is missing; write a limit");
    let twice = "{ host = \"nqn.2024-01.org.example:h\", read_iops = 1 }";
    assert!(of_namespace(&format!("host_limits = [{twice}, {twice}]")).starts_with("is the same as in line"));
    let host = mistake(&format!("{MINIMAL}\n[[host]]\nnqn = \"nqn.2024-01.org.example:h\"\nshares = 0\n"));
    assert_eq!(host.key, "host[0].shares");
    let name = mistake(&format!("{MINIMAL}\n[[host]]\nshares = 7\n"));
    assert_eq!(name.message, "is missing; write the NQN of the host");
}

#[test]
fn the_number_of_a_namespace_with_a_mistake_is_taken() {
    let namespaces = "[[subsystem.namespace]]\nnul = \"1MiB\"\n[[subsystem.namespace]]\nmemory = \"1MiB\"\n\
                      [[subsystem.namespace]]\nmemory = 7\n[[subsystem.namespace]]\nmemory = \"2MiB\"\n";
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2026-11.org.ringfab:a\"\n\
         allow_any_host = true\n{namespaces}"
    );
    let found = mistakes(&text);
    assert!(found.iter().all(|one| !one.ends_with(".nsid")), "{found:?}");
    assert!(found.iter().any(|one| one.ends_with("namespace[0].nul")), "{found:?}");
    assert!(found.iter().any(|one| one.ends_with("namespace[2].memory")), "{found:?}");
}

#[test]
fn who_only_looks_need_not_see_the_credentials_of_the_service() {
    let text = "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2026-11.org.ringfab:a\"\n\
                allow_any_host = true\n[[subsystem.namespace]]\nnull = \"1MiB\"\n\
                [[host]]\nnqn = \"nqn.2026-11.org.ringfab:h\"\ndhchap_key = \"credential:ringfab-test-none\"\n\
                tls_key = \"credential:ringfab-test-none\"\n";
    assert!(std::env::var_os("CREDENTIALS_DIRECTORY").is_none(), "tests are no service");
    let refused = Config::parse(text, "test").expect_err("whoever serves it needs the keys").to_string();
    assert_eq!(refused.matches("is a credential").count(), 2, "{refused}");
    let seen = Config::look_at_text(text, "test").expect("the file is well");
    assert_eq!(seen.hosts[0].unseen_credentials().count(), 2);
    assert!(seen.to_toml().contains("dhchap_key = \"credential:ringfab-test-none\""));
    let other = text.replacen("credential:", "file:/nonexistent/", 1);
    assert!(
        Config::look_at_text(&other, "test")
            .expect_err("a file is there or not")
            .to_string()
            .contains("dhchap_key")
    );
}
