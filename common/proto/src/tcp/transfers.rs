//! The controller's side of R2T: which data may come from the host.

use ringfab_spec::tcp::{DataHeader, field};

use super::error::Violation;

/// A transfer from the host that was asked for.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    cid: u16,
    /// First byte, in the command's data.
    start: u32,
    length: u32,
    received: u32,
    /// Whether the digests of all data so far were right.
    intact: bool,
    live: bool,
}

/// The transfers of a connection, by tag. A tag of the host becomes one only in [`Transfers::accept`].
#[derive(Debug)]
pub(super) struct Transfers {
    slots: Box<[Transfer]>,
    free: Vec<u16>,
}

impl Transfers {
    pub(super) fn new(count_max: u16) -> Self {
        let none = Transfer { cid: 0, start: 0, length: 0, received: 0, intact: true, live: false };
        Self { slots: vec![none; usize::from(count_max)].into(), free: (0..count_max).rev().collect() }
    }

    /// Allows `length` bytes of a command's data from `start` on; `None` when as many are outstanding as may.
    pub(super) fn begin(&mut self, cid: u16, start: u32, length: u32) -> Option<u16> {
        let tag = self.free.pop()?;
        let live = Transfer { cid, start, length, received: 0, intact: true, live: true };
        self.slots[usize::from(tag)] = live;
        Some(tag)
    }

    /// Checks the header of `data_bytes` of data. Returns their tag, and their offset from the start of the transfer.
    pub(super) fn accept(&mut self, header: &DataHeader, data_bytes: u32) -> Result<(u16, u32), Violation> {
        let tag = header.ttag.get();
        let transfer = self.slots.get_mut(usize::from(tag)).filter(|transfer| transfer.live);
        let transfer = transfer.ok_or(Violation::field(field::TTAG, "data for a tag that asked for none"))?;
        if header.cccid.get() != transfer.cid {
            return Err(Violation::field(field::CCCID, "data for another command than the tag's"));
        }
        if header.datal.get() != data_bytes || data_bytes == 0 {
            return Err(Violation::field(field::LENGTH, "a data length that the PDU does not have"));
        }
        let (first, start) = (u64::from(header.datao.get()), u64::from(transfer.start));
        if first < start || first + u64::from(data_bytes) > start + u64::from(transfer.length) {
            return Err(Violation::range("data beside those that were asked for"));
        }
        if first != start + u64::from(transfer.received) {
            return Err(Violation::sequence("data that do not follow those before"));
        }
        let left = transfer.length - transfer.received;
        if header.ch.flags.last() != (data_bytes == left) {
            return Err(Violation::field(field::FLAGS, "LAST_PDU elsewhere than at the end of a transfer"));
        }
        let offset = transfer.received;
        transfer.received += data_bytes;
        Ok((tag, offset))
    }

    /// A PDU's data are complete. At the end of the transfer: whether all of it was intact.
    pub(super) fn end_of_data(&mut self, tag: u16, intact: bool) -> Option<bool> {
        let transfer = &mut self.slots[usize::from(tag)];
        transfer.intact &= intact;
        if transfer.received < transfer.length {
            return None;
        }
        transfer.live = false;
        self.free.push(tag);
        Some(self.slots[usize::from(tag)].intact)
    }
}
