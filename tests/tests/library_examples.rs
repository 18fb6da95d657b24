//! The examples of the initiator's library, run against a target.

#[path = "../../initiator/library/examples/discovery.rs"]
#[expect(dead_code, reason = "it is a program of its own as well")]
mod discovery;
#[path = "../../initiator/library/examples/many_commands.rs"]
#[expect(dead_code, reason = "it is a program of its own as well")]
mod many_commands;
#[path = "../../initiator/library/examples/own_loop.rs"]
#[expect(dead_code, reason = "it is a program of its own as well")]
mod own_loop;
#[path = "../../initiator/library/examples/read_write.rs"]
#[expect(dead_code, reason = "it is a program of its own as well")]
mod read_write;

use ringfab_tests::{TestTarget, wait_until};

const DISK: &str = "[[subsystem.namespace]]\nmemory = \"16MiB\"\nblock_bytes = 512\n";
const TRANSPORTS: [&str; 2] = ["transport = \"tcp\"\n", "transport = \"rdma\"\n"];

/// A target forgets a controller some time after its host has left.
fn wait_until_detached(target: &TestTarget) {
    wait_until("it has detached", || target.target.controllers().is_empty());
}

#[test]
fn several_threads_read_and_write_with_the_blocking_handle() {
    for transport in TRANSPORTS {
        let target = TestTarget::with_listener(transport, DISK);
        read_write::run(&target.url("").to_string()).expect("an example that works");
        let mut byte = [0];
        for number in 1..=4 {
            target.attach().read_at(1, number * (2 << 20) + 10, &mut byte).expect("read");
            assert_eq!(u64::from(byte[0]), number, "{transport}");
        }
        wait_until_detached(&target);
    }
}

#[test]
fn thousands_of_commands_are_in_flight_from_one_thread() {
    for transport in TRANSPORTS {
        let target = TestTarget::with_listener(transport, DISK);
        let reads = many_commands::run(&target.url("").to_string()).expect("an example that works");
        assert_eq!((reads.commands, reads.bytes), (20_000, 20_000 * 4096), "{transport}");
        assert_eq!(reads.in_flight_max, 4000, "{transport}");
        wait_until_detached(&target);
    }
}

#[test]
fn two_engines_run_in_a_loop_of_the_programs_own() {
    for transport in TRANSPORTS {
        let target = TestTarget::with_listener(transport, DISK);
        assert_eq!(
            own_loop::run(&target.url("").to_string()).expect("an example that works"),
            200,
            "{transport}"
        );
        wait_until_detached(&target);
    }
}

#[test]
fn discovery_finds_the_subsystem_with_each_transport_and_its_size() {
    for transport in TRANSPORTS {
        let target = TestTarget::with_listener(transport, DISK);
        let mut url = target.url("");
        url.subsystem = None;
        let found = discovery::run(&url.to_string()).expect("an example that works");
        let sizes: Vec<_> = found.iter().map(|one| (one.url.port, one.namespaces, one.bytes)).collect();
        assert_eq!(sizes, [(target.address().port(), 1, 16 << 20)], "{transport}");
    }
}
