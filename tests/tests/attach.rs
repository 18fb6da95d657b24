//! Both ends over the software RNIC: the commands of an ordinary host.

use std::fmt::Write as _;

use ringfab_spec::{Status, SubmissionEntry};
use ringfab_tests::TestTarget;
use ringfab_tests::raw_host::RawHost;

const MEMORY: &str = "[[subsystem.namespace]]\nmemory = \"64MiB\"\nblock_bytes = 512\n";

#[test]
fn what_was_written_is_read_back_whatever_its_size() {
    let target = TestTarget::start(MEMORY);
    let controller = target.attach();
    assert_eq!(controller.namespaces().len(), 1);
    for (index, bytes) in [512, 4096, 8192, 8704, 131_072, 1 << 20, 3 << 20].into_iter().enumerate() {
        let written: Vec<u8> = (0..bytes).map(|byte| (byte * 31 + index) as u8).collect();
        let offset = 512 * (index as u64 + 1);
        controller.write_at(1, offset, &written, index % 2 == 0).expect("written");
        let mut read = vec![0; bytes];
        controller.read_at(1, offset, &mut read).expect("read");
        assert!(read == written, "{bytes} bytes came back changed");
    }
    controller.flush(1).expect("flushed");
    controller.detach().expect("detached");
}

#[test]
fn what_is_read_of_memory_is_sent_from_where_it_lies() {
    const BYTES: usize = 16_384;
    for listener in ["", "crc = false", "transport = \"tcp\""] {
        let target = TestTarget::with_listener(listener, MEMORY);
        let controller = target.attach();
        let written: Vec<u8> = (0..BYTES).map(|byte| (byte / 7) as u8).collect();
        controller.write_at(1, 0, &written, false).expect("written");
        for (offset, bytes) in [(0, BYTES), (512, 4096), (1024, 512)] {
            let mut read = vec![0; bytes];
            controller.read_at(1, offset as u64, &mut read).expect("read");
            assert!(read == written[offset..offset + bytes], "{bytes} bytes with {listener:?}");
        }
        // Each answer fits into an idle socket, so that nothing of it outlasts its turn.
        let usage = target.usage();
        let copied: u64 = usage.iter().map(|core| core.copied_bytes.disks).sum();
        assert_eq!(copied, BYTES as u64, "what was written, and nothing that was read, with {listener:?}");
        controller.detach().expect("detached");
    }
}

#[test]
fn zeroes_and_compare_do_what_they_say() {
    let target = TestTarget::start(MEMORY);
    let controller = target.attach();
    controller.write_at(1, 0, &[0xab; 16_384], false).expect("written");
    assert!(controller.compare(1, 0, &[0xab; 16_384]).expect("compared"));
    controller.verify(1, 0, 3 << 20).expect("read, in several commands");
    controller.write_zeroes(1, 4096, 4096, true).expect("zeroed");
    assert!(!controller.compare(1, 0, &[0xab; 16_384]).expect("compared"));
    let mut read = vec![0; 16_384];
    controller.read_at(1, 0, &mut read).expect("read");
    for (offset, byte) in read.iter().enumerate() {
        assert_eq!(*byte, if (4096..8192).contains(&offset) { 0 } else { 0xab }, "byte {offset}");
    }
    controller.detach().expect("detached");
}

#[test]
fn a_flush_of_all_namespaces_ends_once_each_of_several_hundred_was_flushed() {
    let folder = tempfile::tempdir().expect("a folder");
    // Those that need no I/O come first, so that a completion which is taken for one of theirs is lost.
    let mut namespaces = "[[subsystem.namespace]]\nnull = \"1MiB\"\n".repeat(256);
    for name in ["first", "second"] {
        let image = folder.path().join(name);
        std::fs::File::create(&image).and_then(|file| file.set_len(1 << 20)).expect("an image");
        let lines = "direct = false\nallow_page_cache = true";
        writeln!(namespaces, "[[subsystem.namespace]]\npath = {image:?}\n{lines}").expect("text");
    }
    let target = TestTarget::start(&namespaces);
    let mut host = RawHost::new(target.address());
    let association = host.attach();
    let queue = host.attach_io(association, 1, 32);
    for _ in 0..3 {
        let cid = host.next_cid();
        let completion = host.command(queue, &SubmissionEntry::flush(cid, u32::MAX));
        assert_eq!(completion.status(), Status::SUCCESS);
    }
}
