//! Files that a program makes again and again, for other programs that read them: each appears whole, and takes the
//! place of none but one of its own kind. A path of a configuration or a command line may be a slip, and what is there
//! somebody's only copy.

use std::fs::{self, File, FileType, Metadata, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use ringfab_base::VisiblePath as _;

/// How much of a file says what it is.
const HEAD_BYTES: u64 = 128;

/// What the name of a file ends in that is not whole yet. Nobody takes it for one that is.
pub const DRAFT: &str = ".new";

/// What a file is for.
#[derive(Debug)]
pub struct Kind {
    /// For people: what it has instead of what another file has.
    pub what: &'static str,
    /// Whether a file that begins so is one, or the beginning of one.
    pub is_one: fn(&[u8]) -> bool,
}

/// A file that was made. It can be removed, and another one with its name cannot.
#[derive(Debug)]
pub struct MadeFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl MadeFile {
    /// What was just made.
    ///
    /// # Errors
    /// The system's, also when nothing is there.
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(Self::of(path, &fs::symlink_metadata(path)?))
    }

    fn of(path: &Path, found: &Metadata) -> Self {
        Self { path: path.to_owned(), device: found.dev(), inode: found.ino() }
    }

    /// Removes it, unless another one has its name by now.
    ///
    /// # Errors
    /// The system's, and that another one has its name.
    pub fn remove(&self) -> io::Result<()> {
        let found = fs::symlink_metadata(&self.path)?;
        if (found.dev(), found.ino()) != (self.device, self.inode) {
            return Err(io::Error::other("another file has its name"));
        }
        fs::remove_file(&self.path)
    }
}

/// What is made first, beside its place, and then gets its name.
pub fn draft(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

/// Puts a new file in the place of an old one of its kind, or of none. Everybody may read it, whatever the file mode
/// creation mask.
///
/// # Errors
/// The system's, and what is there that is not to be replaced.
pub fn replace(path: &Path, suffix: &str, kind: &Kind, text: &str) -> io::Result<MadeFile> {
    may_replace(path, kind)?;
    let draft = draft(path, suffix);
    // One that was left behind, or somebody's.
    if may_replace(&draft, kind).map_err(|error| error_of(&draft, &error))? {
        fs::remove_file(&draft)?;
    }
    // Exclusively: a link that is put there meanwhile leads nowhere.
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let made = write(&mut file, text).and_then(|()| file.metadata()).and_then(|metadata| {
        fs::rename(&draft, path)?;
        Ok(MadeFile::of(path, &metadata))
    });
    if made.is_err() {
        let _half = fs::remove_file(&draft);
    }
    made
}

fn write(file: &mut File, text: &str) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(text.as_bytes())
}

/// Whether a file is there. It waits for nobody.
///
/// # Errors
/// The system's, and why it is not one that may be replaced.
pub fn may_replace(path: &Path, kind: &Kind) -> io::Result<bool> {
    let refused = |why: String| Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        found => found?.file_type(),
    };
    if !found.is_file() {
        return refused(format!("what is there is {}, and is not replaced", kind_of(found)));
    }
    // What has become something else meanwhile is no reason to wait, and is not followed.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    let mut head = Vec::new();
    if file.metadata()?.is_file() {
        file.take(HEAD_BYTES).read_to_end(&mut head)?;
    }
    if (kind.is_one)(&head) {
        return Ok(true);
    }
    refused(format!("what is there has no {}, and is not replaced", kind.what))
}

fn error_of(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.visible()))
}

fn kind_of(found: FileType) -> &'static str {
    match () {
        () if found.is_symlink() => "a link",
        () if found.is_dir() => "a directory",
        () if found.is_fifo() => "a FIFO",
        () if found.is_socket() => "a socket",
        () => "a device",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const KIND: Kind = Kind {
        what: "numbers",
        is_one: |head| head.iter().all(|byte| byte.is_ascii_digit() || *byte == b'\n'),
    };

    #[test]
    fn a_file_is_replaced_as_a_whole_and_removed_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("numbers");
        fs::write(&path, "").expect("an empty file");
        let first = replace(&path, ".new", &KIND, "12345\n").expect("written");
        let old = File::open(&path).expect("the file");
        // One that was left behind is no reason to stop.
        fs::write(folder.path().join("numbers.new"), "12").expect("a file");
        let second = replace(&path, ".new", &KIND, "6\n").expect("written");
        assert_eq!(fs::read_to_string(&path).expect("the file"), "6\n");
        assert_eq!(io::read_to_string(old).expect("the old file"), "12345\n");
        assert_eq!(fs::metadata(&path).expect("the file").permissions().mode() & 0o777, 0o644);
        assert!(first.remove().is_err() && path.exists(), "it is another one");
        assert!(second.remove().is_ok() && second.remove().is_err());
        assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 0);
        assert!(replace(&folder.path().join("missing/x"), ".new", &KIND, "").is_err());
    }

    #[test]
    fn what_is_of_another_kind_stays_and_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("numbers");
        let [disk, fifo, link] = ["disk", "fifo", "link"].map(|name| folder.path().join(name));
        fs::write(&disk, [0; 4096]).expect("a disk");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        symlink(&path, &link).expect("a link");
        fs::write(&path, "1").expect("a file of this kind");
        for (place, why) in [
            (&disk, "has no numbers"),
            (&fifo, "is a FIFO"),
            (&link, "is a link"),
            (&folder.path().to_owned(), "is a directory"),
            (&PathBuf::from("/dev/null"), "is a device"),
        ] {
            let error = replace(place, ".new", &KIND, "2").expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(fs::read(&disk).expect("the disk"), [0; 4096]);
        // Nor is what stands where the draft would be, not even through a link.
        let draft = folder.path().join("numbers.new");
        symlink(&disk, &draft).expect("a link");
        let error = replace(&path, ".new", &KIND, "2").expect_err("a link").to_string();
        assert!(error.contains("numbers.new: what is there is a link"), "{error}");
        fs::remove_file(&draft).expect("removed");
        fs::rename(&disk, &draft).expect("moved");
        assert!(replace(&path, ".new", &KIND, "2").is_err());
        assert_eq!(fs::read(&draft).expect("the disk"), [0; 4096]);
        assert_eq!(fs::read_to_string(&path).expect("the file"), "1");
    }
}
