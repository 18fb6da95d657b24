//! The engine of NVMe/TCP against a hostile peer, from either end: noise, or PDUs with the lengths and digests that
//! they should have, so that what lies behind those is reached as well.
#![cfg_attr(feature = "libfuzzer", no_main)]

#[path = "../../../common/proto/tests/tcp/support.rs"]
mod support;

use ringfab_fuzz::fuzz_target;
use ringfab_proto::tcp::{
    CommandData, ControllerConfig, Digests, Engine, EngineError, Event, HostConfig, Source,
};
use ringfab_spec::SubmissionEntry;

use support::{End, controller_config, digests, framed, host_config, pair};

const GUARD: u8 = 0x5a;
const BYTES: u32 = 4096;

fuzz_target!(|input: &[u8]| {
    let [flags, chunk, stream @ ..] = input else { return };
    let used = digests(flags & 1 != 0, flags & 2 != 0);
    let mut end = match (flags & 4 == 0, flags & 32 == 0) {
        (true, true) => controller(used),
        (false, true) => host(used),
        // Before ICReq and ICResp.
        (true, false) => End::new(Engine::controller(configs(used).1)),
        (false, false) => End::new(Engine::host(configs(used).0)),
    };
    if flags & 32 != 0 {
        end.output();
    }
    end.direct = flags & 8 != 0;
    // Before that there are no digests.
    let framed_with = if flags & 32 == 0 { used } else { Digests::default() };
    let stream = if flags & 16 == 0 { stream.to_vec() } else { framed(stream, framed_with) };
    let result = stream.chunks(usize::from(*chunk) + 1).try_for_each(|piece| end.input(piece));
    let sent = end.output();
    if let Err(EngineError::Violation(_)) = result {
        // With data in front of it, if they were being sent.
        let terminates = [[2, 0, 24], [3, 0, 24]];
        assert!(sent.windows(3).any(|window| terminates.iter().any(|start| window == start)), "nothing said");
    }
    assert!(
        end.memory.get(&3).is_none_or(|memory| memory.iter().all(|byte| *byte == GUARD)),
        "a source was written"
    );
    let ended = end.events.iter().filter(|event| matches!(event, Event::TransferEnd { .. })).count();
    assert!(ended <= 2, "more transfers ended than were asked for");
});

fn configs(used: Digests) -> (HostConfig, ControllerConfig) {
    (HostConfig { digests: used, ..host_config() }, controller_config())
}

/// A controller that has asked for two transfers.
fn controller(used: Digests) -> End {
    let (host, controller) = configs(used);
    let mut end = pair(host, controller).1;
    for cid in 0..2 {
        let tag = end.engine.request(cid, 0, BYTES).expect("a tag");
        end.transfers.insert(tag, vec![0; BYTES as usize]);
    }
    end.output();
    end
}

/// A host with two commands each way outstanding.
fn host(used: Digests) -> End {
    let (host, controller) = configs(used);
    let mut end = pair(host, controller).0;
    for (handle, fill) in [(1, 0), (2, 0), (3, GUARD)] {
        end.memory.insert(handle, vec![fill; BYTES as usize]);
    }
    let memory = |handle| Source { handle, offset: 0, length: BYTES };
    let data = [
        CommandData::ToHost(memory(1)),
        CommandData::ToHost(memory(2)),
        CommandData::ToController(memory(3)),
        CommandData::ToController(memory(3)),
    ];
    for (cid, data) in (0..).zip(data) {
        end.submit(SubmissionEntry::flush(cid, 1), data).expect("room");
    }
    end.output();
    end
}
