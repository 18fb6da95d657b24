//! Receives that have not been given to the ring yet.
//!
//! A receive in the ring costs more than its system call: the kernel first finds nothing, waits at the socket, is woken by
//! the sender, and needs another call in which it receives at last. While the loop spins there is somebody to look, so it
//! tries the few receives of busy sockets itself, and gives them to the ring when it goes to sleep.

use std::io;
use std::os::fd::AsRawFd;

use super::Ring;
use super::operations::{Held, Outcome};

/// With more receives than this a round of tries takes longer than the ring does.
const TRIED_MAX: usize = 4;

impl Ring {
    /// Before a turn: whether receives are tried in it. Otherwise they go to the ring with everything else, behind it, so
    /// that what a peer waits for leaves first.
    pub(super) fn sort_receives(&mut self) {
        if self.receives.len() > TRIED_MAX || self.spin.time().is_zero() || self.draining {
            self.queue_receives();
        }
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
        let Held::Receive { operation: receive, .. } = &mut operation.held else { return None };
        let socket = self.descriptors.fd(operation.descriptor)?;
        let (fd, message) = (socket.as_raw_fd(), receive.prepare());
        let received = if receive.message.msg_iovlen == 1 {
            let range = receive.vectors[0];
            // SAFETY: the range is memory that the operation owns, which lives beyond this call; a lease promises nothing
            // about who else writes there.
            unsafe { libc::recv(fd, range.iov_base, range.iov_len, libc::MSG_DONTWAIT) }
        } else {
            // SAFETY: as above, for each of the ranges that the message describes.
            unsafe { libc::recvmsg(fd, message, libc::MSG_DONTWAIT) }
        };
        let result = match i32::try_from(received) {
            Ok(bytes) if bytes >= 0 => bytes,
            _ => match io::Error::last_os_error().raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) | None => return None,
                Some(errno) => -errno,
            },
        };
        let left_data = usize::try_from(result) == Ok(receive.capacity());
        Some(Outcome { result, more: false, left_data })
    }
}
