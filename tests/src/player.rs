//! Plays one side of a recording on a socket, and whole sessions to an initiator.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::{ConnectOptions, HostIdentity, Url};

use crate::recording::{From, Recording};

/// How long the other side may take to answer before the rest is sent all the same.
const ANSWER: Duration = Duration::from_millis(30);

/// How long the other side may take to end a connection whose peer has said its last word.
const END: Duration = Duration::from_secs(5);

/// The longest that an attach and a detach may take, whatever is wrong.
const BOUND: Duration = Duration::from_secs(8);

/// Everything that one side sent.
pub fn stream_of(recording: &Recording, side: From) -> Vec<u8> {
    recording.iter().filter(|(from, _)| *from == side).flat_map(|(_, bytes)| bytes.clone()).collect()
}

/// The recording with other bytes on one side, in pieces as before. It ends with the last of them.
pub fn with_stream(recording: &Recording, side: From, mut stream: &[u8]) -> Recording {
    let mut changed = Recording::new();
    for (from, bytes) in recording {
        if stream.is_empty() {
            break;
        }
        if *from != side {
            changed.push((*from, bytes.clone()));
            continue;
        }
        let (now, later) = stream.split_at(stream.len().min(bytes.len()));
        changed.push((side, now.to_vec()));
        stream = later;
    }
    changed.push((side, stream.to_vec()));
    changed
}

/// A stream with a byte changed.
pub fn flipped(stream: &[u8], at: usize, mask: u8) -> Vec<u8> {
    let mut changed = stream.to_vec();
    changed[at] ^= mask;
    changed
}

/// Plays one side: says its part whenever the other has said as much as was recorded, and then says no more.
///
/// # Panics
/// When the other side does not end the connection.
pub fn play(mut stream: TcpStream, recording: &Recording, side: From, what: &str) {
    stream.set_nodelay(true).expect("an option");
    let mut patience = ANSWER;
    for (from, bytes) in recording {
        if *from == side {
            if stream.write_all(bytes).is_err() {
                break;
            }
        } else if !hear(&mut stream, bytes.len(), patience) {
            patience = Duration::from_millis(1);
        }
    }
    let _gone = stream.shutdown(Shutdown::Write);
    assert!(ends(&mut stream), "{what}: the connection did not end");
}

/// Whether so many bytes came in time.
fn hear(stream: &mut TcpStream, mut missing: usize, patience: Duration) -> bool {
    stream.set_read_timeout(Some(patience)).expect("an option");
    let mut buffer = [0; 16_384];
    while missing > 0 {
        match stream.read(&mut buffer[..missing.min(16_384)]) {
            Ok(count @ 1..) => missing -= count,
            _ => return false,
        }
    }
    true
}

/// Whether the stream ends in time, whatever still comes.
///
/// # Panics
/// When the socket takes no options.
pub fn ends(stream: &mut TcpStream) -> bool {
    let begun = Instant::now();
    stream.set_read_timeout(Some(END)).expect("an option");
    let mut buffer = [0; 16_384];
    while begun.elapsed() < END {
        match stream.read(&mut buffer) {
            Ok(1..) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return false;
            }
            Ok(0) | Err(_) => return true,
        }
    }
    false
}

/// Attaches, reads the first bytes of namespace 1 and detaches, without another attempt at anything and with a second
/// for each step. What was read, if that worked, and whether all of it did.
///
/// # Panics
/// When the address is none.
pub fn session(url: &str, length: usize) -> (Option<Vec<u8>>, bool) {
    let url: Url = url.parse().expect("a URL");
    let host = HostIdentity::for_url(&url).expect("an identity");
    let second = Duration::from_secs(1);
    let mut options = ConnectOptions::new(url, host);
    let timeouts = &mut options.timeouts;
    (timeouts.resolve, timeouts.connect, timeouts.admin) = (second, second, second);
    (timeouts.io, timeouts.shutdown, timeouts.attach) = (second, second, 5 * second);
    options.reconnect.controller_loss_timeout = Some(Duration::ZERO);
    options.reconnect.fast_io_fail_timeout = Some(Duration::ZERO);
    let Ok(controller) = Controller::connect(options, EngineOptions::default()) else { return (None, false) };
    let mut bytes = vec![0xee; length];
    let read = controller.read_at(1, 0, &mut bytes).is_ok();
    let left = controller.detach().is_ok();
    (read.then_some(bytes), read && left)
}

/// A session with a target that says what was recorded, with `stream` on the connection `which`.
///
/// # Panics
/// When the session takes too long, or one of its connections does not end.
pub fn play_session<R>(
    recordings: &[Recording],
    which: usize,
    stream: &[u8],
    what: &str,
    session: impl FnOnce(SocketAddr) -> R,
) -> R {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let mut parts = recordings.to_vec();
    parts[which] = with_stream(&parts[which], From::Target, stream);
    let named = what.to_owned();
    let target = std::thread::spawn(move || {
        let mut players = Vec::new();
        for part in parts {
            let Ok((socket, _)) = listener.accept() else { break };
            let what = named.clone();
            players.push(std::thread::spawn(move || play(socket, &part, From::Target, &what)));
        }
        for player in players {
            player.join().expect("the initiator ends its connections");
        }
    });
    let begun = Instant::now();
    let outcome = session(address);
    let took = begun.elapsed();
    assert!(took < BOUND, "{what}: {took:?}");
    // The player may still wait for connections that the initiator has no reason to make.
    while !target.is_finished() {
        drop(TcpStream::connect(address));
        std::thread::sleep(Duration::from_millis(1));
    }
    target.join().expect("the target played its part");
    outcome
}

/// Threads of this process that are an initiator's.
///
/// # Panics
/// When the system does not list them.
pub fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("proc").flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim() == "ringfab").count()
}

/// Waits until there are no more threads than `before`. One that has been joined may still be listed: the system wakes
/// who waits for it before it takes it from its list.
///
/// # Panics
/// When there are more after [`END`].
pub fn await_threads(before: usize) {
    let begun = Instant::now();
    while threads() > before {
        assert!(begun.elapsed() < END, "threads were left behind: {} and not {before}", threads());
        std::thread::sleep(Duration::from_millis(1));
    }
}
