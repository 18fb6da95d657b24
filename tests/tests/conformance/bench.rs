//! A target with a healthy host and one that is about to go wrong.

use ringfab_fabric::rdma::QueuePairId;
use ringfab_initiator::blocking::Controller;
use ringfab_spec::log::{ErrorInformation, LogId, ParameterErrorLocation};
use ringfab_spec::{CompletionEntry, FromBytes, Status, SubmissionEntry};
use ringfab_tests::TestTarget;
use ringfab_tests::raw_host::{Association, RawHost};

/// Blocks of namespace 1.
pub(crate) const BLOCKS: u64 = (64 << 20) / 512;

/// Namespace 1 is writable, 2 is read-only; a second subsystem knows its hosts by name.
const NAMESPACES: &str = "[[subsystem.namespace]]\nmemory = \"64MiB\"\nblock_bytes = 512\n\
    [[subsystem.namespace]]\nmemory = \"1MiB\"\nblock_bytes = 4096\nread_only = true\n\
    [[subsystem]]\nnqn = \"nqn.2026-11.org.ringfab:private\"\n\
    allowed_hosts = [\"nqn.2026-11.org.ringfab:a-friend\"]\n\
    [[subsystem.namespace]]\nmemory = \"1MiB\"\n";

/// The subsystem that is not for everyone.
pub(crate) const PRIVATE_NQN: &str = "nqn.2026-11.org.ringfab:private";

/// Where a field is: byte, and bit in it.
pub(crate) type Place = Option<(u8, u8)>;

/// Dropping it checks that the healthy host can still work, and that a new one can come.
pub(crate) struct Bench {
    pub(crate) host: RawHost,
    healthy: Controller,
    pub(crate) target: TestTarget,
}

/// A ready controller with one I/O queue of 32 entries.
#[derive(Clone, Copy)]
pub(crate) struct Attached {
    pub(crate) association: Association,
    pub(crate) admin: QueuePairId,
    pub(crate) io: QueuePairId,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let target = TestTarget::start(NAMESPACES);
        let healthy = target.attach();
        let host = RawHost::new(target.address());
        Self { host, healthy, target }
    }

    pub(crate) fn attached() -> (Self, Attached) {
        let mut bench = Self::new();
        let association = bench.host.attach();
        let io = bench.host.attach_io(association, 1, 32);
        (bench, Attached { association, admin: association.admin, io })
    }

    /// The newest entry of a controller's Error Information log.
    pub(crate) fn newest_error(&mut self, attached: Attached) -> ErrorInformation {
        let cid = self.host.next_cid();
        let entry = SubmissionEntry::get_log_page(cid, LogId::ERROR_INFORMATION.0, u32::MAX, 0, 64, true);
        let (completion, bytes) = self.host.fetch(attached.admin, &entry, 64);
        assert_eq!(completion.status(), Status::SUCCESS, "the log page itself");
        ErrorInformation::read_from_bytes(&bytes).expect("64 bytes")
    }

    /// The log has this failure as its newest.
    pub(crate) fn is_logged(
        &mut self,
        attached: Attached,
        queue_id: u16,
        entry: &SubmissionEntry,
        failure: (Status, Place),
    ) {
        let error = self.newest_error(attached);
        let (status, place) = failure;
        let place = place.map_or_else(ParameterErrorLocation::none, |(byte, bit)| {
            ParameterErrorLocation::default().with_byte(byte).with_bit(bit)
        });
        assert!(error.error_count.get() > 0, "an entry that is used");
        assert_eq!(error.sqid.get(), queue_id);
        assert_eq!(error.cid.get(), entry.cid.get());
        assert_eq!(error.status(), status);
        assert_eq!(error.parameter_error_location, place, "the place in the log");
        assert_eq!(error.nsid.get(), entry.nsid.get());
    }

    /// An I/O command ends with this status, not to be tried again, and the log says where.
    pub(crate) fn io_refused(
        &mut self,
        attached: Attached,
        entry: &SubmissionEntry,
        failure: (Status, Place),
    ) {
        let completion = self.host.command(attached.io, entry);
        self.check_io(attached, entry, &completion, failure);
    }

    /// The same for an answer that is here already.
    pub(crate) fn check_io(
        &mut self,
        attached: Attached,
        entry: &SubmissionEntry,
        completion: &CompletionEntry,
        failure: (Status, Place),
    ) {
        let (status, place) = (failure.0.with_dnr(), failure.1);
        assert_eq!(completion.status(), status);
        self.is_logged(attached, 1, entry, (status, place));
    }

    /// The newest failure in the log is that of an I/O command, without a place.
    pub(crate) fn check_newest(&mut self, attached: Attached, entry: &SubmissionEntry, status: Status) {
        self.is_logged(attached, 1, entry, (status.with_dnr(), None));
    }

    /// An admin command ends with this status, not to be tried again, and the log says where.
    pub(crate) fn admin_refused(
        &mut self,
        attached: Attached,
        entry: &SubmissionEntry,
        failure: (Status, Place),
    ) {
        let (status, place) = (failure.0.with_dnr(), failure.1);
        assert_eq!(self.host.command(attached.admin, entry).status(), status);
        self.is_logged(attached, 0, entry, (status, place));
    }

    /// The queue still works.
    pub(crate) fn io_works(&mut self, attached: Attached) {
        let cid = self.host.next_cid();
        let entry = SubmissionEntry::read(cid, 1, 0, 8);
        let (completion, bytes) = self.host.fetch(attached.io, &entry, 4096);
        assert_eq!(completion.status(), Status::SUCCESS);
        assert!(bytes.iter().all(|byte| *byte != 0xee), "the data came");
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let offset = 32 << 20;
        let written: Vec<u8> = (0..200_000_u32 / 512 * 512).map(|byte| (byte % 251) as u8).collect();
        self.healthy.write_at(1, offset, &written, true).expect("the healthy host writes");
        let mut read = vec![0; written.len()];
        self.healthy.read_at(1, offset, &mut read).expect("the healthy host reads");
        assert!(read == written, "the healthy host's data changed");
        let newcomer = self.target.attach();
        newcomer.flush(1).expect("a new host works");
        newcomer.detach().expect("it leaves in order");
    }
}
