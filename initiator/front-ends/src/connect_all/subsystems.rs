//! Which subsystems there should be, and which there are.

use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::signal::Signal;
use ringfab_initiator::Url;
use ringfab_initiator::discovery::DiscoveryEntry;

/// The most subsystems. A discovery controller may say that there are many more.
const SUBSYSTEMS_MAX: usize = 256;
/// Between two attempts to attach a subsystem: the first delay, and the longest.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// What a front end offers.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    /// The address of the subsystem.
    pub(super) url: String,
    /// Where it is: an NBD URI, or a directory.
    pub(super) at: String,
    /// Names of its exports, or paths of its files.
    pub(super) disks: Vec<String>,
}

/// What a front end tells.
#[derive(Debug)]
pub(super) enum Told {
    /// It serves.
    Serving(Offer),
    /// It has ended, and why if nobody asked for that.
    Ended(Result<()>),
}

/// The front end of a subsystem, from outside.
pub(super) trait Handle {
    /// Asks for its end, or says that there is no time left for an orderly one.
    fn signal(&mut self, signal: Signal);
    /// Whether its end was asked for.
    fn is_ending(&self) -> bool;
    /// Discovery shows these addresses: they are to be its paths.
    fn follow(&mut self, urls: &[Url]);
    /// Waits for what is left of it after its end.
    fn join(self);
}

/// Subsystems in the order in which they came.
#[derive(Debug)]
pub(super) struct Subsystems<H> {
    list: Vec<Subsystem<H>>,
    numbers: u64,
    full: bool,
}

#[derive(Debug)]
struct Subsystem<H> {
    nqn: String,
    /// Where it is; empty when discovery does not show it any more.
    urls: Vec<Url>,
    running: Option<Running<H>>,
    /// Whether it was attached, or could not be.
    tried: bool,
    /// When to attach it, unless that has no prospect.
    due: Option<Instant>,
    /// How long to wait after the next failure.
    delay: Duration,
}

#[derive(Debug)]
struct Running<H> {
    number: u64,
    handle: H,
    serves: bool,
}

/// What has happened to a subsystem.
#[derive(Debug)]
pub(super) enum Change {
    /// It is served.
    Serving(String, Offer),
    /// It is not attached any more, or could not be.
    Ended {
        nqn: String,
        /// Whether it was served.
        served: bool,
        /// Why, unless that was asked for.
        error: Option<anyhow::Error>,
    },
}

impl<H> Default for Subsystems<H> {
    fn default() -> Self {
        Self { list: Vec::new(), numbers: 0, full: false }
    }
}

impl<H: Handle> Subsystems<H> {
    /// Discovery shows these entries.
    pub(super) fn want(&mut self, entries: &[DiscoveryEntry], now: Instant) {
        let mut wanted = wanted(entries);
        for subsystem in &mut self.list {
            let found = wanted.iter().position(|(nqn, _)| *nqn == subsystem.nqn);
            let urls = found.map(|index| wanted.swap_remove(index).1).unwrap_or_default();
            if urls.is_empty() {
                subsystem.end(Signal::SIGTERM);
                continue;
            }
            if urls != subsystem.urls {
                (subsystem.urls, subsystem.due, subsystem.delay) = (urls, Some(now), RETRY);
            }
            subsystem.follow();
        }
        self.list.retain(|one| one.running.is_some() || !one.urls.is_empty());
        for (nqn, urls) in wanted {
            if self.list.len() == SUBSYSTEMS_MAX {
                if !std::mem::replace(&mut self.full, true) {
                    tracing::warn!(
                        "discovery shows more than {SUBSYSTEMS_MAX} subsystems; the others are left out"
                    );
                }
                return;
            }
            let subsystem =
                Subsystem { nqn, urls, running: None, tried: false, due: Some(now), delay: RETRY };
            self.list.push(subsystem);
        }
    }

    /// Starts what is to be attached by now; returns what cannot be.
    pub(super) fn start_due(
        &mut self,
        now: Instant,
        mut start: impl FnMut(u64, &str, Vec<Url>) -> Result<H>,
    ) -> Vec<(String, anyhow::Error)> {
        let mut failed = Vec::new();
        for subsystem in &mut self.list {
            if subsystem.next_retry().is_none_or(|due| due > now) {
                continue;
            }
            subsystem.due = None;
            let number = self.numbers;
            self.numbers += 1;
            match start(number, &subsystem.nqn, subsystem.urls.clone()) {
                Ok(handle) => subsystem.running = Some(Running { number, handle, serves: false }),
                Err(error) => {
                    subsystem.tried = true;
                    failed.push((subsystem.nqn.clone(), error));
                }
            }
        }
        failed
    }

    /// When the next one is to be attached.
    pub(super) fn next_retry(&self) -> Option<Instant> {
        self.list.iter().filter_map(Subsystem::next_retry).min()
    }

    /// A front end has told something. With `again`, one that has failed is tried again.
    pub(super) fn told(&mut self, number: u64, told: Told, again: bool, now: Instant) -> Option<Change> {
        let is_meant =
            |one: &Subsystem<H>| one.running.as_ref().is_some_and(|running| running.number == number);
        let index = self.list.iter().position(is_meant)?;
        let subsystem = &mut self.list[index];
        subsystem.tried = true;
        let error = match told {
            Told::Serving(offer) => {
                subsystem.running.as_mut()?.serves = true;
                subsystem.delay = RETRY;
                return Some(Change::Serving(subsystem.nqn.clone(), offer));
            }
            Told::Ended(result) => result.err(),
        };
        let Running { handle, serves: served, .. } = subsystem.running.take()?;
        if handle.is_ending() {
            // It may be there again.
            subsystem.due = Some(now);
        } else if error.is_some() {
            subsystem.due = Some(now + subsystem.delay);
            subsystem.delay = (2 * subsystem.delay).min(RETRY_MAX);
        }
        handle.join();
        let nqn = subsystem.nqn.clone();
        if subsystem.urls.is_empty() || !again {
            self.list.remove(index);
        }
        Some(Change::Ended { nqn, served, error })
    }

    /// Whether each was attached, or could not be.
    pub(super) fn are_tried(&self) -> bool {
        self.list.iter().all(|one| one.tried || one.urls.is_empty())
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Asks all to end, the last one first, or to hurry.
    pub(super) fn end_all(&mut self, signal: Signal) {
        for subsystem in self.list.iter_mut().rev() {
            subsystem.urls.clear();
            if let Some(running) = &mut subsystem.running {
                running.handle.signal(signal);
            }
        }
        self.list.retain(|one| one.running.is_some());
    }
}

impl<H: Handle> Subsystem<H> {
    /// Has what runs use the addresses that there are.
    fn follow(&mut self) {
        if let Some(running) = self.running.as_mut().filter(|running| !running.handle.is_ending()) {
            running.handle.follow(&self.urls);
        }
    }

    /// It is not to be attached any more.
    fn end(&mut self, signal: Signal) {
        self.urls.clear();
        if let Some(running) = self.running.as_mut().filter(|running| !running.handle.is_ending()) {
            running.handle.signal(signal);
        }
    }
}

impl<H> Subsystem<H> {
    fn next_retry(&self) -> Option<Instant> {
        self.due.filter(|_| self.running.is_none() && !self.urls.is_empty())
    }
}

/// The subsystems that can be attached, each with its addresses, in the order of the entries.
fn wanted(entries: &[DiscoveryEntry]) -> Vec<(String, Vec<Url>)> {
    let mut all: Vec<(String, Vec<Url>)> = Vec::new();
    for entry in entries.iter().filter(|entry| entry.is_subsystem()) {
        let Some(url) = entry.url.clone().filter(|url| !url.is_discovery()) else { continue };
        match all.iter_mut().find(|(nqn, _)| *nqn == entry.subsystem) {
            Some((_, urls)) if urls.contains(&url) => {}
            Some((_, urls)) => urls.push(url),
            None => all.push((entry.subsystem.clone(), vec![url])),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    /// A front end that only remembers how often its end was asked for, and which addresses it was told.
    #[derive(Debug, Default)]
    struct Fake {
        signals: u32,
        urls: Vec<Url>,
    }

    impl Handle for Fake {
        fn signal(&mut self, _: Signal) {
            self.signals += 1;
        }

        fn is_ending(&self) -> bool {
            self.signals > 0
        }

        fn follow(&mut self, urls: &[Url]) {
            self.urls = urls.to_vec();
        }

        fn join(self) {}
    }

    fn entry(nqn: &str, address: &str) -> DiscoveryEntry {
        DiscoveryEntry {
            transport: "tcp".to_owned(),
            address_family: "ipv4".to_owned(),
            subsystem_type: "nvme subsystem".to_owned(),
            address: address.to_owned(),
            service: "4420".to_owned(),
            subsystem: nqn.to_owned(),
            port_id: 1,
            cntlid: 0xffff,
            admin_queue_size_max: 32,
            secure_channel_required: false,
            url: Some(format!("nvme+tcp://{address}/{nqn}").parse().expect("an address")),
        }
    }

    /// Starts what is due, and says which.
    fn started(all: &mut Subsystems<Fake>, now: Instant) -> Vec<(u64, String, usize)> {
        let mut started = Vec::new();
        let failed = all.start_due(now, |number, nqn, urls| {
            started.push((number, nqn.to_owned(), urls.len()));
            Ok(Fake::default())
        });
        assert!(failed.is_empty());
        started
    }

    fn serving() -> Told {
        Told::Serving(Offer { url: String::new(), at: "somewhere".to_owned(), disks: Vec::new() })
    }

    #[test]
    fn a_subsystem_is_attached_once_whatever_the_number_of_its_addresses() {
        let (mut all, now) = (Subsystems::default(), Instant::now());
        let mut entries = vec![entry("a", "192.0.2.1"), entry("b", "192.0.2.1"), entry("a", "192.0.2.2")];
        entries.push(DiscoveryEntry { subsystem_type: "discovery".to_owned(), ..entry("c", "192.0.2.1") });
        entries.push(DiscoveryEntry { url: None, ..entry("d", "192.0.2.1") });
        entries.push(entries[0].clone());
        all.want(&entries, now);
        assert!(!all.are_tried());
        assert_eq!(started(&mut all, now), [(0, "a".to_owned(), 2), (1, "b".to_owned(), 1)]);
        assert!(started(&mut all, now).is_empty(), "once");
        assert!(matches!(all.told(0, serving(), true, now), Some(Change::Serving(nqn, _)) if nqn == "a"));
        let ended = all.told(1, Told::Ended(Err(anyhow!("away"))), false, now);
        assert!(matches!(ended, Some(Change::Ended { served: false, error: Some(_), .. })));
        assert!(all.are_tried() && !all.is_empty(), "a is served");
    }

    #[test]
    fn what_runs_is_told_which_addresses_there_are() {
        let (mut all, now) = (Subsystems::default(), Instant::now());
        let entries = [entry("a", "192.0.2.1"), entry("a", "192.0.2.2"), entry("b", "192.0.2.1")];
        all.want(&entries[..1], now);
        started(&mut all, now);
        let told =
            |all: &Subsystems<Fake>| all.list[0].running.as_ref().expect("it runs").handle.urls.clone();
        all.want(&entries, now);
        assert_eq!(
            told(&all),
            [&entries[0], &entries[1]].map(|entry| entry.url.clone().expect("an address"))
        );
        all.want(&entries[1..], now);
        assert_eq!(told(&all), [entries[1].url.clone().expect("an address")]);
        all.want(&entries[2..], now);
        all.want(&entries, now);
        assert_eq!(told(&all).len(), 1, "one that ends is told nothing");
    }

    #[test]
    fn what_goes_is_ended_and_what_comes_back_meanwhile_is_attached_again() {
        let (mut all, now) = (Subsystems::default(), Instant::now());
        let entries = [entry("a", "192.0.2.1")];
        all.want(&entries, now);
        assert_eq!(started(&mut all, now).len(), 1);
        all.told(0, serving(), true, now);
        all.want(&[], now);
        all.want(&[], now);
        assert_eq!(all.list[0].running.as_ref().expect("it runs").handle.signals, 1, "asked once");
        all.want(&entries, now);
        assert!(started(&mut all, now).is_empty(), "the old one is still there");
        let ended = all.told(0, Told::Ended(Ok(())), true, now);
        assert!(matches!(ended, Some(Change::Ended { served: true, error: None, .. })));
        assert_eq!(started(&mut all, now), [(1, "a".to_owned(), 1)]);
        all.end_all(Signal::SIGTERM);
        assert!(!all.is_empty());
        all.told(1, Told::Ended(Ok(())), true, now);
        assert!(all.is_empty());
    }

    #[test]
    fn one_that_fails_is_tried_again_later_and_later_or_at_once_at_another_address() {
        let (mut all, now) = (Subsystems::default(), Instant::now());
        all.want(&[entry("a", "192.0.2.1")], now);
        let mut at = now;
        for (number, delay) in [(0, 1), (1, 2), (2, 4)] {
            assert_eq!(started(&mut all, at)[0].0, number);
            all.told(number, Told::Ended(Err(anyhow!("away"))), true, at);
            assert!(started(&mut all, at).is_empty());
            assert_eq!(all.next_retry(), Some(at + Duration::from_secs(delay)));
            at += Duration::from_secs(delay);
        }
        all.want(&[entry("a", "192.0.2.2")], now);
        assert_eq!(started(&mut all, now).len(), 1);
        // Somebody has unmounted it.
        all.told(3, Told::Ended(Ok(())), true, now);
        assert_eq!(all.next_retry(), None);
        all.want(&[], now);
        assert!(all.is_empty());
    }

    #[test]
    fn a_discovery_controller_cannot_have_any_number_attached() {
        let (mut all, now) = (Subsystems::<Fake>::default(), Instant::now());
        let entries: Vec<_> = (0..1000).map(|number| entry(&format!("s{number}"), "192.0.2.1")).collect();
        all.want(&entries, now);
        assert_eq!(started(&mut all, now).len(), SUBSYSTEMS_MAX);
    }
}
