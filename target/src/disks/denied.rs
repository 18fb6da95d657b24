//! Why the system denies a disk, and what to do about it.
//!
//! The system says "Permission denied" or "Read-only file system". Whoever reads that has to know of which user the
//! file is, which directory on the way is closed, and what a unit of systemd hides.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use nix::errno::Errno;
use nix::unistd::{AccessFlags, Gid, Group, Uid, User, eaccess, geteuid};
use ringfab_base::VisiblePath as _;

/// Directories that a unit with `ProtectHome=` hides.
const HOMES: [&str; 3] = ["/home", "/root", "/run/user"];

/// The example of a drop-in that opens other directories, where packages install it.
const DROP_IN: &str = "/usr/share/doc/ringfab-target/drop-ins/other-folders.conf";

/// What to do if the system denies a disk with this error, or nothing to say beyond the error. It looks at the path,
/// which may take as long as a file system does.
pub(crate) fn remedy(path: &Path, error: &io::Error) -> Option<String> {
    match Errno::from_raw(error.raw_os_error()?) {
        // The superuser is denied by something else than owner and mode.
        Errno::EACCES if !geteuid().is_root() => Some(no_access(path, geteuid())),
        Errno::EROFS => Some(read_only_file_system(path)),
        Errno::EPERM => not_permitted(path),
        _ => None,
    }
}

fn no_access(path: &Path, user: Uid) -> String {
    let user = name_of(user);
    if let Some(folder) = closed_folder(path) {
        return closed(folder, &user);
    }
    let Ok(metadata) = fs::metadata(path) else {
        return format!("a directory that its link leads through is closed to {user}, who runs this");
    };
    let (owner, mode) = (name_of(metadata.uid().into()), metadata.mode() & 0o777);
    let group = name_of_group(metadata.gid().into());
    let found = format!("it is of {owner}:{group} with mode {mode:04o}, and {user} runs this");
    match metadata.file_type().is_block_device() && mode & 0o060 == 0o060 {
        true => format!(
            "{found}, who is not in that group: write SupplementaryGroups={group} below [Service] in a drop-in \
             (systemctl edit ringfab-target)"
        ),
        false => format!("{found}: chown {user} {}", path.visible()),
    }
}

/// The first directory on the way that lets this user not pass.
fn closed_folder(path: &Path) -> Option<&Path> {
    let mut folders: Vec<&Path> = path.ancestors().skip(1).collect();
    folders.reverse();
    folders.into_iter().find(|folder| eaccess(*folder, AccessFlags::X_OK) == Err(Errno::EACCES))
}

fn closed(folder: &Path, user: &str) -> String {
    let shown = folder.visible();
    let Ok(metadata) = fs::metadata(folder) else {
        return format!("the directory {shown} is closed to {user}, who runs this");
    };
    let mode = metadata.mode() & 0o777;
    if mode == 0 && HOMES.iter().any(|home| Path::new(home) == folder) {
        return format!(
            "the unit hides {shown} (ProtectHome=yes): keep the disk elsewhere, or write ProtectHome=no below \
             [Service] in a drop-in (systemctl edit ringfab-target)"
        );
    }
    let owner = name_of(metadata.uid().into());
    format!(
        "the directory {shown} is of {owner} with mode {mode:04o}, and {user} runs this: chmod o+x {shown}"
    )
}

fn read_only_file_system(path: &Path) -> String {
    let folder = path.parent().unwrap_or(path).visible();
    format!(
        "if the file system is not mounted read-only, the unit protects it (ProtectSystem=strict): write \
         ReadWritePaths={folder} below [Service] in a drop-in (systemctl edit ringfab-target; {DROP_IN} is an \
         example). Or write read_only = true for the namespace"
    )
}

fn not_permitted(path: &Path) -> Option<String> {
    let kind = fs::metadata(path).ok()?.file_type();
    let shown = path.visible();
    Some(match kind.is_block_device() {
        true => format!(
            "if this is a service, its unit has to allow the device: write DeviceAllow={shown} rw below [Service] in a \
             drop-in (systemctl edit ringfab-target)"
        ),
        false => {
            format!("the file may be immutable: lsattr {shown} shows i then, and chattr -i {shown} ends it")
        }
    })
}

/// A user as people know it.
pub(crate) fn name_of(user: Uid) -> String {
    let known = User::from_uid(user).ok().flatten();
    known.map_or_else(|| format!("user {user}"), |user| user.name)
}

fn name_of_group(group: Gid) -> String {
    let known = Group::from_gid(group).ok().flatten();
    known.map_or_else(|| group.to_string(), |group| group.name)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn said(path: &Path, errno: Errno) -> Option<String> {
        remedy(path, &io::Error::from(errno))
    }

    #[test]
    fn an_error_that_says_all_has_no_remedy() {
        assert_eq!(said(Path::new("/nonexistent"), Errno::ENOENT), None);
        assert_eq!(remedy(Path::new("/"), &io::Error::other("no error of the system")), None);
    }

    #[test]
    fn a_read_only_file_system_leads_to_the_unit() {
        let said = said(Path::new("/mnt/disks/a.img"), Errno::EROFS).expect("a remedy");
        assert!(said.contains("ReadWritePaths=/mnt/disks below") && said.contains(DROP_IN), "{said}");
    }

    #[test]
    fn a_file_that_may_not_be_changed_by_anybody_leads_to_its_attributes() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let said = said(file.path(), Errno::EPERM).expect("a remedy");
        assert!(said.contains("chattr -i"), "{said}");
    }

    #[test]
    fn what_a_directory_hides_is_said_with_the_directory() {
        let folder = tempfile::tempdir().expect("a directory");
        fs::set_permissions(folder.path(), Permissions::from_mode(0o700)).expect("changed");
        // Of a user that this machine does not know.
        let said = closed(folder.path(), "ringfab");
        assert!(said.contains("with mode 0700, and ringfab runs this: chmod o+x "), "{said}");
        assert_eq!(
            closed(Path::new("/nonexistent"), "ringfab"),
            "the directory /nonexistent is closed to ringfab, who runs this"
        );
        assert_eq!(name_of(Uid::from_raw(4_000_000)), "user 4000000");
    }

    #[test]
    fn owner_and_mode_of_a_file_are_said_with_what_to_do() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let said = no_access(file.path(), Uid::from_raw(4_000_000));
        let asked = format!("chown user 4000000 {}", file.path().display());
        assert!(
            said.contains("with mode 0600, and user 4000000 runs this") && said.ends_with(&asked),
            "{said}"
        );
    }
}
