//! The host's side: the commands outstanding, what each may be sent and asked for.

use ringfab_spec::tcp::{DataHeader, ReadyToTransfer, field};
use thiserror::Error;

use super::error::Violation;
use super::tx::Source;

/// The data of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandData<H> {
    /// It has none.
    None,
    /// They travel in its capsule.
    Capsule(Source<H>),
    /// The controller asks for them.
    ToController(Source<H>),
    /// The controller sends them into this memory, all of them; they come for
    /// [`Place::Command`](super::Place::Command).
    ToHost(Source<H>),
    /// The same for a command whose length is an allocation length: the controller may send less than there is room
    /// for, and [`Event::Response`](super::Event::Response) says how much it was.
    AllocatedToHost(Source<H>),
}

/// Why a command was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SubmitError {
    /// Its slot has a command outstanding.
    #[error("the slot is in use")]
    Busy,
    /// The connection has ended.
    #[error("the connection has ended")]
    Ended,
}

#[derive(Debug)]
enum Transfer<H> {
    None,
    ToController {
        source: Source<H>,
        /// Bytes that the controller has asked for so far.
        requested: u32,
        /// R2Ts whose data have not been sent.
        r2ts: u32,
    },
    ToHost {
        sink: Source<H>,
        received: u32,
        /// The fewest bytes of a command that succeeds.
        least: u32,
        /// LAST_PDU has come.
        ended: bool,
    },
}

/// What ends with the answer to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answered {
    /// Whether the digests of its data were right.
    pub(super) intact: bool,
    /// Bytes of data that have come.
    pub(super) received: u32,
    /// Whether data of it may wait to be sent.
    pub(super) unsent: bool,
}

#[derive(Debug)]
struct Outstanding<H> {
    cid: u16,
    transfer: Transfer<H>,
    intact: bool,
}

impl<H: Clone> Transfer<H> {
    fn to_host(sink: &Source<H>, least: u32) -> Self {
        Self::ToHost { sink: sink.clone(), received: 0, least, ended: false }
    }
}

/// The commands of a connection, by the low bits of their identifiers.
#[derive(Debug)]
pub(super) struct Commands<H> {
    slots: Box<[Option<Outstanding<H>>]>,
    mask: u16,
    r2ts_max: u32,
}

impl<H: Clone> Commands<H> {
    pub(super) fn new(count_max: u16, r2ts_max: u32) -> Self {
        let count = usize::from(count_max).max(1).next_power_of_two();
        Self { slots: (0..count).map(|_| None).collect(), mask: (count - 1) as u16, r2ts_max }
    }

    /// Notes a command, with what it may be asked for later.
    pub(super) fn begin(&mut self, cid: u16, data: &CommandData<H>) -> Result<(), SubmitError> {
        let slot = &mut self.slots[usize::from(cid & self.mask)];
        if slot.is_some() {
            return Err(SubmitError::Busy);
        }
        let transfer = match data {
            CommandData::None | CommandData::Capsule(_) => Transfer::None,
            CommandData::ToController(source) => {
                Transfer::ToController { source: source.clone(), requested: 0, r2ts: 0 }
            }
            CommandData::ToHost(sink) => Transfer::to_host(sink, sink.length),
            CommandData::AllocatedToHost(sink) => Transfer::to_host(sink, 0),
        };
        *slot = Some(Outstanding { cid, transfer, intact: true });
        Ok(())
    }

    fn find(&mut self, cid: u16) -> Option<&mut Outstanding<H>> {
        let slot = self.slots[usize::from(cid & self.mask)].as_mut();
        slot.filter(|outstanding| outstanding.cid == cid)
    }

    /// Checks an R2T. Returns the range that it asks for.
    pub(super) fn request(&mut self, wanted: &ReadyToTransfer) -> Result<Source<H>, Violation> {
        let limit = self.r2ts_max;
        let unknown = Violation::field(field::CCCID, "an R2T for a command that is not outstanding");
        let outstanding = self.find(wanted.cccid.get()).ok_or(unknown)?;
        let Transfer::ToController { source, requested, r2ts } = &mut outstanding.transfer else {
            return Err(Violation::sequence("an R2T for a command that has no data to send"));
        };
        let (offset, length) = (wanted.r2to.get(), wanted.r2tl.get());
        if length == 0 {
            return Err(Violation::field(field::LENGTH, "an R2T for nothing"));
        }
        if offset.checked_add(length).is_none_or(|end| end > source.length) {
            return Err(Violation::range("an R2T beyond the command's data"));
        }
        if offset != *requested {
            return Err(Violation::sequence("an R2T that does not follow those before"));
        }
        if *r2ts >= limit {
            return Err(Violation::limit("more R2Ts outstanding than MAXR2T"));
        }
        *r2ts += 1;
        *requested += length;
        Ok(Source { handle: source.handle.clone(), offset: source.offset + offset, length })
    }

    /// The data that an R2T of a command asked for were sent.
    pub(super) fn served(&mut self, cid: u16) {
        if let Some(Outstanding { transfer: Transfer::ToController { r2ts, .. }, .. }) = self.find(cid) {
            *r2ts -= 1;
        }
    }

    /// Checks the header of `data_bytes` of data to us. Returns the command and their offset.
    pub(super) fn accept(&mut self, header: &DataHeader, data_bytes: u32) -> Result<(u16, u32), Violation> {
        let cid = header.cccid.get();
        let unknown = Violation::field(field::CCCID, "data for a command that is not outstanding");
        let outstanding = self.find(cid).ok_or(unknown)?;
        let Transfer::ToHost { sink, received, ended, .. } = &mut outstanding.transfer else {
            return Err(Violation::sequence("data for a command that expects none"));
        };
        if *ended {
            return Err(Violation::sequence("data after the last"));
        }
        if header.datal.get() != data_bytes || data_bytes == 0 {
            return Err(Violation::field(field::LENGTH, "a data length that the PDU does not have"));
        }
        let end = header.datao.get().checked_add(data_bytes);
        if end.is_none_or(|end| end > sink.length) {
            return Err(Violation::range("data beyond those that the command asked for"));
        }
        if header.datao.get() != *received {
            return Err(Violation::sequence("data that do not follow those before"));
        }
        let flags = header.ch.flags;
        if flags.success() && !flags.last() {
            return Err(Violation::field(field::FLAGS, "SUCCESS without LAST_PDU"));
        }
        let offset = *received;
        *received += data_bytes;
        *ended = flags.last();
        Ok((cid, offset))
    }

    /// The memory for data to us.
    pub(super) fn sink(&self, cid: u16) -> Option<&Source<H>> {
        match self.slots[usize::from(cid & self.mask)].as_ref()? {
            Outstanding { cid: own, transfer: Transfer::ToHost { sink, .. }, .. } if *own == cid => {
                Some(sink)
            }
            _ => None,
        }
    }

    /// A PDU's data are complete.
    pub(super) fn end_of_data(&mut self, cid: u16, intact: bool) {
        if let Some(outstanding) = self.find(cid) {
            outstanding.intact &= intact;
        }
    }

    /// A command is answered.
    pub(super) fn answer(&mut self, cid: u16, success: bool) -> Result<Answered, Violation> {
        let unknown = Violation::field(field::CCCID, "a response to a command that is not outstanding");
        let intact = self.find(cid).ok_or(unknown)?.intact;
        let ended = self.slots[usize::from(cid & self.mask)].take();
        match ended.map(|outstanding| outstanding.transfer) {
            Some(Transfer::ToHost { received, least, .. }) if success && received < least => {
                Err(Violation::sequence("success before all data"))
            }
            Some(Transfer::ToHost { received, .. }) => Ok(Answered { intact, received, unsent: false }),
            Some(Transfer::ToController { r2ts, .. }) => {
                Ok(Answered { intact, received: 0, unsent: r2ts > 0 })
            }
            _ => Ok(Answered { intact, received: 0, unsent: false }),
        }
    }

    /// Lets go of all memory.
    pub(super) fn clear(&mut self) {
        self.slots.fill_with(|| None);
    }
}
