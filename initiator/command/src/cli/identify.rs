//! `ringfab id-ctrl` and `ringfab id-ns`: Identify data structures by the specification's abbreviations.

use std::borrow::Cow;

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use ringfab_spec::identify::{
    ControllerAttributes, DataProtection, DeallocateFeatures, EntrySizes, FabricsCommands, FirmwareUpdates,
    FormatAttributes, FormatProgress, FormattedLbaSize, FusedOperations, IdentifyController,
    IdentifyNamespace, LbaFormat, LogPageAttributes, MetadataCapabilities, MultiPath, NamespaceAttributes,
    NamespaceFeatures, NamespaceSharing, OptionalAdminCommands, OptionalEvents, OptionalNvmCommands,
    ProtectionCapabilities, ReservationCapabilities, SglSupport, VolatileCacheAttributes,
};
use ringfab_spec::nqn::NqnField;
use ringfab_spec::property::Version;
use ringfab_spec::zerocopy::{Immutable, KnownLayout, Unaligned};
use ringfab_spec::{BitField, FromBytes};
use serde_json::{Map, Value};

use ringfab_front_ends::context::Context;
use ringfab_front_ends::namespaces::only_namespace;
use ringfab_front_ends::options::ConnectArgs;
use ringfab_front_ends::output;
use ringfab_front_ends::quantity::Bytes;

use super::{decode, with_controller};

#[derive(Args)]
pub(crate) struct IdCtrlArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Show what the bits mean
    #[arg(long, short = 'H')]
    human_readable: bool,
}

#[derive(Args)]
pub(crate) struct IdNsArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Show what the bits mean
    #[arg(long, short = 'H')]
    human_readable: bool,
}

/// A field of an Identify data structure: its abbreviation and its value.
struct Field {
    name: Cow<'static, str>,
    value: Shown,
    /// What its bits are.
    bits: &'static [BitField],
    /// What it means, in words.
    meaning: Option<String>,
}

enum Shown {
    /// A number, in decimal.
    Number(u64),
    /// The same in hexadecimal, since its bits have meanings.
    Bits(u64),
    /// Text without its padding.
    Text(String),
}

fn number(name: &'static str, value: impl Into<u64>) -> Field {
    Field::new(name, Shown::Number(value.into()))
}

/// A number, with what it means.
fn meant(name: &'static str, value: impl Into<u64>, meaning: impl Into<String>) -> Field {
    Field { meaning: Some(meaning.into()), ..number(name, value) }
}

fn bits(name: &'static str, value: impl Into<u64>, fields: &'static [BitField]) -> Field {
    Field { bits: fields, ..Field::new(name, Shown::Bits(value.into())) }
}

fn text(name: &'static str, value: &impl ToString) -> Field {
    Field::new(name, Shown::Text(value.to_string()))
}

/// Bytes in their order.
fn bytes(name: &'static str, value: &[u8]) -> Field {
    text(name, &value.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// Identify Controller (Base 2.0, section 5.17.2.1). Fields that count from zero are shown as they are.
fn controller_fields(page: &IdentifyController) -> Vec<Field> {
    let [oui0, oui1, oui2] = page.ieee;
    vec![
        bits("vid", page.vid.get(), &[]),
        bits("ssvid", page.ssvid.get(), &[]),
        text("sn", &page.sn),
        text("mn", &page.mn),
        text("fr", &page.fr),
        number("rab", page.rab),
        bits("ieee", u32::from_le_bytes([oui0, oui1, oui2, 0]), &[]),
        bits("cmic", page.cmic.bits(), MultiPath::FIELDS),
        meant("mdts", page.mdts, transfer_limit(page.mdts)),
        number("cntlid", page.cntlid.get()),
        bits("ver", page.ver.bits(), Version::FIELDS),
        bits("oaes", page.oaes.bits(), OptionalEvents::FIELDS),
        bits("ctratt", page.ctratt.bits(), ControllerAttributes::FIELDS),
        meant("cntrltype", page.cntrltype.0, page.cntrltype.to_string()),
        bytes("fguid", &page.fguid),
        bits("oacs", page.oacs.bits(), OptionalAdminCommands::FIELDS),
        meant("acl", page.acl_z, (u16::from(page.acl_z) + 1).to_string()),
        meant("aerl", page.aerl_z, (u16::from(page.aerl_z) + 1).to_string()),
        bits("frmw", page.frmw.bits(), FirmwareUpdates::FIELDS),
        bits("lpa", page.lpa.bits(), LogPageAttributes::FIELDS),
        meant("elpe", page.elpe_z, format!("{} entries", u16::from(page.elpe_z) + 1)),
        meant("kas", page.kas.get(), format!("{} ms", u32::from(page.kas.get()) * 100)),
        bits("sqes", page.sqes.bits(), EntrySizes::FIELDS),
        bits("cqes", page.cqes.bits(), EntrySizes::FIELDS),
        number("maxcmd", page.maxcmd.get()),
        number("nn", page.nn.get()),
        bits("oncs", page.oncs.bits(), OptionalNvmCommands::FIELDS),
        bits("fuses", page.fuses.bits(), FusedOperations::FIELDS),
        bits("fna", page.fna.bits(), FormatAttributes::FIELDS),
        bits("vwc", page.vwc.bits(), VolatileCacheAttributes::FIELDS),
        number("awun", page.awun_z.get()),
        number("awupf", page.awupf_z.get()),
        bits("sgls", page.sgls.bits(), SglSupport::FIELDS),
        number("mnan", page.mnan.get()),
        subsystem_name(&page.subnqn),
        meant("ioccsz", page.ioccsz.get(), Bytes(u64::from(page.ioccsz.get()) * 16).to_string()),
        meant("iorcsz", page.iorcsz.get(), Bytes(u64::from(page.iorcsz.get()) * 16).to_string()),
        number("icdoff", page.icdoff.get()),
        bits("fcatt", page.fcatt, &[]),
        number("msdbd", page.msdbd),
        bits("ofcs", page.ofcs.bits(), FabricsCommands::FIELDS),
    ]
}

/// A name, or what is wrong with it: one with control characters could write to the terminal.
fn subsystem_name(field: &NqnField) -> Field {
    match field.parse() {
        Ok(name) => text("subnqn", &name),
        Err(error) => text("subnqn", &format!("({error})")),
    }
}

/// Identify Namespace of the NVM Command Set (NVM Command Set 1.0, section 4.1.5.1). Fields that count from zero are
/// shown as they are.
fn namespace_fields(page: &IdentifyNamespace) -> Vec<Field> {
    let block = page.lbaf.get(usize::from(page.flbas.index())).and_then(|format| format.block_bytes());
    let size = |name, blocks: u64| match block.and_then(|block| blocks.checked_mul(block.into())) {
        Some(bytes) => meant(name, blocks, Bytes(bytes).to_string()),
        None => number(name, blocks),
    };
    let fields = vec![
        size("nsze", page.nsze.get()),
        size("ncap", page.ncap.get()),
        size("nuse", page.nuse.get()),
        bits("nsfeat", page.nsfeat.bits(), NamespaceFeatures::FIELDS),
        number("nlbaf", page.nlbaf_z),
        bits("flbas", page.flbas.bits(), FormattedLbaSize::FIELDS),
        bits("mc", page.mc.bits(), MetadataCapabilities::FIELDS),
        bits("dpc", page.dpc.bits(), ProtectionCapabilities::FIELDS),
        bits("dps", page.dps.bits(), DataProtection::FIELDS),
        bits("nmic", page.nmic.bits(), NamespaceSharing::FIELDS),
        bits("rescap", page.rescap.bits(), ReservationCapabilities::FIELDS),
        bits("fpi", page.fpi.bits(), FormatProgress::FIELDS),
        bits("dlfeat", page.dlfeat.bits(), DeallocateFeatures::FIELDS),
        number("nawun", page.nawun_z.get()),
        number("nawupf", page.nawupf_z.get()),
        number("nacwu", page.nacwu_z.get()),
        number("nabsn", page.nabsn_z.get()),
        number("nabo", page.nabo.get()),
        number("nabspf", page.nabspf_z.get()),
        number("noiob", page.noiob.get()),
        text("nvmcap", &page.nvmcap.get()),
        number("npwg", page.npwg_z.get()),
        number("npwa", page.npwa_z.get()),
        number("npdg", page.npdg_z.get()),
        number("npda", page.npda_z.get()),
        number("nows", page.nows_z.get()),
        number("mssrl", page.mssrl.get()),
        number("mcl", page.mcl.get()),
        number("msrc", page.msrc_z),
        number("anagrpid", page.anagrpid.get()),
        bits("nsattr", page.nsattr.bits(), NamespaceAttributes::FIELDS),
        number("nvmsetid", page.nvmsetid.get()),
        number("endgid", page.endgid.get()),
        bytes("nguid", &page.nguid),
        bytes("eui64", &page.eui64),
    ];
    fields.into_iter().chain(formats(page)).collect()
}

/// The LBA formats that there are (NLBAF counts from zero).
fn formats(page: &IdentifyNamespace) -> impl Iterator<Item = Field> {
    let formats = page.lbaf.iter().take(usize::from(page.nlbaf_z) + 1);
    let in_use = usize::from(page.flbas.index());
    formats.enumerate().map(move |(index, format)| {
        let block =
            format.block_bytes().map_or_else(|| "none".to_owned(), |block| Bytes(block.into()).to_string());
        let used = if index == in_use { ", in use" } else { "" };
        Field {
            bits: LbaFormat::FIELDS,
            meaning: Some(format!("blocks of {block}, {} bytes of metadata{used}", format.ms())),
            ..Field::new(format!("lbaf{index}"), Shown::Bits(format.bits().into()))
        }
    })
}

/// MDTS in words. Its unit is the smallest memory page of the controller, 4 KiB mostly.
fn transfer_limit(mdts: u8) -> String {
    match 4096_u64.checked_shl(mdts.into()).filter(|bytes| *bytes > 0) {
        _ if mdts == 0 => "no limit".to_owned(),
        Some(bytes) => format!("{} where the smallest memory page has 4 KiB", Bytes(bytes)),
        None => "more than can be".to_owned(),
    }
}

/// Shows the Identify Controller data structure.
pub(crate) fn id_ctrl(args: &IdCtrlArgs, context: &Context) -> Result<()> {
    let bytes = with_controller(&args.connect, context, |controller| {
        controller.identify_controller().context("Identify Controller")
    })?;
    show(&controller_fields(structure(&bytes)?), args.human_readable, context)
}

/// Shows the Identify Namespace data structure.
pub(crate) fn id_ns(args: &IdNsArgs, context: &Context) -> Result<()> {
    let bytes = with_controller(&args.connect, context, |controller| {
        let namespace = only_namespace(&controller.namespaces())?;
        controller.identify_namespace(namespace.nsid).context("Identify Namespace")
    })?;
    show(&namespace_fields(structure(&bytes)?), args.human_readable, context)
}

/// The data of an Identify command as the structure that they are.
fn structure<T: FromBytes + KnownLayout + Immutable + Unaligned>(bytes: &[u8]) -> Result<&T> {
    T::ref_from_bytes(bytes).map_err(|_| anyhow!("the data are {} bytes long", bytes.len()))
}

fn show(fields: &[Field], meanings: bool, context: &Context) -> Result<()> {
    output::either(
        context.json,
        || {
            let named = fields.iter().map(|field| (field.name.to_string(), field.value(meanings)));
            Value::Object(named.collect::<Map<_, _>>())
        },
        || {
            let rows: Vec<_> = fields.iter().map(|field| (field.name.as_ref(), field.text())).collect();
            let pairs = output::pairs(&rows);
            let lines = pairs.lines().zip(fields).flat_map(|(line, field)| {
                let more = if meanings { field.meanings() } else { Vec::new() };
                [line.to_owned()].into_iter().chain(more)
            });
            lines.collect::<Vec<_>>().join("\n")
        },
    )
}

impl Field {
    fn new(name: impl Into<Cow<'static, str>>, value: Shown) -> Self {
        Self { name: name.into(), value, bits: &[], meaning: None }
    }

    /// For programs: numbers stay numbers. With `meanings`, bits are an object.
    fn value(&self, meanings: bool) -> Value {
        match &self.value {
            Shown::Bits(bits) if meanings && !self.bits.is_empty() => decode::value(*bits, self.bits),
            Shown::Number(number) | Shown::Bits(number) => (*number).into(),
            Shown::Text(text) => text.as_str().into(),
        }
    }

    /// What it means: in words, and bit by bit.
    fn meanings(&self) -> Vec<String> {
        let bits = match self.value {
            Shown::Bits(bits) => decode::lines(bits, self.bits),
            _ => Vec::new(),
        };
        let words = self.meaning.as_ref().map(|text| format!("  {text}"));
        words.into_iter().chain(bits).collect()
    }

    fn text(&self) -> String {
        match &self.value {
            Shown::Number(number) => number.to_string(),
            Shown::Bits(number) => format!("{number:#x}"),
            Shown::Text(text) => text.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(fields: &[Field], name: &str) -> String {
        fields.iter().find(|field| field.name == name).expect("a field").text()
    }

    #[test]
    fn a_controller_shows_its_numbers_bits_and_texts_and_cannot_control_a_terminal() {
        let mut data = vec![0; 4096];
        data[4..10].copy_from_slice(b"S1\x1b[ \0");
        data[73..76].copy_from_slice(&[1, 2, 3]);
        data[112..114].copy_from_slice(&[0xab, 1]);
        data[516..520].copy_from_slice(&[1, 2, 0, 0]);
        data[768..772].copy_from_slice(b"n\x1b[H");
        let fields = controller_fields(structure(&data).expect("as long as the structure"));
        assert_eq!(shown(&fields, "sn"), "S1.[");
        assert_eq!(shown(&fields, "ieee"), "0x30201");
        assert_eq!(shown(&fields, "fguid"), format!("ab01{}", "0".repeat(28)));
        assert_eq!(shown(&fields, "nn"), "513");
        assert_eq!(shown(&fields, "vid"), "0x0");
        assert!(!shown(&fields, "subnqn").contains('\x1b'));
    }

    #[test]
    fn bits_and_quantities_are_told_in_words_where_that_is_wanted() {
        let mut data = vec![0; 4096];
        (data[77], data[320], data[520]) = (5, 10, 0b1101);
        let fields = controller_fields(structure(&data).expect("as long as the structure"));
        let field = |name: &str| fields.iter().find(|field| field.name == name).expect("a field");
        assert!(field("mdts").meanings()[0].contains("128 KiB"));
        assert_eq!(field("kas").meanings(), ["  1000 ms"]);
        assert_eq!(field("oncs").meanings()[0], "  [0:0]   0x1    compare");
        assert_eq!(
            (field("oncs").value(false), field("oncs").value(true)["verify"].as_bool()),
            (13.into(), Some(false))
        );
        let mut data = vec![0; 4096];
        (data[0], data[128 + 2]) = (8, 12);
        let fields = namespace_fields(structure(&data).expect("as long as the structure"));
        let field = |name: &str| fields.iter().find(|field| field.name == name).expect("a field").meanings();
        assert_eq!(field("nsze"), ["  32 KiB"]);
        assert_eq!(field("lbaf0")[0], "  blocks of 4 KiB, 0 bytes of metadata, in use");
    }

    #[test]
    fn data_that_are_too_short_are_an_error() {
        assert!(structure::<IdentifyNamespace>(&[0; 4095]).is_err());
        let data = [0xff; 4096];
        let fields = namespace_fields(structure(&data).expect("as long as the structure"));
        assert_eq!(shown(&fields, "nsze"), u64::MAX.to_string());
        assert_eq!(shown(&fields, "lbaf0"), "0xffffffff");
        assert_eq!(shown(&fields, "lbaf63"), "0xffffffff");
    }

    #[test]
    fn a_namespace_shows_its_limits_of_copying_and_no_format_that_it_does_not_have() {
        let mut data = vec![0; 4096];
        (data[25], data[74], data[76], data[80]) = (1, 1, 2, 3);
        let fields = namespace_fields(structure(&data).expect("as long as the structure"));
        assert_eq!(["mssrl", "mcl", "msrc"].map(|name| shown(&fields, name)), ["1", "2", "3"]);
        assert_eq!(fields.iter().filter(|field| field.name.starts_with("lbaf")).count(), 2);
    }
}
