//! What SECURITY.md's attacks and docs/memory.md's connections cost, in figures, of two builds of the programs in turn:
//!
//! `peers BEFORE AFTER attacks|memory|floods [NAME]`: the folders of the programs as they were and as they are, and of
//! the attacks those whose name contains NAME. All attacks take a quarter of an hour. Nothing fails for being slow.
//!
//! `peers FOLDER authentication`: what a quiet host notices of 100 others that authenticate over and over, with the
//! group that takes longest. The others take only what processors have left, as if they had machines of their own; then
//! they share the processors with the target and the quiet host.
//!
//! The hosts and attackers are those of `tests/tests/peers`, which has the tests. `ringfab bench`, which measures the
//! good host, is always that of AFTER.

#![expect(clippy::print_stdout, reason = "the tables are what this is for")]

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/peers/attack.rs"]
mod attack;
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/peers/attacks.rs"]
mod attacks;
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/peers/memory.rs"]
mod memory;
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/peers/target.rs"]
mod target;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use ringfab_reactor::run_when_idle;
use serde_json::Value;

use crate::attack::{Act, Attack, Going, Origin};
use crate::attacks::{attaches, attacks};
use crate::memory::Figures;
use crate::target::{FRIEND, Over, Process, QUIET};

/// After so long a host that does not get in gives up.
const PATIENCE: Duration = Duration::from_secs(5);

/// The folders of the programs, as they were and as they are.
type Builds = [PathBuf; 2];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [before, after, "attacks", name @ ..] if name.len() <= 1 => {
            measure_attacks(&[before.into(), after.into()], name.first().copied().unwrap_or_default());
        }
        [before, after, "memory"] => measure_memory(&[before.into(), after.into()]),
        [folder, "authentication"] => measure_authentication(folder.as_ref()),
        [before, after, "floods"] => measure_floods(&[before.into(), after.into()]),
        _ => {
            println!("peers BEFORE AFTER attacks|memory|floods [NAME], or peers FOLDER authentication");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

/// The p99 of a host that reads 4 KiB at random with eight outstanding while something goes on, in microseconds. The
/// reads begin before, and that is not counted.
fn p99<R>(ringfab: &Path, process: &Process, over: Over, meanwhile: impl FnOnce() -> R) -> (String, R) {
    let arguments = ["bench", &process.url(over), "--hostnqn", FRIEND, "--depth", "8", "--json"];
    let times = ["--warmup", "3s", "--time", "3s"];
    let mut command = Command::new(ringfab);
    command.args(arguments).args(times).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let bench = command.spawn().expect("it starts");
    // Within the three seconds before the measurement.
    std::thread::sleep(Duration::from_millis(500));
    let kept = meanwhile();
    let output = bench.wait_with_output().expect("it ends");
    let document: Option<Value> = serde_json::from_slice(&output.stdout).ok();
    let p99 = document.as_ref().and_then(|document| document["read"]["latency_us"]["p99"].as_f64());
    (p99.map_or_else(|| "failed".to_owned(), |p99| format!("{p99:.0} µs")), kept)
}

/// How often each is measured, in turn.
const ROUNDS: usize = 5;

/// The 4 KiB reads of a quiet host alone, and beside the others.
fn measure_authentication(folder: &Path) {
    println!("| p50, p99 alone | beside 100 that authenticate | the time that takes |");
    println!("| --- | --- | --- |");
    for shared in [false, true] {
        println!("| others {} processors | | |", if shared { "share the" } else { "leave the" });
        for _ in 0..ROUNDS {
            let process = Process::start_guarded_in(folder);
            let alone = reads(folder, &process);
            let others = Attack { over: Over::Tcp, act: Act::Reply, from: Origin::Others(100), count: 100 };
            let address = process.address(Over::Tcp);
            let start = move || {
                // Threads have the priority of the one that starts them.
                shared.then_some(()).map_or_else(run_when_idle, Ok).map(|()| Going::start(others, address))
            };
            let _others = std::thread::spawn(start).join().expect("they start").expect("a low priority");
            let beside = reads(folder, &process);
            println!("| {alone} | {beside} | {:.1} s |", computed(&process).as_secs_f64());
        }
    }
}

/// The time of a processor that a target has spent on authentication.
fn computed(process: &Process) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.service.id())).expect("its threads");
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let computing = tasks
        .flatten()
        .map(|task| task.path())
        .filter(|path| ["auth-compute", "authentication"].contains(&read(path.join("comm")).trim()));
    // The first field is the time on a processor, in nanoseconds.
    let times = computing.map(|path| read(path.join("schedstat")));
    let times = times.filter_map(|text| text.split(' ').next()?.parse::<u64>().ok());
    Duration::from_nanos(times.sum())
}

/// The percentiles of a host that reads 4 KiB at a time, one after the other.
fn reads(folder: &Path, process: &Process) -> String {
    let mut command = Command::new(folder.join("ringfab"));
    command.args(["bench", &process.url(Over::Tcp), "--hostnqn", QUIET, "--depth", "1", "--json"]);
    command.args(["--warmup", "1s", "--time", "4s"]).stdin(Stdio::null());
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).expect("figures");
    let percentile = |name: &str| document["read"]["latency_us"][name].as_f64().unwrap_or(f64::NAN);
    format!("{:.0} µs, {:.0} µs", percentile("p50"), percentile("p99"))
}

fn shown(time: Option<Duration>) -> String {
    time.map_or_else(|| format!("> {PATIENCE:?}"), |time| format!("{:.1} ms", time.as_secs_f64() * 1e3))
}

fn measure_attacks(builds: &Builds, only: &str) {
    let ringfab = builds[1].join("ringfab");
    for over in [Over::Tcp, Over::Rdma] {
        let quiet = builds.each_ref().map(|folder| p99(&ringfab, &Process::start_in(folder), over, || ()).0);
        println!("p99 without an attack, {over:?}: {quiet:?}");
    }
    println!(
        "| attack | attach before: median, most | after | p99 before | after |\n| --- | --- | --- | --- | --- |"
    );
    let others = |act: Act| !act.is_about_authentication();
    let attacks = attacks().into_iter().filter(|(_, attack, _)| others(attack.act));
    for (name, attack, _) in attacks.filter(|(name, ..)| name.contains(only)) {
        let rows = builds.each_ref().map(|folder| {
            let process = Process::start_in(folder);
            let (p99, going) =
                p99(&ringfab, &process, attack.over, || Going::start(attack, process.address(attack.over)));
            let times = attaches(&process, attack.over, PATIENCE);
            drop(going);
            (format!("{}, {}", shown(times[times.len() / 2]), shown(times[times.len() - 1])), p99)
        });
        let [(before, p99_before), (after, p99_after)] = rows;
        println!("| {name} | {before} | {after} | {p99_before} | {p99_after} |");
    }
}

/// Waits for longer than anything takes to be given back.
fn settle(process: &Process, _: u64) -> u64 {
    // A time is what is asked for here.
    std::thread::sleep(Duration::from_secs(10));
    process.settled_kib()
}

fn measure_memory(builds: &Builds) {
    println!("| transport, build | idle, KiB each | busy once, at once | and later | left, KiB in all |");
    println!("| --- | --- | --- | --- | --- |");
    for over in [Over::Tcp, Over::Rdma] {
        for (build, folder) in ["before", "after"].into_iter().zip(builds) {
            let process = Process::start_in(folder);
            let Figures { count, before, idle, busy, rested, left } = match over {
                Over::Tcp => memory::of_tcp(&process, 10, settle),
                Over::Rdma => memory::of_rdma(&process, 10, settle),
            };
            let each = |kib: u64| kib.saturating_sub(before) as f64 / count as f64;
            let left = left.saturating_sub(before);
            println!(
                "| {over:?}, {build} | {:.1} | {:.1} | {:.1} | {left} ({count} queues) |",
                each(idle),
                each(busy),
                each(rested)
            );
        }
    }
}

/// What the sum in docs/memory.md says of a connection that uses all that it may, and of one that has only come.
fn measure_floods(builds: &Builds) {
    for (build, folder) in ["before", "after"].into_iter().zip(builds) {
        let process = Process::start_in(folder);
        let before = process.settled_kib();
        let mut queues: Vec<_> = (0..2).flat_map(|_| memory::tcp_queues(&process, 1024)).collect();
        queues.chunks_mut(usize::from(memory::EACH) + 1).for_each(|controller| {
            controller.iter_mut().take(memory::EACH.into()).for_each(|queue| memory::burst(queue, 1000));
        });
        let each = (process.status("VmHWM:") - before) as f64 / f64::from(2 * memory::EACH);
        println!(
            "{build}: {each:.0} KiB at most for each of {} busy queues of 1,024 entries",
            2 * memory::EACH
        );
        // One process at a time.
        drop((queues, process));
        let process = Process::start_in(folder);
        let before = process.settled_kib();
        let attack = Attack { over: Over::Tcp, act: Act::Queues, from: Origin::Others(1), count: 60 };
        let _going = Going::start(attack, process.address(Over::Tcp));
        let (files, kib) = (process.open_files(), process.status("VmRSS:") - before);
        println!(
            "{build}: {kib} KiB for {files} idle connections, {:.1} KiB each",
            kib as f64 / files as f64
        );
    }
}
