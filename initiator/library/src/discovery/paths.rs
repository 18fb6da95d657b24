//! The paths to a subsystem that discovery controllers know: found, added, and removed with the log page.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{DiscoveryEntry, DiscoveryWatch};
use crate::blocking::{Controller, EngineOptions};
use crate::options::ConnectOptions;
use crate::path_status::{PathState, PathStatus};
use crate::url::{HostName, Url};

/// The longest time between two attempts: what is given up may be for a reason that stays.
const AGAIN_MAX: Duration = Duration::from_secs(600);

/// The addresses of a subsystem, of the entries of discovery log pages, each once. These are its paths.
pub fn paths_of<'a>(entries: impl IntoIterator<Item = &'a DiscoveryEntry>, subsystem: &str) -> Vec<Url> {
    let mut paths: Vec<Url> = Vec::new();
    for entry in entries {
        let is_one = entry.is_subsystem() && entry.subsystem == subsystem;
        if let Some(url) = entry.url.as_ref().filter(|_| is_one)
            && !paths.iter().any(|known| is_same(known, url))
        {
            paths.push(url.clone());
        }
    }
    paths
}

/// Whether two addresses are one path.
fn is_same(one: &Url, other: &Url) -> bool {
    (&one.host, one.port, one.transport) == (&other.host, other.port, other.transport)
}

/// The paths of a controller that discovery has shown: added when it shows them, and removed when it shows them no
/// longer. What came in another way stays.
#[derive(Debug, Default)]
pub struct ShownPaths {
    shown: Vec<ShownPath>,
}

/// One of them. A path that is given up for a reason that stays is added again later and later.
#[derive(Debug)]
struct ShownPath {
    url: Url,
    /// Not before then.
    due: Instant,
    delay: Duration,
}

impl ShownPaths {
    /// How often to call [`ShownPaths::keep`] without news: a path that was given up is not added again sooner.
    pub const AGAIN: Duration = Duration::from_secs(10);

    /// `shown`: those of the controller's addresses that discovery has shown before it was attached.
    pub fn new(shown: Vec<Url>) -> Self {
        let now = Instant::now();
        Self { shown: shown.into_iter().map(|url| ShownPath::new(url, now)).collect() }
    }

    /// Begins what makes the paths of `controller` those that were `found`. None that are found change nothing: a
    /// subsystem that discovery does not know is not without paths.
    ///
    /// A path that is given up, or cannot be added or removed now, needs another call, [`ShownPaths::AGAIN`] later.
    pub fn keep(&mut self, controller: &Controller, found: &[Url]) {
        if found.is_empty() {
            return;
        }
        let (there, now) = (controller.paths(), Instant::now());
        for url in found {
            self.find(url, &there, now);
        }
        let is_found = |url: &Url| found.iter().any(|one| is_same(one, url));
        for shown in &mut self.shown {
            let mut ways = there.iter().filter(|path| leads_to(path, &shown.url)).peekable();
            match (is_found(&shown.url), ways.peek()) {
                (true, None) => shown.add(controller, now),
                (true, Some(path)) if path.cntlid.is_some() => shown.works(now),
                (true, Some(_)) => {}
                (false, _) => ways.for_each(|path| remove(controller, path)),
            }
        }
        self.shown.retain(|one| is_found(&one.url) || there.iter().any(|path| leads_to(path, &one.url)));
    }

    /// Discovery shows this address. It is none of ours if a path leads there already, which came in another way.
    fn find(&mut self, url: &Url, there: &[PathStatus], now: Instant) {
        let is_known = self.shown.iter().any(|one| is_same(&one.url, url));
        if !is_known && !there.iter().any(|path| leads_to(path, url)) {
            self.shown.push(ShownPath::new(url.clone(), now));
        }
    }
}

impl ShownPath {
    fn new(url: Url, now: Instant) -> Self {
        Self { url, due: now, delay: ShownPaths::AGAIN }
    }

    fn add(&mut self, controller: &Controller, now: Instant) {
        if !self.try_now(now) {
            return;
        }
        match controller.add_path(self.url.clone()) {
            Ok(path) => tracing::debug!(peer = self.url.peer(), %path, "discovery shows this path"),
            Err(error) => tracing::debug!(peer = self.url.peer(), %error, "this path is not added"),
        }
    }

    /// Whether to add it now. If so, the next time is later.
    fn try_now(&mut self, now: Instant) -> bool {
        let is_due = self.due <= now;
        if is_due {
            self.due = now + self.delay;
            self.delay = (2 * self.delay).min(AGAIN_MAX);
        }
        is_due
    }

    /// It works, so it is worth a try as soon as it is gone.
    fn works(&mut self, now: Instant) {
        (self.due, self.delay) = (now, ShownPaths::AGAIN);
    }
}

fn remove(controller: &Controller, path: &PathStatus) {
    if path.state == PathState::Leaving {
        return;
    }
    let peer = path.url.peer();
    match controller.remove_path(path.id) {
        Ok(()) => tracing::info!(peer, path = %path.id, "discovery shows this path no longer"),
        Err(error) => tracing::debug!(peer, path = %path.id, %error, "this path is not removed"),
    }
}

/// Keeps the paths of a controller as a discovery controller knows them, on a thread of its own: it adds what the log
/// page has, and removes what it has added when that leaves the page. What was given stays.
///
/// It has a handle of the controller, which [`Controller::detach`] ends as always. Dropping this leaves the discovery
/// controller, and the paths as they are.
#[derive(Debug)]
pub struct PathDiscovery {
    stop: Sender<Wake>,
    thread: Option<JoinHandle<()>>,
}

/// Why the thread looks.
enum Wake {
    /// The log pages may say something else.
    Changed,
    Stop,
}

impl PathDiscovery {
    /// Starts, with a discovery controller at `options.url`: most often the address of a path, without its subsystem.
    /// Referrals are followed.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(
        controller: &Controller,
        options: ConnectOptions,
        engine: EngineOptions,
    ) -> io::Result<Self> {
        let (stop, wakes) = channel();
        let tell = stop.clone();
        let url = options.url.clone();
        let mut watch = DiscoveryWatch::new(options, engine, move || {
            // Who has stopped needs to know nothing.
            let _stopped = tell.send(Wake::Changed);
        });
        watch.add(&url)?;
        let keeper = Keeper { controller: controller.clone(), watch, paths: ShownPaths::default() };
        let thread = std::thread::Builder::new().name("paths".to_owned());
        let thread = thread.spawn(move || keeper.run(&wakes))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for PathDiscovery {
    fn drop(&mut self) {
        let _ended = self.stop.send(Wake::Stop);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::warn!("the thread that looks for paths panicked");
        }
    }
}

/// The thread.
struct Keeper {
    controller: Controller,
    watch: DiscoveryWatch,
    paths: ShownPaths,
}

impl Keeper {
    fn run(mut self, wakes: &Receiver<Wake>) {
        loop {
            match wakes.recv_timeout(ShownPaths::AGAIN) {
                Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(Wake::Changed) | Err(RecvTimeoutError::Timeout) => {}
            }
            for trouble in self.watch.take(true) {
                tracing::debug!(error = %trouble.error, "the discovery controller cannot be asked for paths");
            }
            if self.controller.paths().is_empty() {
                // It was detached.
                return;
            }
            if self.watch.is_settled() {
                let subsystem = self.controller.options().url.subsystem_nqn();
                self.paths.keep(&self.controller, &paths_of(&self.watch.entries(), subsystem));
            }
        }
    }
}

/// Whether a path leads to an address already.
fn leads_to(path: &PathStatus, url: &Url) -> bool {
    let connected = match (&url.host, path.address) {
        (HostName::Address(host), Some(address)) => {
            host.ip() == address.ip() && url.port == address.port() && path.url.transport == url.transport
        }
        _ => false,
    };
    connected || is_same(&path.url, url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(subsystem: &str, kind: &str, url: Option<&str>) -> DiscoveryEntry {
        DiscoveryEntry {
            transport: "tcp".to_owned(),
            address_family: "ipv4".to_owned(),
            subsystem_type: kind.to_owned(),
            address: String::new(),
            service: String::new(),
            subsystem: subsystem.to_owned(),
            port_id: 1,
            cntlid: 0xffff,
            admin_queue_size_max: 32,
            secure_channel_required: false,
            url: url.map(|url| url.parse().expect("an address")),
        }
    }

    #[test]
    fn the_paths_of_a_subsystem_are_its_addresses_and_nothing_else() {
        const NQN: &str = "nqn.2026-01.org.example:disk";
        let kind = ringfab_spec::log::SubsystemType::NVM.to_string();
        let url = |host: &str| format!("nvme+tcp://{host}/{NQN}");
        let entries = [
            entry(NQN, &kind, Some(&url("192.0.2.1"))),
            entry("nqn.2026-01.org.example:other", &kind, Some(&url("192.0.2.2"))),
            entry(NQN, "referral", Some(&url("192.0.2.3"))),
            entry(NQN, &kind, None),
            entry(NQN, &kind, Some(&url("192.0.2.4"))),
            entry(NQN, &kind, Some(&url("192.0.2.1"))),
        ];
        let hosts: Vec<_> = paths_of(&entries, NQN).iter().map(|url| url.host.to_string()).collect();
        assert_eq!(hosts, ["192.0.2.1", "192.0.2.4"]);
    }

    #[test]
    fn a_path_that_is_given_up_is_added_later_and_later_unless_it_has_worked() {
        let mut at = Instant::now();
        let mut path = ShownPath::new("nvme+tcp://192.0.2.1".parse().expect("an address"), at);
        for seconds in [10, 20, 40, 80, 160, 320, 600, 600] {
            assert!(path.try_now(at));
            at += Duration::from_secs(seconds - 1);
            assert!(!path.try_now(at), "{seconds}");
            at += Duration::from_secs(1);
        }
        path.works(at);
        assert!(path.try_now(at) && path.try_now(at + ShownPaths::AGAIN));
    }
}
