//! Failures of disks: what they mean for the namespace, and how they are reported.
//!
//! The system reports a failed write-back only once for each open file. So the namespace remembers the report until an
//! administrator reopens its disk.

use ringfab_base::shell_word;
use ringfab_block::{Backing, BlockError};
use ringfab_reactor::Time;

use super::Namespace;
use super::disk_failure::DiskFailure;

/// A disk of a namespace has failed: counts it, keeps what must not be forgotten, and tells the administrator.
pub(crate) fn note(namespace: &Namespace, subsystem: &str, now: Time, failure: DiskFailure) {
    if !failure.is_of_disk() {
        return;
    }
    if failure.is_of_medium() {
        namespace.count_media_error();
    }
    let (nsid, error, what) = (namespace.nsid(), failure.text(), failure.what.name());
    if let Some(left_out) = namespace.with_failures(|log| log.tell(now, failure)) {
        let operation = what;
        tracing::error!(subsystem, nsid, operation, error, left_out, "a disk has failed");
    }
    if failure.error == BlockError::Shrunk {
        fail_closed(
            namespace,
            subsystem,
            &format!("its file has become shorter while it was served ({what})"),
        );
    } else if failure.loses_data(is_direct(namespace.backing())) {
        mark_lost(namespace, subsystem, &format!("a {what} failed: {error}"));
    }
}

/// From time to time: how many failures no line has told of, when they are over.
pub(crate) fn note_left_out(namespace: &Namespace, subsystem: &str, now: Time) {
    if let Some(left_out) = namespace.with_failures(|log| log.tell_left_out(now)) {
        tracing::error!(subsystem, nsid = namespace.nsid(), left_out, "a disk has failed more often");
    }
}

/// What was written to a namespace may be lost.
pub(crate) fn mark_lost(namespace: &Namespace, subsystem: &str, why: &str) {
    let nsid = namespace.nsid();
    let reason = || {
        format!(
            "{why}; what was written may be lost, so that no Flush succeeds until \
             `ringfab-target namespace reopen {nsid} --subsystem {}`",
            shell_word(subsystem)
        )
    };
    if namespace.mark_lost(reason) {
        tracing::error!(subsystem, nsid, reason = reason(), "a namespace has lost data");
    }
}

/// A namespace's disk is not what it was: nothing of it is read or written any more.
pub(crate) fn fail_closed(namespace: &Namespace, subsystem: &str, why: &str) {
    let nsid = namespace.nsid();
    let reason = || {
        format!(
            "{why}; nothing of it is read or written until its content is restored and \
             `ringfab-target namespace reopen {nsid} --subsystem {}`",
            shell_word(subsystem)
        )
    };
    if namespace.fail_closed(reason) {
        tracing::error!(subsystem, nsid, reason = reason(), "a namespace is no longer served");
    }
}

fn is_direct(backing: &Backing) -> bool {
    match backing {
        Backing::File { direct, .. } => *direct,
        Backing::Memory(_) | Backing::Null { .. } | Backing::Device(_) => true,
        Backing::Faulty { inner, .. } | Backing::Paced { inner, .. } => is_direct(inner),
    }
}
