//! The transmission phase: what a client has asked for, and how far each request has come.

use std::collections::VecDeque;

use ringfab_proto::nbd::{Command, none_chunk, simple_reply, status_chunk};
use ringfab_reactor::SendBatch;

use super::super::negotiation::BASE_ALLOCATION_ID;
use super::buffers::BufferQuota;
use super::outbound::push_error;
use super::requests::{Outstanding, REQUESTS_MAX, Requests, WINDOW};

/// A reply that can be sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reply {
    /// A part of a read's data.
    Data { slot: u16, part: u32 },
    /// The end of a request, with or without success.
    End { slot: u16 },
}

/// The requests of a client, from their heads to their replies.
pub(super) struct Transmission {
    pub(super) requests: Requests,
    /// Requests with commands to issue, in order.
    pub(super) pending: VecDeque<u16>,
    /// Commands outstanding.
    pub(super) commands: usize,
    pub(super) buffers: BufferQuota,
    pub(super) replies: VecDeque<Reply>,
    /// Whether replies to reads are structured.
    pub(super) structured: bool,
}

impl Transmission {
    pub(super) fn new() -> Self {
        Self {
            requests: Requests::new(),
            pending: VecDeque::with_capacity(REQUESTS_MAX),
            commands: 0,
            buffers: BufferQuota::default(),
            replies: VecDeque::with_capacity(REQUESTS_MAX * (WINDOW + 1)),
            structured: false,
        }
    }

    /// Whether every request has its reply.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.replies.is_empty()
    }

    /// Begins and answers nothing more. Commands in flight end by themselves.
    pub(super) fn abandon(&mut self) {
        self.pending.clear();
        self.replies.clear();
    }

    /// A command of a request begins.
    pub(super) fn begin_command(&mut self, slot: u16) -> &mut Outstanding {
        self.commands += 1;
        let entry = self.requests.get(slot);
        entry.in_flight += 1;
        entry
    }

    /// A command of a request has ended.
    pub(super) fn end_command(&mut self, slot: u16) -> &mut Outstanding {
        self.commands -= 1;
        let entry = self.requests.get(slot);
        entry.in_flight -= 1;
        entry
    }

    /// Another thread has done what a request had it do.
    pub(super) fn end_chore(&mut self, slot: u16) {
        self.end_command(slot).chores -= 1;
    }

    /// Tells the end of a request when nothing of it is left to do. A read that succeeded ends with its last part.
    pub(super) fn finish_if_done(&mut self, slot: u16) {
        let entry = self.requests.get(slot);
        let read = entry.request.command == Command::Read;
        if entry.in_flight > 0 || !entry.complete || (read && entry.failure.is_none()) {
            return;
        }
        // A command that was refused ends while its request is still being issued.
        if self.pending.contains(&slot) {
            return;
        }
        if read && entry.is_ordered(self.structured) {
            self.forget_parts(slot);
        }
        self.replies.push_back(Reply::End { slot });
    }

    /// Drops the parts of a read that failed and is answered as a whole.
    fn forget_parts(&mut self, slot: u16) {
        for index in 0..WINDOW {
            if let Some(buffer) = self.requests.get(slot).parts[index].take() {
                let bytes = buffer.len() as u32;
                drop(buffer);
                self.buffers.put_back(bytes);
            }
        }
    }

    /// Hands parts to the reply as far as they follow each other. A reply begins only when as much is there as can be
    /// at once, so that the error of a read that is not extremely long can be told.
    pub(super) fn hand_over_in_order(&mut self, slot: u16, most: u32, block: u32) {
        let entry = self.requests.get(slot);
        let parts = entry.covered(block).div_ceil(most);
        if !entry.begun {
            let first = (parts as usize).min(WINDOW);
            entry.begun = entry.parts[..first].iter().all(Option::is_some);
        }
        if !entry.begun {
            return;
        }
        let issued = entry.issued.div_ceil(most);
        while entry.ordered_next < issued && entry.parts[entry.ordered_next as usize % WINDOW].is_some() {
            self.replies.push_back(Reply::Data { slot, part: entry.ordered_next });
            entry.ordered_next += 1;
        }
    }

    /// Sends the end of a request, and forgets it.
    pub(super) fn push_end(&mut self, batch: &mut SendBatch, slot: u16) {
        let Outstanding { request, failure, extents, .. } = self.requests.remove(slot);
        match failure {
            None if request.command == Command::BlockStatus => {
                batch.push_bytes(&status_chunk(request.cookie, BASE_ALLOCATION_ID, extents.len()));
                extents.iter().for_each(|extent| batch.push_bytes(&extent.to_bytes()));
            }
            Some(failure) if self.structured => push_error(batch, request.cookie, failure),
            None if self.structured && request.command == Command::Read => {
                batch.push_bytes(&none_chunk(request.cookie));
            }
            failure => {
                let error = failure.map(|failure| failure.errno);
                batch.push_bytes(&simple_reply(error, request.cookie));
            }
        }
    }
}
