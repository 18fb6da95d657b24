//! `ringfab id-ctrl` and `ringfab id-ns`: Identify data structures by the specification's abbreviations.

use std::borrow::Cow;

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use ringfab_spec::FromBytes;
use ringfab_spec::identify::{IdentifyController, IdentifyNamespace};
use ringfab_spec::nqn::NqnField;
use ringfab_spec::zerocopy::{Immutable, KnownLayout, Unaligned};
use serde_json::{Map, Value};

use ringfab_front_ends::context::Context;
use ringfab_front_ends::namespaces::only_namespace;
use ringfab_front_ends::options::ConnectArgs;
use ringfab_front_ends::output;

use super::with_controller;

#[derive(Args)]
pub(crate) struct IdCtrlArgs {
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Args)]
pub(crate) struct IdNsArgs {
    #[command(flatten)]
    connect: ConnectArgs,
}

/// A field of an Identify data structure: its abbreviation and its value.
struct Field {
    name: Cow<'static, str>,
    value: Shown,
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
    Field { name: name.into(), value: Shown::Number(value.into()) }
}

fn bits(name: &'static str, value: impl Into<u64>) -> Field {
    Field { name: name.into(), value: Shown::Bits(value.into()) }
}

fn text(name: &'static str, value: &impl ToString) -> Field {
    Field { name: name.into(), value: Shown::Text(value.to_string()) }
}

/// Bytes in their order.
fn bytes(name: &'static str, value: &[u8]) -> Field {
    text(name, &value.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// Identify Controller (Base 2.0, section 5.17.2.1). Fields that count from zero are shown as they are.
fn controller_fields(page: &IdentifyController) -> Vec<Field> {
    let [oui0, oui1, oui2] = page.ieee;
    vec![
        bits("vid", page.vid.get()),
        bits("ssvid", page.ssvid.get()),
        text("sn", &page.sn),
        text("mn", &page.mn),
        text("fr", &page.fr),
        number("rab", page.rab),
        bits("ieee", u32::from_le_bytes([oui0, oui1, oui2, 0])),
        bits("cmic", page.cmic.bits()),
        number("mdts", page.mdts),
        number("cntlid", page.cntlid.get()),
        bits("ver", page.ver.bits()),
        bits("oaes", page.oaes.bits()),
        bits("ctratt", page.ctratt.bits()),
        number("cntrltype", page.cntrltype.0),
        bytes("fguid", &page.fguid),
        bits("oacs", page.oacs.bits()),
        number("acl", page.acl_z),
        number("aerl", page.aerl_z),
        bits("frmw", page.frmw.bits()),
        bits("lpa", page.lpa.bits()),
        number("elpe", page.elpe_z),
        number("kas", page.kas.get()),
        bits("sqes", page.sqes.bits()),
        bits("cqes", page.cqes.bits()),
        number("maxcmd", page.maxcmd.get()),
        number("nn", page.nn.get()),
        bits("oncs", page.oncs.bits()),
        bits("fuses", page.fuses.bits()),
        bits("fna", page.fna.bits()),
        bits("vwc", page.vwc.bits()),
        number("awun", page.awun_z.get()),
        number("awupf", page.awupf_z.get()),
        bits("sgls", page.sgls.bits()),
        number("mnan", page.mnan.get()),
        subsystem_name(&page.subnqn),
        number("ioccsz", page.ioccsz.get()),
        number("iorcsz", page.iorcsz.get()),
        number("icdoff", page.icdoff.get()),
        bits("fcatt", page.fcatt),
        number("msdbd", page.msdbd),
        bits("ofcs", page.ofcs.bits()),
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
    let fields = vec![
        number("nsze", page.nsze.get()),
        number("ncap", page.ncap.get()),
        number("nuse", page.nuse.get()),
        bits("nsfeat", page.nsfeat.bits()),
        number("nlbaf", page.nlbaf_z),
        bits("flbas", page.flbas.bits()),
        bits("mc", page.mc.bits()),
        bits("dpc", page.dpc.bits()),
        bits("dps", page.dps.bits()),
        bits("nmic", page.nmic.bits()),
        bits("rescap", page.rescap.bits()),
        bits("fpi", page.fpi.bits()),
        bits("dlfeat", page.dlfeat.bits()),
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
        bits("nsattr", page.nsattr.bits()),
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
    formats.enumerate().map(|(index, format)| Field {
        name: format!("lbaf{index}").into(),
        value: Shown::Bits(format.bits().into()),
    })
}

/// Shows the Identify Controller data structure.
pub(crate) fn id_ctrl(args: &IdCtrlArgs, context: &Context) -> Result<()> {
    let bytes = with_controller(&args.connect, context, |controller| {
        controller.identify_controller().context("Identify Controller")
    })?;
    show(&controller_fields(structure(&bytes)?), context)
}

/// Shows the Identify Namespace data structure.
pub(crate) fn id_ns(args: &IdNsArgs, context: &Context) -> Result<()> {
    let bytes = with_controller(&args.connect, context, |controller| {
        let namespace = only_namespace(&controller.namespaces())?;
        controller.identify_namespace(namespace.nsid).context("Identify Namespace")
    })?;
    show(&namespace_fields(structure(&bytes)?), context)
}

/// The data of an Identify command as the structure that they are.
fn structure<T: FromBytes + KnownLayout + Immutable + Unaligned>(bytes: &[u8]) -> Result<&T> {
    T::ref_from_bytes(bytes).map_err(|_| anyhow!("the data are {} bytes long", bytes.len()))
}

fn show(fields: &[Field], context: &Context) -> Result<()> {
    output::either(
        context.json,
        || {
            let named = fields.iter().map(|field| (field.name.to_string(), field.value()));
            Value::Object(named.collect::<Map<_, _>>())
        },
        || {
            let rows: Vec<_> = fields.iter().map(|field| (field.name.as_ref(), field.text())).collect();
            output::pairs(&rows)
        },
    )
}

impl Field {
    /// For programs: numbers stay numbers.
    fn value(&self) -> Value {
        match &self.value {
            Shown::Number(number) | Shown::Bits(number) => (*number).into(),
            Shown::Text(text) => text.as_str().into(),
        }
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
