//! Which commands and features there are, and what they do.

use ringfab_spec::log::{CommandEffects, CommandEffectsLog};
use ringfab_spec::{AdminOpcode, IoOpcode};

use super::Page;
use crate::admin::{features, opcodes};
use crate::command::dword_offset;
use crate::controller::Controller;
use crate::failure::Failure;

/// Offset of the Command Set Identifier in Get Log Page.
pub(super) const CSI: u16 = dword_offset(14) + 3;

/// Size of the log of features: a dword for each, of the same form as for commands.
const FEATURES_BYTES: usize = 1024;

/// I/O commands, and whether they change the content of logical blocks.
const IO: [(IoOpcode, bool); 9] = [
    (IoOpcode::FLUSH, false),
    (IoOpcode::WRITE, true),
    (IoOpcode::READ, false),
    (IoOpcode::COMPARE, false),
    (IoOpcode::WRITE_ZEROES, true),
    (IoOpcode::DATASET_MANAGEMENT, true),
    (IoOpcode::VERIFY, false),
    (IoOpcode::COPY, true),
    (IoOpcode::CANCEL, false),
];

/// Commands Supported and Effects.
pub(super) fn commands(controller: &Controller, csi: u8) -> Result<Page, Failure> {
    if csi != 0 {
        return Err(Failure::invalid_field(CSI));
    }
    let mut log = CommandEffectsLog::zeroed();
    for code in opcodes(controller.is_discovery()) {
        // Identify and features may be about one namespace, the others never are.
        let codes = [AdminOpcode::IDENTIFY, AdminOpcode::SET_FEATURES, AdminOpcode::GET_FEATURES];
        let effects = CommandEffects::supported().with_controller_scope(true);
        log.acs[usize::from(code.0)] = effects.with_namespace_scope(codes.contains(code));
    }
    if !controller.is_discovery() {
        for (code, changes_blocks) in IO {
            // Without a scope, which for these commands says nothing new: Linux warns of any effect of an I/O command
            // other than these two.
            log.iocs[usize::from(code.0)] = CommandEffects::supported().with_lbcc(changes_blocks);
        }
    }
    Ok(Page::of(&log))
}

/// Feature Identifiers Supported and Effects. Its dwords have FSUPP and the scopes where commands have theirs.
pub(super) fn features(controller: &Controller) -> Page {
    let mut log = [CommandEffects::default(); FEATURES_BYTES / 4];
    for feature in features::supported(controller) {
        let effects = CommandEffects::supported().with_namespace_scope(feature.namespace_specific);
        log[usize::from(feature.id)] = effects.with_controller_scope(!feature.namespace_specific);
    }
    Page::of(&log)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The admin commands of NVM Express Base 2.0 that a controller behind a fabric may have, by their opcodes.
    const ADMIN_NAMES: [(u8, &str); 23] = [
        (0x02, "Get Log Page"),
        (0x06, "Identify"),
        (0x08, "Abort"),
        (0x09, "Set Features"),
        (0x0a, "Get Features"),
        (0x0c, "Asynchronous Event Request"),
        (0x0d, "Namespace Management"),
        (0x10, "Firmware Commit"),
        (0x11, "Firmware Image Download"),
        (0x14, "Device Self-test"),
        (0x15, "Namespace Attachment"),
        (0x18, "Keep Alive"),
        (0x19, "Directive Send"),
        (0x1a, "Directive Receive"),
        (0x1c, "Virtualization Management"),
        (0x1d, "NVMe-MI Send"),
        (0x1e, "NVMe-MI Receive"),
        (0x20, "Capacity Management"),
        (0x24, "Lockdown"),
        (0x80, "Format NVM"),
        (0x81, "Security Send"),
        (0x82, "Security Receive"),
        (0x84, "Sanitize"),
    ];

    /// Those of NVM Command Set 1.0.
    const IO_NAMES: [(u8, &str); 13] = [
        (0x00, "Flush"),
        (0x01, "Write"),
        (0x02, "Read"),
        (0x04, "Write Uncorrectable"),
        (0x05, "Compare"),
        (0x08, "Write Zeroes"),
        (0x09, "Dataset Management"),
        (0x0c, "Verify"),
        (0x0d, "Reservation Register"),
        (0x0e, "Reservation Report"),
        (0x11, "Reservation Acquire"),
        (0x15, "Reservation Release"),
        (0x19, "Copy"),
    ];

    /// Names of the first column of a table of docs/not-there.md whose second says that the target has nothing of it.
    fn not_there() -> Vec<&'static str> {
        let document = include_str!("../../../../docs/not-there.md");
        let rows = document.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
        let missing = rows.filter(|(_, target)| target.starts_with("no"));
        missing.flat_map(|(what, _)| what.split([',', ':'])).map(str::trim).collect()
    }

    #[test]
    fn a_command_is_there_or_in_the_list_of_what_is_not_there() {
        let missing = not_there();
        let admin = ADMIN_NAMES.map(|(code, name)| (name, opcodes(false).contains(&AdminOpcode(code))));
        let io = IO_NAMES.map(|(code, name)| (name, IO.iter().any(|(known, _)| known.0 == code)));
        for (name, there) in admin.into_iter().chain(io) {
            assert_ne!(
                there,
                missing.contains(&name),
                "{name}: is it there ({there}), or in docs/not-there.md?"
            );
        }
    }
}
