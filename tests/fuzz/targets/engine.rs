//! The software RNIC's engine against a hostile peer, after MPA: noise, or FPDUs with a right length and CRC, so that
//! what lies behind those is reached as well.
#![cfg_attr(feature = "libfuzzer", no_main)]

#[path = "../../../common/proto/tests/iwarp/support.rs"]
#[expect(dead_code, reason = "the tests of the engine use more of it")]
mod support;

use ringfab_fuzz::fuzz_target;
use ringfab_proto::iwarp::mpa::{Negotiated, ReadyToReceive, Role};
use ringfab_proto::iwarp::{Access, EngineConfig, ReadRequest, WorkRequest};

use support::{Host, REQUESTER, fpdu, local, negotiated};

const REGION_BYTES: usize = 4096;
const GUARD: u8 = 0x5a;

fuzz_target!(|input: &[u8]| {
    let [flags, direct_min, chunk, stream @ ..] = input else { return };
    let mut host = host(*flags, usize::from(*direct_min) + 1);
    let stream = if flags & 8 == 0 { stream.to_vec() } else { framed(stream) };
    let result = stream.chunks(usize::from(*chunk) + 1).try_for_each(|piece| host.feed(piece));
    if result.is_ok() {
        let unconsumed = host.staging.len();
        host.engine.stream_ended(unconsumed);
    }
    host.emit_all();
    host.engine.transport_closed();
    host.collect();
    assert!(host.memory[0].iter().all(|byte| *byte == GUARD), "a region for reading only was written");
    assert!(host.memory[2].iter().all(|byte| *byte == GUARD), "memory that was not exposed was written");
    assert!(host.messages.len() <= RECVS, "more messages than receive buffers");
});

const RECVS: usize = 4;

/// A host with a region to read, one to write, memory that no peer may reach, and a read under way.
fn host(flags: u8, direct_min: usize) -> Host {
    let role = if flags & 2 == 0 { Role::Responder } else { Role::Initiator };
    let ready = (flags & 16 != 0).then_some(ReadyToReceive::Read);
    let mut config =
        EngineConfig::new(Negotiated { crc: flags & 1 != 0, ready, ..negotiated(role) }, REQUESTER);
    config.direct_min = direct_min;
    let mut host = Host::with_config(config);
    host.use_direct = flags & 4 != 0;
    for fill in [GUARD, 0, GUARD, 0] {
        host.allocate(vec![fill; REGION_BYTES]);
    }
    host.expose(0, 0x1000, Access::RemoteRead);
    host.expose(1, 0x2000, Access::RemoteWrite);
    host.post_recvs(RECVS);
    let read =
        ReadRequest { stag: 1, to: 0, sink_stag: 2, sink_to: 0, sink: local(3, 0, REGION_BYTES as u32) };
    host.engine.post(1, WorkRequest::Read(read)).expect("an empty queue has room");
    host.emit_all();
    host
}

/// Takes the stream as ULPDUs with a byte of length before each, and frames them.
fn framed(mut stream: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let [length, rest @ ..] = stream {
        let (ulpdu, later) = rest.split_at(rest.len().min(usize::from(*length)));
        bytes.extend_from_slice(&fpdu(ulpdu));
        stream = later;
    }
    bytes
}
