//! What a killed keeper has left: a file system whose disk answers with errors only, its loop device, and a FUSE mount
//! without a server.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::mount::{MntFlags, umount2};
use ringfab_base::VisiblePath as _;
use ringfab_fuse::loop_device;

use super::child;
use crate::fuse::mount_point;
use crate::mounts::device;
use crate::mounts::holders::{self, Mount};
use crate::registry::{self, Claim, Entry, Facts, Found, Kind};

/// How long an unmount may take. Nothing has to be written: the disk is gone.
const UNMOUNT: Duration = Duration::from_secs(20);

/// What to do about a file system that programs still use, of which they get errors only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Busy {
    /// Say who uses it.
    Refuse,
    /// Take it out of their way.
    Detach,
}

/// Removes what is there of a mount without a keeper, from top to bottom. `directory`: where the file system was to be.
pub(super) fn clean(files: &Path, directory: Option<&Path>, busy: Busy) -> Result<()> {
    if let Some(directory) = directory.filter(|directory| device::is_lost_at(directory)) {
        unmount(directory, busy)?;
    }
    for device in device::below(files) {
        for directory in device::mounts(&device).iter().rev() {
            unmount(directory, busy)?;
        }
        match loop_device::detach(&device) {
            Ok(()) => {}
            // The last unmount has done it.
            Err(error) if error.raw_os_error() == Some(nix::errno::Errno::ENXIO as i32) => {}
            Err(error) => tracing::debug!(%error, device = %device.visible(), "not detached"),
        }
    }
    while Mount::at(files).is_some() {
        umount2(files, MntFlags::MNT_DETACH)
            .with_context(|| format!("unmount {}, whose server is gone", files.visible()))?;
    }
    match fs::remove_dir(files) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", files.visible()))
        }
        _ => Ok(()),
    }
}

/// Unmounts a file system whose disk is gone.
pub(super) fn unmount(directory: &Path, busy: Busy) -> Result<()> {
    let shown = directory.visible();
    let path = directory.to_string_lossy();
    let within = |age| age < UNMOUNT;
    let Some(ended) = child::unmount(&[&path], within)? else {
        bail!("{shown}: unmounting takes longer than {} s", UNMOUNT.as_secs())
    };
    if ended.status.success() {
        return Ok(());
    }
    let who = holders::describe(directory);
    if busy == Busy::Refuse {
        bail!("{shown} is in use, and its disk is gone: {who} ({})", ended.stderr);
    }
    tracing::warn!("{shown}: detached, because its disk is gone; in use: {who}");
    match child::unmount(&["-l", &path], within)? {
        Some(ended) if ended.status.success() => Ok(()),
        Some(ended) => bail!("unmount {shown}: {}", ended.stderr),
        None => bail!("{shown}: unmounting takes longer than {} s", UNMOUNT.as_secs()),
    }
}

/// Unmounts what is mounted on a directory without an entry, if the process that served it is gone. Says whether that
/// was so.
pub(super) fn unmount_dead(directory: &Path, busy: Busy) -> Result<bool> {
    if device::is_lost_at(directory) {
        unmount(directory, busy)?;
        return Ok(true);
    }
    let was_dead = mount_point::remove_dead(directory)?;
    // What it has left has nothing to stand for any more.
    registry::forget_dead();
    Ok(was_dead)
}

/// Whether the file system of a dead mount is there still.
pub(super) fn is_mounted(facts: &Facts) -> bool {
    let Some(files) = &facts.files else { return false };
    facts.directory.as_deref().is_some_and(device::is_lost_at)
        || device::below(files).iter().any(|device| !device::mounts(device).is_empty())
}

/// Removes what nobody can use or miss: everything of killed programs but file systems that are still mounted.
pub(super) fn sweep() -> Result<()> {
    registry::forget_dead();
    for found in registry::entries()? {
        if !found.is_living() && found.facts.kind == Kind::Mount && !is_mounted(&found.facts) {
            forget(found, Busy::Refuse)?;
        }
    }
    orphans()
}

/// Removes what a dead entry stands for, and the entry.
pub(super) fn forget(found: Found, busy: Busy) -> Result<()> {
    if let Some(files) = &found.facts.files {
        clean(files, found.facts.directory.as_deref(), busy)?;
    }
    tracing::info!("{}: removed what process {} has left", found.name(), found.facts.pid);
    found.forget();
    Ok(())
}

/// Folders for files whose entry is gone.
fn orphans() -> Result<()> {
    if !registry::exists() {
        return Ok(());
    }
    let known: Vec<String> = registry::entries()?.iter().map(Found::name).collect();
    let folder = registry::folder()?;
    let listed = fs::read_dir(&folder).with_context(|| format!("list {}", folder.visible()))?;
    for entry in listed.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("mount-")) {
        // What kind of file it is says the folder, so that nothing waits for a server.
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        if known.contains(&name) {
            continue;
        }
        // Somebody may be making it at this moment: then it has an entry with a lock.
        if let Claim::Ours(_entry, None) = Entry::claim(&name)? {
            clean(&entry.path(), None, Busy::Refuse)?;
        }
    }
    Ok(())
}
