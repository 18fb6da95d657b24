//! `ringfab get-feature`: features of a controller or namespace.

use anyhow::{Context as _, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use ringfab_initiator::IoError;
use ringfab_initiator::blocking::Controller;
use ringfab_spec::features::{
    Arbitration, AsyncEventConfiguration, ErrorRecovery, FeatureCapabilities, FeatureId, FeatureSelect,
    HostBehaviorSupport, InterruptCoalescing, InterruptVectorConfiguration, IoCommandSetProfile,
    NumberOfQueues, PowerManagement, ReservationNotificationMask, ReservationPersistence,
    TemperatureThreshold, Timestamp, VolatileWriteCache, WriteAtomicity,
};
use ringfab_spec::{BitField, FromBytes as _, Status, SubmissionEntry};
use serde_json::{Value, json};

use ringfab_front_ends::context::Context;
use ringfab_front_ends::namespaces::only_namespace;
use ringfab_front_ends::options::ConnectArgs;
use ringfab_front_ends::output;

use super::{decode, with_controller};

#[derive(Args)]
pub(crate) struct GetFeatureArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Feature identifier, such as 7 or 0x07; by default all features that the controller has
    #[arg(long, short, value_name = "FID", value_parser = feature_id)]
    feature_id: Option<FeatureId>,
    /// Which value
    #[arg(long, short, value_name = "WHICH", value_enum, default_value_t = Select::Current)]
    sel: Select,
    /// Dword 11 of the command, for features that need one
    #[arg(long, short, value_name = "NUMBER", value_parser = number)]
    cdw11: Option<u32>,
    /// Show what the bits mean
    #[arg(long, short = 'H')]
    human_readable: bool,
}

/// The value that is asked for (Select), by its name or by its number as `nvme get-feature` takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Select {
    /// The current value
    #[value(alias = "0")]
    Current,
    /// The default
    #[value(alias = "1")]
    Default,
    /// The saved value
    #[value(alias = "2")]
    Saved,
    /// What can be done with it
    #[value(alias = "3")]
    Supported,
}

/// A feature as the controller has answered.
struct Feature {
    id: FeatureId,
    value: u32,
    data: Vec<u8>,
    capabilities: bool,
}

/// Extended Host Identifier: what every host over fabrics has.
const EXHID: u32 = 1;
/// Feature identifiers that are asked for when all are.
const ALL: [std::ops::RangeInclusive<u8>; 3] = [0x01..=0x1f, 0x78..=0x85, 0xc0..=0xff];

/// Shows one feature, or all.
pub(crate) fn run(args: &GetFeatureArgs, context: &Context) -> Result<()> {
    let features = with_controller(&args.connect, context, |controller| match args.feature_id {
        Some(id) => Ok(vec![args.ask(controller, id).with_context(|| format!("Get Features, {id}"))?]),
        None => all(args, controller),
    })?;
    output::either(
        context.json,
        || json!({ "features": features.iter().map(Feature::document).collect::<Vec<_>>() }),
        || {
            let lines = features.iter().flat_map(|feature| feature.lines(args.human_readable));
            lines.collect::<Vec<_>>().join("\n")
        },
    )
}

/// Every feature that the controller does not refuse.
fn all(args: &GetFeatureArgs, controller: &Controller) -> Result<Vec<Feature>> {
    let mut features = Vec::new();
    for id in ALL.into_iter().flatten().map(FeatureId) {
        match args.ask(controller, id) {
            Ok(feature) => features.push(feature),
            Err(error) => match error.downcast_ref::<IoError>() {
                Some(IoError::Status(status)) if is_refusal(*status) => {}
                // Its namespace is not named.
                None => tracing::info!("{id} is left out: {error:#}"),
                Some(_) => return Err(error.context(format!("Get Features, {id}"))),
            },
        }
    }
    Ok(features)
}

/// Whether a status says that there is no such feature, or no such value of it.
fn is_refusal(status: Status) -> bool {
    matches!(
        status.code(),
        Status::INVALID_FIELD
            | Status::INVALID_OPCODE
            | Status::INVALID_NAMESPACE
            | Status::FEATURE_NOT_NAMESPACE_SPECIFIC
    )
}

impl GetFeatureArgs {
    fn ask(&self, controller: &Controller, id: FeatureId) -> Result<Feature> {
        let nsid = if is_of_namespace(id) { only_namespace(&controller.namespaces())?.nsid } else { 0 };
        let (select, capabilities) = match self.sel {
            Select::Current => (FeatureSelect::CURRENT, false),
            Select::Default => (FeatureSelect::DEFAULT, false),
            Select::Saved => (FeatureSelect::SAVED, false),
            Select::Supported => (FeatureSelect::SUPPORTED_CAPABILITIES, true),
        };
        let mut entry = SubmissionEntry::get_features(0, id.0, select.0, nsid);
        let dword = if id == FeatureId::HOST_IDENTIFIER { EXHID } else { 0 };
        entry.cdw11.set(self.cdw11.unwrap_or(dword));
        let length = if capabilities { 0 } else { data_bytes(id) };
        let (completion, data) = controller.admin_read(entry, length)?;
        Ok(Feature { id, value: completion.result() as u32, data, capabilities })
    }
}

/// Features whose value is that of a namespace.
fn is_of_namespace(id: FeatureId) -> bool {
    matches!(
        id,
        FeatureId::LBA_RANGE_TYPE
            | FeatureId::ERROR_RECOVERY
            | FeatureId::RESERVATION_NOTIFICATION_MASK
            | FeatureId::RESERVATION_PERSISTENCE
            | FeatureId::NAMESPACE_WRITE_PROTECTION
    )
}

/// Bytes of the data structure that comes with a feature.
fn data_bytes(id: FeatureId) -> usize {
    match id {
        FeatureId::LBA_RANGE_TYPE => 4096,
        FeatureId::AUTONOMOUS_POWER_STATE_TRANSITION => 256,
        FeatureId::TIMESTAMP => Timestamp::SIZE,
        FeatureId::HOST_BEHAVIOR_SUPPORT => HostBehaviorSupport::SIZE,
        FeatureId::HOST_IDENTIFIER => 16,
        FeatureId::PREDICTABLE_LATENCY_MODE_CONFIG => 512,
        FeatureId::ENHANCED_CONTROLLER_METADATA
        | FeatureId::CONTROLLER_METADATA
        | FeatureId::NAMESPACE_METADATA => 4096,
        _ => 0,
    }
}

/// The fields of a feature's dword.
fn fields(id: FeatureId) -> &'static [BitField] {
    match id {
        FeatureId::ARBITRATION => Arbitration::FIELDS,
        FeatureId::POWER_MANAGEMENT => PowerManagement::FIELDS,
        FeatureId::TEMPERATURE_THRESHOLD => TemperatureThreshold::FIELDS,
        FeatureId::ERROR_RECOVERY => ErrorRecovery::FIELDS,
        FeatureId::VOLATILE_WRITE_CACHE => VolatileWriteCache::FIELDS,
        FeatureId::NUMBER_OF_QUEUES => NumberOfQueues::FIELDS,
        FeatureId::INTERRUPT_COALESCING => InterruptCoalescing::FIELDS,
        FeatureId::INTERRUPT_VECTOR_CONFIGURATION => InterruptVectorConfiguration::FIELDS,
        FeatureId::WRITE_ATOMICITY => WriteAtomicity::FIELDS,
        FeatureId::ASYNC_EVENT_CONFIGURATION => AsyncEventConfiguration::FIELDS,
        FeatureId::IO_COMMAND_SET_PROFILE => IoCommandSetProfile::FIELDS,
        FeatureId::RESERVATION_NOTIFICATION_MASK => ReservationNotificationMask::FIELDS,
        FeatureId::RESERVATION_PERSISTENCE => ReservationPersistence::FIELDS,
        _ => &[],
    }
}

impl Feature {
    /// Its dword's fields.
    fn fields(&self) -> &'static [BitField] {
        if self.capabilities { FeatureCapabilities::FIELDS } else { fields(self.id) }
    }

    fn document(&self) -> Value {
        json!({
            "feature_id": self.id.0,
            "name": self.id.name(),
            "value": self.value,
            "fields": decode::value(self.value.into(), self.fields()),
            "data": hex(&self.data),
        })
    }

    /// As `nvme get-feature` shows it: the identifier, the name and the value; what they mean on lines of their own.
    fn lines(&self, meanings: bool) -> Vec<String> {
        let name = self.id.name().unwrap_or("unknown");
        let mut lines = vec![format!("{:#04x} ({name}): {:#010x}", self.id.0, self.value)];
        if !self.data.is_empty() {
            lines.push(format!("  data    {}", hex(trimmed(&self.data))));
        }
        if meanings {
            lines.extend(decode::lines(self.value.into(), self.fields()));
            lines.extend(self.meaning().map(|text| format!("  {text}")));
        }
        lines
    }

    /// What the value means, where that is a quantity.
    fn meaning(&self) -> Option<String> {
        if self.capabilities {
            return None;
        }
        Some(match self.id {
            FeatureId::NUMBER_OF_QUEUES => {
                let queues = NumberOfQueues::from_bits(self.value);
                format!("{} I/O submission queues, {} I/O completion queues", queues.nsq(), queues.ncq())
            }
            FeatureId::KEEP_ALIVE_TIMER => format!("{} ms", self.value),
            FeatureId::TEMPERATURE_THRESHOLD => {
                let kelvins = TemperatureThreshold::from_bits(self.value).tmpth();
                format!("{kelvins} K, {} °C", i32::from(kelvins) - 273)
            }
            FeatureId::TIMESTAMP => {
                let (stamp, _) = Timestamp::ref_from_prefix(&self.data).ok()?;
                let (milliseconds, origin) = (stamp.milliseconds(), stamp.attributes.origin());
                format!("{}.{:03} s, {origin}", milliseconds / 1000, milliseconds % 1000)
            }
            FeatureId::HOST_BEHAVIOR_SUPPORT => {
                let (support, _) = HostBehaviorSupport::ref_from_prefix(&self.data).ok()?;
                let (acre, etdas, lbafee) = (support.acre, support.etdas, support.lbafee);
                format!(
                    "advanced command retry {acre}, telemetry data area 4 {etdas}, extended LBA formats {lbafee}"
                )
            }
            _ => return None,
        })
    }
}

/// Data without the zeroes at their end.
fn trimmed(data: &[u8]) -> &[u8] {
    let end = data.iter().rposition(|byte| *byte != 0).map_or(1, |last| last + 1);
    &data[..end.min(data.len())]
}

fn hex(data: &[u8]) -> String {
    data.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn feature_id(text: &str) -> Result<FeatureId> {
    let value = number(text)?;
    let id = u8::try_from(value).ok().filter(|id| *id > 0);
    id.map(FeatureId).ok_or_else(|| anyhow!("a feature identifier is 1 to 255, or 0x01 to 0xff"))
}

/// A number in decimal, or in hexadecimal with 0x.
fn number(text: &str) -> Result<u32> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    match parsed {
        Ok(number) => Ok(number),
        Err(_) => bail!("`{text}` is not a number such as 7 or 0x07"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_is_a_byte_in_either_notation() {
        for text in ["7", "0x7", "0x07"] {
            assert_eq!(feature_id(text).expect("valid"), FeatureId::NUMBER_OF_QUEUES);
        }
        for text in ["0", "256", "0x100", "x", "", "-1", "0x"] {
            assert!(feature_id(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_feature_shows_its_value_and_what_it_means() {
        let of = |id, value, data: &[u8]| Feature { id, value, data: data.to_vec(), capabilities: false };
        let queues = of(FeatureId::NUMBER_OF_QUEUES, 0x0007_007f, &[]);
        assert_eq!(queues.lines(false), ["0x07 (Number of Queues): 0x0007007f"]);
        let lines = queues.lines(true);
        assert_eq!(lines.last().expect("a line"), "  128 I/O submission queues, 8 I/O completion queues");
        let stamp = of(FeatureId::TIMESTAMP, 0, &[0x10, 0x27, 0, 0, 0, 0, 2, 0]);
        assert_eq!(stamp.lines(true)[2], "  10.000 s, Set by a Set Features command");
        assert_eq!(stamp.lines(false)[1], "  data    10270000000002");
        let supported = Feature { capabilities: true, ..of(FeatureId::KEEP_ALIVE_TIMER, 4, &[]) };
        assert!(supported.lines(true).contains(&"  [2:2]   0x1    changeable".to_owned()));
        assert_eq!(of(FeatureId(0xc5), 1, &[]).lines(true), ["0xc5 (unknown): 0x00000001"]);
        assert_eq!(queues.document()["fields"]["nsq_z"], 127);
    }
}
