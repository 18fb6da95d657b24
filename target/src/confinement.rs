//! What this process has given up, and how whoever meets that is told.
//!
//! Landlock's rules cannot be widened. So what a target may ever open and listen on is fixed when it starts, and an
//! error about a path or a port beyond that says what to do. `service::confine` makes the rules.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ringfab_base::VisiblePath as _;
use ringfab_process::confine::{Connect, Layer, State};

/// What holds for this process; nothing before, and never in a program that embeds the target.
static HOLDS: OnceLock<Confinement> = OnceLock::new();

/// What holds for a process.
#[derive(Debug)]
pub(crate) struct Confinement {
    /// Each part, and how it is.
    pub(crate) layers: Vec<Layer>,
    /// Files that may be disks, and folders with such files. Links are followed in them.
    pub(crate) disks: Vec<PathBuf>,
    /// Files and folders that may be read.
    pub(crate) read: Vec<PathBuf>,
    /// Ports that listeners may have.
    pub(crate) ports: Vec<u16>,
    /// Those of them that the configuration has for later listeners.
    pub(crate) later_ports: Vec<u16>,
    /// Servers that it may connect to.
    pub(crate) connect: Connect,
}

impl Confinement {
    /// From now on this is so.
    pub(crate) fn holds(self) {
        // It is confined once.
        let _first = HOLDS.set(self);
    }

    fn restricts(&self, layer: &str) -> bool {
        let holds = |one: &Layer| matches!(one.state, State::Holds | State::Partly);
        self.layers.iter().any(|one| one.layer == layer && holds(one))
    }

    fn refused_disk(&self, path: &Path) -> Option<String> {
        if !self.restricts("files") || is_below(path, &self.disks) {
            return None;
        }
        let allowed = listed(self.disks.iter().map(|path| path.visible().to_string()));
        Some(format!(
            "the target has confined itself, with disks from {allowed}: restart it with this path in its \
             configuration, or with its folder in confinement.paths"
        ))
    }

    fn refused_file(&self, path: &Path) -> Option<String> {
        if !self.restricts("files") || is_below(path, &self.read) {
            return None;
        }
        Some(
            "the target has confined itself to files of its configuration: restart it for another one"
                .to_owned(),
        )
    }

    fn refused_port(&self, port: u16) -> Option<String> {
        if !self.restricts("network") || self.ports.contains(&port) {
            return None;
        }
        let allowed = listed(self.ports.iter().map(u16::to_string));
        let later = listed(self.later_ports.iter().chain([&port]).map(u16::to_string));
        Some(format!(
            "the target has confined itself, with the ports {allowed}: restart it with this listener in its \
             configuration, or write `ports = [{later}]` below [confinement], restart it, and add the listener then"
        ))
    }

    /// `port` is none for a server whose port nobody knows.
    fn refused_server(&self, port: Option<u16>) -> Option<String> {
        let Connect::To(allowed) = &self.connect else { return None };
        if !self.restricts("network") || port.is_some_and(|port| allowed.contains(&port)) {
            return None;
        }
        Some(match port {
            Some(port) => {
                let later = listed(allowed.iter().chain([&port]).map(u16::to_string));
                format!(
                    "the target has confined itself and may not connect to port {port}: restart it with this \
                     namespace in its configuration, or write `connect_ports = [{later}]` below [confinement], \
                     restart it, and add the namespace then"
                )
            }
            None => "the target has confined itself and may not connect to clusters: restart it with this namespace \
                     or a table [ceph] in its configuration"
                .to_owned(),
        })
    }
}

fn is_below(path: &Path, places: &[PathBuf]) -> bool {
    // What does not exist is not refused by rules.
    let Ok(real) = path.canonicalize() else { return true };
    places.iter().any(|place| real.starts_with(place))
}

fn listed(words: impl Iterator<Item = String>) -> String {
    let words: Vec<String> = words.collect();
    if words.is_empty() { "nowhere".to_owned() } else { words.join(", ") }
}

/// The parts of the confinement; empty in a process that has never been confined.
pub(crate) fn layers() -> Vec<Layer> {
    HOLDS.get().map(|one| one.layers.clone()).unwrap_or_default()
}

/// Those that do not wholly hold, in words.
pub(crate) fn incomplete() -> Vec<String> {
    let incomplete = layers().into_iter().filter(|one| one.state != State::Holds);
    incomplete.map(|one| format!("{} {}", one.layer, one.state)).collect()
}

/// Why a path cannot be a disk of this process, if it is because of its confinement. Looks at the path, which may hang.
pub(crate) fn refused_disk(path: &Path) -> Option<String> {
    HOLDS.get()?.refused_disk(path)
}

/// The same for a file that is read.
pub(crate) fn refused_file(path: &Path) -> Option<String> {
    HOLDS.get()?.refused_file(path)
}

/// Why this process cannot listen on a port, if it is because of its confinement.
pub(crate) fn refused_port(port: u16) -> Option<String> {
    HOLDS.get()?.refused_port(port)
}

/// Why this process cannot connect to a server at this port, or at any, if it is because of its confinement.
pub(crate) fn refused_server(port: Option<u16>) -> Option<String> {
    HOLDS.get()?.refused_server(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn confinement(layers: Vec<Layer>, folder: &Path) -> Confinement {
        Confinement {
            layers,
            disks: vec![folder.to_owned()],
            read: Vec::new(),
            ports: vec![4420, 8009],
            later_ports: vec![8009],
            connect: Connect::To(vec![10809]),
        }
    }

    #[test]
    fn what_is_refused_is_named_and_what_is_not_has_another_reason() {
        let folder = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let [inside, link, outside] =
            [folder.path().join("disk"), folder.path().join("link"), other.path().join("disk")];
        std::fs::write(&inside, "").unwrap();
        std::fs::write(&outside, "").unwrap();
        std::os::unix::fs::symlink(&outside, &link).unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let holds = confinement(["files", "network"].map(Layer::holds).to_vec(), &folder);
        assert_eq!(holds.refused_disk(&inside), None);
        assert_eq!(holds.refused_disk(&folder.join("missing")), None);
        let refused = holds.refused_disk(&link).expect("it leads outside");
        assert!(refused.contains(&folder.display().to_string()) && refused.contains("confinement.paths"));
        assert!(holds.refused_disk(&outside).is_some() && holds.refused_file(&outside).is_some());
        assert_eq!(holds.refused_port(8009), None);
        let why = holds.refused_port(4421).expect("it is not allowed");
        assert!(
            why.contains("4420, 8009") && why.contains("`ports = [8009, 4421]` below [confinement]"),
            "{why}"
        );
        assert_eq!(holds.refused_server(Some(10809)), None);
        let why = holds.refused_server(Some(10810)).expect("it is not allowed");
        assert!(why.contains("port 10810") && why.contains("`connect_ports = [10809, 10810]`"), "{why}");
        let why = holds.refused_server(None).expect("no cluster is configured");
        assert!(why.contains("[ceph]"), "{why}");
        let anywhere = Confinement { connect: Connect::Anywhere, ..holds };
        assert_eq!([Some(10810), None].map(|port| anywhere.refused_server(port)), [None, None]);
        let off = confinement(vec![Layer::off("files", "x"), Layer::missing("network", "x")], &folder);
        assert_eq!(
            (off.refused_disk(&outside), off.refused_port(1), off.refused_server(None)),
            (None, None, None)
        );
    }
}
