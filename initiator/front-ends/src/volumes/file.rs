//! `volumes.toml`: what `ringfab mount NAME` mounts.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use ringfab_initiator::Url;
use serde::Deserialize;
use toml::Spanned;

/// Where it is.
pub const PATH: &str = "/etc/ringfab/volumes.toml";
/// In the environment: another file.
pub const VARIABLE: &str = "RINGFAB_VOLUMES";
/// Of a volume's name.
const NAME_CHARACTERS_MAX: usize = 64;

/// All volumes of a file.
#[derive(Debug, Default)]
pub struct Volumes {
    path: PathBuf,
    volumes: Vec<Volume>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Whole {
    #[serde(default)]
    volume: Vec<Volume>,
}

/// A volume. Each key but the first three is an option of `ringfab mount`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Volume {
    name: Spanned<String>,
    url: Spanned<String>,
    #[serde(rename = "where")]
    directory: Spanned<PathBuf>,
    fstype: Option<String>,
    /// Mount options.
    options: Option<List>,
    #[serde(default)]
    read_only: bool,
    nsid: Option<u32>,
    #[serde(default)]
    fsck: bool,
    retry: Option<Value>,
    cores: Option<u16>,
    hostnqn: Option<String>,
    hostid: Option<String>,
    dhchap_key: Option<String>,
    dhchap_controller_key: Option<String>,
    dhchap_hashes: Option<List>,
    dhchap_groups: Option<List>,
    reauthenticate: Option<Value>,
    #[serde(default)]
    tls: bool,
    tls_key: Option<String>,
    tls_derivation: Option<String>,
    queues: Option<u16>,
    depth: Option<u16>,
    keep_alive: Option<Value>,
    io_timeout: Option<Value>,
    connect_timeout: Option<Value>,
    reconnect_delay: Option<Value>,
    ctrl_loss_timeout: Option<Value>,
    fast_io_fail_timeout: Option<Value>,
    retries: Option<u8>,
    provider: Option<String>,
}

/// Several values, or one text with commas.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum List {
    Text(String),
    Several(Vec<String>),
}

/// A time: a text with a unit, or seconds.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Value {
    Text(String),
    Number(u64),
}

impl List {
    fn text(&self) -> String {
        match self {
            List::Text(text) => text.clone(),
            List::Several(several) => several.join(","),
        }
    }
}

impl Value {
    fn text(&self) -> String {
        match self {
            Value::Text(text) => text.clone(),
            Value::Number(number) => number.to_string(),
        }
    }
}

/// The file that counts here.
pub fn path() -> PathBuf {
    env::var_os(VARIABLE).filter(|path| !path.is_empty()).map_or_else(|| PathBuf::from(PATH), PathBuf::from)
}

impl Volumes {
    /// Reads the file that counts here; one that is not there has no volumes.
    ///
    /// # Errors
    /// As [`Volumes::load`].
    pub fn load_default() -> Result<Self> {
        let path = path();
        match path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self { path, volumes: Vec::new() }),
            _ => Self::load(&path),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, or what is wrong in it, with the line.
    pub fn load(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        let volumes = parse(&text, &path.display().to_string())?;
        Ok(Self { path: path.to_owned(), volumes })
    }

    /// All of them, in the order of the file.
    pub fn all(&self) -> &[Volume] {
        &self.volumes
    }

    /// The volume of this name.
    ///
    /// # Errors
    /// When there is none; the text has those that there are.
    pub fn find(&self, name: &str) -> Result<&Volume> {
        let shown = self.path.display();
        let found = self.volumes.iter().find(|volume| volume.name() == name);
        found.ok_or_else(|| match self.volumes.as_slice() {
            [] => anyhow!(
                "`{name}` is no address, which begins with nvme+rdma:// or nvme+tcp://, and {shown} has no volumes"
            ),
            some => {
                let names: Vec<&str> = some.iter().map(Volume::name).collect();
                anyhow!("{shown} has no volume `{name}`; it has {}", names.join(", "))
            }
        })
    }
}

/// The volumes in a text, each of which makes sense by itself.
fn parse(text: &str, file: &str) -> Result<Vec<Volume>> {
    let at = |place: usize| format!("{file}:{}", 1 + text[..place.min(text.len())].matches('\n').count());
    let whole: Whole = toml::from_str(text).map_err(|error| {
        let place = error.span().map_or(0, |span| span.start);
        anyhow!("{}: {}", at(place), error.message().trim())
    })?;
    let mut volumes: Vec<Volume> = Vec::new();
    for volume in whole.volume {
        check(&volume, &volumes, &at)?;
        volumes.push(volume);
    }
    Ok(volumes)
}

fn check(volume: &Volume, before: &[Volume], at: &impl Fn(usize) -> String) -> Result<()> {
    let (name, url, directory) = (&volume.name, &volume.url, &volume.directory);
    let valid = |one: char| one.is_ascii_alphanumeric() || "_.-".contains(one);
    let text = name.get_ref();
    let is_name = !text.is_empty() && !text.starts_with(['-', '.']) && text.len() <= NAME_CHARACTERS_MAX;
    if !is_name || !text.chars().all(valid) {
        bail!(
            "{}: name: `{text}` is no name: letters, digits, `_`, `.` and `-`, {NAME_CHARACTERS_MAX} at most, and \
             first a letter, a digit or `_`",
            at(name.span().start)
        );
    }
    if before.iter().any(|other| other.name() == text) {
        bail!("{}: name: there are two volumes `{text}`", at(name.span().start));
    }
    let parsed = url.get_ref().parse::<Url>();
    let parsed = parsed.map_err(|error| anyhow!("{}: url: {error}", at(url.span().start)))?;
    if parsed.is_discovery() {
        bail!("{}: url: it names no subsystem, and a volume is in one", at(url.span().start));
    }
    if !directory.get_ref().is_absolute() {
        bail!(
            "{}: where: `{}` does not begin with /",
            at(directory.span().start),
            directory.get_ref().display()
        );
    }
    if let Some(other) = before.iter().find(|other| other.directory() == directory.get_ref()) {
        bail!("{}: where: volume {} is there already", at(directory.span().start), other.name());
    }
    Ok(())
}

impl Volume {
    /// Its name.
    pub fn name(&self) -> &str {
        self.name.get_ref()
    }

    /// Its address.
    pub fn url(&self) -> &str {
        self.url.get_ref()
    }

    /// Where it is mounted.
    pub fn directory(&self) -> &Path {
        self.directory.get_ref()
    }

    /// What the file says beside that, as options of `ringfab mount`.
    pub fn options(&self) -> Vec<String> {
        let list = |list: &Option<List>| list.as_ref().map(List::text);
        let time = |value: &Option<Value>| value.as_ref().map(Value::text);
        let number = |number: Option<u16>| number.map(|number| number.to_string());
        let values = [
            ("volume", Some(self.name().to_owned())),
            ("fstype", self.fstype.clone()),
            ("options", list(&self.options)),
            ("nsid", self.nsid.map(|nsid| nsid.to_string())),
            ("retry", time(&self.retry)),
            ("cores", number(self.cores)),
            ("hostnqn", self.hostnqn.clone()),
            ("hostid", self.hostid.clone()),
            ("dhchap-key", self.dhchap_key.clone()),
            ("dhchap-controller-key", self.dhchap_controller_key.clone()),
            ("dhchap-hashes", list(&self.dhchap_hashes)),
            ("dhchap-groups", list(&self.dhchap_groups)),
            ("reauthenticate", time(&self.reauthenticate)),
            ("tls-key", self.tls_key.clone()),
            ("tls-derivation", self.tls_derivation.clone()),
            ("queues", number(self.queues)),
            ("depth", number(self.depth)),
            ("keep-alive", time(&self.keep_alive)),
            ("io-timeout", time(&self.io_timeout)),
            ("connect-timeout", time(&self.connect_timeout)),
            ("reconnect-delay", time(&self.reconnect_delay)),
            ("ctrl-loss-timeout", time(&self.ctrl_loss_timeout)),
            ("fast-io-fail-timeout", time(&self.fast_io_fail_timeout)),
            ("retries", self.retries.map(|retries| retries.to_string())),
            ("provider", self.provider.clone()),
        ];
        let flags = [("read-only", self.read_only), ("fsck", self.fsck), ("tls", self.tls)];
        let values = values.into_iter().filter_map(|(name, value)| Some(format!("--{name}={}", value?)));
        values.chain(flags.into_iter().filter(|flag| flag.1).map(|(name, _)| format!("--{name}"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "[[volume]]\nname = \"data\"\nurl = \"nvme+tcp://192.0.2.1/nqn.2026-01.org.example:a?ns=1\"\n\
                         where = \"/srv/data\"\n";

    fn error(text: &str) -> String {
        parse(text, "volumes.toml").expect_err("refused").to_string()
    }

    #[test]
    fn what_a_volume_says_is_the_command_line_of_its_mount() {
        let more = "fstype = \"ext4\"\noptions = [\"noatime\", \"nodev\"]\nread_only = true\nretry = 30\n\
                    ctrl_loss_timeout = \"never\"\ntls_key = \"file:/etc/ringfab/keys/tls\"\n";
        let volumes = parse(&format!("{FIRST}{more}"), "volumes.toml").expect("volumes");
        assert_eq!((volumes[0].name(), volumes[0].directory()), ("data", Path::new("/srv/data")));
        assert_eq!(
            volumes[0].options(),
            [
                "--volume=data",
                "--fstype=ext4",
                "--options=noatime,nodev",
                "--retry=30",
                "--tls-key=file:/etc/ringfab/keys/tls",
                "--ctrl-loss-timeout=never",
                "--read-only",
            ]
        );
        assert!(parse("", "volumes.toml").expect("nothing").is_empty());
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let unknown = error(&format!("{FIRST}colour = 1\n"));
        assert!(unknown.starts_with("volumes.toml:5: unknown field `colour`"), "{unknown}");
        assert!(
            error(&FIRST.replace("data\"\nurl", "a/b\"\nurl"))
                .starts_with("volumes.toml:2: name: `a/b` is no name")
        );
        assert!(
            error(&FIRST.replace("nvme+tcp", "http"))
                .starts_with("volumes.toml:3: url: an address begins with")
        );
        assert!(error(&FIRST.replace("nqn.2026-01.org.example:a", "")).contains("names no subsystem"));
        assert!(error(&FIRST.replace("/srv", "srv")).starts_with("volumes.toml:4: where: `srv/data`"));
        assert!(error(&format!("{FIRST}{FIRST}")).starts_with("volumes.toml:6: name: there are two"));
        let other = FIRST.replace("\"data\"", "\"other\"");
        assert!(error(&format!("{FIRST}{other}")).contains("where: volume data is there already"));
        assert!(error("[[volume]]\nname = \"data\"\n").starts_with("volumes.toml:1: missing field"));
        assert!(error("[volumes]\n").contains("unknown field `volumes`"));
        assert!(error("what\n").starts_with("volumes.toml:1: "));
    }
}
