//! All keys of a host in one file: its name, its keys for authentication, and its key for TLS.
//!
//! ```text
//! # A comment.
//! host = "nqn.2026-11.com.example:host-1"
//! dhchap_key = "DHHC-1:..."
//! dhchap_controller_key = "DHHC-1:..."
//! tls_key = "NVMeTLSkey-1:..."
//! ```
//!
//! It is the part of TOML that this needs. A parser of its own leaves no copies of keys in freed memory.

use std::fmt;

use ringfab_spec::Nqn;

use crate::dhchap_key::DhchapKey;
use crate::interchange::KeyError;
use crate::psk::ConfiguredPsk;
use crate::secret::SecretText;

/// What a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRole {
    /// The host proves who it is.
    Host,
    /// The controller proves who it is.
    Controller,
    /// Connections are over TLS.
    Tls,
}

impl KeyRole {
    const ALL: [Self; 3] = [Self::Host, Self::Controller, Self::Tls];

    /// Its name in a file, and in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "dhchap_key",
            Self::Controller => "dhchap_controller_key",
            Self::Tls => "tls_key",
        }
    }

    /// Whether a text is such a key.
    fn check(self, text: &str) -> Result<(), KeyError> {
        match self {
            Self::Host | Self::Controller => DhchapKey::parse(text).map(drop),
            Self::Tls => ConfiguredPsk::parse(text).map(drop),
        }
    }
}

impl fmt::Display for KeyRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The keys of a host for one target, with the name of the host.
#[derive(Clone, Debug)]
pub struct HostKeys {
    host: String,
    keys: [Option<SecretText>; 3],
}

/// The name of the host, in a file.
const HOST: &str = "host";

/// What a line must be.
const LINE: &str = "is neither a comment nor NAME = \"VALUE\"";

/// The names that there are.
const NAMES: &str = "has another name than host, dhchap_key, dhchap_controller_key and tls_key";

impl HostKeys {
    /// What the names of such files end in.
    pub const FILE_ENDING: &str = ".keys";

    /// These keys of a host.
    pub fn new(host: &str, [dhchap, controller, tls]: [Option<SecretText>; 3]) -> Self {
        Self { host: host.to_owned(), keys: [dhchap, controller, tls] }
    }

    /// Whether a text is such a file and not a single key.
    pub fn is_file(text: &str) -> bool {
        let first = lines(text).map(|(_, line)| line).next();
        let name =
            first.and_then(|line| line.split_once('=')).map(|(name, value)| (name.trim(), value.trim()));
        name.is_some_and(|(name, value)| {
            let is_name = !name.is_empty() && name.bytes().all(|one| one.is_ascii_lowercase() || one == b'_');
            is_name && value.starts_with('"')
        })
    }

    /// Reads the text of such a file.
    ///
    /// # Errors
    /// What is wrong with it, with the line and without any of its text.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let mut found = Self { host: String::new(), keys: [None, None, None] };
        for (line, text) in lines(text) {
            found.take_line(text).map_err(|why| why.at(line))?;
        }
        if found.host.is_empty() {
            return Err(KeyError::Missing { name: HOST });
        }
        if found.keys.iter().all(Option::is_none) {
            return Err(KeyError::Missing { name: "key" });
        }
        if found.has(KeyRole::Controller) && !found.has(KeyRole::Host) {
            return Err(KeyError::Missing { name: KeyRole::Host.name() });
        }
        Ok(found)
    }

    fn take_line(&mut self, text: &str) -> Result<(), Wrong> {
        let (name, value) = text.split_once('=').ok_or(Wrong::Line(LINE))?;
        let value = value.trim_ascii().strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        let (name, value) = (name.trim_ascii(), value.ok_or(Wrong::Line(LINE))?);
        if name == HOST {
            if !self.host.is_empty() {
                return Err(Wrong::Line("names the host a second time"));
            }
            self.host = unescaped(value).ok_or(Wrong::Line("has a value that is not a text"))?;
            return match Nqn::with_form(&self.host) {
                Ok(_) => Ok(()),
                Err(_) => Err(Wrong::Line("does not have the NQN of a host")),
            };
        }
        let role = KeyRole::ALL.into_iter().find(|role| role.name() == name).ok_or(Wrong::Line(NAMES))?;
        role.check(value).map_err(Wrong::Key)?;
        let mut key = SecretText::with_capacity(value.len());
        key.expose_mut().push_str(value);
        match self.keys[role as usize].replace(key) {
            None => Ok(()),
            Some(_) => Err(Wrong::Line("has a key a second time")),
        }
    }

    /// The NQN of the host.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Whether it has such a key.
    pub fn has(&self, role: KeyRole) -> bool {
        self.key(role).is_some()
    }

    /// Such a key.
    pub fn key(&self, role: KeyRole) -> Option<&SecretText> {
        self.keys[role as usize].as_ref()
    }

    /// The text of its file.
    pub fn to_text(&self) -> SecretText {
        let keys = || KeyRole::ALL.into_iter().filter_map(|role| Some((role, self.key(role)?)));
        // A text that grows would leave a copy behind.
        let room = keys().map(|(role, key)| role.name().len() + key.expose().len() + 6).sum::<usize>();
        let mut whole =
            SecretText::with_capacity(room + 2 * self.host.len() + HOST.len() + 6 + COMMENT.len());
        let text = whole.expose_mut();
        text.push_str(COMMENT);
        text.push_str(HOST);
        text.push_str(" = \"");
        for letter in self.host.chars() {
            text.extend(['"', '\\'].contains(&letter).then_some('\\'));
            text.push(letter);
        }
        text.push_str("\"\n");
        for (role, key) in keys() {
            text.push_str(role.name());
            text.push_str(" = \"");
            text.push_str(key.expose());
            text.push_str("\"\n");
        }
        whole
    }

    /// The key of this role in a text, which is such a file or a single key.
    ///
    /// # Errors
    /// What is wrong with the file, or that it has no such key.
    pub fn find(text: &str, role: KeyRole) -> Result<Option<(Self, SecretText)>, KeyError> {
        if !Self::is_file(text) {
            return Ok(None);
        }
        let keys = Self::parse(text)?;
        let key = keys.key(role).cloned().ok_or(KeyError::Missing { name: role.name() })?;
        Ok(Some((keys, key)))
    }
}

/// What such a file begins with.
const COMMENT: &str = "# Keys of an NVMe host. Nobody else may read them: mode 0600.\n";

/// What is wrong with a line.
enum Wrong {
    Line(&'static str),
    Key(KeyError),
}

impl Wrong {
    fn at(self, line: usize) -> KeyError {
        match self {
            Self::Line(why) => KeyError::Line { line, why },
            Self::Key(error) => KeyError::InLine { line, error: Box::new(error) },
        }
    }
}

/// The lines that say something, with their numbers. Some editors begin a file with a byte order mark.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = (1..).zip(text.trim_start_matches('\u{feff}').lines());
    let lines = lines.map(|(number, line)| (number, line.trim_ascii()));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// What a value of TOML means, as far as names of hosts need it.
fn unescaped(value: &str) -> Option<String> {
    let (mut whole, mut letters) = (String::with_capacity(value.len()), value.chars());
    while let Some(letter) = letters.next() {
        whole.push(match letter {
            '"' => return None,
            '\\' => letters.next().filter(|next| ['"', '\\'].contains(next))?,
            other => other,
        });
    }
    Some(whole)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DHCHAP: &str = "DHHC-1:00:ycnJycnJycnJycnJycnJycnJycnJycnJycnJycnJyclx132H:";
    const TLS: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    const NAME: &str = "nqn.2026-11.org.example:a";

    fn secret(text: &str) -> Option<SecretText> {
        let mut secret = SecretText::with_capacity(text.len());
        secret.expose_mut().push_str(text);
        Some(secret)
    }

    #[test]
    fn a_file_has_the_name_and_the_keys_of_a_host() {
        for host in [NAME, "nqn.2026-11.org.example:a\"b'c $(x) d\\e = #"] {
            let keys = HostKeys::new(host, [secret(DHCHAP), secret(DHCHAP), secret(TLS)]);
            let text = keys.to_text();
            assert!(HostKeys::is_file(text.expose()));
            let read = HostKeys::parse(text.expose()).expect("keys");
            assert_eq!(read.host(), host);
            for (role, key) in [(KeyRole::Host, DHCHAP), (KeyRole::Controller, DHCHAP), (KeyRole::Tls, TLS)] {
                assert_eq!(read.key(role).expect("a key").expose(), key, "{role}");
            }
            assert!(!format!("{read:?}").contains("ycnJ"));
        }
        let few = HostKeys::new(NAME, [secret(DHCHAP), None, None]).to_text();
        let few = format!("\u{feff}\r\n{}", few.expose().replace('\n', "\r\n"));
        let found = HostKeys::find(&few, KeyRole::Host).expect("a file").expect("a file");
        assert_eq!((found.0.host(), found.1.expose()), (NAME, DHCHAP));
        let missing = HostKeys::find(&few, KeyRole::Tls).expect_err("none").to_string();
        assert_eq!(missing, "the file has no tls_key");
        for single in [DHCHAP, TLS, "", "abc=", "abc = x", "ycnJ=\"\""] {
            assert!(HostKeys::find(single, KeyRole::Host).expect("no file").is_none(), "{single}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line_and_without_the_text() {
        let host = format!("# mine\nhost = \"{NAME}\"\n");
        for (text, said) in [
            (format!("{host}dhchap_key = {DHCHAP}"), "line 3: it is neither a comment nor NAME = \"VALUE\""),
            (format!("{host}{DHCHAP}"), "line 3: it is neither a comment nor NAME"),
            (format!("{host}\nkey = \"{DHCHAP}\""), "line 4: it has another name than host,"),
            (format!("{host}tls_key = \"{DHCHAP}\""), "line 3: this is a key for authentication (DHHC-1)"),
            (
                format!("{host}dhchap_key = \"{}\"", DHCHAP.replace('y', "z")),
                "line 3: the checksum of the key is wrong",
            ),
            (format!("{host}tls_key = \"{TLS}\"\ntls_key = \"{TLS}\""), "line 4: it has a key a second time"),
            (format!("{host}{host}"), "line 4: it names the host a second time"),
            ("host = \"root\"".to_owned(), "line 1: it does not have the NQN of a host"),
            ("host = \"a\"b\"".to_owned(), "line 1: it has a value that is not a text"),
            (host.clone(), "the file has no key"),
            (format!("dhchap_key = \"{DHCHAP}\""), "the file has no host"),
            (format!("{host}dhchap_controller_key = \"{DHCHAP}\""), "the file has no dhchap_key"),
        ] {
            let error = HostKeys::parse(&text).expect_err(&text).to_string();
            assert!(error.starts_with(said), "{error}");
            assert!(!error.contains("cnJy") && !error.contains("VRLb"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_file_or_refused(text: String, from in 0_usize..4) {
            let host = format!("host = \"{NAME}\"\ndhchap_key = \"{DHCHAP}\"\n");
            let text = [text.clone(), format!("{host}{text}"), format!("host = \"{text}\""), format!("{text}{host}")]
                [from].clone();
            if let Ok(keys) = HostKeys::parse(&text) {
                let again = HostKeys::parse(keys.to_text().expose()).expect("its own text");
                prop_assert_eq!(again.host(), keys.host());
            }
        }
    }
}
