//! A file system whose file stops answering when it is told to: a disk that hangs.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use nix::mount::{MntFlags, umount2};

use crate::program;

/// A mounted file system with one file, `disk`, of zeroes at first. Dropping it lets everything go on and unmounts.
#[derive(Debug)]
pub struct StuckFs {
    server: Mutex<Server>,
    folder: tempfile::TempDir,
}

/// The process that serves it.
#[derive(Debug)]
struct Server {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl StuckFs {
    /// Mounts one whose file has so many bytes.
    ///
    /// # Errors
    /// Why it cannot be mounted: without `/dev/fuse`, or the right to.
    ///
    /// # Panics
    /// When there is no folder, or no program.
    pub fn mount(bytes: usize) -> Result<Self, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let mut child = Command::new(program("ringfab-stuck-fs"))
            .arg(folder.path())
            .arg(bytes.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let answers = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut server = Server { child, answers };
        match server.answer().as_str() {
            "mounted" => Ok(Self { server: Mutex::new(server), folder }),
            other => Err(other.to_owned()),
        }
    }

    /// Its file.
    pub fn disk(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    /// From now on it answers no read, no write and no sync.
    pub fn stick(&self) {
        self.ask("stick");
    }

    /// Answers everything that waits, in order, and whatever comes.
    pub fn release(&self) {
        self.ask("release");
    }

    /// How many requests it has not answered.
    ///
    /// # Panics
    /// When its server is gone.
    pub fn waiting(&self) -> usize {
        self.ask("waiting").parse().expect("a number")
    }

    /// What its file has at a place.
    ///
    /// # Panics
    /// When its server is gone.
    pub fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        let text = self.ask(&format!("bytes {offset} {length}"));
        let byte = |index: usize| u8::from_str_radix(&text[index..index + 2], 16).expect("hexadecimal");
        (0..text.len()).step_by(2).map(byte).collect()
    }

    fn ask(&self, what: &str) -> String {
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        let words = server.child.stdin.as_mut().expect("it is piped");
        writeln!(words, "{what}").expect("the server is there");
        server.answer()
    }
}

impl Server {
    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the server answers");
        line.trim_end().to_owned()
    }
}

impl Drop for StuckFs {
    fn drop(&mut self) {
        let server = self.server.get_mut().unwrap_or_else(PoisonError::into_inner);
        // The end of its input ends it.
        drop(server.child.stdin.take());
        let _ended = server.child.wait();
        // It unmounts when it ends, unless somebody has the file open still.
        let _already = umount2(self.folder.path(), MntFlags::MNT_DETACH);
    }
}
