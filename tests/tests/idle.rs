//! What a target costs while its hosts do nothing.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringfab_fabric::rdma::Access;
use ringfab_spec::{IntoBytes, Status, SubmissionEntry};
use ringfab_tests::program;
use ringfab_tests::raw_host::{Association, RawHost};

/// How long idleness is watched.
const IDLE: Duration = Duration::from_secs(5);

/// How often a target with one core wakes up in that time, at most: its timers come ten times a second, its watchers
/// less often.
const WAKE_UPS_MAX: u64 = 250;

/// Of `/proc/PID/stat`, whatever the kernel's own clock.
const TICKS_PER_SECOND: u64 = 100;

/// A target process at its defaults, with one namespace.
struct Process {
    child: Child,
    address: std::net::SocketAddr,
    _folder: tempfile::TempDir,
}

impl Process {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (config, ready) = (folder.path().join("target.toml"), folder.path().join("ready"));
        let text = format!(
            "[target]\nstate_dir = {:?}\ncores = 1\n[[listener]]\naddress = \"127.0.0.1\"\nport = 0\n\
             [[subsystem]]\nnqn = {:?}\nallow_any_host = true\n[[subsystem.namespace]]\nnull = \"1GiB\"\n",
            folder.path(),
            ringfab_tests::NQN
        );
        std::fs::write(&config, text).expect("written");
        let mut command = Command::new(program("ringfab-target"));
        command.args(["serve", "--config"]).arg(&config).arg("--ready-file").arg(&ready);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a process");
        let begun = Instant::now();
        let address = loop {
            let line = std::fs::read_to_string(&ready).unwrap_or_default();
            match line.trim().parse() {
                Ok(address) => break address,
                Err(_) => assert!(begun.elapsed() < Duration::from_secs(10), "it never became ready"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        Self { child, address, _folder: folder }
    }

    /// Processor time so far, in clock ticks.
    fn ticks(&self) -> u64 {
        let path = format!("/proc/{}/stat", self.child.id());
        let stat = std::fs::read_to_string(path).expect("it runs");
        // Behind the name in parentheses; user and system time are fields 14 and 15 of the whole.
        let fields: Vec<&str> = stat.rsplit(')').next().expect("a name").split_whitespace().collect();
        fields[11].parse::<u64>().expect("a number") + fields[12].parse::<u64>().expect("a number")
    }

    /// How often any of its threads has gone to sleep so far. Being made to wait by others does not count.
    fn sleeps(&self) -> u64 {
        let path = format!("/proc/{}/task", self.child.id());
        let threads = std::fs::read_dir(path).expect("it runs");
        let statuses = threads.map(|thread| thread.expect("a thread").path().join("status"));
        let statuses = statuses.map(|path| std::fs::read_to_string(path).expect("its threads stay"));
        statuses.map(|status| number(&status, "voluntary_ctxt_switches:")).sum()
    }

    /// How often it wakes up in a while in which nobody asks anything of it.
    fn wake_ups_while_idle(&self) -> u64 {
        // What attaching has left to do is done by then.
        std::thread::sleep(Duration::from_millis(500));
        let (sleeps, ticks) = (self.sleeps(), self.ticks());
        // What is measured is the time in which nothing happens.
        std::thread::sleep(IDLE);
        // Who never sleeps does not wake up either.
        let ticks = self.ticks() - ticks;
        assert!(ticks < IDLE.as_secs() * TICKS_PER_SECOND / 4, "{ticks} ticks in {IDLE:?}");
        self.sleeps() - sleeps
    }

    fn resident_kib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        number(&std::fs::read_to_string(path).expect("it runs"), "VmRSS:")
    }
}

/// The number behind a name at the begin of a line.
fn number(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the line is there");
    line.split_whitespace().next().expect("a number").parse().expect("a number")
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

/// The processor time of an idle target is measured by the benchmarks: what one wake-up costs is the machine's matter.
#[test]
fn a_hundred_idle_connections_cost_no_wake_up_more_than_none() {
    let process = Process::start();
    let alone = process.wake_ups_while_idle();
    let mut host = RawHost::new(process.address);
    let attached: Vec<Association> = (0..50).map(|_| host.attach()).collect();
    let queues: Vec<_> = attached.iter().map(|one| host.attach_io(*one, 1, 32)).collect();
    assert_eq!(attached.len() + queues.len(), 100);
    let with_all = process.wake_ups_while_idle();
    assert!(alone <= WAKE_UPS_MAX, "{alone} wake-ups in {IDLE:?} without connections");
    // A timer for each of them that fires once in a second is 500.
    assert!(
        with_all <= alone + alone / 4 + 50,
        "{with_all} wake-ups in {IDLE:?}, {alone} without connections"
    );
    for association in attached {
        assert_eq!(host.controller_status(association), 1, "all are still there");
    }
}

#[test]
fn four_queues_of_depth_128_fit_into_128_mib() {
    let process = Process::start();
    let mut host = RawHost::new(process.address);
    let association = host.attach();
    let queues: Vec<_> = (1..=4).map(|id| host.attach_io(association, id, 128)).collect();
    // As much at once as the host may, so that the target has had every buffer in use: small ones, then large ones.
    for blocks in [8, 256] {
        let data = host.expose(&vec![1; blocks as usize * 512], Access::RemoteRead);
        for queue in &queues {
            for cid in 0..127 {
                let entry = SubmissionEntry::write(cid, 1, u64::from(cid) * 256, blocks, false);
                host.send(*queue, entry.with_sgl(data.sgl()).as_bytes(), None);
            }
        }
        for queue in queues.iter().flat_map(|queue| [*queue; 127]) {
            assert_eq!(host.completion(queue).status(), Status::SUCCESS);
        }
        host.revoke(data);
    }
    let resident = process.resident_kib();
    assert!(resident < 128 << 10, "{resident} KiB");
}
