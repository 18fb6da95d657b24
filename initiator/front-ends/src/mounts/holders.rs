//! What keeps a mount busy: open files, working directories, loop devices and mounts of these.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use ringfab_base::{VisiblePath as _, shell_quoted, visible};

/// Something that uses a file of the mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A loop device on a file, and where it is mounted.
    Loop { device: String, file: PathBuf, mounts: Vec<PathBuf> },
    /// A process with a file open, or with its working or root directory there.
    Process { pid: u32, name: String, file: PathBuf },
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Loop { device, file, mounts } if mounts.is_empty() => {
                write!(f, "/dev/{device} is on {} (`losetup -d /dev/{device}`)", file.visible())
            }
            Holder::Loop { device, file, mounts } => {
                let at: Vec<String> = mounts.iter().map(|path| path.visible().to_string()).collect();
                let at = at.join(" ");
                let quoted: Vec<String> =
                    mounts.iter().map(|path| shell_quoted(&path.to_string_lossy()).into_owned()).collect();
                let quoted = quoted.join(" ");
                write!(f, "/dev/{device} on {} is mounted at {at} (`umount {quoted}`)", file.visible())
            }
            Holder::Process { pid, name, file } => {
                write!(f, "process {pid} ({}) uses {}", visible(name), file.visible())
            }
        }
    }
}

/// Holders that are told; more are counted.
const TOLD: usize = 8;

/// Who uses what is below `directory`, as far as this process may look, in one sentence.
pub(crate) fn describe(directory: &Path) -> String {
    let found = find(directory);
    if found.is_empty() {
        return "by a process that cannot be seen (as root, `fuser -vm` tells)".to_owned();
    }
    let mut texts: Vec<String> = found.iter().take(TOLD).map(ToString::to_string).collect();
    if found.len() > TOLD {
        texts.push(format!("and {} more", found.len() - TOLD));
    }
    texts.join("; ")
}

/// Who uses what is below `directory`.
fn find(directory: &Path) -> Vec<Holder> {
    let mut holders = loops(directory);
    holders.extend(processes(directory));
    holders
}

fn loops(directory: &Path) -> Vec<Holder> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let holder = |entry: fs::DirEntry| {
        let file = PathBuf::from(fs::read_to_string(entry.path().join("loop/backing_file")).ok()?.trim_end());
        let device = entry.file_name().into_string().ok()?;
        file.starts_with(directory).then(|| {
            let mounts = mounted_from(&mounts, &format!("/dev/{device}"));
            Holder::Loop { device, file, mounts }
        })
    };
    devices.filter_map(holder).collect()
}

/// Where a source is mounted, by the lines of `mountinfo`.
fn mounted_from(mountinfo: &str, source: &str) -> Vec<PathBuf> {
    let mounts = mountinfo.lines().filter_map(Mount::parse);
    mounts.filter(|mount| mount.source == source).map(|mount| mount.at).collect()
}

fn processes(directory: &Path) -> Vec<Holder> {
    let own = std::process::id();
    let holder = |pid: u32| {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut links = open.chain([process.join("cwd"), process.join("root")]);
        // What a link points to is only read, so that nothing waits for the file system itself.
        let file = links.find_map(|link| fs::read_link(link).ok().filter(|to| to.starts_with(directory)))?;
        Some(Holder::Process { pid, name: name_of(&process), file })
    };
    pids().filter(|pid| *pid != own).filter_map(holder).collect()
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn name_of(process: &Path) -> String {
    fs::read_to_string(process.join("comm")).unwrap_or_default().trim_end().to_owned()
}

/// Who uses a mount that is out of the tree, where paths do not lead to it any more.
pub(crate) fn of_detached(mount: u64) -> Option<String> {
    pids().find_map(|pid| {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let file = open_on(&process, mount).or_else(|| {
            let links = ["cwd", "root"].map(|name| process.join(name));
            links.into_iter().find(|link| is_link_to(link, mount)).and_then(|link| fs::read_link(link).ok())
        })?;
        let holder = Holder::Process { pid, name: name_of(&process), file };
        Some(format!("{holder} of the mount that was taken out of the tree"))
    })
}

/// A file of a mount that a process has open.
fn open_on(process: &Path, mount: u64) -> Option<PathBuf> {
    let open = fs::read_dir(process.join("fdinfo")).ok()?.flatten();
    let mut on_it = open.filter(|entry| mount_of(&entry.path()) == Some(mount));
    on_it.find_map(|entry| fs::read_link(process.join("fd").join(entry.file_name())).ok())
}

/// The mount of a descriptor, by its file in a folder `fdinfo`.
fn mount_of(info: &Path) -> Option<u64> {
    let text = fs::read_to_string(info).ok()?;
    text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
}

/// Whether a link of a process leads into a mount. One to a file system that another machine or program serves is left
/// alone: nobody shall wait for it.
fn is_link_to(link: &Path, mount: u64) -> bool {
    let Ok(path) = fs::read_link(link) else { return false };
    let below = Mount::all().into_iter().filter(|mount| path.starts_with(&mount.at));
    let deepest = below.max_by_key(|mount| mount.at.as_os_str().len());
    let may_wait = |kind: &str| {
        ["nfs", "cifs", "smb", "fuse", "9p", "ceph", "autofs", "afs"].iter().any(|one| kind.starts_with(one))
    };
    // Where a path says nothing more it may lead into a mount out of the tree, and who waits for the root waits anyway.
    if deepest.is_some_and(|mount| mount.at != Path::new("/") && may_wait(&mount.kind)) {
        return false;
    }
    let only_a_name = OpenOptions::new().read(true).custom_flags(OFlag::O_PATH.bits()).open(link);
    only_a_name.is_ok_and(|file| {
        mount_of(Path::new(&format!("/proc/self/fdinfo/{}", file.as_raw_fd()))) == Some(mount)
    })
}

/// Who uses the file system of a disk below `directory`, also where only others see it.
pub(crate) fn describe_disk(directory: &Path, device: &Path) -> String {
    let elsewhere = find(directory).is_empty().then(|| in_another_namespace(device)).flatten();
    elsewhere.unwrap_or_else(|| describe(directory))
}

/// Which process sees a disk mounted that is mounted nowhere here: in a container, for instance.
pub(crate) fn in_another_namespace(device: &Path) -> Option<String> {
    pids().find_map(|pid| {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let mounts = fs::read_to_string(process.join("mountinfo")).ok()?;
        let place = mounted_from(&mounts, device.to_str()?).into_iter().next()?;
        let name = name_of(&process);
        let (name, shown, place) = (visible(name), device.visible(), place.visible());
        Some(format!("process {pid} ({name}) has {shown} mounted at {place} in a mount namespace of its own"))
    })
}

/// A line of `mountinfo`, as far as it matters here.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// The number that the kernel has given it, which is no other one's as long as anybody uses it.
    pub(crate) id: u64,
    pub(crate) at: PathBuf,
    pub(crate) kind: String,
    pub(crate) source: String,
    /// Who has mounted it, of FUSE.
    pub(crate) user: Option<u32>,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let (front, back) = line.split_once(" - ")?;
        let id = front.split(' ').next()?.parse().ok()?;
        let at = unescape(front.split(' ').nth(4)?);
        let mut back = back.split(' ');
        let (kind, source) = (back.next()?.to_owned(), unescape(back.next()?));
        let mut options = back.next().unwrap_or_default().split(',');
        let user = options.find_map(|option| option.strip_prefix("user_id=")?.parse().ok());
        Some(Self { id, at: PathBuf::from(at), kind, source, user })
    }

    /// All mounts that this process sees, in the order in which they lie on each other.
    pub(crate) fn all() -> Vec<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        mounts.lines().filter_map(Self::parse).collect()
    }

    /// The mount that is on top at a path, if there is one.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        Self::all().into_iter().rfind(|mount| mount.at == path)
    }
}

/// Spaces, tabs, newlines and backslashes are written in octal there.
pub(crate) fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let octal = (*first == b'\\').then(|| tail.get(..3)).flatten();
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_read_with_its_escapes_and_optional_fields() {
        let line = concat!(
            r"36 35 0:41 / /mnt/my\040disk rw,nosuid shared:1 master:2 - ",
            r"fuse.ringfab 10.0.0.5:4420/a\134b rw,user_id=0"
        );
        let mount = Mount::parse(line).expect("a line");
        let expected = (36, PathBuf::from("/mnt/my disk"), "fuse.ringfab".to_owned());
        assert_eq!((mount.id, mount.at, mount.kind), expected);
        assert_eq!((mount.source.as_str(), mount.user), (r"10.0.0.5:4420/a\b", Some(0)));
        assert_eq!(Mount::parse("36 35 0:41 / /mnt"), None);
        let loops = "1 2 7:0 / /mnt/a rw - ext4 /dev/loop0 rw\n1 2 7:1 / /mnt/b rw - ext4 /dev/loop10 rw\n";
        assert_eq!(mounted_from(loops, "/dev/loop0"), [PathBuf::from("/mnt/a")]);
    }

    #[test]
    fn a_mount_out_of_the_tree_is_found_by_its_number() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = fs::File::create(folder.path().join("file")).expect("a file");
        let id = mount_of(Path::new(&format!("/proc/self/fdinfo/{}", file.as_raw_fd()))).expect("a number");
        assert!(Mount::all().iter().any(|mount| mount.id == id), "{id}");
        assert_eq!(open_on(Path::new("/proc/self"), u64::MAX), None);
        assert!(open_on(Path::new("/proc/self"), id).is_some());
        let own = fs::read_link("/proc/self/cwd").expect("a directory");
        let deepest = Mount::all().into_iter().filter(|mount| own.starts_with(&mount.at));
        let deepest = deepest.max_by_key(|mount| mount.at.as_os_str().len()).expect("a mount");
        assert!(is_link_to(Path::new("/proc/self/cwd"), deepest.id));
        assert!(!is_link_to(Path::new("/proc/self/cwd"), u64::MAX));
        assert_eq!(of_detached(u64::MAX), None);
    }

    #[test]
    fn an_open_file_names_its_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().canonicalize().expect("a path");
        assert!(!find(&path).iter().any(|holder| matches!(holder, Holder::Loop { .. })));
        let file = fs::File::create(path.join("ns1")).expect("a file");
        let mut child =
            std::process::Command::new("sleep").arg("60").stdin(file).spawn().expect("sleep runs");
        let found = describe(&path);
        child.kill().expect("killed");
        child.wait().expect("ended");
        let expected = format!("process {} (sleep) uses {}", child.id(), path.join("ns1").display());
        assert!(found.contains(&expected), "{found}");
    }
}
