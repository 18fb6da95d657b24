//! Messages between the callers' threads and the engine's thread.

use std::ops::Range;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use ringfab_memory::{CallerSource, CallerTarget};
use ringfab_spec::{CompletionEntry, SubmissionEntry};

use super::client::MakeClient;
use crate::authentication::Keys;
use crate::cancel::{CANCEL_POLL, CancelToken};
use crate::error::{ConnectError, IoError};
use crate::namespace::{BlockRange, NamespaceIdentity};
use crate::path_status::PathStatus;
use crate::request::PathId;
use crate::url::Url;

/// To the engine.
pub(super) enum Message {
    /// Run a command.
    Run(Job),
    /// Detach in an orderly way, or at once.
    Leave {
        /// Whether there is time for the orderly way.
        orderly: bool,
    },
    /// Authenticate again, with these keys if there are any.
    Reauthenticate { keys: Option<Keys>, reply: SyncSender<Result<(), ConnectError>> },
    /// Reset the controller. The answer says that it has begun.
    Reset { reply: SyncSender<Result<(), ConnectError>> },
    /// Say how the paths are.
    Paths { reply: SyncSender<Vec<PathStatus>> },
    /// Add a path.
    AddPath { url: Box<Url>, reply: SyncSender<Result<PathId, ConnectError>> },
    /// Remove a path. The answer says that it has begun.
    RemovePath { path: PathId, reply: SyncSender<Result<(), ConnectError>> },
    /// Make a client.
    AddClient(MakeClient),
}

/// What a caller wants done.
pub(super) struct Order {
    pub(super) operation: Operation,
    /// The disk that it is for, if it is for one only.
    pub(super) disk: Option<Arc<NamespaceIdentity>>,
    /// Whether the caller has claimed the blocks that it writes.
    pub(super) claimed: bool,
}

/// A command to run. Dropping it answers it: its caller never waits for a job that an engine has left behind.
pub(super) struct Job {
    pub(super) order: Order,
    /// `None` once it is answered.
    reply: Option<SyncSender<Reply>>,
    /// Held until the command has ended.
    _permit: Permit,
}

impl Job {
    pub(super) fn new(order: Order, reply: SyncSender<Reply>, permit: Permit) -> Self {
        Self { order, reply: Some(reply), _permit: permit }
    }

    /// Answers it.
    pub(super) fn answer(mut self, result: Reply) {
        self.reply(result);
    }

    /// A caller that was cancelled does not listen any more, which is fine.
    fn reply(&mut self, result: Reply) {
        let Some(reply) = self.reply.take() else { return };
        // The caller may lend as much again once it is answered.
        self.order.operation.give_back();
        let dropped = reply.try_send(result).is_err();
        tracing::trace!(dropped, "answered");
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.reply(Err(IoError::NoPath));
    }
}

/// What a command does. The data of I/O is in the caller's memory. Blocks are counted from one.
pub(super) enum Operation {
    /// The `target` is a part of the `length` bytes that are read, and starts `skip` bytes into them.
    Read {
        nsid: u32,
        lba: u64,
        nlb: u32,
        length: usize,
        skip: usize,
        target: CallerTarget,
    },
    Write {
        nsid: u32,
        lba: u64,
        nlb: u32,
        source: CallerSource,
        fua: bool,
    },
    Compare {
        nsid: u32,
        lba: u64,
        nlb: u32,
        source: CallerSource,
    },
    Flush {
        nsid: u32,
    },
    Verify {
        nsid: u32,
        lba: u64,
        nlb: u32,
    },
    WriteZeroes {
        nsid: u32,
        lba: u64,
        nlb: u32,
        deallocate: bool,
    },
    Discard {
        nsid: u32,
        ranges: Vec<BlockRange>,
    },
    AdminRead {
        entry: SubmissionEntry,
        length: usize,
    },
    AdminWrite {
        entry: SubmissionEntry,
        data: Vec<u8>,
    },
}

impl Operation {
    /// Whether it writes blocks for which `is_one` says yes, given a namespace and numbers of blocks.
    pub(super) fn writes_any(&self, mut is_one: impl FnMut(u32, &Range<u64>) -> bool) -> bool {
        match *self {
            Operation::Write { nsid, lba, nlb, .. } | Operation::WriteZeroes { nsid, lba, nlb, .. } => {
                is_one(nsid, &BlockRange { lba, nlb }.blocks())
            }
            Operation::Discard { nsid, ref ranges } => {
                ranges.iter().any(|range| is_one(nsid, &range.blocks()))
            }
            _ => false,
        }
    }

    /// Hands on what was read: into the caller's memory, or to the answer if it is of an admin command.
    pub(super) fn take_data(&self, data: &[u8]) -> Vec<u8> {
        match self {
            Operation::Read { skip, target, .. } => {
                // A caller that was cancelled does not wait for it any more.
                let wanted = target.copy_from(&data[*skip..*skip + target.len()]);
                tracing::trace!(wanted, "read");
                Vec::new()
            }
            _ => data.to_vec(),
        }
    }

    /// Gives the caller its memory back.
    fn give_back(&self) {
        match self {
            Operation::Read { target, .. } => target.give_back(),
            Operation::Write { source, .. } | Operation::Compare { source, .. } => source.give_back(),
            _ => {}
        }
    }
}

/// From the engine.
pub(super) type Reply = Result<Ended, IoError>;

/// How a job has ended without an error.
#[derive(Debug)]
pub(super) enum Ended {
    /// Its command has succeeded.
    Done(Answer),
    /// It was not begun: somebody else has claimed a block that it writes.
    HeldBack,
}

/// The answer to a command.
#[derive(Debug)]
pub(super) struct Answer {
    /// What an admin command has read.
    pub(super) data: Vec<u8>,
    /// The completion of an admin command.
    pub(super) entry: Option<CompletionEntry>,
}

/// Bounds how many commands all callers together have at the engine.
#[derive(Debug)]
pub(super) struct Permits {
    free: Mutex<usize>,
    returned: Condvar,
}

impl Permits {
    pub(super) fn new(count: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::new(count), returned: Condvar::new() })
    }

    /// Waits for a permit, or for the cancellation.
    pub(super) fn acquire(self: &Arc<Self>, cancel: &CancelToken) -> Result<Permit, IoError> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            if cancel.is_cancelled() {
                return Err(IoError::Cancelled);
            }
            let waited =
                self.returned.wait_timeout(free, CANCEL_POLL).unwrap_or_else(PoisonError::into_inner);
            free = waited.0;
        }
        *free -= 1;
        Ok(Permit(Arc::clone(self)))
    }
}

/// The right to have one command at the engine.
pub(super) struct Permit(Arc<Permits>);

impl Drop for Permit {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.returned.notify_one();
    }
}
