//! The thread of an image's driver: it looks at the image and closes what nobody has any more. Who asks waits for a
//! bounded time; a look that hangs is waited for again, and not begun a second time.

use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ringfab_block::Seen;

use crate::RbdError;
use crate::cluster::User;
use crate::look::Looker;
use crate::native::{Closer, Closing};

/// How long who asks waits for a look. It is a little more than a monitor may take, so that the monitor is named.
const LOOK_LIMIT: Duration = Duration::from_secs(9);

/// What the thread is to do.
enum Errand {
    /// Look at the image.
    Look,
    /// Close an image that nobody has any more.
    Close(Closing),
    /// Nobody asks for looks any more, or the cluster is closed.
    End,
}

/// The thread, as the driver sees it. It ends after the driver, when no core has an image any more.
pub(crate) struct Keeper {
    errands: mpsc::Sender<Errand>,
    looking: Arc<Looking>,
}

/// The look that is under way, and what the last one has found.
#[derive(Default)]
struct Looking {
    state: Mutex<LookState>,
    ended: Condvar,
}

#[derive(Default)]
struct LookState {
    /// Since when one is under way.
    begun: Option<Instant>,
    found: Option<Result<Seen, RbdError>>,
}

impl Keeper {
    /// Starts the thread with the looker that `make` makes; it gets what closes images on that thread.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub(crate) fn start(make: impl FnOnce(Closer) -> Looker) -> io::Result<Self> {
        let (errands, inbox) = mpsc::channel();
        let looking = Arc::<Looking>::default();
        let to_close = errands.clone();
        // The thread is there for as long as somebody can send to it. If it is not, the image stays open.
        let looker = make(Arc::new(move |closing| drop(to_close.send(Errand::Close(closing)))));
        let results = Arc::clone(&looking);
        thread::Builder::new().name("rbd-image".to_owned()).spawn(move || serve(looker, &inbox, &results))?;
        Ok(Self { errands, looking })
    }

    /// Looks at the image, or waits for the look that is under way.
    pub(crate) fn look(&self) -> Result<Seen, RbdError> {
        let mut state = self.looking.state();
        if state.begun.is_none() {
            state.begun = Some(Instant::now());
            // It fails only without the thread, and then nobody answers.
            let _ = self.errands.send(Errand::Look);
        }
        let waited = self.looking.ended.wait_timeout_while(state, LOOK_LIMIT, |state| state.begun.is_some());
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        match (state.begun, &state.found) {
            (None, Some(found)) => found.clone(),
            (begun, _) => Err(RbdError::Silent { time: begun.map_or(LOOK_LIMIT, |begun| begun.elapsed()) }),
        }
    }
}

impl User for Keeper {
    fn let_go(&self) {
        // Without the thread, there is nothing that it has.
        let _ = self.errands.send(Errand::End);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

impl Looking {
    fn state(&self) -> MutexGuard<'_, LookState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, found: Result<Seen, RbdError>) {
        let mut state = self.state();
        *state = LookState { begun: None, found: Some(found) };
        self.ended.notify_all();
    }
}

/// The thread. Each image has a sender, and so has the looker: when all are gone, nothing is left to be done.
fn serve(looker: Looker, inbox: &mpsc::Receiver<Errand>, results: &Looking) {
    let mut looker = Some(looker);
    while let Ok(errand) = inbox.recv() {
        match errand {
            Errand::Look => {
                results.end(looker.as_mut().map_or(Err(RbdError::Closed), Looker::look));
            }
            Errand::Close(closing) => closing.begin(),
            Errand::End => looker.take().into_iter().for_each(|looker| looker.shared.forget_latest()),
        }
    }
}
