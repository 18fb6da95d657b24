//! What an NBD client says: the handshake, and requests. In pieces the handshake means the same as in one.
#![cfg_attr(feature = "libfuzzer", no_main)]

#[path = "../../../initiator/front-ends/src/nbd/export.rs"]
#[expect(dead_code, reason = "the server uses more of it")]
mod export;
#[path = "../../../initiator/front-ends/src/nbd/negotiation.rs"]
#[expect(dead_code, reason = "the server uses more of it")]
mod negotiation;

use ringfab_fuzz::fuzz_target;
use ringfab_initiator::Namespace;
use ringfab_proto::nbd::{Command, REQUEST_BYTES, Request};

use export::Export;
use negotiation::{Negotiation, OPTION_BYTES_MAX, Progress};

fuzz_target!(|input: &[u8]| {
    let exports = [named("ns1"), named("ns2")];
    let whole = negotiate(input, input.len().max(1), &exports);
    assert_eq!(negotiate(input, 7, &exports), whole);
    for bytes in input.chunks_exact(REQUEST_BYTES) {
        let bytes = bytes.try_into().expect("as long as a request");
        // A Flush has no range.
        if let Some(request) = Request::parse(bytes)
            && request.command != Command::Flush
            && exports[0].check(&request).is_ok()
        {
            let end = request.offset.checked_add(u64::from(request.length)).expect("it was checked");
            assert!(end <= exports[0].bytes());
        }
    }
});

/// How a handshake ends whose bytes come in such pieces, and what was answered.
fn negotiate(input: &[u8], piece: usize, exports: &[Export]) -> (Result<Progress, &'static str>, Vec<u8>) {
    let (mut negotiation, mut output, mut pending) = (Negotiation::new(), Vec::new(), Vec::new());
    for bytes in input.chunks(piece) {
        pending.extend_from_slice(bytes);
        match negotiation.advance(&pending, exports, &mut output) {
            Ok((taken, Progress::More)) => {
                pending.drain(..taken);
                assert!(pending.len() < OPTION_BYTES_MAX, "a server's buffer would be full");
            }
            Ok((_, progress)) => return (Ok(progress), output),
            Err(violation) => return (Err(violation), output),
        }
    }
    (Ok(Progress::More), output)
}

fn named(name: &str) -> Export {
    let mut namespace = Namespace::new(1, 1024, 4096);
    namespace.transfer_blocks_max = 32;
    namespace.write_zeroes_blocks_max = 65536;
    namespace.discard_blocks_max = 65536;
    namespace.discard_ranges_max = 256;
    namespace.discard_total_blocks_max = u64::MAX;
    namespace.preferred_write_blocks = 8;
    Export { name: name.to_owned(), description: String::new(), namespace, read_only: false, removed: false }
}
