//! What takes long when a queue authenticates, without blocking the engine: reading keys, and exponentiation.

use std::io;
use std::sync::Arc;

use ringfab_auth::Computation;

use crate::authentication::Keys;
use crate::messages::{Done, Mailbox, Message, Worked};
use crate::request::ControllerId;

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

/// Does a task of a controller on a thread of its own, which sends what comes of it to `mailbox`. The thread may
/// outlive whoever wanted it; it holds nothing but the mailbox. A path has one task at a time.
///
/// Where there are to be no threads it is done here, as part of the turn.
pub(crate) fn start(
    task: Task,
    controller: ControllerId,
    number: u32,
    mailbox: &Mailbox,
    threads: bool,
) -> io::Result<()> {
    let mailbox = mailbox.clone();
    let work = move || {
        let done = task.run();
        if !mailbox.send(Message::Worked(Worked { controller, task: number, done })) {
            tracing::debug!("the host ended before an authentication was computed");
        }
    };
    if threads {
        std::thread::Builder::new().name("authenticate".to_owned()).spawn(work).map(drop)
    } else {
        work();
        Ok(())
    }
}
