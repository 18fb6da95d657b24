//! Files with secrets: made anew, whole at once, and at no moment for anybody but their owner.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, chown, fchown};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use ringfab_base::VisiblePath as _;

use crate::made_file::{DRAFT, MadeFile};

/// The most files whose names differ by their number alone.
const NUMBERS: u32 = 1000;

/// The user as whom this process runs.
pub fn this_user() -> u32 {
    geteuid().as_raw()
}

/// The folder for files with secrets of a user. It is made, for that user alone, if it is not there.
///
/// # Errors
/// The system's, and why the user could not read what is there.
pub fn folder_of(folder: &Path, owner: u32) -> io::Result<()> {
    let refused = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    match DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) if owner != this_user() => return chown(folder, Some(owner), None),
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let found = fs::metadata(folder)?;
    if !found.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotADirectory, "it is not a directory"));
    }
    // A group may be anybody's; who is in it is not looked at.
    if owner != 0 && found.uid() != owner && found.mode() & 0o011 == 0 {
        let (mode, shown) = (found.mode() & 0o777, folder.visible());
        return refused(format!("it is closed to user {owner} (mode {mode:04o}): chown {owner} {shown}"));
    }
    Ok(())
}

/// Makes a file of mode 0600 for a user. If one of the name is there, the new one has a number, so that none is
/// overwritten. Its name appears once all of it is there.
///
/// # Errors
/// The system's; nothing is left behind then.
pub fn make(
    folder: &Path,
    [stem, ending]: [&str; 2],
    owner: u32,
    content: &[u8],
) -> io::Result<(PathBuf, MadeFile)> {
    let draft = folder.join(format!(".{stem}{ending}-{}{DRAFT}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let made = write(&mut file, owner, content).and_then(|()| name(&draft, folder, [stem, ending]));
    let removed = fs::remove_file(&draft);
    let path = made?;
    removed?;
    File::open(folder)?.sync_all()?;
    let made = MadeFile::at(&path)?;
    Ok((path, made))
}

fn write(file: &mut File, owner: u32, content: &[u8]) -> io::Result<()> {
    // Before there is anything to read in it.
    if owner != this_user() {
        fchown(&*file, Some(owner), None)?;
    }
    file.write_all(content)?;
    file.sync_all()
}

/// Gives the file the first name that is free.
fn name(draft: &Path, folder: &Path, [stem, ending]: [&str; 2]) -> io::Result<PathBuf> {
    for number in 1..=NUMBERS {
        let number = if number == 1 { String::new() } else { format!(".{number}") };
        let path = folder.join(format!("{stem}{number}{ending}"));
        match fs::hard_link(draft, &path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("there are {NUMBERS} files of this name")))
}

/// Writes a text that others choose as a part of the name of a file. Different texts have different names.
pub fn name_of(text: &str) -> String {
    let is_plain = |one: char| one.is_ascii_alphanumeric() || "._:-".contains(one);
    if !text.is_empty() && text.chars().all(is_plain) && !text.starts_with(['.', '-']) {
        return text.to_owned();
    }
    let plain: String =
        text.chars().map(|one| if is_plain(one) { one } else { '_' }).take(NAME_MAX).collect();
    format!("host-{plain}-{:016x}", hash(text))
}

/// Characters of a name that is not taken as it is.
const NAME_MAX: usize = 160;

/// FNV-1a, of 64 bits.
fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_is_for_its_owner_alone_and_none_is_overwritten() {
        let parent = tempfile::tempdir().expect("a folder");
        let (folder, user) = (parent.path().join("keys"), this_user());
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        for _ in 0..2 {
            folder_of(&folder, user).expect("a folder");
        }
        assert_eq!(mode(&folder), 0o700);
        let names = ["a.keys", "a.2.keys", "a.3.keys"];
        for expected in names {
            let (path, _made) = make(&folder, ["a", ".keys"], user, expected.as_bytes()).expect("made");
            assert_eq!((path.file_name(), mode(&path)), (Some(expected.as_ref()), 0o600));
        }
        for name in names {
            assert_eq!(fs::read_to_string(folder.join(name)).expect("the file"), name);
        }
        assert_eq!(fs::read_dir(&folder).expect("a folder").count(), names.len(), "no draft is left");
        assert!(make(&folder, ["a/b", ".keys"], user, b"").is_err());
        // A link that somebody has put there is not followed, and what it leads to stays.
        let (victim, link) = (parent.path().join("victim"), folder.join("b.keys"));
        std::os::unix::fs::symlink(&victim, &link).expect("a link");
        let (path, made) = make(&folder, ["b", ".keys"], user, b"new").expect("made");
        assert!(path.ends_with("b.2.keys") && !victim.exists());
        made.remove().expect("removed");
        assert!(!path.exists());
        // Nobody but its owner gets into the folder.
        let refused = folder_of(&folder, user + 1).expect_err("closed").to_string();
        assert!(user + 1 == 0 || refused.contains("(mode 0700): chown "), "{refused}");
        fs::write(parent.path().join("file"), "").expect("a file");
        assert!(folder_of(&parent.path().join("file"), user).is_err());
    }

    #[test]
    fn root_makes_a_file_for_another_user() {
        if this_user() != 0 {
            return;
        }
        let parent = tempfile::tempdir().expect("a folder");
        let folder = parent.path().join("keys");
        folder_of(&folder, 12345).expect("a folder");
        let (path, _made) = make(&folder, ["a", ".keys"], 12345, b"secret").expect("made");
        for place in [&folder, &path] {
            assert_eq!(fs::metadata(place).expect("it is there").uid(), 12345);
        }
        assert_eq!(fs::metadata(&path).expect("it is there").mode() & 0o777, 0o600);
    }

    #[test]
    fn names_are_plain_and_differ() {
        let plain = "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6";
        assert_eq!(name_of(plain), plain);
        let texts = ["", ".", "..", "../a", "a/b", "a b", "a\u{e9}", "-a", "a\nb"];
        let names: Vec<String> = texts.iter().map(|text| name_of(text)).collect();
        for (at, name) in names.iter().enumerate() {
            assert!(
                name.starts_with("host-") && name.is_ascii() && !name.contains(['/', ' ', '\n']),
                "{name}"
            );
            assert!(!names[..at].contains(name), "{name}");
        }
        assert!(name_of(&"\u{e9}".repeat(223)).len() < 200);
    }
}
