//! The metrics in a file for node_exporter's textfile collector: it always sees a whole file.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::families::{Format, encode};
use super::snapshot::Snapshots;

/// Writes the file again and again. A failure is logged once, until it is over.
pub(super) fn write_for_ever(path: &Path, interval: Duration, snapshots: &Snapshots, queues: bool) {
    let mut failing = false;
    loop {
        let text = encode(&snapshots.get().now, queues, Format::Prometheus);
        let written = write(path, &text);
        match &written {
            Err(error) if !failing => {
                tracing::warn!(path = %path.display(), %error, "the metrics are not written");
            }
            Ok(()) if failing => tracing::info!(path = %path.display(), "the metrics are written again"),
            _ => {}
        }
        failing = written.is_err();
        thread::sleep(interval);
    }
}

/// Puts a new file in the place of the old one. Its name does not end in `.prom` before it is whole. Everybody may read
/// it, whatever the file mode creation mask: node_exporter has a user of its own.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new: PathBuf = path.with_file_name(name);
    let mut file = File::create(&new)?;
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    file.write_all(text.as_bytes())?;
    drop(file);
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ringfab.prom");
        write(&path, "a long first text\n").expect("written");
        let old = File::open(&path).expect("the file");
        write(&path, "short\n").expect("written");
        assert_eq!(fs::read_to_string(&path).expect("the file"), "short\n");
        assert_eq!(io::read_to_string(old).expect("the old file"), "a long first text\n");
        assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 1);
        assert!(write(&folder.path().join("missing/x.prom"), "").is_err());
    }
}
