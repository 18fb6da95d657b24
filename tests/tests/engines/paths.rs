//! Several paths to one subsystem, each shared by several engine threads.

use std::cell::Cell;
use std::time::Duration;

use super::crew::{Crew, Life, options};
use super::{TRANSPORTS, target};
use ringfab_initiator::{PathId, Url};
use ringfab_tests::cutter::Cutter;
use ringfab_tests::wait_until;

/// The same address at another port.
fn at(url: &Url, cutter: &Cutter) -> Url {
    Url { port: cutter.address.port(), ..url.clone() }
}

#[test]
fn engines_go_on_by_another_path_when_one_is_cut_and_each_command_is_answered_once() {
    for transport in TRANSPORTS {
        let target = target(transport);
        let cutters = [Cutter::start(target.address()), Cutter::start(target.address())];
        let mut options = options(&target, cutters[0].address);
        options.further_urls = vec![at(&options.url, &cutters[1])];
        options.paths.well_for = Duration::from_millis(20);
        let mut crew = Crew::attach(options, 3, 4);
        for _ in &cutters {
            crew.expect("ready", |life| matches!(life, Life::Ready { reconnected: false }));
        }
        assert_eq!(target.target.controllers().len(), 2, "one for each path");
        crew.start_load();
        // The admin queue, queues of the engine that leads, and those of each that follows.
        for round in 0..10 {
            crew.wait_for_answers(200);
            cutters[round % 2].cut(round % 5);
            crew.expect("lost", |life| matches!(life, Life::Lost));
            crew.expect("back", |life| matches!(life, Life::Ready { reconnected: true }));
        }
        crew.wait_for_answers(200);
        crew.stop_load();
        crew.detach(1);
        crew.expect("detached", |life| matches!(life, Life::Detached(None)));
        wait_until("both have shut down", || target.target.controllers().is_empty());
    }
}

#[test]
fn paths_come_and_go_under_load_on_every_engine() {
    let target = target(TRANSPORTS[0]);
    let cutters = [Cutter::start(target.address()), Cutter::start(target.address())];
    let options = options(&target, cutters[0].address);
    let first = options.url.clone();
    let mut crew = Crew::attach(options, 3, 4);
    crew.expect("ready", |life| matches!(life, Life::Ready { .. }));
    crew.start_load();
    let mut there: PathId = "1".parse().expect("the first path");
    for round in 0..6 {
        let added = Cell::new(there);
        crew.add_path(at(&first, &cutters[(round + 1) % 2]));
        crew.expect("added", |life| {
            let Life::Added(path) = life else { return false };
            added.set(*path);
            true
        });
        crew.expect("ready", |life| matches!(life, Life::Ready { reconnected: false }));
        crew.wait_for_answers(200);
        crew.remove_path(there);
        crew.expect("removed", |life| matches!(life, Life::Removed(path) if *path == there));
        crew.wait_for_answers(200);
        there = added.get();
    }
    crew.stop_load();
    crew.detach(0);
    crew.expect("detached", |life| matches!(life, Life::Detached(None)));
    wait_until("all have shut down", || target.target.controllers().is_empty());
}
