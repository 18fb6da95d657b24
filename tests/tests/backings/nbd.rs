//! Exports of NBD servers.

use ringfab_initiator::IoError;
use ringfab_spec::Status;
use ringfab_tests::world::content::Random;
use ringfab_tests::{NQN, free_port, wait_until};

use crate::load::{IMAGE_BYTES, Load, PATIENT, seed};
use crate::server::{Place, Server, require};
use crate::{Target, check, exercise};

const MIB: u64 = 1 << 20;

/// How often a server goes away in each test.
const ROUNDS: u32 = 5;

fn table(server: &Server, more: &str) -> String {
    format!("[[subsystem.namespace]]\nnbd = {:?}\n{more}\n", server.address())
}

#[test]
fn memory_of_nbdkit_is_a_namespace_with_a_connection_for_each_core() {
    let Some(()) = require("nbdkit") else { return };
    let server = Server::nbdkit(Place::Tcp, &["memory", "size=16M"]);
    for block in [512, 4096] {
        let target = Target::start(&table(&server, &format!("block_bytes = {block}")));
        exercise(&target);
        let namespace = target.namespace();
        assert_eq!(namespace["source"], server.address());
        let details = namespace["details"].to_string();
        assert!(details.contains("2 up, 0 lost so far") && details.contains("multi-conn"), "{details}");
        let said = target.service.ask(&["status"]);
        assert!(said.contains("  connections of namespace 1 of"), "{said}");
    }
}

#[test]
fn an_image_of_qemu_is_a_namespace_over_one_connection() {
    let Some(()) = require("qemu-nbd") else { return };
    let server = Server::qemu(16 * MIB);
    let target = Target::start(&table(&server, ""));
    exercise(&target);
    assert!(!target.namespace()["details"].to_string().contains("multi-conn"));
}

#[test]
fn nothing_is_lost_when_a_server_is_killed_that_writes_through() {
    let Some(()) = require("nbdkit") else { return };
    let mut server = Server::nbdkit_with_file(IMAGE_BYTES, &[]);
    let target = Target::start(&table(&server, "write_through = true"));
    let seed = seed("server killed");
    let mut random = Random::new(seed, 99);
    let controller = target.attach_with(PATIENT);
    let load = Load::start(&controller, seed);
    for round in 0..ROUNDS {
        load.wait_for_a_moment(&mut random, round);
        server.kill();
        // It is back before that is seen, or after.
        if random.one_in(2) {
            wait_until("it is missed", || target.state() == "unreachable");
        }
        server.start();
    }
    load.finish(&server.image());
    controller.detach().expect("detached");
    assert_eq!(target.state(), "ready");
    let log = target.service.log();
    assert!(log.contains("an NBD server is gone") && log.contains("an NBD server is back"), "{log}");
}

#[test]
fn nothing_is_lost_when_the_target_is_killed() {
    let Some(()) = require("nbdkit") else { return };
    let server = Server::nbdkit_with_file(IMAGE_BYTES, &[]);
    let (port, seed) = (free_port(), seed("target killed"));
    let mut random = Random::new(seed, 99);
    let folder = tempfile::tempdir().expect("a folder");
    let start = || Target::start_at(port, Some(folder.path()), &table(&server, ""));
    let mut target = start();
    let controller = target.attach_with(PATIENT);
    let load = Load::start(&controller, seed);
    for round in 0..ROUNDS {
        load.wait_for_a_moment(&mut random, round);
        target.service.kill();
        target = start();
    }
    load.finish(&server.image());
    controller.detach().expect("detached");
}

#[test]
fn a_server_that_is_away_costs_what_waits_for_it_and_nothing_else() {
    let Some(()) = require("nbdkit") else { return };
    let mut server = Server::nbdkit_with_file(16 * MIB, &[]);
    let tables = table(&server, "reconnect_delay_s = 1\nwrite_through = true")
        + "[[subsystem.namespace]]\nmemory = \"1MiB\"\n";
    let target = Target::start(&tables);
    let host = target.attach();
    let mut block = [0; 512];
    host.read_at(1, 0, &mut block).expect("read");
    server.kill();
    let failed = host.read_at(1, 0, &mut block).expect_err("nobody has it");
    let status = match failed {
        IoError::Status(status) | IoError::Exhausted { status, .. } => status,
        other => panic!("{other}"),
    };
    assert_eq!(status.code(), Status::NAMESPACE_NOT_READY);
    host.read_at(2, 0, &mut block).expect("the other one goes on");
    assert_eq!(target.state(), "unreachable");
    let reason = target.namespace()["reason"].to_string();
    assert!(reason.contains("No such file") || reason.contains("refused"), "{reason}");
    let list = target.service.ask(&["namespace", "list"]);
    assert!(list.contains("unreachable"), "{list}");
    server.start();
    wait_until("it is back", || host.read_at(1, 0, &mut block).is_ok());
    assert_eq!(target.state(), "ready");
    host.write_at(1, 0, &[7; 512], true).expect("written");
}

#[test]
fn a_group_that_follows_its_disk_is_left_while_the_server_is_away_for_long_and_used_when_it_is_back() {
    let Some(()) = require("nbdkit") else { return };
    let mut server = Server::nbdkit_with_file(16 * MIB, &[]);
    let tables = table(&server, "reconnect_delay_s = 1\nwrite_through = true")
        + "[[subsystem.ana]]\ngroup = 1\non_lost_disk = \"inaccessible\"\n";
    let target = Target::start(&tables);
    let host = target.attach();
    host.write_at(1, 0, &[7; 512], true).expect("written");
    server.kill();
    let reader = {
        let host = host.clone();
        // There is no other path, so it waits for this one.
        std::thread::spawn(move || {
            let mut block = [0; 512];
            host.read_at(1, 0, &mut block).map(|()| block)
        })
    };
    wait_until("its commands are given up", || target.state() == "not ready");
    let shown = target.service.ask(&["ana", "show"]);
    assert!(shown.contains("inaccessible"), "{shown}");
    server.start();
    wait_until("it is back", || target.state() == "ready");
    assert_eq!(reader.join().expect("no panic").expect("read when it is back"), [7; 512]);
}

#[test]
fn no_flush_succeeds_after_a_server_went_with_writes_until_somebody_has_looked() {
    let Some(()) = require("nbdkit") else { return };
    let mut server = Server::nbdkit_with_file(16 * MIB, &[]);
    let target = Target::start(&table(&server, ""));
    let hosts = [target.attach(), target.attach()];
    hosts[0].write_at(1, 0, &[1; 4096], false).expect("written");
    hosts[0].flush(1).expect("flushed");
    server.restart();
    hosts[0].write_at(1, 0, &[2; 4096], false).expect("written: the next server has it");
    hosts[1].flush(1).expect("nothing was lost");
    hosts[1].write_at(1, 4096, &[3; 4096], false).expect("written");
    server.restart();
    // The flush of a freeze is the first one that fails.
    for why in ["is not flushed", "has to be reopened first"] {
        let mut freeze = target.service.command(&["freeze", "1"]);
        let frozen = freeze.args(["--", "true"]).output().expect("it runs");
        let refused = String::from_utf8_lossy(&frozen.stderr).into_owned();
        assert!(!frozen.status.success() && refused.contains(why), "{refused}");
    }
    let is_write_fault = |outcome: Result<(), IoError>| {
        let Err(IoError::Status(status)) = outcome else { return false };
        status.code() == Status::WRITE_FAULT
    };
    for host in hosts.iter().chain(&hosts) {
        assert!(is_write_fault(host.flush(1)));
    }
    assert_eq!(target.state(), "needs reopen");
    target.service.ask(&["namespace", "reopen", "1"]);
    for host in &hosts {
        host.flush(1).expect("an administrator knows");
    }
    assert_eq!(target.state(), "ready");
    let log = target.service.log();
    assert!(log.contains("with writes that it had acknowledged and not flushed"), "{log}");
}

#[test]
fn an_export_comes_grows_and_goes_while_the_target_runs() {
    let Some(()) = require("nbdkit") else { return };
    let mut server = Server::nbdkit_with_file(16 * MIB, &[]);
    let target = Target::start("[[subsystem.namespace]]\nmemory = \"1MiB\"\n");
    target.service.ask(&["namespace", "add", "--nbd", server.address(), "--write-through"]);
    let host = target.attach();
    let bytes = || host.namespaces().iter().find(|one| one.nsid == 2).map(|one| one.bytes());
    assert_eq!(bytes(), Some(16 * MIB));
    host.write_at(2, 16 * MIB - 512, &[5; 512], false).expect("the last block");
    server.kill();
    server.resize(32 * MIB);
    server.start();
    wait_until("the host sees it", || bytes() == Some(32 * MIB));
    host.write_at(2, 32 * MIB - 512, &[6; 512], false).expect("the last block");
    let uuid = || {
        let list = target.service.ask(&["namespace", "list", "--json"]);
        let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
        list[1]["uuid"].as_str().expect("a uuid").to_owned()
    };
    let before = uuid();
    target.service.ask(&["namespace", "remove", "2"]);
    target.service.ask(&["namespace", "add", "--nbd", server.address(), "--write-through"]);
    assert_eq!(uuid(), before, "the same export is the same disk");
    let again = target.service.control(&["namespace", "add", "--nbd", server.address()]);
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(!again.status.success() && said.contains("shared = true"), "{said}");
}

#[test]
fn what_is_wrong_with_a_server_is_a_sentence() {
    let Some(()) = require("qemu-nbd") else { return };
    let server = Server::qemu_named(16 * MIB, "disk");
    assert_eq!(check(&table(&server, "")), "");
    let named = |address: &str| check(&format!("[[subsystem.namespace]]\nnbd = {address:?}\n"));
    let said = named("nbd://127.0.0.1:1/");
    let expected = format!("warning: namespace 1 of {NQN}: cannot open nbd://127.0.0.1:1/: ");
    assert!(said.contains(&expected) && said.contains("Connection refused"), "{said}");
    let said = named(&server.address().replace("/disk?", "/other?"));
    assert!(said.contains("has no export named \"other\""), "{said}");
    let said = check(&table(&server, "block_bytes = 4096"));
    assert_eq!(said, "");
    let target = Target::start(&format!("[[subsystem.namespace]]\nnbd = {:?}\n", "nbd://127.0.0.1:1/"));
    assert_eq!(target.state(), "not ready");
    let reason = target.namespace()["reason"].to_string();
    assert!(reason.contains("Connection refused"), "{reason}");
}
