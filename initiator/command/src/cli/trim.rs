//! `ringfab trim`: says that blocks of a namespace are no longer needed (Dataset Management, deallocate), or zeroes
//! them.

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use ringfab_initiator::{BlockRange, Namespace};
use serde_json::json;

use ringfab_front_ends::context::{Context, Usage};
use ringfab_front_ends::namespaces::only_namespace;
use ringfab_front_ends::options::ConnectArgs;
use ringfab_front_ends::output;
use ringfab_front_ends::overwriting::confirm_overwriting;
use ringfab_front_ends::quantity::Bytes;

use super::with_controller;

#[derive(Args)]
pub(crate) struct TrimArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    place: PlaceArgs,
    /// Write zeroes instead (Write Zeroes, with Deallocate where the controller has that): what is trimmed may read as
    /// before
    #[arg(long, short)]
    zeroout: bool,
    /// Confirm that data of this namespace are lost
    #[arg(long, value_name = "NSID")]
    destroy_data: Option<u32>,
    /// Confirm it, whatever namespace the address leads to
    #[arg(long, short, conflicts_with = "destroy_data")]
    force: bool,
}

/// Which blocks.
#[derive(Args)]
#[group(required = true)]
struct PlaceArgs {
    /// All blocks
    #[arg(long, conflicts_with_all = ["offset", "length", "slbs", "blocks"])]
    all: bool,
    /// First byte; with --length
    #[arg(long, short, value_name = "SIZE", conflicts_with_all = ["slbs", "blocks"])]
    offset: Option<Bytes>,
    /// Bytes from --offset on; by default everything up to the end
    #[arg(long, short, value_name = "SIZE", conflicts_with_all = ["slbs", "blocks"])]
    length: Option<Bytes>,
    /// First logical block of each range, as `nvme dsm` takes them
    #[arg(long, short, value_name = "LIST", value_delimiter = ',', requires = "blocks")]
    slbs: Vec<u64>,
    /// Logical blocks of each range
    #[arg(long, short, value_name = "LIST", value_delimiter = ',', requires = "slbs")]
    blocks: Vec<u64>,
}

/// First blocks and numbers of blocks.
type Ranges = Vec<(u64, u64)>;

/// Trims or zeroes the ranges of a namespace, and says how much that was.
pub(crate) fn run(args: &TrimArgs, context: &Context) -> Result<()> {
    let (nsid, ranges, bytes) = with_controller(&args.connect, context, |controller| {
        let namespace = only_namespace(&controller.namespaces())?;
        let ranges = args.place.ranges(&namespace)?;
        let confirmed = if args.force { Some(namespace.nsid) } else { args.destroy_data };
        confirm_overwriting(controller, &namespace, confirmed)?;
        let (nsid, block) = (namespace.nsid, u64::from(namespace.block_bytes));
        let disk = controller.disk_of(&namespace);
        if args.zeroout {
            ensure!(namespace.write_zeroes_blocks_max > 0, "the controller has no Write Zeroes");
            for (slba, blocks) in &ranges {
                disk.write_zeroes(slba * block, blocks * block, true).context("Write Zeroes")?;
            }
        } else {
            ensure!(
                namespace.discard_blocks_max > 0,
                "the controller has no Dataset Management; see --zeroout"
            );
            disk.discard(&commands(&ranges)).context("Dataset Management")?;
        }
        disk.flush().context("Flush")?;
        let blocks: u64 = ranges.iter().map(|(_, blocks)| blocks).sum();
        Ok((nsid, ranges, blocks * block))
    })?;
    output::either(
        context.json,
        || {
            let range = |(slba, blocks): &(u64, u64)| json!({ "slba": slba, "blocks": blocks });
            let ranges: Vec<_> = ranges.iter().map(range).collect();
            json!({ "nsid": nsid, "bytes": bytes, "zeroed": args.zeroout, "ranges": ranges })
        },
        || {
            format!(
                "{} of namespace {nsid} {}",
                Bytes(bytes),
                if args.zeroout { "zeroed" } else { "trimmed" }
            )
        },
    )
}

impl PlaceArgs {
    fn ranges(&self, namespace: &Namespace) -> Result<Ranges> {
        let ranges = if self.all {
            vec![(0, namespace.blocks)]
        } else if self.slbs.is_empty() {
            vec![self.bytes(namespace)?]
        } else {
            if self.slbs.len() != self.blocks.len() {
                return Err(Usage("--slbs and --blocks need as many numbers each".to_owned()).into());
            }
            self.slbs.iter().copied().zip(self.blocks.iter().copied()).collect()
        };
        for (slba, blocks) in &ranges {
            let end = slba.checked_add(*blocks).filter(|end| *end <= namespace.blocks);
            let (nsid, all) = (namespace.nsid, namespace.blocks);
            ensure!(end.is_some(), "namespace {nsid} has {all} blocks: {blocks} from {slba} on do not fit");
        }
        Ok(ranges.into_iter().filter(|(_, blocks)| *blocks > 0).collect())
    }

    /// The range that is given in bytes.
    fn bytes(&self, namespace: &Namespace) -> Result<(u64, u64)> {
        let block = u64::from(namespace.block_bytes);
        let offset = self.offset.map_or(0, |offset| offset.0);
        let length = self.length.map_or(namespace.bytes().saturating_sub(offset), |length| length.0);
        let whole = offset.is_multiple_of(block) && length.is_multiple_of(block);
        ensure!(whole, "offset and length must be multiples of a block, {}", Bytes(block));
        Ok((offset / block, length / block))
    }
}

/// Ranges as they fit commands, whose numbers of blocks have 32 bits.
fn commands(ranges: &[(u64, u64)]) -> Vec<BlockRange> {
    let most = u64::from(u32::MAX);
    let pieces = |&(slba, blocks): &(u64, u64)| {
        (0..blocks.div_ceil(most)).map(move |piece| {
            let done = piece * most;
            BlockRange { lba: slba + done, nlb: (blocks - done).min(most) as u32 }
        })
    };
    ranges.iter().flat_map(pieces).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_more_blocks_than_a_command_can_name_is_several() {
        let most = u64::from(u32::MAX);
        let pieces = commands(&[(5, 1), (10, most + 3)]);
        let expected = [(5, 1), (10, u32::MAX), (10 + most, 3)];
        assert_eq!(pieces, expected.map(|(lba, nlb)| BlockRange { lba, nlb }));
    }
}
