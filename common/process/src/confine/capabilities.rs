//! Capabilities: what the superuser may do, in parts.

use rustix::io;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

use super::{Layer, threads};

pub use rustix::thread::CapabilitySet as Capabilities;

/// Those that this thread has in effect.
pub fn held() -> Capabilities {
    capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective)
}

pub(super) fn drop_all_but(keep: Capabilities, others: usize) -> Layer {
    match threads::on_each(move || on_this_thread(keep)).into_iter().find_map(Result::err) {
        Some(error) => Layer::missing("capabilities", error.to_string()),
        None => threads::all_or_partly("capabilities", others),
    }
}

fn on_this_thread(keep: Capabilities) -> io::Result<()> {
    let has = capabilities(None)?;
    let kept = CapabilitySets {
        effective: has.effective & keep,
        permitted: has.permitted & keep,
        inheritable: CapabilitySet::empty(),
    };
    // A service without any may not be allowed these calls at all.
    if kept == has && has.permitted.is_empty() {
        return Ok(());
    }
    // Whoever may not change the bound has no use for it either: nothing is executed, and there are no new privileges.
    for one in CapabilitySet::all().difference(keep).iter() {
        if remove_capability_from_bounding_set(one).is_err() {
            break;
        }
    }
    clear_ambient_capability_set()?;
    set_capabilities(None, kept)
}
