//! Subsystems, hosts and listeners that come and go while hosts are connected and work, on a target of two cores.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::discovery::discover;
use ringfab_initiator::{ConnectOptions, HostIdentity, Url};
use ringfab_target::Config;
use ringfab_target::config::Access;
use ringfab_tests::{TestTarget, wait_until};

const OTHER: &str = "nqn.2026-11.org.ringfab:other";
const FRIEND: &str = "nqn.2026-11.org.ringfab:friend";
const MIB: u64 = 1 << 20;

/// A subsystem with a file, and a listener of NVMe/TCP: what is added while the target runs.
fn others(disk: &Path) -> Config {
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1\"\nport = 0\ntransport = \"tcp\"\n[[subsystem]]\nnqn = {OTHER:?}\n\
         allowed_hosts = [{FRIEND:?}]\n[[subsystem.namespace]]\npath = {disk:?}\ndirect = false\n\
         allow_page_cache = true\n"
    );
    Config::parse(&text, "others").expect("a valid configuration")
}

/// Attaches to the other subsystem as [`FRIEND`], and does not try again.
fn attach(scheme: &str, address: SocketAddr) -> Result<Controller, String> {
    let url: Url = format!("{scheme}://{address}/{OTHER}").parse().expect("a URL");
    let host = HostIdentity { nqn: FRIEND.to_owned(), ..HostIdentity::for_url(&url).expect("an identity") };
    let mut options = ConnectOptions::new(url, host);
    options.reconnect.controller_loss_timeout = Some(Duration::ZERO);
    Controller::connect(options, EngineOptions::default()).map_err(|error| error.to_string())
}

fn write(host: &Controller) -> bool {
    host.write_at(1, 0, &[9; 4096], true).is_ok()
}

#[test]
fn subsystems_hosts_and_listeners_come_and_go_while_another_host_works() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = folder.path().join("disk");
    let target = TestTarget::with_target(
        "cores = 2\nspin_us = 20",
        "[[subsystem.namespace]]\nmemory = \"4MiB\"\nblock_bytes = 4096\n",
    );
    let worker = target.attach();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let works = scope.spawn(|| {
            let mut rounds = 0_u32;
            while !over.load(Ordering::Relaxed) {
                let written = rounds.to_le_bytes().repeat(1024);
                worker.write_at(1, 0, &written, false).expect("a write");
                let mut read = vec![0; written.len()];
                worker.read_at(1, 0, &mut read).expect("a read");
                assert!(read == written, "round {rounds}");
                rounds += 1;
            }
            rounds
        });
        // What fails must not leave the other working for ever.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| change(&target, &disk)));
        over.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        assert!(works.join().expect("the other host is not disturbed") > 3);
    });
    let state = target.usage();
    assert!(state.iter().all(|core| core.disks == 1), "{state:?}");
}

fn change(target: &TestTarget, disk: &Path) {
    let mut manager = target.manager();
    let config = others(disk);
    let before = target.target.served().generation();
    let missing = manager.add_subsystem(config.subsystems[0].clone()).expect_err("its disk is missing");
    assert!(missing.contains("disk"), "{missing}");
    assert_eq!(target.target.served().generation(), before, "nothing has changed");
    File::create(disk).and_then(|file| file.set_len(MIB)).expect("a file");

    let not_there = attach("nvme+rdma", target.address()).expect_err("no such subsystem");
    assert!(not_there.contains("subsystem") || not_there.contains("SUBNQN"), "{not_there}");
    manager.add_subsystem(config.subsystems[0].clone()).expect("it is added");
    let twice = manager.add_subsystem(config.subsystems[0].clone()).expect_err("it is there");
    assert!(twice.contains(OTHER), "{twice}");
    let friend = attach("nvme+rdma", target.address()).expect("attached");
    assert!(write(&friend));

    manager
        .set_access(OTHER, Access::Hosts(["nqn.2026-11.org.ringfab:else".to_owned()].into()))
        .expect("done");
    wait_until("it is ended", || !write(&friend));
    drop(friend);
    let refused = attach("nvme+rdma", target.address()).expect_err("it may not");
    assert!(refused.contains("may not") || refused.contains("Host"), "{refused}");
    manager.set_access(OTHER, Access::AnyHost).expect("done");
    let friend = attach("nvme+rdma", target.address()).expect("attached");

    let (port_id, address) = manager.add_listener(config.listeners[0].clone()).expect("bound");
    let by_tcp = attach("nvme+tcp", address).expect("attached");
    assert!(write(&by_tcp) && write(&friend));
    let mut taken = config.listeners[0].clone();
    taken.port = address.port();
    let error = manager.add_listener(taken).expect_err("the address is taken");
    assert!(error.contains(&address.to_string()), "{error}");
    manager.remove_listener(port_id).expect("it is there");
    wait_until("it is ended", || !write(&by_tcp));
    drop(by_tcp);
    attach("nvme+tcp", address).expect_err("nobody listens there");
    assert!(write(&friend), "that came elsewhere");

    manager.remove_subsystem(OTHER).expect("it is there");
    wait_until("it is ended", || !write(&friend));
    drop(friend);
    wait_until("the disk is closed and not locked any more", || {
        File::open(disk).expect("a file").try_lock().is_ok()
    });
    assert_eq!(&std::fs::read(disk).expect("the disk")[..4096], &[9; 4096]);
}

/// So many entries take a core longer than it has, so that a worker makes the page.
#[test]
fn discovery_lists_more_subsystems_than_a_core_has_time_for() {
    const SUBSYSTEMS: usize = 150;
    let target = TestTarget::start("[[subsystem.namespace]]\nnull = \"1MiB\"\n");
    let mut manager = target.manager();
    let (_, address) = manager.add_listener(others(Path::new("/none")).listeners[0].clone()).expect("bound");
    for number in 1..SUBSYSTEMS {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"{OTHER}{number}\"\n\
             allow_any_host = true\n[[subsystem.namespace]]\nnull = \"1MiB\"\n"
        );
        let config = Config::parse(&text, "more").expect("a valid configuration");
        manager.add_subsystem(config.subsystems[0].clone()).expect("it is added");
    }
    for (scheme, address) in [("nvme+rdma", target.address()), ("nvme+tcp", address)] {
        let url: Url = format!("{scheme}://{address}/").parse().expect("a URL");
        let host = HostIdentity::for_url(&url).expect("an identity");
        let options = || ConnectOptions::new(url.clone(), host.clone());
        let log = discover(options(), EngineOptions::default()).expect("a log page");
        let urls = log.entries.iter().filter_map(|entry| entry.url.as_ref());
        let names: BTreeSet<String> =
            urls.filter(|url| !url.is_discovery()).map(ToString::to_string).collect();
        assert_eq!(names.len(), 2 * SUBSYSTEMS, "each subsystem at each listener");
        assert_eq!(names.iter().filter(|name| name.contains(OTHER)).count(), 2 * (SUBSYSTEMS - 1));
    }
}
