//! What commands wait for when a core has few buffers, and what one host can take from the others.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use ringfab_fabric::rdma::Access;
use ringfab_spec::{Status, SubmissionEntry};
use ringfab_tests::raw_host::RawHost;
use ringfab_tests::{TestTarget, not_run};

/// A whole transfer of MDTS.
const LARGE: usize = 1 << 20;

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

/// Two connections of one host have far more on their way than the core has buffers, and then it does nothing. Another
/// one, at another address, does not notice.
fn a_host_that_stops(access: Access, entry: impl Fn(u16) -> SubmissionEntry) {
    if TcpListener::bind("[::1]:0").is_err() {
        return not_run("IPv6: there is no second address of this machine");
    }
    let namespace = "[[subsystem.namespace]]\nmemory = \"64MiB\"\nblock_bytes = 512\n";
    let other_address = "[[listener]]\naddress = \"::1\"\nport = 0\n";
    let target = TestTarget::start(&format!("{namespace}{other_address}"));
    let mut host = RawHost::new(target.address());
    let association = host.attach();
    let queues = [1, 2].map(|queue_id| host.attach_io(association, queue_id, 128));
    let memory = host.expose(&vec![7; LARGE], access);
    for queue in queues {
        let entries: Vec<_> = (0..100).map(|cid| entry(cid).with_sgl(memory.sgl())).collect();
        host.send_and_stop(queue, &entries);
    }
    let other = target.attach_at(target.other_addresses()[0]);
    // What has arrived by then takes the buffers. If it is less, the others are hindered less.
    std::thread::sleep(Duration::from_millis(300));
    let begun = Instant::now();
    for offset in 0..16 {
        other.write_at(1, offset * LARGE as u64, &vec![1; LARGE], false).expect("the others go on");
        other.read_at(1, offset * LARGE as u64, &mut vec![0; LARGE]).expect("the others go on");
    }
    let waited = begun.elapsed();
    assert!(waited < Duration::from_secs(5), "{waited:?}: until the connection was given up");
    other.detach().expect("detached");
}

#[test]
fn a_host_that_does_not_give_its_data_leaves_the_others_enough_to_go_on() {
    a_host_that_stops(Access::RemoteRead, |cid| SubmissionEntry::write(cid, 1, 0, 2048, false));
}

#[test]
fn a_host_that_stops_reading_leaves_the_others_enough_to_go_on() {
    a_host_that_stops(Access::RemoteWrite, |cid| SubmissionEntry::read(cid, 1, 0, 2048));
}
