//! Saying that a service serves: to a script through a file, to the service manager through its socket.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, anyhow};
use ringfab_base::{VisiblePath as _, without_folder};
use ringfab_process::made_file::{self, Kind, MadeFile};
use sd_notify::NotifyState;

/// A service that said that it is ready. Dropping it takes the file away.
pub(crate) struct Ready {
    file: Option<MadeFile>,
}

/// What the file has: the absolute path of a directory, or the URI of a network block device. Whatever else is there is
/// somebody's, and stays.
const KIND: Kind = Kind {
    what: "directory or URI of a service of ringfab",
    is_one: |head| {
        let mut lines = head.split(|byte| *byte == b'\n');
        let first = lines.next().unwrap_or_default();
        let is_text = std::str::from_utf8(first).is_ok_and(|text| !text.chars().any(char::is_control));
        let begins = first.starts_with(b"/") || first.starts_with(b"nbd");
        first.is_empty() && head.is_empty() || is_text && begins && lines.all(<[u8]>::is_empty)
    },
};

impl Ready {
    /// Says so. The file appears whole: it is written under another name first. `text` is its content.
    pub(crate) fn announce(file: Option<&Path>, text: &str) -> Result<Self> {
        let written = file.map(|path| {
            let draft = format!(".{}", std::process::id());
            made_file::replace(path, &draft, &KIND, &format!("{text}\n")).map_err(|error| {
                let remedy = without_folder(path, &error);
                anyhow!("write the ready file {}: {error}{remedy}", path.visible())
            })
        });
        let file = written.transpose()?;
        notify(&[NotifyState::Ready, NotifyState::Status(text)]);
        Ok(Self { file })
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        notify(&[NotifyState::Stopping]);
        if let Some(Err(error)) = self.file.as_ref().map(MadeFile::remove) {
            tracing::debug!(%error, "the ready file stays");
        }
    }
}

/// The text of a directory in a ready file, which says where it is from everywhere.
pub(crate) fn directory(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).to_string_lossy().into_owned()
}

/// Has the service manager wait longer for a start or an end that goes on.
pub(crate) fn extend(by: Duration) {
    let micros = u32::try_from(by.as_micros()).unwrap_or(u32::MAX);
    notify(&[NotifyState::ExtendTimeoutUsec(micros)]);
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager could not be notified");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_ready_file_is_there_while_the_service_is() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("ready");
        let text = super::directory(Path::new("mnt/disks"));
        assert!(text.starts_with('/') && text.ends_with("/mnt/disks"), "{text}");
        let ready = Ready::announce(Some(&path), &text).expect("announced");
        assert_eq!(fs::read_to_string(&path).expect("the file"), format!("{text}\n"));
        drop(ready);
        // As a process that was killed leaves it, with whatever text.
        for text in [&text, "nbd+unix:///?socket=/x", "nbd://127.0.0.1:10809"] {
            std::mem::forget(Ready::announce(Some(&path), text).expect("announced"));
        }
        drop(Ready::announce(Some(&path), &"/x".repeat(200)).expect("announced"));
        assert_eq!(fs::read_dir(directory.path()).expect("the directory").count(), 0);
        let nowhere = directory.path().join("no/such/ready");
        assert!(Ready::announce(Some(&nowhere), "/serving").is_err());
    }

    #[test]
    fn what_is_no_ready_file_is_neither_replaced_nor_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("ready");
        let key = b"NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:\n";
        for other in [&[0; 4096][..], key, b"/one\n/two\n", b"\n", b"/a\x1b[2J\n"] {
            fs::write(&path, other).expect("written");
            let error = Ready::announce(Some(&path), "/x").err().expect("refused");
            let error = format!("{error:#}");
            assert!(error.contains("is not replaced") && error.contains("ready: "), "{error}");
            assert_eq!(fs::read(&path).expect("the file"), other);
        }
        let disk = directory.path().join("disk");
        fs::rename(&path, &disk).expect("moved");
        symlink(&disk, &path).expect("a link");
        assert!(
            format!("{:#}", Ready::announce(Some(&path), "/x").err().expect("refused")).contains("a link")
        );
        fs::remove_file(&path).expect("removed");
        // Another one that has its name by the end.
        let ready = Ready::announce(Some(&path), "/x").expect("announced");
        fs::rename(&path, directory.path().join("moved")).expect("moved");
        fs::write(&path, "somebody's").expect("written");
        drop(ready);
        assert_eq!(fs::read_to_string(&path).expect("the file"), "somebody's");
    }
}
