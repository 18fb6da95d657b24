//! Who we are to a target: a host NQN and a host identifier.
//!
//! They come, in this order, from the address or the caller, from `/etc/nvme/hostnqn` and `/etc/nvme/hostid` (which
//! nvme-cli makes; a byte order mark and lines that begin with `#` are skipped), or from the machine: a UUID derived
//! from `/etc/machine-id`, so that the same machine is the same host after a restart without anything being written.
//! Without any of these it is random.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ringfab_auth::KeySource;
use ringfab_base::{VisiblePath as _, visible};
use ringfab_spec::Nqn;
use uuid::Uuid;

use crate::url::Url;

/// The identity of a host (Base 2.0, sections 3.1.2 and 5.27.1.25).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostIdentity {
    /// Host NQN.
    pub nqn: String,
    /// Host identifier.
    pub id: Uuid,
}

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file is there, but cannot be read.
    #[error("cannot read {}: {source}", path.visible())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The file with the keys of this host cannot be read, or is none.
    #[error("the keys of this host: {0}")]
    Keys(String),
    /// The file with the keys of a host is another one's.
    #[error("hostnqn is \"{named}\", and the keys in {place} are those of \"{found}\"")]
    OtherHost {
        /// Who this host shall be.
        named: String,
        /// Where the keys are.
        place: String,
        /// Whose they are.
        found: String,
    },
    /// A file or option holds no NQN or UUID.
    #[error("{origin}: \"{}\" is no {what}: {why}", visible(text))]
    Invalid {
        /// The file and its line, or the option.
        origin: String,
        /// What it should hold.
        what: &'static str,
        /// What it holds.
        text: String,
        /// What is wrong with it.
        why: String,
    },
}

impl HostIdentity {
    /// The identity for an address: its own options, else what the file with its keys says, else this machine's, from
    /// `/etc/nvme` and `/etc/machine-id`. It blocks as long as reading those files does.
    ///
    /// # Errors
    /// [`IdentityError`] when a file is there but of no use. A file that is not there is no error.
    pub fn for_url(url: &Url) -> Result<Self, IdentityError> {
        let nqn = match &url.keys {
            Some(source) => Some(of_keys(source, url.host_nqn.as_deref())?),
            None => url.host_nqn.clone(),
        };
        Self::load(nqn, url.host_id, Path::new("/etc"))
    }

    /// The identity from options, and for what they leave open from the files under `etc`.
    ///
    /// # Errors
    /// As [`HostIdentity::for_url`].
    pub fn load(nqn: Option<String>, id: Option<Uuid>, etc: &Path) -> Result<Self, IdentityError> {
        let nqn = match nqn {
            Some(nqn) => Some(parse_nqn("the option hostnqn".to_owned(), nqn)?),
            None => Line::first(&etc.join("nvme/hostnqn"))?
                .map(|line| parse_nqn(line.origin, line.text))
                .transpose()?,
        };
        let id = match id {
            Some(id) => Some(id),
            None => Line::first(&etc.join("nvme/hostid"))?.map(parse_id).transpose()?,
        };
        // One host NQN with two identifiers is refused by targets, so the NQN's own UUID is used first.
        let id = id.or_else(|| nqn.as_deref().and_then(uuid_of_nqn));
        let id = match id {
            Some(id) => id,
            None => machine_id(etc)?.unwrap_or_else(random_uuid),
        };
        let nqn = nqn.unwrap_or_else(|| format!("{NQN_OF_UUID}{id}"));
        Ok(Self { nqn, id })
    }
}

/// Prefix of an NQN that is made of a UUID (Base 2.0, section 4.5).
const NQN_OF_UUID: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// Whose the keys are. Nobody else can use them.
fn of_keys(source: &KeySource, named: Option<&str>) -> Result<String, IdentityError> {
    let keys = source.read_host_keys().map_err(IdentityError::Keys)?;
    let found = keys.host().to_owned();
    match named.filter(|named| *named != found) {
        Some(named) => {
            Err(IdentityError::OtherHost { named: named.to_owned(), place: source.to_string(), found })
        }
        None => Ok(found),
    }
}

fn uuid_of_nqn(nqn: &str) -> Option<Uuid> {
    Uuid::parse_str(nqn.strip_prefix(NQN_OF_UUID)?).ok()
}

fn parse_nqn(origin: String, text: String) -> Result<String, IdentityError> {
    match Nqn::with_form(&text) {
        Ok(_) => Ok(text),
        Err(why) => Err(IdentityError::Invalid { origin, what: "host NQN", text, why: why.to_string() }),
    }
}

fn parse_id(Line { origin, text }: Line) -> Result<Uuid, IdentityError> {
    let why = "a UUID is needed".to_owned();
    Uuid::parse_str(&text).map_err(|_| IdentityError::Invalid { origin, what: "host identifier", text, why })
}

/// A line of a file with one value.
struct Line {
    /// Which one, for people.
    origin: String,
    /// Without white space around it.
    text: String,
}

impl Line {
    /// The first line of a file that is neither empty nor a comment, if there is one. An editor may have put a byte
    /// order mark before it.
    fn first(path: &Path) -> Result<Option<Self>, IdentityError> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(IdentityError::Read { path: path.to_owned(), source }),
        };
        let lines = text.trim_start_matches('\u{feff}').lines().map(str::trim).zip(1..);
        let found = lines.into_iter().find(|(line, _)| !line.is_empty() && !line.starts_with('#'));
        Ok(found.map(|(line, number)| Self {
            origin: format!("{}, line {number}", path.visible()),
            text: line.to_owned(),
        }))
    }
}

/// A UUID of this machine. The machine's own identifier is confidential (machine-id(5)), so it is mixed.
fn machine_id(etc: &Path) -> Result<Option<Uuid>, IdentityError> {
    let Some(line) = Line::first(&etc.join("machine-id"))? else { return Ok(None) };
    let Ok(machine) = Uuid::parse_str(&line.text) else { return Ok(None) };
    Ok(Some(as_version_8(Uuid::from_u128(mix(machine.as_u128())))))
}

/// A fixed permutation of 128 bits (two rounds of multiply and fold), so that the result names the same machine
/// without being its identifier.
fn mix(value: u128) -> u128 {
    const ODD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    let first = (value ^ (value >> 64)).wrapping_mul(ODD);
    (first ^ (first >> 61)).wrapping_mul(ODD)
}

fn as_version_8(id: Uuid) -> Uuid {
    uuid::Builder::from_custom_bytes(id.into_bytes()).into_uuid()
}

fn random_uuid() -> Uuid {
    let mut bytes = [0; 16];
    if let Err(error) = getrandom::fill(&mut bytes) {
        tracing::warn!(%error, "no random numbers for a host identifier, the process number is used");
        bytes[12..].copy_from_slice(&std::process::id().to_le_bytes());
    }
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "01234567-89ab-4def-8123-456789abcdef";

    #[test]
    fn without_options_and_files_the_nqn_is_made_of_the_identifier() {
        let identity = HostIdentity::load(None, None, Path::new("/nonexistent")).expect("an identity");
        assert_eq!(identity.nqn, format!("{NQN_OF_UUID}{}", identity.id));
        assert_ne!(identity.id, Uuid::nil());
    }

    #[test]
    fn the_identifier_follows_from_an_nqn_that_is_made_of_one() {
        let nqn = format!("{NQN_OF_UUID}{ID}");
        let identity = HostIdentity::load(Some(nqn), None, Path::new("/nonexistent")).expect("an identity");
        assert_eq!(identity.id.to_string(), ID);
    }

    #[test]
    fn files_count_where_options_say_nothing_and_the_machine_stays_the_same_host() {
        let etc = std::env::temp_dir().join(format!("ringfab-identity-{}", std::process::id()));
        fs::create_dir_all(etc.join("nvme")).expect("a directory");
        fs::write(etc.join("machine-id"), "0123456789abcdef0123456789abcdef\n").expect("a file");
        let one = HostIdentity::load(None, None, &etc).expect("an identity");
        let other = HostIdentity::load(None, None, &etc).expect("an identity");
        assert_eq!(one, other);
        assert_ne!(one.id.as_u128(), 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        fs::write(etc.join("nvme/hostnqn"), "nqn.2026-01.org.example:me\n").expect("a file");
        fs::write(etc.join("nvme/hostid"), ID).expect("a file");
        let file = HostIdentity::load(None, None, &etc).expect("an identity");
        assert_eq!((file.nqn.as_str(), file.id.to_string().as_str()), ("nqn.2026-01.org.example:me", ID));
        fs::write(etc.join("nvme/hostid"), "garbage").expect("a file");
        let error = HostIdentity::load(None, None, &etc).expect_err("garbage is refused").to_string();
        let place = etc.join("nvme/hostid").display().to_string();
        assert_eq!(error, format!("{place}, line 1: \"garbage\" is no host identifier: a UUID is needed"));
        fs::remove_dir_all(&etc).expect("our directory");
    }

    #[test]
    fn what_editors_and_people_put_into_a_file_is_no_part_of_the_name() {
        let etc = tempfile::tempdir().expect("a directory");
        let file = etc.path().join("nvme/hostnqn");
        fs::create_dir_all(etc.path().join("nvme")).expect("a directory");
        let load = |text: &str| {
            fs::write(&file, text).expect("a file");
            HostIdentity::load(None, None, etc.path()).map(|identity| identity.nqn)
        };
        const NAME: &str = "nqn.2026-01.org.example:me";
        for text in [
            format!("\u{feff}{NAME}\r\n"),
            format!("# the name of this machine\n\n  {NAME} \nnqn.2026-01.org.example:other\n"),
            format!("\u{feff}# made by hand\n{NAME}"),
        ] {
            assert_eq!(load(&text).expect("a name"), NAME, "{text:?}");
        }
        assert_ne!(load("# nothing else\n").expect("made of the machine"), NAME);
        let shown = file.display();
        for (text, said) in [
            ("# mine\nfoo\n", "line 2: \"foo\" is no host NQN: an NQN has the form"),
            (
                "nqn.2026-01.org.example:\u{202e}me",
                "line 1: \"nqn.2026-01.org.example:\\u{202e}me\" is no host NQN",
            ),
        ] {
            let error = load(text).expect_err("refused").to_string();
            assert!(error.starts_with(&format!("{shown}, {said}")), "{error}");
        }
        let option = HostIdentity::load(Some("foo".to_owned()), None, etc.path()).expect_err("refused");
        assert!(option.to_string().starts_with("the option hostnqn: \"foo\" is no host NQN"), "{option}");
    }
}
