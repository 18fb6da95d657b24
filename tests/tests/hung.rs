//! A disk that does not answer costs what waits for it, and nothing else.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ringfab_spec::sqe::PropertySize;
use ringfab_spec::tcp::{CapsuleResp, Digests, PduType};
use ringfab_spec::{CompletionEntry, FromBytes, SglDescriptor, Status, SubmissionEntry};
use ringfab_target::core::{SilentDisk, State};
use ringfab_tests::raw_tcp::{Pdu, RawTcp, capsule};
use ringfab_tests::stuck_fs::StuckFs;
use ringfab_tests::{Caching, PATIENCE, Service, TestTarget, free_port, not_run, wait_until};

/// No digests.
fn none() -> Digests {
    Digests::default()
}

/// Namespace 1 is in memory, namespace 2 on the file that hangs. There are few buffers.
fn namespaces(fs: &StuckFs, caching: Caching) -> String {
    let (direct, cached) = (caching == Caching::Direct, caching == Caching::Page);
    format!(
        "[[subsystem.namespace]]\nmemory = \"4MiB\"\nblock_bytes = 512\n\
         [[subsystem.namespace]]\npath = {:?}\nblock_bytes = 4096\ndirect = {direct}\nallow_page_cache = {cached}\n\
         [memory]\nsmall_buffers = 64\nlarge_buffers = 32\n",
        fs.disk()
    )
}

/// A file system that can hang; none where nothing can be mounted.
fn file_system() -> Option<StuckFs> {
    match StuckFs::mount(8 << 20) {
        Ok(fs) => Some(fs),
        Err(error) => {
            not_run(&format!("disks that hang: {error}"));
            None
        }
    }
}

/// A target whose second disk can hang.
struct Served {
    target: TestTarget,
    fs: StuckFs,
}

impl Served {
    fn start() -> Option<Self> {
        let fs = file_system()?;
        let target = TestTarget::with_listener("transport = \"tcp\"", &namespaces(&fs, Caching::Page));
        Some(Self { target, fs })
    }
}

/// The target ends in order, which it cannot while the kernel waits for the file system.
impl Drop for Served {
    fn drop(&mut self) {
        self.fs.release();
    }
}

fn block_bytes(nsid: u32) -> usize {
    if nsid == 1 { 512 } else { 4096 }
}

fn write(cid: u16, nsid: u32, lba: u64, byte: u8) -> Vec<u8> {
    capsule(none(), SubmissionEntry::write(cid, nsid, lba, 1, false), &[byte; 4096][..block_bytes(nsid)])
}

fn read(cid: u16, nsid: u32, blocks: u32) -> Vec<u8> {
    let sgl = SglDescriptor::transport(blocks * block_bytes(nsid) as u32);
    capsule(none(), SubmissionEntry::read(cid, nsid, 0, blocks).with_sgl(sgl), &[])
}

/// The next response, whatever data come before it.
fn response(io: &mut RawTcp) -> CompletionEntry {
    loop {
        let Pdu { header, .. } = io.hear();
        if header[0] == PduType::CAPSULE_RESP.0 {
            return CapsuleResp::read_from_bytes(&header).expect("as long as one").cqe;
        }
    }
}

fn is_silent(io: &mut RawTcp, time: Duration) -> bool {
    io.stream.set_read_timeout(Some(time)).expect("an option");
    let silent = io.stream.peek(&mut [0]).is_err();
    io.stream.set_read_timeout(Some(PATIENCE)).expect("an option");
    silent
}

/// Attaches with one I/O queue, and says how long that took.
fn attach(address: SocketAddr) -> (RawTcp, RawTcp, Duration) {
    let begun = Instant::now();
    let (admin, controller) = RawTcp::attach(address, none());
    let io = RawTcp::attach_io(address, none(), 1, controller);
    (admin, io, begun.elapsed())
}

fn silent_disks(target: &TestTarget) -> Vec<SilentDisk> {
    target.usage().into_iter().flat_map(|core| core.silent_disks).collect()
}

#[test]
fn a_host_that_left_a_write_with_a_hung_disk_comes_back_for_its_other_disks_and_the_old_write_comes_first() {
    let Some(served) = Served::start() else { return };
    let Served { target, fs } = &served;
    let (admin, mut io, _) = attach(target.address());
    fs.stick();
    io.say(&write(1, 2, 0, 0x01));
    wait_until("the write hangs", || fs.waiting() == 1);
    drop((admin, io));

    let (_admin, mut io, waited) = attach(target.address());
    assert!(waited < Duration::from_secs(8), "{waited:?}");
    io.say(&read(1, 1, 8));
    assert_eq!(response(&mut io).status(), Status::SUCCESS, "the other disk works");
    // What the host writes now must not be undone by what it wrote before.
    io.say(&write(2, 2, 0, 0x02));
    assert!(is_silent(&mut io, Duration::from_millis(500)), "it waits: {:?}", response(&mut io));
    assert_eq!(fs.waiting(), 1, "the disk has not seen it");
    io.say(&read(3, 1, 8));
    assert_eq!(response(&mut io).cid.get(), 3, "and the other disk works on");

    fs.release();
    let written = response(&mut io);
    assert_eq!((written.cid.get(), written.status()), (2, Status::SUCCESS));
    assert_eq!(fs.bytes(0, 512), [0x02; 512]);
}

#[test]
fn a_command_for_a_disk_that_stays_hung_ends_and_may_be_tried_again() {
    let Some(served) = Served::start() else { return };
    let Served { target, fs } = &served;
    let (admin, mut io, _) = attach(target.address());
    fs.stick();
    io.say(&write(1, 2, 0, 0x01));
    wait_until("the write hangs", || fs.waiting() == 1);
    drop((admin, io));
    let (_admin, mut io, _) = attach(target.address());
    io.say(&read(2, 2, 1));
    let ended = response(&mut io);
    assert_eq!((ended.cid.get(), ended.status()), (2, Status::NAMESPACE_NOT_READY), "without Do Not Retry");
    fs.release();
    wait_until("nothing is left behind", || target.usage()[0].commands == 0);
    io.say(&read(3, 2, 1));
    assert_eq!(response(&mut io).status(), Status::SUCCESS);
}

#[test]
fn what_hangs_is_named_and_its_buffers_do_not_count_against_the_other_disks_of_its_host() {
    let Some(served) = Served::start() else { return };
    let Served { target, fs } = &served;
    let (_admin, mut io, _) = attach(target.address());
    fs.stick();
    for cid in 0..20 {
        io.say(&read(cid, 2, 32));
    }
    wait_until("the disk is told to be silent", || !silent_disks(target).is_empty());
    let [silent] = &silent_disks(target)[..] else { panic!("one disk") };
    assert_eq!((silent.nsid, silent.command, silent.hung), (2, "Read", true));
    assert_eq!(silent.source, fs.disk().display().to_string());
    assert!(silent.seconds >= 5 && silent.commands > 1, "{silent:?}");
    // Of 32 buffers the host may have half, and had all of these at the hung disk.
    io.say(&read(30, 1, 256));
    let other = response(&mut io);
    assert_eq!(other.cid.get(), 30, "the other disk gets its buffers: {other:?}");
    fs.release();
    for _ in 0..20 {
        assert_eq!(response(&mut io).status(), Status::SUCCESS);
    }
    wait_until("the disk is told to answer", || silent_disks(target).is_empty());
}

#[test]
fn a_command_for_blocks_that_a_pair_has_claimed_waits_without_buffers_and_can_be_aborted() {
    let Some(served) = Served::start() else { return };
    let Served { target, fs } = &served;
    let (mut admin, mut io, _) = attach(target.address());
    let pair = |cid: u16, first: bool| {
        let entry = if first {
            SubmissionEntry::compare(cid, 2, 0, 1).with_fuse(SubmissionEntry::FUSE_FIRST)
        } else {
            SubmissionEntry::write(cid, 2, 0, 1, false).with_fuse(SubmissionEntry::FUSE_SECOND)
        };
        capsule(none(), entry, &[0; 4096])
    };
    fs.stick();
    io.say(&[pair(1, true), pair(2, false)].concat());
    wait_until("the Compare is at the disk", || fs.waiting() == 1);
    let taken = || target.usage()[0].io_buffers.taken;
    let before = taken();
    (10..18).for_each(|cid| io.say(&read(cid, 2, 32)));
    let held_back = || target.usage()[0].commands_in(State::HeldBack);
    wait_until("the reads are held back", || held_back() == 8);
    assert_eq!((taken(), fs.waiting()), (before, 1), "they have no buffers, and the disk has not seen them");
    io.say(&read(30, 1, 8));
    assert_eq!(response(&mut io).cid.get(), 30, "the other disk works on");
    let answer = admin.command(SubmissionEntry::abort(7, 1, 13));
    assert_eq!((answer.status(), answer.dw0.get()), (Status::SUCCESS, 0));
    assert_eq!(response(&mut io).cid.get(), 13);
    fs.release();
    let mut ended: Vec<(u16, Status)> =
        (0..9).map(|_| response(&mut io)).map(|response| (response.cid.get(), response.status())).collect();
    ended.sort_by_key(|(cid, _)| *cid);
    let expected = [1, 2, 10, 11, 12, 14, 15, 16, 17].map(|cid| (cid, Status::SUCCESS));
    assert_eq!(ended, expected);
}

#[test]
fn a_removal_waits_for_the_commands_that_run_and_not_for_ever() {
    let Some(served) = Served::start() else { return };
    let Served { target, fs } = &served;
    let (_admin, mut io, _) = attach(target.address());
    let mut manager = target.manager();
    fs.stick();
    io.say(&write(1, 2, 0, 0x01));
    wait_until("the write hangs", || fs.waiting() == 1);
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let removed = manager.remove(None, 2).map(drop);
            tell.send(removed).expect("somebody waits");
        });
        // It must be seen to wait.
        let early = told.recv_timeout(Duration::from_millis(300));
        fs.release();
        assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout), "the disk still works on the write");
        assert_eq!(told.recv_timeout(PATIENCE), Ok(Ok(())));
    });
    assert_eq!(response(&mut io).status(), Status::SUCCESS);
    assert_eq!(fs.bytes(0, 512), [0x01; 512], "what had begun was done");
}

#[test]
fn a_reset_does_not_wait_for_a_hung_disk() {
    let Some(served) = Served::start() else { return };
    let Served { target, fs } = &served;
    let (mut admin, mut io, _) = attach(target.address());
    fs.stick();
    io.say(&write(1, 2, 0, 0x01));
    wait_until("the write hangs", || fs.waiting() == 1);
    let begun = Instant::now();
    let disable = SubmissionEntry::property_set(9, 0x14, PropertySize::Four, 0x0046_0000);
    assert!(admin.command(disable).status().is_success());
    while admin.command(SubmissionEntry::property_get(10, 0x1c, PropertySize::Four)).result() & 1 != 0 {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    drop((admin, io));
}

#[test]
fn the_process_ends_within_its_limit_whatever_hangs() {
    let Some(fs) = file_system() else { return };
    let port = free_port();
    let mut service = Service::start("ringfab-target", |folder| {
        let config = folder.join("target.toml");
        let text = format!(
            "[target]\nstate_dir = {:?}\ncores = 1\ndrain_timeout_s = 2\n[control]\nenabled = false\n\
             [[listener]]\naddress = \"127.0.0.1\"\nport = {port}\ntransport = \"tcp\"\n\
             [[subsystem]]\nnqn = {:?}\nallow_any_host = true\n{}",
            folder.join("state"),
            ringfab_tests::NQN,
            namespaces(&fs, Caching::Direct)
        );
        fs::write(&config, text).expect("a configuration");
        vec!["serve".to_owned(), "--config".to_owned(), config.display().to_string()]
    });
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let (_admin, mut io, _) = attach(address);
    fs.stick();
    io.say(&write(1, 2, 0, 0x01));
    io.say(&read(2, 2, 1));
    wait_until("both hang", || fs.waiting() == 2);
    let begun = Instant::now();
    service.signal("TERM");
    // The kernel itself keeps what is left of a process until the file system has answered; nobody else can do that. It
    // serves nothing any more, and its port is free.
    wait_until("it has ended", || has_ended(service.id()));
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    assert!(TcpListener::bind(address).is_ok(), "the port is free");
    fs.release();
    service.wait(PATIENCE);
}

/// Whether a process is gone, or all that is left of it waits to be looked at.
fn has_ended(process: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{process}/stat")) else { return true };
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
}
