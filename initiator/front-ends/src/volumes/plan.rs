//! What is to be mounted, and where.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use nix::unistd::geteuid;
use ringfab_base::{VisiblePath as _, shell_word};
use ringfab_initiator::Url;

use super::{MountArgs, step};
use crate::context::Usage;
use crate::fuse::mount_point;
use crate::mounts::holders::Mount;
use crate::options::ConnectArgs;
use crate::precedence::Twin;
use crate::programs;
use crate::registry::{self, Claim, Entry, Facts, Standing};

/// How often an entry is asked for whose owner has just ended: somebody else may be faster.
const ATTEMPTS: usize = 5;
/// What keys begin with.
const KEYS: [&str; 2] = ["DHHC-1:", "NVMeTLSkey-1:"];

/// What `ringfab mount` was told, after it was looked at.
pub(super) struct Plan {
    pub(super) connect: ConnectArgs,
    /// As the kernel lists it.
    pub(super) directory: PathBuf,
    /// Of the entry, and of the folder for the file.
    pub(super) name: String,
    pub(super) read_only: bool,
    /// For mount(8).
    pub(super) options: String,
    /// The file system to be made.
    mkfs: Option<String>,
    fsck: bool,
}

impl Plan {
    /// Looks at the options, and at this machine as far as nothing is attached for it.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn new(args: &MountArgs) -> Result<Self> {
        let mut url: Url = args.source.parse().map_err(|error| Usage(format!("{error}")))?;
        if url.is_discovery() {
            return Err(Usage(format!(
                "{url} names no subsystem; `ringfab discover {}` lists them",
                shell_word(&url)
            ))
            .into());
        }
        url.namespace = Twin::new("nsid", "ns").settle(args.nsid, url.namespace, u32::to_string);
        let Some(directory) = &args.directory else {
            return Err(Usage("where to mount is missing: ringfab mount ADDRESS DIRECTORY".to_owned()).into());
        };
        let (rest, read_only) = without_ro(&args.options);
        let read_only = args.read_only || read_only;
        if read_only && args.mkfs.is_some() {
            return Err(Usage("--mkfs writes, and this is to be read only".to_owned()).into());
        }
        let connect = ConnectArgs::new(url, args.tuning.clone());
        // Keys are read now, by whoever waits for an answer.
        connect.connect_options()?;
        let directory = mount_point::absolute(directory)?;
        refuse_place(&directory)?;
        refuse_options(&args.options)?;
        let name = entry_name(&directory);
        let (mkfs, fsck) = (args.mkfs.clone(), args.fsck);
        Ok(Self { connect, directory, name, read_only, options: rest, mkfs, fsck })
    }

    /// The programs that this needs. A file system may ask for another one, once it is known.
    fn check_programs(&self) -> Result<()> {
        let fsck = self.fsck.then(|| "fsck".to_owned());
        let maker = self.mkfs.as_deref().map(step::maker).transpose()?;
        let mut named = ["blkid", "mount", "umount"].map(str::to_owned).into_iter().chain(fsck).chain(maker);
        named.try_for_each(|program| programs::ensure_there(&program))
    }

    /// Whether this process may mount, and the directory is one to mount on, or can be one.
    ///
    /// # Errors
    /// What is in the way, and what to do.
    pub(super) fn check_machine(&self) -> Result<()> {
        let shown = self.directory.visible();
        ensure!(
            geteuid().is_root(),
            "mounting a file system needs root (sudo); `ringfab fuse` and `ringfab nbd` do not"
        );
        ensure!(
            Path::new("/dev/fuse").exists(),
            "there is no /dev/fuse (the kernel's module: `modprobe fuse`); `ringfab nbd` and nbd-client (the package \
             nbd-client) make a disk without it"
        );
        self.check_programs()?;
        mount_point::remove_dead(&self.directory)?;
        if is_missing(&self.directory) {
            return Ok(());
        }
        let found = self.directory.metadata().with_context(|| format!("mount on {shown}"))?;
        ensure!(found.is_dir(), "{shown} is not a directory");
        match Mount::at(&self.directory) {
            // It waits for this mount.
            Some(mount) if mount.kind == "autofs" => Ok(()),
            Some(mount) => bail!("{shown} has a file system already: {} of {}", mount.kind, mount.source),
            None => Ok(()),
        }
    }

    /// The entry, and what a killed keeper has left in it.
    ///
    /// # Errors
    /// Who has this directory already.
    pub(super) fn claim(&self) -> Result<(Entry, Option<Facts>)> {
        for _ in 0..ATTEMPTS {
            let facts = match Entry::claim(&self.name)? {
                Claim::Ours(entry, before) => return Ok((entry, before)),
                Claim::Taken(facts) => facts,
            };
            // One that is about to end is waited for, and so is one that says nothing yet.
            let standing = registry::entry(&self.name)?.map(|found| found.settled());
            if standing != Some(Standing::Over) {
                return Err(Taken { directory: self.directory.clone(), facts, standing }.into());
            }
        }
        Err(Taken { directory: self.directory.clone(), facts: None, standing: None }.into())
    }
}

/// Whether nothing is at a path, so that a directory can be made there.
pub(super) fn is_missing(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Somebody has this directory already.
#[derive(Debug, thiserror::Error)]
#[error("{}", taken(directory, facts.as_ref(), standing.as_ref()))]
pub(super) struct Taken {
    directory: PathBuf,
    facts: Option<Facts>,
    standing: Option<Standing>,
}

impl Taken {
    /// Whether it is mounted there, from this address.
    pub(super) fn is_mounted_from(&self, address: &str) -> bool {
        let is_there = matches!(&self.standing, Some(Standing::Mounted(at)) if at.contains(&self.directory));
        is_there && self.facts.as_ref().is_some_and(|facts| facts.address == address)
    }
}

fn taken(directory: &Path, facts: Option<&Facts>, standing: Option<&Standing>) -> String {
    match facts.zip(standing) {
        Some((facts, standing)) => standing.in_words(facts),
        None => format!("{} is just being mounted or unmounted by another process", directory.visible()),
    }
}

/// The name of a directory's entry: the same for all who mean this directory.
pub(super) fn entry_name(directory: &Path) -> String {
    // FNV-1a. Two directories with one hash could not be mounted at once, and would be told so.
    let hash =
        directory.as_os_str().as_encoded_bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("mount-{hash:016x}")
}

/// What nothing can be mounted over: the machine would have nothing of what it runs with, and this program nothing of
/// what a mount needs.
const NEEDED: [&str; 14] = [
    "/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin", "/sys",
    "/tmp", "/usr",
];
/// Folders whose contents are the kernel's.
const OF_THE_KERNEL: [&str; 3] = ["/dev", "/proc", "/sys"];

/// Refuses a place where a mount would hide what everything needs.
///
/// # Errors
/// Which one it is.
pub(super) fn refuse_place(directory: &Path) -> Result<()> {
    let is_needed = NEEDED.iter().any(|needed| directory == Path::new(needed));
    let is_of_kernel = OF_THE_KERNEL.iter().any(|folder| directory.starts_with(folder));
    if is_needed || is_of_kernel {
        return Err(Usage(format!(
            "{} cannot be where a file system is mounted: it would hide what this machine runs with; choose a \
             directory of its own, such as /srv/data",
            directory.visible()
        ))
        .into());
    }
    Ok(())
}

/// Refuses what is no option of mount(8), whose own sentence would not name it.
fn refuse_options(options: &[String]) -> Result<()> {
    let is_wrong = |option: &&String| {
        let name = option.split('=').next().unwrap_or_default();
        name.is_empty() || name.chars().any(|one| one.is_whitespace() || one.is_control())
    };
    match options.iter().filter(|option| !option.is_empty()).find(is_wrong) {
        Some(wrong) => Err(Usage(format!(
            "`{}` is not a mount option: options are names, or NAME=VALUE, with commas between them",
            wrong.escape_debug()
        ))
        .into()),
        None => Ok(()),
    }
}

/// A mount lasts, and so does a command line, which everybody can read.
///
/// # Errors
/// When a key is among the arguments.
pub(super) fn refuse_keys(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    if arguments.any(|argument| KEYS.iter().any(|key| argument.contains(key))) {
        return Err(Usage(
            "a key is on the command line, which everybody could read as long as it is mounted; put it into a file, \
             and write file:/path"
                .to_owned(),
        )
        .into());
    }
    Ok(())
}

/// The options for mount(8), and whether they say that it is read only.
fn without_ro(options: &[String]) -> (String, bool) {
    let rest: Vec<&str> = options.iter().map(String::as_str).filter(|option| *option != "ro").collect();
    (rest.join(","), rest.len() < options.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_does_not_stay_on_a_command_line() {
        let refused = |text: &str| refuse_keys([text.to_owned()].into_iter()).is_err();
        assert!(refused("--dhchap-key=DHHC-1:00:abc:") && refused("NVMeTLSkey-1:01:abc:"));
        assert!(!refused("--tls-key=file:/etc/keys/tls"));
    }

    #[test]
    fn a_place_that_everything_needs_is_refused() {
        for place in ["/", "/dev", "/proc/fs", "/sys/x", "/etc", "/usr", "/run"] {
            let error = refuse_place(Path::new(place)).expect_err(place);
            assert!(
                error.is::<Usage>() && error.to_string().starts_with(&format!("{place} cannot be where"))
            );
        }
        for place in ["/srv", "/home", "/mnt", "/etc/x", "/usr/local", "/var/lib/x", "/tmp/x", "/development"]
        {
            assert!(refuse_place(Path::new(place)).is_ok(), "{place}");
        }
    }

    #[test]
    fn what_is_no_mount_option_is_named() {
        let refused = |option: &str| refuse_options(&["noatime".to_owned(), option.to_owned()]);
        for wrong in ["noatime ro", "=x", "a\tb"] {
            let error = refused(wrong).expect_err(wrong).to_string();
            assert!(
                error.starts_with(&format!("`{}` is not a mount option", wrong.escape_debug())),
                "{error}"
            );
        }
        for option in ["", "ro", "subvol=my folder", "context=\"a b\"", "c2\"", "data=writeback"] {
            assert!(refused(option).is_ok(), "{option}");
        }
    }

    #[test]
    fn a_directory_has_a_name_of_its_own() {
        assert_eq!(entry_name(Path::new("")), "mount-cbf29ce484222325");
        assert_eq!(entry_name(Path::new("a")), "mount-af63dc4c8601ec8c");
        assert_ne!(entry_name(Path::new("/a")), entry_name(Path::new("/b")));
        let options = ["noatime", "ro"].map(str::to_owned);
        assert_eq!(without_ro(&options), ("noatime".to_owned(), true));
    }
}
