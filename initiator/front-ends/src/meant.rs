//! What a user means of what this machine has attached.

use std::path::Path;

use anyhow::{Result, bail};
use ringfab_base::{shell_word, visible};
use ringfab_initiator::Url;

use crate::context::Usage;
use crate::fuse::mount_point;
use crate::mounts::holders::Mount;
use crate::nbd::uri;
use crate::registry::{self, Facts, Found};
use crate::volumes::others;

/// Where something attached is.
pub(crate) fn place(facts: &Facts) -> String {
    let directory = facts.directory.as_ref().map(|path| path.to_string_lossy().into_owned());
    directory.or_else(|| facts.uri.clone()).unwrap_or_else(|| facts.address.clone())
}

/// What is said of a directory on which another user has mounted what is meant.
fn of_other_user(target: &str, verb: &str) -> Option<String> {
    let directory = mount_point::absolute(Path::new(target)).ok()?;
    others::described(&Mount::at(&directory)?, &others::sudo(verb, &directory))
}

/// What is meant, for a command that `verb` names. Without a target, or with `all`, it may be several.
///
/// # Errors
/// It is nothing, or too much.
pub(crate) fn find(target: Option<&str>, all: bool, verb: &str) -> Result<Vec<Found>> {
    registry::ensure_noted()?;
    let mut found: Vec<Found> = registry::entries()?;
    if let Some(target) = target {
        found.retain(|one| is_meant(&one.facts, target));
    }
    // What a killed process has left has no controller any more.
    let dead =
        found.iter().find(|one| !one.is_living()).map(|one| (one.facts.pid, visible(place(&one.facts))));
    found.retain(Found::is_living);
    match (found.len(), target, dead) {
        (0, _, Some((pid, place))) => bail!(
            "{place}: process {pid} was killed, so there is no controller to {verb}; `ringfab list` says what to do"
        ),
        (0, Some(target), None) if target.contains("://") => bail!(
            "nothing on this machine is attached by {}, and a host {verb}s only controllers of its own; {}; \
             `ringfab doctor ADDRESS` tries an address",
            shell_word(target),
            others::where_to_look()
        ),
        (0, Some(target), None) => match of_other_user(target, verb) {
            Some(of_other) => bail!("{of_other} {verb}s it"),
            None => bail!("{} is not attached; {}", visible(target), others::where_to_look()),
        },
        (0, None, None) => bail!("nothing is attached"),
        (1, ..) => Ok(found),
        (_, target, _) if !all => {
            let places: Vec<String> = found
                .iter()
                .map(|one| format!("{} (process {})", visible(place(&one.facts)), one.facts.pid))
                .collect();
            Err(Usage(format!(
                "{} are {} that are attached: {}; name one of them, or add --all",
                target.unwrap_or_default(),
                found.len(),
                places.join(", ")
            ))
            .into())
        }
        _ => Ok(found),
    }
}

/// Whether a user who says this means it.
fn is_meant(facts: &Facts, target: &str) -> bool {
    let text = [facts.volume.as_deref(), facts.uri.as_deref(), Some(&facts.nqn), Some(&facts.address)];
    if text.contains(&Some(target)) || facts.pid.to_string() == target {
        return true;
    }
    if let Ok(url) = target.parse::<Url>() {
        return facts.address.parse::<Url>().is_ok_and(|ours| is_at(&ours, &url));
    }
    let path = mount_point::absolute(Path::new(target)).ok();
    let is_path = |ours: Option<&Path>| ours.is_some() && (ours == path.as_deref());
    is_path(facts.directory.as_deref())
        || is_path(facts.device.as_deref())
        || facts.uri.as_deref().and_then(uri::socket).is_some_and(|ours| {
            let real = mount_point::absolute(&ours).ok();
            is_path(Some(&ours)) || is_path(real.as_deref()) || uri::socket(target).as_ref() == Some(&ours)
        })
}

/// Whether an address is of what a user names: with the same namespace, if the user names one.
pub(crate) fn is_at(ours: &Url, named: &Url) -> bool {
    let same = (ours.transport, &ours.host, ours.port) == (named.transport, &named.host, named.port);
    let subsystem = named.is_discovery() || ours.subsystem_nqn() == named.subsystem_nqn();
    same && subsystem && (named.namespace.is_none() || named.namespace == ours.namespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Kind;

    #[test]
    fn what_is_attached_is_found_by_all_of_its_names() {
        let url: Url =
            "nvme+tcp://192.0.2.5:4420/nqn.2026-01.org.example:a?ns=2".parse().expect("an address");
        let mut facts = Facts::new(Kind::Nbd, &url, "nqn.2026-01.org.example:a", &[]);
        facts.uri = Some("nbd+unix:///?socket=/run/x.sock".to_owned());
        facts.device = Some("/dev/loop7".into());
        facts.directory = Some("/srv/a".into());
        facts.volume = Some("data".to_owned());
        let pid = std::process::id().to_string();
        for target in [
            "data",
            "/srv/a",
            "/dev/loop7",
            "/run/x.sock",
            "nbd+unix:///?socket=/run/x.sock",
            "nbd+unix:///ns2?socket=%2Frun/x.sock",
            "nqn.2026-01.org.example:a",
            &pid,
            "nvme+tcp://192.0.2.5/nqn.2026-01.org.example:a",
            "nvme+tcp://192.0.2.5",
            "nvme+tcp://192.0.2.5/nqn.2026-01.org.example:a?ns=2",
        ] {
            assert!(is_meant(&facts, target), "{target}");
        }
        for target in [
            "dat",
            "/srv",
            "/dev/loop70",
            "nbd+unix:///?socket=/run/y.sock",
            "nvme+tcp://192.0.2.5/nqn.2026-01.org.example:a?ns=1",
            "nvme+tcp://192.0.2.5:4421/nqn.2026-01.org.example:a",
            "nvme+rdma://192.0.2.5/nqn.2026-01.org.example:a",
            "nvme+tcp://192.0.2.5/nqn.2026-01.org.example:b",
        ] {
            assert!(!is_meant(&facts, target), "{target}");
        }
    }
}
