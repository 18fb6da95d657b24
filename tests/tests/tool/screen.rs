//! A terminal for a program.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ringfab_tests::PATIENCE;

/// A program on a terminal, which shows its standard error, and its output unless that goes elsewhere.
pub(super) struct Screen {
    child: Child,
    shown: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Screen {
    /// Both streams go to a terminal with so many columns.
    pub(super) fn start(columns: u16, command: &mut Command) -> Self {
        Self::open(columns, command.stdin(Stdio::null()), true)
    }

    /// The output goes nowhere, and what it reads comes from here.
    pub(super) fn with_input(columns: u16, command: &mut Command) -> (Self, ChildStdin) {
        let mut this = Self::open(columns, command.stdin(Stdio::piped()), false);
        let input = this.child.stdin.take().expect("piped");
        (this, input)
    }

    fn open(columns: u16, command: &mut Command, output: bool) -> Self {
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(Some(&size), None).expect("a terminal");
        let slave = |fd: &OwnedFd| Stdio::from(fd.try_clone().expect("a descriptor"));
        command.env_remove("NO_COLOR").env_remove("COLUMNS").env("TERM", "xterm");
        command.stderr(slave(&pair.slave));
        command.stdout(if output { slave(&pair.slave) } else { Stdio::null() });
        let child = command.spawn().expect("it runs");
        // The terminal ends when the last program has closed it, so this one must not hold it.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        drop(pair.slave);
        let shown: Arc<Mutex<Vec<u8>>> = Arc::default();
        let (seen, mut master) = (shown.clone(), File::from(pair.master));
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 4096];
            loop {
                match master.read(&mut piece) {
                    Ok(0) => return,
                    Ok(count) => {
                        seen.lock().unwrap_or_else(PoisonError::into_inner).extend(&piece[..count]);
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    // Nobody has the terminal open any more (EIO).
                    Err(_) => return,
                }
            }
        });
        Self { child, shown, reader }
    }

    /// What it has shown so far.
    fn text(&self) -> String {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&shown).replace("\r\n", "\n")
    }

    /// Waits until it has shown this.
    pub(super) fn wait_for(&self, what: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.text().contains(what) {
            assert!(Instant::now() < deadline, "no {what:?} in {:?}", self.text());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends it a signal.
    pub(super) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("a process");
    }

    /// What it has shown when it has ended.
    pub(super) fn end(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().expect("it ends");
        let shown = self.shown.clone();
        self.reader.join().expect("it reads");
        let shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
        (status, String::from_utf8_lossy(&shown).replace("\r\n", "\n"))
    }
}
