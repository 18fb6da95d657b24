//! Which disk was served under which identifiers, over restarts: hosts take what has the identifiers of a disk for that
//! disk, and write to it. So identifiers that were one disk's are no other's. Nor are they the same disk's with blocks
//! of another size, in which a host's addresses mean other bytes.
//!
//! The state directory has a line for each. What was not written (a full file system) counts until the process ends.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringfab_base::{VisiblePath as _, shell_word, visible};
use ringfab_block::{Backing, DeviceIdentity, DriverHandle};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::config::places::KNOWN_DISKS_FILE;
use crate::config::{NamespaceConfig, Source};
use crate::disk_identity::{DiskIdentity, Fingerprint};
use crate::worker::{self, Task};

const FILE_NAME: &str = KNOWN_DISKS_FILE;
const HEADER: &str = "ringfab-disks 1";

/// The oldest are forgotten beyond so many, and so many lines may have been replaced before the file is written anew.
const KNOWN_MAX: usize = 16_384;
const REPLACED_MAX: usize = 2048;

/// Bytes that are looked at; a file has far less.
const BYTES_MAX: u64 = 64 << 20;

/// How long the state directory may take to answer.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// How long a look at a path may take, and how long after another one has hung.
const LOOK_LIMIT: Duration = Duration::from_secs(1);
const LOOK_LIMIT_LATE: Duration = Duration::from_millis(100);

/// How what a device is called begins, in messages and in what its identifiers are made from.
const DEVICE: &str = "device ";

/// What is behind a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Content {
    /// A file or device.
    Disk(Fingerprint),
    /// A file or device that could not be looked at.
    Unseen(PathBuf),
    /// The device of a driver.
    Device {
        /// What the driver calls it.
        name: String,
        /// What it knows itself by, if it has told.
        identity: Option<String>,
    },
    /// No disk: memory, or zeroes.
    Made(String),
}

impl Content {
    /// What a namespace would have behind it that is not open yet. Paths that hang are not waited for long.
    pub(crate) fn look(known_disks: &KnownDisks, backing: &Backing) -> Self {
        match backing {
            Backing::File { path, .. } if !known_disks.are_kept() => Self::Unseen(path.clone()),
            Backing::File { path, .. } => {
                let at = path.clone();
                let look = move || {
                    let metadata = fs::metadata(&at)?;
                    DiskIdentity::of(&metadata)?;
                    Ok::<_, io::Error>(Fingerprint::of(&at, &metadata))
                };
                known_disks.look_at(path, look).map_or_else(|| Self::Unseen(path.clone()), Self::Disk)
            }
            made => Self::made(made, made.driver().and_then(|driver| known_disks.identity_of(driver))),
        }
    }

    /// What an administrator adds that stays the same disk over restarts: a file, or something on another machine.
    pub(crate) fn of_source(known_disks: &KnownDisks, config: &NamespaceConfig) -> Self {
        match &config.source {
            Source::File { path, direct } => {
                let (path, direct, read_only) = (path.clone(), *direct, config.read_only);
                Self::look(known_disks, &Backing::File { path, direct, read_only })
            }
            other => Self::Device { name: other.to_string(), identity: None },
        }
    }

    /// What is behind a namespace that has no file. A device has told this `identity`, or none.
    pub(crate) fn made(backing: &Backing, identity: Option<DeviceIdentity>) -> Self {
        if let Some(driver) = backing.driver() {
            let identity = identity.map(|identity| identity.as_str().to_owned());
            return Self::Device { name: driver.name(), identity };
        }
        Self::Made(match backing {
            Backing::File { path, .. } => path.to_string_lossy().into_owned(),
            Backing::Memory(_) => "memory".to_owned(),
            Backing::Null { .. } => "zeroes".to_owned(),
            other => format!("{other:?}"),
        })
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Disk(one), Self::Disk(other)) => one.is_same(other),
            (Self::Disk(seen), Self::Unseen(path)) | (Self::Unseen(path), Self::Disk(seen)) => {
                seen.path == *path
            }
            (
                Self::Device { name, identity },
                Self::Device { name: other_name, identity: other_identity },
            ) => match (identity, other_identity) {
                (Some(identity), Some(other)) => identity == other,
                _ => name == other_name,
            },
            (one, other) => one == other,
        }
    }

    /// Whether it tells of the same disk what `other` does not.
    fn says_more_than(&self, other: &Self) -> bool {
        matches!(self, Self::Device { identity: Some(_), .. })
            && matches!(other, Self::Device { identity: None, .. })
            && self.is_same(other)
    }

    /// As it is written now: older versions had no more of a device than its name.
    fn renewed(self) -> Self {
        match self {
            Self::Made(what) => match what.strip_prefix(DEVICE) {
                Some(name) => Self::Device { name: name.to_owned(), identity: None },
                None => Self::Made(what),
            },
            other => other,
        }
    }

    /// What it is called, whatever it turns out to be.
    fn name(&self) -> String {
        match self {
            Self::Disk(Fingerprint { path, .. }) | Self::Unseen(path) => path.to_string_lossy().into_owned(),
            Self::Device { name, .. } => format!("{DEVICE}{name}"),
            Self::Made(what) => what.clone(),
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(fingerprint) => fingerprint.fmt(f),
            Self::Device { identity: Some(identity), .. } => {
                write!(f, "{} ({})", self.name(), visible(identity))
            }
            Self::Unseen(_) | Self::Device { identity: None, .. } | Self::Made(_) => {
                f.write_str(&self.name())
            }
        }
    }
}

/// By what hosts know a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identifiers {
    pub(crate) nguid: [u8; 16],
    pub(crate) uuid: Uuid,
}

/// What hosts found as a namespace, or would find.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KnownDisk {
    nqn: String,
    nsid: u32,
    /// As it is shown and configured; as long as it is not chosen, nothing.
    nguid: String,
    uuid: String,
    block_bytes: u32,
    content: Content,
}

impl KnownDisk {
    /// A namespace that has no identifiers yet.
    pub(crate) fn new(nqn: &str, nsid: u32, block_bytes: u32, content: Content) -> Self {
        let (nguid, uuid) = (String::new(), String::new());
        Self { nqn: nqn.to_owned(), nsid, nguid, uuid, block_bytes, content }
    }

    /// The same with identifiers.
    pub(crate) fn with(&self, nguid: Option<[u8; 16]>, uuid: Option<Uuid>) -> Self {
        Self {
            nguid: nguid.map_or_else(String::new, |nguid| Uuid::from_bytes(nguid).simple().to_string()),
            uuid: uuid.map_or_else(String::new, |uuid| uuid.to_string()),
            ..self.clone()
        }
    }

    /// The namespace that it is.
    pub(crate) fn number(&self) -> (&str, u32) {
        (&self.nqn, self.nsid)
    }

    /// What is behind it, as it is configured.
    pub(crate) fn name(&self) -> String {
        self.content.name()
    }

    fn identifiers(&self) -> Option<Identifiers> {
        let nguid = Uuid::parse_str(&self.nguid).ok()?.into_bytes();
        Some(Identifiers { nguid, uuid: Uuid::parse_str(&self.uuid).ok()? })
    }

    fn is_same_disk(&self, other: &Self) -> bool {
        self.block_bytes == other.block_bytes && self.content.is_same(&other.content)
    }

    /// The identifiers that it has.
    fn named(&self) -> impl Iterator<Item = &String> {
        [&self.nguid, &self.uuid].into_iter().filter(|one| !one.is_empty())
    }

    /// Whether there is nothing in `now` that it does not say.
    fn covers(&self, now: &Self) -> bool {
        if self.content.says_more_than(&now.content) {
            return *self == Self { content: self.content.clone(), ..now.clone() };
        }
        self == now
    }

    fn has_identifiers_of(&self, other: &Self) -> bool {
        (&self.nqn, &self.nguid, &self.uuid) == (&other.nqn, &other.nguid, &other.uuid)
    }
}

impl fmt::Display for KnownDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with blocks of {} bytes", self.content, self.block_bytes)
    }
}

/// Identifiers of a namespace were another disk's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the nguid or uuid of namespace {} was that of {before}, and hosts would take {now} for it", now.nsid)]
pub(crate) struct OtherDisk {
    before: Box<KnownDisk>,
    now: Box<KnownDisk>,
}

impl OtherDisk {
    /// For whoever adds a namespace.
    pub(crate) fn refused(&self) -> String {
        format!("{self}: give it an nguid and a uuid of its own, or leave them out")
    }

    /// For whoever looks after a namespace that waits.
    pub(crate) fn to_be_confirmed(&self) -> String {
        let KnownDisk { nsid, nqn, .. } = &*self.now;
        format!(
            "{self}: give it an nguid and a uuid of its own; or, if it holds what that held, `ringfab-target namespace \
             reopen {nsid} --subsystem {}` lets hosts have it",
            shell_word(nqn)
        )
    }
}

/// The disks that were served.
#[derive(Debug, Default)]
pub(crate) struct KnownDisks {
    /// None where nothing is known: in simulations.
    file: Option<PathBuf>,
    state: Mutex<State>,
    /// Whether the last look at a path took too long.
    hung: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// Oldest first.
    known: BTreeMap<u64, KnownDisk>,
    next: u64,
    by_identifier: BTreeMap<String, BTreeSet<u64>>,
    by_number: BTreeMap<u32, BTreeSet<u64>>,
    lines: usize,
    /// Whether the file cannot just be added to.
    stale: bool,
}

impl KnownDisks {
    /// Those of a state directory. This may block.
    ///
    /// # Errors
    /// When they are there and cannot be read.
    pub(crate) fn load(state_dir: &Path) -> io::Result<Self> {
        let file = state_dir.join(FILE_NAME);
        let state = match read_file(&file) {
            Ok(text) => State::parse(&file, &text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                State { stale: true, ..State::default() }
            }
            Err(error) => return Err(error),
        };
        Ok(Self { file: Some(file), state: Mutex::new(state), hung: AtomicBool::new(false) })
    }

    /// Whether anything is known.
    pub(crate) fn are_kept(&self) -> bool {
        self.file.is_some()
    }

    /// Whether a disk may be served with its identifiers.
    pub(crate) fn check(&self, now: &KnownDisk) -> Result<(), OtherDisk> {
        let state = self.state();
        let other = state.sharing(now).map(|(_, one)| one).find(|one| !one.is_same_disk(now));
        other.map_or(Ok(()), |before| {
            Err(OtherDisk { before: Box::new(before.clone()), now: Box::new(now.clone()) })
        })
    }

    /// What hosts have known a disk by, when it was this namespace before: latest first.
    pub(crate) fn identifiers_of(&self, now: &KnownDisk) -> Vec<Identifiers> {
        let state = self.state();
        state.of_number(now).filter(|one| one.is_same_disk(now)).filter_map(KnownDisk::identifiers).collect()
    }

    /// Hosts find these from now on. If one has identifiers that were another disk's, somebody has decided so.
    pub(crate) fn note(&self, found: Vec<KnownDisk>) {
        let Some(file) = &self.file else { return };
        let mut state = self.state();
        let mut new = Vec::new();
        for one in found {
            if state.sharing(&one).any(|(_, known)| known.covers(&one)) {
                continue;
            }
            if let Some(before) = state.of_number(&one).next().filter(|before| !before.is_same_disk(&one)) {
                let (subsystem, nsid) = (&one.nqn, one.nsid);
                tracing::warn!(
                    subsystem,
                    nsid,
                    %before,
                    now = %one,
                    nguid = one.nguid,
                    uuid = one.uuid,
                    "a namespace is another disk than before"
                );
            }
            state.add(one.clone());
            new.push(one);
        }
        if new.is_empty() {
            return;
        }
        if let Err(error) = state.write(file, &new) {
            state.stale = true;
            let path = file.visible();
            tracing::error!(%path, error, "which disk has which identifiers is forgotten with the next restart");
        }
    }

    /// What a device knows itself by, if its driver tells that soon.
    fn identity_of(&self, driver: &DriverHandle) -> Option<DeviceIdentity> {
        let this = driver.clone();
        let seen = self.are_kept().then(|| self.look_at(driver.name().as_ref(), move || this.look()))?;
        seen?.identity
    }

    /// What a look finds that does not take long.
    fn look_at<T: Send + 'static>(
        &self,
        path: &Path,
        look: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Option<T> {
        let late = self.hung.load(Ordering::Relaxed);
        let limit = if late { LOOK_LIMIT_LATE } else { LOOK_LIMIT };
        let seen = worker::within("looking at", path, limit, look);
        self.hung.store(seen.is_err(), Ordering::Relaxed);
        seen.ok()?.ok()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// What a file says. A line that is damaged says nothing.
    fn parse(path: &Path, text: &str) -> Self {
        let mut state = Self::default();
        let mut lines = text.lines();
        // What another machine has seen says nothing of the disks here.
        if lines.next() != Some(&header()) {
            let path = path.visible();
            tracing::info!(%path, "what is known of disks is not of this machine, and is not used");
            return Self { stale: true, ..state };
        }
        let mut damaged = 0;
        for line in lines {
            state.lines += 1;
            match parse_line(line) {
                Some(known) => state.add(known),
                None => damaged += 1,
            }
        }
        // A crash may have cut off the last line.
        state.stale = damaged != 0 || !text.ends_with('\n');
        if damaged != 0 {
            let path = path.visible();
            tracing::warn!(%path, damaged, "lines of what is known of disks are damaged, and are not used");
        }
        state
    }

    /// Those that hosts would take this one for, with their places.
    fn sharing<'a>(&'a self, now: &'a KnownDisk) -> impl Iterator<Item = (u64, &'a KnownDisk)> {
        let places =
            [&now.nguid, &now.uuid].into_iter().filter_map(|one| self.by_identifier.get(one)).flatten();
        let all = places.filter_map(|place| Some((*place, self.known.get(place)?)));
        all.filter(|(_, one)| one.nqn == now.nqn)
    }

    /// The disks that were a namespace: the last one first.
    fn of_number<'a>(&'a self, now: &'a KnownDisk) -> impl Iterator<Item = &'a KnownDisk> {
        let places = self.by_number.get(&now.nsid).into_iter().flatten().rev();
        places.filter_map(|place| self.known.get(place)).filter(|one| one.nqn == now.nqn)
    }

    fn add(&mut self, new: KnownDisk) {
        let replaced = |one: &KnownDisk| one.has_identifiers_of(&new) || !one.is_same_disk(&new);
        let sharing = self.sharing(&new).filter(|(_, one)| replaced(one)).map(|(place, _)| place);
        let replaced: Vec<u64> = sharing.collect();
        replaced.into_iter().for_each(|place| self.forget(place));
        for identifier in new.named() {
            self.by_identifier.entry(identifier.clone()).or_default().insert(self.next);
        }
        self.by_number.entry(new.nsid).or_default().insert(self.next);
        self.known.insert(self.next, new);
        self.next += 1;
        if self.known.len() > KNOWN_MAX {
            // Of what is no disk, nothing is left anyway when it is gone.
            let made = self.known.iter().find(|(_, one)| matches!(one.content, Content::Made(_)));
            let oldest = made.or_else(|| self.known.iter().next()).map(|(place, _)| *place);
            oldest.into_iter().for_each(|place| self.forget(place));
        }
    }

    fn forget(&mut self, place: u64) {
        let Some(old) = self.known.remove(&place) else { return };
        for identifier in old.named() {
            if let Some(places) = self.by_identifier.get_mut(identifier) {
                places.remove(&place);
                if places.is_empty() {
                    self.by_identifier.remove(identifier);
                }
            }
        }
        if let Some(places) = self.by_number.get_mut(&old.nsid) {
            places.remove(&place);
        }
    }

    fn write(&mut self, path: &Path, new: &[KnownDisk]) -> Result<(), String> {
        let whole = self.stale || self.lines > self.known.len() + REPLACED_MAX;
        let lines: Vec<&KnownDisk> = if whole { self.known.values().collect() } else { new.iter().collect() };
        let mut text = if whole { header() + "\n" } else { String::new() };
        for known in &lines {
            let json = serde_json::to_string(known).map_err(|error| error.to_string())?;
            text += &format!("{} {json}\n", checksum(&json));
        }
        let (count, at) = (lines.len(), path.to_owned());
        let task = Task::new("writing", path, WRITE_LIMIT).must_finish();
        let written =
            worker::wait(task, move || if whole { replace(&at, &text) } else { append(&at, &text) });
        written.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        self.lines = if whole { count } else { self.lines + count };
        self.stale = false;
        Ok(())
    }
}

fn parse_line(line: &str) -> Option<KnownDisk> {
    let (sum, json) = line.split_once(' ')?;
    let known: KnownDisk = (sum == checksum(json)).then(|| serde_json::from_str(json).ok()).flatten()?;
    Some(KnownDisk { content: known.content.renewed(), ..known })
}

/// The first line names the machine, in other words than its own: its identifier is confidential (machine-id(5)).
fn header() -> String {
    let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    format!("{HEADER} {}", checksum(machine.trim()))
}

fn checksum(text: &str) -> String {
    let hash = Sha256::digest(format!("{HEADER}\n{text}"));
    hash[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read_file(path: &Path) -> io::Result<String> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn append(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_data()
}

/// Writes it anew: all of it, or nothing.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    let temporary = folder.join(format!(".{FILE_NAME}.{}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    if let Err(error) = written.and_then(|()| fs::rename(&temporary, path)) {
        // What is left of it would only take room.
        let _gone = fs::remove_file(&temporary);
        return Err(error);
    }
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NQN: &str = "nqn.2026-11.org.ringfab:a";

    fn made(nsid: u32, block_bytes: u32, content: &str, number: u8) -> KnownDisk {
        let one = KnownDisk::new(NQN, nsid, block_bytes, Content::Made(content.to_owned()));
        one.with(Some([number; 16]), Some(Uuid::from_bytes([number; 16])))
    }

    #[test]
    fn identifiers_are_one_disks_with_blocks_of_one_size() {
        let folder = tempfile::tempdir().unwrap();
        let disks = KnownDisks::load(folder.path()).unwrap();
        let first = made(1, 512, "first", 1);
        disks.note(vec![first.clone(), made(2, 512, "second", 2)]);
        for disks in [&disks, &KnownDisks::load(folder.path()).unwrap()] {
            assert_eq!(disks.check(&first), Ok(()));
            assert_eq!(disks.check(&made(7, 512, "first", 1)), Ok(()), "another number");
            assert!(disks.check(&made(1, 512, "second", 1)).is_err());
            let error = disks.check(&made(1, 4096, "first", 1)).unwrap_err().to_string();
            assert!(error.contains("first with blocks of 512 bytes"), "{error}");
            assert!(error.contains("first with blocks of 4096 bytes"), "{error}");
            let one = made(1, 512, "second", 9).with(None, Some(Uuid::from_bytes([1; 16])));
            assert!(disks.check(&one).is_err(), "one of them is enough");
            assert_eq!(disks.identifiers_of(&made(2, 512, "second", 0)).len(), 1);
            assert_eq!(disks.identifiers_of(&made(1, 512, "second", 0)), []);
            assert_eq!(
                disks.check(&KnownDisk { nqn: "nqn.other".to_owned(), ..made(1, 512, "x", 1) }),
                Ok(())
            );
        }
    }

    #[test]
    fn who_decides_that_a_disk_has_the_identifiers_of_another_is_heeded_from_then_on() {
        let folder = tempfile::tempdir().unwrap();
        let disks = KnownDisks::load(folder.path()).unwrap();
        disks.note(vec![made(1, 512, "first", 1)]);
        disks.note(vec![made(1, 512, "second", 1)]);
        for disks in [&disks, &KnownDisks::load(folder.path()).unwrap()] {
            assert_eq!(disks.check(&made(1, 512, "second", 1)), Ok(()));
            assert!(disks.check(&made(1, 512, "first", 1)).is_err());
        }
    }

    #[test]
    fn what_is_damaged_or_cut_off_says_nothing_and_the_rest_counts() {
        let folder = tempfile::tempdir().unwrap();
        KnownDisks::load(folder.path()).unwrap().note(vec![made(1, 512, "a", 1), made(2, 512, "b", 2)]);
        let path = folder.path().join(FILE_NAME);
        let good = fs::read_to_string(&path).unwrap();
        assert_eq!(good.lines().count(), 3);
        for text in [&good[..good.len() - 9], &good.replacen("\"b\"", "\"c\"", 1), &format!("{good}cut")] {
            fs::write(&path, text).unwrap();
            let disks = KnownDisks::load(folder.path()).unwrap();
            assert!(disks.check(&made(1, 512, "other", 1)).is_err(), "{text}");
            // The next line does not run into what is left of another.
            disks.note(vec![made(3, 512, "c", 3)]);
            let again = KnownDisks::load(folder.path()).unwrap();
            assert!(!again.state().stale, "{text}");
            assert!(again.check(&made(3, 512, "other", 3)).is_err());
        }
        fs::write(&path, good.replacen(&header(), "ringfab-disks 1 elsewhere", 1)).unwrap();
        assert_eq!(KnownDisks::load(folder.path()).unwrap().check(&made(1, 512, "other", 1)), Ok(()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn the_file_does_not_grow_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let disks = KnownDisks::load(folder.path()).unwrap();
        let round = |content: &str| (1..=250).map(|nsid| made(1, 512, content, nsid)).collect::<Vec<_>>();
        for number in 0..20 {
            disks.note(round(&format!("content {number}")));
            disks.note(round(&format!("content {number}")));
        }
        let lines = fs::read_to_string(folder.path().join(FILE_NAME)).unwrap().lines().count();
        assert!((251..=250 + REPLACED_MAX + 251).contains(&lines), "{lines}");
        assert_eq!(disks.state().known.len(), 250);
    }

    #[test]
    fn what_cannot_be_written_counts_until_the_process_ends() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        fs::create_dir(&state).unwrap();
        let disks = KnownDisks::load(&state).unwrap();
        fs::remove_dir(&state).unwrap();
        disks.note(vec![made(1, 512, "a", 1)]);
        assert!(disks.check(&made(1, 512, "b", 1)).is_err());
        fs::create_dir(&state).unwrap();
        disks.note(vec![made(2, 512, "b", 2)]);
        assert!(KnownDisks::load(&state).unwrap().check(&made(1, 512, "b", 1)).is_err(), "it is there then");
    }

    fn device(name: &str, identity: Option<&str>, number: u8) -> KnownDisk {
        let content = Content::Device { name: name.to_owned(), identity: identity.map(str::to_owned) };
        KnownDisk { content, ..made(1, 512, "", number) }
    }

    #[test]
    fn a_device_is_what_it_says_of_itself_or_else_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let disks = KnownDisks::load(folder.path()).unwrap();
        disks.note(vec![device("rbd/a", Some("1"), 1)]);
        // What tells less does not make what is known less.
        disks.note(vec![device("rbd/a", None, 1)]);
        for disks in [&disks, &KnownDisks::load(folder.path()).unwrap()] {
            assert_eq!(disks.check(&device("rbd/a", Some("1"), 1)), Ok(()));
            assert_eq!(disks.check(&device("rbd/b", Some("1"), 1)), Ok(()), "renamed");
            assert_eq!(disks.check(&device("rbd/a", None, 1)), Ok(()), "it does not tell");
            let error = disks.check(&device("rbd/a", Some("2\n"), 1)).unwrap_err().to_string();
            assert!(error.contains("was that of device rbd/a (1) with blocks"), "{error}");
            assert!(error.contains("would take device rbd/a (2\\n) with blocks"), "{error}");
            assert!(disks.check(&device("rbd/b", None, 1)).is_err());
            assert!(disks.check(&made(1, 512, "device rbd/a", 1)).is_err(), "no device");
            assert_eq!(disks.identifiers_of(&device("rbd/a", Some("2"), 0)), []);
        }
        assert_eq!(device("rbd/a", Some("1"), 1).name(), "device rbd/a", "identifiers are made from it");
    }

    #[test]
    fn a_device_that_an_older_version_has_noted_by_its_name_is_known() {
        let folder = tempfile::tempdir().unwrap();
        KnownDisks::load(folder.path()).unwrap().note(vec![made(1, 512, "device rbd/a", 1)]);
        let written = fs::read_to_string(folder.path().join(FILE_NAME)).unwrap();
        assert!(written.contains(r#""content":{"made":"device rbd/a"}"#), "{written}");
        let disks = KnownDisks::load(folder.path()).unwrap();
        assert_eq!(disks.check(&device("rbd/a", Some("1"), 1)), Ok(()));
        assert!(disks.check(&device("rbd/b", Some("1"), 1)).is_err());
        // What it says of itself counts from now on.
        disks.note(vec![device("rbd/a", Some("1"), 1)]);
        for disks in [&disks, &KnownDisks::load(folder.path()).unwrap()] {
            assert!(disks.check(&device("rbd/a", Some("2"), 1)).is_err());
        }
    }

    #[test]
    fn a_simulation_knows_no_disks() {
        let disks = KnownDisks::default();
        disks.note(vec![made(1, 512, "a", 1)]);
        assert_eq!(disks.check(&made(1, 512, "b", 1)), Ok(()));
        assert!(!disks.are_kept());
    }
}
