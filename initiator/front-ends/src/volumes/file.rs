//! `volumes.toml`: what `ringfab mount NAME` mounts.

use std::env;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use ringfab_base::{VisiblePath as _, meant};
use ringfab_initiator::Url;
use toml::de::{DeTable, DeValue};

use super::plan::refuse_place;

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
    mistakes: Vec<Mistake>,
}

/// A volume that cannot be mounted as it stands in the file. The others can.
#[derive(Debug)]
pub struct Mistake {
    /// Its name, if it has one.
    pub name: Option<String>,
    /// What is wrong, with the line.
    pub error: anyhow::Error,
}

/// A volume.
#[derive(Clone, Debug)]
pub struct Volume {
    name: String,
    url: String,
    directory: PathBuf,
    /// What the file says beside that, as options of `ringfab mount`.
    options: Vec<String>,
}

/// What the value of a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A text.
    Text,
    /// Several texts, or one with commas.
    List,
    /// A whole number.
    Number,
    /// A text with a unit, or a number of seconds.
    Time,
    /// Whether it is so.
    Flag,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Text => "a text",
            Kind::List => "a list of texts",
            Kind::Number => "a whole number",
            Kind::Time => "a time",
            Kind::Flag => "true or false",
        }
    }
}

/// The keys that a volume must have.
const NEEDED: [&str; 3] = ["name", "url", "where"];

/// The others. Each is the option of `ringfab mount` with that name.
const KEYS: [(&str, Kind); 32] = [
    ("fstype", Kind::Text),
    ("options", Kind::List),
    ("read_only", Kind::Flag),
    ("nsid", Kind::Number),
    ("fsck", Kind::Flag),
    ("retry", Kind::Time),
    ("cores", Kind::Number),
    ("hostnqn", Kind::Text),
    ("hostid", Kind::Text),
    ("keys", Kind::Text),
    ("dhchap_key", Kind::Text),
    ("dhchap_controller_key", Kind::Text),
    ("dhchap_hashes", Kind::List),
    ("dhchap_groups", Kind::List),
    ("reauthenticate", Kind::Time),
    ("tls", Kind::Flag),
    ("tls_key", Kind::Text),
    ("tls_derivation", Kind::Text),
    ("queues", Kind::Number),
    ("depth", Kind::Number),
    ("keep_alive", Kind::Time),
    ("io_timeout", Kind::Time),
    ("connect_timeout", Kind::Time),
    ("reconnect_delay", Kind::Time),
    ("ctrl_loss_timeout", Kind::Time),
    ("fast_io_fail_timeout", Kind::Time),
    ("replay_delay", Kind::Time),
    ("retries", Kind::Number),
    ("provider", Kind::Text),
    ("path", Kind::List),
    ("all_addresses", Kind::Flag),
    ("path_policy", Kind::Text),
];

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
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self { path, ..Self::default() }),
            _ => Self::load(&path),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, or what is wrong in all of it, with the line. What is wrong in one volume is among the
    /// [`mistakes`](Self::mistakes).
    pub fn load(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.visible()))?;
        let (volumes, mistakes) = parse(&text, &path.visible().to_string())?;
        Ok(Self { path: path.to_owned(), volumes, mistakes })
    }

    /// Those with a mistake.
    pub fn mistakes(&self) -> &[Mistake] {
        &self.mistakes
    }

    /// All without one, in the order of the file.
    pub fn all(&self) -> &[Volume] {
        &self.volumes
    }

    /// Whether a volume of this name has a mistake.
    ///
    /// # Errors
    /// The mistake.
    pub fn check_mistakes(&self, name: &str) -> Result<()> {
        let mistake = self.mistakes.iter().find(|mistake| mistake.name.as_deref() == Some(name));
        mistake.map_or(Ok(()), |mistake| Err(anyhow!("{:#}", mistake.error)))
    }

    /// The volume of this name.
    ///
    /// # Errors
    /// When there is none, and the text has those that there are; or what is wrong with it.
    pub fn find(&self, name: &str) -> Result<&Volume> {
        self.check_mistakes(name)?;
        let shown = self.path.visible();
        if let Some(found) = self.volumes.iter().find(|volume| volume.name() == name) {
            return Ok(found);
        }
        let names: Vec<&str> = self.volumes.iter().map(Volume::name).collect();
        let like = meant(name, names.iter().copied());
        let missing = match (names.as_slice(), like) {
            ([], _) => format!(
                "`{name}` is not an address, which begins with nvme+rdma:// or nvme+tcp://, and {shown} has no \
                 volume of that name"
            ),
            (_, Some(like)) => format!("{shown} has no volume `{name}`; did you mean {like}?"),
            (some, None) => format!("{shown} has no volume `{name}`; it has {}", some.join(", ")),
        };
        // One without a name may be the one that is meant.
        let nameless = self.mistakes.iter().find(|mistake| mistake.name.is_none());
        Err(match nameless {
            Some(nameless) => anyhow!("{missing}\n{:#}", nameless.error),
            None => anyhow!(missing),
        })
    }
}

/// The volumes in a text, each of which makes sense by itself, and those that do not.
fn parse(text: &str, file: &str) -> Result<(Vec<Volume>, Vec<Mistake>)> {
    let place = Place { text, file };
    let table = DeTable::parse(text)
        .map_err(|error| place.error(error.span().unwrap_or(0..0), error.message().trim()))?
        .into_inner();
    let (mut volumes, mut mistakes) = (Vec::new(), Vec::new());
    for (key, value) in &table {
        let tables = value.get_ref().as_array().filter(|_| key.get_ref() == "volume");
        let Some(tables) = tables else {
            return Err(place
                .error(key.span(), &format!("`{}` is not known here; there is [[volume]]", key.get_ref())));
        };
        for volume in tables {
            let Some(table) = volume.get_ref().as_table() else {
                return Err(place.error(volume.span(), "a volume is a table: [[volume]]"));
            };
            let name = table.get("name").and_then(|name| name.get_ref().as_str()).map(str::to_owned);
            match place.volume(table, volume.span(), &volumes) {
                Ok(volume) => volumes.push(volume),
                Err(error) => mistakes.push(Mistake { name, error }),
            }
        }
    }
    Ok((volumes, mistakes))
}

/// A text, for errors with the line.
struct Place<'a> {
    text: &'a str,
    file: &'a str,
}

/// A text of the file, and where it is.
struct Placed {
    text: String,
    span: Range<usize>,
}

impl Place<'_> {
    fn error(&self, at: Range<usize>, what: &str) -> anyhow::Error {
        let before = &self.text[..at.start.min(self.text.len())];
        anyhow!("{}:{}: {what}", self.file, 1 + before.matches('\n').count())
    }

    fn volume(&self, table: &DeTable<'_>, span: Range<usize>, before: &[Volume]) -> Result<Volume> {
        let mut options = Vec::new();
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            if NEEDED.contains(&name) {
                continue;
            }
            let Some((_, kind)) = KEYS.iter().find(|(known, _)| *known == name) else {
                let known: Vec<&str> = NEEDED.into_iter().chain(KEYS.map(|(name, _)| name)).collect();
                let hint = match meant(name, known.iter().copied().filter(|name| !table.contains_key(*name)))
                {
                    Some(like) => format!("did you mean {like}?"),
                    None => format!("there are {}", known.join(", ")),
                };
                let what = format!("{name}: is not a known key; {hint}");
                return Err(self.error(key.span(), &what));
            };
            let wrong = || self.error(value.span(), &format!("{name}: must be {}", kind.name()));
            options.extend(option(name, *kind, value.get_ref()).ok_or_else(wrong)?);
        }
        let needed = |name: &str| {
            let (_, value) = table
                .iter()
                .find(|(key, _)| key.get_ref() == name)
                .ok_or_else(|| self.error(span.clone(), &format!("{name}: a volume must have it")))?;
            let text = value.get_ref().as_str();
            let text = text.ok_or_else(|| self.error(value.span(), &format!("{name}: must be a text")))?;
            Ok::<_, anyhow::Error>(Placed { text: text.to_owned(), span: value.span() })
        };
        let [name, url, directory] = [needed("name")?, needed("url")?, needed("where")?];
        self.check_name(&name, before)?;
        self.check_url(&url)?;
        self.check_directory(&directory, before)?;
        options.insert(0, format!("--volume={}", name.text));
        Ok(Volume { name: name.text, url: url.text, directory: directory.text.into(), options })
    }

    fn check_name(&self, name: &Placed, before: &[Volume]) -> Result<()> {
        let Placed { text: name, span } = name;
        let valid = |one: char| one.is_ascii_alphanumeric() || "_.-".contains(one);
        let is_name = !name.is_empty() && !name.starts_with(['-', '.']) && name.len() <= NAME_CHARACTERS_MAX;
        if !is_name || !name.chars().all(valid) {
            let what = format!(
                "name: `{name}` is not a name: letters, digits, `_`, `.` and `-`, {NAME_CHARACTERS_MAX} at most, and \
                 first a letter, a digit or `_`"
            );
            return Err(self.error(span.clone(), &what));
        }
        if before.iter().any(|other| other.name == *name) {
            return Err(self.error(span.clone(), &format!("name: there are two volumes `{name}`")));
        }
        Ok(())
    }

    fn check_url(&self, url: &Placed) -> Result<()> {
        let Placed { text: url, span } = url;
        match url.parse::<Url>() {
            Err(error) => Err(self.error(span.clone(), &format!("url: {error}"))),
            Ok(url) if url.is_discovery() => {
                Err(self.error(span.clone(), "url: it names no subsystem, and a volume is in one"))
            }
            Ok(_) => Ok(()),
        }
    }

    fn check_directory(&self, directory: &Placed, before: &[Volume]) -> Result<()> {
        let Placed { text: directory, span } = directory;
        if !directory.starts_with('/') {
            return Err(self.error(span.clone(), &format!("where: `{directory}` does not begin with /")));
        }
        let goes_up = Path::new(directory).components().any(|part| part == Component::ParentDir);
        if goes_up {
            return Err(self.error(span.clone(), &format!("where: `{directory}` has a `..`")));
        }
        if let Err(error) = refuse_place(Path::new(directory)) {
            return Err(self.error(span.clone(), &format!("where: {error}")));
        }
        match before.iter().find(|other| other.directory == Path::new(directory)) {
            Some(other) => {
                Err(self.error(span.clone(), &format!("where: volume {} is there already", other.name)))
            }
            None => Ok(()),
        }
    }
}

/// A key as an option; none where the value is of another kind.
fn option(name: &str, kind: Kind, value: &DeValue<'_>) -> Option<Option<String>> {
    let number = || Some(value.as_integer()?.as_str().to_owned());
    let text = || value.as_str().map(str::to_owned);
    // Spaces around commas are the writer's, and no part of an option.
    let trimmed = |text: &str| text.split(',').map(str::trim).collect::<Vec<_>>().join(",");
    let list = || {
        let texts = value.as_array()?.iter().map(|one| one.get_ref().as_str().map(trimmed));
        Some(texts.collect::<Option<Vec<_>>>()?.join(","))
    };
    let name = name.replace('_', "-");
    let value = match kind {
        Kind::Flag => return value.as_bool().map(|is_so| is_so.then(|| format!("--{name}"))),
        Kind::Text => text(),
        Kind::List => list().or_else(|| value.as_str().map(trimmed)),
        Kind::Number => number(),
        Kind::Time => text().or_else(number),
    };
    value.map(|value| Some(format!("--{name}={value}")))
}

impl Volume {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where it is mounted.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What the file says beside that, as options of `ringfab mount`.
    pub(super) fn said(&self) -> &[String] {
        &self.options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "[[volume]]\nname = \"data\"\nurl = \"nvme+tcp://192.0.2.1/nqn.2026-01.org.example:a?ns=1\"\n\
                         where = \"/srv/data\"\n";

    fn error(text: &str) -> String {
        match parse(text, "volumes.toml") {
            Ok((_, mistakes)) => mistakes.first().expect("a mistake").error.to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn what_a_volume_says_is_the_command_line_of_its_mount() {
        let more = "fstype = \"ext4\"\noptions = [\"noatime\", \"nodev\"]\nread_only = true\nretry = 30\n\
                    ctrl_loss_timeout = \"never\"\ntls_key = \"file:/etc/ringfab/keys/tls\"\n";
        let (volumes, mistakes) = parse(&format!("{FIRST}{more}"), "volumes.toml").expect("volumes");
        assert!(mistakes.is_empty(), "{mistakes:?}");
        assert_eq!((volumes[0].name(), volumes[0].directory()), ("data", Path::new("/srv/data")));
        assert_eq!(
            volumes[0].said(),
            [
                "--volume=data",
                "--ctrl-loss-timeout=never",
                "--fstype=ext4",
                "--options=noatime,nodev",
                "--read-only",
                "--retry=30",
                "--tls-key=file:/etc/ringfab/keys/tls",
            ]
        );
        for list in ["\"noatime, ro\"", "[\" noatime\", \"ro \"]", "[\"noatime ,ro\"]"] {
            let (volumes, _) = parse(&format!("{FIRST}options = {list}\n"), "volumes.toml").expect("volumes");
            assert_eq!(volumes[0].options(&[]), ["--volume=data", "--options=noatime,ro"], "{list}");
        }
        let (volumes, mistakes) = parse("", "volumes.toml").expect("nothing");
        assert!(volumes.is_empty() && mistakes.is_empty());
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let unknown = error(&format!("{FIRST}colour = 1\n"));
        assert!(
            unknown.starts_with("volumes.toml:5: colour: is not a known key; there are name,"),
            "{unknown}"
        );
        for (key, like) in [("fs_type", "fstype"), ("read-only", "read_only"), ("option", "options")] {
            let misspelt = error(&format!("{FIRST}{key} = 1\n"));
            assert_eq!(misspelt, format!("volumes.toml:5: {key}: is not a known key; did you mean {like}?"));
        }
        let misspelt = error(&FIRST.replace("where", "were"));
        assert_eq!(misspelt, "volumes.toml:4: were: is not a known key; did you mean where?");
        let misspelt = error(&FIRST.replace("url =", "URL ="));
        assert_eq!(misspelt, "volumes.toml:3: URL: is not a known key; did you mean url?");
        assert!(
            error(&FIRST.replace("data\"\nurl", "a/b\"\nurl"))
                .starts_with("volumes.toml:2: name: `a/b` is not a name")
        );
        assert!(
            error(&FIRST.replace("nvme+tcp", "http"))
                .starts_with("volumes.toml:3: url: an address begins with")
        );
        assert!(error(&FIRST.replace("nqn.2026-01.org.example:a", "")).contains("names no subsystem"));
        assert!(error(&FIRST.replace("/srv", "srv")).starts_with("volumes.toml:4: where: `srv/data`"));
        for (place, words) in [("/", "where: / cannot be"), ("/dev/shm", "where: /dev/shm cannot be")] {
            let wrong = error(&FIRST.replace("/srv/data", place));
            assert!(wrong.starts_with(&format!("volumes.toml:4: {words}")), "{wrong}");
        }
        assert_eq!(
            error(&FIRST.replace("/srv/data", "/srv/../data")),
            "volumes.toml:4: where: `/srv/../data` has a `..`"
        );
        assert!(error(&format!("{FIRST}{FIRST}")).starts_with("volumes.toml:6: name: there are two"));
        let other = FIRST.replace("\"data\"", "\"other\"");
        assert!(error(&format!("{FIRST}{other}")).contains("where: volume data is there already"));
        assert_eq!(error("[[volume]]\nname = \"data\"\n"), "volumes.toml:1: url: a volume must have it");
        assert!(error("[volumes]\n").contains("`volumes` is not known here"));
        assert!(error("\nwhat\n").starts_with("volumes.toml:2: "));
        for (wrong, words) in [
            ("nsid = \"1\"", "nsid: must be a whole number"),
            ("options = [1]", "options: must be a list of texts"),
            ("fsck = 1", "fsck: must be true or false"),
            ("retry = true", "retry: must be a time"),
        ] {
            assert_eq!(error(&format!("{FIRST}{wrong}\n")), format!("volumes.toml:5: {words}"));
        }
    }

    #[test]
    fn the_manual_has_every_key() {
        let page = include_str!("../../../../configs/man/volumes.toml.5");
        let words: Vec<&str> =
            page.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
        let missing = |key: &&str| !words.contains(key) && !page.contains(&format!("\n.B {key}\n"));
        let keys = NEEDED.into_iter().chain(KEYS.iter().map(|(key, _)| *key));
        assert_eq!(keys.filter(missing).collect::<Vec<_>>(), [""; 0]);
    }

    #[test]
    fn a_mistake_in_one_volume_is_none_in_the_others() {
        let (wrong, fine) = (FIRST.replace("url", "URL"), FIRST.replace("data", "fine"));
        let (volumes, mistakes) = parse(&format!("{wrong}{fine}"), "volumes.toml").expect("volumes");
        let all = Volumes { path: "volumes.toml".into(), volumes, mistakes };
        assert_eq!(all.find("fine").expect("it is fine").name(), "fine");
        assert!(all.find("data").unwrap_err().to_string().starts_with("volumes.toml:3: URL: is not a"));
        let nameless = FIRST.replace("name", "nam");
        let (volumes, mistakes) = parse(&format!("{FIRST}{nameless}"), "volumes.toml").expect("volumes");
        let all = Volumes { path: "volumes.toml".into(), volumes, mistakes };
        assert!(all.find("data").is_ok());
        let told = all.find("dat").unwrap_err().to_string();
        assert!(told.starts_with(
            "volumes.toml has no volume `dat`; did you mean data?\nvolumes.toml:6: nam: is not a"
        ));
        // With two of one name, nobody knows which is meant.
        let (volumes, mistakes) = parse(&format!("{FIRST}{FIRST}"), "volumes.toml").expect("volumes");
        let all = Volumes { path: "volumes.toml".into(), volumes, mistakes };
        assert!(all.find("data").unwrap_err().to_string().contains("there are two volumes"));
    }

    /// A key that is the name of no option would be refused by the command line.
    #[test]
    fn every_key_is_an_option_of_the_command() {
        use clap::Args as _;
        let command = super::super::MountArgs::augment_args(clap::Command::new("mount"));
        for (key, kind) in KEYS {
            let argument = command.get_arguments().find(|one| one.get_long() == Some(&key.replace('_', "-")));
            let flag = argument.expect(key).get_action().takes_values();
            assert_eq!(flag, kind != Kind::Flag, "{key}");
        }
    }

    #[test]
    fn the_example_is_valid() {
        let text = include_str!("../../../../configs/volumes.toml");
        let commented =
            text.lines().filter_map(|line| line.strip_prefix("# ").filter(|line| line.contains(" = ")));
        let whole = format!("{text}\n{}\n", commented.collect::<Vec<_>>().join("\n"));
        for text in [text, &whole] {
            let (volumes, mistakes) = parse(text, "volumes.toml").expect("valid");
            assert_eq!((volumes.len(), mistakes.len()), (1, 0));
        }
    }
}
