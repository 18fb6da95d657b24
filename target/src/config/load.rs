//! Reading a configuration from a file or a pipe, within a limit if the mount does not answer.

use std::fs::{self, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use nix::fcntl::OFlag;
use ringfab_base::VisiblePath as _;

use super::check::check;
use super::error::Credentials;
use super::places::Looks;
use super::{Config, ConfigErrors};
use crate::worker;

/// How long reading the file may take. Who writes it through a pipe is about to.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// Bytes of a configuration; one for thousands of namespaces has far less.
const BYTES_MAX: u64 = 16 << 20;

/// How long looks at the disks may take, all together; what is not seen then is looked at when it is opened.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// What a configuration may be read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// A file, or a pipe that somebody writes to.
    Any,
    /// A file that is there whenever it is read.
    RegularFile,
}

/// The text of a file.
pub(super) fn text(path: &Path, input: Input) -> Result<String, ConfigErrors> {
    let at = path.to_owned();
    let text = worker::within("reading", path, READ_LIMIT, move || read(&at, input)).map_err(io::Error::from);
    let text = match text {
        // Without a thread for it nothing bounds the wait; whoever needs one next says that there is none.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => read(path, input),
        text => text.flatten(),
    };
    text.map_err(|source| ConfigErrors::Read { path: path.to_owned(), source })
}

pub(super) fn load(path: &Path, credentials: Credentials, input: Input) -> Result<Config, ConfigErrors> {
    let text = text(path, input)?;
    let looks = Looks::new(LOOK_LIMIT);
    let file = std::path::absolute(path).ok();
    let checked = check(&text, file.as_deref(), &|path| looks.at(path), credentials);
    checked.map_err(|errors| ConfigErrors::Invalid { file: path.visible().to_string(), errors })
}

fn read(path: &Path, input: Input) -> io::Result<String> {
    let refused = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {what}")));
    let refuse = |kind: FileType| match () {
        () if kind.is_dir() => refused("a directory"),
        () if kind.is_socket() => refused("a socket"),
        () if kind.is_char_device() || kind.is_block_device() => refused("a device"),
        () if kind.is_fifo() && input == Input::RegularFile => {
            refused("a FIFO, and what a target reads again must be a regular file")
        }
        () => Ok(()),
    };
    refuse(fs::metadata(path)?.file_type())?;
    let mut options = OpenOptions::new();
    if input == Input::RegularFile {
        // What has become a FIFO meanwhile is no reason to wait: whoever waits for ever keeps all others from the file.
        options.custom_flags(OFlag::O_NONBLOCK.bits());
    }
    let file = options.read(true).open(path)?;
    refuse(file.metadata()?.file_type())?;
    let mut text = String::new();
    file.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > BYTES_MAX {
        refused(&format!("longer than {} MiB", BYTES_MAX >> 20))?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn config(folder: &Path, namespaces: &str) -> Result<Config, ConfigErrors> {
        let path = folder.join("target.toml");
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2026-11.org.ringfab:a\"\n\
             allow_any_host = true\n{namespaces}"
        );
        fs::write(&path, text).expect("a configuration");
        load(&path, Credentials::Needed, Input::Any)
    }

    #[test]
    fn a_disk_with_two_names_is_named_unless_it_is_meant() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = folder.path().join("disk");
        fs::write(&disk, [0; 512]).expect("a file");
        let soft = folder.path().join("soft");
        symlink(&disk, &soft).expect("a link");
        let two = |more: &str| {
            let table = |path: &Path| format!("[[subsystem.namespace]]\npath = {path:?}\n{more}");
            config(folder.path(), &(table(&disk) + &table(&soft)))
        };
        let error = two("").expect_err("one disk").to_string();
        assert!(
            error.contains("subsystem[0].namespace[1].path: is the same disk as in line 7 (inode "),
            "{error}"
        );
        assert!(error.contains("shared = true"), "{error}");
        assert!(two("shared = true\n").is_ok());
        assert!(two("read_only = true\n").is_ok());
    }

    #[test]
    fn a_configuration_that_cannot_be_read_is_no_reason_to_wait() {
        let folder = tempfile::tempdir().expect("a folder");
        let error =
            load(folder.path(), Credentials::Needed, Input::Any).expect_err("a directory").to_string();
        assert!(error.contains("it is a directory"), "{error}");
        let error =
            load(Path::new("/dev/zero"), Credentials::Needed, Input::Any).expect_err("a device").to_string();
        assert!(error.contains("it is a device"), "{error}");
        let fifo = folder.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        let error = load(&fifo, Credentials::Needed, Input::Any).expect_err("nobody writes").to_string();
        assert!(error.contains("has not returned within 5 s"), "{error}");
        // One that is read again must be there whenever it is, so that nobody waits, and later reads find the file.
        for _ in 0..2 {
            let began = std::time::Instant::now();
            let third = folder.path().join("third");
            let _made = nix::unistd::mkfifo(&third, nix::sys::stat::Mode::S_IRWXU);
            let error =
                load(&third, Credentials::Needed, Input::RegularFile).expect_err("a FIFO").to_string();
            assert!(error.contains("it is a FIFO"), "{error}");
            fs::remove_file(&third).expect("removed");
            fs::write(&third, "nonsense = true\n").expect("a file");
            let error =
                load(&third, Credentials::Needed, Input::RegularFile).expect_err("nonsense").to_string();
            assert!(error.contains("nonsense"), "{error}");
            fs::remove_file(&third).expect("removed");
            assert!(began.elapsed() < READ_LIMIT);
        }
        // One that somebody writes to is a configuration as any other.
        let second = folder.path().join("second");
        nix::unistd::mkfifo(&second, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        std::thread::scope(|scope| {
            scope.spawn(|| fs::write(&second, "nonsense = true\n"));
            let error = load(&second, Credentials::Needed, Input::Any).expect_err("nonsense").to_string();
            assert!(error.contains("nonsense"), "{error}");
        });
    }
}
