//! `ringfab-target doctor`: looks at the configuration, the machine and the target that runs, and says what to do.

mod running;
mod system;

use std::path::Path;
use std::time::{Duration, Instant};

use ringfab_base::{VisiblePath as _, counted};
use ringfab_process::terminal::{self, Paint, Stream};
use serde::Serialize;

use system::Process;

use crate::config::{Config, ConfigErrors};
use crate::machine;

/// Something that was looked at, and what was found.
#[derive(Debug, Serialize)]
pub(super) struct Step {
    /// What.
    step: &'static str,
    /// Whether the target serves all the same if something is wrong here: then it is a note.
    look: bool,
    /// How long that took.
    time_us: u64,
    /// What there is, if that is well.
    found: Option<String>,
    /// What is wrong.
    error: Option<String>,
    /// What to do about that.
    advice: Option<String>,
}

/// What is wrong, and what to do.
pub(super) struct Trouble(String, String);

impl Trouble {
    fn new(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self(what.into(), advice.into())
    }
}

/// All steps so far.
#[derive(Debug, Default)]
pub(super) struct Steps(Vec<Step>);

impl Steps {
    fn add(&mut self, step: &'static str, look: impl FnOnce() -> Result<String, Trouble>) {
        let begun = Instant::now();
        let outcome = look();
        self.push(step, begun.elapsed(), outcome);
    }

    /// Looks at something without which the target serves all the same.
    fn look(&mut self, step: &'static str, look: impl FnOnce() -> Result<String, Trouble>) {
        self.add(step, look);
        self.0.last_mut().expect("it was added").look = true;
    }

    fn push(&mut self, step: &'static str, time: Duration, outcome: Result<String, Trouble>) {
        let (found, error, advice) = match outcome {
            Ok(found) => (Some(found), None, None),
            Err(Trouble(trouble, advice)) => (None, Some(trouble), Some(advice)),
        };
        let time_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.0.push(Step { step, look: false, time_us, found, error, advice });
    }

    /// Whether nothing is wrong that serving needs.
    pub(super) fn is_well(&self) -> bool {
        self.0.iter().all(|step| step.look || step.error.is_none())
    }

    /// For programs.
    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(&serde_json::json!({ "steps": self.0 })).expect("plain values always serialize")
    }
}

/// A line for each step, and then what to do.
impl std::fmt::Display for Steps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for step in &self.0 {
            let (paint, sign) = match step.error {
                Some(_) if step.look => (Paint::Care, "note "),
                Some(_) => (Paint::Bad, "WRONG"),
                None => (Paint::Good, "ok   "),
            };
            let sign = terminal::painted(Stream::Out, paint, sign);
            let (millis, text) = (step.time_us as f64 / 1e3, step.error.as_ref().or(step.found.as_ref()));
            writeln!(f, "{sign}  {:<13}  {millis:>9.3} ms  {}", step.step, text.map_or("", String::as_str))?;
        }
        if self.0.iter().all(|step| step.error.is_none()) {
            return f.write_str("All is well.\n");
        }
        f.write_str(if self.is_well() { "It can serve. What could be better:\n" } else { "What to do:\n" })?;
        self.0.iter().filter_map(|step| step.advice.as_ref()).try_for_each(|advice| writeln!(f, "- {advice}"))
    }
}

/// Steps at everything.
pub(super) fn examine(file: &Path, socket: Option<&Path>) -> Steps {
    let mut steps = Steps::default();
    let begun = Instant::now();
    let loaded = Config::look_at(file);
    steps.push("configuration", begun.elapsed(), read(file, &loaded));
    steps.look("permissions", || system::permissions(file));
    steps.look("kernel", system::kernel);
    steps.add("io_uring", system::io_uring);
    steps.look("RDMA devices", system::rdma_devices);
    let Ok(mut config) = loaded else { return steps };
    if let Some(socket) = socket {
        let control = config.control.get_or_insert_default();
        (control.enabled, control.socket) = (true, socket.to_owned());
    }
    steps.add("state", || system::state_folder(&config.target.state_dir));
    let serving = machine::server_of(&config);
    let process = serving.map_or(Process::Own, Process::Target);
    steps.add("locked memory", || Ok(system::locked_memory(&config, process)));
    steps.add("addresses", || system::addresses(&config, process));
    steps.look("open files", || system::open_files(&config, process));
    let begun = Instant::now();
    let findings = machine::findings(&config, serving);
    if findings.is_empty() {
        steps.push("machine", begun.elapsed(), Ok("addresses, ports and disks are there".to_owned()));
    }
    for finding in findings {
        let trouble = Trouble(format!("{}: {}", finding.what, finding.message), finding.advice.into_owned());
        steps.push("machine", begun.elapsed(), Err(trouble));
    }
    if machine::backings::any(&config) {
        look_at_backings(&mut steps, &config);
    }
    running::looks(&mut steps, &config, file);
    steps
}

/// Asks the servers that have the disks of namespaces.
fn look_at_backings(steps: &mut Steps, config: &Config) {
    let begun = Instant::now();
    let findings = machine::backings::findings(config);
    if findings.is_empty() {
        steps.push("backings", begun.elapsed(), Ok("each server answers".to_owned()));
    }
    for finding in findings {
        let trouble = Trouble(format!("{}: {}", finding.what, finding.message), finding.advice.into_owned());
        steps.push("backings", begun.elapsed(), Err(trouble));
    }
}

fn read(file: &Path, loaded: &Result<Config, ConfigErrors>) -> Result<String, Trouble> {
    let config =
        loaded.as_ref().map_err(|error| Trouble::new(error.to_string(), "correct the configuration"))?;
    let namespaces: usize = config.subsystems.iter().map(|one| one.namespaces.len()).sum();
    let parts = [
        counted(config.listeners.len(), "listener"),
        counted(config.subsystems.len(), "subsystem"),
        counted(namespaces, "namespace"),
    ];
    let text = format!("{}: {}", file.visible(), parts.join(", "));
    let unseen: Vec<_> = machine::unseen(config).iter().map(|one| format!("; {}", one.message)).collect();
    Ok(text + &unseen.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(folder: &Path, more: &str) -> std::path::PathBuf {
        let (file, state, socket) = (folder.join("target.toml"), folder.join("state"), folder.join("socket"));
        let text = format!(
            "[target]\nstate_dir = {state:?}\ncores = 1\n[control]\nsocket = {socket:?}\n\
             [[listener]]\naddress = \"127.0.0.1\"\nport = 0\ntransport = \"tcp\"\n\
             [[subsystem]]\nnqn = \"nqn.2026-11.org.ringfab:a\"\nallow_any_host = true\n{more}"
        );
        std::fs::write(&file, text).expect("a configuration");
        std::fs::create_dir_all(state).expect("a folder");
        file
    }

    fn trouble_of<'a>(steps: &'a Steps, name: &str) -> Vec<&'a str> {
        let of_step = steps.0.iter().filter(|step| step.step == name);
        of_step.filter_map(|step| step.error.as_deref()).collect()
    }

    #[test]
    fn what_is_wrong_is_told_with_what_to_do() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = config(folder.path(), "[[subsystem.namespace]]\npath = \"/nonexistent/disk\"\n");
        let steps = examine(&file, None);
        assert!(trouble_of(&steps, "machine")[0].contains("/nonexistent/disk does not exist"), "{steps}");
        assert!(trouble_of(&steps, "target")[0].contains("no target runs"), "{steps}");
        for step in ["configuration", "permissions", "kernel", "io_uring", "state"] {
            assert_eq!(trouble_of(&steps, step), [""; 0], "{steps}");
        }
        let text = steps.to_string();
        assert!(
            text.contains("What to do:\n") && text.contains("- systemctl start ringfab-target"),
            "{text}"
        );
        assert!(!steps.is_well() && steps.to_json().contains("\"step\":\"kernel\""));
    }

    #[test]
    fn mistakes_permissions_and_the_folder_of_the_state_are_looked_at() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().expect("a folder");
        let file = config(folder.path(), "[[subsystem.namespace]]\nnull = \"1MiB\"\n");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).expect("changed");
        std::fs::remove_dir(folder.path().join("state")).expect("removed");
        std::fs::write(folder.path().join("state"), "a file").expect("a file");
        let steps = examine(&file, None);
        assert!(trouble_of(&steps, "permissions")[0].contains("everybody may write"), "{steps}");
        assert!(trouble_of(&steps, "state")[0].contains("state"), "{steps}");
        let open = steps.0.iter().find(|step| step.step == "permissions").expect("a step");
        assert!(
            open.look && steps.to_string().contains("note   permissions"),
            "it serves all the same: {steps}"
        );
        std::fs::write(&file, "colour = 1\n").expect("a file");
        let steps = examine(&file, None);
        assert!(trouble_of(&steps, "configuration")[0].contains("colour: is not a known key"), "{steps}");
    }
}
