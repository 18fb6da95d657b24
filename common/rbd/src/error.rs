//! What can go wrong with a cluster, a pool or an image, each as a sentence for people.

use std::io;
use std::time::Duration;

use ringfab_base::visible;

/// Why an image cannot be served now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RbdError {
    /// A library is not there.
    #[error("{library} cannot be loaded ({reason}): install it, on Debian with the package librbd1")]
    LibraryMissing {
        /// Its file.
        library: &'static str,
        /// The loader's answer.
        reason: String,
    },
    /// A library does not have a function that is needed.
    #[error("{library} is too old: it has no {function}; Ceph 16 or later is needed")]
    LibraryTooOld {
        /// Its file.
        library: &'static str,
        /// What it does not have.
        function: String,
    },
    /// A file that was named cannot be read.
    #[error("{path} cannot be read: {reason}")]
    Unreadable {
        /// The file.
        path: String,
        /// The system's answer.
        reason: String,
    },
    /// The configuration does not say where the cluster is.
    #[error("{conf} names no monitor (mon_host)")]
    NoMonitorNamed {
        /// The configuration file.
        conf: String,
    },
    /// Nobody answers where the cluster should be.
    #[error("no monitor of cluster {cluster} has answered within {} s", .limit.as_secs())]
    NoMonitorAnswers {
        /// The cluster's name.
        cluster: String,
        /// How long it was waited.
        limit: Duration,
    },
    /// There is no key.
    #[error("no keyring has a key of {user}: name one that has (keyring)")]
    NoKey {
        /// The user with its type: `client.admin`.
        user: String,
    },
    /// The cluster does not accept the user.
    #[error(
        "cluster {cluster} does not accept {user}: there is no such user, or the keyring has no key or another one"
    )]
    NotAccepted {
        /// The cluster's name.
        cluster: String,
        /// The user with its type.
        user: String,
    },
    /// The user is known, and may not do this.
    #[error("{user} may not use {what}: check its capabilities")]
    NotAllowed {
        /// The user with its type.
        user: String,
        /// A pool or an image.
        what: String,
    },
    /// There is no such pool.
    #[error("there is no pool {}", visible(.pool))]
    MissingPool {
        /// Its name.
        pool: String,
    },
    /// There is no such namespace.
    #[error("pool {} has no namespace {}", visible(.pool), visible(.namespace))]
    MissingNamespace {
        /// The pool's name.
        pool: String,
        /// Its name.
        namespace: String,
    },
    /// There is no such image.
    #[error("there is no image {}", visible(.image))]
    MissingImage {
        /// Its name, with pool and namespace.
        image: String,
    },
    /// The image has no bytes.
    #[error("image {} is empty: give it a size first, with rbd resize", visible(.image))]
    Empty {
        /// Its name, with pool and namespace.
        image: String,
    },
    /// There is no such snapshot.
    #[error("image {} has no snapshot {}", visible(.image), visible(.snapshot))]
    MissingSnapshot {
        /// The image's name, with pool and namespace.
        image: String,
        /// Its name.
        snapshot: String,
    },
    /// The image is of a kind that the library cannot open.
    #[error("image {} has a feature that the installed librbd does not support", visible(.image))]
    UnsupportedFeature {
        /// Its name, with pool and namespace.
        image: String,
    },
    /// The cluster has the connection, and does not do what it was asked to.
    #[error("the cluster has not answered for {} s", .time.as_secs())]
    Silent {
        /// Since when.
        time: Duration,
    },
    /// Somebody has fenced this process.
    #[error(
        "this client was blocklisted: the cluster does nothing for it any more; when nobody else serves the image, \
         reopen it, for which a new client is connected"
    )]
    Blocklisted,
    /// The process ends.
    #[error("the cluster was closed")]
    Closed,
    /// Anything else.
    #[error("{what}: {}", io::Error::from_raw_os_error(*.errno))]
    Failed {
        /// What was tried.
        what: String,
        /// The system's number for what went wrong.
        errno: i32,
    },
}

impl RbdError {
    /// What was tried, and the positive number of what went wrong.
    pub(crate) fn failed(what: impl Into<String>, errno: i32) -> Self {
        Self::Failed { what: what.into(), errno }
    }

    fn kind(&self) -> io::ErrorKind {
        match self {
            Self::LibraryMissing { .. } | Self::LibraryTooOld { .. } | Self::UnsupportedFeature { .. } => {
                io::ErrorKind::Unsupported
            }
            Self::Unreadable { .. } | Self::NoMonitorNamed { .. } | Self::Empty { .. } => {
                io::ErrorKind::InvalidInput
            }
            Self::NoMonitorAnswers { .. } | Self::Silent { .. } => io::ErrorKind::TimedOut,
            Self::NoKey { .. } | Self::NotAccepted { .. } | Self::NotAllowed { .. } => {
                io::ErrorKind::PermissionDenied
            }
            Self::MissingPool { .. }
            | Self::MissingNamespace { .. }
            | Self::MissingImage { .. }
            | Self::MissingSnapshot { .. } => io::ErrorKind::NotFound,
            Self::Blocklisted | Self::Closed => io::ErrorKind::ConnectionAborted,
            Self::Failed { errno, .. } => io::Error::from_raw_os_error(*errno).kind(),
        }
    }
}

impl From<RbdError> for io::Error {
    fn from(error: RbdError) -> Self {
        Self::new(error.kind(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_is_a_sentence_that_names_what_it_is_about() {
        let user = || "client.backup".to_owned();
        let image = || "rbd/disk\n1".to_owned();
        for (error, sentence) in [
            (
                RbdError::NoKey { user: user() },
                "no keyring has a key of client.backup: name one that has (keyring)",
            ),
            (RbdError::MissingImage { image: image() }, "there is no image rbd/disk\\n1"),
            (
                RbdError::MissingSnapshot { image: image(), snapshot: "monday".to_owned() },
                "image rbd/disk\\n1 has no snapshot monday",
            ),
            (
                RbdError::NoMonitorAnswers { cluster: "ceph".to_owned(), limit: Duration::from_secs(8) },
                "no monitor of cluster ceph has answered within 8 s",
            ),
            (RbdError::failed("opening", libc::EIO), "opening: Input/output error (os error 5)"),
        ] {
            assert_eq!(error.to_string(), sentence);
            assert_eq!(io::Error::from(error).to_string(), sentence);
        }
    }
}
