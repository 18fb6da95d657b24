//! The files that a configuration names: what the target makes or writes must lead to no disk, no key and nothing else
//! that it names, by whatever name.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringfab_base::VisiblePath as _;
use ringfab_process::made_file::{DRAFT, draft};

use super::{Change, Config, KeySource, NamespaceConfig, Source, SubsystemConfig};
use crate::disk_identity::DiskIdentity;
use crate::worker;

/// How long all looks may take that are for one file, or for one change.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// The files in the folder of the state that a target makes.
pub(crate) const IDENTITY_FILE: &str = "identity";
pub(crate) const KNOWN_DISKS_FILE: &str = "disks";

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Without links, as far as there is something.
    real: PathBuf,
    /// A regular file, or a block device.
    file: Option<DiskIdentity>,
}

impl Seen {
    /// What is known without a look.
    pub(crate) fn unseen(path: &Path) -> Self {
        Self { real: path.components().collect(), file: None }
    }

    /// Looks at a path. This may block.
    pub(crate) fn of(path: &Path) -> Self {
        // What is not there yet would be made in a folder that is.
        let in_folder = || Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
        let real = fs::canonicalize(path).ok().or_else(in_folder);
        let file = DiskIdentity::of_path(path).ok();
        Self { real: real.unwrap_or_else(|| path.components().collect()), file }
    }

    /// The file, if it is one.
    pub(super) fn file(&self) -> Option<DiskIdentity> {
        self.file
    }

    fn is_same(&self, other: &Self) -> bool {
        self.real == other.real || (self.file.is_some() && self.file == other.file)
    }
}

/// How paths are looked at.
pub(crate) type Look<'a> = &'a dyn Fn(&Path) -> Seen;

/// Looks at paths, each once, and all of them within a limit. What does not answer is only known by its name.
#[derive(Debug)]
pub(crate) struct Looks {
    deadline: Instant,
    seen: RefCell<HashMap<PathBuf, Seen>>,
}

impl Looks {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { deadline: Instant::now() + limit, seen: RefCell::default() }
    }

    pub(crate) fn at(&self, path: &Path) -> Seen {
        if let Some(seen) = self.seen.borrow().get(path) {
            return seen.clone();
        }
        let (at, left) = (path.to_owned(), self.deadline.saturating_duration_since(Instant::now()));
        let seen = worker::within("looking at", path, left, move || Seen::of(&at));
        let seen = seen.unwrap_or_else(|_| Seen::unseen(path));
        self.seen.borrow_mut().insert(path.to_owned(), seen.clone());
        seen
    }
}

/// A file that is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// For people: `the disk of namespace 1 of nqn...`.
    pub(super) what: String,
    pub(super) path: PathBuf,
    pub(super) named: Named,
}

/// What names a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// A key of a table.
    By(&'static str, &'static str),
    /// A namespace.
    AsDisk,
    /// Something else, of which the place in the file is not told.
    Elsewhere,
}

impl Place {
    pub(crate) fn new(what: impl Into<String>, path: &Path) -> Self {
        Self { what: what.into(), path: path.to_owned(), named: Named::Elsewhere }
    }

    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn of_key(table: &'static str, key: &'static str, what: &str, path: &Path) -> Self {
        let what = format!("{what}{table}.{key}");
        Self { what, path: path.to_owned(), named: Named::By(table, key) }
    }
}

/// Two names for one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// What the target makes or writes.
    pub(super) made: Place,
    /// What it would be, too.
    pub(super) other: Place,
}

impl Conflict {
    /// What one of them is told of the other.
    pub(super) fn message(place: &Place, other: &Place) -> String {
        // The key says what it is, but for what is made beside it or in it.
        let what = match place.named {
            Named::By(table, key) if place.what != format!("{table}.{key}") => format!("{} ", place.what),
            _ => String::new(),
        };
        format!("{what}leads to the same file as {} ({}); name another one", other.what, place.path.visible())
    }

    /// Both, in one sentence.
    pub(crate) fn sentence(&self) -> String {
        let path = self.made.path.visible();
        format!("{} would be {}, too ({path}): name another file", self.other.what, self.made.what)
    }
}

/// The files that are made or written by the target, or by its commands. `file` is that of the configuration.
fn made(config: &Config, file: Option<&Path>) -> Vec<Place> {
    let state = &config.target.state_dir;
    let socket = config.control.clone().unwrap_or_default().socket;
    let mut places: Vec<Place> =
        file.map(|file| Place::new("the file of the configuration", file)).into_iter().collect();
    places.push(Place::of_key("target", "state_dir", "", state));
    places.push(Place::of_key("target", "state_dir", "the identity in ", &state.join(IDENTITY_FILE)));
    let known_disks = state.join(KNOWN_DISKS_FILE);
    places.push(Place::of_key("target", "state_dir", "what is known of disks in ", &known_disks));
    places.push(Place::of_key("control", "socket", "", &socket));
    if let Some(file) = config.metrics.as_ref().and_then(|metrics| metrics.file.as_ref()) {
        places.push(Place::of_key("metrics", "file", "", file));
        places.push(Place::of_key("metrics", "file", "the draft of ", &draft(file, DRAFT)));
    }
    places
}

/// The disks.
fn disks(config: &Config) -> impl Iterator<Item = Place> {
    config.subsystems.iter().flat_map(disks_of)
}

fn disks_of(subsystem: &SubsystemConfig) -> impl Iterator<Item = Place> {
    subsystem.namespaces.iter().filter_map(|namespace| disk(&subsystem.nqn, namespace))
}

fn disk(nqn: &str, namespace: &NamespaceConfig) -> Option<Place> {
    let Source::File { path, .. } = &namespace.source else { return None };
    let what = format!("the disk of namespace {} of {nqn}", namespace.nsid);
    Some(Place { named: Named::AsDisk, ..Place::new(what, path) })
}

/// The keys that are in files.
pub(crate) fn keys(config: &Config) -> impl Iterator<Item = Place> {
    config.hosts.iter().flat_map(|host| {
        let dhchap = host.authentication.iter().flat_map(|one| one.all_keys());
        let dhchap = dhchap.map(|(name, key)| (name, &key.source));
        let tls = host.tls.iter().flat_map(|tls| tls.keys()).map(|key| ("tls_key", &key.source));
        dhchap.chain(tls).filter_map(|(name, source)| match source {
            KeySource::Keyring(_) => None,
            source => Some(Place::new(format!("the {name} of host {}", host.nqn), &source.place().ok()?)),
        })
    })
}

/// All pairs of files of a configuration that are the same and must not be. Two disks that are one have rules of their
/// own, and two hosts may have a key.
pub(super) fn conflicts(config: &Config, file: Option<&Path>, look: Look<'_>) -> Vec<Conflict> {
    let with_look = |place: Place| (look(&place.path), place);
    let made: Vec<_> = made(config, file).into_iter().map(with_look).collect();
    let disks: Vec<_> = disks(config).map(with_look).collect();
    let keys: Vec<_> = keys(config).map(with_look).collect();
    let mut found = Vec::new();
    let mut compare = |one: &(Seen, Place), others: &[(Seen, Place)]| {
        let same = others.iter().filter(|other| one.0.is_same(&other.0));
        found.extend(same.map(|other| Conflict { made: one.1.clone(), other: other.1.clone() }));
    };
    for (index, one) in made.iter().enumerate() {
        compare(one, &made[..index]);
        compare(one, &disks);
        compare(one, &keys);
    }
    // Whoever writes to a disk would have the key, and who reads it has it.
    for key in &keys {
        compare(key, &disks);
    }
    found
}

/// What of a configuration is where a file would be made that it does not name.
pub(crate) fn conflict_at(place: Place, config: &Config, file: Option<&Path>) -> Option<Conflict> {
    let looks = Looks::new(LOOK_LIMIT);
    let seen = looks.at(&place.path);
    let mut all = made(config, file).into_iter().chain(disks(config)).chain(keys(config));
    let other = all.find(|other| looks.at(&other.path).is_same(&seen))?;
    Some(Conflict { made: place, other })
}

/// What a disk that comes to a target that runs would be, too. `next` is what is configured then.
pub(crate) fn conflict_of_changes(
    changes: &[Change],
    next: &Config,
    file: Option<&Path>,
) -> Option<Conflict> {
    let looks = Looks::new(LOOK_LIMIT);
    let come: Vec<Place> = changes
        .iter()
        .flat_map(|change| -> Vec<Place> {
            match change {
                Change::NamespaceAdded { nqn, namespace }
                | Change::NamespaceChanged { nqn, new: namespace, .. } => {
                    disk(nqn, namespace).into_iter().collect()
                }
                Change::SubsystemAdded(config) => disks_of(config).collect(),
                _ => Vec::new(),
            }
        })
        .collect();
    if come.is_empty() {
        return None;
    }
    let others: Vec<Place> = made(next, file).into_iter().chain(keys(next)).collect();
    let conflict = |disk: Place| {
        let seen = looks.at(&disk.path);
        let made = others.iter().find(|other| looks.at(&other.path).is_same(&seen))?.clone();
        Some(Conflict { made, other: disk })
    };
    come.into_iter().find_map(conflict)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    /// What is said of a configuration in a folder, which stands in its file.
    fn said(folder: &Path, tables: &str) -> String {
        let file = folder.join("target.toml");
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1\"\n{tables}\n[[subsystem]]\nallow_any_host = true\n\
             nqn = \"nqn.2026-11.org.ringfab:a\"\n[[subsystem.namespace]]\nmemory = \"1MiB\"\n"
        );
        fs::write(&file, text.replace("FOLDER", &folder.display().to_string())).expect("a configuration");
        Config::load(&file).map_or_else(|errors| errors.to_string(), |_| String::new())
    }

    const DISK: &str = "[[subsystem]]\nallow_any_host = true\nnqn = \"nqn.2026-11.org.ringfab:b\"\n\
                        [[subsystem.namespace]]\nnsid = 7\npath = \"FOLDER/disk\"\n";

    /// A folder with a disk, a key, and links to the disk.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path();
        let key = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
        fs::write(at.join("disk"), [0; 4096]).expect("a disk");
        fs::write(at.join("key"), key).expect("a key");
        fs::set_permissions(at.join("key"), fs::Permissions::from_mode(0o600)).expect("for few eyes");
        fs::hard_link(at.join("disk"), at.join("hard")).expect("a link");
        symlink(at, at.join("folder")).expect("a link");
        symlink("disk", at.join("soft")).expect("a link");
        symlink("disk", at.join("draft.new")).expect("a link");
        folder
    }

    #[test]
    fn what_is_made_is_no_disk_by_whatever_name() {
        let folder = folder();
        let disk = "leads to the same file as the disk of namespace 7 of nqn.2026-11.org.ringfab:b";
        for (file, what) in [
            ("/disk", "target.toml:4:8: metrics.file: "),
            ("//./disk", "metrics.file: "),
            ("/hard", "metrics.file: "),
            ("/soft", "metrics.file: "),
            ("/folder/disk", "metrics.file: "),
            ("/draft", "metrics.file: the draft of metrics.file "),
        ] {
            let said = said(folder.path(), &format!("[metrics]\nfile = \"FOLDER{file}\"\n{DISK}"));
            assert!(said.contains(&format!("{what}{disk}")), "{file}: {said:?}");
        }
        // Neither of them is there yet.
        let none = DISK.replace("/disk", "/none");
        let said_of_none = said(folder.path(), &format!("[metrics]\nfile = \"FOLDER/folder/none\"\n{none}"));
        assert!(said_of_none.contains(disk), "{said_of_none:?}");
        let socket = said(folder.path(), &format!("[control]\nsocket = \"FOLDER/disk\"\n{DISK}"));
        assert!(socket.contains("control.socket: leads to the same file"), "{socket:?}");
        assert_eq!(said(folder.path(), &format!("[metrics]\nfile = \"FOLDER/ringfab.prom\"\n{DISK}")), "");
        assert_eq!(fs::read(folder.path().join("disk")).expect("the disk"), [0; 4096]);
    }

    #[test]
    fn what_is_made_is_no_key_and_nothing_else_that_is_named() {
        let folder = folder();
        let host = "[[host]]\nnqn = \"nqn.2026-11.org.ringfab:h\"\ntls_key = \"file:FOLDER/key\"\n";
        let state = "[target]\nstate_dir = \"FOLDER/state\"\n";
        let metrics = |file: &str| format!("[metrics]\nfile = \"FOLDER/{file}\"\n");
        let path = "subsystem[0].namespace[0].path";
        for (tables, key, other) in [
            (metrics("target.toml"), "metrics.file", "the file of the configuration"),
            (metrics("key") + host, "metrics.file", "the tls_key of host nqn.2026-11.org.ringfab:h"),
            (metrics("x") + "[control]\nsocket = \"FOLDER/x\"\n", "metrics.file", "control.socket"),
            (metrics("state/identity") + state, "metrics.file", "the identity in target.state_dir"),
            (metrics("state/disks") + state, "metrics.file", "what is known of disks in target.state_dir"),
            (metrics("state") + state, "metrics.file", "target.state_dir"),
            (DISK.replace("/disk", "/target.toml"), path, "the file of the configuration"),
            (DISK.replace("/disk", "/key") + host, path, "the tls_key of host nqn.2026-11.org.ringfab:h"),
            (
                DISK.replace("FOLDER/disk", "/var/lib/ringfab/identity"),
                path,
                "the identity in target.state_dir",
            ),
        ] {
            let said = said(folder.path(), &tables);
            let expected = format!("{key}: leads to the same file as {other} (");
            assert!(said.contains(&expected), "{tables}: {said:?} instead of {expected}");
        }
        assert_eq!(said(folder.path(), &(metrics("ringfab.prom") + host + DISK)), "");
    }

    #[test]
    fn what_the_file_does_not_name_is_compared_with_all_that_it_names() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::write(at("disk"), [0; 512]).expect("a disk");
        symlink("disk", at("soft")).expect("a link");
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1\"\n[metrics]\nfile = {:?}\n{}",
            at("x.prom"),
            DISK.replace("FOLDER", &folder.path().display().to_string())
        );
        let config = Config::parse(&text, "test").expect("a configuration");
        let file = at("target.toml");
        let made = |name: &str| {
            let place = Place::new("the ready file", &at(name));
            conflict_at(place, &config, Some(&file)).map(|found| found.sentence())
        };
        let said = made("soft").expect("the disk");
        assert!(said.starts_with("the disk of namespace 7 of") && said.contains("be the ready file, too ("));
        assert!(made("target.toml").is_some() && made("x.prom").is_some());
        assert_eq!(made("ready"), None);
        let disk = |name: &str| {
            let namespace = Config::parse_namespace(&format!("nsid = 3\npath = {:?}", at(name)));
            let (nqn, namespace) = ("nqn.x".to_owned(), namespace.expect("a namespace"));
            let change = Change::NamespaceAdded { nqn, namespace };
            conflict_of_changes(&[change], &config, Some(&file)).map(|found| found.sentence())
        };
        let said = disk("x.prom").expect("the metrics");
        assert!(said.starts_with("the disk of namespace 3 of nqn.x would be metrics.file, too ("), "{said}");
        assert!(disk("x.prom.new").is_some() && disk("target.toml").is_some());
        assert_eq!((disk("soft"), disk("other")), (None, None), "disks have rules of their own");
    }
}
