//! Which commands and features there are, and what they do.

use ringfab_spec::log::{CommandEffects, CommandEffectsLog};
use ringfab_spec::{AdminOpcode, IoOpcode};

use super::{CSI, Page};
use crate::admin::{features, opcodes};
use crate::controller::Controller;
use crate::failure::Failure;

/// Size of the log of features: a dword for each, of the same form as for commands.
const FEATURES_BYTES: usize = 1024;

/// I/O commands, and whether they change the content of logical blocks.
const IO: [(IoOpcode, bool); 8] = [
    (IoOpcode::FLUSH, false),
    (IoOpcode::WRITE, true),
    (IoOpcode::READ, false),
    (IoOpcode::COMPARE, false),
    (IoOpcode::WRITE_ZEROES, true),
    (IoOpcode::DATASET_MANAGEMENT, true),
    (IoOpcode::VERIFY, false),
    (IoOpcode::COPY, true),
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
