//! Plays one side of a recording on a socket.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use ringfab_tests::recording::{From, Recording, fpdus, mpa_bytes, sign};

/// How long the other side may take to answer before the rest is sent all the same.
const ANSWER: Duration = Duration::from_millis(30);

/// How long the other side may take to end a connection whose peer has said its last word.
const END: Duration = Duration::from_secs(5);

/// Bytes of an FPDU that are all tried: length, DDP and RDMAP headers, a capsule.
const HEADER_BYTES: usize = 96;

/// Of the bytes behind them, one in so many is tried.
const PAYLOAD_STEP: usize = 61;

/// Everything that one side sent.
pub(crate) fn stream_of(recording: &Recording, side: From) -> Vec<u8> {
    recording.iter().filter(|(from, _)| *from == side).flat_map(|(_, bytes)| bytes.clone()).collect()
}

/// The recording with other bytes on one side, in pieces as before. It ends with the last of them.
pub(crate) fn with_stream(recording: &Recording, side: From, mut stream: &[u8]) -> Recording {
    let mut changed = Recording::new();
    for (from, bytes) in recording {
        if stream.is_empty() {
            break;
        }
        if *from != side {
            changed.push((*from, bytes.clone()));
            continue;
        }
        let (now, later) = stream.split_at(stream.len().min(bytes.len()));
        changed.push((side, now.to_vec()));
        stream = later;
    }
    changed.push((side, stream.to_vec()));
    changed
}

/// The streams that differ from a recorded one in a flipped byte or a length, in a fixed order.
pub(crate) fn damaged(stream: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for at in 0..mpa_bytes(stream) {
        all.push((format!("byte {at} of the MPA frame"), flipped(stream, at, 0xff)));
    }
    for length in [0, 1, 511, 512, 513, u16::MAX] {
        let mut changed = stream.to_vec();
        changed[18..20].copy_from_slice(&length.to_be_bytes());
        all.push((format!("{length} bytes of private data"), changed));
    }
    for (at, length) in fpdus(stream) {
        let end = (at + 2 + length).next_multiple_of(4).min(stream.len());
        let tried = (at..end.min(at + HEADER_BYTES)).chain((at + HEADER_BYTES..end).step_by(PAYLOAD_STEP));
        for byte in tried {
            all.push((format!("byte {byte}"), flipped(stream, byte, 0xff)));
            for mask in [0xff, 0x01] {
                let mut changed = flipped(stream, byte, mask);
                sign(&mut changed, at, length);
                all.push((format!("byte {byte} by {mask:#x}, signed"), changed));
            }
        }
        for wrong in [0, 1, length as u16 - 1, length as u16 + 1, 0x7fff, 0xfffe, u16::MAX] {
            let mut changed = stream.to_vec();
            changed[at..at + 2].copy_from_slice(&wrong.to_be_bytes());
            sign(&mut changed, at, length);
            all.push((format!("length {wrong} at {at}"), changed));
        }
    }
    all
}

fn flipped(stream: &[u8], at: usize, mask: u8) -> Vec<u8> {
    let mut changed = stream.to_vec();
    changed[at] ^= mask;
    changed
}

/// Plays one side: says its part whenever the other has said as much as was recorded, and then says no more.
///
/// # Panics
/// When the other side does not end the connection.
pub(crate) fn play(mut stream: TcpStream, recording: &Recording, side: From, what: &str) {
    stream.set_nodelay(true).expect("an option");
    let mut patience = ANSWER;
    for (from, bytes) in recording {
        if *from == side {
            if stream.write_all(bytes).is_err() {
                break;
            }
        } else if !hear(&mut stream, bytes.len(), patience) {
            patience = Duration::from_millis(1);
        }
    }
    let _gone = stream.shutdown(Shutdown::Write);
    assert!(ends(&mut stream), "{what}: the connection did not end");
}

/// Whether so many bytes came in time.
fn hear(stream: &mut TcpStream, mut missing: usize, patience: Duration) -> bool {
    stream.set_read_timeout(Some(patience)).expect("an option");
    let mut buffer = [0; 16_384];
    while missing > 0 {
        match stream.read(&mut buffer[..missing.min(16_384)]) {
            Ok(count @ 1..) => missing -= count,
            _ => return false,
        }
    }
    true
}

/// Whether the stream ends in time, whatever still comes.
pub(crate) fn ends(stream: &mut TcpStream) -> bool {
    let begun = Instant::now();
    stream.set_read_timeout(Some(END)).expect("an option");
    let mut buffer = [0; 16_384];
    while begun.elapsed() < END {
        match stream.read(&mut buffer) {
            Ok(1..) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return false;
            }
            Ok(0) | Err(_) => return true,
        }
    }
    false
}
