//! What comes from the server: heads of replies into staging memory, and what was read to where it belongs, as far as
//! it is not in the staging memory already.

use ringfab_memory::SharedBuffer;
use ringfab_proto::nbd::{ReplyHead, Violation};
use ringfab_reactor::ReceiveOp;

/// Bytes of staging memory. What lies in it of a read is copied; the rest is received in place.
pub(crate) const STAGING_BYTES: usize = 64 << 10;

/// Where answers are long, no more is received behind one of them than heads need: to receive once more costs less than
/// to copy this much.
const LONG_BYTES: u32 = 32 << 10;
const HEADS_BYTES: usize = 512;

/// The replies as far as they have come.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    /// What of the staging memory was not looked at yet.
    start: usize,
    end: usize,
    content: Content,
    /// How long the last answer with data was.
    last_length: u32,
    /// Bytes that were copied to where they belong.
    copied: u64,
}

#[derive(Debug, Default)]
enum Content {
    /// A head comes next.
    #[default]
    Head,
    /// Bytes of a read.
    Data(Data),
    /// Bytes that nobody needs: the text of an error.
    Skipped { left: usize },
}

/// Bytes of a read that follow a head.
#[derive(Debug)]
pub(crate) struct Data {
    pub(crate) cookie: u64,
    pub(crate) buffer: SharedBuffer,
    /// Where the next of them goes.
    pub(crate) at: usize,
    pub(crate) left: usize,
    /// How many they are in all.
    pub(crate) length: u32,
    /// Whether the reply ends with them.
    pub(crate) done: bool,
}

/// What has come as a whole.
#[derive(Debug)]
pub(crate) enum Arrived {
    Head(ReplyHead),
    /// So many bytes of a read are where they belong.
    Data {
        cookie: u64,
        length: u32,
        done: bool,
    },
}

impl Inbound {
    /// Aims a receive at what comes next.
    pub(crate) fn aim(&mut self, receive: &mut ReceiveOp) {
        let unread = self.end - self.start;
        receive.staging_mut().copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, unread);
        let direct = match &self.content {
            Content::Data(data) => Some((data.buffer.clone(), data.at, data.left)),
            Content::Head | Content::Skipped { .. } => None,
        };
        let room = if self.last_length >= LONG_BYTES { HEADS_BYTES } else { STAGING_BYTES };
        let window_end = (unread + room).min(receive.staging().len());
        receive.set_target(direct, unread, window_end);
    }

    /// Bytes that were copied since this was asked last.
    pub(crate) fn take_copied(&mut self) -> u64 {
        std::mem::take(&mut self.copied)
    }

    /// A receive that was [aimed](Self::aim) here has taken bytes.
    pub(crate) fn received(&mut self, receive: &mut ReceiveOp) {
        let placed = receive.direct_received();
        self.end += receive.staging_received();
        drop(receive.take_direct());
        if let Content::Data(data) = &mut self.content {
            (data.at, data.left) = (data.at + placed, data.left - placed);
        }
    }

    /// The next that has come as a whole; none when more has to come first.
    ///
    /// # Errors
    /// [`Violation`]: nothing that follows can be trusted.
    pub(crate) fn next(&mut self, staging: &[u8]) -> Result<Option<Arrived>, Violation> {
        loop {
            let unread = &staging[self.start..self.end];
            match &mut self.content {
                Content::Head => {
                    let Some((head, bytes)) = ReplyHead::parse(unread)? else { return Ok(None) };
                    self.start += bytes;
                    if let ReplyHead::Error { rest, .. } = head {
                        self.content = Content::Skipped { left: rest as usize };
                    }
                    return Ok(Some(Arrived::Head(head)));
                }
                Content::Skipped { left } => {
                    let skipped = unread.len().min(*left);
                    self.start += skipped;
                    *left -= skipped;
                    if *left > 0 {
                        return Ok(None);
                    }
                    self.content = Content::Head;
                }
                Content::Data(data) => {
                    let here = unread.len().min(data.left);
                    data.buffer.write_at(data.at, &unread[..here]);
                    self.copied += here as u64;
                    self.start += here;
                    (data.at, data.left) = (data.at + here, data.left - here);
                    if data.left > 0 {
                        return Ok(None);
                    }
                    let arrived = Arrived::Data { cookie: data.cookie, length: data.length, done: data.done };
                    self.content = Content::Head;
                    return Ok(Some(arrived));
                }
            }
        }
    }

    /// These bytes follow the head that came last.
    pub(crate) fn expect(&mut self, data: Data) {
        self.last_length = data.length;
        self.content = Content::Data(data);
    }
}
