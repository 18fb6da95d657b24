//! The properties of a controller (NVM Express Base 2.0, section 3.1.3) and the life that they drive.

use std::time::Duration;

use ringfab_reactor::Time;
use ringfab_spec::Status;
use ringfab_spec::property::offset;
use ringfab_spec::sqe::PropertySize;

use crate::failure::Failure;

/// What a Property Set asks the data path to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropertyEffect {
    /// Nothing.
    None,
    /// The controller is ready: I/O queues may connect.
    Enabled,
    /// The controller is being reset: end its I/O queues, then say so to the registers.
    Disabled,
    /// The host shuts the controller down: finish its I/O, then say so to the registers.
    Shutdown,
}

/// Offset in the Property Get and Property Set commands of ATTRIB, OFST and VALUE.
mod field {
    pub(super) const ATTRIB: u16 = 40;
    pub(super) const OFST: u16 = 44;
}

/// NVM Express 2.0.0.
pub(crate) const VERSION: u32 = 0x0002_0000;

/// How long a host may have to wait for readiness or shutdown, in units of 500 ms: 15 s.
const TIMEOUT_500MS: u64 = 30;

/// How long a controller waits for commands of its host's earlier connections, or of its own when it is reset, before
/// it goes on without the disks that still work on them.
pub(crate) const LEFT_BEHIND_PATIENCE: Duration = Duration::from_secs(2);

/// CAP of a controller with queues of up to `entries_max` entries.
fn capabilities(entries_max: u32) -> u64 {
    let mqes_z = u64::from(entries_max - 1);
    // Queues are physically contiguous (CQR), as on every fabric.
    let contiguous = 1 << 16;
    // The NVM Command Set (CSS, bits 44:37). There is no other, so hosts have nothing to choose (bit 43): where that
    // is set, nvme-cli 2.11 and later ask for the effects of the Zoned Namespace Command Set, and fail without.
    let command_sets = 1 << 37;
    // Ready with media, not independent of media (CRMS, bits 60:59); both page sizes are 4 KiB.
    let ready_with_media = 1 << 59;
    mqes_z | contiguous | TIMEOUT_500MS << 24 | command_sets | ready_with_media
}

/// Controller Configuration, as the host wrote it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Configuration(u32);

impl Configuration {
    fn enabled(self) -> bool {
        self.0 & 1 != 0
    }

    fn command_set(self) -> u32 {
        self.0 >> 4 & 0x7
    }

    fn page_size(self) -> u32 {
        self.0 >> 7 & 0xf
    }

    fn arbitration(self) -> u32 {
        self.0 >> 11 & 0x7
    }

    fn shutdown_notification(self) -> u32 {
        self.0 >> 14 & 0x3
    }

    fn submission_entry_size(self) -> u32 {
        self.0 >> 16 & 0xf
    }

    fn completion_entry_size(self) -> u32 {
        self.0 >> 20 & 0xf
    }

    /// Whether a controller can run like this: 4 KiB pages, round robin, entries of 64 and 16 bytes.
    fn is_supported(self, discovery: bool) -> bool {
        let sizes = self.submission_entry_size() == 6 && self.completion_entry_size() == 4;
        // The NVM Command Set, or all that there are, which earlier versions of this target offered.
        matches!(self.command_set(), 0 | 6)
            && self.page_size() == 0
            && self.arbitration() == 0
            && (discovery || sizes)
    }
}

/// Where a shutdown is (CSTS.SHST).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shutdown {
    None = 0,
    Occurring = 1,
    Complete = 2,
}

/// The properties of one controller.
#[derive(Debug)]
pub(crate) struct Registers {
    entries_max: u32,
    discovery: bool,
    cc: Configuration,
    ready: bool,
    /// Enabled, and not ready before what its host has left behind has ended, or before this.
    held_until: Option<Time>,
    fatal: bool,
    shutdown: Shutdown,
}

impl Registers {
    pub(crate) fn new(entries_max: u32, discovery: bool) -> Self {
        let cc = Configuration::default();
        let shutdown = Shutdown::None;
        Self { entries_max, discovery, cc, ready: false, held_until: None, fatal: false, shutdown }
    }

    /// Whether admin commands other than Fabrics commands are taken.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready && self.cc.enabled()
    }

    /// Whether I/O queues may connect and their commands run.
    pub(crate) fn io_allowed(&self) -> bool {
        self.is_ready() && self.shutdown == Shutdown::None
    }

    /// Whether the host has ended its use of the controller: it has disabled it, or shuts it down.
    pub(crate) fn is_left(&self) -> bool {
        !self.cc.enabled() || self.shutdown != Shutdown::None
    }

    /// The value of a property; `size` is what the command says of its size.
    pub(crate) fn get(&self, offset: u32, size: Option<PropertySize>) -> Result<u64, Failure> {
        let (value, right_size) = match offset {
            offset::CAP => (capabilities(self.entries_max), PropertySize::Eight),
            offset::VS => (u64::from(VERSION), PropertySize::Four),
            offset::CC => (u64::from(self.cc.0), PropertySize::Four),
            offset::CSTS => (u64::from(self.status()), PropertySize::Four),
            offset::CRTO => (TIMEOUT_500MS, PropertySize::Four),
            _ => return Err(Failure::invalid_field(field::OFST)),
        };
        if size == Some(right_size) { Ok(value) } else { Err(Failure::invalid_field(field::ATTRIB)) }
    }

    /// Writes a property. Only CC can be written.
    pub(crate) fn set(
        &mut self,
        offset: u32,
        size: Option<PropertySize>,
        value: u64,
    ) -> Result<PropertyEffect, Failure> {
        if offset != offset::CC {
            return Err(Failure::invalid_field(field::OFST));
        }
        if size != Some(PropertySize::Four) {
            return Err(Failure::invalid_field(field::ATTRIB));
        }
        // The upper half of VALUE is reserved for a property of four bytes.
        Ok(self.configure(Configuration(value as u32)))
    }

    /// The I/O queues have ended after [`PropertyEffect::Disabled`]: the host sees CSTS.RDY become zero. The reset has
    /// dropped Asynchronous Event Requests that were parked, without a completion.
    pub(crate) fn disabled_done(&mut self) {
        if !self.cc.enabled() {
            self.ready = false;
            self.fatal = false;
            self.shutdown = Shutdown::None;
        }
    }

    /// The I/O has ended after [`PropertyEffect::Shutdown`]: the host sees that the shutdown is complete.
    pub(crate) fn shutdown_done(&mut self) {
        if self.shutdown == Shutdown::Occurring {
            self.shutdown = Shutdown::Complete;
        }
    }

    /// The flush of a shutdown failed: what the host wrote may not be safe. It sees a fatal status, and no end of the
    /// shutdown.
    pub(crate) fn shutdown_failed(&mut self) {
        if self.shutdown == Shutdown::Occurring {
            self.fatal = true;
        }
    }

    /// Takes readiness back just after [`PropertyEffect::Enabled`], until [`Registers::release_ready`].
    pub(crate) fn hold_ready(&mut self, now: Time) {
        (self.ready, self.held_until) = (false, Some(now + LEFT_BEHIND_PATIENCE));
    }

    /// Until when the controller, which is enabled, waits to be ready; none when it does not wait.
    pub(crate) fn held_until(&self) -> Option<Time> {
        self.held_until
    }

    /// What the controller waited for has ended.
    pub(crate) fn release_ready(&mut self) {
        (self.ready, self.held_until) = (true, None);
    }

    fn configure(&mut self, new: Configuration) -> PropertyEffect {
        let old = std::mem::replace(&mut self.cc, new);
        match (old.enabled(), new.enabled()) {
            (false, true) => self.enable(),
            (true, false) => {
                self.held_until = None;
                PropertyEffect::Disabled
            }
            _ if old.shutdown_notification() == 0 && new.shutdown_notification() != 0 => self.shut_down(),
            _ => PropertyEffect::None,
        }
    }

    fn enable(&mut self) -> PropertyEffect {
        // A reset that the data path has not finished yet: the host did not wait for CSTS.RDY to become zero.
        if self.ready || !self.cc.is_supported(self.discovery) {
            self.fatal = true;
            return PropertyEffect::None;
        }
        self.ready = true;
        self.shutdown = Shutdown::None;
        PropertyEffect::Enabled
    }

    fn shut_down(&mut self) -> PropertyEffect {
        if self.shutdown != Shutdown::None {
            return PropertyEffect::None;
        }
        self.shutdown = Shutdown::Occurring;
        PropertyEffect::Shutdown
    }

    fn status(&self) -> u32 {
        u32::from(self.ready) | u32::from(self.fatal) << 1 | (self.shutdown as u32) << 2
    }
}

/// The failure of a command that came before the controller was ready.
pub(crate) const NOT_READY: Failure = Failure::new(Status::COMMAND_SEQUENCE_ERROR);

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR: Option<PropertySize> = Some(PropertySize::Four);
    const EIGHT: Option<PropertySize> = Some(PropertySize::Eight);

    /// What a Linux host writes: entries of 64 and 16 bytes, enabled.
    const ENABLE: u64 = 0x0046_0001;

    fn status(registers: &Registers) -> u64 {
        registers.get(offset::CSTS, FOUR).unwrap()
    }

    #[test]
    fn capabilities_have_the_specified_places() {
        let cap = Registers::new(1024, false).get(offset::CAP, EIGHT).unwrap();
        assert_eq!(cap & 0xffff, 1023, "MQES");
        assert_eq!(cap >> 16 & 1, 1, "CQR");
        assert_eq!(cap >> 24 & 0xff, TIMEOUT_500MS, "TO");
        assert_eq!(cap >> 32 & 0xf, 0, "DSTRD");
        assert_eq!(cap >> 37 & 0xff, 0b0000_0001, "CSS: the NVM Command Set, and no choice");
        assert_eq!(cap >> 48 & 0xff, 0, "MPSMIN and MPSMAX");
        assert_eq!(cap >> 59 & 3, 1, "CRMS");
    }

    #[test]
    fn a_controller_is_enabled_reset_and_enabled_again() {
        let mut registers = Registers::new(128, false);
        assert_eq!(status(&registers), 0);
        assert_eq!(registers.set(offset::CC, FOUR, ENABLE), Ok(PropertyEffect::Enabled));
        assert_eq!(status(&registers), 1);
        assert!(registers.io_allowed());
        assert_eq!(registers.set(offset::CC, FOUR, 0), Ok(PropertyEffect::Disabled));
        assert_eq!(status(&registers), 1, "ready until the queues have ended");
        assert!(!registers.io_allowed());
        registers.disabled_done();
        assert_eq!(status(&registers), 0);
        assert_eq!(registers.set(offset::CC, FOUR, ENABLE), Ok(PropertyEffect::Enabled));
    }

    #[test]
    fn a_shutdown_occurs_and_completes_and_only_a_reset_ends_it() {
        let mut registers = Registers::new(128, false);
        registers.set(offset::CC, FOUR, ENABLE).unwrap();
        assert_eq!(registers.set(offset::CC, FOUR, ENABLE | 1 << 14), Ok(PropertyEffect::Shutdown));
        assert_eq!(status(&registers), 1 | 1 << 2);
        assert!(!registers.io_allowed());
        assert!(registers.is_left());
        registers.shutdown_done();
        assert_eq!(status(&registers), 1 | 2 << 2);
        assert_eq!(registers.set(offset::CC, FOUR, ENABLE | 1 << 14), Ok(PropertyEffect::None));
        assert_eq!(registers.set(offset::CC, FOUR, 0), Ok(PropertyEffect::Disabled));
        registers.disabled_done();
        assert_eq!(status(&registers), 0);
    }

    #[test]
    fn a_configuration_that_cannot_run_is_a_fatal_status_until_reset() {
        for wrong in [0x0046_0011, 0x0046_0081, 0x0046_0801, 0x0047_0001, 0x0036_0001, 0x0000_0001] {
            let mut registers = Registers::new(128, false);
            assert_eq!(registers.set(offset::CC, FOUR, wrong), Ok(PropertyEffect::None), "{wrong:#x}");
            assert_eq!(status(&registers), 2, "{wrong:#x}");
            registers.set(offset::CC, FOUR, 0).unwrap();
            registers.disabled_done();
            assert_eq!(status(&registers), 0);
        }
        let mut discovery = Registers::new(128, true);
        assert_eq!(discovery.set(offset::CC, FOUR, 1), Ok(PropertyEffect::Enabled));
    }

    #[test]
    fn readiness_is_held_until_it_is_released_or_the_host_disables_the_controller() {
        let mut registers = Registers::new(128, false);
        registers.set(offset::CC, FOUR, ENABLE).unwrap();
        registers.hold_ready(Time::ZERO);
        assert_eq!(
            (status(&registers), registers.held_until()),
            (0, Some(Time::ZERO + LEFT_BEHIND_PATIENCE))
        );
        assert!(!registers.io_allowed());
        registers.release_ready();
        assert_eq!((status(&registers), registers.held_until()), (1, None));
        registers.hold_ready(Time::ZERO);
        registers.set(offset::CC, FOUR, 0).unwrap();
        assert_eq!(registers.held_until(), None);
    }

    #[test]
    fn enabling_before_a_reset_has_finished_is_fatal() {
        let mut registers = Registers::new(128, false);
        registers.set(offset::CC, FOUR, ENABLE).unwrap();
        registers.set(offset::CC, FOUR, 0).unwrap();
        assert_eq!(registers.set(offset::CC, FOUR, ENABLE), Ok(PropertyEffect::None));
        assert_eq!(status(&registers), 3);
    }

    #[test]
    fn unknown_offsets_wrong_sizes_and_read_only_properties_are_invalid_fields() {
        let mut registers = Registers::new(128, false);
        assert_eq!(registers.get(offset::CAP, FOUR), Err(Failure::invalid_field(field::ATTRIB)));
        assert_eq!(registers.get(offset::CC, EIGHT), Err(Failure::invalid_field(field::ATTRIB)));
        assert_eq!(registers.get(offset::CC, None), Err(Failure::invalid_field(field::ATTRIB)));
        assert_eq!(registers.get(0x24, FOUR), Err(Failure::invalid_field(field::OFST)));
        assert_eq!(registers.get(u32::MAX, FOUR), Err(Failure::invalid_field(field::OFST)));
        assert_eq!(registers.set(offset::CSTS, FOUR, 0), Err(Failure::invalid_field(field::OFST)));
        assert_eq!(registers.set(offset::CC, EIGHT, 1), Err(Failure::invalid_field(field::ATTRIB)));
    }
}
