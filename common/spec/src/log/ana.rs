//! Asymmetric Namespace Access log page (NVM Express Base 2.0, section 5.16.1.13).

use zerocopy::little_endian::{U16, U32, U64};

use crate::macros::{bits, open_enum, wire};

open_enum! {
    /// Asymmetric Namespace Access State: what a controller does with the namespaces of a group.
    pub struct AnaState(u8) {
        OPTIMIZED = 0x01 => "optimized";
        NON_OPTIMIZED = 0x02 => "non-optimized";
        INACCESSIBLE = 0x03 => "inaccessible";
        PERSISTENT_LOSS = 0x04 => "persistent loss";
        CHANGE = 0x0f => "change";
    }
}

impl AnaState {
    /// Whether the controller processes I/O commands for the namespaces of a group in this state.
    pub fn allows_io(self) -> bool {
        matches!(self, Self::OPTIMIZED | Self::NON_OPTIMIZED)
    }
}

bits! {
    /// Log Specific Parameter of Get Log Page for the ANA log page.
    pub struct AnaLogParameter(u8 as u8) {
        /// Return Groups Only: descriptors without namespace identifiers.
        groups_only / with_groups_only: bool = 0:0;
    }
}

bits! {
    /// The byte of a descriptor that has the group's state.
    pub struct AnaStateField(u8 as u8) {
        /// Asymmetric Namespace Access State.
        state / with_state: AnaState = 3:0;
    }
}

wire! {
    /// The header of the ANA log page. Group descriptors follow.
    pub struct AnaLogHeader[16] {
        /// Change Count: how often the page has changed since the last reset.
        0 => pub change_count: U64,
        /// Number of ANA Group Descriptors.
        8 => pub groups: U16,
        10 => reserved10: [u8; 6],
    }
}

impl AnaLogHeader {
    /// A header.
    pub fn new(change_count: u64, groups: u16) -> Self {
        Self { change_count: U64::new(change_count), groups: U16::new(groups), ..Self::zeroed() }
    }
}

wire! {
    /// An ANA Group Descriptor. Its namespace identifiers follow, ascending, four bytes each.
    pub struct AnaGroupDescriptor[32] {
        /// ANA Group ID, from 1.
        0 => pub group: U32,
        /// Number of NSID Values.
        4 => pub nsids: U32,
        /// Change Count: that of the page when this group changed last.
        8 => pub change_count: U64,
        /// ANA State.
        16 => pub state: AnaStateField,
        17 => reserved17: [u8; 15],
    }
}

impl AnaGroupDescriptor {
    /// A descriptor that `nsids` namespace identifiers follow.
    pub fn new(group: u32, state: AnaState, change_count: u64, nsids: u32) -> Self {
        Self {
            group: U32::new(group),
            nsids: U32::new(nsids),
            change_count: U64::new(change_count),
            state: AnaStateField::default().with_state(state),
            ..Self::zeroed()
        }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn a_page_has_its_golden_bytes() {
        let header = AnaLogHeader::new(0x0102, 3);
        assert_eq!(header.as_bytes(), [2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        let group = AnaGroupDescriptor::new(0x0a, AnaState::CHANGE, 0x0b0c, 2);
        let expected = [10, 0, 0, 0, 2, 0, 0, 0, 0x0c, 0x0b, 0, 0, 0, 0, 0, 0, 0x0f];
        assert_eq!(group.as_bytes()[..17], expected);
        assert_eq!(group.state.state(), AnaState::CHANGE);
    }

    #[test]
    fn only_two_states_allow_io() {
        for state in 0..=255 {
            assert_eq!(AnaState(state).allows_io(), state == 1 || state == 2, "state {state}");
        }
    }
}
