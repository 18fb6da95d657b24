//! As whom the service runs. An administrator who checks a configuration is root, and root may read everything. What
//! counts is what the service may.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use nix::unistd::{Gid, Group, Uid, User, getgrouplist, setgid, setgroups, setuid};

use super::server_of;
use crate::config::Config;
use crate::worker;

/// How long a look at the state, and for a user, may take.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// As whom the unit that comes with the target runs it, and in which group beside the user's own.
pub(super) const UNIT_USER: &str = "ringfab";
const UNIT_GROUP: &str = "disk";

/// The configuration of that unit.
const UNIT_CONFIG: &str = "/etc/ringfab/target.toml";

/// A user with groups, as the text `USER` or `USER:GROUP,GROUP`, in which numbers do for names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceUser {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

impl ServiceUser {
    /// As whom a service runs with this configuration, if that is somebody else than root: as whom it runs now, else
    /// who has its state, else who the unit names if this is its configuration.
    pub(crate) fn of(config: &Config, file: &Path) -> Option<Self> {
        if let Some(running) = server_of(config).and_then(Self::of_process) {
            return Some(running).filter(|user| !user.uid.is_root());
        }
        let (state, of_unit) = (config.target.state_dir.clone(), file == Path::new(UNIT_CONFIG));
        let look = move || match fs::metadata(state) {
            Ok(state) => Self::of_uid(state.uid()),
            Err(_) if of_unit => Self::parse(UNIT_USER).ok(),
            Err(_) => None,
        };
        let found = worker::within("looking at", &config.target.state_dir, LOOK_LIMIT, look).ok()?;
        found.filter(|user| !user.uid.is_root())
    }

    /// A user, with the groups that are named, or else with those that the system gives them.
    ///
    /// # Errors
    /// When there is no such user or group.
    pub(crate) fn parse(text: &str) -> io::Result<Self> {
        let (name, groups) = text.split_once(':').map_or((text, None), |(name, groups)| (name, Some(groups)));
        let missing = |what: &str, name: &str| {
            io::Error::new(io::ErrorKind::NotFound, format!("there is no {what} {name}"))
        };
        let user = match name.parse() {
            Ok(number) => User::from_uid(Uid::from_raw(number))?,
            Err(_) => User::from_name(name)?,
        };
        let user = user.ok_or_else(|| missing("user", name))?;
        let groups = match groups {
            None => groups_of(&user)?,
            Some(groups) => {
                let named = groups.split(',').filter(|group| !group.is_empty());
                let found = named.map(|group| group_of(group)?.ok_or_else(|| missing("group", group)));
                found.collect::<io::Result<_>>()?
            }
        };
        Ok(Self { uid: user.uid, gid: user.gid, groups })
    }

    fn of_uid(uid: u32) -> Option<Self> {
        Self::parse(&uid.to_string()).ok()
    }

    /// As whom a process runs: its effective user and group, and all of its groups.
    fn of_process(process: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let numbers = |key: &str| -> Option<Vec<u32>> {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            line.split_whitespace().map(|number| number.parse().ok()).collect()
        };
        let effective = |key: &str| numbers(key)?.get(1).copied();
        Some(Self {
            uid: Uid::from_raw(effective("Uid:")?),
            gid: Gid::from_raw(effective("Gid:")?),
            groups: numbers("Groups:")?.into_iter().map(Gid::from_raw).collect(),
        })
    }

    /// Goes on as this user, for good. It is for a process that has no other threads yet.
    ///
    /// # Errors
    /// The system's, for instance if this process is not root.
    pub(crate) fn assume(&self) -> io::Result<()> {
        setgroups(&self.groups)?;
        setgid(self.gid)?;
        Ok(setuid(self.uid)?)
    }

    /// The name of the user.
    pub(crate) fn name(&self) -> String {
        crate::disks::denied::name_of(self.uid)
    }
}

impl fmt::Display for ServiceUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups: Vec<String> = self.groups.iter().map(Gid::to_string).collect();
        write!(f, "{}:{}", self.uid, groups.join(","))
    }
}

fn group_of(text: &str) -> io::Result<Option<Gid>> {
    match text.parse() {
        Ok(number) => Ok(Some(Gid::from_raw(number))),
        Err(_) => Ok(Group::from_name(text)?.map(|group| group.gid)),
    }
}

fn groups_of(user: &User) -> io::Result<Vec<Gid>> {
    let name = std::ffi::CString::new(user.name.as_str())?;
    let mut groups = getgrouplist(&name, user.gid)?;
    if user.name == UNIT_USER {
        groups.extend(group_of(UNIT_GROUP)?);
    }
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_a_name_or_a_number_and_may_have_groups() {
        let root = ServiceUser::parse("root").expect("there is one");
        assert_eq!(ServiceUser::parse("0").expect("the same"), root);
        let text = ServiceUser::parse("root:7,9").expect("numbers need no names").to_string();
        assert_eq!(text, "0:7,9");
        assert_eq!(ServiceUser::parse(&text).expect("parsed").groups, [7, 9].map(Gid::from_raw));
        assert_eq!(ServiceUser::parse("root:").expect("no groups").groups, []);
        for (text, what) in [("nobody-here", "user nobody-here"), ("root:nobody-here", "group nobody-here")] {
            let error = ServiceUser::parse(text).expect_err("nobody").to_string();
            assert!(error.ends_with(what), "{error}");
        }
    }

    #[test]
    fn a_process_says_as_whom_it_runs() {
        let this = ServiceUser::of_process(std::process::id()).expect("this process");
        assert_eq!((this.uid, this.gid), (nix::unistd::geteuid(), nix::unistd::getegid()));
        assert_eq!(ServiceUser::of_process(u32::MAX), None);
    }
}
