//! The ready file: for scripts and tests that wait until hosts can connect, and need the port.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfab_base::VisiblePath as _;
use ringfab_process::made_file::{self, Kind, MadeFile};

use super::{ServeError, ServeOptions};
use crate::config::Config;
use crate::config::places::{self, Place};
use crate::worker::{self, Task};

/// How long writing the file may take, and removing it at the end.
const LIMIT: Duration = Duration::from_secs(5);
const REMOVE_LIMIT: Duration = Duration::from_secs(1);

/// Refuses a ready file that would be something else, too.
pub(super) fn require(options: &ServeOptions, config: &Config) -> Result<(), ServeError> {
    let Some(path) = &options.ready_file else { return Ok(()) };
    let file = std::path::absolute(&options.config).ok();
    let conflict = places::conflict_at(Place::new("the ready file", path), config, file.as_deref());
    conflict.map_or(Ok(()), |conflict| Err(ServeError::Mistake(conflict.sentence())))
}

/// A ready file; it is removed when the service ends.
#[derive(Debug)]
pub(super) struct ReadyFile {
    path: PathBuf,
    made: Arc<MadeFile>,
}

impl ReadyFile {
    /// Writes one line per listener. Appears whole: it is written beside its place and renamed.
    pub(super) fn write(path: &Path, addresses: &[SocketAddr]) -> Result<Self, ServeError> {
        let failed = |source| ServeError::ReadyFile { path: path.to_owned(), source };
        let (at, addresses) = (path.to_owned(), addresses.to_vec());
        let written =
            worker::wait(Task::new("writing", path, LIMIT).must_finish(), move || write(&at, &addresses));
        let made = written.map_err(io::Error::from).flatten().map_err(failed)?;
        Ok(Self { path: path.to_owned(), made: Arc::new(made) })
    }
}

impl Drop for ReadyFile {
    fn drop(&mut self) {
        let made = Arc::clone(&self.made);
        let removed = worker::within("removing", &self.path, REMOVE_LIMIT, move || made.remove());
        if let Err(error) = removed.map_err(io::Error::from).flatten() {
            tracing::debug!(%error, path = %self.path.visible(), "the ready file cannot be removed");
        }
    }
}

/// A line for each listener, of which there is one at least.
const KIND: Kind = Kind {
    what: "addresses of a target",
    is_one: |head| {
        let first = std::str::from_utf8(head).ok().and_then(|text| text.lines().next());
        head.is_empty() || first.is_some_and(|line| line.parse::<SocketAddr>().is_ok())
    },
};

fn write(path: &Path, addresses: &[SocketAddr]) -> io::Result<MadeFile> {
    let lines: String = addresses.iter().map(|address| format!("{address}\n")).collect();
    made_file::replace(path, &format!(".{}", std::process::id()), &KIND, &lines)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_ready_file_has_a_line_per_listener_and_goes_with_the_service() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ready");
        let addresses = ["127.0.0.1:4420".parse().unwrap(), "[::1]:4421".parse().unwrap()];
        let ready = ReadyFile::write(&path, &addresses).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "127.0.0.1:4420\n[::1]:4421\n");
        drop(ready);
        // As a process that was killed leaves it.
        let ready = ReadyFile::write(&path, &addresses).unwrap();
        std::mem::forget(ready);
        drop(ReadyFile::write(&path, &addresses).unwrap());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_no_ready_file_is_neither_replaced_nor_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ready");
        let addresses = ["127.0.0.1:4420".parse().unwrap()];
        for other in [&[0; 4096][..], b"[target]\n", b"4420\n"] {
            fs::write(&path, other).unwrap();
            let error = ReadyFile::write(&path, &addresses).unwrap_err().to_string();
            assert!(error.contains("has no addresses of a target"), "{error}");
            assert_eq!(fs::read(&path).unwrap(), other);
        }
        fs::remove_file(&path).unwrap();
        let ready = ReadyFile::write(&path, &addresses).unwrap();
        fs::rename(&path, directory.path().join("moved")).unwrap();
        fs::write(&path, "somebody's").unwrap();
        drop(ready);
        assert_eq!(fs::read_to_string(&path).unwrap(), "somebody's");
    }

    #[test]
    fn a_ready_file_that_cannot_be_written_is_named() {
        let error = ReadyFile::write(Path::new("/nonexistent/ready"), &[]).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/ready"), "{error}");
    }
}
