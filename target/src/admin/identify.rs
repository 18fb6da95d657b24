//! Identify (NVM Express Base 2.0, section 5.17; NVM Command Set 1.0, section 4.1.5).

mod controller;
mod namespace;

use std::sync::Arc;

use ringfab_spec::Status;
use ringfab_spec::identify::{Cns, CommandSet, CommandSetVector, CommandSetVectors, DATA_LEN, NamespaceList};
use ringfab_spec::log::AnaState;

use super::page::Page;
use super::{AdminContext, AdminOutcome, NSID};
use crate::command::{Command, dword_offset};
use crate::config::DEFAULT_ANA_GROUP;
use crate::controller::{Access, Controller};
use crate::failure::Failure;
use crate::limits::{NSID_BROADCAST, NSID_MAX};
use crate::model::{Namespace, ana_status};

const CNS: u16 = dword_offset(10);
const CNTID: u16 = dword_offset(10) + 2;
const CSI: u16 = dword_offset(11) + 3;

pub(super) fn identify(
    controller: &Controller,
    context: &AdminContext<'_>,
    command: Command<'_>,
) -> Result<AdminOutcome, Failure> {
    let cns = Cns(command.u8(CNS));
    if controller.is_discovery() && cns != Cns::CONTROLLER {
        return Err(Failure::invalid_field(CNS));
    }
    let page = match cns {
        Cns::NAMESPACE | Cns::ALLOCATED_NAMESPACE => {
            let found = in_range(controller, context, command)?;
            found.map_or_else(empty, |one| namespace::namespace(&one, access_to(controller, context, &one)))
        }
        Cns::CONTROLLER => Page::of(&controller::controller(controller)),
        Cns::ACTIVE_NAMESPACES | Cns::ALLOCATED_NAMESPACES => list(controller, context, command)?,
        Cns::NAMESPACE_DESCRIPTORS => namespace::descriptors(active(controller, context, command)?.as_ref()),
        Cns::COMMAND_SET_NAMESPACE => {
            check_csi(command)?;
            in_range(controller, context, command)?;
            // Of the NVM Command Set's own fields none applies: there is no protection information.
            empty()
        }
        Cns::COMMAND_SET_CONTROLLER => {
            check_csi(command)?;
            Page::of(&controller::nvm())
        }
        Cns::COMMAND_SET_ACTIVE_NAMESPACES => {
            check_csi(command)?;
            list(controller, context, command)?
        }
        Cns::INDEPENDENT_NAMESPACE => {
            let found = in_range(controller, context, command)?;
            found.map_or_else(empty, |one| namespace::independent(&one, access_to(controller, context, &one)))
        }
        Cns::NAMESPACE_CONTROLLERS => {
            // There is no such list of all namespaces.
            if command.nsid() == NSID_BROADCAST {
                return Err(Failure::invalid_field(NSID));
            }
            active(controller, context, command)?;
            let served = context.served.of(controller.subsystem());
            let shows = |other: &Controller| {
                served.is_none_or(|served| served.shows(command.nsid(), &other.host().nqn))
            };
            Page::of(&controller::controllers(controller, context.target, command.u16(CNTID), shows))
        }
        Cns::CONTROLLERS => {
            let from = command.u16(CNTID);
            Page::of(&controller::controllers(controller, context.target, from, |_| true))
        }
        Cns::COMMAND_SETS => command_sets(controller, command)?,
        _ => return Err(Failure::invalid_field(CNS)),
    };
    Ok(AdminOutcome::Data { bytes: page.into_bytes(), dw0: 0 })
}

fn empty() -> Page {
    Page::zeroed(DATA_LEN)
}

/// The access group of a namespace, and its state by the way on which the host came.
fn access_to(
    controller: &Controller,
    context: &AdminContext<'_>,
    namespace: &Namespace,
) -> namespace::Access {
    let nothing_said = namespace::Access { group: DEFAULT_ANA_GROUP, state: AnaState::OPTIMIZED };
    context.served.of(controller.subsystem()).map_or(nothing_said, |served| {
        let group = served.groups().of(namespace.nsid());
        namespace::Access { group, state: Access(controller).state(served, group) }
    })
}

/// Whether commands that need the blocks of a namespace may go on: the state of its access group says so.
pub(super) fn check_access(
    controller: &Controller,
    context: &AdminContext<'_>,
    namespace: &Namespace,
) -> Result<(), Failure> {
    let status = ana_status(access_to(controller, context, namespace).state);
    status.map_or(Ok(()), |status| Err(Failure::transient(status)))
}

const INVALID_NSID: Failure = Failure::at(Status::INVALID_NAMESPACE, NSID);

/// A namespace that may be inactive, whose page is all zero then. The broadcast value is refused: it would ask for
/// what is common to namespaces that a host may create, and here it may not.
fn in_range(
    controller: &Controller,
    context: &AdminContext<'_>,
    command: Command<'_>,
) -> Result<Option<Arc<Namespace>>, Failure> {
    match command.nsid() {
        nsid @ 1..=NSID_MAX => {
            let (subsystem, host) = (controller.subsystem(), &controller.host().nqn);
            Ok(context.served.namespace_for(subsystem, nsid, host).cloned())
        }
        _ => Err(INVALID_NSID),
    }
}

pub(super) fn active(
    controller: &Controller,
    context: &AdminContext<'_>,
    command: Command<'_>,
) -> Result<Arc<Namespace>, Failure> {
    in_range(controller, context, command)?.ok_or(INVALID_NSID)
}

/// The active identifiers above that of the command, ascending; with more than a list has room for, hosts ask again.
fn list(controller: &Controller, context: &AdminContext<'_>, command: Command<'_>) -> Result<Page, Failure> {
    let after = command.nsid();
    if after >= u32::MAX - 1 {
        return Err(INVALID_NSID);
    }
    let shown = context.served.namespaces_for(controller.subsystem(), &controller.host().nqn);
    Ok(Page::of(&NamespaceList::following(after, shown.map(|namespace| namespace.nsid()))))
}

fn check_csi(command: Command<'_>) -> Result<(), Failure> {
    if CommandSet(command.u8(CSI)) == CommandSet::NVM { Ok(()) } else { Err(Failure::invalid_field(CSI)) }
}

/// The combinations of command sets: one, of the NVM Command Set alone.
fn command_sets(controller: &Controller, command: Command<'_>) -> Result<Page, Failure> {
    const THIS_CONTROLLER: u16 = 0xffff;
    let id = command.u16(CNTID);
    if id != THIS_CONTROLLER && id != controller.id() {
        return Err(Failure::invalid_field(CNTID));
    }
    let mut page = CommandSetVectors::zeroed();
    page.vectors[0] = CommandSetVector::default().with_nvm(true);
    Ok(Page::of(&page))
}
