//! Keys that options, addresses and the environment give, or say the place of.

use std::convert::Infallible;
use std::env;
use std::fmt;
use std::str::FromStr;

use anyhow::Result;
use ringfab_auth::{ConfiguredPsk, DhchapKey, HostKeys, KeyRole, KeySource, SecretText};
use ringfab_initiator::{Key, TlsKey, Url};

use crate::context::Usage;
use crate::precedence::{self, Twin};

/// What an option says of a key, which may be the key. It is parsed later: what the parser of options says of a wrong
/// value has that value.
#[derive(Clone)]
pub(crate) struct KeyText(SecretText);

impl FromStr for KeyText {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let mut secret = SecretText::with_capacity(text.len());
        secret.expose_mut().push_str(text);
        Ok(Self(secret))
    }
}

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyText")
    }
}

/// A kind of key: itself, or where it is.
pub(crate) trait GivenKey: Sized {
    /// The one that is there.
    fn at(source: KeySource) -> Self;

    /// The key of a text, if that is one and not a place; otherwise what is wrong with it, without the text.
    fn parse(text: &str) -> Option<Result<Self, String>>;

    /// Whether it is the key itself.
    fn is_known(&self) -> bool;

    /// Reads it, or says why it cannot be read.
    fn check(&self, role: KeyRole) -> Result<(), String>;
}

impl GivenKey for Key {
    fn at(source: KeySource) -> Self {
        Self::At(source)
    }

    fn parse(text: &str) -> Option<Result<Self, String>> {
        if text.starts_with("NVMeTLSkey-") {
            let why = "is a key for TLS, and a key for authentication (DHHC-1) is needed";
            return Some(Err(why.to_owned()));
        }
        let is_key = text.starts_with("DHHC-1:");
        is_key.then(|| DhchapKey::parse(text).map(Self::Known).map_err(|error| error.to_string()))
    }

    fn is_known(&self) -> bool {
        matches!(self, Self::Known(_))
    }

    fn check(&self, role: KeyRole) -> Result<(), String> {
        self.get(role).map(drop)
    }
}

impl GivenKey for TlsKey {
    fn at(source: KeySource) -> Self {
        Self::At(source)
    }

    fn parse(text: &str) -> Option<Result<Self, String>> {
        // Also with the identity of a derived key before it, which is refused.
        let is_key = text.starts_with("NVMe") || text.starts_with("DHHC-1:");
        is_key.then(|| ConfiguredPsk::parse(text).map(Self::Known).map_err(|error| error.to_string()))
    }

    fn is_known(&self) -> bool {
        matches!(self, Self::Known(_))
    }

    fn check(&self, _: KeyRole) -> Result<(), String> {
        self.get().map(drop)
    }
}

/// In the environment: what `--keys` says.
pub(crate) const KEYS_VARIABLE: &str = "RINGFAB_KEYS";

/// Where an option says that the file with all keys of this host is. It is looked at later, as a [`KeyText`].
#[derive(Clone)]
pub(crate) struct KeysText(Result<KeySource, String>);

impl FromStr for KeysText {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(KeySource::parse_keys(text)))
    }
}

impl fmt::Debug for KeysText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeysText")
    }
}

/// Where the file with all keys of this host is: what the option says wins, then the address, then the environment.
///
/// # Errors
/// What is wrong with the place.
pub(crate) fn place_of_keys(option: Option<&KeysText>, url: &Url) -> Result<Option<KeySource>> {
    let wrong = |what: &str, why: &String| Usage(format!("{what}: {why}"));
    let given = option.map(|text| text.0.as_ref().map_err(|why| wrong("--keys", why))).transpose()?;
    let settled = Twin::new("keys", "keys").settle(given.cloned(), url.keys.clone(), KeySource::to_string);
    if settled.is_some() {
        return Ok(settled);
    }
    let variable = env::var(KEYS_VARIABLE).ok().filter(|text| !text.is_empty());
    let of_variable =
        |text: String| KeySource::parse_keys(&text).map_err(|why| wrong(&format!("${KEYS_VARIABLE}"), &why));
    Ok(variable.map(of_variable).transpose()?)
}

/// All keys of this host, and where they are.
pub(crate) struct KeysOfHost {
    source: KeySource,
    keys: HostKeys,
}

impl KeysOfHost {
    /// Reads the file that the address names, if it names one.
    ///
    /// # Errors
    /// Why it cannot be read, or what is wrong with it, without its text.
    pub(crate) fn read(url: &Url) -> Result<Option<Self>> {
        let Some(source) = url.keys.clone() else { return Ok(None) };
        let keys = source.read_host_keys().map_err(|why| anyhow::anyhow!("keys: {why}"))?;
        Ok(Some(Self { source, keys }))
    }

    fn at(&self, role: KeyRole) -> Option<&KeySource> {
        self.keys.has(role).then_some(&self.source)
    }
}

/// Where a key may be given.
#[derive(Clone, Copy)]
pub(crate) struct Places<'a> {
    /// All keys of this host, if a file has them.
    pub(crate) file: Option<&'a KeysOfHost>,
    /// Which of them is meant.
    pub(crate) role: KeyRole,
    /// What the address says.
    pub(crate) address: Option<&'a KeySource>,
    /// What the option says.
    pub(crate) option: Option<&'a KeyText>,
    /// The option's name. That in the address has `_` where it has `-`.
    pub(crate) name: &'static str,
    /// The variable of the environment that says the same.
    pub(crate) variable: &'static str,
}

impl Places<'_> {
    /// The key, or where it is: what the option says wins, then the address, then the file with all keys, then the
    /// environment.
    ///
    /// # Errors
    /// What is wrong with it, or that it cannot be read. The message has nothing of its text.
    pub(crate) fn find<K: GivenKey>(self) -> Result<Option<K>> {
        let Self { file, role, address, option, name, variable } = self;
        let variable_text = env::var(variable).ok().filter(|text| !text.is_empty());
        self.say_which_holds(variable_text.as_deref());
        let of_file = file.and_then(|file| file.at(role));
        let (key, what) = match (option, address, of_file, variable_text) {
            (None, Some(source), ..) => {
                (K::at(source.clone()), format!("{} in the address", name.replace('-', "_")))
            }
            (None, None, Some(source), _) => (K::at(source.clone()), "keys".to_owned()),
            (Some(text), ..) => {
                let what = format!("--{name}");
                let key: K = parse(text, &what)?;
                if key.is_known() {
                    tracing::warn!(
                        "others on this machine can read the key in {what}; put it into a file, and write \
                         {what}=file:/path"
                    );
                }
                (key, what)
            }
            (None, None, None, Some(text)) => {
                let what = format!("${variable}");
                let Ok(text) = text.parse::<KeyText>();
                (parse(&text, &what)?, what)
            }
            (None, None, None, None) => return Ok(None),
        };
        // What cannot be read is told now, and not once a target asks for it.
        key.check(role).map_err(|why| anyhow::anyhow!("{what}: {why}"))?;
        Ok(Some(key))
    }

    /// Says which place holds, where several have different keys. It shows none of them.
    fn say_which_holds(self, variable_text: Option<&str>) {
        let address = self.address.map(ToString::to_string);
        let file = self.file.and_then(|file| file.at(self.role)).map(ToString::to_string);
        let places = [
            (self.option.map(|text| text.0.expose()), format!("--{}", self.name)),
            (address.as_deref(), format!("{} of the address", self.name.replace('-', "_"))),
            (file.as_deref(), format!("{} of the file with all keys", self.role)),
            (variable_text, format!("${}", self.variable)),
        ];
        let mut given = places.iter().filter_map(|(text, place)| Some((text.as_ref()?, place)));
        if let Some((holds, place)) = given.next() {
            given.filter(|(text, _)| *text != holds).for_each(|(_, other)| precedence::say(place, other));
        }
    }
}

/// The key, or where it is. `what`: how it was given.
fn parse<K: GivenKey>(text: &KeyText, what: &str) -> Result<K> {
    let text = text.0.expose();
    let parsed = K::parse(text).unwrap_or_else(|| KeySource::parse(text).map(K::at));
    parsed.map_err(|why| Usage(format!("{what}: {why}")).into())
}
