//! What is at the path of a Unix socket before we listen there.

use std::fmt;
use std::io::ErrorKind;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket, sockopt::PeerCredentials,
};
use nix::unistd::geteuid;
use ringfab_base::{VisiblePath as _, shell_word};

/// How long the kernel may hold the socket of a process that was killed, and how often to look.
const PATIENCE: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(50);

/// Takes an old socket away on which nobody listens, if it is ours. A living one, or another file, is an error that
/// says what is there.
pub(super) fn prepare(path: &Path) -> Result<()> {
    let shown = path.visible();
    let found = match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found.with_context(|| format!("look at {shown}"))?,
    };
    ensure!(found.file_type().is_socket(), "{shown} exists and is not a socket; choose another path");
    let deadline = Instant::now() + PATIENCE;
    loop {
        match probe(path) {
            Ok(Listener::Gone(_)) if Instant::now() < deadline => std::thread::sleep(RETRY),
            Ok(listener) => bail!("{listener} listens on {shown}; end it first, or choose another path"),
            Err(Errno::ECONNREFUSED) => break,
            Err(error) => return Err(error).with_context(|| format!("who listens on {shown}")),
        }
    }
    ensure!(
        found.uid() == geteuid().as_raw(),
        "{shown} is an old socket of user {}; remove it with `rm {}`",
        found.uid(),
        shell_word(path.to_string_lossy())
    );
    std::fs::remove_file(path).with_context(|| format!("remove the old socket {shown}"))?;
    tracing::warn!("{shown}: removed an old socket on which nobody listened");
    Ok(())
}

/// Who listens on a socket.
enum Listener {
    /// A process, by its number and name.
    Process(i32, String),
    /// One that has ended, but whose ring still holds the socket. The kernel lets go of it soon.
    Gone(i32),
    /// Somebody.
    Unknown,
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listener::Process(pid, name) => write!(f, "process {pid} ({name})"),
            Listener::Gone(pid) => write!(f, "somebody to whom process {pid} left it"),
            Listener::Unknown => f.write_str("a process"),
        }
    }
}

/// Asks who listens; [`Errno::ECONNREFUSED`] when nobody does.
fn probe(path: &Path) -> Result<Listener, Errno> {
    // A listener whose queue is full must not hold us up; that answer means that it lives.
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let probe = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    match connect(probe.as_raw_fd(), &UnixAddr::new(path)?) {
        Ok(()) => {}
        Err(Errno::EAGAIN) => return Ok(Listener::Unknown),
        Err(error) => return Err(error),
    }
    let pid = getsockopt(&probe, PeerCredentials).map_or(0, |peer| peer.pid());
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    Ok(match name {
        _ if pid == 0 => Listener::Unknown,
        Ok(name) => Listener::Process(pid, name.trim_end().to_owned()),
        Err(_) => Listener::Gone(pid),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_dead_socket_is_taken_away_and_whatever_else_is_there_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        prepare(&path).expect("nothing is there");
        let listener = UnixListener::bind(&path).expect("a socket");
        let refused = prepare(&path).expect_err("somebody listens").to_string();
        assert!(refused.contains(&format!("process {} (", std::process::id())), "{refused}");
        drop(listener);
        prepare(&path).expect("nobody listens");
        assert!(!path.exists());
        std::fs::write(&path, "text").expect("a file");
        let refused = prepare(&path).expect_err("a file").to_string();
        assert!(refused.contains("not a socket") && path.exists(), "{refused}");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        assert!(prepare(&link).is_err() && link.symlink_metadata().is_ok(), "a link is not followed");
    }
}
