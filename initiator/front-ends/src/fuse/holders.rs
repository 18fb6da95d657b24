//! What keeps a mount busy: open files, working directories, loop devices and mounts of these.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

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
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let holder = |pid: u32| {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut links = open.chain([process.join("cwd"), process.join("root")]);
        // What a link points to is only read, so that nothing waits for the file system itself.
        let file = links.find_map(|link| fs::read_link(link).ok().filter(|to| to.starts_with(directory)))?;
        let name = fs::read_to_string(process.join("comm")).unwrap_or_default().trim_end().to_owned();
        Some(Holder::Process { pid, name, file })
    };
    pids.filter(|pid| *pid != own).filter_map(holder).collect()
}

/// Who uses the file system of a disk below `directory`, also where only others see it.
pub(crate) fn describe_disk(directory: &Path, device: &Path) -> String {
    let elsewhere = find(directory).is_empty().then(|| in_another_namespace(device)).flatten();
    elsewhere.unwrap_or_else(|| describe(directory))
}

/// Which process sees a disk mounted that is mounted nowhere here: in a container, for instance.
pub(crate) fn in_another_namespace(device: &Path) -> Option<String> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find_map(|pid| {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let mounts = fs::read_to_string(process.join("mountinfo")).ok()?;
        let place = mounted_from(&mounts, device.to_str()?).into_iter().next()?;
        let name = fs::read_to_string(process.join("comm")).unwrap_or_default().trim_end().to_owned();
        let (name, shown, place) = (visible(name), device.visible(), place.visible());
        Some(format!("process {pid} ({name}) has {shown} mounted at {place} in a mount namespace of its own"))
    })
}

/// A line of `mountinfo`, as far as it matters here.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) at: PathBuf,
    pub(crate) kind: String,
    pub(crate) source: String,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let (front, back) = line.split_once(" - ")?;
        let at = unescape(front.split(' ').nth(4)?);
        let mut back = back.split(' ');
        Some(Self { at: PathBuf::from(at), kind: back.next()?.to_owned(), source: unescape(back.next()?) })
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
fn unescape(text: &str) -> String {
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
        assert_eq!((mount.at, mount.kind), (PathBuf::from("/mnt/my disk"), "fuse.ringfab".to_owned()));
        assert_eq!(mount.source, r"10.0.0.5:4420/a\b");
        assert_eq!(Mount::parse("36 35 0:41 / /mnt"), None);
        let loops = "1 2 7:0 / /mnt/a rw - ext4 /dev/loop0 rw\n1 2 7:1 / /mnt/b rw - ext4 /dev/loop10 rw\n";
        assert_eq!(mounted_from(loops, "/dev/loop0"), [PathBuf::from("/mnt/a")]);
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
