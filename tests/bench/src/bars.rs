//! What we mean to reach, as data, beside what was reached. Nothing fails here.

use crate::case::{
    Backing, Case, Congestion, Disk, Engine, Fabric, Failover, Footprint, Loss, Medium, Namespace, Raw, Rw,
    Server, Shape, Shim, Tool, Transport,
};
use crate::plan::{BACKING_LOADS, OVER_TLS, READ_4K, READ_512, STREAM_BYTES, WRITE_4K, raw_tls};
use crate::run::Run;
use crate::sample::Metric;

/// A figure and what it is held against.
pub(crate) struct Bar {
    pub(crate) what: String,
    pub(crate) figure: (Case, Metric),
    /// If there are several, the sum of them.
    pub(crate) references: Vec<(Case, Metric)>,
    /// Of the ratio to the reference, or of the figure itself.
    pub(crate) limit: Limit,
}

/// Where the bar is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

/// How a bar was met.
#[derive(Debug, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) figure: f64,
    pub(crate) reference: Option<f64>,
    /// What the limit is about.
    pub(crate) value: f64,
    pub(crate) met: bool,
}

impl Limit {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
        }
    }
}

impl Bar {
    /// Medians against the bar; `None` when something was not measured.
    pub(crate) fn verdict(&self, run: &Run) -> Option<Verdict> {
        let median = |(case, metric): &(Case, Metric)| {
            run.spread(&case.to_string(), *metric).map(|spread| spread.median)
        };
        let figure = median(&self.figure)?;
        let references = self.references.iter().map(median).collect::<Option<Vec<f64>>>()?;
        let reference = (!references.is_empty()).then(|| references.iter().sum::<f64>());
        if reference.is_some_and(|reference| reference <= 0.0) {
            return None;
        }
        let value = reference.map_or(figure, |reference| figure / reference);
        Some(Verdict { figure, reference, value, met: self.limit.holds(value) })
    }
}

/// All of them; those that a transport can have for both.
pub(crate) fn bars() -> Vec<Bar> {
    let each = [Transport::Rdma, Transport::Tcp];
    let start = [
        absolute("start: resident memory", Footprint::Start, Metric::ResidentKib, 48.0 * 1024.0),
        absolute("start to first served read, file", Footprint::Start, Metric::Millis, 100.0),
    ];
    let without_work = each.into_iter().flat_map(without_work);
    let data = each.into_iter().flat_map(of_transport).chain(of_tls());
    let data = data.chain(shims()).chain(backings());
    data.chain(without_work).chain(start).chain(failovers()).collect()
}

/// A loss that is told is over at once where the target resets what it had in its hands. One that is
/// not told takes the keep-alive timeout to be noticed. Where no other path leads to a target that is
/// stopped, writes then wait for as long as it may still act: 2 x (keep-alive timeout + 1 s) + CQT,
/// 12.5 s.
fn failovers() -> impl Iterator<Item = Bar> {
    let losses = [
        ("reset", Loss::Reset, [100.0, 100.0]),
        ("silence, keep-alive 2 s", Loss::Silent, [4000.0, 4000.0]),
        ("target stopped, keep-alive 2 s", Loss::Stopped, [4000.0, 16_500.0]),
        ("orderly end", Loss::Ended, [50.0, 50.0]),
    ];
    losses.into_iter().flat_map(|(name, loss, at_most)| {
        let loads = [("reads", Rw::RandRead), ("writes", Rw::RandWrite)];
        loads.into_iter().zip(at_most).map(move |((what, rw), at_most)| Bar {
            what: format!("two paths: {name}, {what} stand still"),
            figure: (Case::Failover(Failover { loss, rw }), Metric::Millis),
            references: Vec::new(),
            limit: Limit::AtMost(at_most),
        })
    })
}

fn shims() -> impl Iterator<Item = Bar> {
    let pairs = [
        ("NBD", Server::Nbd, Server::Nbdkit, 1.0),
        ("FUSE", Server::Fuse, Server::Bindfs, 0.8),
        ("FUSE over io_uring", Server::FuseUring, Server::Bindfs, 0.8),
    ];
    pairs.into_iter().flat_map(|(name, ours, other, limit)| {
        [("read", Rw::RandRead), ("write", Rw::RandWrite)].map(|(what, rw)| {
            let case = |server| (Case::Shim(Shim { server, rw }), Metric::Iops);
            Bar {
                what: format!("{name}: 4 KiB {what}, depth 32, memory"),
                figure: case(ours),
                references: vec![case(other)],
                limit: Limit::AtLeast(limit),
            }
        })
    })
}

/// Against the engine's own client. One command at a time may take a round trip over the fabric longer.
fn backings() -> impl Iterator<Item = Bar> {
    let round_trip = Fabric {
        transport: Transport::Tcp,
        digests: false,
        namespace: Namespace::Null,
        rw: Rw::RandRead,
        io_bytes: 4096,
        depth: 1,
        queues: 1,
    };
    let engines = [("nbdkit", Engine::Nbd, 0.8), ("RBD", Engine::Rbd, 0.85)];
    engines.into_iter().flat_map(move |(name, engine, at_least)| {
        BACKING_LOADS.iter().map(move |(rw, io_bytes, depth)| {
            let (rw, io_bytes, depth) = (*rw, *io_bytes, *depth);
            let case = |tool| Case::Backing(Backing { engine, tool, rw, io_bytes, depth });
            let what = if matches!(rw, Rw::RandRead | Rw::Read) { "read" } else { "write" };
            let what = format!("{name} over TCP: {} KiB {what}, depth {depth}", io_bytes >> 10);
            let ([ours, own], iops) = ([Tool::Ours, Tool::Fio].map(case), Metric::Iops);
            if depth > 1 {
                let limit = Limit::AtLeast(at_least);
                return Bar { what, figure: (ours, iops), references: vec![(own, iops)], limit };
            }
            let references = vec![(own, Metric::P50), (Case::Fabric(round_trip), Metric::P50)];
            Bar { what, figure: (ours, Metric::P50), references, limit: Limit::AtMost(1.0) }
        })
    })
}

fn without_work(transport: Transport) -> Vec<Bar> {
    let name = transport.name().to_uppercase();
    let idle = Footprint::Idle { transport, connections: 1000 };
    vec![
        absolute(format!("{name}: idle, 1000 connections, target"), idle, Metric::TargetBusy, 1.0),
        absolute(format!("{name}: idle, 1000 connections, initiator"), idle, Metric::InitiatorBusy, 1.0),
        absolute(
            format!("{name}: memory of an idle queue"),
            Footprint::Queue { transport },
            Metric::ResidentKib,
            64.0,
        ),
        absolute(
            format!("{name}: connect with 4 queues"),
            Footprint::Connect { transport, queues: 4 },
            Metric::Millis,
            20.0,
        ),
    ]
}

fn absolute(what: impl Into<String>, footprint: Footprint, metric: Metric, at_most: f64) -> Bar {
    let figure = (Case::Footprint(footprint), metric);
    Bar { what: what.into(), figure, references: Vec::new(), limit: Limit::AtMost(at_most) }
}

fn of_transport(transport: Transport) -> Vec<Bar> {
    use Limit::{AtLeast, AtMost};
    use Metric::{Iops, Megabytes, P50, P999};
    use Namespace::{File, Memory, Null};
    let case = |namespace, rw, io_bytes, depth| Fabric {
        transport,
        digests: false,
        namespace,
        rw,
        io_bytes,
        depth,
        queues: 1,
    };
    let bar = |what: &str, fabric: Fabric, metric, reference: Case, of, limit| Bar {
        what: format!("{}: {what}", transport.name().to_uppercase()),
        figure: (Case::Fabric(fabric), metric),
        references: vec![(reference, of)],
        limit,
    };
    // Against plain messages of the same sizes on a socket, and against a plain stream.
    let rate = |what: &str, fabric: Fabric, sizes, at_least| {
        let reference = raw(Shape::Pipeline { sizes, depth: usize::from(fabric.depth) });
        bar(what, fabric, Iops, reference, Iops, AtLeast(at_least))
    };
    let bulk = |what: &str, rw| {
        let stream = raw(Shape::Stream { write_bytes: STREAM_BYTES });
        bar(what, case(Null, rw, 128 << 10, 16), Megabytes, stream, Megabytes, AtLeast(0.85))
    };
    let read = |depth| case(Null, Rw::RandRead, 4096, depth);
    let write = |namespace| case(namespace, Rw::RandWrite, 4096, 128);
    let small = case(Null, Rw::RandRead, 512, 128);
    let from_memory = case(Memory, Rw::RandRead, 4096, 128);
    let from_file = case(File, Rw::RandRead, 4096, 32);
    let four = Fabric { queues: 4, ..read(128) };
    let checked = Fabric { digests: true, ..read(128) };
    let ping = raw(Shape::PingPong { sizes: READ_4K });
    vec![
        bar("4 KiB read, depth 1, null", read(1), P50, ping, P50, AtMost(1.25)),
        rate("4 KiB read, depth 32, null", read(32), READ_4K, 0.65),
        rate("4 KiB read, depth 128, null", read(128), READ_4K, 0.65),
        rate("4 KiB write, depth 128, null", write(Null), WRITE_4K, 0.65),
        rate("512 B read, depth 128, null", small, READ_512, 0.45),
        bulk("128 KiB read, depth 16, null", Rw::Read),
        bulk("128 KiB write, depth 16, null", Rw::Write),
        rate("4 KiB read, depth 128, memory", from_memory, READ_4K, 0.55),
        rate("4 KiB write, depth 128, memory", write(Memory), WRITE_4K, 0.55),
        bar("4 KiB random read, depth 32, file", from_file, Iops, fio_on_file(), Iops, AtLeast(0.85)),
        bar("four connections instead of one", four, Iops, Case::Fabric(read(128)), Iops, AtLeast(1.0)),
        bar("digests on, 4 KiB read", checked, Iops, Case::Fabric(read(128)), Iops, AtLeast(0.85)),
        bar("p99.9 against the median, depth 32", read(32), P999, Case::Fabric(read(32)), P50, AtMost(4.0)),
    ]
}

/// Against the same messages on a socket whose bytes are protected in the same way.
fn of_tls() -> [Bar; 4] {
    let bar = |what: &str, (fabric, shape), metric| Bar {
        what: format!("TLS: {what}"),
        figure: (Case::Fabric(fabric), metric),
        references: vec![(raw_tls(shape), metric)],
        limit: Limit::AtLeast(0.65),
    };
    let [small, large] = OVER_TLS;
    let connect = |transport| Footprint::Connect { transport, queues: 4 };
    let (tls, authenticated) = (connect(Transport::Tls), connect(Transport::Authenticated));
    [
        bar("4 KiB read, depth 128, null", small, Metric::Iops),
        bar("128 KiB read, depth 16, null", large, Metric::Megabytes),
        absolute("TLS: connect with 4 queues", tls, Metric::Millis, 40.0),
        absolute("TCP: connect with 4 queues, ffdhe3072", authenticated, Metric::Millis, 100.0),
    ]
}

fn fio_on_file() -> Case {
    Case::Disk(Disk { tool: Tool::Fio, medium: Medium::File, rw: Rw::RandRead, depth: 32 })
}

fn raw(shape: Shape) -> Case {
    Case::Raw(Raw { congestion: Congestion::Cubic, tls: false, shape })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::facts::Facts;
    use crate::plan::{Extent, cases};
    use crate::sample::Sample;

    #[test]
    fn every_bar_is_about_what_even_a_quick_run_measures() {
        let measured: BTreeSet<String> = cases(Extent::Quick, 0).iter().map(Case::to_string).collect();
        for bar in bars() {
            for (case, _) in [bar.figure].into_iter().chain(bar.references) {
                assert!(measured.contains(&case.to_string()), "{}: {case}", bar.what);
            }
        }
    }

    #[test]
    fn a_bar_compares_medians_and_knows_its_direction() {
        let bar = bars().into_iter().find(|bar| bar.limit == Limit::AtMost(1.25)).expect("latency");
        let reference = bar.references[0];
        let mut run = Run::new(Facts::default());
        assert_eq!(bar.verdict(&run), None);
        for (ours, raw) in [(11.0, 10.0), (12.0, 10.0), (90.0, 10.0)] {
            for ((case, metric), value) in [(bar.figure, ours), (reference, raw)] {
                let mut sample = Sample::default();
                sample.set(metric, value);
                run.add(case.to_string(), sample);
            }
        }
        let verdict = bar.verdict(&run).expect("measured");
        let expected = Verdict { figure: 12.0, reference: Some(10.0), value: 1.2, met: true };
        assert_eq!(verdict, expected);
        assert!(!Limit::AtMost(1.25).holds(1.26) && !Limit::AtLeast(0.65).holds(0.64));
    }
}
