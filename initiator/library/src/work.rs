//! What takes long when a queue authenticates, without blocking the engine: reading keys, and exponentiation.

use std::sync::Arc;

use ringfab_auth::Computation;

use crate::authentication::Keys;
use crate::error::Cause;
use crate::messages::{Done, Message, Worked};
use crate::request::PathHandle;
use crate::resources::Resources;

/// Something for a worker.
#[derive(Debug)]
pub(crate) enum Task {
    /// Read the keys, for a host and a subsystem with these names.
    ReadKeys { keys: Arc<Keys>, host: String, subsystem: String },
    /// An exponentiation.
    Compute(Computation),
}

impl Task {
    fn run(self) -> Done {
        match self {
            Self::ReadKeys { keys, host, subsystem } => Done::Keys(keys.parties(&host, &subsystem)),
            Self::Compute(computation) => Done::Computed(computation.run()),
        }
    }
}

/// Does a task of a path on a thread of its own, which sends what comes of it to the host. The thread may
/// outlive whoever wanted it; it holds nothing but the mailbox. A path has one task at a time.
///
/// Where there are to be no threads it is done here, as part of the turn.
pub(crate) fn start(task: Task, path: PathHandle, number: u32, resources: &Resources) -> Result<(), Cause> {
    let mailbox = resources.mailbox.clone();
    let work = move || {
        let done = task.run();
        if !mailbox.send(Message::Worked(Worked { path, task: number, done })) {
            tracing::debug!("the host ended before an authentication was computed");
        }
    };
    if !resources.threads {
        work();
        return Ok(());
    }
    let started = std::thread::Builder::new().name("authenticate".to_owned()).spawn(work);
    started.map(drop).map_err(|error| Cause::Local(format!("no thread to authenticate: {error}")))
}
