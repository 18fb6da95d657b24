//! Programs of others that this one runs, where they are, and which package has them.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use ringfab_base::shell_word;

/// Where such programs are, beside `PATH`: what a service manager or mount(8) gives may be short.
const FOLDERS: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The packages of Debian and of what is derived from it.
const PACKAGES: [(&str, &[&str]); 18] = [
    ("e2fsprogs", &["mkfs.ext2", "mkfs.ext3", "mkfs.ext4", "fsck.ext2", "fsck.ext3", "fsck.ext4"]),
    ("xfsprogs", &["mkfs.xfs", "fsck.xfs"]),
    ("btrfs-progs", &["mkfs.btrfs", "fsck.btrfs"]),
    ("f2fs-tools", &["mkfs.f2fs", "fsck.f2fs"]),
    ("dosfstools", &["mkfs.fat", "mkfs.msdos", "mkfs.vfat", "fsck.fat", "fsck.msdos", "fsck.vfat"]),
    ("exfatprogs", &["mkfs.exfat", "fsck.exfat"]),
    ("ntfs-3g", &["mkfs.ntfs", "mount.ntfs", "mount.ntfs-3g"]),
    ("bcachefs-tools", &["mkfs.bcachefs", "fsck.bcachefs", "mount.bcachefs"]),
    ("nilfs-tools", &["mkfs.nilfs2", "mount.nilfs2"]),
    ("jfsutils", &["mkfs.jfs", "fsck.jfs"]),
    ("udftools", &["mkfs.udf"]),
    ("hfsprogs", &["mkfs.hfs", "mkfs.hfsplus", "fsck.hfs", "fsck.hfsplus"]),
    ("gfs2-utils", &["mkfs.gfs2", "fsck.gfs2"]),
    ("ocfs2-tools", &["mkfs.ocfs2", "fsck.ocfs2"]),
    ("util-linux", &["blkid", "fsck", "mkfs.minix", "fsck.minix", "mkfs.bfs", "mkfs.cramfs", "fsck.cramfs"]),
    ("mount", &["mount", "umount"]),
    ("fuse3", &["fusermount3"]),
    ("kmod", &["modprobe"]),
];

/// `PATH` for a program that is run, with the folders in which those of the system are.
pub(crate) fn search_path() -> String {
    std::env::var("PATH").map_or_else(|_| FOLDERS.to_owned(), |path| format!("{path}:{FOLDERS}"))
}

/// Where a program is, if it is there.
fn find(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&search_path()).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Makes sure that a program can be run, before anything is attached for it.
///
/// # Errors
/// Which one is missing, and what to install.
pub(crate) fn ensure_there(program: &str) -> Result<()> {
    ensure!(find(program).is_some(), "{}", missing(program));
    Ok(())
}

/// What is said of a program that is not there.
pub(crate) fn missing(program: &str) -> String {
    match package(program) {
        Some(package) => format!(
            "there is no program {program} on this machine; on Debian and Ubuntu, `apt install {package}` brings it"
        ),
        None => format!(
            "there is no program {program} on this machine; install the package that has it (on Debian and Ubuntu, \
             `apt-file search bin/{program}` names it)"
        ),
    }
}

/// What is said where neither the kernel nor a program mounts this kind of file system.
pub(crate) fn without_file_system(kind: &str) -> String {
    let module = format!("; the kernel's module for it may be missing: `modprobe {}`", shell_word(kind));
    match package(&format!("mount.{kind}")) {
        Some(package) => {
            format!("{module}; or its program: on Debian and Ubuntu, `apt install {package}` brings it")
        }
        None => module,
    }
}

/// The package that has a program.
fn package(program: &str) -> Option<&'static str> {
    PACKAGES.iter().find(|(_, programs)| programs.contains(&program)).map(|(package, _)| *package)
}

/// The program that another one has not found: fsck(8) runs one for each kind of file system.
pub(crate) fn named_as_missing(said: &str) -> Option<String> {
    let (_, program) = said.split_once("No such file or directory) while executing ")?;
    let program = program.split_whitespace().next()?.trim_end_matches(['.', ',', ':']);
    Some(missing(program.rsplit('/').next().unwrap_or(program)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_told_with_its_package() {
        for (program, package) in [
            ("mkfs.ext4", "e2fsprogs"),
            ("mkfs.xfs", "xfsprogs"),
            ("mkfs.btrfs", "btrfs-progs"),
            ("fsck.vfat", "dosfstools"),
            ("fusermount3", "fuse3"),
            ("blkid", "util-linux"),
            ("umount", "mount"),
        ] {
            let said = missing(program);
            assert!(said.contains(program) && said.contains(&format!("`apt install {package}`")), "{said}");
        }
        let ntfs = without_file_system("ntfs");
        assert!(ntfs.contains("`modprobe ntfs`") && ntfs.contains("`apt install ntfs-3g`"), "{ntfs}");
        assert!(!without_file_system("ext4").contains("apt"));
        assert!(missing("mkfs.new").contains("`apt-file search bin/mkfs.new`"));
        let error = ensure_there("no-such-program").expect_err("it is not there").to_string();
        assert!(error.starts_with("there is no program no-such-program on this machine"), "{error}");
        assert!(ensure_there("sh").is_ok());
    }

    #[test]
    fn what_another_program_has_not_found_is_named() {
        let said = "fsck: error 2 (No such file or directory) while executing fsck.xfs for /dev/loop0";
        assert_eq!(named_as_missing(said).as_deref(), Some(missing("fsck.xfs").as_str()));
        assert_eq!(named_as_missing("fsck: /dev/loop0: clean"), None);
    }

    #[test]
    fn each_program_is_in_one_package() {
        let mut all: Vec<&str> = PACKAGES.iter().flat_map(|(_, programs)| programs.iter().copied()).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
