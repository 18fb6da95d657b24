//! Sampled commands that were answered and whose answer is on its way: they end when it has been sent.

use std::collections::VecDeque;
use std::sync::Arc;

use ringfab_reactor::Time;

use super::connection::Connection;
use crate::model::IoRecord;
use crate::nvm::Action;
use crate::resources::Resources;
use crate::resources::states::Sample;

/// Answers of sampled commands that are on their way. What is beyond ends when it is answered.
const SENDING_MAX: usize = 16;

/// An answer on its way.
#[derive(Debug)]
struct Sending {
    sample: Sample,
    /// How much the link has sent when it is among it.
    until: u32,
    /// Where its namespace is counted on this core.
    namespace: Option<Arc<IoRecord>>,
}

// What a queue may have of them: docs/memory.md.
const _: () = assert!(size_of::<Sending>() * SENDING_MAX == 1024);

/// The answers of sampled commands, in order.
#[derive(Debug, Default)]
pub(super) struct Samples(VecDeque<Sending>);

impl Samples {
    /// A sampled command was answered.
    #[cold]
    pub(super) fn answered(
        &mut self,
        connection: &Connection,
        resources: &Resources,
        action: Action,
        sample: Sample,
    ) {
        if connection.id == 0 {
            return;
        }
        let namespace = resources.io_of(&action).cloned();
        let sending = Sending { sample, until: connection.link.posted(), namespace };
        if self.0.len() < SENDING_MAX {
            self.0.push_back(sending);
        } else {
            sending.end(connection, resources.states.now());
        }
    }

    /// Something was sent.
    #[inline(always)]
    pub(super) fn sent(&mut self, connection: &Connection, now: Time) {
        if !self.0.is_empty() {
            self.end_sent(connection, now);
        }
    }

    #[cold]
    fn end_sent(&mut self, connection: &Connection, now: Time) {
        while let Some(sending) = self.0.pop_front_if(|sending| connection.link.has_sent(sending.until)) {
            sending.end(connection, now);
        }
    }
}

impl Sending {
    fn end(self, connection: &Connection, now: Time) {
        let timed = self.sample.sent(now);
        if let Some(attached) = &connection.attached {
            attached.record.io().note_timed(&timed);
        }
        if let Some(namespace) = self.namespace {
            namespace.note_timed(&timed);
        }
    }
}
