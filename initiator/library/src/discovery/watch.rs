//! Discovery controllers that a host stays connected to, and those that they refer to.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{DiscoveryController, DiscoveryEntry, DiscoveryLog};
use crate::blocking::{CancelToken, EngineClient, EngineOptions, Turn};
use crate::error::{Cause, ConnectError, Step};
use crate::host::Host;
use crate::options::ConnectOptions;
use crate::request::{ControllerId, HostEvent};
use crate::url::Url;

/// How often a controller without events is asked for its generation counter.
const POLL: Duration = Duration::from_secs(1);
/// The same for one with events, which might not keep its word.
const POLL_WITH_EVENTS: Duration = Duration::from_secs(60);
/// Between two attempts to connect to a controller: the first delay, and the longest.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Several discovery controllers, and what they know together. Each has a thread, which connects, reads the log page,
/// and reads it again when the controller tells that it has changed, or when its generation counter has. A controller
/// that cannot be reached is tried again; meanwhile it is taken to know what it knew.
pub struct DiscoveryWatch {
    options: ConnectOptions,
    engine: EngineOptions,
    tell: Arc<dyn Fn() + Send + Sync>,
    sender: Sender<Report>,
    reports: Receiver<Report>,
    controllers: Vec<Watched>,
    /// Threads of controllers that are watched no longer.
    ending: Vec<JoinHandle<()>>,
    numbers: u64,
}

/// A discovery controller that could not be asked, for now.
#[derive(Clone, Debug)]
pub struct DiscoveryTrouble {
    /// Its address.
    pub url: Url,
    /// What has happened.
    pub error: ConnectError,
}

struct Watched {
    number: u64,
    url: Url,
    /// Whether it was added by name; the others are referred to.
    named: bool,
    log: Option<DiscoveryLog>,
    /// Whether it has been asked, with or without success.
    asked: bool,
    link: Sender<Link>,
    cancel: CancelToken,
    thread: JoinHandle<()>,
}

/// From the thread of a controller.
struct Report {
    number: u64,
    result: Result<DiscoveryLog, ConnectError>,
}

/// To the thread of a controller.
enum Link {
    /// The log page may have changed.
    Changed,
    /// The connection is lost, and will be made again.
    Lost(ConnectError),
    /// The controller was given up.
    Failed(ConnectError),
    /// Leave it.
    Stop,
}

impl DiscoveryWatch {
    /// The most discovery controllers. Further referrals are not followed.
    pub const CONTROLLERS_MAX: usize = 16;

    /// Watches no controller yet. The addresses to come are connected to with `options`, whose own address does not
    /// matter. Whenever there is something to take, `tell` is called from another thread.
    pub fn new(
        options: ConnectOptions,
        engine: EngineOptions,
        tell: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let (sender, reports) = channel();
        Self {
            options,
            engine,
            tell: Arc::new(tell),
            sender,
            reports,
            controllers: Vec::new(),
            ending: Vec::new(),
            numbers: 0,
        }
    }

    /// Watches one more controller, by its address without a subsystem. One that is watched already stays.
    ///
    /// # Errors
    /// There are as many as there may be, or the system has no thread left.
    pub fn add(&mut self, url: &Url) -> io::Result<()> {
        match self.controllers.iter().position(|one| is_same(&one.url, url)) {
            Some(index) => self.controllers[index].named = true,
            None if self.controllers.len() == Self::CONTROLLERS_MAX => {
                let text = format!("more than {} discovery controllers", Self::CONTROLLERS_MAX);
                return Err(io::Error::other(text));
            }
            None => self.start(url.clone(), true)?,
        }
        Ok(())
    }

    /// Stops watching a controller that was added, unless another one refers to it.
    pub fn remove(&mut self, url: &Url) {
        if let Some(watched) = self.controllers.iter_mut().find(|one| is_same(&one.url, url)) {
            watched.named = false;
            self.drop_unreferred();
        }
    }

    /// Takes what the controllers have reported: entries from now on have it. With `referrals`, those that they refer
    /// to are watched from now on, and those that none refers to any more are not. Returns what went wrong.
    pub fn take(&mut self, referrals: bool) -> Vec<DiscoveryTrouble> {
        let mut trouble = Vec::new();
        while let Ok(Report { number, result }) = self.reports.try_recv() {
            let Some(watched) = self.controllers.iter_mut().find(|one| one.number == number) else {
                continue;
            };
            watched.asked = true;
            match result {
                Ok(log) => watched.log = Some(log),
                Err(error) => trouble.push(DiscoveryTrouble { url: watched.url.clone(), error }),
            }
        }
        if referrals {
            self.drop_unreferred();
            trouble.extend(self.follow());
        }
        trouble
    }

    /// Whether each controller has been asked, with or without success.
    pub fn is_settled(&self) -> bool {
        self.controllers.iter().all(|one| one.asked)
    }

    /// Whether a controller has ever been read.
    pub fn has_log(&self, url: &Url) -> bool {
        self.controllers.iter().any(|one| is_same(&one.url, url) && one.log.is_some())
    }

    /// What is known, each entry once: first what was added first.
    pub fn entries(&self) -> Vec<DiscoveryEntry> {
        let mut seen = HashSet::new();
        let all = self.controllers.iter().filter_map(|one| one.log.as_ref()).flat_map(|log| &log.entries);
        let place = |entry: &DiscoveryEntry| {
            let DiscoveryEntry { transport, address, service, subsystem, subsystem_type, .. } = entry.clone();
            (transport, address, service, subsystem, subsystem_type)
        };
        all.filter(|entry| seen.insert(place(entry))).cloned().collect()
    }

    /// Starts to watch what is referred to.
    fn follow(&mut self) -> Vec<DiscoveryTrouble> {
        let mut trouble = Vec::new();
        for url in self.controllers.iter().flat_map(Watched::referrals).collect::<Vec<_>>() {
            let known = self.controllers.iter().any(|one| is_same(&one.url, &url));
            if known || self.controllers.len() == Self::CONTROLLERS_MAX {
                continue;
            }
            if let Err(error) = self.start(url.clone(), false) {
                let cause = Cause::Local(error.to_string());
                let error = ConnectError { peer: url.peer(), step: Step::Connect, cause };
                trouble.push(DiscoveryTrouble { url, error });
            }
        }
        trouble
    }

    /// Stops watching controllers to which no referral leads from one that was added. Two that refer to each other do
    /// not keep each other.
    fn drop_unreferred(&mut self) {
        let mut reached: Vec<bool> = self.controllers.iter().map(|one| one.named).collect();
        let mut left: Vec<usize> = (0..reached.len()).filter(|index| reached[*index]).collect();
        while let Some(from) = left.pop() {
            for url in self.controllers[from].referrals() {
                let found = self.controllers.iter().position(|one| is_same(&one.url, &url));
                if let Some(index) = found.filter(|index| !reached[*index]) {
                    reached[index] = true;
                    left.push(index);
                }
            }
        }
        let mut reached = reached.into_iter();
        for watched in self.controllers.extract_if(.., |_| !reached.next().unwrap_or(true)) {
            self.ending.push(watched.stop());
        }
    }

    fn start(&mut self, url: Url, named: bool) -> io::Result<()> {
        let (link, links) = channel();
        let number = self.numbers;
        self.numbers += 1;
        let cancel = CancelToken::new();
        let (tell, sender) = (Arc::clone(&self.tell), self.sender.clone());
        let visitor = Visitor {
            options: ConnectOptions { url: url.clone(), ..self.options.clone() },
            engine: EngineOptions { cancel: cancel.clone(), ..self.engine.clone() },
            link: link.clone(),
            links,
            report: Box::new(move |result| {
                // Whoever watches no longer wants to know nothing.
                if sender.send(Report { number, result }).is_ok() {
                    tell();
                }
            }),
        };
        let thread = std::thread::Builder::new().name("discovery".to_owned());
        let thread = thread.spawn(move || visitor.run())?;
        self.controllers.push(Watched { number, url, named, log: None, asked: false, link, cancel, thread });
        Ok(())
    }
}

impl Drop for DiscoveryWatch {
    fn drop(&mut self) {
        let stopped = self.controllers.drain(..).map(Watched::stop);
        for thread in stopped.chain(self.ending.drain(..)).collect::<Vec<_>>() {
            if thread.join().is_err() {
                tracing::warn!("a thread of a discovery controller panicked");
            }
        }
    }
}

impl Watched {
    /// The discovery controllers that it refers to.
    fn referrals(&self) -> impl Iterator<Item = Url> {
        let entries = self.log.iter().flat_map(|log| &log.entries).filter(|entry| entry.is_referral());
        entries.filter_map(|entry| entry.url.clone())
    }

    /// Has its thread leave the controller.
    fn stop(self) -> JoinHandle<()> {
        let _gone = self.link.send(Link::Stop);
        self.cancel.cancel();
        self.thread
    }
}

/// Whether two addresses lead to one discovery controller.
fn is_same(one: &Url, other: &Url) -> bool {
    one.transport == other.transport && one.host == other.host && one.port == other.port
}

/// The thread of a controller.
struct Visitor {
    options: ConnectOptions,
    engine: EngineOptions,
    link: Sender<Link>,
    links: Receiver<Link>,
    report: Box<dyn Fn(Result<DiscoveryLog, ConnectError>) + Send>,
}

impl Visitor {
    /// Stays connected until it is to stop.
    fn run(self) {
        let mut delay = RETRY;
        while !self.engine.cancel.is_cancelled() {
            match DiscoveryController::connect(self.options.clone(), self.engine.clone()) {
                Ok(controller) => {
                    delay = RETRY;
                    self.stay(&controller);
                    controller.detach();
                }
                Err(error) => (self.report)(Err(error)),
            }
            // Whatever the last controller's link still said is about one that is gone.
            while !self.engine.cancel.is_cancelled() {
                match self.links.recv_timeout(delay) {
                    Ok(Link::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                    Ok(_) => {}
                    Err(RecvTimeoutError::Timeout) => break,
                }
            }
            delay = (2 * delay).min(RETRY_MAX);
        }
    }

    /// Reads the log page now and whenever it changes, until the controller is given up or to be left.
    fn stay(&self, controller: &DiscoveryController) {
        let link = self.link.clone();
        if let Err(error) = controller.watch(link) {
            return (self.report)(Err(error));
        }
        let period = if controller.sends_events() { POLL_WITH_EVENTS } else { POLL };
        let (mut known, mut lost, mut read) = (None, false, true);
        loop {
            if read {
                match controller.log() {
                    Ok(log) if known.as_ref() == Some(&log) => {}
                    Ok(log) => {
                        known = Some(log.clone());
                        (self.report)(Ok(log));
                    }
                    // It ends with a change of the link, or with the next look.
                    Err(error) => (self.report)(Err(error)),
                }
            }
            read = match self.links.recv_timeout(period) {
                Ok(Link::Changed) => {
                    lost = false;
                    true
                }
                Ok(Link::Lost(error)) => {
                    lost = true;
                    (self.report)(Err(error));
                    false
                }
                Ok(Link::Failed(error)) => return (self.report)(Err(error)),
                Ok(Link::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) if lost => false,
                Err(RecvTimeoutError::Timeout) => match controller.generation() {
                    Ok(generation) => known.as_ref().is_none_or(|known| known.generation != generation),
                    Err(_) => true,
                },
            };
        }
    }
}

impl DiscoveryController {
    /// Has the engine say what happens to the controller.
    fn watch(&self, link: Sender<Link>) -> Result<(), ConnectError> {
        let started = self.controller.start_client(0, move |_, _| {
            Ok((Box::new(LinkWatch { link, over: false }) as Box<dyn EngineClient>, ()))
        });
        started.map_err(|error| self.failed(Cause::Local(error.to_string())))
    }
}

/// What tells the thread of a controller from the engine's.
struct LinkWatch {
    link: Sender<Link>,
    over: bool,
}

impl EngineClient for LinkWatch {
    fn turn(&mut self, _: &mut Host, _: ControllerId) -> io::Result<Turn> {
        Ok(if self.over { Turn::Over } else { Turn::Idle })
    }

    fn on_event(&mut self, event: &mut HostEvent, _: &mut Host, _: ControllerId) {
        let link = match event {
            HostEvent::DiscoveryLogChanged { .. } | HostEvent::Ready { reconnected: true, .. } => {
                Link::Changed
            }
            HostEvent::Lost { error, .. } => Link::Lost(error.clone()),
            HostEvent::Failed { error, .. } => {
                self.over = true;
                Link::Failed(error.clone())
            }
            HostEvent::Detached { .. } => {
                self.over = true;
                return;
            }
            _ => return,
        };
        // A thread that has stopped needs to know nothing.
        let _stopped = self.link.send(link);
    }
}
