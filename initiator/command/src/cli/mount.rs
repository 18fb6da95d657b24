//! `ringfab mount` as users, volumes and mount(8) say it, and `ringfab volume`.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use clap::Parser as _;
use ringfab_base::{VisiblePath as _, counted, shell_word};
use ringfab_front_ends::context::{Context, Usage};
use ringfab_front_ends::interrupt::Cancelled;
use ringfab_front_ends::output;
use ringfab_front_ends::volumes::file::{self, Mistake, Volume, Volumes};
use ringfab_front_ends::volumes::fstab::{self, Line};
use ringfab_front_ends::volumes::{self, VolumeCommand, WritesLost, arguments};
use serde_json::{Value, json};

use super::{Cli, Command};

/// Where the package has one.
const EXAMPLE: &str = "/usr/share/doc/ringfab/configs/volumes.toml";

/// What mount(8) and umount(8) want to be told (`mount.ringfab` and `umount.ringfab` are their helpers).
mod status {
    pub(super) const USAGE: u8 = 1;
    /// An error of the system: it is unmounted, but writes were lost.
    pub(super) const WRITES_LOST: u8 = 2;
    pub(super) const INTERRUPTED: u8 = 8;
    pub(super) const FAILED: u8 = 32;
}

/// The command line of this process.
pub(super) fn arguments(given: Vec<OsString>) -> Result<Vec<OsString>> {
    arguments::prepared(given.into_iter())
}

/// The command with what `volumes.toml` says of a volume, where one is named.
pub(super) fn resolved(cli: Cli, arguments: Vec<OsString>) -> Result<Cli> {
    let (cli, arguments) = with_volume(cli, arguments)?;
    arguments::remember(&arguments);
    Ok(cli)
}

fn with_volume(cli: Cli, arguments: Vec<OsString>) -> Result<(Cli, Vec<OsString>)> {
    let Command::Mount(args) = &cli.command else { return Ok((cli, arguments)) };
    if args.source.contains("://") {
        return Ok((cli, arguments));
    }
    let volumes = Volumes::load_default()?;
    let volume = volumes.find(&args.source)?;
    let parses = |arguments: &[OsString]| Cli::try_parse_from(arguments).map(drop);
    let arguments = arguments::named(&arguments, volume, args.directory.is_some(), parses)?;
    Ok((Cli::try_parse_from(&arguments)?, arguments))
}

/// The exit status for mount(8).
pub(super) fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<Usage>() {
        status::USAGE
    } else if error.is::<WritesLost>() {
        status::WRITES_LOST
    } else if error.is::<Cancelled>() {
        status::INTERRUPTED
    } else {
        status::FAILED
    }
}

/// What `ringfab volume check` has looked at.
struct Checked {
    /// Of a volume; a line of fstab has none.
    name: Option<String>,
    /// What it is called, for people.
    label: String,
    address: Option<String>,
    directory: Option<PathBuf>,
    result: Result<()>,
}

/// `ringfab volume`.
pub(super) fn volume(command: &VolumeCommand, context: &Context) -> Result<()> {
    match command {
        VolumeCommand::Check { file } => check_all(file.as_deref(), context),
        VolumeCommand::List { file } => list(file.as_deref(), context),
    }
}

/// The file that is meant, and its volumes; none where it is not there.
fn load(file: Option<&Path>) -> Result<(PathBuf, Option<Volumes>)> {
    let path = file.map_or_else(file::path, Path::to_owned);
    let is_missing = path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    let volumes = if is_missing { None } else { Some(Volumes::load(&path)?) };
    Ok((path, volumes))
}

/// `ringfab volume list`.
fn list(file: Option<&Path>, context: &Context) -> Result<()> {
    let (path, volumes) = load(file)?;
    let Some(volumes) = volumes else {
        bail!("there is no {}; {EXAMPLE} is an example with all keys", path.visible());
    };
    if volumes.all().is_empty() && !context.json {
        output::text(&format!("{} has no volumes; {EXAMPLE} is an example", path.visible()))?;
    } else {
        volumes::list_volumes(&volumes, context)?;
    }
    match volumes.mistakes().len() {
        0 => Ok(()),
        wrong => bail!("{} is wrong here: `ringfab volume check` says where", counted(wrong, "volume")),
    }
}

/// `ringfab volume check`.
fn check_all(file: Option<&Path>, context: &Context) -> Result<()> {
    let (path, volumes) = load(file)?;
    // Who names another file asks for that one alone.
    let of_fstab = if path == file::path() { fstab::lines()? } else { Vec::new() };
    if volumes.is_none() && of_fstab.is_empty() {
        bail!("there is no {}; {EXAMPLE} is an example with all keys", path.visible());
    }
    let volumes = volumes.unwrap_or_default();
    let checked: Vec<Checked> = volumes
        .all()
        .iter()
        .map(|volume| Checked::of_volume(volume, check(volume)))
        .chain(volumes.mistakes().iter().map(Checked::of_mistake))
        .chain(of_fstab.iter().map(|line| Checked::of_line(line, check_line(line))))
        .collect();
    output::either(
        context.json,
        || json!({ "volumes": checked.iter().map(Checked::json).collect::<Vec<_>>() }),
        || match checked.as_slice() {
            [] => format!("{} has no volumes; {EXAMPLE} is an example", path.visible()),
            checked => checked.iter().filter_map(Checked::line).collect::<Vec<_>>().join("\n"),
        },
    )?;
    let wrong = checked.iter().filter(|one| one.result.is_err()).count();
    if wrong == 0 {
        return Ok(());
    }
    let told: String = volumes.mistakes().iter().map(|mistake| format!("{:#}\n", mistake.error)).collect();
    let all = checked.len();
    if of_fstab.is_empty() {
        bail!("{told}{}: {wrong} of {all} volumes could not be mounted", path.visible())
    }
    bail!("{told}{wrong} of {all} volumes and lines of fstab could not be mounted as they say")
}

impl Checked {
    fn of_volume(volume: &Volume, result: Result<()>) -> Self {
        Self {
            name: Some(volume.name().to_owned()),
            label: volume.name().to_owned(),
            address: Some(volume.url().to_owned()),
            directory: Some(volume.directory().to_owned()),
            result,
        }
    }

    fn of_mistake(mistake: &Mistake) -> Self {
        let result = Err(anyhow!("{:#}", mistake.error));
        Self { name: mistake.name.clone(), label: String::new(), address: None, directory: None, result }
    }

    fn of_line(line: &Line, result: Result<()>) -> Self {
        let (address, directory) = (Some(line.source.clone()), Some(line.directory.clone()));
        Self { name: None, label: line.place.clone(), address, directory, result }
    }

    fn said(&self) -> String {
        self.result.as_ref().map_or_else(|error| format!("{error:#}"), |()| "ok".to_owned())
    }

    fn json(&self) -> Value {
        let (name, address, directory) = (&self.name, &self.address, &self.directory);
        json!({
            "name": name, "address": address, "where": directory, "ok": self.result.is_ok(), "said": self.said()
        })
    }

    /// None for a mistake in the file, which is told with its line.
    fn line(&self) -> Option<String> {
        let (address, directory) = (self.address.as_ref()?, self.directory.as_ref()?);
        Some(format!("{}: {} on {}: {}", self.label, shell_word(address), directory.visible(), self.said()))
    }
}

/// Whether a volume could be mounted, as far as this machine knows.
fn check(volume: &Volume) -> Result<()> {
    let (url, directory) = (OsString::from(volume.url()), PathBuf::from(volume.directory()));
    let start = ["ringfab", "mount"].map(OsString::from).into_iter();
    let options = volume.options(&[]).into_iter().map(OsString::from);
    check_arguments(start.chain(options).chain([url, directory.into()]))
}

/// Whether mount(8) could mount a line of fstab, and the boot goes on until it does.
fn check_line(line: &Line) -> Result<()> {
    line.check()?;
    let helper = ["mount.ringfab", &line.source].map(OsString::from);
    let rest = [line.directory.clone().into(), "-o".into(), OsString::from(&line.options)];
    check_arguments(helper.into_iter().chain(rest))
}

fn check_arguments(whole: impl Iterator<Item = OsString>) -> Result<()> {
    let whole = arguments::prepared(whole)?;
    let cli = Cli::try_parse_from(&whole).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        Usage(super::without_keys(first.trim_start_matches("error: ")))
    })?;
    let (cli, _) = with_volume(cli, whole)?;
    let Command::Mount(args) = cli.command else { bail!("it is not a mount") };
    volumes::check(&args)
}
