//! Get Features and Set Features (NVM Express Base 2.0, sections 5.15 and 5.27).

use ringfab_spec::Status;

use super::{AdminContext, AdminOutcome, NSID, Transfer};
use crate::command::{Command, dword_offset};
use crate::controller::{Controller, Features, State, Timestamp, supported_events};
use crate::failure::Failure;
use crate::limits::NSID_BROADCAST;

/// Feature identifiers.
mod id {
    pub(super) const ARBITRATION: u8 = 0x01;
    pub(super) const POWER_MANAGEMENT: u8 = 0x02;
    pub(super) const TEMPERATURE_THRESHOLD: u8 = 0x04;
    pub(super) const ERROR_RECOVERY: u8 = 0x05;
    pub(super) const VOLATILE_WRITE_CACHE: u8 = 0x06;
    pub(super) const NUMBER_OF_QUEUES: u8 = 0x07;
    pub(super) const WRITE_ATOMICITY: u8 = 0x0a;
    pub(super) const ASYNC_EVENT_CONFIGURATION: u8 = 0x0b;
    pub(super) const TIMESTAMP: u8 = 0x0e;
    pub(super) const KEEP_ALIVE_TIMER: u8 = 0x0f;
    pub(super) const COMMAND_SET_PROFILE: u8 = 0x19;
    pub(super) const HOST_IDENTIFIER: u8 = 0x81;
}

const DWORD_10: u16 = dword_offset(10);
const DWORD_11: u16 = dword_offset(11);

/// Select, bits 10:8 of dword 10 of Get Features.
mod select {
    pub(super) const CURRENT: u32 = 0;
    pub(super) const DEFAULT: u32 = 1;
    pub(super) const SAVED: u32 = 2;
    pub(super) const CAPABILITIES: u32 = 3;
}

/// What Get Features with Select 3 says of a feature; none is saveable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capabilities {
    /// Feature identifier.
    pub(super) id: u8,
    /// Whether Set Features may change it.
    pub(super) changeable: bool,
    /// Whether each namespace has its own value.
    pub(super) namespace_specific: bool,
}

impl Capabilities {
    const fn new(id: u8, changeable: bool, namespace_specific: bool) -> Self {
        Self { id, changeable, namespace_specific }
    }

    fn dw0(self) -> u32 {
        u32::from(self.namespace_specific) << 1 | u32::from(self.changeable) << 2
    }
}

const ALL: [Capabilities; 12] = [
    Capabilities::new(id::ARBITRATION, true, false),
    Capabilities::new(id::POWER_MANAGEMENT, true, false),
    Capabilities::new(id::TEMPERATURE_THRESHOLD, true, false),
    Capabilities::new(id::ERROR_RECOVERY, true, true),
    Capabilities::new(id::VOLATILE_WRITE_CACHE, true, false),
    Capabilities::new(id::NUMBER_OF_QUEUES, true, false),
    Capabilities::new(id::WRITE_ATOMICITY, true, false),
    Capabilities::new(id::ASYNC_EVENT_CONFIGURATION, true, false),
    Capabilities::new(id::TIMESTAMP, true, false),
    Capabilities::new(id::KEEP_ALIVE_TIMER, true, false),
    Capabilities::new(id::COMMAND_SET_PROFILE, true, false),
    // On a fabric the host's identifier is that of its Connect.
    Capabilities::new(id::HOST_IDENTIFIER, false, false),
];

/// The features that a controller has.
pub(super) fn supported(controller: &Controller) -> impl Iterator<Item = Capabilities> {
    let discovery = controller.is_discovery();
    ALL.into_iter().filter(move |feature| match feature.id {
        id::ASYNC_EVENT_CONFIGURATION | id::KEEP_ALIVE_TIMER => true,
        _ => !discovery,
    })
}

pub(super) fn set_transfer(command: Command<'_>) -> Transfer {
    if feature_id(command) == id::TIMESTAMP { Transfer::ToController(8) } else { Transfer::None }
}

pub(super) fn get_transfer(command: Command<'_>) -> Transfer {
    // With Select 3 there are only capabilities, in dword 0.
    match feature_id(command) {
        _ if selected(command) == select::CAPABILITIES => Transfer::None,
        id::TIMESTAMP => Transfer::ToHost(8),
        id::HOST_IDENTIFIER if extended_host_id(command) => Transfer::ToHost(16),
        _ => Transfer::None,
    }
}

pub(super) fn get(
    controller: &Controller,
    context: &AdminContext<'_>,
    command: Command<'_>,
) -> Result<AdminOutcome, Failure> {
    let feature = find(controller, command)?;
    let state = controller.state();
    match selected(command) {
        select::CURRENT => current(controller, &state, context, command),
        // Nothing is saved, so that what would be restored is the default.
        select::DEFAULT | select::SAVED => default(controller, &state, context, command),
        select::CAPABILITIES => Ok(AdminOutcome::Complete { dw0: feature.dw0() }),
        _ => Err(Failure::invalid_field(DWORD_10 + 1)),
    }
}

pub(super) fn set(
    controller: &Controller,
    context: &AdminContext<'_>,
    command: Command<'_>,
    data: &[u8],
) -> Result<AdminOutcome, Failure> {
    const SAVE: u32 = 1 << 31;
    let feature = find(controller, command)?;
    if command.dword(10) & SAVE != 0 {
        return Err(Failure::at_bit(Status::FEATURE_NOT_SAVEABLE, DWORD_10 + 3, 7));
    }
    let whole = matches!(command.nsid(), 0 | NSID_BROADCAST);
    if !whole && !feature.namespace_specific {
        return Err(Failure::at(Status::FEATURE_NOT_NAMESPACE_SPECIFIC, NSID));
    }
    let mut guard = controller.state();
    let state = &mut *guard;
    let value = command.dword(11);
    let features = &mut state.features;
    match feature.id {
        id::ARBITRATION => features.arbitration = value,
        id::POWER_MANAGEMENT => set_power(features, value)?,
        id::TEMPERATURE_THRESHOLD => *threshold(features, value)? = low_half(value),
        id::ERROR_RECOVERY => set_error_recovery(controller, context, features, command)?,
        id::VOLATILE_WRITE_CACHE => controller.set_write_cache(value & 1 != 0),
        id::NUMBER_OF_QUEUES => return set_queues(state, value),
        id::WRITE_ATOMICITY => features.write_atomicity = value & 1,
        id::ASYNC_EVENT_CONFIGURATION => set_events(controller, value)?,
        id::TIMESTAMP => set_timestamp(features, context, data)?,
        id::COMMAND_SET_PROFILE => set_profile(value)?,
        id::KEEP_ALIVE_TIMER => state.keep_alive.set_timeout(value, context.now),
        // Set Features of the identifier that the Connect gave (section 5.27.1.25).
        _ => return Err(Failure::new(Status::COMMAND_SEQUENCE_ERROR)),
    }
    Ok(AdminOutcome::Complete { dw0: 0 })
}

fn feature_id(command: Command<'_>) -> u8 {
    command.u8(DWORD_10)
}

fn selected(command: Command<'_>) -> u32 {
    command.dword(10) >> 8 & 0x7
}

fn extended_host_id(command: Command<'_>) -> bool {
    command.dword(11) & 1 != 0
}

fn find(controller: &Controller, command: Command<'_>) -> Result<Capabilities, Failure> {
    let id = feature_id(command);
    supported(controller).find(|feature| feature.id == id).ok_or(Failure::invalid_field(DWORD_10))
}

fn current(
    controller: &Controller,
    state: &State,
    context: &AdminContext<'_>,
    command: Command<'_>,
) -> Result<AdminOutcome, Failure> {
    let features = &state.features;
    let dw0 = match feature_id(command) {
        id::ARBITRATION => features.arbitration,
        id::POWER_MANAGEMENT => features.power_management,
        id::TEMPERATURE_THRESHOLD => u32::from(*threshold(&mut features.clone(), command.dword(11))?),
        id::ERROR_RECOVERY => error_recovery(controller, context, features, command)?,
        id::VOLATILE_WRITE_CACHE => u32::from(controller.write_cache_enabled()),
        id::NUMBER_OF_QUEUES => queues(features.io_queues()),
        id::WRITE_ATOMICITY => features.write_atomicity,
        id::ASYNC_EVENT_CONFIGURATION => controller.events().configuration(),
        id::COMMAND_SET_PROFILE => 0,
        id::KEEP_ALIVE_TIMER => state.keep_alive.timeout_ms(),
        id::TIMESTAMP => return Ok(timestamp(features, context)),
        _ => return host_identifier(controller, command),
    };
    Ok(AdminOutcome::Complete { dw0 })
}

/// The value after a reset. What is given by Connect has no other default.
fn default(
    controller: &Controller,
    state: &State,
    context: &AdminContext<'_>,
    command: Command<'_>,
) -> Result<AdminOutcome, Failure> {
    let fresh = Features::new(state.features.io_queues_max(), state.features.reset_at);
    let dw0 = match feature_id(command) {
        id::TEMPERATURE_THRESHOLD => u32::from(*threshold(&mut fresh.clone(), command.dword(11))?),
        id::VOLATILE_WRITE_CACHE => 1,
        id::NUMBER_OF_QUEUES => queues(fresh.io_queues()),
        id::TIMESTAMP => return Ok(timestamp(&fresh, context)),
        id::HOST_IDENTIFIER => return host_identifier(controller, command),
        id::KEEP_ALIVE_TIMER => state.keep_alive.timeout_ms(),
        _ => 0,
    };
    Ok(AdminOutcome::Complete { dw0 })
}

/// There is one power state.
fn set_power(features: &mut Features, value: u32) -> Result<(), Failure> {
    if value & 0x1f != 0 {
        return Err(Failure::invalid_field(DWORD_11));
    }
    features.power_management = value & 0xff;
    Ok(())
}

/// There is one combination of command sets, the first.
fn set_profile(value: u32) -> Result<(), Failure> {
    match value & 0x1ff {
        0 => Ok(()),
        _ => Err(Failure::at(Status::COMMAND_SET_COMBINATION_REJECTED, DWORD_11)),
    }
}

/// The threshold that a dword 11 selects: over or under, of the composite temperature or of all sensors.
fn threshold(features: &mut Features, value: u32) -> Result<&mut u16, Failure> {
    const ALL_SENSORS: u32 = 0xf;
    let sensor = value >> 16 & 0xf;
    let kind = usize::try_from(value >> 20 & 0x3).expect("two bits");
    if sensor != 0 && sensor != ALL_SENSORS {
        return Err(Failure::invalid_field(DWORD_11 + 2));
    }
    features.temperature.get_mut(kind).ok_or(Failure::at_bit(Status::INVALID_FIELD, DWORD_11 + 2, 4))
}

fn low_half(value: u32) -> u16 {
    (value & 0xffff) as u16
}

/// The deallocated block error cannot be switched on: no namespace has it (NSFEAT bit 2).
fn check_active(controller: &Controller, context: &AdminContext<'_>, nsid: u32) -> Result<(), Failure> {
    let found = context.served.namespace_for(controller.subsystem(), nsid, &controller.host().nqn);
    found.map(drop).ok_or(Failure::at(Status::INVALID_NAMESPACE, NSID))
}

fn set_error_recovery(
    controller: &Controller,
    context: &AdminContext<'_>,
    features: &mut Features,
    command: Command<'_>,
) -> Result<(), Failure> {
    const DULBE: u32 = 1 << 16;
    let value = command.dword(11);
    if value & DULBE != 0 {
        return Err(Failure::invalid_field(DWORD_11 + 2));
    }
    match command.nsid() {
        NSID_BROADCAST => {
            let all = context.served.namespaces_for(controller.subsystem(), &controller.host().nqn);
            features.error_recovery = all.map(|one| (one.nsid(), low_half(value))).collect();
        }
        nsid => {
            check_active(controller, context, nsid)?;
            features.error_recovery.insert(nsid, low_half(value));
        }
    }
    Ok(())
}

fn error_recovery(
    controller: &Controller,
    context: &AdminContext<'_>,
    features: &Features,
    command: Command<'_>,
) -> Result<u32, Failure> {
    let nsid = command.nsid();
    check_active(controller, context, nsid)?;
    Ok(features.error_recovery.get(&nsid).map_or(0, |value| u32::from(*value)))
}

/// Numbers of submission and completion queues, zero's based; queues come in pairs.
fn set_queues(state: &mut State, value: u32) -> Result<AdminOutcome, Failure> {
    if state.queues.io_count() > 0 {
        return Err(Failure::new(Status::COMMAND_SEQUENCE_ERROR));
    }
    let submission_z = low_half(value);
    let completion_z = low_half(value >> 16);
    if submission_z == u16::MAX || completion_z == u16::MAX {
        let offset = if submission_z == u16::MAX { DWORD_11 } else { DWORD_11 + 2 };
        return Err(Failure::invalid_field(offset));
    }
    let granted = state.features.grant_io_queues(submission_z.min(completion_z) + 1);
    Ok(AdminOutcome::Complete { dw0: queues(granted) })
}

fn queues(count: u16) -> u32 {
    let count_z = u32::from(count) - 1;
    count_z << 16 | count_z
}

/// Bits 7:0 are SMART warnings, which a host may ask for though none ever comes; the others are notices.
fn set_events(controller: &Controller, value: u32) -> Result<(), Failure> {
    let smart = if controller.is_discovery() { 0 } else { 0xff };
    let unknown = value & !(supported_events(controller.is_discovery()) | smart);
    if unknown != 0 {
        let bit = u16::try_from(unknown.trailing_zeros()).expect("below 32");
        let byte = DWORD_11 + bit / 8;
        return Err(Failure::at_bit(Status::INVALID_FIELD, byte, (bit % 8) as u8));
    }
    controller.events().configure(value);
    Ok(())
}

fn set_timestamp(features: &mut Features, context: &AdminContext<'_>, data: &[u8]) -> Result<(), Failure> {
    let data = data.first_chunk().ok_or(Failure::new(Status::DATA_SGL_LENGTH_INVALID))?;
    let ms = u64::from_le_bytes(*data) & ((1 << 48) - 1);
    features.timestamp = Timestamp::Set { ms, at: context.now };
    Ok(())
}

/// Milliseconds in 48 bits, then the origin in bits 3:1 of byte 6.
fn timestamp(features: &Features, context: &AdminContext<'_>) -> AdminOutcome {
    let origin = match features.timestamp {
        Timestamp::SinceReset => 0,
        Timestamp::Set { .. } => 1,
    };
    let value = features.timestamp_ms(context.now) | origin << 49;
    AdminOutcome::Data { bytes: value.to_le_bytes().to_vec(), dw0: 0 }
}

/// On a fabric an identifier has 128 bits: EXHID has to be set.
fn host_identifier(controller: &Controller, command: Command<'_>) -> Result<AdminOutcome, Failure> {
    if !extended_host_id(command) {
        return Err(Failure::invalid_field(DWORD_11));
    }
    Ok(AdminOutcome::Data { bytes: controller.host().id.to_vec(), dw0: 0 })
}
