//! Directories that are there while something uses them: mount points, and folders of sockets.
//!
//! Whoever copies to a mount point where nothing is mounted fills the disk below it, and believes that all is well. One
//! that was made for a mount goes with it, and so a command that follows a failed mount fails, too.

use std::fs::{self, DirBuilder, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use ringfab_base::{VisiblePath as _, shell_quoted};

/// Who may enter directories that are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenTo {
    /// Whoever the umask says.
    Umask,
    /// Everybody, whatever the umask of a service is: what is mounted there says who may do what.
    All,
}

/// The directories that were made. Those that were there before stay.
#[derive(Debug, Default)]
pub(crate) struct MadeDirectories(Vec<PathBuf>);

impl MadeDirectories {
    /// Makes a directory, and those above it, as far as they are not there.
    ///
    /// # Errors
    /// When one cannot be made. None is left then.
    pub(crate) fn new(path: &Path, open_to: OpenTo) -> Result<Self> {
        let path = std::path::absolute(path).with_context(|| format!("find {}", path.visible()))?;
        let is_missing = |path: &Path| {
            // A mount whose server has died looks like no directory. Whoever mounts there deals with it.
            path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound)
        };
        let mut missing: Vec<&Path> = path.ancestors().take_while(|path| is_missing(path)).collect();
        missing.reverse();
        let mut made = Self::default();
        for one in missing {
            made.make(one, open_to).with_context(|| {
                let quoted = path.to_string_lossy();
                format!(
                    "{} is not there and cannot be made; `mkdir -p {}` as somebody who may makes it",
                    path.visible(),
                    shell_quoted(&quoted)
                )
            })?;
        }
        Ok(made)
    }

    /// The directory of a file that is to be made.
    ///
    /// # Errors
    /// As [`MadeDirectories::new`].
    pub(crate) fn of_file(file: &Path) -> Result<Self> {
        match file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            Some(folder) => Self::new(folder, OpenTo::Umask),
            None => Ok(Self::default()),
        }
    }

    fn make(&mut self, path: &Path, open_to: OpenTo) -> std::io::Result<()> {
        match DirBuilder::new().create(path) {
            // Somebody else was faster, and looks after it.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),
            made => made?,
        }
        self.0.push(path.to_owned());
        match open_to {
            OpenTo::Umask => Ok(()),
            OpenTo::All => fs::set_permissions(path, Permissions::from_mode(0o755)),
        }
    }
}

impl Drop for MadeDirectories {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            match fs::remove_dir(path) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                // Others have something in it, or have mounted something there: it is theirs by now.
                Err(error)
                    if [Errno::ENOTEMPTY, Errno::EBUSY]
                        .map(|errno| Some(errno as i32))
                        .contains(&error.raw_os_error()) =>
                {
                    tracing::info!(path = %path.visible(), "the directory stays: somebody uses it");
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, path = %path.visible(), "the directory stays");
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_goes_and_what_was_there_before_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("old")).expect("a directory");
        let made = MadeDirectories::new(&at("new/a/b"), OpenTo::All).expect("made");
        let mode = |name: &str| at(name).metadata().expect("it is there").permissions().mode() & 0o777;
        assert_eq!((mode("new"), mode("new/a/b")), (0o755, 0o755));
        drop((MadeDirectories::new(&at("old"), OpenTo::Umask).expect("there"), made));
        assert!(at("old").exists() && !at("new").exists());
        let made = MadeDirectories::of_file(&at("run/x/socket")).expect("made");
        assert!(at("run/x").is_dir() && !at("run/x/socket").exists());
        fs::write(at("run/mine"), "").expect("a file");
        drop(made);
        assert!(!at("run/x").exists() && at("run/mine").exists(), "what others use stays");
        assert!(MadeDirectories::of_file(Path::new("socket")).expect("it is here").0.is_empty());
    }

    #[test]
    fn what_cannot_be_made_is_told_and_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("file"), "").expect("a file");
        let wanted = folder.path().join("file/a b");
        let error = MadeDirectories::new(&wanted, OpenTo::Umask).map(drop);
        // What a file has the place of is no directory that is missing.
        assert!(error.is_ok() && !wanted.exists());
        let proc = Path::new("/proc/no/such place");
        let error = format!("{:#}", MadeDirectories::new(proc, OpenTo::Umask).expect_err("refused"));
        assert!(error.contains("`mkdir -p '/proc/no/such place'`"), "{error}");
    }
}
