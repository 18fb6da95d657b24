//! `mount -o remount`: other options for a file system that is mounted already.

use std::time::Duration;

use anyhow::{Result, bail};
use ringfab_base::{VisiblePath as _, shell_word};

use super::plan::Plan;
use super::{child, others};
use crate::mounts::device;
use crate::mounts::holders::Mount;
use crate::registry::{self, Kind};

/// The mount option that asks for it.
const REMOUNT: &str = "remount";
/// How long it may take: what was written goes to the disk before a file system is read only.
const LIMIT: Duration = Duration::from_secs(60);

/// Whether the options ask for it.
pub(super) fn is_wanted(options: &[String]) -> bool {
    options.iter().any(|option| option == REMOUNT)
}

/// Gives the mounted file system other options. The disk below it stays as it is: what was mounted read only has no
/// disk that could be written to.
///
/// # Errors
/// When nothing of ours is mounted there, or what mount(8) says.
pub(super) fn remount(plan: &Plan) -> Result<()> {
    let (shown, place) = (plan.directory.visible(), plan.directory.to_string_lossy());
    let is_there = |found: &registry::Found| {
        let facts = &found.facts;
        let mounted =
            facts.device.as_deref().is_some_and(|device| device::mounts(device).contains(&plan.directory));
        facts.kind == Kind::Mount && mounted && found.is_living()
    };
    if !registry::entries()?.iter().any(is_there) {
        let mount = Mount::at(&plan.directory);
        match mount.and_then(|mount| others::described(&mount, "sudo mount -o remount,...")) {
            Some(of_other) => bail!("{of_other} gives it other options"),
            None => {
                bail!("{shown} is not mounted by `ringfab mount`, so it cannot be mounted with other options")
            }
        }
    }
    let access = if plan.read_only { "ro" } else { "rw" };
    let options = format!("{access},{}", plan.options);
    // Without helpers of mount(8): this is one.
    match child::run("mount", &["-i", "-o", options.trim_end_matches(','), &place], |age| age < LIMIT)? {
        Some(ended) if ended.status.success() => Ok(()),
        Some(ended) => bail!("remount {shown}: {}", ended.stderr),
        None => bail!(
            "remount {shown}: it takes longer than {} s; `ringfab list` shows whether the target is away. \
             `mount -i -o {} {}` tries again",
            LIMIT.as_secs(),
            shell_word(&options),
            shell_word(&place)
        ),
    }
}
