//! What is installed names only paths that are there: in units, configurations, man pages, drop-ins and completions.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use ringfab_tests::program;
use tempfile::TempDir;

/// Folders of a file system whose names are looked at. Others are parts of addresses, options or sentences.
const ROOTS: [&str; 14] =
    ["bin", "dev", "etc", "home", "lib", "mnt", "opt", "proc", "run", "sbin", "srv", "sys", "usr", "var"];

/// What is named and not installed, and who has it. A name ends with a slash where all that is below it is meant.
const OF_OTHERS: [(&str, &str); 23] = [
    ("/etc/ceph/", "made by whoever has a cluster"),
    ("/dev/", "the kernel's"),
    ("/proc/", "the kernel's"),
    ("/sys/", "the kernel's"),
    ("/run/", "made by whoever runs"),
    ("/mnt/", "a mount point of an example"),
    ("/srv/", "disks, and mount points of examples; tmpfiles.d makes /srv/ringfab"),
    ("/etc/ringfab/target.toml", "made of /usr/share/ringfab-target/target.toml where it is missing"),
    ("/etc/ringfab/volumes.toml", "the administrator's"),
    ("/etc/ringfab/keys/", "the administrator's, by `ringfab keys`"),
    ("/etc/ringfab/HOSTNQN.keys", "a host's, copied from its target"),
    ("/etc/ringfab/nqn.2026-11.com.example:host-1.keys", "the same in an example"),
    ("/etc/systemd/system/ringfab-target.service.d", "made by the line that names it"),
    ("/etc/fstab", "the system's"),
    ("/etc/machine-id", "the system's"),
    ("/etc/nvme/", "made by nvme-cli, and looked for only"),
    ("/var/lib/ringfab/", "made by the unit"),
    ("/var/lib/prometheus/", "the folder of another program, in an example"),
    ("/usr/share/bash-completion/", "the shell's"),
    ("/usr/local/", "where completions of zsh and fish may look"),
    ("/bin/sh", "the system's"),
    ("/usr/bin/env", "the system's"),
    ("/home/", "users'"),
];

/// A tree with what `make install` installs.
fn installed() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let (programs, root) = (folder.path().join("programs"), folder.path().join("root"));
    fs::create_dir(&programs).expect("a folder");
    for name in ["ringfab-target", "ringfab"] {
        let script = format!("#!/bin/sh\nexec {} \"$@\"\n", program(name).display());
        fs::write(programs.join(name), script).expect("a script");
        fs::set_permissions(programs.join(name), fs::Permissions::from_mode(0o755)).expect("executable");
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/make-install.sh");
    let mut command = Command::new(script);
    for name in ["PREFIX", "SYSCONFDIR", "SYSTEMDDIR", "SYSUSERSDIR", "TMPFILESDIR", "MANDIR"] {
        command.env_remove(name);
    }
    let output = command.arg(&programs).env("DESTDIR", &root).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (folder, root)
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries
        .flat_map(|path| if path.is_dir() && !path.is_symlink() { files(&path) } else { vec![path] })
        .collect()
}

/// A page without what roff has in its text.
fn plain(text: &str) -> String {
    let marks = ["\\fB", "\\fI", "\\fR", "\\fP", "\\&"];
    let text = marks.iter().fold(text.to_owned(), |text, mark| text.replace(mark, ""));
    text.replace("\\-", "-").replace("\\(dq", "\"").replace("\\(aq", "'")
}

/// The paths that a text names, absolute ones and those of documents.
fn named(text: &str) -> Vec<String> {
    let is_between = |one: char| one.is_whitespace() || "\"'`()[]{}<>|,;=\\$*".contains(one);
    let words = text.split(is_between).flat_map(|word| {
        // A scheme, a drop-in's dash, or the name of a credential is before it.
        let begin = word.find('/').unwrap_or(0);
        let is_address = word.contains("://");
        let before = &word[..begin];
        match before {
            "" | "-" => Some(&word[begin..]),
            "docs" | "configs" | "systemd" | "tests" => Some(word),
            other if other.ends_with(':') && !is_address => Some(&word[begin..]),
            _ => None,
        }
    });
    let words =
        words.map(|word| word.trim_end_matches(['.', ':', '!', '?', '/'])).filter(|word| word.contains('/'));
    let is_path = |word: &&str| match word.strip_prefix('/') {
        None => true,
        Some(rest) => ROOTS.contains(&rest.split('/').next().unwrap_or_default()),
    };
    words.filter(is_path).map(str::to_owned).collect()
}

/// Whether a path is there, or somebody else's to make.
fn is_known(root: &Path, from: &Path, path: &str) -> bool {
    let Some(below) = path.strip_prefix('/') else {
        // What documents name from their own folder, which is a folder of packages.
        let documents = root.join("usr/share/doc");
        return from.strip_prefix(&documents).is_ok_and(|inner| {
            let package = inner.components().next().expect("a package");
            documents.join(package).join(path).exists()
        });
    };
    let of_other = |(name, _): &(&str, &str)| match name.strip_suffix('/') {
        Some(folder) => path == folder || path.starts_with(name),
        None => path == *name,
    };
    // /sbin and the like are links into /usr.
    root.join(below).exists() || root.join("usr").join(below).exists() || OF_OTHERS.iter().any(of_other)
}

#[test]
fn each_path_that_an_installed_file_names_is_there() {
    let (_folder, root) = installed();
    let (mut count, mut wrong) = (0, Vec::new());
    for file in files(&root) {
        let is_program = ["usr/bin", "usr/sbin"].iter().any(|folder| file.starts_with(root.join(folder)));
        // Links of documents are looked at when they are installed.
        let is_document =
            ["md", "json"].iter().any(|end| file.extension().is_some_and(|found| found == *end));
        let Ok(text) = fs::read_to_string(&file) else { continue };
        if is_program || is_document {
            continue;
        }
        for path in named(&plain(&text)) {
            count += 1;
            if !is_known(&root, &file, &path) {
                wrong.push(format!("{} names {path}", file.strip_prefix(&root).expect("below").display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(count > 100, "{count}");
    // A packager's tree has no configuration, which would be a file of the package.
    assert!(!root.join("etc").exists() && root.join("usr/share/ringfab-target/target.toml").exists());
}

#[test]
fn a_path_that_is_not_there_is_found() {
    let (folder, text) =
        (tempfile::tempdir().expect("a folder"), "Try it: check configs/minimal.toml, or /etc/other.");
    assert_eq!(named(text), ["configs/minimal.toml", "/etc/other"]);
    assert_eq!(
        named("LoadCredential=host-1:/etc/x ReadWritePaths=-/srv/ringfab"),
        ["/etc/x", "/srv/ringfab"]
    );
    assert_eq!(named("at nvme+tcp://192.0.2.5/nqn.x, at /metrics, and/or file:/etc/k"), ["/etc/k"]);
    let from = folder.path().join("usr/share/ringfab-target/target.toml");
    assert!(named(text).iter().all(|path| !is_known(folder.path(), &from, path)));
}
