//! The metrics in a file for node_exporter's textfile collector: it always sees a whole file.

use std::path::Path;
use std::thread;
use std::time::Duration;

use ringfab_base::VisiblePath as _;
use ringfab_process::made_file::{self, DRAFT, Kind};

use super::families::{Format, encode};
use super::snapshot::Snapshots;

/// Writes the file again and again. A failure is logged once, until it is over.
pub(super) fn write_for_ever(path: &Path, interval: Duration, snapshots: &Snapshots, queues: bool) {
    let mut failing = false;
    loop {
        let text = encode(&snapshots.get().now, queues, Format::Prometheus);
        let written = made_file::replace(path, DRAFT, &KIND, &text);
        match &written {
            Err(error) if !failing => {
                tracing::warn!(path = %path.visible(), %error, "the metrics are not written");
            }
            Ok(_) if failing => tracing::info!(path = %path.visible(), "the metrics are written again"),
            _ => {}
        }
        failing = written.is_err();
        thread::sleep(interval);
    }
}

/// What the file begins with, or was about to when it was cut off.
pub(crate) const KIND: Kind =
    Kind { what: "metrics of a target", is_one: |head| head.starts_with(BEGIN) || BEGIN.starts_with(head) };

const BEGIN: &[u8] = b"# HELP ringfab_";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_metrics_are_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ringfab.prom");
        let text = "# HELP ringfab_build_info The program.\n";
        made_file::replace(&path, DRAFT, &KIND, text).expect("written");
        made_file::replace(&path, DRAFT, &KIND, text).expect("written again");
        for other in
            [&[0; 4096][..], b"# HELP node_load1 1m load average.\n", b"[target]\n", b"DHHC-1:00:x:\n"]
        {
            std::fs::write(&path, other).expect("somebody's");
            let error = made_file::replace(&path, DRAFT, &KIND, text).expect_err("not ours").to_string();
            assert!(error.contains("has no metrics of a target"), "{error}");
            assert_eq!(std::fs::read(&path).expect("somebody's"), other);
        }
    }
}
