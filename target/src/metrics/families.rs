//! A snapshot as metrics. docs/metrics.md lists them; a test compares.

use std::fmt;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use ringfab_base::visible;

use super::snapshot::{AccessGroupSeen, NamespaceSeen, QueueSeen, Snapshot, SubsystemSeen};
use crate::core::{Buffers, CoreUsage, State};
use crate::model::host_account::HostUsage;
use crate::model::latency::{BOUNDS, Histogram, Latency, Phase, bound_us};
use crate::model::{IoCounters, IoSum};

/// Which text it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The text format of Prometheus, version 0.0.4, which node_exporter reads.
    Prometheus,
}

/// What stands for the name of a host that has no account of its own.
const OTHERS: &str = "(others)";

/// The metrics of a snapshot, with those of queues when asked.
pub fn encode(snapshot: &Arc<Snapshot>, queues: bool, format: Format) -> String {
    let mut registry = Registry::with_prefix("ringfab");
    registry.register_collector(Box::new(Families { snapshot: Arc::clone(snapshot), queues }));
    let mut out = String::new();
    let encoded = match format {
        Format::OpenMetrics => text::encode(&mut out, &registry),
        Format::Prometheus => prometheus_text::encode(&mut out, &registry),
    };
    encoded.expect("a string takes everything");
    out
}

#[derive(Debug)]
struct Families {
    snapshot: Arc<Snapshot>,
    queues: bool,
}

impl Collector for Families {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut writer = Writer(encoder);
        process(&mut writer, &self.snapshot)?;
        cores(&mut writer, &self.snapshot.cores)?;
        namespaces(&mut writer, &self.snapshot.subsystems)?;
        hosts(&mut writer, &self.snapshot.subsystems)?;
        if self.queues { queues(&mut writer, &self.snapshot.subsystems) } else { Ok(()) }
    }
}

type Labels = Vec<(&'static str, String)>;

/// Labels as people may read them. The format escapes quotes and ends of lines, and nothing that turns or hides a line.
fn shown(mut labels: Labels) -> Labels {
    labels.iter_mut().for_each(|(_, label)| *label = visible(&label).to_string());
    labels
}

/// What a family is called, and what it counts in.
struct Names<'a> {
    name: &'a str,
    help: &'a str,
    unit: Option<Unit>,
}

/// Writes one family after the other.
struct Writer<'a>(DescriptorEncoder<'a>);

impl Writer<'_> {
    fn family<T>(
        &mut self,
        names: &Names<'_>,
        kind: MetricType,
        samples: impl IntoIterator<Item = (Labels, T)>,
        write: impl Fn(&mut MetricEncoder<'_>, T) -> fmt::Result,
    ) -> fmt::Result {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let mut family = self.0.encode_descriptor(names.name, names.help, names.unit.as_ref(), kind)?;
        for (labels, value) in samples {
            let labels = shown(labels);
            if labels.is_empty() {
                write(&mut family, value)?;
            } else {
                write(&mut family.encode_family(&labels)?, value)?;
            }
        }
        Ok(())
    }

    fn counter(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        samples: impl IntoIterator<Item = (Labels, u64)>,
    ) -> fmt::Result {
        self.family(&Names { name, help, unit }, MetricType::Counter, samples, |encoder, value| {
            encoder.encode_counter::<NoLabelSet, u64, u64>(&value, None)
        })
    }

    fn gauge(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        samples: impl IntoIterator<Item = (Labels, u64)>,
    ) -> fmt::Result {
        self.family(&Names { name, help, unit }, MetricType::Gauge, samples, |encoder, value| {
            encoder.encode_gauge(&value)
        })
    }

    fn info(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels, Labels)>,
    ) -> fmt::Result {
        self.family(&Names { name, help, unit: None }, MetricType::Info, samples, |encoder, labels| {
            encoder.encode_info(&shown(labels))
        })
    }

    fn histogram<'h>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels, &'h Histogram)>,
    ) -> fmt::Result {
        let names = Names { name, help, unit: Some(Unit::Seconds) };
        self.family(&names, MetricType::Histogram, samples, |encoder, value| {
            let sum = value.sum_ns as f64 / 1e9;
            encoder.encode_histogram::<NoLabelSet>(sum, value.count(), &buckets(value), None)
        })
    }
}

/// Buckets that end at powers of two of microseconds: half as many as there are.
fn buckets(histogram: &Histogram) -> Vec<(f64, u64)> {
    let seconds = |bucket| bound_us(bucket) as f64 / 1e6;
    let mut buckets = vec![(seconds(0), histogram.counts[0]), (seconds(1), histogram.counts[1])];
    for last in (3..BOUNDS).step_by(2) {
        buckets.push((seconds(last), histogram.counts[last - 1] + histogram.counts[last]));
    }
    buckets.push((f64::INFINITY, histogram.counts[BOUNDS]));
    buckets
}

fn process(writer: &mut Writer<'_>, snapshot: &Snapshot) -> fmt::Result {
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    writer.info("build", "Version of the program", [(Vec::new(), version)])?;
    let started = snapshot.started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let one = |value| [(Vec::new(), value)];
    writer.gauge("start_time", "When the target started, since 1970", Some(Unit::Seconds), one(started))?;
    let help = "How often what is served has changed since the start";
    writer.gauge("configuration_generation", help, None, one(snapshot.generation))?;
    let open_files = snapshot.open_files.map(|count| (Vec::new(), count as u64));
    writer.gauge("open_files", "Files and sockets that the process has open", None, open_files)?;
    let hanging = one(snapshot.hanging as u64);
    writer.gauge("hanging_calls", "Calls to files that have not returned for a while", None, hanging)?;
    let controllers = snapshot.subsystems.iter().map(|one| (subsystem(&one.nqn), one.controllers as u64));
    writer.gauge("controllers", "Controllers that are connected", None, controllers)?;
    let seen = &snapshot.subsystems;
    let others = seen.iter().map(|one| (subsystem(&one.nqn), one.controllers_authenticating as u64));
    let help = "Controllers whose hosts have yet to prove who they are, which count as nobody's";
    writer.gauge("controllers_authenticating", help, None, others)?;
    let over_tls = seen.iter().map(|one| (subsystem(&one.nqn), one.controllers_over_tls as u64));
    writer.gauge("controllers_over_tls", "Controllers whose connections are over TLS", None, over_tls)?;
    let proved = seen.iter().map(|one| (subsystem(&one.nqn), one.controllers_authenticated as u64));
    writer.gauge("controllers_authenticated", "Controllers whose hosts have authenticated", None, proved)
}

fn cores(writer: &mut Writer<'_>, cores: &[Option<CoreUsage>]) -> fmt::Result {
    let label = |core: usize| vec![("core", core.to_string())];
    let up = cores.iter().enumerate().map(|(core, usage)| (label(core), u64::from(usage.is_some())));
    writer.gauge("core_up", "Whether a core answers: 1 or 0", None, up)?;
    let answering =
        || cores.iter().enumerate().filter_map(move |(core, usage)| Some((label(core), usage.as_ref()?)));
    let mut gauge = |name, help, value: fn(&CoreUsage) -> u64| {
        writer.gauge(name, help, None, answering().map(|(labels, usage)| (labels, value(usage))))
    };
    gauge("core_queues", "Queues of a core, also those that connect or end", |usage| usage.queues as u64)?;
    gauge("core_rdma_queue_pairs", "RDMA queue pairs of a core", |usage| usage.queue_pairs)?;
    gauge("core_tcp_connections", "Connections of NVMe/TCP of a core", |usage| usage.tcp_connections)?;
    gauge("core_silent_disks", "Disks of a core that have not answered for a while", |usage| {
        usage.silent_disks.len() as u64
    })?;
    let states = answering().flat_map(|(labels, usage)| {
        let one = move |state: State| (with(&labels, "state", state.name()), usage.commands_in(state));
        State::ALL.into_iter().skip(1).map(one)
    });
    writer.gauge("core_commands", "Commands of a core that wait, by state", None, states)?;
    let pools = |value: fn(&Buffers) -> usize| {
        answering().flat_map(move |(labels, usage)| {
            let pools = [
                ("io", usage.io_buffers),
                ("admin", usage.admin_buffers),
                ("compare", usage.compare_buffers),
            ];
            pools.map(|(pool, buffers)| (with(&labels, "pool", pool), value(&buffers) as u64))
        })
    };
    writer.gauge("core_buffers", "Buffers of a core", None, pools(|buffers| buffers.total))?;
    writer.gauge(
        "core_buffers_used",
        "Buffers of a core that are in use",
        None,
        pools(|buffers| buffers.taken),
    )?;
    let help = "The most buffers of a core that were ever in use at once";
    writer.gauge("core_buffers_used_max", help, None, pools(|buffers| buffers.taken_max))?;
    let copied = answering().flat_map(|(labels, usage)| {
        let copied = [("received", usage.copied_bytes.received), ("sent", usage.copied_bytes.sent)];
        copied.map(|(what, bytes)| (with(&labels, "direction", what), bytes))
    });
    writer.counter(
        "core_copied",
        "What a core has copied from and to staging memory",
        Some(Unit::Bytes),
        copied,
    )
}

/// The states of paths.
fn access_groups(writer: &mut Writer<'_>, subsystems: &[SubsystemSeen]) -> fmt::Result {
    let label =
        |one: &AccessGroupSeen| vec![("group", one.group.to_string()), ("listener", one.way.to_string())];
    let states = each(subsystems, |one| &one.access_groups, label).into_iter();
    let states = states.map(|(labels, one)| (labels, u64::from(one.state.0)));
    let help = "State of an access group by a way: 1 optimized, 2 non-optimized, 3 inaccessible, 4 persistent loss, \
                15 change";
    writer.gauge("ana_state", help, None, states)
}

fn namespaces(writer: &mut Writer<'_>, subsystems: &[SubsystemSeen]) -> fmt::Result {
    let label = |one: &NamespaceSeen| vec![("nsid", one.nsid.to_string())];
    let all = each(subsystems, |one| &one.namespaces, label);
    let infos = all.iter().map(|(labels, one)| {
        (labels.clone(), vec![("source", one.source.clone()), ("uuid", one.uuid.clone())])
    });
    writer.info("namespace", "What stands behind a namespace", infos)?;
    let values =
        |value: fn(&NamespaceSeen) -> u64| all.iter().map(move |(labels, one)| (labels.clone(), value(one)));
    let ready = values(|one| u64::from(one.ready));
    writer.gauge("namespace_ready", "Whether a namespace can be read and written: 1 or 0", None, ready)?;
    access_groups(writer, subsystems)?;
    let reopen = values(|one| u64::from(one.health.state == "needs reopen"));
    writer.gauge(
        "namespace_needs_reopen",
        "Whether an administrator has to reopen a namespace: 1 or 0",
        None,
        reopen,
    )?;
    let detached = values(|one| u64::from(one.health.state == "detached"));
    let help = "Whether a namespace is served though its path is gone or leads to another file: 1 or 0";
    writer.gauge("namespace_detached", help, None, detached)?;
    let unreachable = values(|one| u64::from(one.health.state == "unreachable"));
    let help = "Whether a namespace waits for a server or a cluster that does not answer: 1 or 0";
    writer.gauge("namespace_unreachable", help, None, unreachable)?;
    let full = values(|one| u64::from(one.health.state == "full"));
    let help =
        "Whether a write to a namespace has found no space beneath it in the last five minutes: 1 or 0";
    writer.gauge("namespace_full", help, None, full)?;
    writer.gauge("namespace_size", "Size of a namespace", Some(Unit::Bytes), values(|one| one.bytes))?;
    writer.counter(
        "namespace_media_errors",
        "Failures of the disk of a namespace",
        None,
        values(|one| one.media_errors),
    )?;
    io(writer, "namespace", &of(&all, |one| &one.io))
}

fn hosts(writer: &mut Writer<'_>, subsystems: &[SubsystemSeen]) -> fmt::Result {
    let name = |host: &HostUsage| host.nqn.clone().unwrap_or_else(|| OTHERS.to_owned());
    let all = each(subsystems, |one| &one.hosts, |host| vec![("host", name(host))]);
    let queues = all.iter().map(|(labels, one)| (labels.clone(), one.queues as u64));
    writer.gauge("host_queues", "Queues that a host has now, admin queues included", None, queues)?;
    io(writer, "host", &of(&all, |one| &one.io))
}

fn queues(writer: &mut Writer<'_>, subsystems: &[SubsystemSeen]) -> fmt::Result {
    let labels = |one: &QueueSeen| {
        vec![
            ("host", one.host.clone()),
            ("controller", one.controller.to_string()),
            ("queue", one.id.to_string()),
            ("core", one.core.to_string()),
        ]
    };
    let all = each(subsystems, |one| &one.queues, labels);
    io(writer, "queue", &of(&all, |one| &one.io))
}

type Labelled<'s, T> = Vec<(Labels, &'s T)>;

/// What all subsystems have of a kind, with its labels behind that of the subsystem.
fn each<T>(
    subsystems: &[SubsystemSeen],
    list: impl Fn(&SubsystemSeen) -> &Vec<T>,
    labels: impl Fn(&T) -> Labels,
) -> Labelled<'_, T> {
    let mut all = Vec::new();
    for one in subsystems {
        for item in list(one) {
            let mut own = subsystem(&one.nqn);
            own.extend(labels(item));
            all.push((own, item));
        }
    }
    all
}

fn of<'s, T>(all: &Labelled<'s, T>, io: impl Fn(&'s T) -> &'s IoSum) -> Labelled<'s, IoSum> {
    all.iter().map(|(labels, one)| (labels.clone(), io(one))).collect()
}

/// What was done, and how long it took.
fn io(writer: &mut Writer<'_>, what: &str, all: &Labelled<'_, IoSum>) -> fmt::Result {
    let split = |values: fn(&IoCounters) -> Vec<(&'static str, u64)>| {
        all.iter().flat_map(move |(labels, io)| {
            values(&io.counters)
                .into_iter()
                .map(move |(kind, value)| (with(labels, "operation", kind), value))
        })
    };
    let commands = split(|io| {
        vec![("read", io.commands_read), ("write", io.commands_write), ("other", io.commands_other)]
    });
    writer.counter(&format!("{what}_commands"), "I/O commands that were answered", None, commands)?;
    let bytes = split(|io| vec![("read", io.bytes_read), ("write", io.bytes_written)]);
    writer.counter(&format!("{what}_data"), "Data of reads and writes", Some(Unit::Bytes), bytes)?;
    let failed = all.iter().map(|(labels, io)| (labels.clone(), io.counters.commands_failed));
    writer.counter(
        &format!("{what}_failed_commands"),
        "I/O commands that ended with an error",
        None,
        failed,
    )?;
    let sampled = || all.iter().filter_map(|(labels, io)| Some((labels, io.latency.as_deref()?)));
    let total = sampled().map(|(labels, latency)| (labels.clone(), &latency.total));
    let help = "From a command's arrival until its answer was sent, of one command in 64";
    writer.histogram(&format!("{what}_command_duration"), help, total)?;
    let phases = sampled().flat_map(|(labels, latency): (&Labels, &Latency)| {
        let phases = Phase::ALL.into_iter().zip(&latency.phases);
        phases.map(move |(phase, histogram)| (with(labels, "phase", phase.name()), histogram))
    });
    let help = "What a command waited for, of one command in 64";
    writer.histogram(&format!("{what}_phase_duration"), help, phases)
}

fn subsystem(nqn: &str) -> Labels {
    vec![("subsystem", nqn.to_owned())]
}

fn with(labels: &Labels, name: &'static str, value: impl Into<String>) -> Labels {
    let mut labels = labels.clone();
    labels.push((name, value.into()));
    labels
}
