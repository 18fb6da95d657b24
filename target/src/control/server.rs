//! The threads that serve the control socket: one that listens, one for each connection, and one that looks at the
//! disks and counters.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt};
use ringfab_base::{VisiblePath as _, without_folder};
use ringfab_process::log::NEVER_FOLDED;

use super::freeze::Frozen;
use super::request::{REQUEST_BYTES_MAX, answer};
use super::status::View;
use super::timed_mutex::TimedMutex;
use super::{ControlSocket, Manager};
use crate::config::{ControlConfig, doubts};
use crate::worker;

/// How long a client may take for a request, and for taking its answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long binding the socket may take.
const BIND_LIMIT: Duration = Duration::from_secs(5);

/// Clients at a time. For one more, the one that has been silent for longest goes.
const CLIENTS_MAX: usize = 32;

/// The users of this machine.
const USERS: &str = "/etc/passwd";

/// How often files, devices and counters are looked at.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How long nobody is listened to after the system refused a connection.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on the control socket {}: {source}{}", path.visible(), without_folder(path, source))]
pub struct ControlError {
    /// Where it should be.
    path: PathBuf,
    /// The system's answer.
    source: io::Error,
}

/// The control side while it runs.
pub struct Control {
    manager: Arc<TimedMutex<Manager>>,
    /// Removes the socket's file when it is dropped.
    _socket: Option<ControlSocket>,
}

impl Control {
    /// Reads the configuration file again, on a thread of its own: disks may hang. The log says how it ends.
    pub fn reload(&self, by: &'static str) {
        let manager = Arc::clone(&self.manager);
        let reload = move || {
            tracing::info!(name: NEVER_FOLDED, request = "reload", by, "a change is asked for");
            let outcome = manager.with_lock("reload", |manager| {
                let changes = manager.reload()?;
                Ok::<_, String>((changes, doubts(&manager.configured().running)))
            });
            match outcome.flatten() {
                Ok((changes, doubts)) => {
                    for doubt in doubts {
                        tracing::warn!(name: NEVER_FOLDED, "{doubt}");
                    }
                    let changes = changes.len();
                    tracing::info!(name: NEVER_FOLDED, changes, by, "the configuration is reloaded");
                }
                Err(error) => {
                    tracing::error!(name: NEVER_FOLDED, error, by, "the configuration is not reloaded");
                }
            }
        };
        if let Err(error) = spawn("reload", reload) {
            tracing::error!(name: NEVER_FOLDED, %error, by, "the configuration is not reloaded");
        }
    }
}

/// Starts the threads. Without a table `[control]` a socket that cannot be had is no error: its folder is the service
/// manager's to make.
///
/// # Errors
/// When the socket that the configuration asks for cannot be bound.
pub fn start(config: Option<&ControlConfig>, manager: Manager) -> Result<Control, ControlError> {
    let (asked, config) = (config.is_some(), config.cloned().unwrap_or_default());
    let bound = if config.enabled { bind(&config).map(Some) } else { Ok(None) };
    let (socket, listener) = match bound {
        Ok(bound) => bound.unzip(),
        Err(source) if asked => return Err(ControlError { path: config.socket, source }),
        Err(error) => {
            tracing::info!(path = %config.socket.visible(), %error, "no control socket");
            (None, None)
        }
    };
    let failed = |source| ControlError { path: config.socket.clone(), source };
    let view = manager.view();
    let manager = Arc::new(TimedMutex::new(manager));
    let (looked_at, seen) = (Arc::clone(&manager), view.clone());
    spawn("looks", move || look_around(&seen, &looked_at)).map_err(failed)?;
    if let Some(listener) = listener {
        let server = Arc::new(Server { view, manager: Arc::clone(&manager), clients: Mutex::default() });
        spawn("control", move || server.run(&listener)).map_err(failed)?;
    }
    Ok(Control { manager, _socket: socket })
}

/// The place of the socket may be on a mount that hangs.
fn bind(config: &ControlConfig) -> io::Result<(ControlSocket, UnixListener)> {
    let config = config.clone();
    let path = config.socket.clone();
    worker::within("binding", &path, BIND_LIMIT, move || ControlSocket::bind(&config))?
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

/// Looks at the disks, and at what hosts do, from time to time.
fn look_around(view: &View, manager: &TimedMutex<Manager>) {
    loop {
        thread::sleep(POLL_INTERVAL);
        view.sample();
        if let Err(error) = manager.with_lock("a look at the disks", Manager::poll) {
            tracing::warn!(error, "the disks are not checked");
        }
    }
}

struct Server {
    view: View,
    manager: Arc<TimedMutex<Manager>>,
    clients: Mutex<Clients>,
}

/// Who is connected, by the order of coming.
#[derive(Default)]
struct Clients {
    next: u64,
    connected: BTreeMap<u64, Client>,
}

struct Client {
    stream: UnixStream,
    /// Since when it is waited for; none while its request is being answered.
    silent_since: Option<Instant>,
}

impl Server {
    fn run(self: Arc<Self>, listener: &UnixListener) {
        loop {
            let accepted = listener.accept().and_then(|(stream, _)| self.take_in(stream));
            match accepted {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(%error, "no control connection");
                    thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    /// Serves a client on a thread of its own.
    fn take_in(self: &Arc<Self>, stream: UnixStream) -> io::Result<()> {
        let mut clients = self.clients();
        if clients.connected.len() >= CLIENTS_MAX && !clients.drop_most_silent() {
            tracing::warn!(
                clients = CLIENTS_MAX,
                "a control connection is refused: there are as many as allowed"
            );
            return Ok(());
        }
        let number = clients.next;
        clients.next += 1;
        let known = Client { stream: stream.try_clone()?, silent_since: Some(Instant::now()) };
        clients.connected.insert(number, known);
        drop(clients);
        let this = Arc::clone(self);
        let spawned = spawn("control-client", move || {
            if let Err(error) = this.serve(number, stream) {
                tracing::debug!(%error, "a control connection has ended");
            }
            this.clients().connected.remove(&number);
        });
        if spawned.is_err() {
            self.clients().connected.remove(&number);
        }
        spawned
    }

    /// Answers requests until the client ends, or takes too long.
    fn serve(&self, number: u64, mut stream: UnixStream) -> io::Result<()> {
        stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
        let by = peer(&stream);
        let mut pending = Vec::new();
        // What it has frozen is thawed with its end.
        let mut frozen: Option<Frozen> = None;
        let patience =
            |frozen: &Option<Frozen>| CLIENT_TIMEOUT + frozen.as_ref().map_or(Duration::ZERO, Frozen::left);
        while let Some(line) = next_line(&mut stream, &mut pending, patience(&frozen))? {
            self.note(number, None);
            let answer = answer(&line, &by, &self.view, &self.manager, &mut frozen);
            // Nobody takes the place of one that holds something.
            self.note(number, frozen.is_none().then(Instant::now));
            stream.write_all(answer.as_bytes())?;
            if line.len() > REQUEST_BYTES_MAX {
                // Where the next request would begin, nobody knows.
                return Ok(());
            }
        }
        Ok(())
    }

    fn note(&self, number: u64, silent_since: Option<Instant>) {
        if let Some(client) = self.clients().connected.get_mut(&number) {
            client.silent_since = silent_since;
        }
    }

    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clients {
    /// Makes room for one more. False when all are being answered.
    fn drop_most_silent(&mut self) -> bool {
        let silent = self.connected.iter().filter_map(|(number, one)| Some((one.silent_since?, *number)));
        let Some((since, number)) = silent.min() else { return false };
        let Some(client) = self.connected.remove(&number) else { return false };
        let silent_s = since.elapsed().as_secs();
        tracing::warn!(silent_s, "a silent control connection is closed to make room for another");
        // Its thread ends with the next read or write.
        let _gone = client.stream.shutdown(Shutdown::Both);
        true
    }
}

/// Who is at the other end, for the log.
fn peer(stream: &UnixStream) -> String {
    let Ok(peer) = getsockopt(stream, sockopt::PeerCredentials) else { return "somebody unknown".to_owned() };
    let users = fs::read_to_string(USERS).unwrap_or_default();
    // The unit hides processes of other users from the target, and so what they run.
    let command = fs::read_to_string(format!("/proc/{}/comm", peer.pid())).ok();
    described(user_name(&users, peer.uid()), peer.uid(), command.as_deref().map(str::trim), peer.pid())
}

/// A user and a process in words, as far as they are known.
fn described(user: Option<&str>, uid: u32, command: Option<&str>, pid: i32) -> String {
    let user = user.map_or_else(|| format!("uid {uid}"), |name| format!("user {name} (uid {uid})"));
    let command = command.filter(|command| !command.is_empty());
    let command = command.map(|command| format!(" ({command})")).unwrap_or_default();
    format!("{user}, process {pid}{command}")
}

/// The name of a user. Only this file is asked: services for names may be on the network, and out of reach.
fn user_name(users: &str, uid: u32) -> Option<&str> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    })
}

/// The next line, or what there is of one that is too long. None at the end; what follows the last newline is no
/// request.
fn next_line(
    stream: &mut UnixStream,
    pending: &mut Vec<u8>,
    patience: Duration,
) -> io::Result<Option<Vec<u8>>> {
    let deadline = Instant::now() + patience;
    let mut chunk = [0; 4096];
    loop {
        if let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            return Ok(Some(pending.drain(..=end).collect()));
        }
        if pending.len() > REQUEST_BYTES_MAX {
            return Ok(Some(std::mem::take(pending)));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut chunk)? {
            0 => return Ok(None),
            length => pending.extend_from_slice(&chunk[..length]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(sent: &[u8]) -> Vec<Vec<u8>> {
        let (mut client, mut server) = UnixStream::pair().expect("a pair");
        let sent = sent.to_vec();
        let writer = thread::spawn(move || {
            for piece in sent.chunks(7) {
                // A server that has had enough does not read the rest.
                let _unread = client.write_all(piece);
            }
        });
        let (mut pending, mut all) = (Vec::new(), Vec::new());
        while let Some(line) = next_line(&mut server, &mut pending, CLIENT_TIMEOUT).expect("no error") {
            let end = line.len() > REQUEST_BYTES_MAX;
            all.push(line);
            if end {
                break;
            }
        }
        drop(server);
        writer.join().expect("the writer");
        all
    }

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        assert_eq!(lines(b"one\ntwo\n\nrest"), [b"one\n".to_vec(), b"two\n".to_vec(), b"\n".to_vec()]);
        assert_eq!(lines(b""), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn a_folder_that_is_missing_is_told_with_what_makes_it() {
        let (path, source) = (PathBuf::from("/no such/folder/control.sock"), io::ErrorKind::NotFound.into());
        let said = ControlError { path, source }.to_string();
        assert!(said.ends_with("its folder is not there: `mkdir -p '/no such/folder'` makes it"), "{said}");
    }

    #[test]
    fn who_asks_is_named_without_a_hole() {
        let users = "root:x:0:0:root:/root:/bin/sh\n+:::::\nana:x:1000:1000::/home/ana:/bin/sh\n";
        assert_eq!(
            described(user_name(users, 0), 0, Some("ringfab-target"), 7),
            "user root (uid 0), process 7 (ringfab-target)"
        );
        assert_eq!(described(user_name(users, 1000), 1000, None, 7), "user ana (uid 1000), process 7");
        assert_eq!(described(user_name(users, 100), 100, Some(""), 7), "uid 100, process 7");
        let (one, _other) = UnixStream::pair().expect("a pair");
        let said = peer(&one);
        assert!(
            said.contains(&format!("process {} (", std::process::id())) && !said.contains("  "),
            "{said}"
        );
    }

    #[test]
    fn a_line_without_an_end_is_bounded() {
        let all = lines(&vec![b'x'; 3 * REQUEST_BYTES_MAX]);
        assert_eq!(all.len(), 1);
        assert!(all[0].len() > REQUEST_BYTES_MAX && all[0].len() <= REQUEST_BYTES_MAX + 4096);
    }
}
