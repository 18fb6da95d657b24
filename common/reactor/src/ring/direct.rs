//! Receives and sends that have not been given to the ring yet, and may never be.
//!
//! A receive in the ring costs more than its system call: the kernel first finds nothing, waits at the socket, is woken
//! by the sender, and receives in another call. A loop that spins can try the few receives of busy sockets itself. It
//! gives them to the ring when it goes to sleep. A lone send is made directly, too: through the ring it would take a
//! system call and two queues.

use std::io;
use std::os::fd::AsRawFd;

use super::in_flight::InFlight;
use super::operations::{OperationKind, Outcome};
use crate::SendBatch;

/// With more receives than this a round of tries takes longer than the ring does.
const TRIED_MAX: usize = 4;

impl InFlight {
    /// Before a turn: if the loop spins, makes a lone send, and has a few receives tried. Everything else goes to the
    /// ring, receives last, so that what a peer waits for leaves first.
    pub(super) fn sort_transfers(&mut self, spins: bool) {
        match self.sends[..] {
            [] => {}
            [name] if spins && !self.queues.has_submissions() => {
                self.sends.clear();
                match self.try_send(name) {
                    Some(outcome) => self.finish(name, outcome),
                    None => self.push(name),
                }
            }
            _ => self.queue_sends(),
        }
        if !spins || self.receives.len() > TRIED_MAX {
            self.queue_receives();
        }
    }

    /// Makes the sends of bytes that are lent. The rest of one that a socket did not take as a whole waits for the next
    /// turn, when it may go to the ring.
    pub(crate) fn send_borrowed(&mut self) {
        if self.draining {
            return;
        }
        let mut index = 0;
        while let Some(name) = self.sends.get(index).copied() {
            let borrowed = self.batch(name).is_some_and(|batch| batch.holds_borrowed());
            match borrowed.then(|| self.try_send(name)).flatten() {
                Some(outcome) if self.count_part(name, outcome) => index += 1,
                Some(outcome) => {
                    self.sends.remove(index);
                    self.finish(name, outcome);
                }
                None => index += 1,
            }
        }
    }

    fn batch(&mut self, name: u64) -> Option<&mut SendBatch> {
        match &mut self.operations.get_mut(name)?.held {
            OperationKind::Send { batch, .. } => Some(batch),
            _ => None,
        }
    }

    /// Counts what a send did, if that was not all of it. Returns whether something is left to send.
    fn count_part(&mut self, name: u64, outcome: Outcome) -> bool {
        let (Some(batch), Ok(sent)) = (self.batch(name), usize::try_from(outcome.result)) else {
            return false;
        };
        let part = sent > 0 && sent < batch.unsent_bytes();
        if part {
            batch.advance(sent);
        }
        part
    }

    /// Gives the sends that were started to the ring.
    pub(super) fn queue_sends(&mut self) {
        for index in 0..self.sends.len() {
            self.push(self.sends[index]);
        }
        self.sends.clear();
    }

    /// What the socket took of a send, if it did not have to wait.
    fn try_send(&mut self, name: u64) -> Option<Outcome> {
        const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let operation = self.operations.get_mut(name)?;
        let OperationKind::Send { batch, .. } = &mut operation.held else { return None };
        let socket = self.descriptors.fd(operation.descriptor)?;
        let (fd, message) = (socket.as_raw_fd(), batch.prepare());
        let sent = if let Some(range) = batch.only_piece() {
            // SAFETY: the range is memory that the batch owns or has a shared buffer of, which lives beyond this call.
            unsafe { libc::send(fd, range.iov_base, range.iov_len, FLAGS) }
        } else {
            // SAFETY: as above, for each of the ranges that the message describes.
            unsafe { libc::sendmsg(fd, message, FLAGS) }
        };
        Some(Outcome { result: result_of(sent)?, more: false, left_data: false })
    }

    /// Gives the receives that were started to the ring.
    pub(super) fn queue_receives(&mut self) {
        for index in 0..self.receives.len() {
            self.push(self.receives[index]);
        }
        self.receives.clear();
    }

    /// Tries the receives that are not in the ring. Returns whether one has ended.
    pub(super) fn try_receives(&mut self) -> bool {
        let mut ended = false;
        let mut index = 0;
        while let Some(name) = self.receives.get(index).copied() {
            match self.try_receive(name) {
                Some(outcome) => {
                    self.receives.remove(index);
                    self.finish(name, outcome);
                    ended = true;
                }
                None => index += 1,
            }
        }
        ended
    }

    /// What came of a receive, if it did not have to wait.
    fn try_receive(&mut self, name: u64) -> Option<Outcome> {
        let operation = self.operations.get_mut(name)?;
        let OperationKind::Receive { operation: receive, .. } = &mut operation.held else { return None };
        let socket = self.descriptors.fd(operation.descriptor)?;
        let (fd, message) = (socket.as_raw_fd(), receive.prepare());
        let received = if receive.is_plain() {
            let range = receive.vectors[0];
            // SAFETY: the range is memory that the operation owns, which lives beyond this call; a shared buffer
            // promises nothing about who else writes there.
            unsafe { libc::recv(fd, range.iov_base, range.iov_len, libc::MSG_DONTWAIT) }
        } else {
            // SAFETY: as above, for each of the ranges that the message describes.
            unsafe { libc::recvmsg(fd, message, libc::MSG_DONTWAIT) }
        };
        let result = result_of(received)?;
        let left_data = usize::try_from(result) == Ok(receive.capacity());
        Some(Outcome { result, more: false, left_data })
    }
}

/// A call's result in the words of the ring: bytes, or a negated error number. None when it could have done nothing but
/// wait.
fn result_of(returned: isize) -> Option<i32> {
    match i32::try_from(returned) {
        Ok(bytes) if bytes >= 0 => Some(bytes),
        _ => match io::Error::last_os_error().raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) | None => None,
            Some(errno) => Some(-errno),
        },
    }
}
