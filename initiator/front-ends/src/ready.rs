//! Saying that a service serves: to a script through a file, to the service manager through its socket.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use ringfab_base::VisiblePath as _;
use sd_notify::NotifyState;

/// A service that said that it is ready. Dropping it takes the file away.
pub(crate) struct Ready {
    file: Option<PathBuf>,
}

impl Ready {
    /// Says so. The file appears whole: it is written under another name first. `text` is its content.
    pub(crate) fn announce(file: Option<&Path>, text: &str) -> Result<Self> {
        if let Some(path) = file {
            write_whole(path, text).with_context(|| format!("write the ready file {}", path.visible()))?;
        }
        notify(&[NotifyState::Ready, NotifyState::Status(text)]);
        Ok(Self { file: file.map(Path::to_owned) })
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        notify(&[NotifyState::Stopping]);
        if let Some(path) = &self.file
            && let Err(error) = fs::remove_file(path)
        {
            tracing::debug!(%error, path = %path.visible(), "the ready file stays");
        }
    }
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

fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let draft = PathBuf::from(name);
    fs::write(&draft, format!("{text}\n"))?;
    fs::rename(&draft, path).inspect_err(|_| {
        // The draft is of no use to anybody; the error that matters is the rename's.
        let _ = fs::remove_file(&draft);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_file_is_there_while_the_service_is() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("ready");
        let ready = Ready::announce(Some(&path), "serving").expect("announced");
        assert_eq!(fs::read_to_string(&path).expect("the file"), "serving\n");
        drop(ready);
        assert_eq!(fs::read_dir(directory.path()).expect("the directory").count(), 0);
        let nowhere = directory.path().join("no/such/ready");
        assert!(Ready::announce(Some(&nowhere), "serving").is_err());
    }
}
