//! The control socket's file.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::stat::{Mode, fchmod};
use nix::unistd::Group;
use ringfab_base::VisiblePath as _;
use ringfab_process::made_file::MadeFile;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::config::ControlConfig;
use crate::worker;

/// Connections that wait to be taken in.
const BACKLOG: i32 = 64;

/// How long the end of the process waits for the socket to be removed.
const REMOVE_LIMIT: Duration = Duration::from_secs(1);

/// A bound control socket; its file goes with it.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    made: Arc<MadeFile>,
}

impl ControlSocket {
    /// Binds the socket of a configuration.
    ///
    /// # Errors
    /// When another process listens there already, or the system refuses.
    pub(super) fn bind(config: &ControlConfig) -> io::Result<(Self, UnixListener)> {
        let path = &config.socket;
        remove_stale(path)?;
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // The file begins with the permissions of the descriptor, so that nobody else can connect before the rest is
        // done.
        fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
        socket.bind(&SockAddr::unix(path)?)?;
        let this = Self { path: path.clone(), made: Arc::new(MadeFile::at(path)?) };
        if let Some(group) = &config.group {
            chown(path, None, Some(group_id(group)?))?;
        }
        fs::set_permissions(path, Permissions::from_mode(config.mode))?;
        if config.is_for_everybody() {
            let path = path.visible();
            tracing::warn!(%path, "every user of this machine may change what is served (control.mode)");
        }
        socket.listen(BACKLOG)?;
        Ok((this, UnixListener::from(OwnedFd::from(socket))))
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let made = Arc::clone(&self.made);
        let removed = worker::within("removing", &self.path, REMOVE_LIMIT, move || made.remove());
        if let Err(error) = removed.map_err(io::Error::from).flatten() {
            tracing::debug!(%error, path = %self.path.visible(), "the control socket cannot be removed");
        }
    }
}

/// Removes the socket of a process that was killed. That of one that lives, and every other file, stays.
fn remove_stale(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => {}
        // Whatever it is, to bind will say so.
        _ => return Ok(()),
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        _ => Err(io::Error::new(io::ErrorKind::AddrInUse, "another target listens there")),
    }
}

fn group_id(name: &str) -> io::Result<u32> {
    let group = Group::from_name(name)?;
    let unknown = || io::Error::new(io::ErrorKind::NotFound, format!("there is no group {name}"));
    group.map(|group| group.gid.as_raw()).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(path: PathBuf) -> ControlConfig {
        ControlConfig { socket: path, ..ControlConfig::default() }
    }

    #[test]
    fn the_socket_has_the_permissions_that_were_asked_for_and_goes_with_its_owner() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("control.sock");
        for mode in [0o600, 0o660] {
            let config = ControlConfig { mode, ..config(path.clone()) };
            let (socket, _listener) = ControlSocket::bind(&config).expect("bound");
            let metadata = fs::metadata(&path).expect("a file");
            assert_eq!(metadata.permissions().mode() & 0o777, mode);
            drop(socket);
            assert!(!path.exists());
        }
    }

    #[test]
    fn a_socket_that_somebody_listens_on_is_left_alone_and_a_stale_one_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("control.sock");
        let (socket, listener) = ControlSocket::bind(&config(path.clone())).expect("bound");
        let again = ControlSocket::bind(&config(path.clone()));
        assert_eq!(again.map(drop).map_err(|error| error.kind()), Err(io::ErrorKind::AddrInUse));
        assert!(path.exists());
        // As a process that is killed leaves it.
        drop(listener);
        std::mem::forget(socket);
        assert!(ControlSocket::bind(&config(path)).is_ok());
    }

    #[test]
    fn what_has_taken_the_place_of_the_socket_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("control.sock");
        let (socket, _listener) = ControlSocket::bind(&config(path.clone())).expect("bound");
        fs::rename(&path, folder.path().join("moved")).expect("moved");
        fs::write(&path, "precious").expect("a file");
        drop(socket);
        assert_eq!(fs::read_to_string(path).expect("the file"), "precious");
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("control.sock");
        fs::write(&path, "precious").expect("a file");
        assert!(ControlSocket::bind(&config(path.clone())).is_err());
        assert_eq!(fs::read_to_string(path).expect("the file"), "precious");
    }

    #[test]
    fn a_group_that_there_is_not_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("control.sock");
        let config = ControlConfig { group: Some("no-such-group".to_owned()), ..config(path.clone()) };
        let error = ControlSocket::bind(&config).expect_err("no group");
        assert!(error.to_string().contains("no-such-group"));
        assert!(!path.exists());
    }
}
