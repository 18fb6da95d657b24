//! Each command against each target that does not do its part.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ringfab_tests::fake_target::{FakeTarget, Fault};
use ringfab_tests::{NQN, not_run, own_mounts, program};
use tempfile::TempDir;

/// A command with a controller to talk to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Discover,
    List,
    IdCtrl,
    IdNs,
    Smart,
    Read,
    Write,
    Bench,
    Nbd,
    Fuse,
}

const VERBS: [Verb; 10] = [
    Verb::Discover,
    Verb::List,
    Verb::IdCtrl,
    Verb::IdNs,
    Verb::Smart,
    Verb::Read,
    Verb::Write,
    Verb::Bench,
    Verb::Nbd,
    Verb::Fuse,
];

/// As far as the target lets a command get.
const FAULTS: [Fault; 6] =
    [Fault::Silent, Fault::Drips, Fault::OnlyInitializes, Fault::MuteIo, Fault::ResetsIo, Fault::Dies];

/// A program that runs, in a folder of its own.
struct Running {
    child: Child,
    folder: TempDir,
}

impl Running {
    fn start(verb: Verb, target: &FakeTarget, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let subsystem = if verb == Verb::Discover { "" } else { NQN };
        let url = format!("nvme+tcp://{}/{subsystem}", target.address);
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let (name, rest) = match verb {
            Verb::Discover => ("discover", Vec::new()),
            Verb::List => ("list", Vec::new()),
            Verb::IdCtrl => ("id-ctrl", Vec::new()),
            Verb::IdNs => ("id-ns", Vec::new()),
            Verb::Smart => ("smart", Vec::new()),
            Verb::Read => ("read", words(&format!("--length 1M --output {}", path("out")))),
            Verb::Write => ("write", words("--length 1M --input /dev/zero --destroy-data 1")),
            Verb::Bench => ("bench", words("--depth 4 --time 60s")),
            Verb::Nbd => ("nbd", words(&format!("--socket {}", path("socket")))),
            Verb::Fuse => {
                own_mounts();
                fs::create_dir(folder.path().join("disks")).expect("a directory");
                ("fuse", words(&format!("{} --io-uring never", path("disks"))))
            }
        };
        let log = File::create(folder.path().join("log")).expect("a log");
        let child = Command::new(program("ringfab"))
            .args([name, &url])
            .args(rest)
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the program starts");
        Self { child, folder }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The end, if it comes within a time.
    fn end(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            let ended = self.child.try_wait().expect("its state");
            if ended.is_some() || Instant::now() >= deadline {
                return ended;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn interrupt(&self) {
        let pid = self.child.id().to_string();
        Command::new("kill").args(["-INT", &pid]).status().expect("kill runs");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _waited = self.child.wait();
        let mounted: PathBuf = self.folder.path().join("disks");
        if mounted.is_dir() {
            let _free = Command::new("umount").arg("-lq").arg(mounted).stderr(Stdio::null()).status();
        }
    }
}

/// Runs all cells, several at a time, and gives what is wrong with any.
fn all<T: Copy + Send + Sync>(cells: &[T], run: impl Fn(T) -> Result<(), String> + Sync) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let work = || {
        let cells = std::iter::from_fn(|| cells.get(next.fetch_add(1, Ordering::AcqRel)));
        cells.filter_map(|cell| run(*cell).err()).collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..12).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn verbs() -> Vec<Verb> {
    if File::open("/dev/fuse").is_err() || !nix::unistd::geteuid().is_root() {
        not_run("ringfab fuse: there is no /dev/fuse, or no right to mount");
        return VERBS.into_iter().filter(|verb| *verb != Verb::Fuse).collect();
    }
    VERBS.to_vec()
}

/// Long beyond a second, since machines are busy; what is not bounded takes ten seconds or for ever.
const PROMPT: Duration = Duration::from_secs(4);

#[test]
fn ctrl_c_ends_each_command_whatever_the_target_does() {
    let cells: Vec<_> = verbs().into_iter().flat_map(|verb| FAULTS.map(|fault| (verb, fault))).collect();
    let wrong = all(&cells, |(verb, fault)| {
        let target = FakeTarget::start(fault);
        let mut running = Running::start(verb, &target, &[]);
        let deadline = Instant::now() + Duration::from_secs(30);
        while target.accepted() == 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        if running.end(Duration::from_millis(500)).is_some() {
            // It needed nothing that this target does not do, or has failed.
            return Ok(());
        }
        running.interrupt();
        let start = Instant::now();
        match running.end(PROMPT) {
            None => Err(format!("{verb:?} with {fault:?} goes on: {}", running.log())),
            Some(status) if status.signal().is_some() || status.code() == Some(101) => {
                Err(format!("{verb:?} with {fault:?} crashed: {status}: {}", running.log()))
            }
            Some(_) if start.elapsed() > PROMPT => Err(format!("{verb:?} with {fault:?} is late")),
            Some(_) => Ok(()),
        }
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn ctrl_c_ends_a_copy_whose_other_end_is_silent() {
    let target = FakeTarget::start(Fault::None);
    let url = format!("nvme+tcp://{}/{NQN}?ns=1", target.address);
    for (arguments, accepted) in
        [(["read", &url].as_slice(), 3), (&["write", &url, "--destroy-data", "1"], 5)]
    {
        let mut copy = Command::new(program("ringfab"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        // Both pipes stay open, and nothing is read or written by us.
        let _pipes = (copy.stdin.take(), copy.stdout.take());
        let folder = tempfile::tempdir().expect("a folder");
        let deadline = Instant::now() + Duration::from_secs(20);
        while target.accepted() + 1 < accepted && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut running = Running { child: copy, folder };
        assert!(running.end(Duration::from_millis(500)).is_none(), "{arguments:?} has something to wait for");
        running.interrupt();
        let status = running.end(PROMPT).expect("its end");
        assert_eq!(status.code(), Some(130), "{arguments:?}");
    }
}

#[test]
fn each_command_ends_by_itself_and_says_why_whatever_the_target_does() {
    let io = [Verb::Read, Verb::Write, Verb::Bench];
    let mut cells = Vec::new();
    for verb in io {
        for (fault, reason) in [
            (Fault::MuteIo, "given up 2s after the connection was lost"),
            (Fault::ResetsIo, "given up 2s after the connection was lost"),
            (Fault::Dies, "given up 2s after the connection was lost"),
            (Fault::Changes, "is another one"),
        ] {
            cells.push((verb, fault, reason));
        }
    }
    for verb in VERBS {
        cells.push((verb, Fault::Closes, "ringfab: "));
        cells.push((verb, Fault::Silent, "no answer within"));
        cells.push((verb, Fault::Drips, "no answer within"));
    }
    for verb in [Verb::List, Verb::Bench] {
        cells.push((verb, Fault::OnlyInitializes, "no answer within"));
    }
    let quick = [
        "--connect-timeout",
        "1s",
        "--io-timeout",
        "400ms",
        "--ctrl-loss-timeout",
        "2s",
        "--reconnect-delay",
        "50ms",
    ];
    let wrong = all(&cells, |(verb, fault, reason)| {
        let target = FakeTarget::start(fault);
        let mut running = Running::start(verb, &target, &quick);
        let Some(status) = running.end(Duration::from_secs(150)) else {
            return Err(format!("{verb:?} with {fault:?} goes on: {}", running.log()));
        };
        let log = running.log();
        if status.code() == Some(1) && log.contains(reason) {
            return Ok(());
        }
        Err(format!("{verb:?} with {fault:?} ended with {status} without saying `{reason}`: {log}"))
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn whoever_waits_is_told_for_what_and_until_when() {
    let cells = [
        (Verb::Read, Fault::Dies, "reconnecting is given up in 600 s"),
        (Verb::Read, Fault::ResetsIo, "nothing was answered since it was made"),
        (Verb::Read, Fault::MuteIo, "no answer to"),
        (Verb::Bench, Fault::MuteIo, "no answer to"),
        (Verb::List, Fault::OnlyInitializes, "still waiting for Connect"),
        (Verb::Nbd, Fault::Silent, "still waiting for the connection"),
    ];
    let wrong = all(&cells, |(verb, fault, line)| {
        let target = FakeTarget::start(fault);
        let running = Running::start(verb, &target, &["--reconnect-delay", "50ms"]);
        let deadline = Instant::now() + Duration::from_secs(30);
        while !running.log().contains(line) {
            if Instant::now() >= deadline {
                return Err(format!("{verb:?} with {fault:?} did not say `{line}`: {}", running.log()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
