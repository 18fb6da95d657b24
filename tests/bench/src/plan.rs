//! Which cases a run has, as data.

use std::iter;

use crate::case::{
    Backing, Beside, Case, Congestion, Crowd, Disk, Engine, Fabric, Failover, Footprint, Loss, Medium,
    Namespace, Raw, Rw, Scale, Server, Shape, Shim, Sizes, Tool, Transport,
};

/// What travels for a read of 4 KiB: the capsule, and the data with its headers.
pub(crate) const READ_4K: Sizes = Sizes { request_bytes: 72, response_bytes: 4136 };
/// The same for a write.
pub(crate) const WRITE_4K: Sizes = Sizes { request_bytes: 4200, response_bytes: 32 };
/// The same for a read of 512 B.
pub(crate) const READ_512: Sizes = Sizes { request_bytes: 72, response_bytes: 552 };
/// Bytes of one write of the stream.
pub(crate) const STREAM_BYTES: usize = 128 << 10;

const RANDOM: &[Rw] = &[Rw::RandRead, Rw::RandWrite];
const IN_ORDER: &[Rw] = &[Rw::Read, Rw::Write];
const BOTH: &[Transport] = &[Transport::Rdma, Transport::Tcp];
/// Depth of each queue, and queues.
const ALL_LOADS: &[(u16, u16)] = &[(1, 1), (8, 1), (32, 1), (128, 1), (128, 4)];
const K: u32 = 1 << 10;
const M: u32 = 1 << 20;

/// Cases that have all combinations of these.
struct Rows {
    namespace: Namespace,
    digests: bool,
    rws: &'static [Rw],
    sizes: &'static [u32],
    loads: &'static [(u16, u16)],
}

const fn rows(
    namespace: Namespace,
    digests: bool,
    rws: &'static [Rw],
    sizes: &'static [u32],
    loads: &'static [(u16, u16)],
) -> Rows {
    Rows { namespace, digests, rws, sizes, loads }
}

/// What the bars are about, and little else.
const QUICK: &[Rows] = &[
    rows(Namespace::Null, false, &[Rw::RandRead], &[4 * K], &[(1, 1), (32, 1), (128, 1), (128, 4)]),
    rows(Namespace::Null, false, &[Rw::RandWrite], &[4 * K], &[(128, 1)]),
    rows(Namespace::Null, false, &[Rw::RandRead], &[512], &[(128, 1)]),
    rows(Namespace::Null, false, IN_ORDER, &[128 * K], &[(16, 1)]),
    rows(Namespace::Null, true, &[Rw::RandRead], &[4 * K], &[(128, 1)]),
    rows(Namespace::Memory, false, RANDOM, &[4 * K], &[(128, 1)]),
    rows(Namespace::File, false, &[Rw::RandRead], &[4 * K], &[(32, 1)]),
];

const FULL: &[Rows] = &[
    rows(Namespace::Null, false, RANDOM, &[4 * K, 512, 16 * K], ALL_LOADS),
    rows(Namespace::Null, false, &[Rw::Mixed], &[4 * K], &[(32, 1), (128, 1)]),
    rows(Namespace::Null, false, IN_ORDER, &[128 * K, M], &[(16, 1)]),
    rows(Namespace::Null, true, RANDOM, &[4 * K], &[(1, 1), (32, 1), (128, 1)]),
    rows(Namespace::Null, true, IN_ORDER, &[128 * K], &[(16, 1)]),
    rows(Namespace::Memory, false, RANDOM, &[4 * K], ALL_LOADS),
    rows(Namespace::Memory, false, RANDOM, &[512, 16 * K], &[(128, 1)]),
    rows(Namespace::Memory, false, &[Rw::Mixed], &[4 * K], &[(128, 1)]),
    rows(Namespace::Memory, false, IN_ORDER, &[128 * K, M], &[(16, 1)]),
    rows(Namespace::Memory, true, RANDOM, &[4 * K], &[(128, 1)]),
    rows(Namespace::File, false, RANDOM, &[4 * K], ALL_LOADS),
    rows(Namespace::File, false, RANDOM, &[512, 16 * K], &[(32, 1)]),
    rows(Namespace::File, false, &[Rw::Mixed], &[4 * K], &[(32, 1)]),
    rows(Namespace::File, false, IN_ORDER, &[128 * K, M], &[(16, 1)]),
];

/// What a busy host reads at once beside a quiet one, on so many queues.
const BUSY: &[(u32, u16)] = &[(128 * K, 1), (4 * K, 4)];

/// What loopback TCP is asked for.
const SHAPES: &[Shape] = &[
    Shape::PingPong { sizes: READ_4K },
    Shape::Pipeline { sizes: READ_4K, depth: 32 },
    Shape::Pipeline { sizes: READ_4K, depth: 128 },
    Shape::Pipeline { sizes: WRITE_4K, depth: 32 },
    Shape::Pipeline { sizes: WRITE_4K, depth: 128 },
    Shape::Pipeline { sizes: READ_512, depth: 128 },
    Shape::Stream { write_bytes: STREAM_BYTES },
];

/// What is read over TLS, and what TLS over TCP alone is asked for beside it.
pub(crate) const OVER_TLS: [(Fabric, Shape); 2] = [
    (over_tls(Rw::RandRead, 4 * K, 128), Shape::Pipeline { sizes: READ_4K, depth: 128 }),
    (over_tls(Rw::Read, 128 * K, 16), Shape::Stream { write_bytes: STREAM_BYTES }),
];

const fn over_tls(rw: Rw, io_bytes: u32, depth: u16) -> Fabric {
    let (transport, namespace) = (Transport::Tls, Namespace::Null);
    Fabric { transport, digests: false, namespace, rw, io_bytes, depth, queues: 1 }
}

/// Ours before what it is held against.
const SERVERS: &[Server] =
    &[Server::Nbd, Server::Nbdkit, Server::QemuNbd, Server::Fuse, Server::FuseUring, Server::Bindfs];
/// What is asked of disks that are elsewhere: what, in which pieces, and how many at once.
pub(crate) const BACKING_LOADS: &[(Rw, u32, u16)] = &[
    (Rw::RandRead, 4 * K, 1),
    (Rw::RandWrite, 4 * K, 1),
    (Rw::RandRead, 4 * K, 32),
    (Rw::RandWrite, 4 * K, 32),
    (Rw::Read, 128 * K, 16),
    (Rw::Write, 128 * K, 16),
];

/// Connections of the idle cases.
const IDLE: &[usize] = &[1, 100, 1000];
/// Rounds that have the cases without work: they take long and vary little.
const FOOTPRINT_ROUNDS: usize = 2;

/// What there is besides one busy queue. The first is what the others are held against, but for the threads.
const CROWDS: &[Crowd] = &[
    Crowd::Nobody,
    Crowd::Queues(63),
    Crowd::Queues(1023),
    Crowd::Hosts { count: 1000, at_once: false },
    Crowd::Hosts { count: 1000, at_once: true },
    Crowd::Namespaces(64),
    Crowd::Namespaces(4096),
    Crowd::Threads(1),
    Crowd::Threads(2),
    Crowd::Threads(4),
];
/// Rounds that have these.
const SCALE_ROUNDS: usize = 3;

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Two minutes.
    Quick,
    /// Everything.
    Full,
}

/// The cases of one round, in order. Rounds count from zero.
pub(crate) fn cases(extent: Extent, round: usize) -> Vec<Case> {
    let (congestions, rows, footprint_rounds): (&[Congestion], _, _) = match extent {
        Extent::Quick => (&[Congestion::Cubic], QUICK, 1),
        Extent::Full => (&[Congestion::Cubic, Congestion::Default], FULL, FOOTPRINT_ROUNDS),
    };
    let raw = congestions.iter().flat_map(|congestion| SHAPES.iter().map(|shape| raw(*congestion, *shape)));
    let footprints = if round < footprint_rounds { footprints(extent) } else { Vec::new() };
    let crowds = if extent == Extent::Full && round < SCALE_ROUNDS { CROWDS } else { &[] };
    let tls = OVER_TLS.into_iter().flat_map(|(reads, shape)| [raw_tls(shape), Case::Fabric(reads)]);
    let measured = raw.chain(rows.iter().flat_map(expand)).chain(tls).chain(besides());
    let measured = measured.chain(disks(extent)).chain(shims()).chain(backings());
    let measured = measured.chain(footprints).chain(scales(crowds));
    measured.chain(failovers(extent, round)).collect()
}

/// How long I/O stands still when a path is lost. What waits for a clock takes long and varies little.
fn failovers(extent: Extent, round: usize) -> impl Iterator<Item = Case> {
    let with_clock = extent == Extent::Full || round == 0;
    [Loss::Reset, Loss::Silent, Loss::Stopped, Loss::Ended]
        .into_iter()
        .filter(move |loss| with_clock || !matches!(loss, Loss::Silent | Loss::Stopped))
        .flat_map(|loss| RANDOM.iter().map(move |rw| Case::Failover(Failover { loss, rw: *rw })))
}

fn scales(crowds: &'static [Crowd]) -> impl Iterator<Item = Case> {
    BOTH.iter().flat_map(|transport| {
        crowds.iter().map(|crowd| Case::Scale(Scale { transport: *transport, crowd: *crowd }))
    })
}

fn besides() -> impl Iterator<Item = Case> {
    BUSY.iter().flat_map(|(io_bytes, queues)| {
        let case =
            |transport: &Transport| Beside { transport: *transport, io_bytes: *io_bytes, queues: *queues };
        BOTH.iter().map(move |transport| Case::Beside(case(transport)))
    })
}

fn disks(extent: Extent) -> impl Iterator<Item = Case> {
    let (media, rws, depths): (&[_], &[_], &[u16]) = match extent {
        Extent::Quick => (&[Medium::File], &[Rw::RandRead], &[32]),
        Extent::Full => (&[Medium::File, Medium::Loop], RANDOM, &[1, 32, 128]),
    };
    media.iter().flat_map(move |medium| {
        rws.iter().flat_map(move |rw| {
            depths.iter().flat_map(move |depth| {
                [Tool::Ours, Tool::Fio]
                    .map(|tool| Case::Disk(Disk { tool, medium: *medium, rw: *rw, depth: *depth }))
            })
        })
    })
}

fn shims() -> impl Iterator<Item = Case> {
    RANDOM.iter().flat_map(|rw| SERVERS.iter().map(|server| Case::Shim(Shim { server: *server, rw: *rw })))
}

/// Ours and the engine's own client one after the other.
fn backings() -> impl Iterator<Item = Case> {
    [Engine::Nbd, Engine::Rbd].into_iter().flat_map(|engine| {
        BACKING_LOADS.iter().flat_map(move |(rw, io_bytes, depth)| {
            [Tool::Ours, Tool::Fio].map(|tool| {
                Case::Backing(Backing { engine, tool, rw: *rw, io_bytes: *io_bytes, depth: *depth })
            })
        })
    })
}

fn footprints(extent: Extent) -> Vec<Case> {
    let most = IDLE.last();
    let idle: Vec<&usize> =
        if extent == Extent::Quick { most.into_iter().collect() } else { IDLE.iter().collect() };
    let of = |transport: &Transport| -> Vec<Footprint> {
        let transport = *transport;
        let idle = idle.iter().map(|connections| Footprint::Idle { transport, connections: **connections });
        [Footprint::Connect { transport, queues: 4 }, Footprint::Queue { transport }]
            .into_iter()
            .chain(idle)
            .collect()
    };
    let connect = |transport| Footprint::Connect { transport, queues: 4 };
    let secured = [Transport::Tls, Transport::Authenticated].map(connect);
    iter::once(Footprint::Start).chain(secured).chain(BOTH.iter().flat_map(of)).map(Case::Footprint).collect()
}

/// The raw bound of what is over TLS.
pub(crate) fn raw_tls(shape: Shape) -> Case {
    Case::Raw(Raw { congestion: Congestion::Cubic, tls: true, shape })
}

fn raw(congestion: Congestion, shape: Shape) -> Case {
    Case::Raw(Raw { congestion, tls: false, shape })
}

/// Transports innermost, so that what is compared runs one after the other.
fn expand(rows: &'static Rows) -> impl Iterator<Item = Case> {
    let Rows { namespace, digests, rws, sizes, loads } = rows;
    sizes.iter().flat_map(move |io_bytes| {
        rws.iter().flat_map(move |rw| {
            loads.iter().flat_map(move |(depth, queues)| {
                BOTH.iter().map(move |transport| {
                    Case::Fabric(Fabric {
                        transport: *transport,
                        digests: *digests,
                        namespace: *namespace,
                        rw: *rw,
                        io_bytes: *io_bytes,
                        depth: *depth,
                        queues: *queues,
                    })
                })
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_case_is_there_twice_and_the_quick_ones_are_among_all() {
        let names = |extent| -> Vec<String> { cases(extent, 0).iter().map(Case::to_string).collect() };
        let all = names(Extent::Full);
        let set: BTreeSet<&String> = all.iter().collect();
        assert_eq!(set.len(), all.len());
        let quick = names(Extent::Quick);
        assert!(quick.len() * 3 < all.len());
        for name in quick {
            assert!(set.contains(&name), "{name}");
        }
    }
}
