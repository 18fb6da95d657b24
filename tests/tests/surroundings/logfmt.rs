//! Lines of the log of both programs in a parser that is not ours.

use ringfab_tests::logfmt::{assert_whole, events, parsed, value};
use ringfab_tests::raw_tcp::HOST_NQN;

use super::refused::connect;
use super::*;

/// A host that would be more than a name, if it could.
const EVIL: &str = "nqn.2026-11.org.ringfab:a\" subsystem=\"forged\" b=c\\ d";

#[test]
fn every_line_of_a_target_that_refuses_and_limits_is_logfmt() {
    let port = free_port();
    let folder = tempfile::tempdir().expect("a folder");
    let image = tempfile::NamedTempFile::new().expect("a file");
    image.as_file().set_len(64 << 20).expect("a size");
    let subsystem = format!(
        "[[subsystem]]\nnqn = {NQN:?}\nallowed_hosts = [{HOST_NQN:?}]\n[[subsystem.namespace]]\npath = {:?}\n\
         block_bytes = 512\n[[subsystem.namespace]]\npath = \"/no such/\\\"disk\\\"\"\nnsid = 7\n",
        image.path()
    );
    // In KiB: the first 16 MiB may be written, and little memory locked.
    let limits = limited("ulimit -f 16384; ulimit -l 64; export RUST_LOG=debug");
    let wraps: Vec<&str> = limits.iter().map(String::as_str).collect();
    let command = serve_command(&folder, port, &wraps, &subsystem);
    let log = log_file(folder.path());
    let target = Service::start_command(folder, command, log);
    for (subsystem, host) in
        [(NQN, EVIL), (NQN, "nqn.2026-11.org.ringfab:b"), ("nqn.2026-11.org.ringfab:no", EVIL)]
    {
        connect(port, (0, 0xffff, 32), 9, subsystem, host);
    }
    let source = tempfile::NamedTempFile::new().expect("a file");
    source.as_file().set_len(4096).expect("a size");
    let source = source.path().display().to_string();
    let url = url(port);
    let write =
        ["write", &url, "--offset", "40MiB", "-i", &source, "--destroy-data", "1", "--length", "4096"];
    let host = ["--hostnqn", HOST_NQN, "--ctrl-loss-timeout", "5s"];
    let said = ringfab(&[&write[..], &host].concat(), Some("debug"));
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    let refused = ringfab(&["list", &url, "--ctrl-loss-timeout", "0s", "-vv"], None);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    await_line(&target, "command failed");
    ends_in_order_with(target, |log| {
        let ours =
            String::from_utf8_lossy(&said.stderr).into_owned() + &String::from_utf8_lossy(&refused.stderr);
        let lines = [events(&log), events(&ours)].concat();
        assert!(lines.len() > 20, "{lines:#?}");
        assert_whole(&lines);
        let Some(all) = parsed(&lines) else { return };
        let has = |name: &str, is: &str| all.iter().any(|pairs| value(pairs, name) == Some(is));
        assert!(has("host", EVIL), "the name of a host is whole: {log}");
        assert!(!has("subsystem", "forged"), "{log}");
        let reasons: Vec<&str> = all.iter().filter_map(|pairs| value(pairs, "reason")).collect();
        let refused = |reason: &&str| reason.starts_with("the host is not among the allowed_hosts");
        assert!(reasons.iter().any(refused), "{log}");
        assert!(has("status", "Capacity Exceeded (do not retry)"), "{lines:#?}");
    });
}

/// Ends a service in order, and looks at all that it has logged.
fn ends_in_order_with(mut service: Service, look: impl FnOnce(String)) {
    service.signal("TERM");
    let status = service.wait(PATIENCE);
    let log = service.log();
    assert!(status.success(), "{status}: {log}");
    look(log);
}
