//! What a namespace looks like to NBD clients.

use ringfab_initiator::{IoError, Namespace, SubmitError};
use ringfab_proto::nbd::{Command, Errno, Request, export, flag};
use ringfab_spec::Status;

/// Extents of one reply at most; a client asks again for the rest.
pub(crate) const EXTENTS_MAX: usize = 32;

/// The largest request that is advertised; larger ones are refused.
pub(crate) const REQUEST_BYTES_MAX: u32 = 32 << 20;
/// What is said of an export that is no more.
pub(crate) const REMOVED: &str = "the target has removed this namespace";
/// The least that is preferred: a page.
const PREFERRED_BYTES_MIN: u32 = 4096;

/// A namespace under a name.
#[derive(Clone, Debug)]
pub(crate) struct Export {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) namespace: Namespace,
    /// Whether the user forbids writing.
    pub(crate) read_only: bool,
    /// Whether the target has removed it, or its number is another disk's by now. Nobody finds it then, and who uses it
    /// is told.
    pub(crate) removed: bool,
}

/// Why a request is refused: for the client's program, and for its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) errno: Errno,
    /// For people.
    pub(crate) text: &'static str,
}

impl Refusal {
    pub(crate) const fn new(errno: Errno, text: &'static str) -> Self {
        Self { errno, text }
    }
}

impl Export {
    /// Size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.namespace.bytes()
    }

    /// Whether the user or the namespace forbids writing.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only || self.namespace.read_only
    }

    /// The transmission flags: what the controller can do, and no more. There is no SEND_FAST_ZERO, since a controller
    /// does not say how fast it is.
    pub(crate) fn flags(&self, structured: bool) -> u16 {
        let mut flags = export::HAS_FLAGS | export::SEND_FLUSH | export::SEND_FUA;
        // All connections are one controller, and Flush covers all that it wrote.
        flags |= export::CAN_MULTI_CONN;
        // Without structured replies nothing could be in pieces.
        if structured {
            flags |= export::SEND_DF;
        }
        if self.is_read_only() {
            return flags | export::READ_ONLY;
        }
        if self.namespace.discard_blocks_max > 0 && self.namespace.discard_ranges_max > 0 {
            flags |= export::SEND_TRIM;
        }
        if self.namespace.write_zeroes_blocks_max > 0 {
            flags |= export::SEND_WRITE_ZEROES;
        }
        flags
    }

    /// Minimum, preferred and maximum sizes of requests.
    pub(crate) fn block_sizes(&self) -> [u32; 3] {
        let block = self.namespace.block_bytes;
        let granularity = self.namespace.preferred_write_blocks.saturating_mul(block);
        // The preferred size is a power of two between the others. A request may begin and end anywhere.
        let preferred = granularity.max(block).clamp(PREFERRED_BYTES_MIN, REQUEST_BYTES_MAX);
        [1, preferred.next_power_of_two(), REQUEST_BYTES_MAX]
    }

    /// Whether a request can be carried out, as far as it says itself.
    pub(crate) fn check(&self, request: &Request) -> Result<(), Refusal> {
        let allowed = match request.command {
            Command::Read => flag::DF | flag::FUA,
            Command::WriteZeroes => flag::FUA | flag::NO_HOLE,
            Command::BlockStatus => flag::REQ_ONE,
            Command::Write | Command::Trim | Command::Flush => flag::FUA,
            Command::Disconnect | Command::Other(_) => {
                return Err(Refusal::new(Errno::Inval, "unknown command"));
            }
        };
        if request.flags & !allowed != 0 {
            return Err(Refusal::new(Errno::Inval, "a flag that this command does not have"));
        }
        if self.removed {
            return Err(Refusal::new(Errno::Io, REMOVED));
        }
        if request.command == Command::Flush {
            return Ok(());
        }
        let writes = !matches!(request.command, Command::Read | Command::BlockStatus);
        if writes && self.is_read_only() {
            return Err(Refusal::new(Errno::Perm, "the export is read only"));
        }
        let (sent_trim, sent_zeroes) =
            (request.command == Command::Trim, request.command == Command::WriteZeroes);
        let offered = self.flags(false);
        let unsupported = (sent_trim && offered & export::SEND_TRIM == 0)
            || (sent_zeroes && offered & export::SEND_WRITE_ZEROES == 0);
        if unsupported {
            return Err(Refusal::new(Errno::NotSup, "the controller does not do this"));
        }
        self.check_range(request)
    }

    fn check_range(&self, request: &Request) -> Result<(), Refusal> {
        let length = u64::from(request.length);
        if request.command == Command::BlockStatus && length == 0 {
            return Err(Refusal::new(Errno::Inval, "the status of no bytes"));
        }
        let end = request.offset.checked_add(length).filter(|end| *end <= self.bytes());
        if end.is_none() {
            let grows = matches!(request.command, Command::Write | Command::WriteZeroes);
            let error = if grows { Errno::NoSpc } else { Errno::Inval };
            return Err(Refusal::new(error, "beyond the end of the export"));
        }
        let moves_data = matches!(request.command, Command::Read | Command::Write);
        if moves_data && request.length > REQUEST_BYTES_MAX {
            return Err(Refusal::new(Errno::Overflow, "larger than the maximum block size"));
        }
        Ok(())
    }
}

/// How a failed command is told.
pub(crate) fn errno(error: IoError) -> Errno {
    let status = match error {
        IoError::Status(status) | IoError::Exhausted { status, .. } => status.code(),
        IoError::Cancelled => return Errno::Shutdown,
        IoError::Refused(SubmitError::NoCommand(_)) => return Errno::NotSup,
        IoError::Refused(SubmitError::NoNamespace(_) | SubmitError::Transport) => return Errno::Io,
        IoError::Refused(_) => return Errno::Inval,
        _ => return Errno::Io,
    };
    match status {
        Status::LBA_OUT_OF_RANGE | Status::INVALID_FIELD => Errno::Inval,
        Status::CAPACITY_EXCEEDED => Errno::NoSpc,
        Status::NAMESPACE_WRITE_PROTECTED => Errno::Perm,
        Status::INVALID_OPCODE => Errno::NotSup,
        _ => Errno::Io,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn export() -> Export {
        let mut namespace = Namespace::new(1, 1024, 4096);
        namespace.transfer_blocks_max = 32;
        namespace.write_zeroes_blocks_max = 65536;
        namespace.write_zeroes_deallocates = true;
        namespace.discard_blocks_max = 65536;
        namespace.discard_ranges_max = 256;
        namespace.discard_total_blocks_max = u64::MAX;
        namespace.deallocated_reads_zeroes = true;
        Export {
            name: "ns1".to_owned(),
            description: "a disk".to_owned(),
            namespace,
            read_only: false,
            removed: false,
        }
    }

    fn request(command: Command, flags: u16, offset: u64, length: u32) -> Request {
        Request { flags, command, cookie: 0, offset, length }
    }

    #[test]
    fn each_bad_request_has_the_error_of_the_specification() {
        let export = export();
        let end = export.bytes();
        for (command, flags, offset, length, error) in [
            (Command::Read, 0, end, 4096, Errno::Inval),
            (Command::Read, 0, u64::MAX - 4095, 4096, Errno::Inval),
            (Command::Write, 0, end - 4096, 8192, Errno::NoSpc),
            (Command::WriteZeroes, 0, end, 4096, Errno::NoSpc),
            (Command::Trim, 0, end, 4096, Errno::Inval),
            (Command::BlockStatus, 0, end, 1, Errno::Inval),
            (Command::BlockStatus, 0, 0, 0, Errno::Inval),
            (Command::BlockStatus, flag::DF, 0, 1, Errno::Inval),
            (Command::Read, flag::REQ_ONE, 0, 4096, Errno::Inval),
            (Command::WriteZeroes, 1 << 4, 0, 4096, Errno::Inval),
            (Command::Write, flag::NO_HOLE, 0, 4096, Errno::Inval),
            (Command::Other(7), 0, 0, 0, Errno::Inval),
        ] {
            let request = request(command, flags, offset, length);
            assert_eq!(export.check(&request).expect_err("refused").errno, error, "{request:?}");
        }
        assert!(export.check(&request(Command::Read, flag::DF, end - 4096, 4096)).is_ok());
        assert!(
            export.check(&request(Command::WriteZeroes, flag::NO_HOLE | flag::FUA, 0, end as u32)).is_ok()
        );
        assert!(export.check(&request(Command::Flush, flag::FUA, 1, 1)).is_ok());
        assert!(export.check(&request(Command::BlockStatus, flag::REQ_ONE, 0, end as u32)).is_ok());
        // Parts of blocks.
        for command in
            [Command::Read, Command::Write, Command::Trim, Command::WriteZeroes, Command::BlockStatus]
        {
            assert!(export.check(&request(command, 0, 511, 3)).is_ok(), "{command:?}");
        }
    }

    #[test]
    fn a_read_only_export_says_so_and_refuses_writes() {
        let export = Export { read_only: true, ..export() };
        let flags = export.flags(true);
        assert_eq!(
            flags & (export::READ_ONLY | export::SEND_TRIM | export::SEND_WRITE_ZEROES),
            export::READ_ONLY
        );
        for command in [Command::Write, Command::Trim, Command::WriteZeroes] {
            assert_eq!(export.check(&request(command, 0, 0, 4096)).expect_err("refused").errno, Errno::Perm);
        }
        assert!(export.check(&request(Command::Flush, 0, 0, 0)).is_ok());
    }

    #[test]
    fn what_the_controller_cannot_do_is_neither_offered_nor_done() {
        let mut export = export();
        export.namespace.write_zeroes_blocks_max = 0;
        export.namespace.discard_blocks_max = 0;
        assert_eq!(export.flags(true) & (export::SEND_TRIM | export::SEND_WRITE_ZEROES), 0);
        assert_eq!(
            export.check(&request(Command::Trim, 0, 0, 4096)).expect_err("refused").errno,
            Errno::NotSup
        );
    }

    #[test]
    fn what_can_only_be_with_structured_replies_is_offered_only_then() {
        assert_eq!(export().flags(true) ^ export().flags(false), export::SEND_DF);
    }

    #[test]
    fn every_request_of_an_export_that_was_removed_is_refused_with_the_reason() {
        let export = Export { removed: true, ..export() };
        for command in [Command::Read, Command::Write, Command::Flush, Command::Trim, Command::WriteZeroes] {
            assert_eq!(export.check(&request(command, 0, 0, 4096)), Err(Refusal::new(Errno::Io, REMOVED)));
        }
    }

    #[test]
    fn what_the_library_refuses_is_told_as_what_a_controller_refuses() {
        for (reason, status) in [
            (SubmitError::NoNamespace(1), Status::INVALID_NAMESPACE),
            (SubmitError::NoCommand("Write Zeroes"), Status::INVALID_OPCODE),
            (SubmitError::Range, Status::LBA_OUT_OF_RANGE),
            (SubmitError::Transport, Status::DATA_TRANSFER_ERROR),
        ] {
            assert_eq!(errno(reason.into()), errno(IoError::Status(status)), "{reason}");
        }
    }

    #[test]
    fn a_transfer_is_as_large_as_advertised_and_not_a_byte_larger() {
        let mut export = export();
        export.namespace.blocks = 1 << 20;
        let [_, _, maximum] = export.block_sizes();
        assert!(export.check(&request(Command::Read, 0, 0, maximum)).is_ok());
        let refused = export.check(&request(Command::Read, 0, 0, maximum + 1)).expect_err("refused");
        assert_eq!(refused.errno, Errno::Overflow);
    }

    proptest! {
        #[test]
        fn block_sizes_keep_the_rules_of_the_specification(block in 9_u32..17, granularity in 0_u32..=u32::MAX) {
            let mut export = export();
            export.namespace.block_bytes = 1 << block;
            export.namespace.preferred_write_blocks = granularity.max(1);
            let [minimum, preferred, maximum] = export.block_sizes();
            prop_assert!(minimum.is_power_of_two() && preferred.is_power_of_two());
            prop_assert!(minimum <= preferred && preferred <= maximum);
            prop_assert_eq!(maximum % minimum, 0);
        }

        #[test]
        fn no_accepted_request_leaves_the_export(
            command in prop::sample::select(vec![Command::Read, Command::Write, Command::Trim, Command::WriteZeroes]),
            flags: u16, offset: u64, length: u32,
        ) {
            let export = export();
            if export.check(&request(command, flags & 7, offset & 0x7f_ffff, length)).is_ok() {
                prop_assert!((offset & 0x7f_ffff) + u64::from(length) <= export.bytes());
            }
        }
    }
}
