//! A snapshot as a page for people: readable without scripts, and loaded again every few seconds.
//!
//! Everything that hosts say of themselves is escaped by the template.

use std::time::SystemTime;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use ringfab_base::visible;
use ringfab_spec::log::AnaState;

use super::snapshot::{NamespaceSeen, Pair, QueueSeen, Snapshot, SubsystemSeen};
use crate::config::state_word;
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
body{font:14px/1.4 system-ui,sans-serif;margin:1.5em;max-width:135em}\
h1{font-size:1.4em;margin:0}h2{font-size:1.1em;margin:1.6em 0 .4em}p{margin:.3em 0;color:GrayText}\
table{border-collapse:collapse;width:100%}th,td{padding:.25em .45em;text-align:right;vertical-align:bottom;\
border-bottom:1px solid color-mix(in srgb,currentcolor 15%,transparent);font-variant-numeric:tabular-nums}\
th{font-weight:600}th.t,td.t{text-align:left;overflow-wrap:anywhere;min-width:10em}td.t:first-child{min-width:17em}\
td{white-space:nowrap}td.t{white-space:normal}\
.bad{color:#c22;font-weight:600}svg{display:block;margin-left:auto}rect{fill:#3a7bd5}\
text{font-size:8px;fill:GrayText}.s{font-size:.85em;color:GrayText}td.g{display:none}\
th.o{text-align:left;color:GrayText;font-weight:400;border-bottom:0}th.o,th.b,td.b{padding-left:1.4em}\
@media(max-width:1600px){body{margin:.8em;max-width:none}table,tbody{display:block}tr.h{display:none}\
tr{display:grid;grid-template-columns:repeat(auto-fill,minmax(7.2em,1fr));gap:.35em .8em;padding:.7em 0;\
border-bottom:1px solid color-mix(in srgb,currentcolor 15%,transparent)}\
td,td.b{display:block;border:0;padding:0;text-align:left;white-space:normal;overflow-wrap:anywhere}\
td[data-t]::before{content:attr(data-t);display:block;font-size:.8em;color:GrayText}\
td.t,td.t:first-child,td.g{display:block;grid-column:1/-1;min-width:0}td.g{font-size:.85em;font-weight:600}\
svg{margin-left:0;width:100%;max-width:14em;height:auto}}";

/// What the columns of a group are of.
const SINCE_START: &str = "Since the start";

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
                @let span = span(now, before);
                (summary(now, before))
                (paths(now))
                (namespaces(now, before, &span))
                (hosts(now, before, &span))
                (queues(now, before, &span))
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
            @if before.is_none() { "Rates appear with the next load. " }
            "Latency is of one command in 64. The page loads again every " (REFRESH_S) " s. "
            "The numbers for Prometheus are at " a href="/metrics" { "/metrics" } "."
        }
    }
}

/// The paths that are not simply optimized.
fn paths(now: &Snapshot) -> Markup {
    let all = now.subsystems.iter().flat_map(|one| one.access_groups.iter().map(move |group| (one, group)));
    let told = all.filter(|(_, group)| group.state != AnaState::OPTIMIZED).take(ROWS_MAX);
    html! {
        @for (subsystem, group) in told {
            p {
                "Access group " (group.group) " of " (subsystem.nqn) " by " (group.way) " is "
                span.bad[!group.state.allows_io()] { (state_word(group.state)) } "."
            }
        }
    }
}

/// What rates are of.
fn span(now: &Snapshot, before: Option<&Snapshot>) -> String {
    before.map_or_else(
        || "Each second".to_owned(),
        |before| format!("Of the last {:.0} s", now.at.duration_since(before.at).as_secs_f64()),
    )
}

fn namespaces(now: &Snapshot, before: Option<&Snapshot>, span: &str) -> Markup {
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
                (io(&one.io, rate(now, before, &one.io, earlier.map(|one| &one.io)).as_ref(), span))
            }
        }
    };
    table("Namespaces", &html! { th.t { "Namespace" } th.t { "State" } }, span, all.map(row))
}

fn hosts(now: &Snapshot, before: Option<&Snapshot>, span: &str) -> Markup {
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
                td data-t="Queues" { @if one.queues > 0 { (one.queues) } @else { "gone" } }
                (io(&one.io, rate(now, before, &one.io, earlier.map(|one| &one.io)).as_ref(), span))
            }
        }
    };
    table("Hosts", &html! { th.t { "Host" } th { "Queues" } }, span, all.map(row))
}

fn queues(now: &Snapshot, before: Option<&Snapshot>, span: &str) -> Markup {
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
                td data-t="Core" { (one.core) }
                (io(&one.io, rate(now, before, &one.io, earlier.map(|one| &one.io)).as_ref(), span))
            }
        }
    };
    table("Queues", &html! { th.t { "Queue" } th { "Core" } }, span, all.map(row))
}

/// A table whose last columns are those of [`io`]. In a narrow window each row is a block: there a cell has its title
/// with it, and a line before each group of cells says what they are of.
fn table(name: &str, first: &Markup, span: &str, rows: impl Iterator<Item = Markup>) -> Markup {
    let mut rows = rows.peekable();
    let none = rows.peek().is_none();
    let shown: Vec<Markup> = rows.by_ref().take(ROWS_MAX).collect();
    let more = rows.count();
    html! {
        h2 { (name) }
        @if none { p { "none" } } @else {
            table {
                tr.h {
                    th.o colspan="2" {}
                    th.o colspan=(RATES.len()) { (span) } th.o colspan=(4 + Phase::COUNT) { (SINCE_START) }
                }
                tr.h {
                    (first)
                    @for (index, title) in RATES.iter().enumerate() { th.b[index == 0] { (title) } }
                    th.b { "Failed" } th { "Median" } th { "p99" } th { "Latency" }
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
            return html! { tr { td data-t="Core" { (number) } td.t colspan="6" { span.bad { "does not answer" } } } };
        };
        let of = |buffers: &Buffers| format!("{} of {}", buffers.taken, buffers.total);
        let waits = core.states.iter().filter(|state| state.commands > 0);
        html! {
            tr {
                td data-t="Core" { (number) }
                td data-t="Queues" { (core.queues) } td data-t="Commands" { (core.commands) }
                td.t { @for state in waits { (state.commands) " " (state.state.name()) " " } }
                td data-t="I/O buffers" { (of(&core.io_buffers)) }
                td data-t="Admin buffers" { (of(&core.admin_buffers)) }
                td data-t="Compare buffers" { (of(&core.compare_buffers)) }
            }
        }
    };
    html! {
        h2 { "Cores" }
        table {
            tr.h {
                th { "Core" } th { "Queues" } th { "Commands" } th.t { "Where they wait" }
                th { "I/O buffers" } th { "Admin buffers" } th { "Compare buffers" }
            }
            @for core in now.cores.iter().enumerate() { (row(core)) }
        }
    }
}

/// The titles of the rates.
const RATES: [&str; 4] = ["Reads/s", "Writes/s", "Read/s", "Written/s"];

/// The columns of what was done.
fn io(io: &IoSum, rate: Option<&Rate>, span: &str) -> Markup {
    let latency = io.latency.as_deref();
    let quantile =
        |part| latency.and_then(|latency| latency.total.quantile_us(part)).map_or("–".to_owned(), time);
    let rates = rate.map(|rate| {
        let bytes = [rate.bytes_read, rate.bytes_written].map(|bytes| size(bytes as u64));
        let [read, written] = bytes;
        [count(rate.reads), count(rate.writes), read, written]
    });
    let rates = rates.unwrap_or_else(|| RATES.map(|_| "–".to_owned()));
    let failed = io.counters.commands_failed;
    html! {
        td.g { (span) }
        @for (index, (title, rate)) in RATES.iter().zip(rates).enumerate() {
            td.b[index == 0] data-t=(title) { (rate) }
        }
        td.g { (SINCE_START) }
        td.b data-t="Failed" { @if failed > 0 { span.bad { (failed) } } @else { "0" } }
        td data-t="Median" { (quantile(0.5)) } td data-t="p99" { (quantile(0.99)) }
        @match latency {
            Some(latency) => {
                td data-t="Latency" { (bars("latency", &latency.total)) }
                @for (phase, histogram) in Phase::ALL.into_iter().zip(&latency.phases) {
                    td data-t=(phase.name()) { (bars(phase.name(), histogram)) }
                }
            }
            None => { td { } @for _ in Phase::ALL { td { } } }
        }
    }
}

/// The places of the axis that have a name: a bucket ends there.
const TICKS: [(usize, &str); 3] = [(0, "1 µs"), (19, "1 ms"), (39, "1 s")];

/// A histogram as bars, from a microsecond on the left to seconds on the right. The number at the top is the part of
/// all that the highest bar has.
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
        svg width="98" height="36" viewBox="0 0 98 36" role="img" aria-label=(title) {
            title { (title) }
            path d="M0 24.5H98" stroke="currentcolor" stroke-opacity=".3" {}
            @for (bucket, name) in TICKS {
                @let x = 2 * (bucket + 1);
                path d=(format!("M{x} 0V27")) stroke="currentcolor" stroke-opacity=".15" {}
                text x=(x) y="34" text-anchor=(if bucket == 0 { "start" } else { "middle" }) { (name) }
            }
            text x="98" y="7" text-anchor="end" { (format!("{:.0} %", 100.0 * most as f64 / all as f64)) }
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
            access_groups: Vec::new(),
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
        assert_eq!(page.matches("Of the last 4 s").count(), 4, "{page}");
        let cells = [("Reads/s", "50"), ("Writes/s", "0"), ("Read/s", "200 KiB"), ("Written/s", "0 B")];
        for (title, value) in cells {
            assert_eq!(
                page.matches(&format!(" data-t=\"{title}\">{value}</td>")).count(),
                2,
                "{title}: {page}"
            );
        }
        assert!(page.contains("half within 96 µs"), "the bucket of 90 µs ends there");
        assert!(page.contains("does not answer"));
    }

    #[test]
    fn a_histogram_has_an_axis_whose_names_are_where_their_buckets_end() {
        for ((bucket, name), micros) in TICKS.iter().zip([1, 1024, 1 << 20]) {
            assert_eq!(bound_us(*bucket), micros, "{name}");
        }
        let histogram = done(5).latency.expect("timed commands").total;
        let text = bars("latency", &histogram).into_string();
        for part in [">1 µs</text>", ">1 ms</text>", ">1 s</text>", ">100 %</text>"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn what_is_of_a_moment_and_what_is_since_the_start_are_apart() {
        let begun = Instant::now();
        let pair = Pair {
            now: snapshot("host", 3, begun + Duration::from_secs(4)),
            before: Some(snapshot("host", 1, begun)),
        };
        let page = page(&pair);
        let row = page.split("<tr>").nth(1).expect("a row");
        let place = |what: &str| row.find(what).unwrap_or_else(|| panic!("{what} in {row}"));
        let (of_moment, since) = (place(">Of the last 4 s<"), place(">Since the start<"));
        for title in RATES {
            assert!((of_moment..since).contains(&place(&format!("data-t=\"{title}\""))), "{title}");
        }
        for title in ["Failed", "Median", "p99", "Latency"] {
            assert!(place(&format!("data-t=\"{title}\"")) > since, "{title}");
        }
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
