//! Whether a namespace's file or device can be served.

use std::borrow::Cow;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use nix::unistd::{AccessFlags, eaccess};
use ringfab_base::VisiblePath as _;

use super::Finding;
use crate::config::{NamespaceConfig, Source};
use crate::disk_identity::{DiskIdentity, Sharing};
use crate::disks::denied;
use crate::disks::holder::Holder;
use crate::worker;

/// How long a look at a path may take.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// What is wrong with the disk of a namespace.
pub(super) fn findings(nqn: &str, namespace: &NamespaceConfig, serving: Option<u32>) -> Vec<Finding> {
    let Source::File { path, .. } = &namespace.source else { return Vec::new() };
    let what = format!("namespace {} of {nqn}", namespace.nsid);
    let looks = {
        let (path, namespace) = (path.clone(), namespace.clone());
        move || look(&path, &namespace, serving)
    };
    let found = worker::within("looking at", path, LOOK_LIMIT, looks);
    let found = found.unwrap_or_else(|error| vec![(error.to_string(), "see what is mounted there".into())]);
    let described =
        found.into_iter().map(|(message, advice)| Finding { what: what.clone(), message, advice });
    described.collect()
}

/// What is wrong, and what to do.
type Found = (String, Cow<'static, str>);

fn look(path: &Path, namespace: &NamespaceConfig, serving: Option<u32>) -> Vec<Found> {
    let shown = path.visible();
    let (metadata, identity) = match identify(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return vec![(format!("{shown} does not exist"), absence_advice(serving).into())];
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let advice = access_advice(path, &error);
            return vec![(format!("{shown} cannot be reached: {error}"), advice)];
        }
        Err(error) => {
            return vec![(format!("{shown}: {error}"), "name a regular file or a block device".into())];
        }
    };
    let mut found = Vec::new();
    let wanted = if namespace.read_only { AccessFlags::R_OK } else { AccessFlags::R_OK | AccessFlags::W_OK };
    if let Err(error) = eaccess(path, wanted) {
        let how = if namespace.read_only { "read" } else { "read and written" };
        let error = io::Error::from(error);
        found.push((format!("{shown} cannot be {how} by this user: {error}"), access_advice(path, &error)));
    }
    if let Some(bytes) = bytes_of(&metadata) {
        found.extend(size_finding(path, bytes, namespace.block_bytes));
    }
    if Sharing::new(namespace.read_only, namespace.shared) == Sharing::Exclusive
        && let Some(holder) = Holder::found(identity)
        && (holder.process.is_none() || holder.process != serving)
    {
        let advice = "end that, or write shared = true if it is meant";
        found.push((format!("{shown} is in use by {}", holder.text), advice.into()));
    }
    found
}

/// What to do about a path that leads nowhere. An empty file there would take the place of a disk, for hosts with its
/// name and its size gone: so nobody is told to make one but for a disk that is new.
fn absence_advice(serving: Option<u32>) -> &'static str {
    if serving.is_some() {
        return "do not make an empty file there: the target may still serve the disk that has gone from this path \
                (`ringfab-target status` says detached); move it back, mount its file system, or copy it with \
                `ringfab read` before the target restarts";
    }
    "correct the path, mount its file system or bring its device back; make the file only if the disk is a new one \
     (truncate -s SIZE PATH); the namespace is not ready until then"
}

fn access_advice(path: &Path, error: &io::Error) -> Cow<'static, str> {
    let usual = "give the user of the service (ringfab, in the group disk) access to it";
    denied::remedy(path, error).map_or(usual.into(), Cow::from)
}

fn identify(path: &Path) -> io::Result<(Metadata, DiskIdentity)> {
    let metadata = fs::metadata(path)?;
    let identity = DiskIdentity::of(&metadata)?;
    Ok((metadata, identity))
}

/// Size of a file, or of a device without opening it.
fn bytes_of(metadata: &Metadata) -> Option<u64> {
    if !metadata.file_type().is_block_device() {
        return Some(metadata.len());
    }
    let device = metadata.rdev();
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    let sectors: u64 =
        fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/size")).ok()?.trim().parse().ok()?;
    Some(sectors * 512)
}

fn size_finding(path: &Path, bytes: u64, block_bytes: u32) -> Option<Found> {
    let (shown, rest) = (path.visible(), bytes % u64::from(block_bytes));
    match bytes {
        0..512 => Some((
            format!("{shown} has {bytes} bytes"),
            "make it longer; the namespace is not ready until then".into(),
        )),
        _ if rest != 0 => {
            let message = format!("{shown} has {bytes} bytes, the last {rest} of them are not used");
            Some((message, "make its size a multiple of block_bytes".into()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(table: &str) -> NamespaceConfig {
        crate::Config::parse_namespace(&format!("nsid = 1\n{table}")).expect("a namespace")
    }

    /// What is found of a path.
    fn said(path: &Path, more: &str) -> String {
        let namespace = namespace(&format!("path = {path:?}\n{more}"));
        let found = findings("nqn.x", &namespace, None);
        found.iter().map(|one| format!("{one}\n")).collect()
    }

    #[test]
    fn what_cannot_be_served_is_reported_before_somebody_needs_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk");
        assert!(said(&path, "").contains("does not exist"));
        let namespace = namespace(&format!("path = {path:?}"));
        for (serving, advice) in
            [(None, "only if the disk is a new one"), (Some(1), "do not make an empty file there")]
        {
            let found = findings("nqn.x", &namespace, serving);
            assert!(found.len() == 1 && found[0].advice.contains(advice), "{found:?}");
        }
        assert!(said(folder.path(), "").contains("it is a directory"));
        fs::write(&path, [0; 4096]).expect("a file");
        assert_eq!(said(&path, ""), "");
        fs::write(&path, [0; 4097]).expect("a file");
        let odd = said(&path, "");
        assert!(
            odd.starts_with("namespace 1 of nqn.x: ") && odd.contains("the last 1 of them are not used"),
            "{odd}"
        );
        fs::write(&path, []).expect("a file");
        assert!(said(&path, "").contains("has 0 bytes"));
    }

    #[test]
    fn a_file_that_another_program_has_locked_is_reported_unless_it_is_shared() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk");
        fs::write(&path, [0; 4096]).expect("a file");
        let file = fs::File::open(&path).expect("opened");
        file.try_lock_shared().expect("locked");
        let expected = format!("is in use by process {} (", std::process::id());
        assert!(said(&path, "").contains(&expected), "{}", said(&path, ""));
        assert_eq!(said(&path, "shared = true"), "");
        let namespace = namespace(&format!("path = {path:?}"));
        assert_eq!(findings("nqn.x", &namespace, Some(std::process::id())), []);
    }
}
