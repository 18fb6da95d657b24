//! The capture of our own traffic, judged by Wireshark's dissectors.

use std::path::Path;
use std::process::Command;

use ringfab_fabric::rdma::{Access, Work};

use crate::support::{End, Pair, config, pattern, send_work, slice};

/// All kinds of messages, small and large, and a Terminate at the end.
fn traffic(pair: &mut Pair) {
    let (here, there) = pair.connected();
    let data = pair.host.shared_buffer(&pattern(8192, 1));
    pair.host.post(here, 1, send_work(&[1; 64], Some(slice(&data))));
    pair.received(End::Target);
    for length in [1, 4096, 65_521, 262_144] {
        let room = pair.host.shared_buffer(&vec![0; length]);
        let remote = pair.host.expose(&room, Access::RemoteWrite);
        let source = slice(&pair.target.shared_buffer(&pattern(length, 2)));
        let work = Work::Write { source, remote_key: remote.key, remote_address: remote.address };
        pair.target.post(there, 2, work);
        let Work::Send { head, data, .. } = send_work(&[2; 16], None) else { unreachable!() };
        let invalidate = Some(remote.key);
        pair.target.post(there, 3, Work::Send { head, data, invalidate, solicited: length == 1 });
        assert_eq!(pair.received(End::Host).invalidated, invalidate);
        pair.host.rnic.post_receive(here, 1);
        pair.host.rnic.revoke(remote.region).expect("the shared_buffer");
        let readable = pair.host.expose(&room, Access::RemoteRead);
        let sink = pair.target.buffer(&vec![0; length]);
        let (remote_key, remote_address) = (readable.key, readable.address);
        let work = Work::Read { sink, length: length as u32, remote_key, remote_address };
        pair.target.post(there, 4, work);
        assert_eq!(pair.read(End::Target).1[..], pattern(length, 2));
    }
    let source = slice(&data);
    pair.host.post(here, 5, Work::Write { source, remote_key: 1, remote_address: 0 });
    pair.disconnected(End::Target, there);
    pair.disconnected(End::Host, here);
}

/// What tshark says of a capture.
fn tshark(file: &Path, arguments: &[&str]) -> String {
    let output = Command::new("tshark").arg("-r").arg(file).args(arguments).output();
    let output = output.expect("tshark runs; the package of that name has it");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tshark: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

fn judge(file: &Path) {
    let malformed = tshark(file, &["-Y", "_ws.malformed || tcp.analysis.flags"]);
    assert_eq!(malformed, "", "malformed frames, or sequence numbers with gaps");
    let all = tshark(file, &["-V"]);
    for layer in [
        "iWARP Marker Protocol data unit Aligned framing",
        "Request frame header",
        "Reply frame header",
        "Send with Invalidate",
        "Send with SE and Invalidate",
        "OpCode: Write",
        "OpCode: Read Request",
        "OpCode: Read Response",
        "OpCode: Terminate",
    ] {
        assert!(all.contains(layer), "the dissection has no {layer}");
    }
    assert!(!all.contains("Bad CRC32"), "a CRC is wrong");
    assert_eq!(all.matches("Good CRC32").count(), all.matches("ULPDU length").count());
    let plain = tshark(file, &["-Y", "tcp.len > 0 && !iwarp_mpa", "-T", "fields", "-e", "frame.number"]);
    assert_eq!(plain, "", "segments that the dissectors did not understand");
}

#[test]
fn wireshark_finds_nothing_malformed_in_a_capture_of_either_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = [folder.path().join("host.pcap"), folder.path().join("target.pcap")];
    let mut configs = (config(), config());
    (configs.0.capture, configs.1.capture) = (Some(files[0].clone()), Some(files[1].clone()));
    let mut pair = Pair::over_loopback(configs);
    traffic(&mut pair);
    for file in &files {
        let length = std::fs::metadata(file).expect("the capture").len();
        assert!(length > 2 * (65_521 + 262_144), "{length} bytes cannot hold it all");
        judge(file);
    }
}
