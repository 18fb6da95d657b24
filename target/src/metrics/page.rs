//! A snapshot as a page for people: readable without scripts, and loaded again every few seconds.
//!
//! Everything that hosts say of themselves is escaped by the template.

use std::time::SystemTime;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use ringfab_base::visible;

use super::snapshot::{NamespaceSeen, Pair, QueueSeen, Snapshot, SubsystemSeen};
use crate::core::{Buffers, CoreUsage};
use crate::model::host_account::HostUsage;
use crate::model::latency::{BOUNDS, Histogram, Phase, bound_us};
use crate::model::{IoCounters, IoSum};

/// Seconds between two loads of the page.
const REFRESH_S: u32 = 5;

/// Rows of a table: what is beyond is in the metrics.
const ROWS_MAX: usize = 256;

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:14px/1.4 system-ui,sans-serif;margin:1.5em;max-width:100em}\
h1{font-size:1.4em;margin:0}h2{font-size:1.1em;margin:1.6em 0 .4em}p{margin:.3em 0;color:GrayText}\
table{border-collapse:collapse;width:100%}th,td{padding:.25em .45em;text-align:right;vertical-align:bottom;\
border-bottom:1px solid color-mix(in srgb,currentcolor 15%,transparent);font-variant-numeric:tabular-nums}\
th{font-weight:600}th.t,td.t{text-align:left;overflow-wrap:anywhere;min-width:10em}td.t:first-child{min-width:17em}\
td{white-space:nowrap}td.t{white-space:normal}\
.bad{color:#c22;font-weight:600}svg{display:block;margin-left:auto}rect{fill:#3a7bd5}\
.s{font-size:.85em;color:GrayText}";

/// The page.
pub(super) fn page(pair: &Pair) -> String {
    let now = &*pair.now;
    let before = pair.before.as_deref();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="refresh" content=(REFRESH_S);
                meta name="viewport" content="width=device-width";
                title { "Ringfab" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                (summary(now, before))
                (namespaces(now, before))
                (hosts(now, before))
                (queues(now, before))
                (cores(now))
            }
        }
    };
    // What hosts and administrators name is in it.
    visible(&page.into_string()).to_string()
}

fn summary(now: &Snapshot, before: Option<&Snapshot>) -> Markup {
    let up = SystemTime::now().duration_since(now.started).unwrap_or_default().as_secs();
    let controllers: usize = now.subsystems.iter().map(|one| one.controllers).sum();
    let silent = now.cores.iter().filter(|core| core.is_none()).count();
    html! {
        h1 { "Ringfab target " (env!("CARGO_PKG_VERSION")) }
        p {
            "Up " (uptime(up)) ". Cores: " (now.cores.len()) ". Controllers: " (controllers) "."
            @if now.hanging > 0 { " " span.bad { "Calls to files that hang: " (now.hanging) "." } }
            @if !now.unconfined.is_empty() { " " span.bad { "Not wholly confined: " (now.unconfined.join("; ")) "." } }
            @if silent > 0 { " " span.bad { "Cores that do not answer: " (silent) "." } }
        }
        p {
            @match before {
                Some(before) => { "Rates are of the last " (seconds_between(before, now)) " s. " }
                None => { "Rates appear with the next load. " }
            }
            "Latency is of one command in 64 since the start. The page loads again every " (REFRESH_S) " s. "
            "The numbers for Prometheus are at " a href="/metrics" { "/metrics" } "."
        }
    }
}

fn namespaces(now: &Snapshot, before: Option<&Snapshot>) -> Markup {
    let all =
        now.subsystems.iter().flat_map(|one| one.namespaces.iter().map(move |namespace| (one, namespace)));
    let row = |(subsystem, one): (&SubsystemSeen, &NamespaceSeen)| {
        let earlier = before.and_then(|before| before.namespace(&subsystem.nqn, one.nsid));
        let earlier = earlier.filter(|earlier| earlier.uuid == one.uuid);
        html! {
            tr {
                td.t { (subsystem.nqn) " " b { (one.nsid) } div.s { (one.source) ", " (size(one.bytes)) } }
                td.t {
                    @if one.health.state == "ready" { "ready" } @else { span.bad { (one.health.state) } }
                    @if let Some(reason) = &one.health.reason { div.s { (reason) } }
                }
                (io(&one.io, rate(now, before, &one.io, earlier.map(|one| &one.io)).as_ref()))
            }
        }
    };
    table("Namespaces", &html! { th.t { "Namespace" } th.t { "State" } }, all.map(row))
}

fn hosts(now: &Snapshot, before: Option<&Snapshot>) -> Markup {
    let all = now.subsystems.iter().flat_map(|one| one.hosts.iter().map(move |host| (one, host)));
    let row = |(subsystem, one): (&SubsystemSeen, &HostUsage)| {
        let earlier = before.and_then(|before| before.subsystem(&subsystem.nqn));
        let earlier = earlier.and_then(|earlier| earlier.hosts.iter().find(|host| host.nqn == one.nqn));
        html! {
            tr {
                td.t {
                    @match &one.nqn {
                        Some(nqn) => (nqn),
                        None => "(others)",
                    }
                    div.s { (subsystem.nqn) }
                }
                td { @if one.queues > 0 { (one.queues) } @else { "gone" } }
                (io(&one.io, rate(now, before, &one.io, earlier.map(|one| &one.io)).as_ref()))
            }
        }
    };
    table("Hosts", &html! { th.t { "Host" } th { "Queues" } }, all.map(row))
}

fn queues(now: &Snapshot, before: Option<&Snapshot>) -> Markup {
    let all = now.subsystems.iter().flat_map(|one| one.queues.iter().map(move |queue| (one, queue)));
    let row = |(subsystem, one): (&SubsystemSeen, &QueueSeen)| {
        let earlier = before.and_then(|before| before.subsystem(&subsystem.nqn));
        let same = |queue: &&QueueSeen| {
            (queue.controller, queue.id, &queue.peer) == (one.controller, one.id, &one.peer)
        };
        let earlier = earlier.and_then(|earlier| earlier.queues.iter().find(same));
        html! {
            tr {
                td.t {
                    "controller " (one.controller) ", queue " (one.id)
                    div.s { (one.host) " at " (one.peer) }
                    @if !one.security.is_empty() { div.s { (one.security) } }
                }
                td { (one.core) }
                (io(&one.io, rate(now, before, &one.io, earlier.map(|one| &one.io)).as_ref()))
            }
        }
    };
    table("Queues", &html! { th.t { "Queue" } th { "Core" } }, all.map(row))
}

/// A table whose last columns are those of [`io`].
fn table(name: &str, first: &Markup, rows: impl Iterator<Item = Markup>) -> Markup {
    let mut rows = rows.peekable();
    let none = rows.peek().is_none();
    let shown: Vec<Markup> = rows.by_ref().take(ROWS_MAX).collect();
    let more = rows.count();
    html! {
        h2 { (name) }
        @if none { p { "none" } } @else {
            table {
                tr {
                    (first)
                    th { "Reads/s" } th { "Writes/s" } th { "Read/s" } th { "Written/s" } th { "Failed" }
                    th { "Median" } th { "p99" } th { "Latency" }
                    @for phase in Phase::ALL { th { (phase.name()) } }
                }
                @for row in shown { (row) }
            }
            @if more > 0 { p { "and " (more) " more" } }
        }
    }
}

fn cores(now: &Snapshot) -> Markup {
    let row = |(number, core): (usize, &Option<CoreUsage>)| {
        let Some(core) = core else {
            return html! { tr { td { (number) } td.t colspan="6" { span.bad { "does not answer" } } } };
        };
        let of = |buffers: &Buffers| format!("{} of {}", buffers.taken, buffers.total);
        let waits = core.states.iter().filter(|state| state.commands > 0);
        html! {
            tr {
                td { (number) } td { (core.queues) } td { (core.commands) }
                td.t { @for state in waits { (state.commands) " " (state.state.name()) " " } }
                td { (of(&core.io_buffers)) } td { (of(&core.admin_buffers)) } td { (of(&core.compare_buffers)) }
            }
        }
    };
    html! {
        h2 { "Cores" }
        table {
            tr {
                th { "Core" } th { "Queues" } th { "Commands" } th.t { "Where they wait" }
                th { "I/O buffers" } th { "Admin buffers" } th { "Compare buffers" }
            }
            @for core in now.cores.iter().enumerate() { (row(core)) }
        }
    }
}

/// The columns of what was done.
fn io(io: &IoSum, rate: Option<&Rate>) -> Markup {
    let latency = io.latency.as_deref();
    let quantile =
        |part| latency.and_then(|latency| latency.total.quantile_us(part)).map_or("–".to_owned(), time);
    html! {
        @match rate {
            Some(rate) => {
                td { (count(rate.reads)) } td { (count(rate.writes)) }
                td { (size(rate.bytes_read as u64)) } td { (size(rate.bytes_written as u64)) }
            }
            None => { td { "–" } td { "–" } td { "–" } td { "–" } }
        }
        td { @if io.counters.commands_failed > 0 { span.bad { (io.counters.commands_failed) } } @else { "0" } }
        td { (quantile(0.5)) } td { (quantile(0.99)) }
        @match latency {
            Some(latency) => {
                td { (bars("latency", &latency.total)) }
                @for (phase, histogram) in Phase::ALL.into_iter().zip(&latency.phases) {
                    td { (bars(phase.name(), histogram)) }
                }
            }
            None => { td { } @for _ in Phase::ALL { td { } } }
        }
    }
}

/// A histogram as bars, from a microsecond on the left to seconds on the right.
fn bars(what: &str, histogram: &Histogram) -> Markup {
    let all = histogram.count().max(1);
    let most = histogram.counts.iter().copied().max().unwrap_or(0).max(1);
    let quantile = |part| histogram.quantile_us(part).map_or_else(|| "–".to_owned(), time);
    let title = format!("{what}: half within {}, 99 % within {}", quantile(0.5), quantile(0.99));
    let bar = |(bucket, count): (usize, &u64)| {
        // One that has anything can be seen.
        let height = (24 * count).div_ceil(most).max(1);
        let end =
            if bucket < BOUNDS { format!("up to {}", time(bound_us(bucket))) } else { "longer".to_owned() };
        let part = format!("{end}: {:.1} %", 100.0 * *count as f64 / all as f64);
        html! {
            rect x=(2 * bucket) y=(24 - height) width="2" height=(height) { title { (part) } }
        }
    };
    html! {
        svg width="98" height="25" viewBox="0 0 98 25" role="img" aria-label=(title) {
            title { (title) }
            path d="M0 24.5H98" stroke="currentcolor" stroke-opacity=".3" {}
            @for one in histogram.counts.iter().enumerate().filter(|(_, count)| **count > 0) { (bar(one)) }
        }
    }
}

/// What was done in a second.
struct Rate {
    reads: f64,
    writes: f64,
    bytes_read: f64,
    bytes_written: f64,
}

fn rate(now: &Snapshot, before: Option<&Snapshot>, io: &IoSum, earlier: Option<&IoSum>) -> Option<Rate> {
    let seconds = now.at.duration_since(before?.at).as_secs_f64();
    let (new, old) = (io.counters, earlier.map_or(IoCounters::default(), |io| io.counters));
    let of = |new: u64, old: u64| new.saturating_sub(old) as f64 / seconds;
    Some(Rate {
        reads: of(new.commands_read, old.commands_read),
        writes: of(new.commands_write, old.commands_write),
        bytes_read: of(new.bytes_read, old.bytes_read),
        bytes_written: of(new.bytes_written, old.bytes_written),
    })
}

fn seconds_between(before: &Snapshot, now: &Snapshot) -> String {
    format!("{:.0}", now.at.duration_since(before.at).as_secs_f64())
}

fn uptime(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

fn count(rate: f64) -> String {
    if rate > 0.0 && rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

/// Bytes with a unit.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    if unit == 0 || value >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// Microseconds with a unit.
fn time(micros: u64) -> String {
    match micros {
        0..1000 => format!("{micros} µs"),
        1000..1_000_000 => format!("{:.3} ms", micros as f64 / 1e3).replace(".000", ""),
        _ => format!("{:.1} s", micros as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::model::IoRecord;
    use crate::model::latency::Timed;

    const EVIL: &str = "<script>alert('\"&')</script>";

    fn done(reads: u64) -> IoSum {
        let (record, mut sum) = (IoRecord::default(), IoSum::default());
        for _ in 0..reads {
            record.note_read(4096);
            record.note_timed(&Timed { total: Duration::from_micros(90), phases: [Duration::ZERO; 4] });
        }
        sum.add(&record);
        sum
    }

    /// A target whose one host names itself so.
    fn snapshot(host: &str, reads: u64, at: Instant) -> Arc<Snapshot> {
        let queue = QueueSeen {
            host: host.to_owned(),
            controller: 1,
            id: 1,
            core: 0,
            peer: "127.0.0.1:9".to_owned(),
            security: "TLS_AES_128_GCM_SHA256".to_owned(),
            io: done(reads),
        };
        let subsystem = SubsystemSeen {
            nqn: "nqn.2026-11.org.ringfab:a".to_owned(),
            controllers: 1,
            controllers_authenticating: 0,
            controllers_over_tls: 1,
            controllers_authenticated: 0,
            namespaces: Vec::new(),
            hosts: vec![HostUsage { nqn: Some(host.to_owned()), queues: 2, io: done(reads) }],
            queues: vec![queue],
        };
        Arc::new(Snapshot {
            at,
            started: SystemTime::UNIX_EPOCH,
            generation: 1,
            open_files: None,
            unconfined: Vec::new(),
            hanging: 0,
            cores: vec![None],
            subsystems: vec![subsystem],
        })
    }

    #[test]
    fn what_hosts_say_of_themselves_is_escaped() {
        let page = page(&Pair { now: snapshot(EVIL, 1, Instant::now()), before: None });
        assert!(!page.contains("<script"), "{page}");
        assert_eq!(page.matches("&lt;script&gt;alert('&quot;&amp;')&lt;/script&gt;").count(), 2);
        let page = super::page(&Pair { now: snapshot("a\u{202e}\u{1b}b", 1, Instant::now()), before: None });
        assert!(!page.contains(['\u{202e}', '\u{1b}']) && page.contains("a\\u{202e}\\u{1b}b"), "{page}");
    }

    #[test]
    fn rates_are_of_the_time_between_two_snapshots() {
        let begun = Instant::now();
        let before = snapshot("host", 100, begun);
        let pair = Pair { now: snapshot("host", 300, begun + Duration::from_secs(4)), before: Some(before) };
        let page = page(&pair);
        assert!(page.contains("Rates are of the last 4 s"));
        assert_eq!(page.matches("<td>50</td><td>0</td><td>200 KiB</td><td>0 B</td>").count(), 2, "{page}");
        assert!(page.contains("half within 96 µs"), "the bucket of 90 µs ends there");
        assert!(page.contains("does not answer"));
    }

    #[test]
    fn quantities_have_units() {
        assert_eq!([0, 1023, 1536, 1 << 40].map(size), ["0 B", "1023 B", "1.5 KiB", "1 TiB"]);
        assert_eq!([3, 1024, 16_777_216].map(time), ["3 µs", "1.024 ms", "16.8 s"]);
        let minute = 60;
        let times = [59, minute, 61 * minute, 25 * 60 * minute].map(uptime);
        assert_eq!(times, ["59 s", "1 min", "1 h 1 min", "1 d 1 h"]);
    }
}
