//! One event is one line of the log, however many cores and queues find it.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ringfab_block::{BlockDevice, DiskTokens, Driver, OpenError};
use ringfab_reactor::Reactor;
use ringfab_spec::log::ErrorInformation;
use ringfab_spec::tcp::{CapsuleResp, CommonHeader, Digests, PduType};
use ringfab_spec::{CompletionEntry, FromBytes, SglDescriptor, Status, SubmissionEntry};
use ringfab_tests::raw_tcp::{HOST_NQN, RawTcp, capsule};
use ringfab_tests::stuck_fs::StuckFs;
use ringfab_tests::{NQN, TestTarget, not_run, program, wait_until};
use tracing_subscriber::filter::LevelFilter;

/// More than this machine may have.
const CORES: usize = 4;

/// What was logged.
static LOGGED: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// The log of this process while one test has it.
struct Log(#[expect(dead_code, reason = "the next test waits for it")] MutexGuard<'static, ()>);

struct Collects;

impl io::Write for Collects {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOGGED.lock().unwrap_or_else(PoisonError::into_inner).extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn start() -> Self {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let log = tracing_subscriber::fmt().with_ansi(false).without_time().with_target(false);
        let _twice = log.with_max_level(LevelFilter::INFO).with_writer(|| Collects).try_init();
        LOGGED.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Self(guard)
    }

    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(LOGGED.lock().unwrap_or_else(PoisonError::into_inner).clone());
        text.expect("text").lines().map(|line| line.trim().to_owned()).collect()
    }

    fn wait_for(&self, what: &str) {
        wait_until(what, || self.lines().iter().any(|line| line.contains(what)));
    }

    /// These are all lines, in whatever order, and each has the names that its event is about. The target has ended, so
    /// nothing can come after them.
    fn is(&self, expected: &[(&str, &[&str])]) {
        let lines = self.lines();
        for (begins, names) in expected {
            let found: Vec<&String> = lines.iter().filter(|line| line.starts_with(begins)).collect();
            assert_eq!(found.len(), 1, "{begins}: {lines:#?}");
            names.iter().for_each(|name| assert!(found[0].contains(name), "{name} in {}", found[0]));
        }
        assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    }
}

const HOST: &[&str] = &[HOST_NQN, NQN, "127.0.0.1"];
const DISK: &[&str] = &[NQN, "nsid=1"];

/// How a line begins that says that a host was lost.
const LOST: &str = "WARN controller ended: the connection of an I/O queue was lost with commands outstanding";

/// A host with an I/O queue on each core.
struct Host {
    admin: RawTcp,
    io: Vec<RawTcp>,
}

impl Host {
    fn attach(address: SocketAddr) -> Self {
        let digests = Digests::default();
        let (admin, controller) = RawTcp::attach(address, digests);
        let io = (1..=CORES as u16).map(|qid| RawTcp::attach_io(address, digests, qid, controller)).collect();
        Self { admin, io }
    }

    /// Says the same on all I/O queues.
    fn say(&mut self, command: SubmissionEntry) {
        for queue in &mut self.io {
            queue.say(&capsule(Digests::default(), command, &[]));
        }
    }

    /// The next response of each I/O queue, whatever data come before it.
    fn responses(&mut self) -> Vec<Status> {
        self.io.iter_mut().map(|queue| response(queue).status()).collect()
    }
}

fn response(queue: &mut RawTcp) -> CompletionEntry {
    loop {
        let pdu = queue.hear();
        if pdu.header[0] == PduType::CAPSULE_RESP.0 {
            return CapsuleResp::read_from_bytes(&pdu.header).expect("as long as one").cqe;
        }
    }
}

fn read() -> SubmissionEntry {
    SubmissionEntry::read(1, 1, 0, 1).with_sgl(SglDescriptor::transport(512))
}

fn target(namespace: &str) -> TestTarget {
    TestTarget::on_cores(CORES, "transport = \"tcp\"", &format!("[[subsystem.namespace]]\n{namespace}"))
}

#[test]
fn a_host_that_comes_and_goes_is_two_lines() {
    let log = Log::start();
    let target = target("memory = \"1MiB\"\n");
    drop(Host::attach(target.address()));
    log.wait_for("disconnected");
    target.end().expect("it ends in order");
    log.is(&[("INFO connected", HOST), ("INFO disconnected", &[HOST_NQN, NQN, "127.0.0.1", "io_queues=4"])]);
}

#[test]
fn a_host_that_an_administrator_ends_is_one_line() {
    let log = Log::start();
    let target = target("memory = \"1MiB\"\n");
    let mut host = Host::attach(target.address());
    assert_eq!(target.manager().kick_host(None, HOST_NQN), Ok(1));
    assert!(host.admin.ends() && host.io.iter_mut().all(RawTcp::ends));
    target.end().expect("it ends in order");
    log.is(&[("INFO connected", HOST), ("WARN controller ended", HOST)]);
}

#[test]
fn a_host_whose_queues_all_stall_is_one_line() {
    let log = Log::start();
    let target = target("memory = \"1MiB\"\n");
    let mut host = Host::attach(target.address());
    // More than a capsule may have: the target asks for the data, which never come.
    let write = SubmissionEntry::write(1, 1, 0, 64, false).with_sgl(SglDescriptor::transport(64 * 512));
    host.say(write);
    // With the queues the controller ends.
    assert!(host.admin.ends() && host.io.iter_mut().all(RawTcp::ends));
    target.end().expect("it ends in order");
    log.is(&[
        ("INFO connected", HOST),
        ("WARN protocol violation: the host neither receives nor sends data", HOST),
        (LOST, HOST),
    ]);
}

/// Whichever of its connections a core finds gone first.
#[test]
fn a_host_that_is_lost_on_all_queues_at_once_is_one_line() {
    let log = Log::start();
    let target = target("memory = \"1MiB\"\n");
    const HOSTS: usize = 20;
    let count = |is_one: fn(&str) -> bool| log.lines().iter().filter(|line| is_one(line)).count();
    let ends = || count(|line| line.starts_with(LOST) || line.starts_with("INFO disconnected"));
    for host in 1..=HOSTS {
        let mut lost = Host::attach(target.address());
        lost.say(SubmissionEntry::write(1, 1, 0, 64, false).with_sgl(SglDescriptor::transport(64 * 512)));
        for queue in &mut lost.io {
            assert_eq!(queue.hear().header[0], PduType::R2T.0);
        }
        drop(lost);
        wait_until("its end is told", || ends() >= host);
    }
    target.end().expect("it ends in order");
    let connected = count(|line| line.starts_with("INFO connected"));
    assert_eq!((connected, ends(), log.lines().len()), (HOSTS, HOSTS, 2 * HOSTS), "{:#?}", log.lines());
}

#[test]
fn a_target_that_ends_says_of_each_host_that_it_is_gone() {
    let log = Log::start();
    let target = target("memory = \"1MiB\"\n");
    let mut hosts = [Host::attach(target.address()), Host::attach(target.address())];
    std::thread::scope(|scope| {
        let ends = scope.spawn(|| target.end());
        assert!(hosts.iter_mut().all(|host| host.admin.ends() && host.io.iter_mut().all(RawTcp::ends)));
        ends.join().expect("it is not interrupted").expect("it ends in order");
    });
    let lines = log.lines();
    let count = |begins: &str| lines.iter().filter(|line| line.starts_with(begins)).count();
    assert_eq!((count("INFO connected"), count("INFO disconnected"), lines.len()), (2, 2, 4), "{lines:#?}");
}

#[test]
fn a_file_that_is_cut_off_is_two_lines_and_its_other_failures_are_counted() {
    let log = Log::start();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    fs::write(&path, [7; 8192]).expect("a disk");
    let target = target(&format!("path = {path:?}\nblock_bytes = 512\nallow_page_cache = true\n"));
    let mut host = Host::attach(target.address());
    host.say(read());
    assert_eq!(host.responses(), [Status::SUCCESS; CORES]);
    fs::write(&path, []).expect("cut off");
    host.say(read());
    assert!(host.responses().iter().all(|status| *status != Status::SUCCESS));
    drop(host);
    log.wait_for("disconnected");
    let media_errors = target.manager().list()[0].media_errors;
    target.end().expect("it ends in order");
    assert!(media_errors >= 1, "{media_errors}");
    log.is(&[
        ("INFO connected", HOST),
        ("ERROR a disk has failed", &[NQN, "nsid=1", "operation=\"read\""]),
        ("ERROR a namespace is no longer served", DISK),
        ("INFO disconnected", HOST),
    ]);
}

/// What a log page has.
fn log_page(admin: &mut RawTcp, page: u8, bytes: u32) -> Vec<u8> {
    let sgl = SglDescriptor::transport(bytes);
    let command = SubmissionEntry::get_log_page(9, page, u32::MAX, 0, bytes, false).with_sgl(sgl);
    admin.say(&capsule(Digests::default(), command, &[]));
    let pdu = admin.hear();
    assert_eq!(pdu.header[0], PduType::C2H_DATA.0);
    // The response comes with the data, or behind them.
    if !CommonHeader::read_from_prefix(&pdu.header).expect("a header").0.flags.success() {
        assert!(admin.response().status().is_success());
    }
    pdu.data
}

/// What a host reads of a disk that has failed: the health log counts it, and the error log has the command.
#[test]
fn a_failed_read_is_a_media_error_and_an_entry_with_its_block() {
    let _log = Log::start();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    fs::write(&path, [7; 8192]).expect("a disk");
    let target = target(&format!("path = {path:?}\nblock_bytes = 512\nallow_page_cache = true\n"));
    let mut host = Host::attach(target.address());
    let counts = |admin: &mut RawTcp| {
        let page = log_page(admin, 0x02, 512);
        [160, 176].map(|at| u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes")))
    };
    assert_eq!(counts(&mut host.admin), [0, 0]);
    fs::write(&path, [7; 512]).expect("cut off");
    // One queue reads what is not there any more.
    let read = SubmissionEntry::read(5, 1, 3, 1).with_sgl(SglDescriptor::transport(512));
    host.io[2].say(&capsule(Digests::default(), read, &[]));
    let status = response(&mut host.io[2]).status();
    assert!(!status.is_success());
    assert_eq!(counts(&mut host.admin), [1, 1]);
    assert_eq!(target.manager().list()[0].media_errors, 1);
    let page = log_page(&mut host.admin, 0x01, 128);
    let (entry, next) = ErrorInformation::read_from_prefix(&page).expect("an entry");
    assert_eq!((entry.error_count.get(), entry.sqid.get(), entry.cid.get()), (1, 3, 5));
    assert_eq!((entry.lba.get(), entry.nsid.get(), entry.status()), (3, 1, status));
    assert!(next.iter().all(|byte| *byte == 0), "there is no other");
}

#[test]
fn a_disk_that_hangs_on_all_cores_is_one_line_and_one_when_it_answers() {
    let fs = match StuckFs::mount(1 << 20) {
        Ok(fs) => fs,
        Err(error) => return not_run(&format!("one line for a disk that hangs: {error}")),
    };
    let log = Log::start();
    let path = fs.disk();
    let target = target(&format!("path = {path:?}\nblock_bytes = 512\nallow_page_cache = true\n"));
    let mut host = Host::attach(target.address());
    let silent = || target.usage().iter().map(|core| core.silent_disks.len()).sum::<usize>();
    fs.stick();
    // The page cache would answer a second read of the same blocks.
    for (index, queue) in host.io.iter_mut().enumerate() {
        let lba = 512 * index as u64;
        let read = SubmissionEntry::read(1, 1, lba, 1).with_sgl(SglDescriptor::transport(512));
        queue.say(&capsule(Digests::default(), read, &[]));
    }
    wait_until("all cores find it", || silent() == CORES);
    fs.release();
    assert_eq!(host.responses(), [Status::SUCCESS; CORES]);
    log.wait_for("answers again");
    wait_until("no core waits for it", || silent() == 0);
    drop(host);
    log.wait_for("disconnected");
    target.end().expect("it ends in order");
    log.is(&[
        ("INFO connected", HOST),
        ("ERROR a disk does not answer", DISK),
        ("WARN the disk answers again", DISK),
        ("INFO disconnected", HOST),
    ]);
}

/// A device that no core can open.
#[derive(Debug)]
struct Refuses;

impl Driver for Refuses {
    fn name(&self) -> String {
        "a library".to_owned()
    }

    fn open(&self, _: &mut Reactor, _: DiskTokens) -> Result<Box<dyn BlockDevice>, OpenError> {
        Err(OpenError::Device { name: self.name(), reason: "it is not for us".to_owned() })
    }
}

#[test]
fn a_device_that_no_core_can_open_is_one_line() {
    let log = Log::start();
    let target = TestTarget::with_device_on_cores(CORES, Refuses);
    wait_until("it is known", || target.manager().list()[0].state == "not ready");
    target.end().expect("it ends in order");
    log.is(&[("ERROR namespace not ready", &[NQN, "nsid=1", "it is not for us"])]);
}

/// The start waits for an address that another program has, and says so once.
#[test]
fn a_listener_that_cannot_be_bound_is_a_warning_and_an_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address");
    let folder = tempfile::tempdir().expect("a folder");
    let (config, state) = (folder.path().join("target.toml"), folder.path().join("state"));
    let text = format!(
        "[target]\nstate_dir = {state:?}\n[control]\nenabled = false\n[[listener]]\naddress = \"127.0.0.1\"\n\
         port = {}\ntransport = \"tcp\"\n[[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n\
         [[subsystem.namespace]]\nmemory = \"1MiB\"\n",
        address.port()
    );
    fs::write(&config, text).expect("a configuration");
    let output = Command::new(program("ringfab-target")).args(["serve", "--config"]).arg(&config).output();
    let output = output.expect("it runs");
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).expect("text");
    let told: Vec<&str> = said.lines().filter(|line| line.contains(&address.to_string())).collect();
    assert_eq!(told.len(), 2, "{said}");
    assert!(told[0].contains("is in use; tried again for") && told[1].contains("cannot listen on"), "{said}");
}
