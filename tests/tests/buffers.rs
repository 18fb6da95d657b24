//! What commands wait for when a core has few buffers, and what one host can take from the others.

use ringfab_spec::{Status, SubmissionEntry};
use ringfab_tests::TestTarget;
use ringfab_tests::raw_host::RawHost;

/// The fewest buffers that a configuration may ask for.
const FEW_BUFFERS: &str = "cores = 1\nspin_us = 20\n[memory]\nsmall_buffers = 16\nlarge_buffers = 32";

/// A file of 1 MiB as a namespace: disks of memory would be done with a command before the next one comes.
fn file_namespace(folder: &tempfile::TempDir) -> String {
    let image = folder.path().join("image");
    std::fs::write(&image, vec![0xab; 1 << 20]).expect("an image");
    let lines = "block_bytes = 512\ndirect = false\nallow_page_cache = true";
    format!("[[subsystem.namespace]]\npath = {image:?}\n{lines}\n")
}

#[test]
fn compares_with_their_data_wait_for_buffers_and_do_not_fail_for_want_of_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = TestTarget::with_target(FEW_BUFFERS, &file_namespace(&folder));
    let mut host = RawHost::new(target.address());
    let association = host.attach();
    let queue = host.attach_io(association, 1, 128);
    // Their data alone fill the pool.
    let entries: Vec<SubmissionEntry> =
        (0..100).map(|lba| SubmissionEntry::compare(host.next_cid(), 1, lba, 1)).collect();
    for (data, status) in [([0xab; 512], Status::SUCCESS), ([0xba; 512], Status::COMPARE_FAILURE.with_dnr())]
    {
        host.send_together(queue, &entries, &data);
        for _ in &entries {
            assert_eq!(host.completion(queue).status(), status);
        }
    }
}
