//! Which charts a report has.

use crate::case::{Bytes, Case, Congestion, Fabric, Namespace, Raw, Rw, Server, Shape, Shim, Transport};
use crate::chart::{Chart, Group};
use crate::plan::{READ_4K, STREAM_BYTES, WRITE_4K};
use crate::run::Run;
use crate::sample::{Metric, Spread};

/// Depth and queues of the charts by load.
const LOADS: [(u16, u16); 5] = [(1, 1), (8, 1), (32, 1), (128, 1), (128, 4)];
const FABRIC_SERIES: [&str; 3] = ["raw loopback TCP", "NVMe/RDMA", "NVMe/TCP"];

/// All charts with the names of their files.
pub(crate) fn charts(run: &Run) -> Vec<(&'static str, Chart)> {
    vec![
        ("read-rate.svg", by_load(run, Rw::RandRead, Metric::Iops)),
        ("write-rate.svg", by_load(run, Rw::RandWrite, Metric::Iops)),
        ("read-latency.svg", by_load(run, Rw::RandRead, Metric::P50)),
        ("in-order.svg", in_order(run)),
        ("shims.svg", shims(run)),
    ]
}

/// 4 KiB on the null namespace.
fn by_load(run: &Run, rw: Rw, metric: Metric) -> Chart {
    let sizes = if rw == Rw::RandRead { READ_4K } else { WRITE_4K };
    let groups = LOADS.map(|(depth, queues)| {
        let shape = match (depth, queues) {
            (1, 1) => Some(Shape::PingPong { sizes }),
            (depth, 1) => Some(Shape::Pipeline { sizes, depth: depth.into() }),
            _ => None,
        };
        let fabric = |transport| case(transport, rw, 4096, depth, queues);
        let name = if queues > 1 { format!("{queues} x {depth}") } else { format!("depth {depth}") };
        Group { name, bars: bars(run, shape, fabric, metric) }
    });
    let title = format!("4 KiB {}, null namespace", rw.name());
    Chart { title, unit: metric.title(), series: FABRIC_SERIES.to_vec(), groups: groups.into() }
}

/// Large transfers on the null namespace.
fn in_order(run: &Run) -> Chart {
    let loads = [(Rw::Read, 128 << 10), (Rw::Write, 128 << 10), (Rw::Read, 1 << 20), (Rw::Write, 1 << 20)];
    let groups = loads.map(|(rw, io_bytes)| {
        let stream = (io_bytes == STREAM_BYTES as u32).then_some(Shape::Stream { write_bytes: STREAM_BYTES });
        let fabric = |transport| case(transport, rw, io_bytes, 16, 1);
        let name = format!("{} {}", rw.name(), Bytes(io_bytes.into()));
        Group { name, bars: bars(run, stream, fabric, Metric::Megabytes) }
    });
    Chart {
        title: "In order, depth 16, null namespace".to_owned(),
        unit: Metric::Megabytes.title(),
        series: FABRIC_SERIES.to_vec(),
        groups: groups.into(),
    }
}

fn shims(run: &Run) -> Chart {
    let servers = [
        ("NBD", Server::Nbdkit, Server::Nbd),
        ("FUSE", Server::Bindfs, Server::Fuse),
        ("FUSE, io_uring", Server::Bindfs, Server::FuseUring),
    ];
    let groups = servers.into_iter().flat_map(|(name, other, ours)| {
        [Rw::RandRead, Rw::RandWrite].map(|rw| {
            let bar = |server| spread(run, Case::Shim(Shim { server, rw }), Metric::Iops);
            Group { name: format!("{name} {}", rw.name()), bars: vec![bar(other), bar(ours)] }
        })
    });
    Chart {
        title: "4 KiB, depth 32, memory".to_owned(),
        unit: Metric::Iops.title(),
        series: vec!["nbdkit or bindfs", "Ringfab"],
        groups: groups.collect(),
    }
}

fn case(transport: Transport, rw: Rw, io_bytes: u32, depth: u16, queues: u16) -> Fabric {
    Fabric { transport, digests: false, namespace: Namespace::Null, rw, io_bytes, depth, queues }
}

/// The raw bound, if there is one, and both transports.
fn bars(
    run: &Run,
    shape: Option<Shape>,
    fabric: impl Fn(Transport) -> Fabric,
    metric: Metric,
) -> Vec<Option<Spread>> {
    let raw = shape.map(|shape| Case::Raw(Raw { congestion: Congestion::Cubic, tls: false, shape }));
    let ours = |transport| spread(run, Case::Fabric(fabric(transport)), metric);
    vec![raw.and_then(|raw| spread(run, raw, metric)), ours(Transport::Rdma), ours(Transport::Tcp)]
}

fn spread(run: &Run, case: Case, metric: Metric) -> Option<Spread> {
    run.spread(&case.to_string(), metric)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Facts;
    use crate::plan::{Extent, cases};
    use crate::sample::Sample;

    #[test]
    fn a_full_run_fills_every_group_of_every_chart() {
        let mut run = Run::new(Facts::default());
        let mut sample = Sample::default();
        for metric in [Metric::Iops, Metric::Megabytes, Metric::P50] {
            sample.set(metric, 1.0);
        }
        for case in cases(Extent::Full, 0) {
            run.add(case.to_string(), sample.clone());
        }
        for (name, chart) in charts(&run) {
            for group in &chart.groups {
                assert!(group.bars.iter().flatten().count() >= 2, "{name}: {}", group.name);
            }
            assert!(chart.svg().is_some(), "{name}");
        }
    }
}
