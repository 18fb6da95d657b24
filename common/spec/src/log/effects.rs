//! Commands Supported and Effects log page (NVM Express Base 2.0, section 5.16.1.6).

use zerocopy::little_endian::U32;

use crate::macros::{bits, open_enum, wire};

open_enum! {
    /// Command Submission and Execution: what else may run beside the command.
    pub struct CommandSubmission(u8) {
        NO_RESTRICTION = 0 => "No restriction";
        ONE_PER_NAMESPACE = 1 => "No other outstanding command to the same namespace";
        ONE_IN_ALL = 2 => "No other outstanding command to any namespace";
    }
}

bits! {
    /// What a command does, if it is supported.
    pub struct CommandEffects(U32 as u32) {
        /// Command Supported.
        csupp / with_csupp: bool = 0:0;
        /// Logical Block Content Change: the command may change data.
        lbcc / with_lbcc: bool = 1:1;
        /// Namespace Capability Change.
        ncc / with_ncc: bool = 2:2;
        /// Namespace Inventory Change.
        nic / with_nic: bool = 3:3;
        /// Controller Capability Change.
        ccc / with_ccc: bool = 4:4;
        /// Command Submission and Execution.
        cse / with_cse: CommandSubmission = 18:16;
        /// UUID Selection Supported.
        uuid_selection / with_uuid_selection: bool = 19:19;
        /// Command Scope: a namespace.
        namespace_scope / with_namespace_scope: bool = 20:20;
        /// Command Scope: a controller.
        controller_scope / with_controller_scope: bool = 21:21;
        /// Command Scope: an NVM set.
        nvm_set_scope / with_nvm_set_scope: bool = 22:22;
        /// Command Scope: an endurance group.
        endurance_group_scope / with_endurance_group_scope: bool = 23:23;
        /// Command Scope: a domain.
        domain_scope / with_domain_scope: bool = 24:24;
        /// Command Scope: the NVM subsystem.
        subsystem_scope / with_subsystem_scope: bool = 25:25;
    }
}

impl CommandEffects {
    /// A supported command without effects.
    pub fn supported() -> Self {
        Self::default().with_csupp(true)
    }
}

wire! {
    /// Commands Supported and Effects log page.
    pub struct CommandEffectsLog[4096] {
        /// Admin Command Supported, indexed by opcode.
        0 => pub acs: [CommandEffects; 256],
        /// I/O Command Supported, indexed by opcode; of the command set which the log page asked for.
        1024 => pub iocs: [CommandEffects; 256],
        2048 => reserved2048: [u8; 2048],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    #[test]
    fn the_effects_have_their_golden_bits() {
        let write = CommandEffects::supported().with_lbcc(true);
        assert_eq!(write.bits(), 0x0000_0003);
        let format = write.with_ncc(true).with_cse(CommandSubmission::ONE_PER_NAMESPACE);
        assert_eq!(format.bits(), 0x0001_0007);
        assert_eq!(format.with_subsystem_scope(true).with_uuid_selection(true).bits(), 0x0209_0007);
    }

    #[test]
    fn an_io_command_is_in_the_second_kibibyte() {
        let mut log = CommandEffectsLog::zeroed();
        log.iocs[0x02] = CommandEffects::supported();
        assert_eq!(log.as_bytes().iter().position(|byte| *byte == 1), Some(1024 + 8));
    }

    proptest! {
        #[test]
        fn any_bits_are_effects_and_go_out_unchanged(bytes: [u8; 4]) {
            let effects = CommandEffects::read_from_bytes(&bytes).unwrap();
            let again = effects.with_cse(effects.cse()).with_csupp(effects.csupp());
            prop_assert_eq!(again.as_bytes(), bytes);
        }
    }
}
