//! Who is refused, and what fails, is told.

use ringfab_auth::{DhchapKey, Hash, system_random};
use ringfab_spec::sqe::{ConnectData, PropertySize};
use ringfab_spec::tcp::Digests;
use ringfab_spec::{IntoBytes as _, Nqn, SubmissionEntry};
use ringfab_tests::raw_tcp::{self, HOST_NQN, RawTcp, capsule};

use super::*;

const OTHER_NQN: &str = "nqn.2026-11.org.ringfab:other";

/// One subsystem for our host, one for another.
fn two_subsystems(port: u16) -> Service {
    let memory = "[[subsystem.namespace]]\nmemory = \"1MiB\"\n";
    let subsystems = format!(
        "[[subsystem]]\nnqn = {OTHER_NQN:?}\nallowed_hosts = [\"nqn.2026-11.org.ringfab:nobody\"]\n{memory}\
         [[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n"
    );
    target(port, &subsystems)
}

fn address(port: u16) -> std::net::SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// Connects a queue (identifier, controller, entries), with a host identifier of so many equal bytes, and returns the
/// status.
pub(super) fn connect(port: u16, queue: (u16, u16, u16), id: u8, subsystem: &str, host: &str) -> String {
    let (qid, controller, entries) = queue;
    let digests = Digests::default();
    let mut raw = RawTcp::initialize(address(port), digests);
    let names = (Nqn::new(subsystem).expect("a name"), Nqn::new(host).expect("a name"));
    let data = ConnectData::new([id; 16], controller, names.0, names.1);
    let mut sqe = SubmissionEntry::connect(0, qid, 2, 0, false);
    sqe.as_mut_bytes()[44..46].copy_from_slice(&(entries - 1).to_le_bytes());
    raw.say(&capsule(digests, sqe, data.as_bytes()));
    raw.response().status().to_string()
}

#[test]
fn a_refused_connect_is_one_line_with_host_subsystem_address_and_reason() {
    let port = free_port();
    let target = two_subsystems(port);
    let admin = (0, 0xffff, 32);
    let unknown = "nqn.2026-11.org.ringfab:unknown";
    connect(port, admin, 9, unknown, "nqn.2026-11.org.ringfab:a");
    connect(port, admin, 9, OTHER_NQN, "nqn.2026-11.org.ringfab:b");
    connect(port, (0, 0xffff, 1), 9, NQN, "nqn.2026-11.org.ringfab:c");
    let (_admin, controller) = RawTcp::attach(address(port), Digests::default());
    connect(port, (1, controller, 32), 8, NQN, HOST_NQN);
    connect(port, (1, controller + 1, 32), 9, NQN, HOST_NQN);
    for (host, subsystem, reason) in [
        ("nqn.2026-11.org.ringfab:a", unknown, "there is no such subsystem"),
        ("nqn.2026-11.org.ringfab:b", OTHER_NQN, "the host is not among the allowed_hosts"),
        ("nqn.2026-11.org.ringfab:c", NQN, "SQSIZE is 0: a queue has two entries at least"),
        (HOST_NQN, NQN, "HOSTID is not that of the host that made the controller"),
        (HOST_NQN, NQN, "there is no such controller in this subsystem"),
    ] {
        let line = await_line(&target, reason);
        assert!(line.contains("WARN") && line.contains("Connect refused peer=127.0.0.1:"), "{line}");
        assert!(line.contains(&format!("host={host:?} subsystem={subsystem:?}")), "{line}");
    }
    let refused = target.log().matches("Connect refused").count();
    assert_eq!(refused, 5, "{}", target.log());
}

#[test]
fn a_name_from_the_wire_forges_no_line() {
    let port = free_port();
    let target = two_subsystems(port);
    let digests = Digests::default();
    let mut raw = RawTcp::initialize(address(port), digests);
    let names = (Nqn::new(NQN).expect("a name"), Nqn::new(HOST_NQN).expect("a name"));
    let mut data = ConnectData::new([9; 16], 0xffff, names.0, names.1).as_bytes().to_vec();
    data[512..528].copy_from_slice(b"x\n<0>\x1b[2Jforged\0");
    raw.say(&capsule(digests, SubmissionEntry::connect(0, 0, 32, 0, false), &data));
    assert!(!raw.response().status().is_success());
    let line = await_line(&target, "HOSTNQN is not a name");
    assert!(line.contains("forged") && !target.log().contains('\x1b'), "{line}");
    assert_eq!(target.log().lines().filter(|line| line.contains("forged")).count(), 1);
}

#[test]
fn whoever_tries_again_and_again_fills_no_disk_and_hides_nobody() {
    let port = free_port();
    let target = two_subsystems(port);
    let unknown = "nqn.2026-11.org.ringfab:unknown";
    for _ in 0..200 {
        connect(port, (0, 0xffff, 32), 9, unknown, "nqn.2026-11.org.ringfab:loud");
    }
    connect(port, (0, 0xffff, 32), 9, unknown, "nqn.2026-11.org.ringfab:shy");
    await_line(&target, "host=\"nqn.2026-11.org.ringfab:shy\"");
    let text = await_line(&target, " more like this");
    assert!(text.contains("ringfab:loud"), "{text}");
    let lines = target.log().lines().filter(|line| line.contains("ringfab:loud")).count();
    assert!(lines <= 5 + 6, "{lines} lines: {}", target.log());
}

#[test]
fn connected_and_disconnected_name_host_subsystem_and_queues() {
    let port = free_port();
    let target = two_subsystems(port);
    let (mut admin, controller) = RawTcp::attach(address(port), Digests::default());
    let io = RawTcp::attach_io(address(port), Digests::default(), 1, controller);
    let names = format!("host={HOST_NQN:?} subsystem={NQN:?} controller={controller}");
    assert!(await_line(&target, "connected").contains(&names), "{}", target.log());
    let disable = SubmissionEntry::property_set(3, 0x14, PropertySize::Four, 0x0046_0000);
    assert!(admin.command(disable).status().is_success());
    assert!(await_line(&target, "reset: ending its I/O queues").contains(&names));
    drop((io, admin));
    let line = await_line(&target, "disconnected");
    assert!(line.contains("INFO") && line.contains(&format!("{names} io_queues=1")), "{line}");
}

/// The namespace of a host with a key is served on this port.
fn guarded(port: u16) -> (tempfile::TempDir, Service) {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("key");
    let generated = DhchapKey::generate(Hash::Sha256, None, &mut system_random());
    fs::write(&key, generated.to_text().expose()).expect("a key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("for few eyes");
    let tables = format!(
        "[[host]]\nnqn = {HOST_NQN:?}\ndhchap_key = \"file:{}\"\n[[subsystem]]\nnqn = {NQN:?}\n\
         allow_any_host = true\n",
        key.display()
    );
    (folder, target(port, &tables))
}

#[test]
fn a_host_that_is_asked_to_authenticate_and_leaves_is_named() {
    let port = free_port();
    let (_folder, target) = guarded(port);
    let mut raw = RawTcp::initialize(address(port), Digests::default());
    raw.say(&raw_tcp::connect(Digests::default(), 0, 0xffff));
    assert!(raw.response().status().is_success(), "it is asked to authenticate");
    drop(raw);
    let line = await_line(&target, "not authenticated");
    let names = format!("host={HOST_NQN:?} subsystem={NQN:?} queue=0");
    assert!(line.contains("WARN") && line.contains("peer=127.0.0.1:") && line.contains(&names), "{line}");
    assert!(line.contains("was asked to authenticate and has left without doing so"), "{line}");
    let log = target.log();
    assert!(!log.contains(" connected ") && !log.contains("disconnected"), "it never was: {log}");
}

#[test]
fn who_sends_too_much_before_it_is_let_in_is_named_with_the_reason() {
    let port = free_port();
    let (_folder, target) = guarded(port);
    let one_too_many = |raw: &mut RawTcp, answered: u32| {
        let identify = SubmissionEntry::identify(1, 1, 0, 0, 0);
        for _ in 0..answered {
            assert!(!raw.command(identify).status().is_success());
        }
        raw.say(&capsule(Digests::default(), identify, &[]));
        assert!(raw.ends(), "as many as it likes");
    };
    let mut raw = RawTcp::initialize(address(port), Digests::default());
    raw.say(&raw_tcp::connect(Digests::default(), 0, 0xffff));
    assert!(raw.response().status().is_success(), "it is asked to authenticate");
    one_too_many(&mut raw, 63);
    let line = await_line(&target, "not authenticated");
    let names = format!("host={HOST_NQN:?} subsystem={NQN:?} queue=0");
    assert!(
        line.contains("WARN") && line.contains(&names) && line.contains("has sent 64 commands"),
        "{line}"
    );
    assert_eq!(target.log().matches(": not authenticated ").count(), 1, "{}", target.log());
    one_too_many(&mut RawTcp::initialize(address(port), Digests::default()), 64);
    let line = await_line(&target, "no Connect among 64 commands");
    assert!(line.contains("WARN") && line.contains("peer=127.0.0.1:"), "{line}");
}

#[test]
fn a_host_that_falls_silent_is_named() {
    let port = free_port();
    let target = two_subsystems(port);
    let digests = Digests::default();
    let mut raw = RawTcp::initialize(address(port), digests);
    let names = (Nqn::new(NQN).expect("a name"), Nqn::new(HOST_NQN).expect("a name"));
    let data = ConnectData::new([9; 16], 0xffff, names.0, names.1);
    raw.say(&capsule(digests, SubmissionEntry::connect(0, 0, 32, 500, false), data.as_bytes()));
    assert!(raw.response().status().is_success());
    assert!(
        raw.command(SubmissionEntry::property_set(1, 0x14, PropertySize::Four, 0x0046_0001))
            .status()
            .is_success()
    );
    let line = await_line(&target, "keep-alive expired");
    assert!(
        line.contains("WARN") && line.contains(&format!("host={HOST_NQN:?} subsystem={NQN:?}")),
        "{line}"
    );
}

#[test]
fn a_connection_that_ends_by_a_protocol_error_names_its_host() {
    let port = free_port();
    let target = two_subsystems(port);
    let (mut admin, _) = RawTcp::attach(address(port), Digests::default());
    admin.say(&[0xff; 64]);
    let line = await_line(&target, "protocol violation");
    assert!(
        line.contains("WARN") && line.contains(&format!("host={HOST_NQN:?} subsystem={NQN:?}")),
        "{line}"
    );
    let lines = target.log().lines().filter(|line| line.contains("WARN")).count();
    assert_eq!(lines, 1, "{}", target.log());
    // Before a host has said who it is there is its address.
    RawTcp::open(address(port)).say(&[0xff; 128]);
    let line = await_line(&target, "the peer broke the protocol");
    assert!(line.contains("peer=127.0.0.1:"), "{line}");
}
