//! Files on controllers that cannot do everything, as programs use them that are not ours.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use ringfab_tests::fake_disk::{Abilities, DEALLOCATES, DSM, Disk, WRITE_ZEROES};
use ringfab_tests::fake_target::{BLOCK, FakeTarget, Fault, Script};
use ringfab_tests::{NQN, Service, have, not_run, run_bounded};

use crate::way::{Way, by_both_ways};
use crate::{file, mount};

const BLOCKS: usize = 1024;
/// What the disk is full of before.
const BEFORE: u8 = 0x77;

/// Controllers, by what they have.
const CONTROLLERS: [(&str, Abilities); 5] = [
    ("everything", Abilities { oncs: DSM | WRITE_ZEROES, dlfeat: DEALLOCATES | 1, vwc: true }),
    ("no deallocating zeroes", Abilities { oncs: DSM | WRITE_ZEROES, dlfeat: 0, vwc: false }),
    ("no zeroes", Abilities { oncs: DSM, dlfeat: 0, vwc: true }),
    ("no deallocating", Abilities { oncs: WRITE_ZEROES, dlfeat: 0, vwc: true }),
    ("nothing", Abilities { oncs: 0, dlfeat: 0, vwc: false }),
];

by_both_ways! {
    qemu_img_convert_of_a_sparse_image_arrives_whatever_the_controller_can_do
    cp_of_a_sparse_image_arrives_whatever_the_controller_can_do
    dd_arrives_whatever_the_controller_can_do
    holes_and_zeroes_are_made_where_the_controller_can_and_else_refused_so_that_programs_go_on
}

/// A controller, and the files of its one namespace.
struct Cell {
    name: &'static str,
    abilities: Abilities,
    target: FakeTarget,
    service: Service,
}

impl Cell {
    fn start(way: &Way, controller: (&'static str, Abilities)) -> Self {
        let (name, abilities) = controller;
        let disk = Some(Disk::new(abilities, BLOCKS, BEFORE));
        let target = FakeTarget::with_script(Fault::None, Script { disk, ..Script::default() });
        let service = mount(way, &format!("nvme+tcp://{}/{NQN}", target.address), &[]);
        Self { name, abilities, target, service }
    }

    fn zeroes(&self) -> bool {
        self.abilities.oncs & WRITE_ZEROES != 0
    }

    fn refill(&self) {
        self.target.script(|script| script.disk.as_mut().expect("a disk").bytes.fill(BEFORE));
    }

    fn path(&self) -> String {
        file(&self.service, "ns1").display().to_string()
    }

    /// Compares the disk, after nothing was sent that it has not announced.
    fn has(&self, expected: &[u8], what: &str) {
        self.target.script(|script| {
            let disk = script.disk.as_ref().expect("a disk");
            assert!(disk.refused.is_empty(), "{}: {what}: {:?}", self.name, disk.refused);
            assert!(disk.bytes == expected, "{}: {what}: other bytes", self.name);
        });
    }
}

/// An image of so many blocks, with holes at its begin, in it, and at its end, and with zeroes that are written.
fn sparse(folder: &Path, blocks: usize) -> (String, Vec<u8>) {
    let path = folder.join(format!("image-{blocks}"));
    let image = File::create(&path).expect("an image");
    image.set_len((blocks * BLOCK) as u64).expect("its size");
    for (block, byte, count) in [(16, 0x11, 3), (200, 0x22, 64), (300, 0, 40), (500, 0x33, 1)] {
        image.write_all_at(&vec![byte; count * BLOCK], (block * BLOCK) as u64).expect("written");
    }
    let bytes = fs::read(&path).expect("the image");
    (path.display().to_string(), bytes)
}

/// What a disk holds after an image was copied to its begin.
fn behind(image: &[u8]) -> Vec<u8> {
    let mut all = image.to_vec();
    all.resize(BLOCKS * BLOCK, BEFORE);
    all
}

fn qemu_img_convert_of_a_sparse_image_arrives_whatever_the_controller_can_do(way: &Way) {
    if !have("qemu-img") {
        return not_run("qemu-img (qemu-utils) is missing");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (image, expected) = sparse(folder.path(), BLOCKS);
    for controller in CONTROLLERS {
        let cell = Cell::start(way, controller);
        run_bounded(60, "qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &image, &cell.path()]);
        cell.has(&expected, "convert -n");
    }
}

fn cp_of_a_sparse_image_arrives_whatever_the_controller_can_do(way: &Way) {
    let folder = tempfile::tempdir().expect("a folder");
    for controller in CONTROLLERS {
        let cell = Cell::start(way, controller);
        for blocks in [BLOCKS, 600] {
            let (image, bytes) = sparse(folder.path(), blocks);
            for how in ["--sparse=auto", "--sparse=always", "--sparse=never"] {
                cell.refill();
                run_bounded(60, "cp", &[how, &image, &cell.path()]);
                cell.has(&behind(&bytes), &format!("cp {how} of {blocks} blocks"));
            }
        }
    }
}

fn dd_arrives_whatever_the_controller_can_do(way: &Way) {
    let folder = tempfile::tempdir().expect("a folder");
    let (image, bytes) = sparse(folder.path(), 600);
    for controller in CONTROLLERS {
        let cell = Cell::start(way, controller);
        // What ends with a hole is not copied sparsely: dd leaves that out, since the file is long enough without.
        for (how, count) in [("conv=fsync", 37), ("conv=notrunc,fsync", 37), ("conv=sparse,fsync", 32)] {
            cell.refill();
            let (from, to) = (format!("if={image}"), format!("of={}", cell.path()));
            let (count, copied) = (format!("count={count}"), count * (64 << 10));
            run_bounded(60, "dd", &[&from, &to, "bs=64k", &count, how, "status=none"]);
            cell.has(&behind(&bytes[..copied]), &format!("dd {how}"));
        }
    }
}

fn holes_and_zeroes_are_made_where_the_controller_can_and_else_refused_so_that_programs_go_on(way: &Way) {
    for controller in CONTROLLERS {
        let cell = Cell::start(way, controller);
        let mut expected = vec![BEFORE; BLOCKS * BLOCK];
        let mut run = |flag: &str, range: std::ops::Range<usize>, works: bool| {
            let (offset, length) = (range.start.to_string(), range.len().to_string());
            let arguments = [flag, "--keep-size", "--offset", &offset, "--length", &length, &cell.path()];
            let mut command = Command::new("timeout");
            command.args(["--kill-after=5", "30", "fallocate"]).args(arguments);
            let ran = command.stdin(Stdio::null()).env("LC_ALL", "C").output().expect("fallocate runs");
            let said = String::from_utf8_lossy(&ran.stderr);
            assert_eq!(ran.status.success(), works, "{}: {flag}: {said}", cell.name);
            // EOPNOTSUPP, with which programs write zeroes themselves.
            assert!(works || said.contains("upported"), "{}: {flag}: {said}", cell.name);
            if works {
                expected[range].fill(0);
            }
            cell.has(&expected, flag);
        };
        // Whole blocks, and parts of them.
        run("--punch-hole", 8 * BLOCK..40 * BLOCK, cell.zeroes());
        run("--punch-hole", 50 * BLOCK + 100..55 * BLOCK + 7, cell.zeroes());
        run("--zero-range", 80 * BLOCK..100 * BLOCK, true);
        run("--zero-range", 120 * BLOCK + 100..120 * BLOCK + 200, true);
    }
}
