//! The target that runs with this configuration.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use ringfab_base::{VisiblePath as _, counted};
use serde_json::Value;

use super::{Steps, Trouble};
use crate::config::Config;
use crate::control::Request;
use crate::control::client::{AskError, ask};

/// Asks it how it is, and whether it has this file.
pub(super) fn looks(steps: &mut Steps, config: &Config, file: &Path) {
    let control = config.control.clone().unwrap_or_default();
    if !control.enabled {
        return steps
            .add("target", || Ok("there is no control socket, so that nobody can be asked".to_owned()));
    }
    let mut status = None;
    steps.add("target", || {
        let answer = ask(&control.socket, &Request::Status).map_err(|error| unreachable(&error))?;
        let text = described(&answer)?;
        status = Some(answer);
        Ok(text)
    });
    if let Some(status) = status {
        steps.add("namespaces", || namespaces(&status));
        steps.add("disks", || disks(&status));
        steps.look("changes", || unsaved(&status));
        steps.add("file", || {
            same_file(&status, file)?;
            edited(
                &ask(&control.socket, &Request::Reload { dry_run: true })
                    .map_err(|error| unusable(&error))?,
            )
        });
        steps.look("confinement", || Ok(confined(&status)));
    }
}

fn unreachable(error: &AskError) -> Trouble {
    match error {
        AskError::Unreachable { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            Trouble::new(
                error.to_string(),
                "run this as root, or give your group the socket ([control] mode and group)",
            )
        }
        AskError::Unreachable { path, .. } => {
            let what = format!("no target runs with its control socket at {}", path.visible());
            Trouble::new(
                what,
                "systemctl start ringfab-target; journalctl -u ringfab-target says why it ended",
            )
        }
        _ => Trouble::new(error.to_string(), "see its log"),
    }
}

fn described(status: &Value) -> Result<String, Trouble> {
    let (version, own) = (status["version"].as_str().unwrap_or("?"), env!("CARGO_PKG_VERSION"));
    if version != own {
        let what = format!("version {version} runs, and {own} is installed");
        return Err(Trouble::new(what, "systemctl restart ringfab-target"));
    }
    let connected = |one: &&Value| one["state"] != "authenticating";
    let controllers = status["controllers"].as_array().map_or(0, |all| all.iter().filter(connected).count());
    Ok(format!("version {version} runs, with {}", counted(controllers, "controller")))
}

fn namespaces(status: &Value) -> Result<String, Trouble> {
    let all = status["namespaces"].as_array().map_or(&[][..], Vec::as_slice);
    let ill = all.iter().filter(|one| !matches!(one["state"].as_str(), Some("ready" | "closing")));
    let described = ill.map(|one| {
        let [nqn, state, reason] =
            ["subsystem", "state", "reason"].map(|key| one[key].as_str().unwrap_or(""));
        format!("namespace {} of {nqn} is {state}: {reason}", one["nsid"])
    });
    let described: Vec<String> = described.collect();
    if described.is_empty() {
        return Ok(format!("all {} are ready", all.len()));
    }
    let advice = |state: &str| match state {
        "detached" => {
            "detached: move the file back to its path, or copy the namespace with `ringfab read`, before the target \
             restarts; an empty file in its place would be served as that disk"
        }
        "needs reopen" => "needs reopen: check the disk, then `ringfab-target namespace reopen`",
        _ => "not ready: bring the disk back, or correct its path and reload",
    };
    let states = all.iter().filter_map(|one| one["state"].as_str());
    let states: BTreeSet<&str> = states.filter(|state| !matches!(*state, "ready" | "closing")).collect();
    let advice: Vec<&str> = states.into_iter().map(advice).collect();
    Err(Trouble::new(described.join("; "), format!("{} (docs/disks.md)", advice.join("; "))))
}

fn disks(status: &Value) -> Result<String, Trouble> {
    let cores = status["cores"].as_array().map_or(&[][..], Vec::as_slice);
    let silent = cores.iter().flat_map(|core| core["silent_disks"].as_array().into_iter().flatten());
    let mut sources: Vec<&str> = silent.filter_map(|disk| disk["source"].as_str()).collect();
    let hanging = status["hanging"].as_array().into_iter().flatten();
    sources.extend(hanging.filter_map(|call| call["path"].as_str()));
    sources.sort_unstable();
    sources.dedup();
    if sources.is_empty() {
        return Ok("all answer".to_owned());
    }
    let what = format!("these do not answer: {}", sources.join(", "));
    Err(Trouble::new(what, "see dmesg and the mounts: the device or the server behind it hangs"))
}

fn unsaved(status: &Value) -> Result<String, Trouble> {
    match status["configuration"]["unsaved"].as_array().map_or(0, Vec::len) {
        0 => Ok("the file has all that runs".to_owned()),
        count => {
            let what = format!("not in the file: {} made by command", counted(count, "change"));
            Err(Trouble::new(what, "ringfab-target config --save, or reload to give them up"))
        }
    }
}

/// Whether it is the file that the target has read: what is said of that one says nothing of another.
fn same_file(status: &Value, file: &Path) -> Result<(), Trouble> {
    let Some(read) = status["configuration"]["file"].as_str() else { return Ok(()) };
    let canonical = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if canonical(Path::new(read)) == canonical(file) {
        return Ok(());
    }
    let what = format!("the target that runs has read {read}, and not {}", file.visible());
    Err(Trouble::new(what, "examine that file, or start the target with this one"))
}

/// Whether somebody has changed the file since it was read, which the next start would find.
fn edited(preview: &Value) -> Result<String, Trouble> {
    let count = preview["edited"].as_array().map_or(0, Vec::len);
    if count == 0 {
        return Ok("nothing has changed in it since it was read".to_owned());
    }
    let refused = preview["refused"].as_str();
    let refused = refused.map(|why| format!("; a reload would be refused: {why}")).unwrap_or_default();
    let what = format!("not applied: {} in it{refused}", counted(count, "change"));
    Err(Trouble::new(what, "ringfab-target reload; with --dry-run it shows them"))
}

fn unusable(error: &AskError) -> Trouble {
    Trouble::new(format!("the target cannot use it: {error}"), "correct it: ringfab-target check")
}

/// Which parts of its confinement hold, and why others do not. What its kernel lacks is no fault of the target, and
/// what the configuration turns off was meant.
fn confined(status: &Value) -> String {
    let layers = status["confinement"].as_array().map_or(&[][..], Vec::as_slice);
    let incomplete = layers.iter().filter(|one| one["state"] != "holds").map(|one| {
        let [layer, state, reason] = ["layer", "state", "reason"].map(|key| one[key].as_str().unwrap_or(""));
        format!("{layer} {state}: {reason}")
    });
    let incomplete: Vec<String> = incomplete.collect();
    if incomplete.is_empty() {
        return format!("all {} parts hold", layers.len());
    }
    format!("{} of {} parts hold; {}", layers.len() - incomplete.len(), layers.len(), incomplete.join("; "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_target_that_is_ill_says_where() {
        let well = json!({
            "version": env!("CARGO_PKG_VERSION"), "controllers": [], "hanging": [], "configuration": { "unsaved": [] },
            "namespaces": [{ "nsid": 1, "subsystem": "nqn.x", "state": "ready" }], "cores": [{ "silent_disks": [] }],
            "confinement": [{ "layer": "files", "state": "holds", "reason": null }],
        });
        let all = |status: &Value| [described, namespaces, disks, unsaved].map(|look| look(status));
        assert!(all(&well).iter().all(Result::is_ok));
        let ill = json!({
            "version": "0.0.1", "hanging": [{ "path": "/mnt/a" }], "configuration": { "unsaved": [{}] },
            "namespaces": [{ "nsid": 1, "subsystem": "nqn.x", "state": "not ready", "reason": "it is missing" }],
            "cores": [{ "silent_disks": [{ "source": "/dev/sdx" }] }],
            "confinement": [{ "layer": "files", "state": "off", "reason": "the configuration says so" }],
        });
        let said = all(&ill).map(|outcome| outcome.err().map(|trouble| trouble.0).unwrap_or_default());
        assert!(said[0].contains("version 0.0.1 runs"));
        assert_eq!(said[1], "namespace 1 of nqn.x is not ready: it is missing");
        assert_eq!(said[2], "these do not answer: /dev/sdx, /mnt/a");
        assert!(said[3].starts_with("not in the file: 1 change made by command"));
        let advice = |state: &str| {
            let one = json!({ "nsid": 1, "subsystem": "nqn.x", "state": state, "reason": "" });
            namespaces(&json!({ "namespaces": [one] })).err().map(|trouble| trouble.1).unwrap_or_default()
        };
        assert!(advice("detached").contains("move the file back") && !advice("detached").contains("reopen"));
        assert!(advice("needs reopen").contains("namespace reopen"));
        assert!(edited(&json!({ "edited": [], "refused": null })).is_ok());
        let refused = json!({ "edited": [{}, {}], "refused": "it needs a restart" });
        assert_eq!(
            edited(&refused).err().map(|trouble| trouble.0).unwrap_or_default(),
            "not applied: 2 changes in it; a reload would be refused: it needs a restart"
        );
        assert_eq!(confined(&well), "all 1 parts hold");
        assert_eq!(confined(&ill), "0 of 1 parts hold; files off: the configuration says so");
    }
}
