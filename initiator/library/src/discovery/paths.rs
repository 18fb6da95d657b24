//! The paths to a subsystem that discovery controllers know: found, added, and removed with the log page.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{DiscoveryEntry, DiscoveryWatch};
use crate::blocking::{Controller, EngineOptions};
use crate::options::ConnectOptions;
use crate::path_status::PathStatus;
use crate::request::PathId;
use crate::url::{HostName, Url};

/// How often a path that was given up is added again, and one that could not be added.
const AGAIN: Duration = Duration::from_secs(10);

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
        let keeper = Keeper { controller: controller.clone(), watch, added: Vec::new() };
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
    /// What it has added.
    added: Vec<(Url, PathId)>,
}

impl Keeper {
    fn run(mut self, wakes: &Receiver<Wake>) {
        loop {
            match wakes.recv_timeout(AGAIN) {
                Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(Wake::Changed) | Err(RecvTimeoutError::Timeout) => {}
            }
            for trouble in self.watch.take(true) {
                tracing::debug!(error = %trouble.error, "the discovery controller cannot be asked for paths");
            }
            let there = self.controller.paths();
            if there.is_empty() {
                // It was detached.
                return;
            }
            if self.watch.is_settled() {
                self.keep(&there);
            }
        }
    }

    /// Adds and removes paths until they are as discovery says.
    fn keep(&mut self, there: &[PathStatus]) {
        let options = self.controller.options();
        let found = paths_of(&self.watch.entries(), options.url.subsystem_nqn());
        if found.is_empty() {
            // A subsystem that discovery does not know is not without paths.
            return;
        }
        self.added.retain(|(_, id)| there.iter().any(|path| path.id == *id));
        for (url, id) in self.added.extract_if(.., |(url, _)| !found.iter().any(|one| is_same(one, url))) {
            let removed = self.controller.remove_path(id);
            tracing::info!(peer = url.peer(), path = %id, ?removed, "discovery names this path no longer");
        }
        for url in found.into_iter().filter(|url| !there.iter().any(|path| leads_to(path, url))) {
            match self.controller.add_path(url.clone()) {
                Ok(id) => self.added.push((url, id)),
                Err(error) => tracing::debug!(%error, "this path is not added"),
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
}
