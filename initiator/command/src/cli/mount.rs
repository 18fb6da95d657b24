//! `ringfab mount` as users, volumes and mount(8) say it, and `ringfab volume`.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Parser as _;
use ringfab_base::VisiblePath as _;
use ringfab_front_ends::context::{Context, Usage};
use ringfab_front_ends::interrupt::Cancelled;
use ringfab_front_ends::output;
use ringfab_front_ends::volumes::file::{self, Mistake, Volume, Volumes};
use ringfab_front_ends::volumes::{self, VolumeCommand, arguments};
use serde_json::json;

use super::{Cli, Command};

/// Where the package has one.
const EXAMPLE: &str = "/usr/share/doc/ringfab/configs/volumes.toml";

/// What mount(8) wants to be told (`mount.ringfab` is its helper).
mod status {
    pub(super) const USAGE: u8 = 1;
    pub(super) const INTERRUPTED: u8 = 8;
    pub(super) const FAILED: u8 = 32;
}

/// The command line of this process.
pub(super) fn arguments(given: Vec<OsString>) -> Result<Vec<OsString>> {
    arguments::prepared(given.into_iter())
}

/// The command with what `volumes.toml` says of a volume, where one is named.
pub(super) fn resolved(cli: Cli, mut arguments: Vec<OsString>) -> Result<Cli> {
    let mut cli = cli;
    if let Command::Mount(args) = &cli.command
        && !args.source.contains("://")
    {
        let volumes = Volumes::load_default()?;
        let volume = volumes.find(&args.source)?;
        let parses = |arguments: &[OsString]| Cli::try_parse_from(arguments).map(drop);
        arguments = arguments::named(&arguments, volume, args.directory.is_some(), parses)?;
        cli = Cli::try_parse_from(&arguments)?;
    }
    arguments::remember(&arguments);
    Ok(cli)
}

/// The exit status for mount(8).
pub(super) fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<Usage>() {
        status::USAGE
    } else if error.is::<Cancelled>() {
        status::INTERRUPTED
    } else {
        status::FAILED
    }
}

/// `ringfab volume`.
pub(super) fn volume(command: &VolumeCommand, context: &Context) -> Result<()> {
    let VolumeCommand::Check { file } = command;
    let path = file.clone().unwrap_or_else(file::path);
    if path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        bail!("there is no {}; {EXAMPLE} is an example with all keys", path.visible());
    }
    let volumes = Volumes::load(&path)?;
    let checked: Vec<(&Volume, Result<()>)> =
        volumes.all().iter().map(|volume| (volume, check(volume))).collect();
    let said =
        |result: &Result<()>| result.as_ref().map_or_else(|error| format!("{error:#}"), |()| "ok".to_owned());
    let entry = |(volume, result): &(&Volume, Result<()>)| {
        let (name, url, directory) = (volume.name(), volume.url(), volume.directory());
        json!({ "name": name, "address": url, "where": directory, "ok": result.is_ok(), "said": said(result) })
    };
    let mistaken = |mistake: &Mistake| {
        let error = format!("{:#}", mistake.error);
        json!({ "name": mistake.name, "address": null, "where": null, "ok": false, "said": error })
    };
    let line = |(volume, result): &(&Volume, Result<()>)| {
        format!("{}: {} on {}: {}", volume.name(), volume.url(), volume.directory().visible(), said(result))
    };
    let mistakes = volumes.mistakes();
    let entries = checked.iter().map(entry).chain(mistakes.iter().map(mistaken));
    output::either(
        context.json,
        || json!({ "volumes": entries.collect::<Vec<_>>() }),
        || match (checked.as_slice(), mistakes) {
            ([], []) => format!("{} has no volumes; {EXAMPLE} is an example", path.visible()),
            (checked, _) => checked.iter().map(line).collect::<Vec<_>>().join("\n"),
        },
    )?;
    let wrong = checked.iter().filter(|(_, result)| result.is_err()).count() + mistakes.len();
    if wrong == 0 {
        return Ok(());
    }
    let told: String = mistakes.iter().map(|mistake| format!("{:#}\n", mistake.error)).collect();
    let all = checked.len() + mistakes.len();
    bail!("{told}{}: {wrong} of {all} volumes could not be mounted", path.visible())
}

/// Whether a volume could be mounted, as far as this machine knows.
fn check(volume: &Volume) -> Result<()> {
    let (url, directory) = (OsString::from(volume.url()), PathBuf::from(volume.directory()));
    let start = ["ringfab", "mount"].map(OsString::from).into_iter();
    let options = volume.options(&[]).into_iter().map(OsString::from);
    let whole = arguments::prepared(start.chain(options).chain([url, directory.into()]))?;
    let cli = Cli::try_parse_from(whole).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        Usage(super::without_keys(first.trim_start_matches("error: ")))
    })?;
    let Command::Mount(args) = cli.command else { bail!("it is not a mount") };
    volumes::check(&args)
}
