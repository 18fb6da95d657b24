//! What is allocated, and parts of blocks, as programs that are not ours see and write them: a sparse file behind our
//! target.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::unistd::{Whence, lseek};
use ringfab_tests::{Service, TestTarget, have, not_run, run_bounded};

use crate::serve;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 2048;
/// First blocks with data, and how many.
const DATA: [(u64, u64); 3] = [(0, 1), (256, 16), (BLOCKS - 1, 1)];

/// A sparse file; `None` on a file system that does not say where its holes are.
fn sparse(path: &Path) -> Option<File> {
    let image = File::options().read(true).write(true).create_new(true).open(path).expect("an image");
    image.set_len(BLOCKS * BLOCK).expect("a size");
    for (first, blocks) in DATA {
        image.write_all_at(&vec![7; (blocks * BLOCK) as usize], first * BLOCK).expect("written");
    }
    let hole = lseek(&image, 0, Whence::SeekHole).expect("a place");
    if hole == BLOCK as i64 {
        return Some(image);
    }
    not_run(&format!("holes: {} does not say where they are", path.display()));
    None
}

/// Serves that file, if there is one.
fn with_target(act: impl Fn(&str, &Path)) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    let Some(_image) = sparse(&path) else { return };
    let namespace = format!("[[subsystem.namespace]]\npath = \"{}\"\nblock_bytes = 4096\n", path.display());
    let target = TestTarget::start(&namespace);
    act(&target.url("").to_string(), &path);
}

/// Offsets, lengths and kinds: 0 is data, 3 a hole that reads as zeroes.
fn expected() -> Vec<(u64, u64, u64)> {
    let (mut extents, mut at) = (Vec::new(), 0);
    for (first, blocks) in DATA {
        if first > at {
            extents.push((at * BLOCK, (first - at) * BLOCK, 3));
        }
        extents.push((first * BLOCK, blocks * BLOCK, 0));
        at = first + blocks;
    }
    extents
}

#[test]
fn nbdinfo_and_qemu_img_see_the_holes_of_a_file_and_copies_are_right() {
    for program in ["nbdinfo", "qemu-img", "nbdcopy"] {
        if !have(program) {
            return not_run(&format!("what is allocated: {program} is not installed"));
        }
    }
    with_target(|url, image| {
        let service = serve(url);
        let uri = uri(&service);
        let map = run_bounded(20, "nbdinfo", &["--map", &uri]);
        let line = |line: &str| {
            let mut numbers = line.split_whitespace().map_while(|word| word.parse::<u64>().ok());
            (
                numbers.next().expect("an offset"),
                numbers.next().expect("a length"),
                numbers.next().expect("a kind"),
            )
        };
        assert_eq!(map.lines().map(line).collect::<Vec<_>>(), expected(), "{map}");
        let json = run_bounded(20, "qemu-img", &["map", "--output=json", &uri]);
        let map: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let extent = |extent: &serde_json::Value| {
            let number = |name: &str| extent[name].as_u64().expect("a number");
            (number("start"), number("length"), if extent["zero"] == true { 3 } else { 0 })
        };
        let found: Vec<_> = map.as_array().expect("a list").iter().map(extent).collect();
        assert_eq!(found, expected(), "{json}");
        let bytes = fs::read(image).expect("read");
        for (program, arguments) in
            [("qemu-img", &["convert", "-f", "raw", "-O", "raw"][..]), ("nbdcopy", &["--sparse=4096"])]
        {
            let copy = service.path(program);
            let copy_text = copy.display().to_string();
            run_bounded(60, program, &[arguments, &[&uri, &copy_text]].concat());
            assert!(fs::read(&copy).expect("read") == bytes, "{program}: other bytes");
        }
    });
}

#[test]
fn qemu_io_and_fio_write_parts_of_blocks() {
    for program in ["qemu-io", "fio"] {
        if !have(program) {
            return not_run(&format!("parts of blocks: {program} is not installed"));
        }
    }
    with_target(|url, image| {
        let service = serve(url);
        let uri = uri(&service);
        let commands = [
            "write -P 0x11 1000 3000",
            "write -z 5000 9000",
            "discard 20000 30000",
            "read -P 0x11 1000 3000",
        ];
        let commands: Vec<&str> = commands.iter().flat_map(|command| ["-c", command]).collect();
        let said = run_bounded(20, "qemu-io", &[&["-f", "raw"], &commands[..], &[&uri]].concat());
        assert!(!said.contains("failed"), "{said}");
        let bytes = fs::read(image).expect("read");
        assert!(bytes[..1000] == [7; 1000] && bytes[1000..4000] == [0x11; 3000]);
        assert!(bytes[4000..4096] == [7; 96] && bytes[4096..14_000].iter().all(|byte| *byte == 0));
        let engines = run_bounded(20, "fio", &["--enghelp"]);
        if !engines.contains("nbd") {
            return not_run("parts of blocks with fio: it has no engine nbd");
        }
        for size in ["512", "1k"] {
            let (uri, size) = (format!("--uri={uri}"), format!("--bs={size}"));
            let job = [
                "--name=parts",
                "--ioengine=nbd",
                &uri,
                &size,
                "--rw=randwrite",
                "--iodepth=16",
                "--size=2m",
            ];
            let check = ["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--randrepeat=0"];
            run_bounded(120, "fio", &[&job[..], &check].concat());
        }
    });
}

fn uri(service: &Service) -> String {
    service.ready().trim().to_owned()
}
