//! Nothing is lost: both ends over a simulated world in which everything goes wrong, from a seed.
//!
//! `SEED=n cargo test -p ringfab-tests --test simulation` runs one world again and tells its story;
//! `SEEDS=n` runs so many fresh ones.

use std::env;
use std::panic::catch_unwind;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ringfab_auth::Group;
use ringfab_reactor::sim::{DiskFaults, LinkFaults};
use ringfab_target::core::{CoreUsage, State, StateUsage};
use ringfab_tests::world::content::Random;
use ringfab_tests::world::rival::Counts;
use ringfab_tests::world::scenario::{Incidents, Machines, Protections, Scenario, Tls};
use ringfab_tests::world::{
    Outcome, run, run_aborts, run_all_or_none, run_changes, run_exact, run_loss, run_rests,
};

/// Worlds that every run looks at.
const FIXED_SEEDS: std::ops::Range<u64> = 0..60;

/// How long fresh worlds are tried.
const FRESH_TIME: Duration = Duration::from_secs(15);

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

fn start_logging() {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _twice = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
}

#[test]
fn nothing_is_lost_in_the_worlds_of_the_fixed_seeds() {
    start_logging();
    if let Some(seed) = number("SEED") {
        run(Scenario::new(seed), true);
        return;
    }
    let outcomes: Vec<Outcome> = FIXED_SEEDS.map(|seed| run(Scenario::new(seed), false)).collect();
    let incidents: u32 = outcomes.iter().map(|outcome| outcome.incidents).sum();
    let failures: u64 = outcomes.iter().map(|outcome| outcome.failures).sum();
    assert!(incidents > 100 && failures > 10, "the seeds are worth their time: {incidents}, {failures}");
    let rivals: Counts = outcomes.iter().map(|outcome| outcome.rivals).sum();
    let enough = rivals.pairs > 300 && rivals.unequal > 300 && rivals.aborted > 50;
    assert!(enough, "the seeds are worth their time: {rivals:?}");
}

#[test]
#[expect(clippy::print_stdout, reason = "the seeds of a random test belong in its output")]
fn nothing_is_lost_in_fresh_worlds() {
    if number("SEED").is_some() {
        return;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    let mut seeds = Random::new(now.as_nanos() as u64, 0);
    let (started, count) = (Instant::now(), number("SEEDS").unwrap_or(u64::MAX));
    for _ in 0..count {
        if count == u64::MAX && started.elapsed() > FRESH_TIME {
            return;
        }
        let seed = seeds.next_u64() >> 32;
        println!("SEED={seed}");
        run(Scenario::new(seed), false);
    }
}

#[test]
fn what_is_served_changes_under_load_and_disturbs_only_whom_it_concerns() {
    start_logging();
    for seed in number("SEED").map_or(0..20, |seed| seed..seed + 1) {
        let plain = Scenario::new(seed);
        let (link, disk) = (LinkFaults::default(), DiskFaults::default());
        let machines = Machines { targets: 1, rivals: 0, ..plain.machines };
        run_changes(Scenario { link, disk, clients: plain.clients.max(2), machines, ..plain });
    }
}

#[test]
fn a_change_is_made_on_all_cores_or_on_none() {
    for seed in 0..20 {
        let plain = Scenario::new(seed);
        let machines = Machines { targets: 1, cores: 2 + seed as usize % 3, rivals: 2, ..plain.machines };
        let (link, disk) = (LinkFaults::default(), DiskFaults::default());
        run_all_or_none(Scenario { link, disk, machines, commands: 0, tls: Tls::Off, ..plain });
    }
}

#[test]
fn commands_that_wait_on_one_core_are_aborted_from_another() {
    for seed in 0..12 {
        let plain = Scenario::new(seed);
        let machines = Machines { targets: 1, cores: 2 + seed as usize % 3, rivals: 2, ..plain.machines };
        let (link, disk) = (LinkFaults::default(), DiskFaults::default());
        run_aborts(Scenario { link, disk, machines, commands: 0, clients: 1, tls: Tls::Off, ..plain });
    }
}

#[test]
fn the_control_side_brings_a_disk_to_rest_or_what_one_host_does_there() {
    for seed in 0..8 {
        let plain = Scenario::new(seed);
        let (cores, rivals) = (1 + seed as usize % 3, seed % 3);
        let machines = Machines { targets: 1, cores, rivals, ..plain.machines };
        let disk = DiskFaults { delay_max: Duration::from_millis(5), ..DiskFaults::default() };
        let link = LinkFaults::default();
        run_rests(Scenario { link, disk, machines, clients: 2, commands: 3000, tls: Tls::Off, ..plain });
    }
}

#[test]
fn a_write_of_a_lost_connection_that_the_disk_takes_its_time_with_undoes_no_later_write() {
    let slow = Duration::from_millis(400);
    for seed in 0..20 {
        let plain = Scenario::new(seed);
        let scenario = Scenario {
            sectors: 8,
            in_flight: 4,
            commands: 400,
            link: LinkFaults::default(),
            disk: DiskFaults { delay_max: slow, ..DiskFaults::default() },
            reconnect: plain.reconnect.with_delay(Duration::from_millis(1)),
            calm: Duration::from_millis(500),
            incidents: Incidents::Cuts,
            machines: Machines { rivals: 0, ..plain.machines },
            ..plain
        };
        run(scenario, number("SEED").is_some());
    }
}

/// Each connection is cut by itself, so that engines of one host lose theirs at different times. Until all of them
/// have, the disk may still work on what the others have sent.
#[test]
fn engines_that_lose_their_connections_one_after_the_other_undo_no_later_write() {
    for seed in number("SEED").map_or(0..number("SEEDS").unwrap_or(20), |seed| seed..seed + 1) {
        let plain = Scenario::new(seed);
        let scenario = Scenario {
            sectors: 8,
            in_flight: 4,
            commands: 400,
            queues: 3,
            link: LinkFaults { cut_probability: 0.01, ..LinkFaults::default() },
            disk: DiskFaults { delay_max: Duration::from_millis(200), ..DiskFaults::default() },
            // How long I/O waits is other tests' concern.
            reconnect: plain
                .reconnect
                .with_delay(Duration::from_millis(1))
                .with_fast_io_fail_timeout(None)
                .with_controller_loss_timeout(None),
            calm: Duration::from_secs(5),
            incidents: Incidents::Cuts,
            authentication: None,
            tls: Tls::Off,
            machines: Machines {
                targets: 1,
                cores: 1 + seed as usize % 3,
                engines: 3,
                ways: 1,
                rivals: 0,
                mailbox_delay: Duration::from_millis(60),
            },
            ..plain
        };
        run(scenario, number("SEED").is_some());
    }
}

/// Connections are cut. Their hosts know it at once, and are soon back. The target knows it late.
fn late_after_a_cut(seed: u64) -> Scenario {
    let plain = of_one_way(Scenario::new(seed));
    let (delay_max, late_max) = (Duration::from_millis(3), Duration::from_millis(500));
    Scenario {
        sectors: 8,
        in_flight: 4,
        depth: 4,
        commands: 400,
        link: LinkFaults { delay_max, late_max, ..LinkFaults::default() },
        disk: DiskFaults::default(),
        reconnect: plain.reconnect.with_delay(Duration::from_millis(1)),
        calm: Duration::from_millis(100),
        incidents: Incidents::Cuts,
        authentication: None,
        tls: Tls::Off,
        machines: Machines { rivals: 0, ..plain.machines },
        ..plain
    }
}

#[test]
fn hosts_are_back_before_the_target_knows_that_they_had_gone_and_lose_nothing() {
    let outcomes: Vec<Outcome> = (0..30).map(|seed| run(late_after_a_cut(seed), false)).collect();
    let incidents: u32 = outcomes.iter().map(|outcome| outcome.incidents).sum();
    assert!(incidents > 100, "the seeds are worth their time: {incidents}");
}

/// The disk is that of an NBD server, which is killed and loses its power at random moments.
fn on_an_export(seed: u64) -> Scenario {
    let plain = of_one_way(Scenario::new(seed));
    Scenario {
        incidents: Incidents::Export,
        calm: plain.calm.max(Duration::from_millis(300)),
        machines: Machines { targets: 1, ..plain.machines },
        ..plain
    }
}

/// The cores of a target notice one after the other that the server has gone, and have connections to the next one
/// meanwhile.
fn on_an_export_that_cores_lose_late(seed: u64) -> Scenario {
    let (delay_max, late_max) = (Duration::from_micros(300), Duration::from_secs(2));
    let plain = on_an_export(seed);
    Scenario {
        clients: 2,
        sectors: 16,
        in_flight: 4,
        commands: 300,
        queues: 3,
        link: LinkFaults { delay_max, late_max, late_data: true, ..LinkFaults::default() },
        disk: DiskFaults { delay_max: Duration::from_millis(20), ..DiskFaults::default() },
        authentication: None,
        tls: Tls::Off,
        calm: Duration::from_millis(200),
        machines: Machines { cores: 2 + seed as usize % 2, rivals: 0, ..plain.machines },
        ..plain
    }
}

fn run_on_exports(count: u64, scenario: impl Fn(u64) -> Scenario) {
    start_logging();
    if let Some(seed) = number("SEED") {
        run(scenario(seed), true);
        return;
    }
    let seeds = 0..number("SEEDS").unwrap_or(count);
    let outcomes: Vec<Outcome> = seeds.map(|seed| run(scenario(seed), false)).collect();
    let incidents: u32 = outcomes.iter().map(|outcome| outcome.incidents).sum();
    let failures: u64 = outcomes.iter().map(|outcome| outcome.failures).sum();
    assert!(incidents > 50 && failures > 10, "the seeds are worth their time: {incidents}, {failures}");
}

#[test]
fn an_nbd_server_beneath_that_is_killed_loses_nothing_without_a_word_and_does_nothing_late() {
    run_on_exports(30, on_an_export);
}

#[test]
fn no_flush_succeeds_while_a_core_has_not_noticed_that_an_nbd_server_has_lost_something() {
    run_on_exports(100, on_an_export_that_cores_lose_late);
}

/// A world with targets of one address.
fn of_one_way(scenario: Scenario) -> Scenario {
    Scenario { machines: Machines { ways: 1, ..scenario.machines }, ..scenario }
}

/// What a host has sent on a connection that it has given up arrives late, or the disk takes its time with it. The host
/// goes on at once: when it is back, or by another way. It writes few blocks, so that it soon writes the same anew.
fn late_writes(seed: u64, ways: usize, protections: Protections) -> Scenario {
    let plain = Scenario::new(seed);
    // A host is back long before the last of what it has sent before.
    let (delay_max, late_max) = (Duration::from_micros(300), Duration::from_millis(400));
    let slow = Duration::from_millis([0, 100][seed as usize % 2]);
    Scenario {
        clients: 1,
        sectors: 8,
        in_flight: 4,
        depth: 4,
        commands: 400,
        link: LinkFaults { delay_max, late_max, late_data: true, ..LinkFaults::default() },
        disk: DiskFaults { delay_max: slow.max(Duration::from_micros(20)), ..DiskFaults::default() },
        // How long I/O waits is other tests' concern.
        reconnect: plain
            .reconnect
            .with_delay(Duration::from_millis(1))
            .with_fast_io_fail_timeout(None)
            .with_controller_loss_timeout(None),
        calm: Duration::from_millis(200),
        incidents: if seed % 4 == 3 && ways > 1 { Incidents::Ways } else { Incidents::Cuts },
        authentication: None,
        tls: Tls::Off,
        machines: Machines { targets: 1, ways, rivals: 0, ..plain.machines },
        protections,
        ..plain
    }
}

/// Which of so many worlds is the first in which something is found that should not be there.
fn first_corruption(count: u64, scenario: impl Fn(u64) -> Scenario) -> Option<u64> {
    (0..count).find(|seed| {
        let world = scenario(*seed);
        let Err(panic) = catch_unwind(move || run(world, false)) else { return false };
        let found = panic.downcast_ref::<String>().map_or("", String::as_str);
        let shown =
            found.contains("it may show") || found.contains("may hold") || found.contains("says equal");
        assert!(shown, "SEED={seed} fails for another reason: {found}");
        true
    })
}

#[expect(clippy::print_stdout, reason = "what it took is what somebody wants to know who runs it")]
fn is_found_out(protections: Protections) {
    for ways in [1, 2] {
        let seed = first_corruption(1000, |seed| late_writes(seed, ways, protections));
        println!("ways {ways}, {protections:?}: {seed:?}");
        assert!(seed.is_some(), "nothing is found without it, on {ways} ways: {protections:?}");
    }
}

#[test]
fn writes_that_come_late_undo_nothing_on_one_path_and_on_several() {
    start_logging();
    let only = number("SEED");
    for seed in only.map_or(0..number("SEEDS").unwrap_or(15), |seed| seed..seed + 1) {
        for ways in 1..=3 {
            run(late_writes(seed, ways, Protections::ALL), only.is_some());
        }
    }
}

#[test]
fn a_host_that_does_not_hold_its_changes_is_found_out() {
    is_found_out(Protections { holding: false, ..Protections::ALL });
}

#[test]
fn a_target_that_confirms_a_reset_and_ends_no_connection_is_found_out() {
    is_found_out(Protections { ending_connections: false, ..Protections::ALL });
}

#[test]
fn a_target_that_confirms_a_reset_while_disks_work_is_found_out() {
    is_found_out(Protections { waiting_for_disks: false, ..Protections::ALL });
}

#[test]
fn no_flush_succeeds_after_a_write_back_that_failed_until_the_disk_is_opened_anew() {
    for seed in 0..10 {
        let disk = DiskFaults::default();
        run_loss(Scenario {
            commands: 0,
            machines: Machines { targets: 1, rivals: 0, ..Scenario::new(seed).machines },
            link: LinkFaults::default(),
            disk,
            ..Scenario::new(seed)
        });
    }
}

#[test]
fn the_core_knows_in_which_states_commands_are_and_where_the_time_of_sampled_ones_went() {
    let (slow, seed) = (Duration::from_millis(20), 5);
    let disk = DiskFaults { delay_min: slow, delay_max: slow, ..DiskFaults::default() };
    for tcp in [false, true] {
        let scenario = Scenario { commands: 0, clients: 2, tcp, disk: disk.clone(), ..Scenario::new(seed) };
        let scenario = Scenario { machines: Machines::FEW, authentication: None, ..scenario };
        let scenario = Scenario { link: LinkFaults::default(), ..scenario };
        let [during, after] = run_exact(scenario);
        let at_disk = |usage: &CoreUsage| usage.states.iter().find(|one| one.state == State::AtDisk).copied();
        assert_eq!(at_disk(&during).map(|one| one.commands), Some(2), "{during:?}");
        let StateUsage { commands, sampled, total_us, max_us, .. } = at_disk(&after).expect("it was timed");
        assert_eq!(commands, 0, "all are answered");
        assert!((2..20).contains(&sampled), "one in 64: {sampled}");
        assert_eq!((total_us, max_us), (20_000 * sampled, 20_000));
        assert_eq!((after.latency.disk_us, after.latency.queue_us), (total_us, 0), "{after:?}");
        assert!(after.latency.commands > sampled, "those that wait for nothing are sampled, too");
        let waiting: u32 = after.states.iter().map(|one| one.commands).sum();
        assert_eq!(waiting as usize, after.commands);
    }
}

/// A message is several pieces, and between any two the connection may end.
fn cut_within_messages(seed: u64, incidents: Incidents) -> Scenario {
    let link = LinkFaults {
        chunk_max: 60,
        cut_probability: 0.0007,
        buffer_bytes: 4096,
        delay_min: Duration::from_micros(5),
        delay_max: Duration::from_micros(200),
        refuse_probability: 0.0,
        late_max: Duration::from_millis([0, 100][seed as usize % 2]),
        late_data: false,
        ..LinkFaults::default()
    };
    let plain = Scenario::new(seed);
    Scenario {
        sectors: 8,
        in_flight: 1,
        commands: 40,
        block_bytes: 512,
        incidents,
        link,
        disk: DiskFaults::default(),
        reconnect: plain.reconnect.with_fast_io_fail_timeout(None),
        tls: Tls::Off,
        machines: Machines { targets: 1, ways: 1, rivals: 0, ..plain.machines },
        ..plain
    }
}

/// Runs these worlds of their seeds, or the one that is asked for. How often hosts have authenticated again there, and
/// were refused for their keys.
fn run_worlds(count: u64, scenario: impl Fn(u64) -> Scenario) -> Option<(u64, u64)> {
    if let Some(seed) = number("SEED") {
        run(scenario(seed), true);
        return None;
    }
    let all: Vec<Outcome> = (0..count).map(|seed| run(scenario(seed), false)).collect();
    let incidents: u32 = all.iter().map(|one| one.incidents).sum();
    assert!(u64::from(incidents) > count, "the seeds are worth their time: {incidents}");
    let sum = |of: fn(&Outcome) -> u64| all.iter().map(of).sum();
    Some((sum(|one| one.authenticated_again), sum(|one| one.refusals)))
}

#[test]
fn hosts_that_authenticate_come_through_cuts_within_each_message() {
    let counts = run_worlds(24, |seed| {
        let group = if seed % 3 == 0 { Group::Ffdhe2048 } else { Group::Null };
        let plain = cut_within_messages(seed, Incidents::Cuts);
        Scenario { authentication: Some(group), tcp: seed % 2 == 0, ..plain }
    });
    assert!(counts.is_none_or(|(again, refused)| again > 100 && refused == 0), "{counts:?}");
}

#[test]
fn hosts_over_tls_come_through_cuts_within_each_record_of_handshake_and_data() {
    let counts = run_worlds(16, |seed| {
        let authentication = (seed % 3 == 0).then_some(Group::Null);
        let plain = cut_within_messages(seed, Incidents::Cuts);
        Scenario { authentication, tcp: true, tls: Tls::Configured, ..plain }
    });
    assert!(counts.is_none_or(|(again, _)| again > 20), "{counts:?}");
}

#[test]
fn hosts_whose_authentication_makes_the_key_for_tls_come_through_cuts_within_each_message() {
    let counts = run_worlds(16, |seed| {
        let plain = cut_within_messages(seed, Incidents::Cuts);
        Scenario { authentication: Some(Group::Ffdhe2048), tcp: true, tls: Tls::Generated, ..plain }
    });
    assert!(counts.is_none_or(|(again, _)| again > 50), "{counts:?}");
}

#[test]
fn hosts_whose_keys_are_taken_away_for_a_while_lose_nothing() {
    let counts = run_worlds(24, |seed| {
        let plain = cut_within_messages(seed, Incidents::CutsAndKeys);
        let (tcp, authentication, tls) = match seed % 4 {
            0 => (true, Some(Group::Ffdhe2048), Tls::Generated),
            1 => (false, Some(Group::Null), Tls::Off),
            2 => (true, Some(Group::Null), Tls::Off),
            _ => (true, None, Tls::Configured),
        };
        Scenario { authentication, tcp, tls, calm: Duration::from_millis(200), ..plain }
    });
    assert!(counts.is_none_or(|(_, refused)| refused > 10), "{counts:?}");
}

#[test]
fn the_same_seed_is_the_same_world_to_the_last_event() {
    for seed in [3, 1_000_003] {
        assert_eq!(run(Scenario::new(seed), false), run(Scenario::new(seed), false), "SEED={seed}");
    }
    let other = run(Scenario::new(4), false);
    assert_ne!(run(Scenario::new(3), false).trace_hash, other.trace_hash);
}
