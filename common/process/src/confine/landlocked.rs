//! Files, TCP ports and other processes: Landlock.
//!
//! io_uring's operations are restricted as well: Landlock checks what is opened, bound and connected, whoever asks.

use std::os::fd::AsFd;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, NetPort,
    PathBeneath, RestrictSelfAttr, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError,
    Scope,
};
use nix::sys::stat::{SFlag, fstat};

use super::{Access, CONFIGURED, Connect, Layer, Plan, Ports, Rule, threads};

/// What the rules were written for. What a later kernel could restrict beyond that stays as it is.
const RULES: ABI = ABI::V7;

/// From which version on the kernel restricts what a layer is about.
const DEVICES_FROM: i32 = ABI::V5 as i32;
const TRUNCATION_FROM: i32 = ABI::V3 as i32;
const PORTS_FROM: i32 = ABI::V4 as i32;
const PROCESSES_FROM: i32 = ABI::V6 as i32;

/// Restricts all threads. Says how the layers `files`, `network` and `processes` are.
pub(super) fn restrict(plan: &Plan, others: usize) -> [Layer; 3] {
    let wanted = plan.files.is_some() || plan.ports.is_some() || plan.signals || plan.abstract_sockets;
    let outcome = if wanted { rules(plan).and_then(apply) } else { Ok(Applied::nothing()) };
    described(plan, outcome, others)
}

/// The same for the calling thread alone, which may do nothing else then.
pub(super) fn restrict_this_thread(plan: &Plan) -> [Layer; 3] {
    let restricted = rules(plan).and_then(RulesetCreated::restrict_self);
    let applied = restricted.map(|status| Applied { version: version(status.landlock), all_threads: false });
    described(plan, applied, 0)
}

fn described(plan: &Plan, outcome: Result<Applied, RulesetError>, others: usize) -> [Layer; 3] {
    let layers = ["files", "network", "processes"];
    let applied = match outcome {
        Ok(applied) => applied,
        Err(error) => return layers.map(|layer| Layer::missing(layer, error.to_string())),
    };
    let unconfined = if applied.all_threads { 0 } else { others };
    [
        files(plan, applied.version, unconfined),
        at_least(plan.ports.is_some(), "network", PORTS_FROM, applied.version, unconfined),
        processes(plan, applied.version, unconfined),
    ]
}

/// What came of it.
struct Applied {
    /// The version of the kernel's Landlock; zero where there is none.
    version: i32,
    /// Whether the kernel has restricted all threads at once, also those that were to end.
    all_threads: bool,
}

impl Applied {
    const fn nothing() -> Self {
        Self { version: 0, all_threads: false }
    }
}

fn rules(plan: &Plan) -> Result<RulesetCreated, RulesetError> {
    let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    if plan.files.is_some() {
        ruleset = ruleset.handle_access(AccessFs::from_all(RULES))?;
    }
    if let Some(ports) = &plan.ports {
        let restricted = match ports.connect {
            Connect::To(_) => AccessNet::from_all(RULES),
            Connect::Anywhere => AccessNet::BindTcp.into(),
        };
        ruleset = ruleset.handle_access(restricted)?;
    }
    if plan.signals {
        ruleset = ruleset.scope(Scope::Signal)?;
    }
    if plan.abstract_sockets {
        ruleset = ruleset.scope(Scope::AbstractUnixSocket)?;
    }
    let mut created = ruleset.create()?;
    for Rule { place, access } in plan.files.iter().flatten() {
        let rights = rights(*access, is_folder(place));
        created = created.add_rule(PathBeneath::new(place.as_fd(), rights))?;
    }
    let Some(Ports { listen, connect }) = &plan.ports else { return Ok(created) };
    for port in listen {
        created = created.add_rule(NetPort::new(*port, AccessNet::BindTcp))?;
    }
    if let Connect::To(ports) = connect {
        for port in ports {
            created = created.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
        }
    }
    Ok(created)
}

fn is_folder(place: &impl AsFd) -> bool {
    let mode = fstat(place).map(|found| SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT);
    mode == Ok(SFlag::S_IFDIR)
}

fn rights(access: Access, folder: bool) -> BitFlags<AccessFs> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let used = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let all = match access {
        Access::Read => read,
        Access::Use => read | used,
        Access::Manage => {
            let made = AccessFs::MakeReg | AccessFs::MakeSock | AccessFs::MakeDir;
            read | used | made | AccessFs::RemoveFile
        }
    };
    if folder { all } else { all & AccessFs::from_file(RULES) }
}

/// Restricts all threads at once where the kernel can, and one after the other where it cannot.
fn apply(rules: RulesetCreated) -> Result<Applied, RulesetError> {
    let for_first = rules.try_clone();
    let status = rules.set_compatibility(CompatLevel::BestEffort).all_threads(true)?.restrict_self()?;
    let version = version(status.landlock);
    if version > 0
        && !status.all_threads
        && let Ok(rules) = for_first
    {
        crate::stack::on_first_thread(move || rules.restrict_self().map(drop)).transpose()?;
    }
    Ok(Applied { version, all_threads: status.all_threads })
}

/// The version of the kernel's Landlock; zero where there is none.
const fn version(status: LandlockStatus) -> i32 {
    match status {
        LandlockStatus::Available { effective_abi, .. } => effective_abi as i32,
        LandlockStatus::NotEnabled | LandlockStatus::NotImplemented => 0,
    }
}

fn files(plan: &Plan, version: i32, others: usize) -> Layer {
    let layer = at_least(plan.files.is_some(), "files", 1, version, others);
    let lacks = match version {
        _ if layer != Layer::holds("files") => return layer,
        _ if version < TRUNCATION_FROM => "truncating files and controlling devices",
        _ if version < DEVICES_FROM => "controlling devices",
        _ => return layer,
    };
    Layer::partly("files", format!("Landlock of this kernel (ABI {version}) does not restrict {lacks}"))
}

fn processes(plan: &Plan, version: i32, others: usize) -> Layer {
    let layer = at_least(plan.signals || plan.abstract_sockets, "processes", PROCESSES_FROM, version, others);
    if layer == Layer::holds("processes") && !plan.abstract_sockets {
        return Layer::partly("processes", "the service manager is told over an abstract socket");
    }
    layer
}

fn at_least(wanted: bool, layer: &'static str, needed: i32, version: i32, others: usize) -> Layer {
    match version {
        _ if !wanted => Layer::off(layer, CONFIGURED),
        0 => Layer::missing(layer, "this kernel has no Landlock, or it is not enabled (lsm=landlock,...)"),
        _ if version < needed => {
            Layer::missing(layer, format!("Landlock of this kernel is ABI {version}, and it takes {needed}"))
        }
        _ => threads::all_or_partly(layer, others),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            capabilities: None,
            files: Some(Vec::new()),
            ports: Some(Ports::default()),
            signals: true,
            abstract_sockets: true,
            system_calls: false,
        }
    }

    #[test]
    fn what_a_kernel_has_not_is_said() {
        let of = |version| {
            let (plan, network) = (plan(), "network");
            [
                files(&plan, version, 0),
                at_least(true, network, PORTS_FROM, version, 0),
                processes(&plan, version, 0),
            ]
        };
        assert!(of(0).iter().all(|layer| layer.state == super::super::State::Missing));
        let said = of(1).map(|layer| layer.reason.unwrap_or_default());
        assert!(said[0].ends_with("truncating files and controlling devices"), "{}", said[0]);
        assert_eq!(said[1], "Landlock of this kernel is ABI 1, and it takes 4");
        let said = of(4).map(|layer| layer.reason.unwrap_or_default());
        assert!(said[0].ends_with("does not restrict controlling devices"), "{}", said[0]);
        assert_eq!((said[1].as_str(), said[2].contains("takes 6")), ("", true));
        assert_eq!(of(7), ["files", "network", "processes"].map(Layer::holds));
        let named = Plan { abstract_sockets: false, ..plan() };
        assert!(processes(&named, 7, 0).reason.is_some_and(|why| why.contains("abstract")));
        assert!(files(&plan(), 7, 2).reason.is_some_and(|why| why.starts_with("2 threads")));
    }

    #[test]
    fn a_file_has_no_rights_of_a_folder() {
        assert_eq!(rights(Access::Read, false), AccessFs::ReadFile);
        assert!(!rights(Access::Manage, false).contains(AccessFs::MakeReg));
        assert!(!rights(Access::Use, true).contains(AccessFs::MakeReg));
        assert!(!rights(Access::Manage, true).contains(AccessFs::Execute));
    }
}
