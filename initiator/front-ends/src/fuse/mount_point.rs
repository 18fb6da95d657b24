//! The mount point before we mount there.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use nix::mount::MntFlags;
use ringfab_base::{VisiblePath as _, shell_quoted, visible};

use super::mount::{SOURCE, unmount};
use crate::mounts::device;
use crate::mounts::holders::Mount;
use crate::registry::has_dead_server;

/// How our mounts are called in `/proc/self/mountinfo`.
pub(crate) fn is_ours(mount: &Mount) -> bool {
    mount.kind == "fuse.ringfab" || mount.kind == "fuse" && mount.source.starts_with(SOURCE)
}

/// Makes sure that the directory is one to mount on. A mount of ours whose server has died is taken away; a living one,
/// or somebody else's dead one, is an error that says what to do.
pub(super) fn prepare(directory: &Path) -> Result<()> {
    let shown = directory.visible();
    let path = absolute(directory)?;
    remove_dead(&path)?;
    let found = directory.metadata().with_context(|| format!("mount on {shown}"))?;
    ensure!(found.is_dir(), "{shown} is not a directory");
    match Mount::at(&path) {
        Some(mount) if is_ours(&mount) => {
            let peer = visible(mount.source.trim_start_matches(SOURCE));
            let quoted = directory.to_string_lossy();
            let quoted = shell_quoted(&quoted);
            bail!("{shown} is served already, with namespaces of {peer}; `umount {quoted}` ends that")
        }
        _ => Ok(()),
    }
}

/// Takes a mount of ours away whose server has died, and says whether there was one.
///
/// # Errors
/// When it is somebody else's, or cannot be taken away.
pub(crate) fn remove_dead(path: &Path) -> Result<bool> {
    let is_dead = has_dead_server(path);
    if is_dead {
        unmount_dead(path)?;
    }
    Ok(is_dead)
}

/// The kernel says that the server of a FUSE mount has gone.
fn unmount_dead(path: &Path) -> Result<()> {
    let (shown, quoted) = (path.visible(), path.to_string_lossy());
    let quoted = shell_quoted(&quoted);
    let mount = Mount::at(path);
    ensure!(
        mount.as_ref().is_some_and(is_ours),
        "a file system is mounted on {shown} whose server has died, and it is not ours ({}); take it away with \
         `umount {quoted}` or `fusermount3 -u {quoted}`",
        mount.map_or_else(|| "of an unknown kind".to_owned(), |mount| mount.kind)
    );
    unmount(path, MntFlags::MNT_DETACH).with_context(|| {
        format!("the mount of a dead server on {shown}; take it away with `umount -l {quoted}`")
    })?;
    tracing::warn!("{shown}: removed a mount whose server had died");
    Ok(())
}

/// The path as the kernel lists it, without asking what is mounted there.
pub(crate) fn absolute(directory: &Path) -> Result<PathBuf> {
    let whole = std::path::absolute(directory).with_context(|| format!("find {}", directory.visible()))?;
    let found = match (whole.parent(), whole.file_name()) {
        (Some(parent), Some(name)) => canonical_as_far_as_it_is_there(parent).map(|parent| parent.join(name)),
        _ => whole.canonicalize(),
    };
    // A name that is itself a link is followed, unless what is there is dead.
    let found = found.with_context(|| format!("find {}", directory.visible()))?;
    Ok(found.canonicalize().unwrap_or(found))
}

/// A path without links, whose end need not be there yet.
fn canonical_as_far_as_it_is_there(path: &Path) -> io::Result<PathBuf> {
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Err(error), Some(parent), Some(name)) if error.kind() == io::ErrorKind::NotFound => {
            canonical_as_far_as_it_is_there(parent).map(|parent| parent.join(name))
        }
        (found, ..) => found,
    }
}

/// Whose mount of ours this is: of `ringfab fuse`, or a file system that `ringfab mount` has on top of one. None when
/// it is neither.
pub(crate) fn owner(mount: &Mount) -> Option<u32> {
    let below = || device::file(Path::new(&mount.source));
    let files =
        |file: PathBuf| Mount::all().into_iter().rfind(|one| is_ours(one) && file.starts_with(&one.at));
    match is_ours(mount) {
        true => mount.user,
        false => below().and_then(files)?.user,
    }
}
