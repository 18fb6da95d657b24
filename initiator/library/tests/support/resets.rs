//! What the controller tells of lost paths: its instance, and the resets of others that it is asked for.

use ringfab_spec::log::{
    ControllerInstance, CrossControllerResetEntry, CrossControllerResetFlags, CrossControllerResetStatus,
    LogId, LostHostEntry, LostPathsHeader,
};
use ringfab_spec::{IntoBytes, Status, SubmissionEntry};

/// How it answers a Cross-Controller Reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reset {
    /// It is done already.
    #[default]
    AtOnce,
    /// It has begun.
    Begun,
    /// Not yet.
    Withheld,
    Refused(Status),
}

/// Lost paths, as this controller knows of them.
#[derive(Debug, Default)]
pub(crate) struct LostPaths {
    /// Controller Instance Uniquifier and Random Number; none has a uniquifier of zero.
    pub(crate) instance: (u8, u64),
    /// Resets at once (CCRL).
    pub(crate) resets_max: u8,
    pub(crate) reset: Reset,
    /// The instances that it was asked to reset.
    pub(crate) asked: Vec<ControllerInstance>,
    /// Its Cross-Controller Reset log.
    pub(crate) log: Vec<CrossControllerResetEntry>,
    /// The log specific parameters that the log was read with.
    pub(crate) read_with: Vec<u8>,
    /// Its Lost Host Communication log.
    pub(crate) lost: Vec<LostHostEntry>,
}

impl LostPaths {
    /// It has an instance, and resets others.
    pub(crate) fn known(uniquifier: u8) -> Self {
        Self { instance: (uniquifier, u64::from(uniquifier) << 40), resets_max: 4, ..Self::default() }
    }

    /// Identify Controller.
    pub(crate) fn fill(&self, data: &mut [u8]) {
        data[135] = self.instance.0;
        data[136..144].copy_from_slice(&self.instance.1.to_le_bytes());
        data[1807] = self.resets_max;
        if self.instance.0 != 0 {
            // OAES, bits 20 and 21.
            data[94] |= 0x30;
        }
    }

    /// What has become of a reset that it was asked for last.
    pub(crate) fn note(&mut self, status: CrossControllerResetStatus) {
        let asked = self.asked.last().expect("it was asked");
        let mut entry = CrossControllerResetEntry::zeroed();
        (entry.icid, entry.ciu, entry.status) = (asked.cntlid.into(), asked.ciu, status);
        entry.flags = CrossControllerResetFlags::default().with_validated(true);
        self.log.push(entry);
    }

    /// One of its log pages, if it is one.
    pub(crate) fn page(&mut self, entry: &SubmissionEntry) -> Option<Vec<u8>> {
        let mut page = match LogId(entry.lid()) {
            LogId::CROSS_CONTROLLER_RESET => {
                self.read_with.push((entry.cdw10.get() >> 8) as u8 & 0x7f);
                let log = std::mem::take(&mut self.log);
                [LostPathsHeader::new(log.len() as u16).as_bytes(), log.as_bytes()].concat()
            }
            LogId::LOST_HOST_COMMUNICATION => {
                [LostPathsHeader::new(self.lost.len() as u16).as_bytes(), self.lost.as_bytes()].concat()
            }
            _ => return None,
        };
        page.resize(entry.log_length() as usize, 0);
        Some(page)
    }
}
