//! Threads that do what takes more than one command.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use fuser::Errno;
use ringfab_fuse::EntryId;
use ringfab_reactor::MailboxSender;

use super::ServerMessage;
use crate::fuse::files::Files;

/// What a helper does: it may wait for I/O.
pub(super) type HelperTask = Box<dyn FnOnce(&Files) -> Result<Vec<u8>, Errno> + Send>;

/// Starts a thread with each of the first pieces of work. They end with it, when what they do has ended.
pub(super) struct Helpers {
    files: Arc<Files>,
    most: usize,
    started: usize,
    messages: MailboxSender<ServerMessage>,
    work: Sender<(EntryId, HelperTask)>,
    queue: Arc<Mutex<Receiver<(EntryId, HelperTask)>>>,
}

impl Helpers {
    pub(super) fn new(files: Arc<Files>, most: usize, messages: MailboxSender<ServerMessage>) -> Self {
        let (work, queue) = channel();
        Self { files, most, started: 0, messages, work, queue: Arc::new(Mutex::new(queue)) }
    }

    /// Has something done for an entry; a [`ServerMessage::Finished`] follows.
    pub(super) fn start(&mut self, entry: EntryId, work: HelperTask) -> io::Result<()> {
        if self.started < self.most {
            match self.start_thread() {
                Ok(()) => self.started += 1,
                Err(error) if self.started == 0 => return Err(error),
                Err(error) => tracing::debug!(%error, "no more threads"),
            }
        }
        self.work.send((entry, work)).map_err(|_| io::Error::other("the queue is gone"))
    }

    fn start_thread(&self) -> io::Result<()> {
        let (files, queue, messages) = (self.files.clone(), self.queue.clone(), self.messages.clone());
        let thread = std::thread::Builder::new().name("fuse-helper".to_owned());
        let started = thread.spawn(move || {
            loop {
                let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok((entry, work)) = next else { return };
                // Without the server nobody waits for it.
                let _gone = messages.send(ServerMessage::Finished(entry, work(&files)));
            }
        });
        started.map(drop)
    }
}
