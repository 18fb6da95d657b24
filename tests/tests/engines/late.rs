//! A write that arrives late. A proxy keeps what a host sends, cuts the host off, lets it go on (by a new connection,
//! or by another address), and sends on what it has kept once a newer write of the same block was acknowledged with
//! FUA. The newer one has to stay. `ROUNDS=n` runs so many rounds of each.

use std::env;
use std::sync::Arc;
use std::time::Duration;

use ringfab_initiator::PathChooser;
use ringfab_tests::{TestTarget, wait_until};

use crate::crew::{Crew, Life, options};
use crate::holder::{Held, Holder};
use crate::{TRANSPORTS, target};

/// Bytes of the block that is written.
const BLOCK: usize = 4096;

fn rounds(default: u64) -> u64 {
    env::var("ROUNDS").map_or(default, |text| text.parse().expect("a number"))
}

/// A host of two engines, and the proxies that it has as addresses of the target.
struct Late {
    target: TestTarget,
    holders: Vec<Holder>,
    crew: Crew,
}

impl Late {
    fn attach(transport: &str, addresses: usize, holds_changes: bool) -> Self {
        let target = target(transport);
        let holders: Vec<Holder> = (0..addresses).map(|_| Holder::start(target.address())).collect();
        let mut options = options(&target, holders[0].address);
        let further = holders[1..].iter().map(|one| {
            let mut url = options.url.clone();
            url.port = one.address.port();
            url
        });
        options.further_urls = further.collect();
        options.paths.well_for = Duration::ZERO;
        options.paths.chooser = PathChooser::OneInUse;
        options.protections.hold_changes = holds_changes;
        let mut crew = Crew::attach(options, 2, 4);
        for _ in 0..addresses {
            crew.expect("ready", |life| matches!(life, Life::Ready { .. }));
        }
        Self { target, holders, crew }
    }

    /// Writes a block twice, where the first write comes late. Returns what is there then, and what was written last.
    fn round(&mut self, round: u64) -> [u8; 2] {
        let (engine, lba) = (round % 2, round % 200);
        let older = (round * 2 % 250) as u8 + 1;
        let mut kept: Vec<Vec<Arc<Held>>> = self.holders.iter().map(Holder::keep).collect();
        self.crew.begin_write(engine, lba, older);
        let has_it = |way: &Vec<Arc<Held>>| way.iter().any(|one| one.kept() >= BLOCK);
        wait_until("the write is kept", || kept.iter().any(has_it));
        let late = kept.swap_remove(kept.iter().position(has_it).expect("just seen"));
        kept.iter().flatten().for_each(|one| one.pass());
        late.iter().for_each(|one| one.cut());
        self.crew.finish_write(engine);
        self.crew.write(engine, lba, older + 1);
        late.iter().for_each(|one| one.release());
        let found = self.crew.read(engine, lba);
        self.crew.expect("back", |life| matches!(life, Life::Ready { reconnected: true }));
        [found, older + 1]
    }
}

#[test]
fn a_write_that_arrives_late_undoes_no_newer_one_on_one_path_and_on_two() {
    for transport in TRANSPORTS {
        for addresses in [1, 2] {
            let mut late = Late::attach(transport, addresses, true);
            for round in 0..rounds(4) {
                let [found, newer] = late.round(round);
                assert_eq!(found, newer, "the older data has come late: {transport}, {addresses}, {round}");
            }
            late.crew.detach(0);
            late.crew.expect("detached", |life| matches!(life, Life::Detached(None)));
            wait_until("the target forgets", || late.target.target.controllers().is_empty());
        }
    }
}

/// What the test above would see without the protection of the initiator.
#[test]
fn without_holding_what_changes_blocks_the_older_data_come_late() {
    for transport in TRANSPORTS {
        for addresses in [1, 2] {
            let mut late = Late::attach(transport, addresses, false);
            let [found, newer] = late.round(0);
            assert_eq!(found, newer - 1, "{transport}, {addresses}: something else protects");
        }
    }
}
