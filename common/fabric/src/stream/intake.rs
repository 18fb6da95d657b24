//! What a receive has brought: into its place, and into the staging memory behind it.

use std::cmp::Ordering;
use std::ops::Range;

use ringfab_memory::SharedBuffer;
use ringfab_reactor::{Part, Reactor};

use super::receive_target::ReceiveTarget;
use super::staging::Staging;
use super::{Protocol, Shared};

/// A stream's protocol, and the staging memory that it takes bytes in from.
pub(super) struct Intake<'a, P: Protocol> {
    pub(super) protocol: &'a mut P,
    pub(super) staging: &'a mut Staging,
    pub(super) shared: &'a mut Shared<P>,
    pub(super) reactor: &'a Reactor,
}

impl<P: Protocol> Intake<'_, P> {
    /// Takes in what came: into the place of the receive, and what lies behind it. The shared buffer is let go of
    /// before what may complete the work that it belongs to: all that is expected to go on with it is still missing
    /// before the last part.
    pub(super) fn take_in(mut self, shared_buffer: Option<SharedBuffer>, parts: &[Part]) {
        let mut staged = parts[0].staged.clone();
        if let Some(shared_buffer) = shared_buffer {
            self.placed(&shared_buffer, parts[0].placed.clone());
            for (index, part) in parts.iter().enumerate().skip(1) {
                if part.placed.is_empty() {
                    break;
                }
                self.observe(staged);
                if !self.goes_on(&shared_buffer, part) {
                    staged = self.staging.unplace(&shared_buffer, &parts[index..]);
                    break;
                }
                staged = part.staged.clone();
            }
        }
        self.observe(staged);
    }

    fn placed(&mut self, shared_buffer: &SharedBuffer, range: Range<usize>) {
        self.shared.counters.received_direct_bytes += range.len() as u64;
        self.protocol.placed(shared_buffer, range);
    }

    /// Adds what is in the staging memory to what the protocol has not taken in.
    fn observe(&mut self, staged: Range<usize>) {
        self.staging.unread.end = staged.end;
        if let Some(receive) = &self.staging.receive {
            self.protocol.observe(self.shared, self.reactor, &receive.staging()[staged]);
        }
    }

    /// Whether what the protocol wants next is what came into the shared buffer here, and ends where that does unless
    /// nothing lies behind it. It is taken in then.
    fn goes_on(&mut self, shared_buffer: &SharedBuffer, part: &Part) -> bool {
        let Some(receive) = &self.staging.receive else { return false };
        let Ok(ReceiveTarget::Direct(place)) =
            self.protocol.receive(self.shared, receive.staging(), &mut self.staging.unread)
        else {
            return false;
        };
        let first = |shared_buffer: &SharedBuffer, offset| shared_buffer.io_pointer(offset, 1);
        let begins = first(&place.shared_buffer, place.offset) == first(shared_buffer, part.placed.start);
        let ends = match part.placed.len().cmp(&place.length) {
            Ordering::Equal => true,
            Ordering::Less => part.staged.is_empty(),
            Ordering::Greater => false,
        };
        let goes_on = begins && ends && self.staging.unread.is_empty();
        if goes_on {
            self.placed(shared_buffer, part.placed.clone());
        }
        goes_on
    }
}
