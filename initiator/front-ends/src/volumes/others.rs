//! What other users have mounted, which only they and root may end.

use std::path::Path;

use nix::unistd::{Uid, User, geteuid};
use ringfab_base::{VisiblePath as _, shell_word, visible};

use crate::fuse::mount_point;
use crate::mounts::holders::Mount;

/// What is said of a mount of ours that another user has made; none if it is no such mount. `sudo` is the command that
/// does as root what was wanted.
pub(crate) fn described(mount: &Mount, sudo: &str) -> Option<String> {
    let me = geteuid();
    let owner = Uid::from_raw(mount_point::owner(mount)?);
    // Root has what it takes to end all of them.
    if owner == me || me.is_root() {
        return None;
    }
    let (shown, who) = (mount.at.visible(), name(owner));
    let (command, sudo) = match mount_point::is_ours(mount) {
        true => ("fuse", format!("sudo umount {}", shell_word(mount.at.to_string_lossy()))),
        false => ("mount", sudo.to_owned()),
    };
    Some(format!("{shown} was mounted by {who} with `ringfab {command}`: `{sudo}`"))
}

/// The command of ours for a directory, as root.
pub(crate) fn sudo(command: &str, directory: &Path) -> String {
    format!("sudo ringfab {command} {}", shell_word(directory.to_string_lossy()))
}

/// Where to look for what is not there, as far as this user sees it.
pub(crate) fn where_to_look() -> &'static str {
    match geteuid().is_root() {
        true => "`ringfab list` shows what is",
        false => "`ringfab list` shows what this user has attached, and `sudo ringfab list` what root has",
    }
}

/// A user for people.
fn name(user: Uid) -> String {
    let named = User::from_uid(user).ok().flatten().map(|found| found.name);
    match named {
        Some(name) if user.is_root() => visible(name).to_string(),
        Some(name) => format!("user {} (uid {user})", visible(name)),
        None => format!("uid {user}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_name_or_a_number() {
        assert_eq!(name(Uid::from_raw(0)), "root");
        assert_eq!(name(Uid::from_raw(u32::MAX - 7)), format!("uid {}", u32::MAX - 7));
    }
}
