//! Namespaces that come, go and grow while hosts are connected and work.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use ringfab_fabric::rdma::Access;
use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::{ConnectOptions, HostIdentity, IoError, SubmitError, Url};
use ringfab_spec::log::LogId;
use ringfab_spec::{IntoBytes, Status, SubmissionEntry};
use ringfab_target::control::client::ask;
use ringfab_target::control::status::NamespaceState;
use ringfab_target::control::{Manager, Request};
use ringfab_tests::raw_host::RawHost;
use ringfab_tests::{Service, TestTarget, program, wait_until};
use serde_json::{Map, Value, json};

const MIB: u64 = 1 << 20;

fn table(value: Value) -> Map<String, Value> {
    let Value::Object(table) = value else { panic!("a table") };
    table
}

fn add(manager: &mut Manager, namespace: Value) -> NamespaceState {
    manager.add(None, table(namespace)).expect("a namespace")
}

fn file(folder: &Path, name: &str, bytes: u64) -> Value {
    let path = folder.join(name);
    File::create(&path).and_then(|file| file.set_len(bytes)).expect("a file");
    json!({ "path": path.to_str().expect("UTF-8"), "direct": false, "allow_page_cache": true })
}

/// Writes and reads back a region of its own until told to stop. Returns how often.
fn verify(host: &Controller, region: u64, over: &AtomicBool) -> u32 {
    let mut rounds = 0_u32;
    while !over.load(Ordering::Relaxed) {
        rounds += 1;
        let written: Vec<u8> = rounds.to_le_bytes().repeat(16 << 10);
        host.write_at(1, region * MIB, &written, rounds.is_multiple_of(8)).expect("a write");
        let mut read = vec![0; written.len()];
        host.read_at(1, region * MIB, &mut read).expect("a read");
        assert!(read == written, "round {rounds} of region {region}");
    }
    rounds
}

/// Descriptors of this process that are of files below a folder.
fn descriptors(folder: &Path) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").expect("they are listed").flatten();
    // One that was closed meanwhile is none.
    all.filter_map(|one| std::fs::read_link(one.path()).ok()).filter(|path| path.starts_with(folder)).count()
}

const WORKED_ON: &str = "[[subsystem.namespace]]\nmemory = \"4MiB\"\nblock_bytes = 4096\n";

#[test]
fn hosts_work_on_while_others_come_go_and_grow() {
    come_go_and_grow(&TestTarget::with_target("cores = 2\nspin_us = 20", WORKED_ON));
}

#[test]
fn hosts_of_nvme_tcp_work_on_while_others_come_go_and_grow() {
    come_go_and_grow(&TestTarget::with_listener("transport = \"tcp\"", WORKED_ON));
}

fn come_go_and_grow(target: &TestTarget) {
    const ROUNDS: usize = 6;
    let folder = tempfile::tempdir().expect("a folder");
    let mut manager = target.manager();
    let hosts: Vec<Controller> = (0..3).map(|_| target.attach()).collect();
    let (over, rounds) = (AtomicBool::new(false), AtomicU32::new(0));
    let all_see = |nsid: u32, size: Option<u64>| {
        let seen = |host: &Controller| host.namespace(nsid).map(|one| one.bytes()) == size;
        wait_until(&format!("{nsid} has {size:?}"), || hosts.iter().all(seen));
    };
    std::thread::scope(|scope| {
        for (region, host) in hosts.iter().enumerate() {
            let (over, rounds) = (&over, &rounds);
            scope.spawn(move || rounds.fetch_add(verify(host, region as u64, over), Ordering::Relaxed));
        }
        // What fails must not leave the others working for ever.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..ROUNDS {
                let grows = add(&mut manager, file(folder.path(), "grows", MIB));
                let scratch = add(&mut manager, json!({ "memory": "2MiB", "nsid": 9 }));
                assert_eq!((grows.nsid, grows.bytes, scratch.bytes), (2, MIB, 2 * MIB), "{round}");
                all_see(2, Some(MIB));
                all_see(9, Some(2 * MIB));
                hosts[0].write_at(9, 0, &[7; 8192], false).expect("a new namespace works");
                let grown = manager.resize(None, 2, Some(3 * MIB)).expect("it grows");
                assert_eq!(grown.bytes, 3 * MIB);
                all_see(2, Some(3 * MIB));
                hosts[1].write_at(2, 3 * MIB - 512, &[8; 512], true).expect("its new end");
                let mut read = [0; 512];
                hosts[2].read_at(2, 3 * MIB - 512, &mut read).expect("its new end");
                assert_eq!(read, [8; 512]);
                manager.remove(None, 9).expect("it is there");
                manager.remove(None, 2).expect("it is there");
                all_see(2, None);
                all_see(9, None);
                wait_until("all disks are closed", || {
                    manager.list().len() == 1 && descriptors(folder.path()) == 0
                });
                manager.poll();
            }
        }));
        over.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert!(rounds.load(Ordering::Relaxed) >= 3, "the hosts worked meanwhile");
}

/// Works on a namespace that comes and goes: how often a write went well.
fn hammer(host: &Controller, nsid: u32, over: &AtomicBool) -> u32 {
    let (mut worked, data) = (0, [9; 64 << 10]);
    while !over.load(Ordering::Relaxed) {
        let written = host.write_at(nsid, 0, &data, false);
        worked += u32::from(written.is_ok());
        match written.and_then(|()| host.flush(nsid)) {
            Ok(()) => {}
            Err(IoError::Status(status)) if status.code() == Status::INVALID_NAMESPACE => {}
            Err(IoError::Refused(SubmitError::NoNamespace(_))) => {}
            Err(error) => panic!("{error}"),
        }
    }
    worked
}

#[test]
fn hosts_that_work_on_a_namespace_while_it_goes_are_told_that_there_is_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = TestTarget::with_target("cores = 2\nspin_us = 20", WORKED_ON);
    let mut manager = target.manager();
    let hosts: Vec<Controller> = (0..2).map(|_| target.attach()).collect();
    let (over, worked) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for host in &hosts {
            let (over, worked) = (&over, &worked);
            scope.spawn(move || worked.fetch_add(hammer(host, 2, over), Ordering::Relaxed));
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..8 {
                let name = format!("disk-{round}");
                assert_eq!(add(&mut manager, file(folder.path(), &name, MIB)).nsid, 2);
                let path = folder.path().join(&name);
                wait_until("it is written", || std::fs::read(&path).is_ok_and(|bytes| bytes[0] == 9));
                manager.remove(None, 2).expect("it is there");
                wait_until("its disks are closed", || descriptors(folder.path()) == 0);
            }
        }));
        over.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert!(worked.load(Ordering::Relaxed) >= 8);
}

#[test]
fn a_command_that_waits_for_data_does_not_reach_a_disk_that_is_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let target =
        TestTarget::with_target("cores = 2\nspin_us = 20", "[[subsystem.namespace]]\nmemory = \"1MiB\"\n");
    let mut manager = target.manager();
    let nsid = add(&mut manager, file(folder.path(), "disk", MIB)).nsid;
    let mut host = RawHost::new(target.address());
    let association = host.attach();
    let (slow, other) = (host.attach_io(association, 1, 32), host.attach_io(association, 2, 32));
    // The target fetches the data, which this host gives only when it goes on.
    let data = host.expose(&[0x42; 65_536], Access::RemoteRead);
    let write = SubmissionEntry::write(host.next_cid(), nsid, 0, 128, false).with_sgl(data.sgl());
    let commands = || target.usage().iter().map(|core| core.commands).sum::<usize>();
    let before = commands();
    host.send_and_stop(slow, &[write]);
    wait_until("the write has arrived", || commands() > before);
    let removed = manager.remove(None, nsid).expect("it is there");
    assert_eq!(removed.state, "closing");
    let closing = manager.list();
    assert_eq!(closing.iter().map(|one| one.state).collect::<Vec<_>>(), ["ready", "closing"]);
    let again = manager.add(None, table(file(folder.path(), "disk", MIB)));
    let again = again.expect_err("the file is in use");
    assert!(
        again.contains("is still being closed: namespace 2 of") && again.contains("try again"),
        "{again}"
    );
    assert!(!again.contains("shared"), "to share it would be wrong: {again}");
    // What a disk works on completes. This has not come so far.
    assert_eq!(host.completion(slow).status(), Status::INVALID_NAMESPACE.with_dnr());
    for queue in [slow, other] {
        let read = SubmissionEntry::read(host.next_cid(), nsid, 0, 1);
        assert_eq!(host.fetch(queue, &read, 512).0.status(), Status::INVALID_NAMESPACE.with_dnr());
    }
    host.revoke(data);
    wait_until("its disks are closed", || manager.list().len() == 1);
    let written = std::fs::read(folder.path().join("disk")).expect("the file");
    assert!(written[..65_536].iter().all(|byte| *byte == 0), "the command was not carried out");
    // The number is free again, for another disk that no host can take for the old one.
    let new = add(&mut manager, file(folder.path(), "other", MIB));
    assert_eq!((new.nsid, new.nguid != removed.nguid, new.uuid != removed.uuid), (nsid, true, true));
}

#[test]
fn a_disk_that_is_added_again_at_once_waits_until_it_is_closed() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = TestTarget::with_target("cores = 2\nspin_us = 20", WORKED_ON);
    let mut manager = target.manager();
    let host = target.attach();
    let disk = file(folder.path(), "disk", MIB);
    let first = add(&mut manager, disk.clone());
    wait_until("it is there", || host.namespace(2).is_some());
    let only = host.disk(2).expect("it is there");
    for round in 0..4 {
        wait_until("it is the host's", || only.write_at(0, &[1; 512], false).is_ok());
        manager.remove(None, 2).expect("it is there");
        let again = add(&mut manager, disk.clone());
        assert_eq!((again.nsid, &again.nguid, &again.uuid), (2, &first.nguid, &first.uuid), "{round}");
    }
    assert!(manager.add(None, table(disk)).expect_err("it is served").contains("write shared = true"));
}

#[test]
fn a_number_that_becomes_another_disks_is_that_for_who_uses_the_number_and_nothing_for_who_uses_the_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = TestTarget::start(WORKED_ON);
    let mut manager = target.manager();
    let host = target.attach();
    add(&mut manager, file(folder.path(), "first", MIB));
    wait_until("it is there", || host.namespace(2).is_some());
    let first = host.disk(2).expect("it is there");
    first.write_at(0, &[1; 512], false).expect("its own");
    manager.remove(None, 2).expect("it is there");
    wait_until("it is gone", || host.namespace(2).is_none());
    add(&mut manager, file(folder.path(), "second", MIB));
    wait_until("another one is there", || host.namespace(2).is_some());
    assert!(first.namespace().is_none());
    assert_eq!(first.write_at(0, &[9; 512], false), Err(SubmitError::NoNamespace(2).into()));
    host.write_at(2, 512, &[2; 512], false).expect("whichever has the number");
    let mut read = [9; 1024];
    host.read_at(2, 0, &mut read).expect("read");
    assert!(read[..512] == [0; 512] && read[512..] == [2; 512]);
}

#[test]
fn hosts_are_told_by_an_event_and_a_log_page() {
    let target = TestTarget::start("[[subsystem.namespace]]\nmemory = \"1MiB\"\n");
    let mut manager = target.manager();
    let mut host = RawHost::new(target.address());
    let association = host.attach();
    let admin = association.admin;
    let notices = SubmissionEntry::set_features(host.next_cid(), 0x0b, false, 1 << 8);
    assert_eq!(host.command(admin, &notices).status(), Status::SUCCESS);
    let mut expect =
        |host: &mut RawHost, change: &mut dyn FnMut(&mut Manager), changed: &[u32], list: &[u32]| {
            let waits = SubmissionEntry::async_event_request(host.next_cid());
            host.send(admin, waits.as_bytes(), None);
            change(&mut manager);
            let event = host.completion(admin);
            assert_eq!((event.cid.get(), event.dw0.get()), (waits.cid.get(), 0x0004_0002));
            let page = SubmissionEntry::get_log_page(
                host.next_cid(),
                LogId::CHANGED_NAMESPACE_LIST.0,
                u32::MAX,
                0,
                4096,
                false,
            );
            assert_eq!(nsids(&host.fetch(admin, &page, 4096).1), changed);
            let active = SubmissionEntry::identify(host.next_cid(), 0x02, 0, 0, 0);
            assert_eq!(nsids(&host.fetch(admin, &active, 4096).1), list);
        };
    let null = |manager: &mut Manager| add(manager, json!({ "null": "1GiB" }));
    expect(&mut host, &mut |manager| drop(null(manager)), &[2], &[1, 2]);
    expect(&mut host, &mut |manager| drop(manager.remove(None, 1).expect("it is there")), &[1], &[2]);
    let both = &mut |manager: &mut Manager| {
        manager.remove(None, 2).expect("it is there");
        null(manager);
    };
    expect(&mut host, both, &[1, 2], &[1]);
}

#[test]
fn a_host_finds_all_namespaces_also_when_they_just_fill_their_lists() {
    for count in [1023, 1024, 1025, 4096] {
        let null =
            |nsid| format!("[[subsystem.namespace]]\nnsid = {nsid}\nnull = \"1MiB\"\nblock_bytes = 512\n");
        let tables: String = (1..=count).map(null).collect();
        let host = TestTarget::start(&tables).attach();
        let found: Vec<u32> = host.namespaces().iter().map(|namespace| namespace.nsid).collect();
        assert!(found.iter().copied().eq(1..=count), "{} of {count}", found.len());
    }
}

fn nsids(page: &[u8]) -> Vec<u32> {
    let (words, _) = page.as_chunks::<4>();
    words.iter().map(|word| u32::from_le_bytes(*word)).take_while(|nsid| *nsid != 0).collect()
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = TestTarget::start("[[subsystem.namespace]]\nmemory = \"1MiB\"\n");
    let mut manager = target.manager();
    let good = file(folder.path(), "disk", MIB);
    add(&mut manager, good.clone());
    for (wrong, reason) in [
        (json!({}), "path is missing"),
        (json!({ "null": "1GiB", "memory": "1GiB" }), "contradicts"),
        (json!({ "null": "1GiB", "colour": "red" }), "is not a known key"),
        (json!({ "null": "1GiB", "nsid": 4097 }), "must be from 1 to 4096"),
        (json!({ "null": "1GiB", "nsid": 1 }), "is there already"),
        (json!({ "null": null }), "not a namespace"),
        (json!({ "path": "disk" }), "absolute"),
        (json!({ "path": "/nonexistent/disk" }), "/nonexistent/disk"),
        (file(folder.path(), "empty", 0), "is empty"),
        (good, "is namespace 2 of nqn.2026-11.org.ringfab:test already"),
    ] {
        let error = manager.add(None, table(wrong.clone())).expect_err("refused");
        assert!(error.contains(reason), "{wrong}: {error}");
    }
    assert!(manager.add(Some("nqn.2026-11.org.ringfab:none"), table(json!({ "null": "1GiB" }))).is_err());
    assert!(manager.remove(None, 3).expect_err("none").contains("no namespace 3"));
    assert!(manager.resize(None, 1, None).expect_err("memory").contains("only files"));
    assert!(manager.resize(None, 2, Some(MIB / 2)).expect_err("smaller").contains("less than"));
    let states = manager.list();
    assert_eq!(
        states.iter().map(|one| (one.nsid, one.state)).collect::<Vec<_>>(),
        [(1, "ready"), (2, "ready")]
    );
}

#[test]
fn a_file_that_grows_or_comes_back_is_noticed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    let target = TestTarget::start(&format!(
        "[[subsystem.namespace]]\npath = {path:?}\ndirect = false\nallow_page_cache = true\n"
    ));
    let mut manager = target.manager();
    let state = |manager: &Manager| manager.list().pop().map(|one| (one.state, one.bytes)).expect("one");
    assert_eq!(state(&manager), ("not ready", 0));
    file(folder.path(), "disk", MIB);
    manager.poll();
    assert_eq!(state(&manager), ("ready", MIB));
    let host = target.attach();
    host.write_at(1, MIB - 512, &[1; 512], false).expect("it works");
    File::options().write(true).open(&path).and_then(|file| file.set_len(2 * MIB + 100)).expect("longer");
    manager.poll();
    assert_eq!(state(&manager), ("ready", 2 * MIB), "whole blocks");
    wait_until("the host sees it", || host.namespace(1).is_some_and(|one| one.bytes() == 2 * MIB));
    host.write_at(1, 2 * MIB - 512, &[1; 512], false).expect("its new end");
    // Another file of the same name is not the disk.
    std::fs::remove_file(&path).expect("removed");
    file(folder.path(), "disk", 8 * MIB);
    manager.poll();
    assert_eq!(state(&manager), ("detached", 2 * MIB));
    assert!(manager.resize(None, 1, Some(16 * MIB)).expect_err("another file").contains("another file"));
}

#[test]
fn a_host_goes_on_after_a_restart_that_forgot_what_was_added() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = file(folder.path(), "disk", MIB)["path"].as_str().expect("a path").to_owned();
    let socket = folder.path().join("control");
    let config = folder.path().join("target.toml");
    let port = ringfab_tests::free_port();
    let text = format!(
        "[target]\nstate_dir = {:?}\ncores = 1\n[control]\nsocket = {socket:?}\n\
         [[listener]]\naddress = \"127.0.0.1\"\nport = {port}\n\
         [[subsystem]]\nnqn = {:?}\nallow_any_host = true\n\
         [[subsystem.namespace]]\npath = {path:?}\ndirect = false\nallow_page_cache = true\n",
        folder.path().join("state"),
        ringfab_tests::NQN,
    );
    std::fs::write(&config, text).expect("a configuration");
    let start = || {
        Service::start("ringfab-target", |_| {
            vec!["serve".to_owned(), "--config".to_owned(), config.display().to_string()]
        })
    };
    let first = start();
    wait_until("the socket is there", || socket.exists());
    let url: Url =
        format!("nvme+rdma://127.0.0.1:{port}/{}?provider=iwarp", ringfab_tests::NQN).parse().expect("a URL");
    let identity = HostIdentity::for_url(&url).expect("an identity");
    let mut options = ConnectOptions::new(url, identity);
    options.reconnect.delay = Duration::from_millis(50);
    options.reconnect.delay_max = Duration::from_millis(200);
    let host = Controller::connect(options, EngineOptions::default()).expect("attached");
    let added = ask(
        &socket,
        &Request::parse(b"{\"command\":\"namespace-add\",\"namespace\":{\"memory\":\"1MiB\"}}")
            .expect("a request"),
    );
    assert_eq!(added.expect("added")["nsid"], 2);
    wait_until("the host sees it", || host.namespace(2).is_some());
    drop(first);
    let _second = start();
    host.write_at(1, 0, &[5; 4096], true).expect("what is configured works on");
    wait_until("what was added is gone", || host.namespace(2).is_none());
    assert!(host.write_at(2, 0, &[5; 4096], true).is_err());
}

#[test]
fn the_program_manages_a_target_through_its_socket() {
    let service = Service::start("ringfab-target", |folder| {
        let config = format!(
            "[target]\nstate_dir = {:?}\ncores = 1\n[control]\nsocket = {:?}\nmode = \"0660\"\n\
             [[listener]]\naddress = \"127.0.0.1\"\nport = 0\n\
             [[subsystem]]\nnqn = {:?}\nallow_any_host = true\n[[subsystem.namespace]]\nmemory = \"1MiB\"\n",
            folder.join("state"),
            folder.join("control"),
            ringfab_tests::NQN,
        );
        let path = folder.join("target.toml");
        std::fs::write(&path, config).expect("a configuration");
        vec!["serve".to_owned(), "--config".to_owned(), path.display().to_string()]
    });
    let socket = service.path("control");
    wait_until("the socket is there", || socket.exists());
    let mode = std::os::unix::fs::PermissionsExt::mode(&socket.metadata().expect("it is").permissions());
    assert_eq!(mode & 0o777, 0o660);
    let run = |arguments: &[&str]| {
        let mut command = Command::new(program("ringfab-target"));
        let output = command.args(arguments).arg("--socket").arg(&socket).output().expect("it runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (output.status.success(), text(output.stdout) + &text(output.stderr))
    };
    let path = service.path("disk");
    File::create(&path).and_then(|file| file.set_len(MIB)).expect("a file");
    let path = path.to_str().expect("UTF-8");
    let (done, said) = run(&["namespace", "add", path, "--page-cache"]);
    assert!(done && said.contains(" 2 state=ready bytes=1048576 "), "{said}");
    let (done, said) = run(&["namespace", "resize", "2", "--size", "2MiB"]);
    assert!(done && said.contains("bytes=2097152"), "{said}");
    let (done, said) = run(&["namespace", "list", "--json"]);
    let list: Value = serde_json::from_str(&said).expect("JSON");
    assert!(done && list.as_array().is_some_and(|list| list.len() == 2), "{said}");
    let (done, said) = run(&["status"]);
    assert!(done && said.contains("\nSUBSYSTEM ") && said.contains("CORE  QUEUES"), "{said}");
    let (done, said) = run(&["namespace", "remove", "2"]);
    assert!(done && said.contains(" 2 state="), "{said}");
    let (done, said) = run(&["namespace", "remove", "2"]);
    assert!(!done && said.contains("there is no namespace 2"), "{said}");
}
