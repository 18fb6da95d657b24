//! How a mount is by now. An entry says what was so when it was written. Its program notices an unmount a moment after
//! the mount table does, and ends a moment after that, or much later where the disk is in use still. So whoever is
//! about to say of a namespace that it is mounted asks here.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ringfab_base::VisiblePath as _;

use super::{Facts, Found, Status};
use crate::mounts::device::{self, Activity};
use crate::mounts::holders;

/// How long an end that is near is waited for.
const SOON: Duration = Duration::from_secs(5);
/// How often to look anew meanwhile: who uses a disk may come and go.
const LOOK: Duration = Duration::from_millis(250);

/// How a mount is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Its program is about to mount it.
    Begins,
    /// It is mounted at these places, as this process sees it.
    Mounted(Vec<PathBuf>),
    /// It is mounted nowhere that this process sees, and its disk is in use. By whom, in words.
    InUse(String),
    /// It is mounted nowhere, and nobody is known who uses its disk: its end is near. What that waits for, if it does,
    /// in words.
    Ends(Option<String>),
    /// Its program has ended.
    Over,
}

impl Found {
    /// How it is at this moment.
    pub(crate) fn standing(&self) -> Standing {
        if self.has_ended() {
            return Standing::Over;
        }
        let Some(device) = &self.facts.device else { return Standing::Begins };
        let is_attached = |files: &PathBuf| device::below(files).contains(device);
        if !self.facts.files.as_ref().is_some_and(is_attached) {
            // The kernel has taken the file away with the last user of the disk.
            return Standing::Ends(None);
        }
        let places = device::mounts(device);
        if !places.is_empty() {
            return Standing::Mounted(places);
        }
        let user = holders::in_another_namespace(device);
        match user.or_else(|| self.facts.mount_id.and_then(holders::of_detached)) {
            Some(user) => Standing::InUse(user),
            None => Standing::Ends(None),
        }
    }

    /// How it is once what is about to end has ended. Where that takes longer, it says what the end waits for.
    pub(crate) fn settled(&self) -> Standing {
        let (program, until) = (self.program(), Instant::now() + SOON);
        let activity = || self.facts.device.as_deref().and_then(device::activity);
        let before = activity();
        loop {
            let standing = self.standing();
            let left = until.saturating_duration_since(Instant::now());
            match standing {
                Standing::Ends(_) if left.is_zero() => {
                    return Standing::Ends(Some(self.waits_for(moves(before, activity()))));
                }
                Standing::Ends(_) => program.wait(left.min(LOOK)),
                standing => return standing,
            }
        }
    }

    /// What its end waits for, in words. `writes`: whether its disk is written to.
    fn waits_for(&self, writes: bool) -> String {
        match self.status() {
            Some(status) if status.is_connected() && writes => "what was written goes to the disk".to_owned(),
            Some(status) if status.is_connected() => "it is used by a process that cannot be seen".to_owned(),
            Some(Status { state, .. }) => format!("its target is away ({state})"),
            None => "its process does not say how it is".to_owned(),
        }
    }
}

/// Whether a disk works, or has worked since then.
fn moves(before: Option<Activity>, now: Option<Activity>) -> bool {
    let worked =
        |before: Activity, now: Activity| now.in_flight > 0 || now.sectors_written != before.sectors_written;
    before.zip(now).is_some_and(|(before, now)| worked(before, now))
}

impl Standing {
    /// What is so, in words about a namespace that it has, and where it is mounted.
    pub(crate) fn of_namespace(&self, nsid: u32, facts: &Facts) -> String {
        match self {
            Self::Mounted(_) => format!("namespace {nsid} is mounted on {}", self.place(facts).visible()),
            other => format!("namespace {nsid}: {}", other.in_words(facts)),
        }
    }

    /// Where it is mounted, or was.
    pub(crate) fn place(&self, facts: &Facts) -> PathBuf {
        let noted = facts.directory.clone().unwrap_or_default();
        match self {
            Self::Mounted(places) if !places.contains(&noted) => places.first().cloned().unwrap_or(noted),
            _ => noted,
        }
    }

    /// What is so, in a sentence about the directory.
    pub(crate) fn in_words(&self, facts: &Facts) -> String {
        let place = self.place(facts);
        let (shown, pid) = (place.visible(), facts.pid);
        match self {
            Self::Begins => format!("{shown} is just being mounted or unmounted by process {pid}"),
            Self::Mounted(_) => format!("{shown} is mounted already, from {} (process {pid})", facts.address),
            Self::InUse(user) => format!("{shown} is not mounted any more, but its disk is in use: {user}"),
            Self::Ends(why) => {
                let why = why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
                format!(
                    "{shown} is not mounted any more, but process {pid} has not detached its disk yet{why}"
                )
            }
            Self::Over => format!("{shown} is not mounted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_works_while_something_is_under_way_or_was_written() {
        let at = |sectors_written, in_flight| Some(Activity { sectors_written, in_flight });
        assert!(moves(at(1, 0), at(2, 0)) && moves(at(1, 0), at(1, 3)));
        assert!(!moves(at(1, 1), at(1, 0)) && !moves(None, at(2, 0)) && !moves(at(1, 0), None));
    }
}
