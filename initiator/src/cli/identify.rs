//! `ringfab id-ctrl` and `ringfab id-ns`: Identify data structures by the specification's abbreviations.

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde_json::{Map, Value};

use super::engine::only_namespace;
use super::options::ConnectArgs;
use super::{Context, output, with_controller};

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

/// A field of an Identify data structure: its abbreviation, its first byte, and what the bytes are.
struct Field {
    name: &'static str,
    offset: usize,
    shape: Shape,
}

enum Shape {
    /// A little-endian number of this many bytes, in decimal.
    Number(usize),
    /// The same in hexadecimal, since its bits have meanings.
    Bits(usize),
    /// ASCII, padded with blanks or zeroes.
    Text(usize),
    /// Bytes in order.
    Bytes(usize),
}

const fn field(name: &'static str, offset: usize, shape: Shape) -> Field {
    Field { name, offset, shape }
}

/// Identify Controller (Base 2.0, section 5.17.2.1, figure 275).
const CONTROLLER: &[Field] = &[
    field("vid", 0, Shape::Bits(2)),
    field("ssvid", 2, Shape::Bits(2)),
    field("sn", 4, Shape::Text(20)),
    field("mn", 24, Shape::Text(40)),
    field("fr", 64, Shape::Text(8)),
    field("rab", 72, Shape::Number(1)),
    field("ieee", 73, Shape::Bits(3)),
    field("cmic", 76, Shape::Bits(1)),
    field("mdts", 77, Shape::Number(1)),
    field("cntlid", 78, Shape::Number(2)),
    field("ver", 80, Shape::Bits(4)),
    field("oaes", 92, Shape::Bits(4)),
    field("ctratt", 96, Shape::Bits(4)),
    field("cntrltype", 111, Shape::Number(1)),
    field("fguid", 112, Shape::Bytes(16)),
    field("oacs", 256, Shape::Bits(2)),
    field("acl", 258, Shape::Number(1)),
    field("aerl", 259, Shape::Number(1)),
    field("frmw", 260, Shape::Bits(1)),
    field("lpa", 261, Shape::Bits(1)),
    field("elpe", 262, Shape::Number(1)),
    field("kas", 320, Shape::Number(2)),
    field("sqes", 512, Shape::Bits(1)),
    field("cqes", 513, Shape::Bits(1)),
    field("maxcmd", 514, Shape::Number(2)),
    field("nn", 516, Shape::Number(4)),
    field("oncs", 520, Shape::Bits(2)),
    field("fuses", 522, Shape::Bits(2)),
    field("fna", 524, Shape::Bits(1)),
    field("vwc", 525, Shape::Bits(1)),
    field("awun", 526, Shape::Number(2)),
    field("awupf", 528, Shape::Number(2)),
    field("sgls", 536, Shape::Bits(4)),
    field("mnan", 540, Shape::Number(4)),
    field("subnqn", 768, Shape::Text(256)),
    field("ioccsz", 1792, Shape::Number(4)),
    field("iorcsz", 1796, Shape::Number(4)),
    field("icdoff", 1800, Shape::Number(2)),
    field("fcatt", 1802, Shape::Bits(1)),
    field("msdbd", 1803, Shape::Number(1)),
    field("ofcs", 1804, Shape::Bits(2)),
];

/// Identify Namespace of the NVM Command Set (NVM Command Set 1.0, section 4.1.5.1, figure 97).
const NAMESPACE: &[Field] = &[
    field("nsze", 0, Shape::Number(8)),
    field("ncap", 8, Shape::Number(8)),
    field("nuse", 16, Shape::Number(8)),
    field("nsfeat", 24, Shape::Bits(1)),
    field("nlbaf", 25, Shape::Number(1)),
    field("flbas", 26, Shape::Bits(1)),
    field("mc", 27, Shape::Bits(1)),
    field("dpc", 28, Shape::Bits(1)),
    field("dps", 29, Shape::Bits(1)),
    field("nmic", 30, Shape::Bits(1)),
    field("rescap", 31, Shape::Bits(1)),
    field("dlfeat", 33, Shape::Bits(1)),
    field("nawun", 34, Shape::Number(2)),
    field("nawupf", 36, Shape::Number(2)),
    field("npwg", 64, Shape::Number(2)),
    field("npwa", 66, Shape::Number(2)),
    field("npdg", 68, Shape::Number(2)),
    field("npda", 70, Shape::Number(2)),
    field("nows", 72, Shape::Number(2)),
    field("mssrl", 74, Shape::Number(2)),
    field("anagrpid", 92, Shape::Number(4)),
    field("nsattr", 99, Shape::Bits(1)),
    field("nvmsetid", 100, Shape::Number(2)),
    field("endgid", 102, Shape::Number(2)),
    field("nguid", 104, Shape::Bytes(16)),
    field("eui64", 120, Shape::Bytes(8)),
    field("lbaf0", 128, Shape::Bits(4)),
];

/// Bytes of an Identify data structure.
const IDENTIFY_BYTES: usize = 4096;

/// Shows the Identify Controller data structure.
pub(crate) fn id_ctrl(args: &IdCtrlArgs, context: &Context) -> Result<()> {
    let bytes = with_controller(&args.connect, context, |controller| {
        controller.identify_controller().context("Identify Controller")
    })?;
    show(&bytes, CONTROLLER, context)
}

/// Shows the Identify Namespace data structure.
pub(crate) fn id_ns(args: &IdNsArgs, context: &Context) -> Result<()> {
    let bytes = with_controller(&args.connect, context, |controller| {
        let namespace = only_namespace(&controller.namespaces())?;
        controller.identify_namespace(namespace.nsid).context("Identify Namespace")
    })?;
    show(&bytes, NAMESPACE, context)
}

fn show(bytes: &[u8], fields: &[Field], context: &Context) -> Result<()> {
    ensure!(bytes.len() >= IDENTIFY_BYTES, "the data are {} bytes instead of {IDENTIFY_BYTES}", bytes.len());
    output::either(
        context.json,
        || {
            let named = fields.iter().map(|field| (field.name.to_owned(), field.value(bytes)));
            Value::Object(named.collect::<Map<_, _>>())
        },
        || {
            let rows: Vec<_> = fields.iter().map(|field| (field.name, field.text(bytes))).collect();
            output::pairs(&rows)
        },
    )
}

impl Field {
    /// For programs: numbers stay numbers.
    fn value(&self, data: &[u8]) -> Value {
        match self.shape {
            Shape::Number(length) | Shape::Bits(length) => number(&data[self.offset..][..length]).into(),
            _ => self.text(data).into(),
        }
    }

    fn text(&self, data: &[u8]) -> String {
        let at = |length: usize| &data[self.offset..][..length];
        match self.shape {
            Shape::Number(length) => number(at(length)).to_string(),
            Shape::Bits(length) => format!("{:#x}", number(at(length))),
            Shape::Text(length) => ascii(at(length)),
            Shape::Bytes(length) => at(length).iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Text of a peer: what could move a terminal's cursor is shown as a question mark.
fn ascii(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let shown = |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '?' };
    bytes[..end].iter().map(shown).collect::<String>().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_lies_within_the_structure_and_after_the_one_before() {
        for fields in [CONTROLLER, NAMESPACE] {
            let mut end = 0;
            for field in fields {
                assert!(field.offset >= end, "{}", field.name);
                end = field.offset
                    + match field.shape {
                        Shape::Number(length) | Shape::Bits(length) => length,
                        Shape::Text(length) | Shape::Bytes(length) => length,
                    };
            }
            assert!(end <= IDENTIFY_BYTES);
        }
    }

    #[test]
    fn numbers_are_little_endian_and_text_is_cleaned() {
        let mut data = vec![0; IDENTIFY_BYTES];
        data[4..10].copy_from_slice(b"S1\x1b[ \0");
        data[516..520].copy_from_slice(&[1, 2, 0, 0]);
        let text = |name| CONTROLLER.iter().find(|field| field.name == name).expect("a field").text(&data);
        assert_eq!(text("sn"), "S1?[");
        assert_eq!(text("nn"), "513");
        assert_eq!(text("vid"), "0x0");
    }
}
