//! Where the front end of a subsystem is.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ringfab_base::VisiblePath as _;

/// What stays as it is in the name of a file. A name is whatever a discovery controller says.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b':').remove(b'.').remove(b'-').remove(b'_');
/// The longest path of a Unix socket.
const SOCKET_BYTES_MAX: usize = 107;

/// The directory of all front ends, and which they are.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// A Unix socket for each subsystem.
    Nbd(PathBuf),
    /// A directory for each subsystem, with a file for each namespace.
    Fuse(PathBuf),
}

impl Place {
    /// The directory of all.
    pub(super) fn directory(&self) -> &Path {
        match self {
            Self::Nbd(directory) | Self::Fuse(directory) => directory,
        }
    }

    /// Where a subsystem is.
    ///
    /// # Errors
    /// A socket cannot have such a path.
    pub(super) fn of(&self, nqn: &str) -> Result<PathBuf> {
        let name = file_name(nqn);
        match self {
            Self::Nbd(directory) => {
                let path = directory.join(name + ".sock");
                let length = path.as_os_str().len();
                ensure!(
                    length <= SOCKET_BYTES_MAX,
                    "the path {} has {length} bytes, and {SOCKET_BYTES_MAX} are possible; choose a shorter directory",
                    path.visible()
                );
                Ok(path)
            }
            Self::Fuse(directory) => Ok(directory.join(name)),
        }
    }
}

/// A name of a subsystem as that of a file: it leads nowhere else, and two are never the same.
fn file_name(nqn: &str) -> String {
    let name = utf8_percent_encode(nqn, ENCODED).to_string();
    match name.strip_prefix('.') {
        Some(rest) => format!("%2E{rest}"),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_subsystem_is_called_its_file_is_in_the_directory() {
        let place = Place::Fuse("/run/all".into());
        for (nqn, name) in [
            ("nqn.2026-01.org.example:disk-1", "nqn.2026-01.org.example:disk-1"),
            ("../../etc", "%2E.%2F..%2Fetc"),
            (".", "%2E"),
            ("a%2Fb c", "a%252Fb%20c"),
            ("ü", "%C3%BC"),
        ] {
            assert_eq!(place.of(nqn).expect("a path"), Path::new("/run/all").join(name));
        }
        let sockets = Place::Nbd("/run/all".into());
        assert_eq!(sockets.of("a").expect("a path"), Path::new("/run/all/a.sock"));
        let refused = sockets.of(&"x".repeat(200)).expect_err("too long").to_string();
        assert!(refused.contains("107"), "{refused}");
    }
}
