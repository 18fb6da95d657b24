//! What is to be mounted, and where.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use nix::unistd::geteuid;
use ringfab_base::VisiblePath as _;
use ringfab_initiator::Url;

use super::MountArgs;
use crate::context::Usage;
use crate::fuse::holders::Mount;
use crate::fuse::mount_point;
use crate::options::ConnectArgs;
use crate::precedence::Twin;
use crate::registry::{Claim, Entry, Facts};

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
}

impl Plan {
    /// Looks at the options, and at this machine as far as nothing is attached for it.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn new(args: &MountArgs) -> Result<Self> {
        let mut url: Url = args.source.parse().map_err(|error| Usage(format!("{error}")))?;
        if url.is_discovery() {
            return Err(
                Usage(format!("{url} names no subsystem; `ringfab discover {url}` lists them")).into()
            );
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
        let name = entry_name(&directory);
        Ok(Self { connect, directory, name, read_only, options: rest })
    }

    /// Whether this process may mount, and the directory is one to mount on.
    ///
    /// # Errors
    /// What is in the way, and what to do.
    pub(super) fn check_machine(&self) -> Result<()> {
        let shown = self.directory.visible();
        ensure!(
            geteuid().is_root(),
            "mounting a file system needs root; `ringfab fuse` and `ringfab nbd` do not"
        );
        ensure!(
            Path::new("/dev/fuse").exists(),
            "there is no /dev/fuse (the kernel's module fuse); `ringfab nbd` and nbd-client make a disk without it"
        );
        mount_point::remove_dead(&self.directory)?;
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
        match Entry::claim(&self.name)? {
            Claim::Ours(entry, before) => Ok((entry, before)),
            Claim::Taken(facts) => Err(Taken { directory: self.directory.clone(), facts }.into()),
        }
    }
}

/// Somebody has this directory already.
#[derive(Debug, thiserror::Error)]
#[error("{}", taken(directory, facts.as_ref()))]
pub(super) struct Taken {
    directory: PathBuf,
    pub(super) facts: Option<Facts>,
}

fn taken(directory: &Path, facts: Option<&Facts>) -> String {
    let shown = directory.visible();
    match facts {
        Some(facts) if facts.device.is_some() => {
            format!("{shown} is mounted already, from {} (process {})", facts.address, facts.pid)
        }
        Some(facts) => format!("{shown} is just being mounted or unmounted by process {}", facts.pid),
        None => format!("{shown} is just being mounted or unmounted by another process"),
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
    fn a_directory_has_a_name_of_its_own() {
        assert_eq!(entry_name(Path::new("")), "mount-cbf29ce484222325");
        assert_eq!(entry_name(Path::new("a")), "mount-af63dc4c8601ec8c");
        assert_ne!(entry_name(Path::new("/a")), entry_name(Path::new("/b")));
        let options = ["noatime", "ro"].map(str::to_owned);
        assert_eq!(without_ro(&options), ("noatime".to_owned(), true));
    }
}
