//! What went over the wire, as a file that packet analysers read.
//!
//! The streams are cut into TCP segments as a network might have carried them, with addresses, ports, sequence numbers
//! and checksums that fit; FPDUs start segments, as RFC 5044 recommends. Lost segments, timing and windows are not
//! there, because user space does not see them.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

/// Whether captures can be made: in Debug builds, or with the feature `capture`.
const AVAILABLE: bool = cfg!(any(debug_assertions, feature = "capture"));

/// The classic format with microseconds.
const MAGIC: u32 = 0xa1b2_c3d4;

/// Packets start with an IP header.
const LINK_TYPE_RAW: u32 = 101;

/// The longest TCP payload of a segment: the IP length field covers both headers, IPv6's without its own.
const SEGMENT_BYTES_MAX: usize = 65_535 - 20 - 20;

const TCP_HEADER_BYTES: usize = 20;
const TCP_PROTOCOL: u8 = 6;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const PUSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// A capture file.
#[derive(Debug)]
pub(super) struct Capture {
    file: BufWriter<File>,
    failed: bool,
}

/// One connection's traffic.
#[derive(Debug)]
pub(super) struct Tap {
    sent: Flow,
    received: Flow,
    framing: bool,
}

/// One direction of it.
#[derive(Debug)]
struct Flow {
    source: SocketAddr,
    target: SocketAddr,
    sequence: u32,
    pending: Vec<u8>,
}

impl Capture {
    /// Makes the file.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        if !AVAILABLE {
            let what = "this build cannot capture: build it with the feature `capture`";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(&MAGIC.to_le_bytes())?;
        file.write_all(&[2, 0, 4, 0])?;
        file.write_all(&[0; 8])?;
        file.write_all(&0x4_0000_u32.to_le_bytes())?;
        file.write_all(&LINK_TYPE_RAW.to_le_bytes())?;
        Ok(Self { file, failed: false })
    }

    fn write_packet(&mut self, at: Duration, packet: &[u8]) {
        let mut record = [0; 16];
        let length = packet.len() as u32;
        let fields = [at.as_secs() as u32, at.subsec_micros(), length, length];
        for (place, field) in record.chunks_exact_mut(4).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        let written = self.file.write_all(&record).and_then(|()| self.file.write_all(packet));
        self.note(written);
    }

    fn flush(&mut self) {
        let flushed = self.file.flush();
        self.note(flushed);
    }

    /// A full disk must not end connections; it is said once.
    fn note(&mut self, result: io::Result<()>) {
        if let Err(error) = result
            && !self.failed
        {
            self.failed = true;
            tracing::warn!(%error, "the capture is incomplete");
        }
    }
}

impl Tap {
    /// Starts with the TCP handshake; `active` when our side connects. `addresses` are (local, peer).
    pub(super) fn open(
        capture: &mut Capture,
        now: Duration,
        addresses: (SocketAddr, SocketAddr),
        active: bool,
    ) -> Self {
        let (local, peer) = addresses;
        let flow = |source, target, sequence| Flow { source, target, sequence, pending: Vec::new() };
        let mut tap =
            Self { sent: flow(local, peer, 0x1000), received: flow(peer, local, 0x2000), framing: false };
        let (first, second) =
            if active { (&mut tap.sent, &mut tap.received) } else { (&mut tap.received, &mut tap.sent) };
        first.write(capture, now, 0, SYN, &[]);
        second.write(capture, now, first.sequence, SYN | ACK, &[]);
        first.write(capture, now, second.sequence, ACK, &[]);
        tap
    }

    /// From now on both streams carry FPDUs.
    pub(super) fn start_framing(&mut self) {
        self.framing = true;
    }

    /// Bytes that we send.
    pub(super) fn sent(&mut self, bytes: &[u8]) {
        if AVAILABLE {
            self.sent.pending.extend_from_slice(bytes);
        }
    }

    /// Bytes that came.
    pub(super) fn received(&mut self, bytes: &[u8]) {
        if AVAILABLE {
            self.received.pending.extend_from_slice(bytes);
        }
    }

    /// Writes what is complete.
    pub(super) fn flush(&mut self, capture: &mut Capture, now: Duration) {
        let framing = self.framing;
        self.received.flush(capture, now, self.sent.sequence, framing);
        self.sent.flush(capture, now, self.received.sequence, framing);
    }

    /// Writes everything and the end of both streams.
    pub(super) fn close(mut self, capture: &mut Capture, now: Duration) {
        self.flush(capture, now);
        self.received.flush(capture, now, self.sent.sequence, false);
        self.sent.flush(capture, now, self.received.sequence, false);
        self.sent.write(capture, now, self.received.sequence, FIN | ACK, &[]);
        self.received.write(capture, now, self.sent.sequence, FIN | ACK, &[]);
        self.sent.write(capture, now, self.received.sequence, ACK, &[]);
        capture.flush();
    }
}

impl Flow {
    fn flush(&mut self, capture: &mut Capture, now: Duration, acknowledged: u32, framing: bool) {
        let pending = std::mem::take(&mut self.pending);
        let mut rest = pending.as_slice();
        while let Some(length) = self.next_unit(rest, framing) {
            let (unit, after) = rest.split_at(length);
            for segment in unit.chunks(SEGMENT_BYTES_MAX) {
                self.write(capture, now, acknowledged, PUSH | ACK, segment);
            }
            rest = after;
        }
        self.pending = rest.to_vec();
    }

    /// The length of what may be written together: an FPDU, or everything.
    fn next_unit(&self, bytes: &[u8], framing: bool) -> Option<usize> {
        if !framing {
            return (!bytes.is_empty()).then_some(bytes.len());
        }
        let ulpdu = usize::from(u16::from_be_bytes(*bytes.first_chunk()?));
        let length = (2 + ulpdu).next_multiple_of(4) + 4;
        (bytes.len() >= length).then_some(length)
    }

    fn write(&mut self, capture: &mut Capture, now: Duration, acknowledged: u32, flags: u8, payload: &[u8]) {
        let acknowledged = if flags & ACK != 0 { acknowledged } else { 0 };
        let tcp = self.tcp_header(acknowledged, flags, payload);
        let mut packet = self.ip_header(tcp.len() + payload.len());
        packet.extend_from_slice(&tcp);
        packet.extend_from_slice(payload);
        capture.write_packet(now, &packet);
        let flag_count = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
        self.sequence = self.sequence.wrapping_add(payload.len() as u32 + flag_count);
    }

    fn tcp_header(&self, acknowledged: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut header = Vec::with_capacity(TCP_HEADER_BYTES);
        header.extend_from_slice(&self.source.port().to_be_bytes());
        header.extend_from_slice(&self.target.port().to_be_bytes());
        header.extend_from_slice(&self.sequence.to_be_bytes());
        header.extend_from_slice(&acknowledged.to_be_bytes());
        header.extend_from_slice(&[(TCP_HEADER_BYTES as u8 / 4) << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
        let length = (TCP_HEADER_BYTES + payload.len()) as u32;
        let pseudo = address_sum(self.source.ip()) + address_sum(self.target.ip());
        let pseudo = pseudo + u64::from(TCP_PROTOCOL) + u64::from(length);
        let sum = fold(pseudo + sum_words(&header) + sum_words(payload));
        header[16..18].copy_from_slice(&(!sum).to_be_bytes());
        header
    }

    fn ip_header(&self, length: usize) -> Vec<u8> {
        match (self.source.ip(), self.target.ip()) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                let total = (20 + length) as u16;
                let mut header = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, TCP_PROTOCOL, 0, 0];
                header[2..4].copy_from_slice(&total.to_be_bytes());
                header.extend_from_slice(&source.octets());
                header.extend_from_slice(&target.octets());
                let sum = fold(sum_words(&header));
                header[10..12].copy_from_slice(&(!sum).to_be_bytes());
                header
            }
            (source, target) => {
                let mut header = vec![0x60, 0, 0, 0, 0, 0, TCP_PROTOCOL, 64];
                header[4..6].copy_from_slice(&(length as u16).to_be_bytes());
                header.extend_from_slice(&as_v6(source));
                header.extend_from_slice(&as_v6(target));
                header
            }
        }
    }
}

fn as_v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn address_sum(address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(address) => sum_words(&address.octets()),
        IpAddr::V6(address) => sum_words(&address.octets()),
    }
}

/// The sum of 16-bit big-endian words, of which a last odd byte is the upper half.
fn sum_words(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(2);
    let odd = words.remainder().first().map_or(0, |byte| u64::from(*byte) << 8);
    words.map(|word| u64::from(u16::from_be_bytes([word[0], word[1]]))).sum::<u64>() + odd
}

/// Folds carries in (RFC 1071).
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
