//! `ringfab-target config`: prints the configuration that runs, or writes it to its file.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use clap::Args;
use ringfab_base::VisiblePath as _;
use serde_json::Value;

use super::changes::{change_line, change_lines};
use super::{Place, list};
use crate::config::{Config, edit, places};
use crate::control::client::{AskError, ask};
use crate::control::request::Request;

/// What to do with the configuration that runs.
#[derive(Debug, Args)]
pub struct ConfigArguments {
    /// Write what was changed by command to the file that the target reads at its start. Only these lines are changed:
    /// comments, order and defaults stay as they are. The old file stays beside it, with `.old` at the end of its name.
    #[arg(long)]
    save: bool,
}

/// Prints the configuration that runs, or writes it to its file.
///
/// # Errors
/// When the target cannot be asked, or the file cannot be written.
pub fn config(place: &Place, arguments: &ConfigArguments, output: &mut impl Write) -> Result<(), AskError> {
    if !arguments.save {
        return place.show(&Request::Config, output, |answer| toml_of(answer).to_owned());
    }
    let text = save(place)?.text();
    place.show(&Request::Config, output, |_| text)
}

/// What became of the file of a configuration.
pub(super) struct Saved {
    file: String,
    /// Where the file before is now; none where it stays as it is, or was not there.
    old: Option<PathBuf>,
    is_written: bool,
    changes: Vec<String>,
}

impl Saved {
    /// For people.
    pub(super) fn text(&self) -> String {
        let file = &self.file;
        if !self.is_written {
            return format!("{file} has all of it already, and stays as it is\n");
        }
        let changes: String = self.changes.iter().map(|change| format!("{change}\n")).collect();
        let old =
            self.old.as_ref().map(|old| format!("; the old one is {}", old.visible())).unwrap_or_default();
        format!("{changes}{file} is written{old}\n")
    }
}

/// The file of the configuration that runs.
///
/// # Errors
/// When there is none.
pub(super) fn file_of(answer: &Value) -> Result<&str, AskError> {
    answer["file"].as_str().ok_or_else(|| refused("the target was started without a configuration file"))
}

/// Refuses what could not be saved: somebody has changed the file and not reloaded it, or broken it.
pub(super) fn check_file(place: &Place, file: &str) -> Result<(), AskError> {
    if Path::new(file).exists() { refuse_edited(place, file) } else { Ok(()) }
}

/// Writes the configuration that runs to its file.
pub(super) fn save(place: &Place) -> Result<Saved, AskError> {
    let answer = ask(&place.socket, &Request::Config)?;
    let file = file_of(&answer)?;
    let path = Path::new(file);
    let saved = |is_written, old| {
        let changes = list(&answer, "unsaved").iter().map(change_line).collect();
        Saved { file: file.to_owned(), old, is_written, changes }
    };
    // What cannot be read again must not be there at the next start.
    let running = Config::look_at_text(toml_of(&answer), "the configuration that runs").map_err(refused)?;
    // Nobody's work is written over, and no comment is lost.
    let before = if path.exists() { Some(Config::text_again(path).map_err(refused)?) } else { None };
    if before.is_some() {
        refuse_edited(place, file)?;
        if list(&answer, "unsaved").is_empty() {
            return Ok(saved(false, None));
        }
    }
    let text = match &before {
        Some(before) => edit::edited(before, &running).map_err(|why| by_hand(file, &why, &answer, &running)),
        None => edit::written(&running).map_err(refused),
    }?;
    refuse_named(path, &running)?;
    let written = replace(path, before.as_deref(), &text);
    let old = written.map_err(|error| refused(format!("cannot write {file}: {error}")))?;
    tell_target(place, file)?;
    Ok(saved(true, old))
}

pub(super) fn refused(why: impl fmt::Display) -> AskError {
    AskError::Refused(format!("{why}"))
}

/// What to write by hand into a file that cannot be changed.
fn by_hand(file: &str, why: &str, answer: &Value, running: &Config) -> AskError {
    let changes: String =
        list(answer, "unsaved").iter().map(|change| format!("# {}\n", change_line(change))).collect();
    let parts =
        Config::look_at(Path::new(file)).map(|filed| edit::parts(&filed, running)).unwrap_or_default();
    refused(format!(
        "{file} stays as it is: {why}. Change it by hand, and reload it. This is different:\n{changes}\n{parts}"
    ))
}

/// Has the target see that what runs is in its file now.
fn tell_target(place: &Place, file: &str) -> Result<(), AskError> {
    // Somebody may have changed something meanwhile. That must not be taken back.
    let different = ask(&place.socket, &Request::Reload { dry_run: true })?;
    if !list(&different, "changes").is_empty() {
        let lines = change_lines(&different);
        return Err(refused(format!("{file} is written, and something was changed meanwhile:\n{lines}")));
    }
    ask(&place.socket, &Request::Reload { dry_run: false })?;
    Ok(())
}

/// Refuses to write over a file that somebody has changed and not reloaded, or broken.
fn refuse_edited(place: &Place, file: &str) -> Result<(), AskError> {
    let preview = ask(&place.socket, &Request::Reload { dry_run: true }).map_err(|error| match error {
        AskError::Refused(why) => {
            refused(format!("{file} was changed and not reloaded: correct it, or move it away:\n{why}"))
        }
        error => error,
    })?;
    let edited = list(&preview, "edited");
    if edited.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = edited.iter().map(|change| format!("\n{}", change_line(change))).collect();
    let lines = lines.concat();
    Err(refused(format!("{file} was changed and not reloaded: reload it, or move it away:{lines}")))
}

/// Refuses to write where something is that the configuration names: a disk may be beside its file.
fn refuse_named(file: &Path, config: &Config) -> Result<(), AskError> {
    let places = [("its new file", NEW), ("the copy of its old file", OLD)];
    let conflict = places.into_iter().find_map(|(what, suffix)| {
        places::conflict_at(places::Place::new(what, &beside(&real_path(file), suffix)), config, None)
    });
    conflict.map_or(Ok(()), |conflict| Err(refused(conflict.sentence())))
}

/// What a link leads to is exchanged, and the link stays.
fn real_path(file: &Path) -> PathBuf {
    fs::canonicalize(file).unwrap_or_else(|_| file.to_owned())
}

fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// What the names of the file end in that is not whole yet, and of the one that was there.
const NEW: &str = ".new";
const OLD: &str = ".old";

/// The configuration that runs, as a file.
pub(super) fn toml_of(answer: &Value) -> &str {
    answer["toml"].as_str().unwrap_or_default()
}

/// Exchanges a file, which is whole at any moment, and keeps the old one, if there is one, beside it. Returns where.
/// The file must still have the text that was read.
fn replace(file: &Path, read: Option<&str>, content: &str) -> io::Result<Option<PathBuf>> {
    let file = &real_path(file);
    let (new, old) = (beside(file, NEW), beside(file, OLD));
    let before = match fs::metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        before => Some(before?),
    };
    if before.as_ref().is_some_and(|before| !before.is_file()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    // One that was left behind when somebody else was interrupted is of no use.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mode = before.as_ref().map_or(0o644, |before| before.permissions().mode() & 0o777);
    let mut options = OpenOptions::new();
    let mut writer = options.write(true).create_new(true).mode(mode).open(&new)?;
    if let Some(before) = &before {
        // Who may not give it away is its owner already, or leaves it to the group that he has.
        let _same = chown(&new, Some(before.uid()), Some(before.gid()));
    }
    if let Err(error) = writer.write_all(content.as_bytes()).and_then(|()| writer.sync_all()) {
        let _half = fs::remove_file(&new);
        return Err(error);
    }
    if before.is_some() {
        if read.is_some_and(|read| fs::read(file).is_ok_and(|now| now != read.as_bytes())) {
            let _unused = fs::remove_file(&new);
            return Err(io::Error::other("somebody has changed it just now"));
        }
        match fs::remove_file(&old) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::hard_link(file, &old)?;
    }
    fs::rename(&new, file)?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()?;
    Ok(before.map(|_| old))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_exchanged_with_its_permissions_and_the_old_one_stays() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("target.toml");
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        for (content, before) in [("new", "old"), ("newer", "new")] {
            replace(&file, Some(before), content).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), content);
            assert_eq!(fs::read_to_string(folder.path().join("target.toml.old")).unwrap(), before);
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        }
        // What somebody has written meanwhile stays.
        assert!(replace(&file, Some("new"), "mine").unwrap_err().to_string().contains("just now"));
        assert_eq!(fs::read_to_string(&file).unwrap(), "newer");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left behind");
        // A link stays one, and what is gone is written again.
        let link = folder.path().join("link.toml");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let old = replace(&link, None, "newest").unwrap().unwrap();
        assert!(link.is_symlink() && fs::read_to_string(&file).unwrap() == "newest");
        assert_eq!(fs::read_to_string(old).unwrap(), "newer");
        fs::remove_file(&file).unwrap();
        assert_eq!(replace(&file, None, "again").unwrap(), None);
        assert_eq!(fs::read_to_string(&file).unwrap(), "again");
        assert_eq!(fs::read_to_string(folder.path().join("target.toml.old")).unwrap(), "newer");
    }
}
