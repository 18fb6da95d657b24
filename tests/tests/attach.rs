//! Both ends over the software RNIC: the commands of an ordinary host.

use ringfab_tests::TestTarget;

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
fn zeroes_and_compare_do_what_they_say() {
    let target = TestTarget::start(MEMORY);
    let controller = target.attach();
    controller.write_at(1, 0, &[0xab; 16_384], false).expect("written");
    assert!(controller.compare(1, 0, &[0xab; 16_384]).expect("compared"));
    controller.write_zeroes(1, 4096, 4096, true).expect("zeroed");
    assert!(!controller.compare(1, 0, &[0xab; 16_384]).expect("compared"));
    let mut read = vec![0; 16_384];
    controller.read_at(1, 0, &mut read).expect("read");
    for (offset, byte) in read.iter().enumerate() {
        assert_eq!(*byte, if (4096..8192).contains(&offset) { 0 } else { 0xab }, "byte {offset}");
    }
    controller.detach().expect("detached");
}
