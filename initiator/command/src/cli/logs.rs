//! `ringfab error-log`, `effects-log` and `changed-ns-list-log`: log pages of a controller.

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use ringfab_process::table::Column;
use ringfab_spec::identify::{IdentifyController, NSID_ALL};
use ringfab_spec::log::{ChangedNamespaceList, CommandEffects, CommandEffectsLog, ErrorInformation, LogId};
use ringfab_spec::{AdminOpcode, FromBytes as _, IoOpcode};
use serde_json::{Value, json};

use ringfab_front_ends::context::Context;
use ringfab_front_ends::options::ConnectArgs;
use ringfab_front_ends::output;

use super::{decode, with_controller};

/// Entries of the error log that fit what every controller sends at once.
const ENTRIES_PER_PAGE: usize = 4096 / ErrorInformation::SIZE;

#[derive(Args)]
pub(crate) struct ErrorLogArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// The most entries to show; by default all that the controller has
    #[arg(long, short = 'e', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    log_entries: Option<u16>,
}

#[derive(Args)]
pub(crate) struct EffectsLogArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Show each bit of what a command does
    #[arg(long, short = 'H')]
    human_readable: bool,
}

/// Shows the Error Information log page, newest entries first.
pub(crate) fn errors(args: &ErrorLogArgs, context: &Context) -> Result<()> {
    let bytes = with_controller(&args.connect, context, |controller| {
        let identify = controller.identify_controller().context("Identify Controller")?;
        let (page, _) = IdentifyController::ref_from_prefix(&identify).map_err(|_| anyhow!("too short"))?;
        let mut count = usize::from(page.elpe_z) + 1;
        if !page.lpa.extended_data() {
            count = count.min(ENTRIES_PER_PAGE);
        }
        let count = args.log_entries.map_or(count, |wanted| count.min(wanted.into()));
        let length = count * ErrorInformation::SIZE;
        controller.log_page(LogId::ERROR_INFORMATION.0, NSID_ALL, 0, length).context("Get Log Page")
    })?;
    let entries = bytes.chunks_exact(ErrorInformation::SIZE);
    let entries = entries.filter_map(|bytes| ErrorInformation::read_from_bytes(bytes).ok());
    let entries: Vec<_> = entries.filter(|entry| entry.error_count.get() != 0).collect();
    output::either(
        context.json,
        || json!({ "errors": entries.iter().map(error_document).collect::<Vec<_>>() }),
        || error_table(&entries),
    )
}

fn error_document(entry: &ErrorInformation) -> Value {
    let status = entry.status();
    json!({
        "error_count": entry.error_count.get(),
        "sqid": entry.sqid.get(),
        "cmdid": entry.cid.get(),
        "status_field": status.bits(),
        "status": status.to_string(),
        "parm_error_location": entry.parameter_error_location.bits(),
        "lba": entry.lba.get(),
        "nsid": entry.nsid.get(),
        "vs": entry.vendor_information,
        "trtype": entry.trtype.to_string(),
        "cs": entry.command_specific.get(),
        "trtype_spec_info": entry.transport_specific.get(),
    })
}

/// What is said of an empty log.
const NO_ERRORS: &str = "no errors; this command has a controller of its own, and many targets, such as Ringfab's, \
                         keep the errors of each controller apart: their logs have them all";

fn error_table(entries: &[ErrorInformation]) -> String {
    if entries.is_empty() {
        return NO_ERRORS.to_owned();
    }
    let of_command = |number: u16| match number {
        ErrorInformation::NO_COMMAND => "-".to_owned(),
        number => number.to_string(),
    };
    let row = |entry: &ErrorInformation| {
        let place = entry.parameter_error_location;
        let place = match place.bits() {
            u16::MAX => "-".to_owned(),
            _ => format!("byte {} bit {}", place.byte(), place.bit()),
        };
        vec![
            entry.error_count.get().to_string(),
            of_command(entry.sqid.get()),
            of_command(entry.cid.get()),
            entry.nsid.get().to_string(),
            entry.lba.get().to_string(),
            place,
            entry.status().to_string(),
        ]
    };
    let rows: Vec<_> = entries.iter().map(row).collect();
    let columns = [
        Column::text("count"),
        Column::text("queue").spare(2),
        Column::text("command").spare(3),
        Column::text("nsid"),
        Column::text("lba"),
        Column::text("wrong field").spare(1),
        Column::text("status"),
    ];
    output::table(&columns, &rows)
}

/// Shows which commands a controller supports, and what they do beside their purpose.
pub(crate) fn effects(args: &EffectsLogArgs, context: &Context) -> Result<()> {
    let bytes = with_controller(&args.connect, context, |controller| {
        let (size, needed) = (CommandEffectsLog::SIZE, EFFECTS_BYTES);
        controller.log_page_start(LogId::COMMAND_EFFECTS.0, NSID_ALL, size, needed).context("Get Log Page")
    })?;
    let log = CommandEffectsLog::read_from_bytes(&bytes).map_err(|_| anyhow!("the log page is too short"))?;
    let admin = supported(&log.acs, |opcode| AdminOpcode(opcode).to_string());
    let io = supported(&log.iocs, |opcode| IoOpcode(opcode).to_string());
    output::either(
        context.json,
        || {
            let document =
                |commands: &[Supported]| commands.iter().map(Supported::document).collect::<Vec<_>>();
            json!({ "admin": document(&admin), "io": document(&io) })
        },
        || {
            let rows = [("admin", &admin), ("I/O", &io)].into_iter().flat_map(|(queue, commands)| {
                commands.iter().flat_map(|command| command.rows(queue, args.human_readable))
            });
            output::table(
                &["queue", "opcode", "command", "effects"].map(Column::text),
                &rows.collect::<Vec<_>>(),
            )
        },
    )
}

/// Bytes of the log page that say something: four for each opcode of admin and of I/O commands.
const EFFECTS_BYTES: usize = 2 * 256 * size_of::<CommandEffects>();

/// A command that the controller has.
struct Supported {
    opcode: u8,
    name: String,
    effects: CommandEffects,
}

fn supported(effects: &[CommandEffects; 256], name: impl Fn(u8) -> String) -> Vec<Supported> {
    let all = (0..=u8::MAX).zip(effects).filter(|(_, effects)| effects.csupp());
    all.map(|(opcode, effects)| Supported { opcode, name: name(opcode), effects: *effects }).collect()
}

impl Supported {
    fn document(&self) -> Value {
        let effects = decode::value(self.effects.bits().into(), CommandEffects::FIELDS);
        json!({ "opcode": self.opcode, "name": self.name, "effects": effects })
    }

    /// What it does in short, and bit by bit where the user wants that.
    fn rows(&self, queue: &str, each_bit: bool) -> Vec<Vec<String>> {
        let texts = [
            (self.effects.lbcc(), "content of blocks"),
            (self.effects.ncc(), "namespace capabilities"),
            (self.effects.nic(), "namespace inventory"),
            (self.effects.ccc(), "controller capabilities"),
        ];
        let changes: Vec<_> = texts.iter().filter(|(does, _)| *does).map(|(_, text)| *text).collect();
        let mut what =
            if changes.is_empty() { "-".to_owned() } else { format!("changes {}", changes.join(", ")) };
        if self.effects.cse().0 != 0 {
            what = format!("{what}; {}", self.effects.cse());
        }
        let first = vec![queue.to_owned(), format!("{:#04x}", self.opcode), self.name.clone(), what];
        let bits = if each_bit { CommandEffects::FIELDS } else { &[] };
        let bits = decode::lines(self.effects.bits().into(), bits).into_iter();
        let bits = bits.map(|line| vec![String::new(), String::new(), String::new(), line.trim().to_owned()]);
        [first].into_iter().chain(bits).collect()
    }
}

/// Shows the namespaces that have changed since this log page was read last.
pub(crate) fn changed_namespaces(args: &ConnectArgs, context: &Context) -> Result<()> {
    let bytes = with_controller(args, context, |controller| {
        // A list ends with a zero, or with the data.
        let (page, size) = (LogId::CHANGED_NAMESPACE_LIST.0, ChangedNamespaceList::SIZE);
        controller.log_page_start(page, NSID_ALL, size, size_of::<u32>()).context("Get Log Page")
    })?;
    let list =
        ChangedNamespaceList::read_from_bytes(&bytes).map_err(|_| anyhow!("the log page is too short"))?;
    let nsids: Vec<u32> = list.iter().collect();
    output::either(
        context.json,
        || json!({ "too_many": list.is_too_many(), "namespaces": nsids }),
        || match (list.is_too_many(), &nsids[..]) {
            (true, _) => "more namespaces have changed than the list holds".to_owned(),
            (false, []) => {
                "no namespace has changed since the controller was made, which this command has of its own"
                    .to_owned()
            }
            (false, nsids) => nsids.iter().map(|nsid| format!("{nsid}\n")).collect(),
        },
    )
}

#[cfg(test)]
mod tests {
    use ringfab_spec::Status;
    use ringfab_spec::log::ParameterErrorLocation;

    use super::*;

    #[test]
    fn an_error_shows_its_command_its_field_and_its_status() {
        let mut entry = ErrorInformation::zeroed();
        entry.error_count.set(9);
        entry.sqid.set(1);
        entry.cid.set(ErrorInformation::NO_COMMAND);
        entry.parameter_error_location = ParameterErrorLocation::default().with_byte(40).with_bit(3);
        entry.set_status(Status::INVALID_FIELD);
        let table = error_table(std::slice::from_ref(&entry));
        let row = table.lines().nth(1).expect("a row");
        assert!(row.starts_with("9 ") && row.contains("byte 40 bit 3"), "{table}");
        assert!(row.ends_with(&Status::INVALID_FIELD.to_string()), "{table}");
        assert!(row.split_whitespace().any(|cell| cell == "-"), "{table}");
        assert_eq!(error_document(&entry)["parm_error_location"], 40 | 3 << 8);
        assert_eq!(error_table(&[]), NO_ERRORS);
        // A controller of one command has no errors to show, so this is what is compared with the documentation.
        let documented = include_str!("../../../../docs/json-controllers.md");
        let keys = error_document(&entry).as_object().expect("an object").clone();
        let unknown: Vec<_> =
            keys.keys().filter(|key| !documented.contains(&format!("`errors[].{key}`"))).collect();
        assert!(unknown.is_empty() && documented.matches("`errors[].").count() == keys.len(), "{unknown:?}");
    }

    #[test]
    fn a_command_shows_what_it_changes_and_each_bit_where_that_is_wanted() {
        let effects = CommandEffects::supported().with_lbcc(true);
        let command = Supported { opcode: 1, name: "Write".to_owned(), effects };
        assert_eq!(command.rows("I/O", false), [["I/O", "0x01", "Write", "changes content of blocks"]]);
        assert_eq!(command.rows("I/O", true).len(), 1 + CommandEffects::FIELDS.len());
        assert_eq!(command.document()["effects"]["lbcc"], true);
    }
}
