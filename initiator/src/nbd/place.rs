//! The place of a Unix socket before we listen there.

use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::fd::{AsFd, AsRawFd as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket, sockopt::PeerCredentials,
};
use nix::unistd::geteuid;

/// Takes an old socket away on which nobody listens, if it is ours. A living one, or another file, is an error that says what
/// is there.
pub(super) fn prepare(path: &Path) -> Result<()> {
    let shown = path.display();
    let found = match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found.with_context(|| format!("look at {shown}"))?,
    };
    ensure!(found.file_type().is_socket(), "{shown} is there and is no socket; choose another path");
    // A listener whose queue is full must not hold us up; that answer means that it lives.
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let probe = socket(AddressFamily::Unix, SockType::Stream, flags, None).context("a socket")?;
    let address = UnixAddr::new(path).with_context(|| format!("listen on {shown}"))?;
    match connect(probe.as_raw_fd(), &address) {
        Ok(()) | Err(Errno::EAGAIN) => {
            let who = listener(&probe);
            bail!("{who} listens on {shown}; end it first, or choose another path")
        }
        Err(Errno::ECONNREFUSED) => {}
        Err(error) => return Err(error).with_context(|| format!("who listens on {shown}")),
    }
    ensure!(
        found.uid() == geteuid().as_raw(),
        "{shown} is an old socket of user {}; remove it with `rm {shown}`",
        found.uid()
    );
    std::fs::remove_file(path).with_context(|| format!("remove the old socket {shown}"))?;
    tracing::warn!("{shown}: removed an old socket on which nobody listened");
    Ok(())
}

/// The process at the other end, by its number and name.
fn listener(socket: &impl AsFd) -> String {
    let pid = getsockopt(socket, PeerCredentials).map_or(0, |peer| peer.pid());
    if pid == 0 {
        return "a process".to_owned();
    }
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("process {pid} ({})", name.trim_end())
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
        assert!(refused.contains("no socket") && path.exists(), "{refused}");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        assert!(prepare(&link).is_err() && link.symlink_metadata().is_ok(), "a link is not followed");
    }
}
