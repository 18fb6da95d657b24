//! How much of the namespaces is in use, as the controller says (Namespace Utilization, NUSE).
//!
//! A controller that does not know says that all is. It tells nobody when the number changes, so it is asked again when
//! somebody wants to know. One thread at a time asks. `df` waits for it, but not for long: a target that is away must
//! not hold it up. Attributes of files do not wait. They have what was known before.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ringfab_initiator::blocking::Controller;
use ringfab_spec::FromBytes as _;
use ringfab_spec::identify::IdentifyNamespace;

/// How long what is known is good enough.
const FRESH: Duration = Duration::from_secs(1);
/// How long somebody waits for newer numbers.
const PATIENCE: Duration = Duration::from_millis(500);

/// What is known of the namespaces of a controller.
pub(super) struct Usage {
    controller: Controller,
    known: Arc<(Mutex<Known>, Condvar)>,
}

#[derive(Debug, Default)]
struct Known {
    /// Blocks in use, by the namespace's identifier.
    blocks: HashMap<u32, u64>,
    /// When that was.
    since: Option<Instant>,
    /// Whether a thread is asking.
    asking: bool,
}

impl Usage {
    /// Nothing is known so far.
    pub(super) fn new(controller: Controller) -> Self {
        Self { controller, known: Arc::default() }
    }

    /// Asks for newer numbers where those that are known are old, and waits for a while until they are there.
    pub(super) fn refresh(&self) {
        let mut guard = self.ask();
        let until = Instant::now() + PATIENCE;
        while guard.asking {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            guard = self.known.1.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Blocks of a namespace that are in use, as far as is known: all of `blocks` where nothing is. Newer numbers are
    /// asked for where they are old, for the next one.
    pub(super) fn blocks(&self, nsid: u32, blocks: u64) -> u64 {
        self.ask().blocks.get(&nsid).map_or(blocks, |used| blocks.min(*used))
    }

    /// Has a thread ask, unless one does or the numbers are new.
    fn ask(&self) -> MutexGuard<'_, Known> {
        let mut known = locked(&self.known.0);
        if known.asking || known.since.is_some_and(|since| since.elapsed() < FRESH) {
            return known;
        }
        let (controller, shared) = (self.controller.clone(), self.known.clone());
        let thread = std::thread::Builder::new().name("fuse-usage".to_owned());
        let started = thread.spawn(move || {
            let blocks = ask_controller(&controller);
            // The last handle of the controller waits for its end.
            drop(controller);
            let mut known = locked(&shared.0);
            (known.asking, known.since) = (false, Some(Instant::now()));
            known.blocks.extend(blocks);
            shared.1.notify_all();
        });
        match started {
            Ok(_) => known.asking = true,
            Err(error) => tracing::debug!(%error, "no thread to ask how much is in use"),
        }
        known
    }
}

/// What the controller says of each namespace, of those for which it says something.
fn ask_controller(controller: &Controller) -> Vec<(u32, u64)> {
    let ask = |nsid| {
        let data = controller.identify_namespace(nsid).ok()?;
        let (page, _) = IdentifyNamespace::ref_from_prefix(&data).ok()?;
        // It is zero, with all else, when the namespace is gone or cannot be reached.
        (page.nsze.get() > 0).then(|| (nsid, page.nuse.get()))
    };
    controller.namespaces().iter().filter_map(|namespace| ask(namespace.nsid)).collect()
}

fn locked(mutex: &Mutex<Known>) -> MutexGuard<'_, Known> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
