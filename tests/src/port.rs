//! Ports for what has to come back at the same place.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Mutex;

/// The first port that is handed out; those below are for well-known services.
const FIRST: u16 = 10_000;

/// Claims of this process, held until its end.
static CLAIMS: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());

/// A port of the loopback interface that nobody listens on. No other call of this gives it out, in this process or in
/// another one that runs at the same time, and no outgoing connection takes it, since it is below the ports that those
/// get.
///
/// # Panics
/// When there is none.
pub fn free_port() -> u16 {
    let count = ephemeral_first().checked_sub(FIRST).filter(|count| *count > 0).expect("room below");
    // Processes that begin at different places seldom try the same ports.
    let begin = std::process::id() % u32::from(count);
    let candidates = (0..u32::from(count)).map(|step| FIRST + ((begin + step) % u32::from(count)) as u16);
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    candidates.into_iter().find(|port| claim(*port) && is_free(port)).expect("a free port")
}

/// Claims a port for this process. A name that is bound in the abstract namespace is the kernel's to release: nothing
/// is left behind however the process ends.
fn claim(port: u16) -> bool {
    let name = format!("ringfab-test-port-{port}");
    let address = SocketAddr::from_abstract_name(name).expect("a short name");
    let Ok(socket) = UnixDatagram::bind_addr(&address) else { return false };
    CLAIMS.lock().expect("nobody panics with it").push(socket);
    true
}

/// The first port that the system gives to outgoing connections.
fn ephemeral_first() -> u16 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").expect("proc");
    range.split_whitespace().next().and_then(|first| first.parse().ok()).expect("two numbers")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_port_is_handed_out_twice_and_none_that_an_outgoing_connection_could_have() {
        let threads: Vec<_> =
            (0..8).map(|_| std::thread::spawn(|| (0..50).map(|_| free_port()).collect::<Vec<_>>())).collect();
        let mut seen = BTreeSet::new();
        for thread in threads {
            for port in thread.join().expect("ports") {
                assert!(port < ephemeral_first());
                assert!(seen.insert(port), "{port} was handed out twice");
            }
        }
    }

    #[test]
    fn a_port_that_somebody_listens_on_is_not_handed_out() {
        // The next one in turn, which nobody has claimed yet.
        let mut next = (free_port() + 1)..ephemeral_first();
        let (_listener, taken) = next
            .find_map(|port| Some((TcpListener::bind(("127.0.0.1", port)).ok()?, port)))
            .expect("one is free");
        assert!((0..100).all(|_| free_port() != taken));
    }
}
