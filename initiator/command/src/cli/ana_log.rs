//! `ringfab ana-log`: what a controller may do with the namespaces of each access group (ANA).

use anyhow::{Context as _, Result, anyhow, ensure};
use ringfab_process::table::Column;
use ringfab_spec::identify::{IdentifyController, NSID_ALL};
use ringfab_spec::log::{AnaGroupDescriptor, AnaLogHeader, LogId};
use ringfab_spec::zerocopy::FromBytes as _;
use ringfab_spec::zerocopy::little_endian::U32;
use serde_json::{Value, json};

use ringfab_front_ends::context::Context;
use ringfab_front_ends::options::ConnectArgs;
use ringfab_front_ends::output;

use super::with_controller;

/// The most groups, and namespaces, of which a page is read: a controller may claim 4,294,967,295 of each.
const GROUPS_MAX: usize = 4096;
const NAMESPACES_MAX: usize = 65_536;

/// A group, as one controller has it.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    descriptor: AnaGroupDescriptor,
    nsids: Vec<u32>,
}

/// Shows the Asymmetric Namespace Access log page.
///
/// # Errors
/// The controller has no such page, or sends something else.
pub(crate) fn run(args: &ConnectArgs, context: &Context) -> Result<()> {
    let page = with_controller(args, context, |controller| {
        let identify = controller.identify_controller().context("Identify Controller")?;
        let (identify, _) =
            IdentifyController::ref_from_prefix(&identify).map_err(|_| anyhow!("too short"))?;
        ensure!(identify.cmic.ana(), "the controller reports no access states (ANA)");
        controller.log_page(LogId::ANA.0, NSID_ALL, 0, bytes_max(identify)).context("Get Log Page")
    })?;
    let (header, groups) = parse(&page)?;
    output::either(
        context.json,
        || {
            let groups: Vec<_> = groups.iter().map(Group::document).collect();
            json!({ "change_count": header.change_count.get(), "groups": groups })
        },
        || {
            let columns = ["group", "state", "change count", "namespaces"].map(Column::text);
            output::table(&columns, &groups.iter().map(Group::row).collect::<Vec<_>>())
        },
    )
}

/// What the page has at most (Base 2.0, section 5.16.1.13): all groups, and each namespace in one of them.
fn bytes_max(identify: &IdentifyController) -> usize {
    let namespaces = match identify.mnan.get() {
        0 => identify.nn.get(),
        most => most,
    };
    let bounded = |count: u32, most: usize| usize::try_from(count).unwrap_or(most).min(most);
    AnaLogHeader::SIZE
        + bounded(identify.nanagrpid.get(), GROUPS_MAX) * AnaGroupDescriptor::SIZE
        + bounded(namespaces, NAMESPACES_MAX) * size_of::<U32>()
}

/// The groups of a page, in its order.
fn parse(page: &[u8]) -> Result<(AnaLogHeader, Vec<Group>)> {
    let (header, mut rest) =
        AnaLogHeader::read_from_prefix(page).map_err(|_| anyhow!("the log page has no header"))?;
    let count = header.groups.get();
    let mut groups = Vec::new();
    for number in 1..=count {
        let short = || anyhow!("the log page ends in group {number} of {count}");
        let (descriptor, behind) = AnaGroupDescriptor::read_from_prefix(rest).map_err(|_| short())?;
        let nsids = usize::try_from(descriptor.nsids.get())?;
        let (nsids, behind) = <[U32]>::ref_from_prefix_with_elems(behind, nsids).map_err(|_| short())?;
        groups.push(Group { descriptor, nsids: nsids.iter().map(|nsid| nsid.get()).collect() });
        rest = behind;
    }
    Ok((header, groups))
}

impl Group {
    fn document(&self) -> Value {
        json!({
            "group": self.descriptor.group.get(),
            "state": self.descriptor.state.state().to_string(),
            "change_count": self.descriptor.change_count.get(),
            "namespaces": self.nsids,
        })
    }

    fn row(&self) -> Vec<String> {
        let nsids: Vec<_> = self.nsids.iter().map(u32::to_string).collect();
        vec![
            self.descriptor.group.get().to_string(),
            self.descriptor.state.state().to_string(),
            self.descriptor.change_count.get().to_string(),
            if nsids.is_empty() { "-".to_owned() } else { nsids.join(",") },
        ]
    }
}

#[cfg(test)]
mod tests {
    use ringfab_spec::log::AnaState;
    use ringfab_spec::zerocopy::IntoBytes as _;

    use super::*;

    fn page() -> Vec<u8> {
        let mut page = AnaLogHeader::new(7, 2).as_bytes().to_vec();
        page.extend_from_slice(AnaGroupDescriptor::new(1, AnaState::OPTIMIZED, 3, 2).as_bytes());
        page.extend_from_slice(&[1, 0, 0, 0, 9, 0, 0, 0]);
        page.extend_from_slice(AnaGroupDescriptor::new(2, AnaState::INACCESSIBLE, 7, 0).as_bytes());
        page
    }

    #[test]
    fn a_page_has_its_groups_each_with_its_namespaces() {
        let (header, groups) = parse(&page()).expect("a page");
        assert_eq!(header.change_count.get(), 7);
        let rows: Vec<_> = groups.iter().map(Group::row).collect();
        assert_eq!(rows, [["1", "optimized", "3", "1,9"], ["2", "inaccessible", "7", "-"]]);
        assert_eq!(groups[0].document()["namespaces"], json!([1, 9]));
    }

    #[test]
    fn a_page_that_ends_too_early_says_where() {
        let whole = page();
        for length in AnaLogHeader::SIZE..whole.len() {
            let error = parse(&whole[..length]).expect_err("too short").to_string();
            assert!(error.starts_with("the log page ends in group"), "{length}: {error}");
        }
        assert!(parse(&whole[..15]).is_err());
    }
}
