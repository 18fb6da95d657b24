//! What a target costs while its hosts do nothing.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringfab_fabric::rdma::Access;
use ringfab_spec::{IntoBytes, Status, SubmissionEntry};
use ringfab_tests::raw_host::{Association, RawHost};
use ringfab_tests::{program, wait_until};

/// Threads of a target.
const CORE: &str = "core-0";
const LOOKS: &str = "looks";

/// For so many looks at the disks idleness is watched.
const IDLE_LOOKS: u64 = 5;

/// How often a target with one core wakes up meanwhile, at most: its timers come ten times a second, its watchers less
/// often.
const WAKE_UPS_MAX: u64 = 250;

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

    /// What the system says of each of its threads, by their names.
    fn threads(&self) -> BTreeMap<String, String> {
        let path = format!("/proc/{}/task", self.child.id());
        let threads = std::fs::read_dir(path).expect("it runs");
        let statuses = threads.map(|thread| thread.expect("a thread").path().join("status"));
        let statuses = statuses.map(|path| std::fs::read_to_string(path).expect("its threads stay"));
        statuses.map(|status| (text(&status, "Name:"), status)).collect()
    }

    /// How often they have gone to sleep so far. Being made to wait by others does not count.
    fn sleeps(&self) -> u64 {
        self.threads().values().map(|status| sleeps_of(status)).sum()
    }

    /// Waits until the thread that looks at the disks, once a second, has done so so often.
    fn wait_for_looks(&self, looks: u64) {
        let seen = || sleeps_of(&self.threads()[LOOKS]);
        let enough = seen() + looks;
        wait_until("it has looked at its disks", || seen() >= enough);
    }

    /// How often it wakes up while it looks at its disks so often, and nobody asks anything of it.
    fn wake_ups_while_idle(&self) -> u64 {
        // What attaching has left to do is done with the second one.
        self.wait_for_looks(2);
        let before = self.sleeps();
        self.wait_for_looks(IDLE_LOOKS);
        let after = self.sleeps();
        // Who never sleeps does not wake up either.
        wait_until("its core sleeps", || text(&self.threads()[CORE], "State:") == "S");
        after - before
    }

    fn resident_kib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        number(&std::fs::read_to_string(path).expect("it runs"), "VmRSS:")
    }
}

/// The word behind a name at the begin of a line.
fn text(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the line is there");
    line.split_whitespace().next().expect("a word").to_owned()
}

fn sleeps_of(status: &str) -> u64 {
    number(status, "voluntary_ctxt_switches:")
}

/// The same, where it is a number.
fn number(status: &str, name: &str) -> u64 {
    text(status, name).parse().expect("a number")
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

/// The processor time of an idle target is measured by the benchmarks: what one wake-up costs is the machine's matter.
#[test]
fn a_hundred_idle_connections_wake_it_up_no_more_often_than_two() {
    let process = Process::start();
    let mut host = RawHost::new(process.address);
    let mut attached: Vec<Association> = Vec::new();
    let [few, many] = [1, 50].map(|hosts| {
        while attached.len() < hosts {
            let association = host.attach();
            let _queue = host.attach_io(association, 1, 32);
            attached.push(association);
        }
        process.wake_ups_while_idle()
    });
    assert!(few <= WAKE_UPS_MAX, "{few} wake-ups with two connections");
    // A timer for each of them that fires once in a second is 500.
    assert!(many <= few * 3 / 2, "{many} wake-ups, {few} with two connections");
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
