//! A load for counting instructions: the target's core and a host in one thread, over a simulated link, without a
//! system call between them. `tests/scripts/instructions.sh` runs it under callgrind, which counts in [`target_turn`]
//! only.
//!
//! `instructions rdma|tcp read|write|fetched DEPTH COUNT`: so many commands of 4 KiB on a null namespace; `fetched` is
//! a write whose data the target fetches, since they are in no capsule.

use std::collections::VecDeque;
use std::sync::Arc;

use ringfab_fabric::rdma::RnicConfig;
use ringfab_initiator::{
    ConnectOptions, ControllerId, Host, HostConfig, HostEvent, HostIdentity, IoOperation, IoRequest,
};
use ringfab_memory::{Buffer, ClassLayout, SharedBuffer};
use ringfab_reactor::sim::World;
use ringfab_reactor::{Reactor, Wait};
use ringfab_target::core::{Core, CoreParts, build};
use ringfab_target::worker::Workers;
use ringfab_target::{Config, Identity, Target};

/// Bytes of a command's data.
const BYTES: usize = 4096;

/// Commands until every table has the size that it keeps. They are counted, too: the difference of two runs leaves them
/// out.
const WARM_UP: usize = 2000;

const NQN: &str = "nqn.2026-11.org.ringfab:instructions";

/// Both ends, and the buffers that are not with the host's engine.
struct Pair {
    world: World,
    core: Core,
    _target: Arc<Target>,
    host: Host,
    controller: ControllerId,
    buffers: VecDeque<Buffer>,
    sources: VecDeque<SharedBuffer>,
    reads: bool,
    next: u64,
}

#[expect(clippy::print_stderr, reason = "says what it has done to who runs it")]
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [transport, kind, depth, count] = arguments.as_slice() else {
        panic!("instructions rdma|tcp read|write|fetched DEPTH COUNT")
    };
    let number = |text: &String| text.parse::<usize>().expect("a number");
    let (depth, count) = (number(depth), number(count));
    let mut pair = Pair::new(transport, kind, depth);
    pair.run(WARM_UP, depth);
    let turns = pair.run(count, depth);
    eprintln!("{count} commands in {turns} turns of the target");
}

/// What is counted.
#[inline(never)]
fn target_turn(core: &mut Core) {
    core.turn(Wait::No).expect("a turn of the target");
}

/// The same at the other end: so many new commands, a turn, and what it brought. Returns how many commands are done.
#[inline(never)]
fn host_turn(pair: &mut Pair, commands: usize) -> usize {
    for _ in 0..commands {
        pair.submit();
    }
    pair.host.turn(Wait::No).expect("a turn of the host");
    pair.finish()
}

impl Pair {
    fn new(transport: &str, kind: &str, depth: usize) -> Self {
        let world = World::new(1);
        let (there, here) = (world.add_host("target"), world.add_host("host"));
        let in_capsule = if kind == "fetched" { 0 } else { 8192 };
        let crc = if transport == "rdma" { "crc = false\n" } else { "" };
        let address = world.address(there);
        let text = format!(
            "[target]\nstate_dir = \"/state\"\ncores = 1\n[[listener]]\naddress = \"{address}\"\nport = 4420\n\
             transport = \"{transport}\"\nin_capsule_bytes = {in_capsule}\n{crc}\
             [[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n\
             [[subsystem.namespace]]\nnull = \"1GiB\"\nblock_bytes = 4096\n"
        );
        let config = Config::parse(&text, "instructions").expect("a valid configuration");
        let target = Target::new(&config, &Identity::from_seed([7; 32])).expect("a target");
        let classes = vec![
            ClassLayout { buffer_bytes: BYTES, count: 1024 },
            ClassLayout { buffer_bytes: 131_072, count: 64 },
        ];
        let parts = CoreParts {
            reactor: Reactor::simulated(&world, there),
            target: Arc::clone(&target),
            classes,
            workers: Workers::stepped().0,
            seed: [7; 32],
        };
        let (core, _) = build(parts).expect("a core");
        let pool = vec![
            ClassLayout { buffer_bytes: BYTES, count: 1024 },
            ClassLayout { buffer_bytes: 65_536, count: 64 },
        ];
        let config = HostConfig::new(pool, RnicConfig { crc: false, ..RnicConfig::new(0, [3; 32]) }, 3);
        let mut host = Host::new(Reactor::simulated(&world, here), config).expect("an engine");
        let url = format!("nvme+{transport}://{}/{NQN}?ns=1", world.socket_address(there, 4420));
        let url = url.parse().expect("a URL");
        let identity = HostIdentity {
            nqn: "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001".into(),
            id: "00000000-0000-4000-8000-000000000001".parse().expect("a UUID"),
        };
        let mut options = ConnectOptions::new(url, identity);
        (options.queues, options.depth) = (1, depth.max(32) as u16);
        let controller = host.attach(options);
        let take = || host.pool().take(BYTES).expect("a buffer");
        let buffers = (0..depth).map(|_| take()).collect();
        let sources = (0..depth).map(|_| take().share()).collect();
        let reads = kind == "read";
        let mut pair =
            Self { world, core, _target: target, host, controller, buffers, sources, reads, next: 0 };
        pair.attach();
        pair
    }

    fn attach(&mut self) {
        loop {
            self.host.turn(Wait::No).expect("a turn of the host");
            self.go_on();
            match self.host.next_event() {
                Some(HostEvent::Ready { .. }) => return,
                Some(event) => panic!("{event:?}"),
                None => {}
            }
        }
    }

    /// A turn of the target, and time passes.
    fn go_on(&mut self) {
        target_turn(&mut self.core);
        if !self.world.has_ready() {
            self.world.advance();
        }
    }

    /// Runs so many commands, `depth` at a time. Returns the target's turns.
    fn run(&mut self, count: usize, depth: usize) -> usize {
        let (mut submitted, mut done, mut turns) = (0, 0, 0);
        while done < count {
            let more = (count - submitted).min(depth - (submitted - done));
            done += host_turn(self, more);
            submitted += more;
            self.go_on();
            turns += 1;
        }
        turns
    }

    /// Takes what is done. Returns how many commands.
    fn finish(&mut self) -> usize {
        let mut done = 0;
        while let Some(event) = self.host.next_event() {
            let HostEvent::IoDone(finished) = event else { panic!("{event:?}") };
            finished.result.expect("it worked");
            self.buffers.extend(finished.buffer);
            self.sources.extend(finished.source);
            done += 1;
        }
        done
    }

    fn submit(&mut self) {
        self.next += 1;
        let lba = self.next % 1000;
        let operation = if self.reads {
            let buffer = self.buffers.pop_front().expect("as many as may be outstanding");
            IoOperation::Read { lba, nlb: 1, buffer }
        } else {
            let source = self.sources.pop_front().expect("as many as may be outstanding");
            IoOperation::Write { lba, nlb: 1, source, offset: 0, fua: false }
        };
        let request = IoRequest { nsid: 1, tag: self.next, operation };
        self.host.submit(self.controller, request).expect("taken");
    }
}
