//! Sparse images are copied to controllers that do not have everything, and refuse what they do not have.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use ringfab_tests::fake_disk::{Abilities, DEALLOCATED, DEALLOCATES, DSM, Disk, WRITE_ZEROES};
use ringfab_tests::fake_target::{BLOCK, FakeTarget, Fault, Script};
use ringfab_tests::{NQN, Service, have, not_run, run_bounded};

use super::serve;

const BLOCKS: usize = 1024;
/// What the disk is full of before.
const BEFORE: u8 = 0x77;

/// Controllers, by what they have.
const CONTROLLERS: [(&str, Abilities); 6] = [
    ("everything", Abilities { oncs: DSM | WRITE_ZEROES, dlfeat: DEALLOCATES | 1, vwc: true }),
    ("no cache", Abilities { oncs: DSM | WRITE_ZEROES, dlfeat: DEALLOCATES | 1, vwc: false }),
    ("no deallocating zeroes", Abilities { oncs: DSM | WRITE_ZEROES, dlfeat: 0, vwc: true }),
    ("no zeroes", Abilities { oncs: DSM, dlfeat: 0, vwc: true }),
    ("no deallocating", Abilities { oncs: WRITE_ZEROES, dlfeat: 0, vwc: true }),
    ("nothing", Abilities { oncs: 0, dlfeat: 0, vwc: false }),
];

/// A controller, and the server of its one export.
struct Cell {
    name: &'static str,
    target: FakeTarget,
    service: Service,
}

impl Cell {
    fn start(controller: (&'static str, Abilities)) -> Self {
        let (name, abilities) = controller;
        let disk = Some(Disk::new(abilities, BLOCKS, BEFORE));
        let target = FakeTarget::with_script(Fault::None, Script { disk, ..Script::default() });
        let service = serve(&format!("nvme+tcp://{}/{NQN}", target.address));
        Self { name, target, service }
    }

    /// The disk, after nothing was sent that it has not announced.
    fn bytes(&self) -> Vec<u8> {
        self.target.script(|script| {
            let disk = script.disk.as_ref().expect("a disk");
            assert!(disk.refused.is_empty(), "{}: {:?}", self.name, disk.refused);
            disk.bytes.clone()
        })
    }

    fn has_seen(&self, opcode: u8) -> bool {
        self.target.script(|script| script.disk.as_ref().is_some_and(|disk| disk.executed.contains(&opcode)))
    }
}

/// An image with holes at its begin, in it, and at its end, and with zeroes that are written.
fn sparse(folder: &Path) -> (String, Vec<u8>) {
    let path = folder.join("image");
    let file = fs::File::create(&path).expect("an image");
    file.set_len((BLOCKS * BLOCK) as u64).expect("its size");
    for (block, byte, count) in [(16, 0x11, 3), (200, 0x22, 64), (300, 0, 40), (700, 0x33, 1)] {
        file.write_all_at(&vec![byte; count * BLOCK], (block * BLOCK) as u64).expect("written");
    }
    let bytes = fs::read(&path).expect("the image");
    (path.display().to_string(), bytes)
}

/// Copies a sparse image to each controller, and compares.
fn copies(copy: impl Fn(&str, &str)) {
    let folder = tempfile::tempdir().expect("a folder");
    let (image, expected) = sparse(folder.path());
    for controller in CONTROLLERS {
        let cell = Cell::start(controller);
        copy(&image, &cell.service.ready());
        assert!(cell.bytes() == expected, "{}: not what was copied", cell.name);
        let zeroed = controller.1.oncs & WRITE_ZEROES != 0;
        assert_eq!(cell.has_seen(8), zeroed, "{}: Write Zeroes is used where it is there", cell.name);
    }
}

#[test]
fn nbdcopy_of_a_sparse_image_arrives_whatever_the_controller_can_do() {
    if !have("nbdcopy") {
        return not_run("nbdcopy (libnbd-bin) is missing");
    }
    copies(|image, uri| drop(run_bounded(60, "nbdcopy", &["--flush", image, uri])));
}

#[test]
fn qemu_img_convert_of_a_sparse_image_arrives_whatever_the_controller_can_do() {
    if !have("qemu-img") {
        return not_run("qemu-img (qemu-utils) is missing");
    }
    copies(|image, uri| {
        drop(run_bounded(60, "qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", image, uri]));
    });
}

#[test]
fn nbdsh_trims_where_the_controller_can_and_is_told_where_it_cannot() {
    // Another Python may come first in the path than the one that libnbd's package serves.
    let has_libnbd = |python: &&str| {
        let tried = Command::new(python).args(["-c", "import nbd"]).stderr(Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    };
    let Some(python) = ["python3", "/usr/bin/python3"].into_iter().find(has_libnbd) else {
        return not_run("nbdsh: libnbd for Python (python3-libnbd) is missing");
    };
    let script = "\
can = h.can_trim()
h.set_strict_mode(0)
try:
    h.trim(8 * 4096, 4 * 4096, nbd.CMD_FLAG_FUA)
    print(can, 'trimmed')
except nbd.Error as error:
    print(can, error.errnum)
h.flush()
";
    for controller in CONTROLLERS {
        let cell = Cell::start(controller);
        let said = run_bounded(30, python, &["-mnbd", "-u", &cell.service.ready(), "-c", script]);
        let trims = controller.1.oncs & DSM != 0;
        // EOPNOTSUPP.
        assert_eq!(said.trim(), if trims { "True trimmed" } else { "False 95" }, "{}", cell.name);
        let mut expected = vec![BEFORE; BLOCKS * BLOCK];
        if trims {
            expected[4 * BLOCK..12 * BLOCK].fill(DEALLOCATED);
        }
        assert!(cell.bytes() == expected, "{}: other blocks have changed", cell.name);
    }
}
