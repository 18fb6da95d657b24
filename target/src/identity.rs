//! The identity of an installation: a random seed in the state directory. The identifiers of namespaces are derived
//! from it. So they stay the same over restarts, and differ between installations.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfab_base::VisiblePath as _;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::config::places::IDENTITY_FILE;
use crate::known_disks::{Identifiers, KnownDisk, KnownDisks};
use crate::worker::{self, Task};

/// How long the state directory may take to answer.
const LIMIT: Duration = Duration::from_secs(10);

/// Bytes that are looked at; an identity has far less.
const BYTES_MAX: u64 = 4096;

const FILE_NAME: &str = IDENTITY_FILE;
const HEADER: &str = "ringfab-identity 1";

/// The seed of an installation, and what its identifiers have stood for.
#[derive(Clone)]
pub struct Identity {
    seed: [u8; 32],
    known_disks: Arc<KnownDisks>,
}

/// Why there is no identity. A new one is never made in place of one that cannot be read: hosts would take every
/// namespace for another disk.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file is there, but cannot be read.
    #[error(
        "cannot read the identity of this installation in {}: {source}; make it readable, or restore it from a backup",
        path.visible()
    )]
    Read {
        /// Which file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// What the identifiers stood for is there, but cannot be read.
    #[error(
        "cannot read which disk had which identifiers in {}: {source}; make it readable, or restore it from a backup",
        path.visible()
    )]
    KnownDisks {
        /// Where.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The file is there, but is damaged.
    #[error(
        "{} is damaged; restore it from a backup, or remove it to give every namespace a new identity",
        path.visible()
    )]
    Damaged {
        /// Which file.
        path: PathBuf,
    },
    /// There is none yet and none can be written.
    #[error(
        "cannot write the identity of this installation to {}: {source}; create the directory for the user of this \
         service, or set target.state_dir to one that it may write",
        path.visible()
    )]
    Write {
        /// Which file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl Identity {
    /// An identity from a given seed, for simulations. It does not remember disks.
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self { seed, known_disks: Arc::default() }
    }

    /// The identity in `state_dir`; makes it, and the directory, when there is none.
    ///
    /// # Errors
    /// When there is one that cannot be read or is damaged, or none and it cannot be written.
    pub fn load_or_create(state_dir: &Path) -> Result<Self, IdentityError> {
        let (path, dir) = (state_dir.join(FILE_NAME), state_dir.to_owned());
        let outcome = worker::wait(Task::new("reading", &path, LIMIT).must_finish(), move || {
            let identity = Self::load_or_create_here(&dir)?;
            let known_disks = KnownDisks::load(&dir);
            let known_disks =
                known_disks.map_err(|source| IdentityError::KnownDisks { path: dir.clone(), source })?;
            Ok(Self { known_disks: Arc::new(known_disks), ..identity })
        });
        outcome.map_err(|error| IdentityError::Read { path, source: error.into() })?
    }

    /// The same, however long it takes.
    fn load_or_create_here(state_dir: &Path) -> Result<Self, IdentityError> {
        let path = state_dir.join(FILE_NAME);
        if let Some(identity) = Self::load(&path)? {
            return Ok(identity);
        }
        let created = Self::create(state_dir, &path);
        match created {
            Ok(identity) => Ok(identity),
            // Another process was faster: its identity is the one of this installation.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Self::load(&path)?.ok_or(IdentityError::Write { path, source: error })
            }
            Err(source) => Err(IdentityError::Write { path, source }),
        }
    }

    /// The NGUID of a namespace: stable, and never zero.
    pub fn nguid(&self, nqn: &str, nsid: u32) -> [u8; 16] {
        let mut nguid = self.derive("nguid", nqn, nsid);
        // A hash is zero about never, but "about" is not what a promise rests on.
        nguid[0] |= 1;
        nguid
    }

    /// The UUID of a namespace: stable, and never zero (version 8, RFC 9562).
    pub fn uuid(&self, nqn: &str, nsid: u32) -> Uuid {
        uuid::Builder::from_custom_bytes(self.derive("uuid", nqn, nsid)).into_uuid()
    }

    /// NGUID and UUID of a namespace that is added at runtime. They depend on `what` it serves, too: its number may
    /// have belonged to another one before, for which hosts must never take it.
    pub fn of_added(&self, nqn: &str, nsid: u32, what: &[u8]) -> ([u8; 16], Uuid) {
        let mut hash = Sha256::new();
        hash.update(self.seed);
        hash.update((what.len() as u64).to_le_bytes());
        hash.update(what);
        let own = Self::from_seed(hash.finalize().into());
        (own.nguid(nqn, nsid), own.uuid(nqn, nsid))
    }

    /// What its identifiers have stood for.
    pub(crate) fn known_disks(&self) -> &Arc<KnownDisks> {
        &self.known_disks
    }

    /// By what hosts are to know a disk: by what it is `given`, and else by what it had before, and never by what
    /// another disk had. Where nothing speaks against it, the identifiers are those of the number, if `by_number`, or
    /// else those of a namespace that is added.
    pub(crate) fn identifiers(
        &self,
        disk: &KnownDisk,
        given: (Option<[u8; 16]>, Option<Uuid>),
        by_number: bool,
    ) -> Identifiers {
        let (nqn, nsid) = disk.number();
        let (nguid, uuid) = given;
        let usual = || Identifiers { nguid: self.nguid(nqn, nsid), uuid: self.uuid(nqn, nsid) };
        let added = |what: &[u8]| {
            let (nguid, uuid) = self.of_added(nqn, nsid, what);
            Identifiers { nguid, uuid }
        };
        let is_free = |one: &Identifiers| {
            let derived = disk.with(nguid.is_none().then_some(one.nguid), uuid.is_none().then_some(one.uuid));
            self.known_disks.check(&derived).is_ok()
        };
        let by_name = || added(disk.name().as_bytes());
        let mut candidates = by_number
            .then(usual)
            .into_iter()
            .chain(self.known_disks.identifiers_of(disk))
            .chain(std::iter::once_with(by_name))
            // Another disk had this name, too.
            .chain((0_u64..).map(|number| added(&number.to_le_bytes())));
        let free = candidates.find(is_free).expect("there is no end of them");
        Identifiers { nguid: nguid.unwrap_or(free.nguid), uuid: uuid.unwrap_or(free.uuid) }
    }

    fn derive(&self, what: &str, nqn: &str, nsid: u32) -> [u8; 16] {
        let mut hash = Sha256::new();
        hash.update(self.seed);
        // Lengths go first, so that no two inputs run together to the same bytes.
        hash.update((what.len() as u64).to_le_bytes());
        hash.update(what);
        hash.update((nqn.len() as u64).to_le_bytes());
        hash.update(nqn);
        hash.update(nsid.to_le_bytes());
        first_16(&hash.finalize())
    }

    /// The identity in a file; none when there is no file.
    fn load(path: &Path) -> Result<Option<Self>, IdentityError> {
        let text = match read_file(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(IdentityError::Read { path: path.to_owned(), source }),
        };
        let identity = std::str::from_utf8(&text).ok().and_then(Self::parse);
        identity.map(Some).ok_or_else(|| IdentityError::Damaged { path: path.to_owned() })
    }

    /// Writes a new identity. Appears whole or not at all, and never replaces one: the name is made last, by a link.
    fn create(state_dir: &Path, path: &Path) -> io::Result<Self> {
        fs::create_dir_all(state_dir)?;
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(io::Error::other)?;
        let identity = Self::from_seed(seed);
        let temporary = state_dir.join(format!(".{FILE_NAME}.{}", std::process::id()));
        let linked = identity.write(&temporary).and_then(|()| {
            fs::hard_link(&temporary, path).or_else(|error| {
                // Some file systems have no links; there a rename is the nearest thing.
                if error.kind() == io::ErrorKind::AlreadyExists {
                    Err(error)
                } else {
                    fs::rename(&temporary, path)
                }
            })
        });
        let removed = fs::remove_file(&temporary);
        linked?;
        if let Err(error) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        File::open(state_dir)?.sync_all()?;
        Ok(identity)
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(self.to_text().as_bytes())?;
        file.sync_all()
    }

    fn to_text(&self) -> String {
        let seed = hex(&self.seed);
        format!("{HEADER}\n{seed}\n{}\n", checksum(&seed))
    }

    fn parse(text: &str) -> Option<Self> {
        let [header, seed, sum] = text.strip_suffix('\n')?.split('\n').collect::<Vec<_>>().try_into().ok()?;
        if header != HEADER || sum != checksum(seed) || seed.len() != 64 {
            return None;
        }
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(seed.get(index * 2..index * 2 + 2)?, 16).ok()?;
        }
        Some(Self::from_seed(bytes))
    }
}

/// The seed is not shown: who knows it can foretell identifiers.
impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity")
    }
}

/// Reads a regular file. To open something else may be to wait for somebody.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut text = Vec::new();
    File::open(path)?.take(BYTES_MAX).read_to_end(&mut text)?;
    Ok(text)
}

fn checksum(seed: &str) -> String {
    hex(&first_16(&Sha256::digest(format!("{HEADER}\n{seed}"))))
}

fn first_16(hash: &[u8]) -> [u8; 16] {
    hash[..16].try_into().expect("a SHA-256 has 32 bytes")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_made_once_and_then_stays() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        let first = Identity::load_or_create(&state).unwrap();
        assert_eq!(Identity::load_or_create(&state).unwrap().seed, first.seed);
        assert_eq!(fs::read_dir(&state).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn identifiers_are_stable_and_differ_by_everything_they_stand_for() {
        let one = Identity::from_seed([1; 32]);
        let two = Identity::from_seed([2; 32]);
        assert_eq!(one.nguid("nqn.a", 1), one.nguid("nqn.a", 1));
        assert_ne!(one.nguid("nqn.a", 1), one.nguid("nqn.a", 2));
        assert_ne!(one.nguid("nqn.a", 1), one.nguid("nqn.b", 1));
        assert_ne!(one.nguid("nqn.a", 1), two.nguid("nqn.a", 1));
        assert_ne!(&one.nguid("nqn.a", 1), one.uuid("nqn.a", 1).as_bytes());
        assert_eq!(one.uuid("nqn.a", 1).get_version_num(), 8);
    }

    #[test]
    fn a_damaged_identity_is_an_error_at_every_byte_and_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        Identity::load_or_create(directory.path()).unwrap();
        let path = directory.path().join(FILE_NAME);
        let good = fs::read(&path).unwrap();
        for index in 0..good.len() {
            let mut bad = good.clone();
            bad[index] ^= 1;
            fs::write(&path, &bad).unwrap();
            let error = Identity::load_or_create(directory.path()).unwrap_err();
            assert!(matches!(error, IdentityError::Damaged { .. }), "byte {index}: {error}");
            fs::write(&path, &good[..index]).unwrap();
            assert!(Identity::load_or_create(directory.path()).is_err(), "cut at {index}");
        }
        assert_eq!(fs::read(&path).unwrap(), good[..good.len() - 1]);
    }

    #[test]
    fn an_identity_that_is_no_file_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        nix::unistd::mkfifo(&directory.path().join(FILE_NAME), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = Identity::load_or_create(directory.path()).unwrap_err().to_string();
        assert!(error.contains("it is not a regular file"), "{error}");
    }

    #[test]
    fn a_state_directory_that_cannot_be_made_says_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let error = Identity::load_or_create(&file.join("state")).unwrap_err().to_string();
        assert!(error.contains("state_dir") || error.contains("readable"), "{error}");
    }
}
