//! A disk that is gone while it is served, in an access group that follows it: hosts are to go elsewhere, and get no
//! error of the disk.

use ringfab_spec::log::{AnaState, LogId};
use ringfab_spec::{Status, SubmissionEntry};
use ringfab_tests::TestTarget;
use ringfab_tests::devices::socket::SocketServer;
use ringfab_tests::raw_host::RawHost;

const DISK_BYTES: usize = 1 << 20;

#[test]
fn commands_that_a_lost_disk_had_begun_and_those_after_it_end_with_the_status_of_the_state() {
    for (on_lost_disk, status, state) in [
        ("error", Status::NAMESPACE_NOT_READY, AnaState::OPTIMIZED),
        ("inaccessible", Status::ANA_INACCESSIBLE, AnaState::INACCESSIBLE),
        ("persistent-loss", Status::ANA_PERSISTENT_LOSS, AnaState::PERSISTENT_LOSS),
    ] {
        let server = SocketServer::start(DISK_BYTES).expect("a server");
        let target = TestTarget::with_followed_device(on_lost_disk, server.driver(DISK_BYTES as u64));
        let mut host = RawHost::new(target.address());
        let association = host.attach();
        let io = host.attach_io(association, 1, 32);
        let mut read = || {
            let entry = SubmissionEntry::read(host.next_cid(), 1, 0, 1);
            host.fetch(io, &entry, 4096).0.status()
        };
        assert_eq!(read(), Status::SUCCESS);
        server.cut();
        // The first is the disk's own failure, the second finds that it is gone.
        assert_eq!([read(), read()], [status; 2], "{on_lost_disk}");
        let entry = SubmissionEntry::get_log_page(host.next_cid(), LogId::ANA.0, u32::MAX, 0, 52, false);
        let (completion, page) = host.fetch(association.admin, &entry, 52);
        assert_eq!((completion.status(), AnaState(page[32])), (Status::SUCCESS, state), "{on_lost_disk}");
        // The disk is gone, so its last flush may fail.
        let _ended = target.end();
    }
}
