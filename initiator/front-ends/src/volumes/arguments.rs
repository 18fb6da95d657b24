//! Other ways to say what `ringfab mount` shall do. Each becomes a command line of it, so all have the same options.
//!
//! - Among its mount options are options of its own: `-o hostnqn=NQN,noatime`.
//! - mount(8) runs `mount.ringfab ADDRESS DIRECTORY [-sfnv] [-o OPTIONS]`, and umount(8) runs `umount.ringfab DIRECTORY
//!   [-flnrv]`, since each mount says so in libmount's table (`helper=ringfab`).
//! - `ringfab mount NAME` is what `volumes.toml` says of the name.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context as _, Result, bail};
use clap::{ArgAction, Args as _, Command};
use ringfab_base::meant;

use super::MountArgs;
use super::file::Volume;
use crate::context::Usage;

/// The names by which mount(8) and umount(8) call us.
const HELPER: &str = "mount.ringfab";
const UMOUNT_HELPER: &str = "umount.ringfab";
/// What has umount(8) call its helper, among the options of the mounted file system.
pub(super) const HAS_HELPER: &str = "helper=ringfab";
const MOUNT: &str = "mount";
/// Before the name of a command: options that take a value of their own.
const WITH_VALUE: [&str; 2] = ["--log-format", "--color"];
/// What is meant for others: mount(8), systemd, and those who read fstab.
const FOR_OTHERS: [&str; 12] = [
    "defaults", "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "group", "owner", "rw",
    "loop",
];
/// What mount(8) takes for every file system, and so is no misspelt option of ours.
const OF_EVERY_FILE_SYSTEM: [&str; 20] = [
    "async",
    "atime",
    "dev",
    "diratime",
    "dirsync",
    "exec",
    "lazytime",
    "noatime",
    "nodev",
    "nodiratime",
    "noexec",
    "nolazytime",
    "norelatime",
    "nostrictatime",
    "nosuid",
    "relatime",
    "strictatime",
    "suid",
    "sync",
    "silent",
];
/// Options of the command that make no sense among mount options.
const NOT_AMONG: [&str; 9] =
    ["options", "help", "version", "keeper", "helper", "fake", "volume", "foreground", "force"];

/// How a process was called: whether by mount(8) or umount(8).
pub fn is_helper(program: &OsStr) -> bool {
    is_called(program, HELPER) || is_called(program, UMOUNT_HELPER)
}

fn is_called(program: &OsStr, called: &str) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == called)
}

/// The command line of `ringfab` that these arguments mean.
///
/// # Errors
/// What a caller of `mount.ringfab` or `umount.ringfab` has got wrong.
pub fn prepared(arguments: impl Iterator<Item = OsString>) -> Result<Vec<OsString>> {
    let arguments: Vec<OsString> = arguments.collect();
    match arguments.first() {
        Some(program) if is_called(program, UMOUNT_HELPER) => of_umount_helper(&arguments[1..]),
        Some(program) if is_called(program, HELPER) => Ok(split_options(&of_helper(&arguments[1..])?, 1)),
        _ => Ok(match command_at(&arguments) {
            Some(at) => split_options(&arguments, at),
            None => arguments,
        }),
    }
}

/// The same command line, with what `volumes.toml` says instead of the volume's name.
///
/// # Errors
/// When it makes no sense: the parser's words.
pub fn named(
    arguments: &[OsString],
    volume: &Volume,
    with_directory: bool,
    parses: impl Fn(&[OsString]) -> Result<(), clap::Error>,
) -> Result<Vec<OsString>> {
    let at = command_at(arguments).unwrap_or(0);
    let options: Vec<OsString> = volume.options(&arguments[at..]).into_iter().map(OsString::from).collect();
    let mut last = None;
    // An option may have the same value as the name.
    for (place, _) in
        arguments.iter().enumerate().filter(|(place, text)| *place > at && **text == *volume.name())
    {
        let mut whole = arguments[..=at].to_vec();
        whole.extend_from_slice(&options);
        whole.extend_from_slice(&arguments[at + 1..place]);
        whole.push(volume.url().into());
        if !with_directory {
            whole.push(volume.directory().into());
        }
        whole.extend_from_slice(&arguments[place + 1..]);
        let whole = split_options(&whole, at);
        match parses(&whole) {
            Ok(()) => return Ok(whole),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => {
            let text = error.to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            let text = text.split("\n\nFor more information").next().unwrap_or(text);
            Err(Usage(format!("volume {}: {text}", volume.name())).into())
        }
        None => bail!("volume {} is not among the arguments", volume.name()),
    }
}

/// The arguments of this process, for another one that is to do the same. What the caller of the command has replaced
/// is replaced there, too.
static OF_THIS_PROCESS: OnceLock<Vec<OsString>> = OnceLock::new();

/// Remembers the command line that counts.
pub fn remember(arguments: &[OsString]) {
    // There is one command line.
    let _first = OF_THIS_PROCESS.set(arguments.iter().skip(1).cloned().collect());
}

/// The command line that counts, without the program.
///
/// # Errors
/// When it was not remembered.
pub(super) fn of_this_process() -> Result<&'static [OsString]> {
    OF_THIS_PROCESS.get().map(Vec::as_slice).context("the command line of this process")
}

/// Where the command `mount` is, if it is the command.
fn command_at(arguments: &[OsString]) -> Option<usize> {
    let mut at = 1;
    while let Some(text) = arguments.get(at) {
        if WITH_VALUE.iter().any(|option| text == *option) {
            at += 2;
        } else if text.as_encoded_bytes().starts_with(b"-") {
            at += 1;
        } else {
            return (text == MOUNT).then_some(at);
        }
    }
    None
}

/// What mount(8) says, as a command line of `ringfab mount`.
fn of_helper(arguments: &[OsString]) -> Result<Vec<OsString>> {
    let mut whole: Vec<OsString> = ["ringfab", MOUNT, "--helper"].map(OsString::from).to_vec();
    let mut rest = arguments.iter();
    let mut places = 0;
    while let Some(argument) = rest.next() {
        match argument.to_str() {
            Some("-o" | "--options") => {
                whole.push("--options".into());
                whole.extend(rest.next().cloned());
            }
            // A namespace of mounts was entered by mount(8) already; the kind is ours.
            Some("-N" | "--namespace" | "-t" | "--types") => drop(rest.next()),
            // -s: options that nobody knows are the kernel's affair here. -n: mtab is the kernel's.
            Some(text) if is_flags(text) => {
                whole.extend(text.contains('f').then(|| OsString::from("--fake")));
                whole.extend(text.contains('v').then(|| OsString::from("--verbose")));
                whole.extend(text.contains('r').then(|| OsString::from("--read-only")));
            }
            Some(text) if text.starts_with('-') => {
                return Err(Usage(format!(
                    "{HELPER}: there is no option `{text}`; mount(8) runs this program"
                ))
                .into());
            }
            _ => {
                places += 1;
                whole.push(argument.clone());
            }
        }
    }
    if places == 0 {
        return Err(
            Usage(format!("{HELPER} ADDRESS DIRECTORY [-o OPTIONS]; mount(8) runs this program")).into()
        );
    }
    Ok(whole)
}

/// What umount(8) says, as a command line of `ringfab umount`. Force and a remount where it is in use are the kernel's
/// for other file systems; here there is nothing beyond what the ordinary unmount does.
fn of_umount_helper(arguments: &[OsString]) -> Result<Vec<OsString>> {
    let mut whole: Vec<OsString> = ["ringfab", "umount", "--helper"].map(OsString::from).to_vec();
    let mut rest = arguments.iter();
    let (mut places, mut is_lazy) = (Vec::new(), false);
    while let Some(argument) = rest.next() {
        match argument.to_str() {
            // A namespace of mounts was entered by umount(8) already; the kind is ours.
            Some("-N" | "--namespace" | "-t" | "--types") => drop(rest.next()),
            Some(text) if are_flags(text, "cflnrv") => is_lazy |= text.contains('l'),
            Some(text) if text.starts_with('-') => {
                let why =
                    format!("{UMOUNT_HELPER}: there is no option `{text}`; umount(8) runs this program");
                return Err(Usage(why).into());
            }
            _ => places.push(argument.clone()),
        }
    }
    if let [place] = places.as_slice() {
        whole.extend(is_lazy.then(|| "--lazy".into()));
        whole.extend(["--".into(), place.clone()]);
        return Ok(whole);
    }
    Err(Usage(format!("{UMOUNT_HELPER} DIRECTORY; umount(8) runs this program")).into())
}

fn is_flags(text: &str) -> bool {
    are_flags(text, "sfnvrw")
}

fn are_flags(text: &str, known: &str) -> bool {
    let flags = text.strip_prefix('-').filter(|flags| !flags.is_empty());
    flags.is_some_and(|flags| flags.chars().all(|flag| known.contains(flag)))
}

/// Takes options of the command out of the mount options behind place `at`.
fn split_options(arguments: &[OsString], at: usize) -> Vec<OsString> {
    let known = Known::new();
    let mut whole: Vec<OsString> = arguments[..=at.min(arguments.len() - 1)].to_vec();
    let mut rest = arguments.iter().skip(at + 1);
    while let Some(argument) = rest.next() {
        let text = argument.to_str().unwrap_or_default();
        let attached = text.strip_prefix("--options=");
        let attached = attached.or_else(|| text.strip_prefix("-o").filter(|_| !text.starts_with("--")));
        let list = match attached {
            Some("") => rest.next().map(|list| list.to_string_lossy().into_owned()),
            None if text == "--options" => rest.next().map(|list| list.to_string_lossy().into_owned()),
            attached => attached.map(str::to_owned),
        };
        match list {
            Some(list) => whole.extend(known.split(&list).into_iter().map(OsString::from)),
            None => whole.push(argument.clone()),
        }
    }
    whole
}

/// The options of `ringfab mount` that may be among mount options.
struct Known {
    with_value: Vec<String>,
    flags: Vec<String>,
}

/// The option of `ringfab mount` that a mount option may be meant for. None where it is one, or something else.
pub(super) fn meant_option(option: &str) -> Option<String> {
    if OF_EVERY_FILE_SYSTEM.contains(&option) {
        return None;
    }
    let known = Known::new();
    let names: Vec<String> =
        known.with_value.iter().chain(&known.flags).map(|name| name.replace('-', "_")).collect();
    let name = option.replace('-', "_");
    meant(&name, names.iter().map(String::as_str).filter(|known| **known != name)).map(str::to_owned)
}

impl Known {
    fn new() -> Self {
        let command = MountArgs::augment_args(Command::new(MOUNT));
        let (mut with_value, mut flags) = (Vec::new(), Vec::new());
        for argument in command.get_arguments().filter(|argument| !argument.is_positional()) {
            let names = argument.get_long_and_visible_aliases().into_iter().flatten();
            let hidden = argument.get_all_aliases().into_iter().flatten();
            let is_flag = matches!(argument.get_action(), ArgAction::SetTrue | ArgAction::Count);
            let list = if is_flag { &mut flags } else { &mut with_value };
            list.extend(names.chain(hidden).filter(|name| !NOT_AMONG.contains(name)).map(str::to_owned));
        }
        Self { with_value, flags }
    }

    /// One list of options, as arguments.
    fn split(&self, list: &str) -> Vec<String> {
        let (mut ours, mut of_mount) = (Vec::new(), Vec::new());
        // A list that a person has written may have spaces behind its commas.
        for option in list.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            let (name, value) =
                option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
            let long = name.replace('_', "-");
            match value {
                _ if FOR_OTHERS.contains(&name) || name.starts_with("x-") || name == "comment" => {}
                Some(value) if self.with_value.contains(&long) => ours.push(format!("--{long}={value}")),
                None | Some("1" | "true" | "on") if self.flags.contains(&long) => {
                    ours.push(format!("--{long}"));
                }
                None if name == "ro" => ours.push("--read-only".to_owned()),
                _ => of_mount.push(option),
            }
        }
        if !of_mount.is_empty() {
            ours.push(format!("--options={}", of_mount.join(",")));
        }
        ours
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepare(arguments: &[&str]) -> Vec<String> {
        let whole = prepared(arguments.iter().map(OsString::from)).expect("arguments");
        whole.into_iter().map(|text| text.into_string().expect("text")).collect()
    }

    #[test]
    fn options_of_the_command_may_be_among_mount_options() {
        let list =
            "noatime,hostnqn=nqn.2026-01.a:b,ro,tls_key=file:/k,nodev,x-systemd.automount,_netdev,fsck";
        let expected = [
            "ringfab",
            "-v",
            "mount",
            "--hostnqn=nqn.2026-01.a:b",
            "--read-only",
            "--tls-key=file:/k",
            "--fsck",
            "--options=noatime,nodev",
            "u",
            "d",
        ];
        for options in [
            &["-o", list][..],
            &["--options", list],
            &[&format!("-o{list}")],
            &[&format!("--options={list}")],
        ] {
            let whole = [&["ringfab", "-v", "mount"], options, &["u", "d"]].concat();
            assert_eq!(prepare(&whole), expected);
        }
        let spaced = ["ringfab", "mount", "-o", " noatime, ro ,subvol=a b,", "u", "d"];
        let expected = ["ringfab", "mount", "--read-only", "--options=noatime,subvol=a b", "u", "d"];
        assert_eq!(prepare(&spaced), expected);
        // Other commands have other options.
        let fuse = ["ringfab", "--log-format", "mount", "fuse", "-o", "ro,hostnqn=a", "u", "mount"];
        assert_eq!(prepare(&fuse), fuse);
        // What is never an option of a list is left to mount(8).
        assert_eq!(
            prepare(&["ringfab", "mount", "-o", "force,errors=remount-ro"])[2],
            "--options=force,errors=remount-ro"
        );
    }

    #[test]
    fn a_misspelt_option_is_told_from_those_of_file_systems() {
        for (option, like) in [
            ("hostqnn", Some("hostnqn")),
            ("tls-keys", Some("tls_key")),
            ("keepalive", Some("keep_alive")),
            ("fs_type", Some("fstype")),
        ] {
            assert_eq!(meant_option(option).as_deref(), like, "{option}");
        }
        for option in [
            "noatime",
            "nodev",
            "nosuid",
            "noexec",
            "sync",
            "discard",
            "errors",
            "data",
            "noload",
            "norecovery",
            "commit",
            "barrier",
            "subvol",
            "compress",
            "uid",
            "relatime",
            "acl",
            "nouuid",
            "logbsize",
        ] {
            assert_eq!(meant_option(option), None, "{option}");
        }
    }

    #[test]
    fn a_helper_of_mount_takes_what_mount_gives_it() {
        let said =
            prepare(&["/sbin/mount.ringfab", "u", "/d", "-sfnv", "-o", "rw,nodev,ctrl_loss_timeout=never"]);
        let expected = [
            "ringfab",
            "mount",
            "--helper",
            "u",
            "/d",
            "--fake",
            "--verbose",
            "--ctrl-loss-timeout=never",
            "--options=nodev",
        ];
        assert_eq!(said, expected);
        assert_eq!(prepare(&["mount.ringfab", "u", "/d", "-t", "ringfab"]).len(), 5);
        let lazy = prepare(&["/usr/sbin/umount.ringfab", "/d d", "-lv", "-N", "4", "-t", "ringfab.x", "-nf"]);
        assert_eq!(lazy, ["ringfab", "umount", "--helper", "--lazy", "--", "/d d"].map(str::to_owned));
        for wrong in [
            &["mount.ringfab"][..],
            &["mount.ringfab", "u", "/d", "--bogus"],
            &["umount.ringfab"],
            &["umount.ringfab", "/d", "--bogus"],
            &["umount.ringfab", "/d", "/e"],
        ] {
            assert!(prepared(wrong.iter().map(OsString::from)).is_err(), "{wrong:?}");
        }
    }
}
