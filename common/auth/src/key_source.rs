//! Where keys are: in files, credentials of a service, or the kernel's keyrings. A key never stands in a configuration
//! or an address.

use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::{env, fmt};

use nix::libc::O_NONBLOCK;
use nix::unistd::geteuid;
use ringfab_base::{VisiblePath as _, shell_quoted};

use crate::dhchap_key::DhchapKey;
use crate::host_keys::{HostKeys, KeyRole};
use crate::interchange::KeyError;
use crate::keyring::read_keyring;
use crate::secret::SecretText;

/// Bytes of a file with a key: a key of 64 bytes is a line of 101 characters.
const KEY_FILE_BYTES_MAX: u64 = 4096;

/// The folder with a service's credentials, as systemd names it.
const CREDENTIALS_DIRECTORY: &str = "CREDENTIALS_DIRECTORY";

/// Where a key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A file with the text of the key, and nothing else.
    File(PathBuf),
    /// A credential of the service with that text (`LoadCredential=` of systemd).
    Credential(String),
    /// A key of type `user` in a keyring of the kernel, with this description and that text.
    Keyring(String),
}

/// What begins a key.
const KEY_STARTS: [&str; 2] = ["DHHC-1:", "NVMeTLSkey-"];

/// What a place of a key must be.
const FORMS: &str = "\"file:/path\", \"credential:NAME\" or \"keyring:DESCRIPTION\"";

/// What is wrong with a place is said with its text, so that a text with a key in it is no place.
fn refuse_key(text: &str) -> Result<(), String> {
    if KEY_STARTS.iter().any(|start| text.contains(start)) {
        return Err(format!("is a key; put it into a file or a keyring, and write {FORMS}"));
    }
    Ok(())
}

impl KeySource {
    /// Where a text says that a key is.
    ///
    /// # Errors
    /// What it has to be, instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        refuse_key(text)?;
        match text.split_once(':') {
            Some(("file", path)) if Path::new(path).is_absolute() => Ok(Self::File(path.into())),
            Some(("file", path)) => Err(format!("names \"{path}\", which is not an absolute path")),
            Some(("credential", name)) if !name.is_empty() && !name.contains('/') => {
                Ok(Self::Credential(name.to_owned()))
            }
            Some(("keyring", name)) if !name.is_empty() => Ok(Self::Keyring(name.to_owned())),
            _ => Err(format!("must be {FORMS}")),
        }
    }

    /// The file that it is in; for a key in a keyring, its name.
    ///
    /// # Errors
    /// It is a credential, and the process has none.
    pub fn place(&self) -> Result<PathBuf, String> {
        match self {
            Self::File(path) => Ok(path.clone()),
            Self::Credential(name) => {
                let folder = env::var_os(CREDENTIALS_DIRECTORY).ok_or_else(|| {
                    format!("is a credential, and the service has none ({CREDENTIALS_DIRECTORY} is not set)")
                })?;
                Ok(Path::new(&folder).join(name))
            }
            Self::Keyring(_) => Ok(self.to_string().into()),
        }
    }

    /// The text of the key, of a file that not everybody may read. It waits for the file system.
    ///
    /// # Errors
    /// The system's, and why it is no file for a key.
    pub fn read_text(&self) -> io::Result<SecretText> {
        match self {
            Self::Keyring(description) => read_keyring(description),
            _ => read_key_file(&self.place().map_err(io::Error::other)?).map(|(text, _)| text),
        }
    }

    /// Where a text says that a file with all keys of a host is: as [`KeySource::parse`] has it, or the path alone,
    /// which may be relative.
    ///
    /// # Errors
    /// What it has to be, instead.
    pub fn parse_keys(text: &str) -> Result<Self, String> {
        let is_path = ["file:", "credential:", "keyring:", "DHHC-1:", "NVMe"]
            .iter()
            .all(|start| !text.starts_with(start));
        if text.is_empty() || !is_path {
            return Self::parse(text);
        }
        let path =
            std::path::absolute(text).map_err(|error| format!("names a path that cannot be had: {error}"))?;
        refuse_key(&path.to_string_lossy())?;
        Ok(Self::File(path))
    }

    /// Reads a key of a host for DH-HMAC-CHAP, for that host. It waits for the file system.
    ///
    /// # Errors
    /// As [`KeySource::read`].
    pub fn read_dhchap(&self, role: KeyRole) -> Result<DhchapKey, String> {
        self.read(role, DhchapKey::parse)
    }

    /// Reads a key of any kind, for the host whose it is. A file with all its keys must be its own. It waits for the
    /// file system.
    ///
    /// # Errors
    /// Why it cannot be read, or what is wrong with it. The message has nothing of its text.
    pub fn read<K>(
        &self,
        role: KeyRole,
        parse: impl FnOnce(&str) -> Result<K, KeyError>,
    ) -> Result<K, String> {
        let (place, text) = self.read_own()?;
        let wrong = |error: KeyError| format!("{}: {error}", place.visible());
        let found = HostKeys::find(text.expose(), role).map_err(wrong)?;
        parse(found.as_ref().map_or(text.expose(), |(_, key)| key.expose())).map_err(wrong)
    }

    /// Reads all keys of a host, for that host. It waits for the file system.
    ///
    /// # Errors
    /// As [`KeySource::read`].
    pub fn read_host_keys(&self) -> Result<HostKeys, String> {
        let (place, text) = self.read_own()?;
        let single =
            "this is a single key; what has all keys of a host has lines such as dhchap_key = \"...\"";
        if ["DHHC-1:", "NVMe"].iter().any(|start| text.expose().trim_ascii_start().starts_with(start)) {
            return Err(format!("{}: {single}", place.visible()));
        }
        HostKeys::parse(text.expose()).map_err(|error| format!("{}: {error}", place.visible()))
    }

    /// The text for the host whose it is, and where it was. All keys of a host in a file are for nobody else.
    fn read_own(&self) -> Result<(PathBuf, SecretText), String> {
        let place = self.place()?;
        let cannot = |error: io::Error| format!("cannot read {}: {error}", place.visible());
        let Self::File(path) = self else {
            let text = self.read_text().map_err(cannot)?;
            return Ok((place, text));
        };
        let (text, metadata) = read_key_file(path).map_err(cannot)?;
        if HostKeys::is_file(text.expose()) {
            let (owner, mode) = (metadata.uid(), metadata.mode() & 0o777);
            if let Some(why) = open_to_others(path, owner, mode, geteuid().as_raw()) {
                return Err(format!("{}: {why}", place.visible()));
            }
        }
        Ok((place, text))
    }
}

/// Who else may read or change the file with the keys of a host, if somebody may, and what to do about it.
fn open_to_others(path: &Path, owner: u32, mode: u32, user: u32) -> Option<String> {
    let shown = path.to_string_lossy();
    let shown = shell_quoted(&shown);
    if ![0, user].contains(&owner) {
        return Some(format!(
            "it has keys of a host and is of user {owner}, who may change them, and this runs as user {user}: \
             use a copy of its own (install -m 600), or \
             chown {user} {shown}"
        ));
    }
    (mode & 0o077 != 0).then(|| {
        format!(
            "it has keys of a host, and others may read or change them (mode {mode:04o}): chmod 600 {shown}"
        )
    })
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.to_string_lossy()),
            Self::Credential(name) => write!(f, "credential:{name}"),
            Self::Keyring(description) => write!(f, "keyring:{description}"),
        }
    }
}

/// The text of a file that not everybody may read, and what the file is. It waits for the file system.
///
/// # Errors
/// The system's, and why it is no file for a key.
fn read_key_file(path: &Path) -> io::Result<(SecretText, Metadata)> {
    let refused = |why: String| Err(io::Error::new(io::ErrorKind::InvalidData, why));
    let metadata = fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => denied(&error, None, geteuid().as_raw()),
        _ => error,
    })?;
    if !metadata.is_file() {
        return refused("it is not a regular file".to_owned());
    }
    // What has become a FIFO meanwhile is no reason to wait.
    let opened = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path);
    let file = opened.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            denied(&error, Some((metadata.uid(), metadata.mode() & 0o777)), geteuid().as_raw())
        }
        _ => error,
    })?;
    let metadata = file.metadata()?;
    let mode = metadata.mode() & 0o777;
    if mode & 0o007 != 0 {
        return refused(format!("everybody may read or change it (mode {mode:04o}): chmod o= it"));
    }
    // What is read at the end of a file asks for more room than there are bytes.
    let mut text = SecretText::with_capacity(2 * KEY_FILE_BYTES_MAX as usize);
    file.take(KEY_FILE_BYTES_MAX + 1).read_to_string(text.expose_mut())?;
    if text.expose().len() as u64 > KEY_FILE_BYTES_MAX {
        return refused(format!("it is longer than {KEY_FILE_BYTES_MAX} bytes, and no key"));
    }
    Ok((text, metadata))
}

/// Why a process of this user may not read a file with this owner and mode, or none that it may see. Root is denied for
/// other reasons, and so is the owner of a file with such a mode.
fn denied(error: &io::Error, file: Option<(u32, u32)>, user: u32) -> io::Error {
    let why = match file {
        _ if user == 0 => String::new(),
        None => format!(": a folder on the way to it is closed to user {user}, which this runs as"),
        Some((owner, mode)) if owner != user => format!(
            ": it is of user {owner} with mode {mode:04o}, and this runs as user {user}: chown {user} it"
        ),
        Some(_) => String::new(),
    };
    io::Error::new(error.kind(), format!("{error}{why}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const KEY: &str = "DHHC-1:00:ycnJycnJycnJycnJycnJycnJycnJycnJycnJycnJyclx132H:";

    #[test]
    fn a_key_is_in_a_file_or_a_keyring_or_is_a_credential() {
        assert_eq!(KeySource::parse("file:/etc/k").unwrap(), KeySource::File("/etc/k".into()));
        assert_eq!(KeySource::parse("credential:k").unwrap().to_string(), "credential:k");
        assert_eq!(KeySource::parse("keyring:nvme:k").unwrap(), KeySource::Keyring("nvme:k".to_owned()));
        assert_eq!(KeySource::parse("keyring:nvme:k").unwrap().to_string(), "keyring:nvme:k");
        let relative = KeySource::parse("file:etc/k").unwrap_err();
        assert_eq!(relative, "names \"etc/k\", which is not an absolute path");
        for text in ["credential:", "credential:../k", "/etc/k", "keyring:"] {
            assert_eq!(KeySource::parse(text).unwrap_err(), format!("must be {FORMS}"), "{text}");
        }
        for place in ["", "file:", "credential:", "keyring:", "file:/etc/"] {
            let refused = KeySource::parse(&format!("{place}{KEY}")).unwrap_err();
            assert!(refused.starts_with("is a key; put it into a file") && !refused.contains("ycnJ"));
        }
    }

    #[test]
    fn a_key_of_a_keyring_is_read_and_one_that_is_not_there_is_named() {
        use linux_keyutils::{KeyRing, KeyRingIdentifier};
        let name = format!("ringfab-test-{}-source", std::process::id());
        let source = KeySource::Keyring(name.clone());
        let missing = source.read_dhchap(KeyRole::Host).unwrap_err();
        assert!(
            missing.starts_with(&format!("cannot read keyring:{name}: no key of type user")),
            "{missing}"
        );
        let ring = KeyRing::from_special_id(KeyRingIdentifier::Process, true).expect("a keyring");
        let key = ring.add_key(&name, KEY).expect("a key");
        assert_eq!(source.read_dhchap(KeyRole::Host), Ok(DhchapKey::parse(KEY).unwrap()));
        key.update(&KEY.replace('y', "z")).expect("changed");
        let refused = source.read_dhchap(KeyRole::Host).unwrap_err();
        assert!(refused.starts_with(&format!("keyring:{name}: ")) && !refused.contains("cnJ"), "{refused}");
        key.invalidate().expect("gone");
    }

    #[test]
    fn whose_the_file_is_that_may_not_be_read_is_said_with_what_to_do() {
        let error = io::Error::from(io::ErrorKind::PermissionDenied);
        let said = |file, user| {
            let said = denied(&error, file, user);
            assert_eq!(said.kind(), io::ErrorKind::PermissionDenied, "others look for what confines them");
            said.to_string()
        };
        let of_root = said(Some((0, 0o600)), 990);
        assert!(of_root.ends_with("is of user 0 with mode 0600, and this runs as user 990: chown 990 it"));
        assert!(
            said(None, 990).ends_with("a folder on the way to it is closed to user 990, which this runs as")
        );
        for (file, user) in [(Some((0, 0o600)), 0), (Some((990, 0o200)), 990), (None, 0)] {
            assert_eq!(said(file, user), error.to_string());
        }
    }

    #[test]
    fn a_file_with_a_key_is_for_few_eyes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let source = KeySource::File(path.clone());
        assert!(source.read_dhchap(KeyRole::Host).unwrap_err().starts_with("cannot read "));
        fs::write(&path, format!("{KEY}\n")).unwrap();
        for (mode, allowed) in [(0o600, true), (0o640, true), (0o644, false), (0o602, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(source.read_dhchap(KeyRole::Host).is_ok(), allowed, "{mode:o}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, KEY.replace('y', "z")).unwrap();
        let refused = source.read_dhchap(KeyRole::Host).unwrap_err();
        assert!(!refused.contains("cnJ"), "{refused}");
        fs::write(&path, "x".repeat(5000)).unwrap();
        assert!(source.read_dhchap(KeyRole::Host).unwrap_err().ends_with("and no key"));
        assert!(
            KeySource::File(folder.path().to_owned())
                .read_dhchap(KeyRole::Host)
                .unwrap_err()
                .ends_with("not a regular file")
        );
    }

    #[test]
    fn all_keys_of_a_host_are_for_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("host.keys");
        let source = KeySource::File(path.clone());
        let text = format!("host = \"nqn.2026-11.org.example:a\"\ndhchap_key = \"{KEY}\"\n");
        fs::write(&path, &text).unwrap();
        for (mode, allowed) in [(0o600, true), (0o400, true), (0o640, false), (0o620, false), (0o604, false)]
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let read = source.read_host_keys().map(|keys| keys.host().to_owned());
            assert_eq!(source.read_dhchap(KeyRole::Host).is_ok(), allowed, "{mode:o}");
            match read {
                Ok(host) => assert!(allowed && host == "nqn.2026-11.org.example:a"),
                Err(why) => assert!(!allowed && why.contains(&format!("(mode {mode:04o}): chmod ")), "{why}"),
            }
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(source.read_dhchap(KeyRole::Controller).unwrap_err().ends_with("no dhchap_controller_key"));
        fs::write(&path, KEY).unwrap();
        assert!(source.read_host_keys().unwrap_err().contains("this is a single key"));
        let said = |owner, mode, user| open_to_others(Path::new("/a b"), owner, mode, user);
        assert_eq!(said(0, 0o600, 990), None);
        assert_eq!(said(990, 0o600, 990), None);
        assert!(said(1000, 0o600, 0).unwrap().ends_with("or chown 0 '/a b'"));
        assert!(said(0, 0o640, 0).unwrap().ends_with("(mode 0640): chmod 600 '/a b'"));
    }

    #[test]
    fn where_all_keys_are_is_a_path_or_any_other_place() {
        let parsed = |text: &str| KeySource::parse_keys(text);
        assert_eq!(parsed("/etc/h.keys").unwrap(), KeySource::File("/etc/h.keys".into()));
        assert_eq!(parsed("file:/etc/h.keys").unwrap(), KeySource::File("/etc/h.keys".into()));
        assert_eq!(parsed("credential:h").unwrap(), KeySource::Credential("h".to_owned()));
        let here = env::current_dir().unwrap().join("h.keys");
        assert_eq!(parsed("h.keys").unwrap(), KeySource::File(here));
        assert!(parsed("").is_err());
        for text in [KEY.to_owned(), format!("./{KEY}"), format!("file:/a/{KEY}")] {
            assert!(parsed(&text).unwrap_err().starts_with("is a key; put it into a file"), "{text}");
        }
    }
}
