//! What the service manager hears of the target, and that it hears nothing while a core hangs.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::{ConnectOptions, HostIdentity, Url};
use ringfab_tests::{NQN, Service, not_run};

/// What the service manager says that it waits for, in microseconds.
const WATCHDOG_USEC: &str = "1000000";

/// How long a turn of a core may take before it is said to hang, and a little more.
const HANGS_AFTER: Duration = Duration::from_secs(6);

/// A target that tells a socket of ours how it is. It spins for so long that it seldom sleeps under load.
fn serve(socket: &Path) -> Service {
    let arguments = |folder: &Path| {
        let config = folder.join("target.toml");
        let text = format!(
            "[target]\nstate_dir = {:?}\ncores = 1\nspin_us = 1000000\n\
             [[listener]]\naddress = \"127.0.0.1\"\nport = 0\n\
             [[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n[[subsystem.namespace]]\nnull = \"1MiB\"\n",
            folder.join("state")
        );
        std::fs::write(&config, text).expect("a configuration");
        vec!["serve".to_owned(), "--config".to_owned(), config.display().to_string()]
    };
    let environment = [("NOTIFY_SOCKET", socket), ("WATCHDOG_USEC", Path::new(WATCHDOG_USEC))];
    Service::start_with("ringfab-target", arguments, &environment)
}

/// A host that reads all the time.
fn load(url: &Url, stop: &Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let host = HostIdentity::for_url(url).expect("an identity");
    let options = ConnectOptions::new(url.clone(), host);
    let controller = Controller::connect(options, EngineOptions::default()).expect("attached");
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            controller.read_at(1, 0, &mut [0; 4096]).expect("read, if late");
        }
    })
}

/// A thread of another process that this one has stopped. It goes on when this is dropped: without its tracer its
/// process could not even be ended.
struct Stopped(Pid);

impl Stopped {
    /// Takes hold of a thread and stops it where it is not asleep in its ring: there it may be for ever.
    fn while_awake(thread: Pid) -> nix::Result<Self> {
        ptrace::seize(thread, ptrace::Options::empty())?;
        let (stopped, begin) = (Self(thread), Instant::now());
        for pause in (0..1000).cycle().map(Duration::from_micros) {
            ptrace::interrupt(thread).expect("stopped");
            waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it has stopped");
            // The call that it is in comes first.
            let call = std::fs::read_to_string(format!("/proc/{thread}/syscall")).expect("a call or none");
            if !call.starts_with(&format!("{} ", nix::libc::SYS_io_uring_enter)) {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(10), "it is asleep all the time");
            ptrace::cont(thread, None).expect("it goes on");
            // It is caught awake at another moment each time.
            std::thread::sleep(pause);
        }
        Ok(stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = ptrace::detach(self.0, None);
    }
}

/// The thread of the first core.
fn core_of(service: &Service) -> Pid {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", service.id())).expect("proc").flatten();
    let is_core = |name: &String| name.starts_with("core-");
    let mut cores = tasks
        .filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| is_core(&name)));
    let number = cores.next().expect("a core").file_name().into_string().expect("a number");
    Pid::from_raw(number.parse().expect("a number"))
}

/// Whether a message comes within `limit`; others are passed over.
fn hears(socket: &UnixDatagram, what: &str, limit: Duration) -> bool {
    let end = Instant::now() + limit;
    let mut bytes = [0; 1024];
    while let Some(rest) = end.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero()) {
        socket.set_read_timeout(Some(rest)).expect("a limit");
        let Ok(length) = socket.recv(&mut bytes) else { continue };
        if String::from_utf8_lossy(&bytes[..length]).lines().any(|line| line == what) {
            return true;
        }
    }
    false
}

#[test]
fn the_watchdog_is_fed_except_while_a_core_hangs() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    let second = Duration::from_secs(1);
    let service = serve(&path);
    assert!(hears(&socket, "READY=1", 5 * second));
    let stop = Arc::new(AtomicBool::new(false));
    let url = format!("nvme+rdma://{}/{NQN}", service.ready()).parse().expect("a URL");
    let load = load(&url, &stop);
    assert!(hears(&socket, "WATCHDOG=1", 5 * second));

    // Only this thread of it stops.
    let Ok(stopped) = Stopped::while_awake(core_of(&service)) else {
        stop.store(true, Ordering::Relaxed);
        load.join().expect("the host works on");
        return not_run("this system does not let a process stop a thread of its child");
    };
    assert!(hears(&socket, "WATCHDOG=1", 2 * second), "not yet");
    hears(&socket, "nothing in particular", HANGS_AFTER);
    assert!(!hears(&socket, "WATCHDOG=1", 2 * second), "it hangs");
    assert!(service.log().contains("a core hangs"), "{}", service.log());

    drop(stopped);
    assert!(hears(&socket, "WATCHDOG=1", 2 * second), "it does not hang any more");
    stop.store(true, Ordering::Relaxed);
    load.join().expect("the host works on");
    service.signal("TERM");
    assert!(hears(&socket, "STOPPING=1", 5 * second));
}
