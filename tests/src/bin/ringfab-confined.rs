//! The target's service with an intruder in it: serves a configuration, and tries what the target does not need, on a
//! thread that starts once the service is ready, and on the system's first one. For `tests/tests/confinement.rs`.
//!
//! `ringfab-confined CONFIG READY PLACE ATTEMPT...`: PLACE is a folder outside of what the configuration names. Each
//! attempt is answered with a line: its name, and `done` or the system's error. Then the process ends.

use std::fs::File;
use std::io::{Error, Result};
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill, raise};
use nix::unistd::{Uid, getppid, setuid};
use ringfab_process::stack;
use ringfab_reactor::{Reactor, ReactorConfig};
use ringfab_target::service::{ServeOptions, serve};
use socket2::{Domain, Socket, Type};

/// How long the service may take to be ready.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    stack::run(|| {
        let mut arguments = std::env::args().skip(1);
        let mut next = || arguments.next().expect("CONFIG READY PLACE ATTEMPT...");
        let (config, ready, place) = (PathBuf::from(next()), PathBuf::from(next()), PathBuf::from(next()));
        let attempts: Vec<String> = arguments.collect();
        let options = ServeOptions { config, ready_file: Some(ready.clone()), log_format: None };
        let outcome = serve(&options, |target, config| {
            let running = ringfab_target::core::start(target, config)?;
            std::thread::spawn(move || intrude(&ready, &place, attempts));
            Ok(running)
        });
        if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    })
}

#[expect(clippy::print_stdout, reason = "the test reads it")]
fn intrude(ready: &Path, place: &Path, attempts: Vec<String>) {
    let deadline = Instant::now() + PATIENCE;
    while !ready.exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    for name in attempts {
        let (on_first, place) = (name.clone(), place.to_owned());
        let here = attempt(&name, &place);
        let there = stack::on_first_thread(move || attempt(&on_first, &place)).expect("the first thread");
        for outcome in [here, there] {
            println!("{name}: {}", outcome.map_or_else(|error| error.to_string(), |()| "done".to_owned()));
        }
    }
    raise(Signal::SIGTERM).expect("the end");
}

fn attempt(name: &str, place: &Path) -> Result<()> {
    let port = std::fs::read_to_string(place.join("port"));
    match name {
        "read" => File::open(place.join("secret")).map(drop),
        "write" => File::create(place.join("made")).map(drop),
        "list" => std::fs::read_dir(place).map(drop),
        "connect" => {
            // The file is out of reach when files are confined.
            let port = std::env::var("RINGFAB_TEST_PORT").or(port.map_err(Error::other));
            let port: u16 = port?.trim().parse().map_err(Error::other)?;
            TcpStream::connect(("127.0.0.1", port)).map(drop)
        }
        "listen" => TcpListener::bind("127.0.0.1:0").map(drop),
        "signal" => kill(getppid(), None).map_err(Error::from),
        "abstract" => {
            let name = std::env::var("RINGFAB_TEST_ABSTRACT").map_err(Error::other)?;
            UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?).map(drop)
        }
        "packets" => Socket::new(Domain::PACKET, Type::RAW, None).map(drop),
        "ring" => {
            let config = ReactorConfig { entries: 8, spin: Duration::ZERO, descriptors_max: 8 };
            Reactor::new(&config).map(drop)
        }
        "execute" => Command::new("/bin/true").status().map(drop),
        "trace" => {
            ptrace::attach(getppid()).and_then(|()| ptrace::detach(getppid(), None)).map_err(Error::from)
        }
        "mount" => {
            mount(Some("none"), place, Some("tmpfs"), MsFlags::empty(), None::<&str>).map_err(Error::from)
        }
        "become" => setuid(Uid::from_raw(0)).map_err(Error::from),
        other => Err(Error::other(format!("what is {other}?"))),
    }
}
