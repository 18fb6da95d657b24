//! What an NBD server says to a client: the handshake, and heads of replies. In pieces both mean the same as in one.
#![cfg_attr(feature = "libfuzzer", no_main)]

use ringfab_fuzz::fuzz_target;
use ringfab_proto::nbd::{ClientHandshake, ExportInfo, HandshakeError, ReplyHead, Wanted};

fuzz_target!(|input: &[u8]| {
    for wanted in [Wanted::Use, Wanted::Info] {
        let whole = shake_hands(input, input.len().max(1), wanted);
        // Who only asks leaves as soon as he knows, whatever comes then.
        if wanted == Wanted::Use || whole.0.is_ok() {
            assert_eq!(shake_hands(input, 7, wanted).1.len(), whole.1.len());
        }
        if let Ok(Some(info)) = whole.0 {
            let sizes = info.block_sizes;
            assert!(sizes.minimum.is_power_of_two() && sizes.maximum >= sizes.minimum);
        }
    }
    read_heads(input);
});

type Outcome = Result<Option<ExportInfo>, HandshakeError>;

/// How a handshake ends whose bytes come in such pieces, and what the client has said.
fn shake_hands(input: &[u8], piece: usize, wanted: Wanted) -> (Outcome, Vec<u8>) {
    let (mut client, mut said) = (ClientHandshake::new("disk", wanted), Vec::new());
    for bytes in input.chunks(piece) {
        let outcome = client.receive(bytes);
        said.extend(client.take_output());
        if !matches!(outcome, Ok(None)) {
            return (outcome, said);
        }
    }
    (Ok(None), said)
}

/// Heads of replies without content: each needs more bytes, or says how many it has.
fn read_heads(mut input: &[u8]) {
    while let Ok(Some((head, bytes))) = ReplyHead::parse(input) {
        assert!(bytes <= ReplyHead::BYTES_MAX);
        for end in 0..bytes {
            assert_eq!(ReplyHead::parse(&input[..end]), Ok(None));
        }
        assert_eq!(ReplyHead::parse(&input[..bytes]), Ok(Some((head, bytes))));
        input = &input[bytes..];
    }
}
