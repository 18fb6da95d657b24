//! Exports as programs of others use them: QEMU's tools, nbdkit in front of ours, nbdcopy from one to another.

use std::fs;
use std::path::PathBuf;

use ringfab_tests::{Service, TestTarget, have, not_run, run_bounded};
use tempfile::TempDir;

use super::serve;

const BYTES: usize = 8 << 20;
/// What each command may take.
const SECONDS: u32 = 60;

/// Two namespaces of the same size, the first with content of its own.
struct Exports {
    target: TestTarget,
    service: Service,
    folder: TempDir,
}

impl Exports {
    /// None, which is said, where one of the programs is not installed.
    fn new(programs: &[&str]) -> Option<Self> {
        if let Some(missing) = programs.iter().find(|program| !have(program)) {
            not_run(&format!("exports with {}: there is no {missing}", programs.join(" and ")));
            return None;
        }
        let namespaces = "[[subsystem.namespace]]\nmemory = \"8MiB\"\nblock_bytes = 4096\n\
                          [[subsystem.namespace]]\nmemory = \"8MiB\"\nblock_bytes = 512\n";
        let target = TestTarget::with_listener("transport = \"tcp\"", namespaces);
        let content: Vec<u8> = (0..BYTES).map(|at| (at / 512 % 251) as u8).collect();
        target.attach().write_at(1, 0, &content, true).expect("written");
        let (service, folder) = (serve(&target.url("").to_string()), tempfile::tempdir().expect("a folder"));
        fs::write(folder.path().join("content"), content).expect("a file");
        Some(Self { target, service, folder })
    }

    fn uri(&self, nsid: u32) -> String {
        format!("nbd+unix:///ns{nsid}?socket={}", self.service.path("socket").display())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Whether a namespace has what the first one had at the beginning.
    fn is_whole(&self, nsid: u32) -> bool {
        let mut found = vec![0; BYTES];
        self.target.attach().read_at(nsid, 0, &mut found).expect("read");
        found == fs::read(self.path("content")).expect("the content")
    }
}

#[test]
fn qemu_measures_reads_writes_and_flushes() {
    let Some(exports) = Exports::new(&["qemu-img"]) else { return };
    let uri = exports.uri(2);
    let bench = ["bench", "-f", "raw", "-t", "none", "-c", "2000", "-d", "16", "-s"];
    for load in [&["4096"][..], &["512", "-w"], &["65536", "-w", "--flush-interval", "16"], &["4096", "-n"]] {
        let said = run_bounded(SECONDS, "qemu-img", &[&bench[..], load, &[&uri]].concat());
        assert!(said.contains("Run completed"), "{load:?}: {said}");
    }
}

#[test]
fn what_is_copied_from_one_export_to_another_is_the_same() {
    let Some(exports) = Exports::new(&["nbdcopy", "qemu-img"]) else { return };
    run_bounded(SECONDS, "nbdcopy", &["--flush", &exports.uri(1), &exports.uri(2)]);
    assert!(exports.is_whole(2));
    let same = run_bounded(
        SECONDS,
        "qemu-img",
        &["compare", "-f", "raw", "-F", "raw", &exports.uri(2), &exports.text("content")],
    );
    assert!(same.contains("identical"), "{same}");
}

#[test]
fn nbdkit_stands_in_front_of_an_export() {
    let Some(exports) = Exports::new(&["nbdkit", "nbdcopy", "nbdinfo"]) else { return };
    let uri = format!("uri={}", exports.uri(1));
    let copy = format!("nbdinfo \"$uri\" && nbdcopy \"$uri\" '{}'", exports.text("copy"));
    let said = run_bounded(SECONDS, "nbdkit", &["-U", "-", "nbd", &uri, "--run", &copy]);
    for can in
        ["can_fua: true", "can_flush: true", "can_trim: true", "can_zero: true", "can_multi_conn: true"]
    {
        assert!(said.contains(can), "{can}: {said}");
    }
    let (copy, content) = (fs::read(exports.path("copy")), fs::read(exports.path("content")));
    assert_eq!(copy.expect("the copy"), content.expect("the content"));
    // What is written above a filter that copies on writes never gets to us.
    let write = format!(
        "nbdcopy --flush '{}' \"$uri\" && nbdcopy \"$uri\" '{}'",
        exports.text("zeroes"),
        exports.text("copy")
    );
    fs::write(exports.path("zeroes"), vec![0; BYTES]).expect("a file");
    run_bounded(SECONDS, "nbdkit", &["-U", "-", "--filter=cow", "nbd", &uri, "--run", &write]);
    assert!(fs::read(exports.path("copy")).expect("the copy").iter().all(|byte| *byte == 0));
    assert!(exports.is_whole(1));
}

#[test]
fn qemu_nbd_serves_an_export_once_more() {
    let Some(exports) = Exports::new(&["qemu-nbd", "nbdcopy"]) else { return };
    let (socket, pid) = (exports.text("again"), exports.text("pid"));
    // It ends with its last client.
    let arguments = ["-f", "raw", "-k", &socket, "--fork", "--pid-file", &pid, &exports.uri(1)];
    run_bounded(SECONDS, "qemu-nbd", &arguments);
    let uri = format!("nbd+unix:///?socket={socket}");
    run_bounded(SECONDS, "nbdcopy", &["--connections=1", &uri, &exports.text("copy")]);
    let (copy, content) = (fs::read(exports.path("copy")), fs::read(exports.path("content")));
    assert_eq!(copy.expect("the copy"), content.expect("the content"));
}
