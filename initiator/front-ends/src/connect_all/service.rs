//! A subsystem that is attached, with its front end on a thread of its own.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use anyhow::{Result, anyhow, bail};
use nix::sys::signal::Signal;
use ringfab_initiator::Url;
use ringfab_initiator::blocking::Controller;
use ringfab_initiator::discovery::ShownPaths;

use super::place::Place;
use super::subsystems::{Handle, Offer, Told};
use crate::fuse::{self, FuseArgs};
use crate::interrupt::Interrupt;
use crate::nbd::{self, NbdArgs};
use crate::options::{ConnectArgs, Tuning};

/// Threads of each mount that wait for I/O: there may be many mounts.
const FUSE_THREADS: u16 = 4;
/// Signals that a front end understands: the first one asks for its end, the second one is in a hurry.
const SIGNALS_MAX: u32 = 2;

/// How subsystems are attached.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) tuning: Tuning,
    pub(super) place: Place,
    pub(super) read_only: bool,
}

/// A front end that runs.
pub(super) struct Service {
    interrupt: Interrupt,
    signals: u32,
    tuning: Tuning,
    paths: ShownPaths,
    /// Once it serves.
    controller: Arc<OnceLock<Controller>>,
    thread: JoinHandle<()>,
}

impl Service {
    /// Attaches a subsystem at all of its addresses: each is a path, and one that works is enough.
    pub(super) fn start(
        settings: Settings,
        nqn: &str,
        urls: Vec<Url>,
        tell: impl Fn(Told) + Send + 'static,
    ) -> Result<Self> {
        let path = settings.place.of(nqn)?;
        let interrupt = Interrupt::idle();
        let (tuning, paths) = (settings.tuning.clone(), ShownPaths::new(urls.clone()));
        let controller = Arc::default();
        let run = Run {
            settings,
            path,
            interrupt: interrupt.clone(),
            controller: Arc::clone(&controller),
            tell: Box::new(tell),
        };
        let thread = std::thread::Builder::new().name("subsystem".to_owned());
        let thread = thread.spawn(move || {
            let mut end = EndTold { ended: Some(Err(anyhow!("its thread panicked"))), run: &run };
            end.ended = Some(run.attach(&urls));
        })?;
        Ok(Self { interrupt, signals: 0, tuning, paths, controller, thread })
    }
}

impl Handle for Service {
    fn signal(&mut self, signal: Signal) {
        if self.signals < SIGNALS_MAX {
            self.signals += 1;
            self.interrupt.raise(signal);
        }
    }

    fn is_ending(&self) -> bool {
        self.signals > 0
    }

    fn follow(&mut self, urls: &[Url]) {
        // What discovery shows meanwhile is told again.
        let Some(controller) = self.controller.get() else { return };
        let as_given = |url: &Url| ConnectArgs::new(url.clone(), self.tuning.clone()).address();
        self.paths.keep(controller, &urls.iter().map(as_given).collect::<Vec<_>>());
    }

    fn join(self) {
        // A panic was told, too.
        let _panic = self.thread.join();
    }
}

/// The thread's own part.
struct Run {
    settings: Settings,
    path: PathBuf,
    interrupt: Interrupt,
    controller: Arc<OnceLock<Controller>>,
    tell: Box<dyn Fn(Told) + Send>,
}

/// Tells the end of a thread, however it ends.
struct EndTold<'a> {
    run: &'a Run,
    ended: Option<Result<()>>,
}

impl Drop for EndTold<'_> {
    fn drop(&mut self) {
        if let Some(ended) = self.ended.take() {
            (self.run.tell)(Told::Ended(ended));
        }
    }
}

impl Run {
    fn attach(&self, urls: &[Url]) -> Result<()> {
        let Some((first, further)) = urls.split_first() else {
            bail!("it has no address that this host can use");
        };
        let ended = self.serve(first, further);
        if self.interrupt.is_interrupted() {
            // What an end that was asked for brings about at a target that is away is no failure.
            return ended.or_else(|error| {
                tracing::debug!("ended as asked: {error:#}");
                Ok(())
            });
        }
        ended
    }

    fn serve(&self, url: &Url, further: &[Url]) -> Result<()> {
        let connect = ConnectArgs::new(url.clone(), self.settings.tuning.beside(further));
        let (path, read_only) = (self.path.clone(), self.settings.read_only);
        let tell = |controller: &Controller, at: String, disks: Vec<String>| {
            // Nobody else sets it.
            let _first = self.controller.set(controller.clone());
            (self.tell)(Told::Serving(Offer { url: url.to_string(), at, disks }));
        };
        match self.settings.place {
            Place::Nbd(_) => {
                let args = NbdArgs::at(connect, path, read_only);
                nbd::serve_until(&args, &self.interrupt, |controller, uri, exports| {
                    let entry = args.register(controller, uri);
                    tell(
                        controller,
                        uri.to_owned(),
                        exports.iter().map(|export| export.name.clone()).collect(),
                    );
                    Ok(entry)
                })
            }
            Place::Fuse(_) => {
                let args = FuseArgs::at(connect, path.clone(), read_only, FUSE_THREADS);
                fuse::serve_until(&args, &self.interrupt, |controller, paths| {
                    let entry = args.register(controller);
                    tell(controller, path.to_string_lossy().into_owned(), paths.to_vec());
                    Ok(entry)
                })
            }
        }
    }
}
