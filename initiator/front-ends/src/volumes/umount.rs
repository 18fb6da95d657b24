//! `ringfab umount`: the end of a mount, in order.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::Args;
use ringfab_base::{VisiblePath as _, meant, shell_quoted, shell_word, visible};
use ringfab_initiator::Url;
use ringfab_process::log;
use serde_json::json;

use super::leftovers::{self, Busy};
use super::{child, file, others};
use crate::context::Context;
use crate::fuse::mount_point;
use crate::interrupt::Cancelled;
use crate::mounts::device;
use crate::mounts::holders::{self, Mount};
use crate::output;
use crate::registry::{self, Ended, Found, Kind, Standing};

/// The options of `ringfab umount`.
#[derive(Args, Debug)]
pub struct UmountArgs {
    /// The directory, wherever the file system is mounted, the name of a volume, its address, or its loop device
    pub target: PathBuf,
    /// Take it out of the tree at once, also where it is in use, and end the rest when nobody uses it any more
    #[arg(short, long)]
    pub lazy: bool,
    /// As umount(8) wants its helpers: one place is unmounted, whatever it is
    #[arg(long, hide = true)]
    pub helper: bool,
}

/// It is unmounted, and what programs have written may not be on the disk.
#[derive(Debug, thiserror::Error)]
#[error("{directory}: {why}")]
pub struct WritesLost {
    directory: String,
    why: String,
}

/// A wait that takes longer is explained.
const SAY: Duration = Duration::from_secs(2);
/// How long the keeper may take to flush and detach.
const END: Duration = Duration::from_secs(45);

pub(super) fn run(args: &UmountArgs, context: &Context) -> Result<()> {
    if let Err(error) = leftovers::sweep() {
        // What another one has left is no reason to leave this one mounted.
        tracing::warn!("{error:#}");
    }
    let (directory, found) = find(&args.target)?;
    let shown = directory.visible();
    let busy = if args.lazy { Busy::Detach } else { Busy::Refuse };
    let said = Said { context, directory: &directory, helper: args.helper };
    let Some(found) = found else {
        if leftovers::unmount_dead(&directory, busy)? {
            log::say(&format!("ringfab: removed what a killed process has left on {shown}"));
            return said.unmounted(None);
        }
        return not_ours(args, &directory);
    };
    let ended = if !found.is_living() {
        let (pid, ended) = (found.facts.pid, found.facts.ended());
        leftovers::forget(found, busy)?;
        log::say(&format!("ringfab: removed what process {pid} has left on {shown}, which was killed"));
        Some(ended)
    } else if args.helper && !is_on_top(&directory, &found) {
        // At a second place, in another mount namespace, or below another file system.
        return plain(args, &directory);
    } else {
        unmount(args, &directory, &found, context)?
    };
    said.unmounted(ended)
}

/// How the end is told.
struct Said<'a> {
    context: &'a Context,
    directory: &'a Path,
    helper: bool,
}

impl Said<'_> {
    /// It is unmounted.
    fn unmounted(&self, ended: Option<Ended>) -> Result<()> {
        if !self.helper {
            let failed_commands = ended.map(|ended| ended.failed_commands);
            output::either(
                self.context.json,
                || json!({ "unmounted": self.directory.to_string_lossy(), "failed_commands": failed_commands }),
                || format!("{} is unmounted", self.directory.visible()),
            )?;
        }
        match ended.and_then(Ended::lost) {
            Some(why) => Err(WritesLost { directory: self.directory.visible().to_string(), why }.into()),
            None => Ok(()),
        }
    }
}

/// A directory of which no process of ours knows.
fn not_ours(args: &UmountArgs, directory: &Path) -> Result<()> {
    let shown = directory.visible();
    match Mount::at(directory) {
        Some(_) if args.helper => plain(args, directory),
        Some(mount) => match others::described(&mount, &others::sudo("umount", directory)) {
            Some(of_other) => bail!("{of_other} unmounts it"),
            None => bail!(
                "{shown} was not mounted by `ringfab mount`: it is {} of {}; `umount {}` unmounts it",
                mount.kind,
                visible(&mount.source),
                shell_quoted(&directory.to_string_lossy())
            ),
        },
        None => bail!("{shown} is not mounted"),
    }
}

/// Unmounts what umount(8) would unmount without its helper. Whoever serves it, ends by itself.
fn plain(args: &UmountArgs, directory: &Path) -> Result<()> {
    let lazy: &[&str] = if args.lazy { &["-l"] } else { &[] };
    let ended = child::run_to_end("umount", &[&["-i"], lazy, &[&*directory.to_string_lossy()]].concat())?;
    ensure!(ended.status.success(), "{}: {}", directory.visible(), ended.stderr);
    Ok(())
}

/// Whether the file system of this mount is what lies on top at the directory.
fn is_on_top(directory: &Path, found: &Found) -> bool {
    let device = found.facts.device.as_deref();
    Mount::at(directory).is_none_or(|mount| Some(Path::new(&mount.source)) == device)
}

/// The directory that is meant, and the mount of it.
fn find(target: &Path) -> Result<(PathBuf, Option<Found>)> {
    let mounts = || -> Result<Vec<Found>> {
        Ok(registry::entries()?.into_iter().filter(|found| found.facts.kind == Kind::Mount).collect())
    };
    let name = target.to_str().filter(|text| !text.contains('/'));
    if let Some(name) = name {
        let by_name = mounts()?.into_iter().find(|found| found.facts.volume.as_deref() == Some(name));
        if let Some(found) = by_name {
            return Ok((found.facts.directory.clone().unwrap_or_default(), Some(found)));
        }
    }
    if let Some(found) = by_source(mounts()?, target)? {
        return Ok((found.facts.directory.clone().unwrap_or_default(), Some(found)));
    }
    let is_missing = || target.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    let directory = match mount_point::absolute(target) {
        // A volume that is not mounted.
        _ if name.is_some() && is_missing() => volume_directory(&target.to_string_lossy())?,
        found => found?,
    };
    let found = mounts()?.into_iter().find(|found| found.facts.directory.as_ref() == Some(&directory));
    // A folder above it has another name by now, or it is mounted at a second place.
    let by_device = || -> Result<Option<Found>> {
        let device = Mount::at(&directory).map(|mount| PathBuf::from(mount.source));
        let has = |found: &Found| device.is_some() && found.facts.device == device && found.is_living();
        Ok(mounts()?.into_iter().find(has))
    };
    let found = found.map_or_else(by_device, |found| Ok(Some(found)))?;
    Ok((directory, found))
}

/// The mount of an address, or of a loop device, as umount(8) takes devices; none where a directory is meant.
fn by_source(mounts: Vec<Found>, target: &Path) -> Result<Option<Found>> {
    let text = target.to_string_lossy();
    if let Ok(url) = text.parse::<Url>() {
        let mut of_it = mounts.into_iter().filter(|found| found.facts.address == url.to_string());
        return match (of_it.next(), of_it.next()) {
            (Some(found), None) => Ok(Some(found)),
            (Some(_), Some(_)) => {
                bail!("{} is mounted at several places; `ringfab list` shows them", shell_word(&url))
            }
            (None, _) => bail!("{} is not mounted here; {}", shell_word(&url), others::where_to_look()),
        };
    }
    let device = mount_point::absolute(target).ok();
    let has = |found: &Found| found.facts.device.is_some() && found.facts.device == device;
    Ok(mounts.into_iter().find(has))
}

/// Where a volume that is not mounted would be.
fn volume_directory(name: &str) -> Result<PathBuf> {
    let volumes = file::Volumes::load_default()?;
    volumes.check_mistakes(name)?;
    let Some(volume) = volumes.all().iter().find(|volume| volume.name() == name) else {
        let hint = match meant(name, volumes.all().iter().map(file::Volume::name)) {
            Some(like) => format!("did you mean {like}?"),
            None => others::where_to_look().to_owned(),
        };
        bail!("`{name}` is neither a directory nor the name of a volume; {hint}")
    };
    Ok(volume.directory().to_owned())
}

/// Unmounts it, and waits for the end of its keeper. Returns how it has ended, if it has.
fn unmount(args: &UmountArgs, directory: &Path, found: &Found, context: &Context) -> Result<Option<Ended>> {
    let shown = directory.visible();
    let path = directory.to_string_lossy();
    // Before its keeper can be gone: the keeper notes in it what has failed.
    let entry = found.open();
    if is_mounted(directory, found) {
        refuse_covered(directory, found)?;
        if !args.lazy && !args.helper {
            refuse_second_place(directory, found)?;
        }
        let lazy: &[&str] = if args.lazy { &["-l"] } else { &[] };
        let mut said = false;
        let go_on = |age| {
            if age >= SAY && !said {
                said = true;
                log::say(&format!("ringfab: unmounting {shown}: {} ...", what_for(found)));
            }
            !context.interrupt.is_interrupted()
        };
        match child::unmount(&[lazy, &[&*path]].concat(), go_on)? {
            // The kernel goes on with it.
            None => return Err(Cancelled.into()),
            Some(ended) if ended.status.success() => {}
            Some(_) if !is_mounted(directory, found) => {}
            Some(ended) => {
                let below = mounts_below(directory);
                let who = if below.is_empty() { holders::describe(directory) } else { below };
                bail!("{shown} is in use: {who} ({})", ended.stderr)
            }
        }
    } else if found.facts.device.is_none() {
        bail!("{shown} is just being mounted by process {}", found.facts.pid);
    }
    let device = found.facts.device.as_deref();
    if let Some(device) = device.filter(|device| args.lazy && !found_free(device, found)) {
        let who = second_place(Some(device), directory).or_else(|| match found.standing() {
            Standing::InUse(user) => Some(user),
            _ => None,
        });
        let who = who.unwrap_or_else(|| holders::describe_disk(directory, device));
        log::say(&format!("ringfab: {shown} is in use still: {who}"));
        return Ok(None);
    }
    wait_for_end(args, directory, found, context)?;
    Ok(entry.filter(|_| found.has_ended()).and_then(registry::ended))
}

/// What lies on top is what umount(8) would take away.
fn refuse_covered(directory: &Path, found: &Found) -> Result<()> {
    match Mount::at(directory) {
        Some(mount) if Some(Path::new(&mount.source)) != found.facts.device.as_deref() => {
            bail!(
                "{} is covered by another file system, {} of {}; `umount {}` unmounts that one first",
                directory.visible(),
                mount.kind,
                visible(&mount.source),
                shell_quoted(&directory.to_string_lossy())
            )
        }
        _ => Ok(()),
    }
}

/// As long as the file system is mounted at a second place, its disk stays attached.
fn refuse_second_place(directory: &Path, found: &Found) -> Result<()> {
    let device = found.facts.device.as_deref();
    match second_place(device, directory) {
        Some(place) => bail!("{} is in use: {place}", directory.visible()),
        None => Ok(()),
    }
}

/// Where else the file system is mounted, in words.
fn second_place(device: Option<&Path>, directory: &Path) -> Option<String> {
    let device = device?;
    let mut places = device::mounts(device).into_iter().filter(|place| place != directory);
    let place = places.next()?;
    let (shown, at, quoted) = (device.visible(), place.visible(), place.to_string_lossy());
    Some(format!("{shown} is mounted at {at}, too; `umount {}` unmounts that", shell_quoted(&quoted)))
}

/// Whether the file system is where it was mounted.
fn is_mounted(directory: &Path, found: &Found) -> bool {
    let device = found.facts.device.as_deref();
    device.is_some_and(|device| device::mounts(device).iter().any(|at| at == directory))
}

/// Whether the loop device has no file of the mount any more, within a moment.
fn found_free(device: &Path, found: &Found) -> bool {
    let Some(files) = &found.facts.files else { return true };
    let until = Instant::now() + SAY / 4;
    while device::below(files).iter().any(|one| one == device) {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

fn what_for(found: &Found) -> String {
    match found.status() {
        Some(status) if status.is_given_up() => {
            "the controller was given up, so nothing is written".to_owned()
        }
        Some(status) if status.is_removed() => "its disk was removed by the target".to_owned(),
        Some(status) if status.is_connected() => "what was written goes to the disk".to_owned(),
        Some(status) => format!(
            "the target is away ({}); it goes on when the target is back, and ctrl-C ends the wait only",
            status.state
        ),
        None => "its process does not say how it is".to_owned(),
    }
}

fn wait_for_end(args: &UmountArgs, directory: &Path, found: &Found, context: &Context) -> Result<()> {
    let shown = directory.visible();
    let begun = Instant::now();
    let mut said = false;
    while !found.wait_for_end(Duration::from_millis(100)) {
        context.interrupt.check()?;
        if !said && begun.elapsed() >= SAY {
            said = true;
            match found.standing() {
                // umount(8) would not wait for them either.
                Standing::InUse(_) | Standing::Mounted(_) if args.helper => return Ok(()),
                Standing::Mounted(places) => {
                    let place = second_place(found.facts.device.as_deref(), directory);
                    let place = place.or_else(|| Some(places.first()?.visible().to_string()));
                    let place = place.unwrap_or_default();
                    bail!("{shown} is not mounted any more, but its disk is in use: {place}")
                }
                standing @ Standing::InUse(_) => bail!("{}", standing.in_words(&found.facts)),
                _ => log::say(&format!("ringfab: {shown}: flushing and detaching ...")),
            }
        }
        if begun.elapsed() >= END {
            bail!("{shown} is unmounted, but process {} does not end: {}", found.facts.pid, what_for(found));
        }
    }
    Ok(())
}

/// Other mounts below a directory, in words.
fn mounts_below(directory: &Path) -> String {
    let below =
        Mount::all().into_iter().filter(|mount| mount.at != directory && mount.at.starts_with(directory));
    let below: Vec<String> = below
        .map(|mount| format!("{} is mounted at {}", visible(&mount.source), mount.at.visible()))
        .collect();
    below.join("; ")
}
