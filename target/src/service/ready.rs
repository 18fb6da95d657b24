//! The ready file: for scripts and tests that wait until hosts can connect, and need the port.

use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::ServeError;
use crate::worker::{self, Task};

/// How long writing the file may take, and removing it at the end.
const LIMIT: Duration = Duration::from_secs(5);
const REMOVE_LIMIT: Duration = Duration::from_secs(1);

/// A ready file; it is removed when the service ends.
#[derive(Debug)]
pub(super) struct ReadyFile {
    path: PathBuf,
}

impl ReadyFile {
    /// Writes one line per listener. Appears whole: it is written beside its place and renamed.
    pub(super) fn write(path: &Path, addresses: &[SocketAddr]) -> Result<Self, ServeError> {
        let failed = |source| ServeError::ReadyFile { path: path.to_owned(), source };
        let (at, addresses) = (path.to_owned(), addresses.to_vec());
        let written =
            worker::wait(Task::new("writing", path, LIMIT).must_finish(), move || write(&at, &addresses));
        written.map_err(io::Error::from).flatten().map_err(failed)?;
        Ok(Self { path: path.to_owned() })
    }
}

impl Drop for ReadyFile {
    fn drop(&mut self) {
        let path = self.path.clone();
        let removed = worker::within("removing", &self.path, REMOVE_LIMIT, move || fs::remove_file(path));
        if let Err(error) = removed.map_err(io::Error::from).flatten() {
            tracing::debug!(%error, path = %self.path.display(), "the ready file cannot be removed");
        }
    }
}

fn write(path: &Path, addresses: &[SocketAddr]) -> io::Result<()> {
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    name.push(format!(".{}", std::process::id()));
    let temporary = path.with_file_name(name);
    let mut file = fs::File::create(&temporary)?;
    for address in addresses {
        writeln!(file, "{address}")?;
    }
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_file_has_a_line_per_listener_and_goes_with_the_service() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ready");
        let addresses = ["127.0.0.1:4420".parse().unwrap(), "[::1]:4421".parse().unwrap()];
        let ready = ReadyFile::write(&path, &addresses).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "127.0.0.1:4420\n[::1]:4421\n");
        drop(ready);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_ready_file_that_cannot_be_written_is_named() {
        let error = ReadyFile::write(Path::new("/nonexistent/ready"), &[]).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/ready"), "{error}");
    }
}
