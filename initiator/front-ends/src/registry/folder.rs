//! Where entries are.

use std::env;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use nix::unistd::geteuid;
use ringfab_base::{VisiblePath as _, without_folder};

/// In the environment: another folder.
const VARIABLE: &str = "RINGFAB_RUNTIME_DIRECTORY";
const NAME: &str = "ringfab-initiator";
/// Why a user has none.
const NONE: &str = "there is no folder where this user's programs note what is attached: there is no /run/user/UID, \
                    XDG_RUNTIME_DIR is not set, and RINGFAB_RUNTIME_DIRECTORY names none";

/// The folder of this user's entries. It is made if it is not there.
///
/// # Errors
/// When there is none, or others may change it.
pub(crate) fn folder() -> Result<PathBuf> {
    let folder = path().context(NONE)?;
    let shown = folder.visible();
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            bail!("make the folder {shown}: {error}{}", without_folder(&folder, &error));
        }
        _ => {}
    }
    let found = folder.symlink_metadata().with_context(|| format!("look at {shown}"))?;
    let ours = found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o022 == 0;
    ensure!(ours, "{shown} is not a folder that this user alone may change; what is attached is noted there");
    Ok(folder)
}

/// Whether this user's programs have a place to note what is attached.
///
/// # Errors
/// There is none, so nobody knows what is.
pub(crate) fn ensure_noted() -> Result<()> {
    path().map(drop).context(NONE)
}

/// Whether there is one. Without it, nothing was ever attached.
pub(crate) fn exists() -> bool {
    path().is_some_and(|path| path.exists())
}

/// Its path, if there can be one.
pub(super) fn path() -> Option<PathBuf> {
    let named = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = named(VARIABLE) {
        return Some(folder);
    }
    if geteuid().is_root() {
        return Some(Path::new("/run").join(NAME));
    }
    // Who has become this user without a login has the folder of the user's other logins, if any.
    let of_logins = || Some(Path::new("/run/user").join(geteuid().to_string())).filter(|path| path.is_dir());
    named("XDG_RUNTIME_DIR").or_else(of_logins).map(|folder| folder.join(NAME))
}
