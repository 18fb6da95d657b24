//! Who else may exchange the files with keys: whoever can gives a host, or himself, another key.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use nix::unistd::{User, geteuid};
use ringfab_base::VisiblePath as _;

use super::Finding;
use super::service_user::UNIT_USER;
use crate::config::{Config, places};
use crate::worker;

/// How long a look at a file and the folders above it may take.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// The right of everybody to write, and the bit that keeps files of others from being replaced.
const EVERYBODY_WRITES: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// The keys that somebody else may exchange than root, this user, and the one whose service has its state.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let keys: Vec<_> = places::keys(config).collect();
    if keys.is_empty() {
        return Vec::new();
    }
    let trusted: Vec<u32> = [0, geteuid().as_raw()].into_iter().chain(services(config)).collect();
    let mut told = BTreeSet::new();
    let found = keys.into_iter().filter_map(|key| {
        let (at, trusted) = (key.path().to_owned(), trusted.clone());
        let look = move || exchangeable(&at, &trusted).ok().flatten();
        let message = worker::within("looking at", key.path(), LOOK_LIMIT, look).ok()??;
        // Several hosts may have the same file.
        told.insert(message.clone()).then(|| Finding {
            what: key.what().to_owned(),
            message,
            advice: "keep keys in files and folders of root or of the service".into(),
        })
    });
    found.collect()
}

/// The users as whom the service may run, for an administrator who looks at its configuration: who has its state, and
/// before the first start who is usual.
fn services(config: &Config) -> Vec<u32> {
    if !geteuid().is_root() {
        return Vec::new();
    }
    let usual = || User::from_name(UNIT_USER).ok().flatten().map(|user| user.uid.as_raw());
    let usual = worker::within("looking up", Path::new(UNIT_USER), LOOK_LIMIT, usual).ok().flatten();
    owner_of(&config.target.state_dir).into_iter().chain(usual).collect()
}

fn owner_of(folder: &Path) -> Option<u32> {
    let at = folder.to_owned();
    let owner =
        worker::within("looking at", folder, LOOK_LIMIT, move || at.metadata().map(|found| found.uid()));
    owner.ok()?.ok()
}

/// Who may exchange a file, and why, if that is none of these users.
fn exchangeable(path: &Path, trusted: &[u32]) -> io::Result<Option<String>> {
    let shown = path.visible();
    let owner = path.metadata()?.uid();
    if !trusted.contains(&owner) {
        return Ok(Some(format!("user {owner} may change {shown}, and is its owner")));
    }
    // A link may be in one folder, and what it leads to in another.
    let real = path.canonicalize()?;
    for folder in path.ancestors().skip(1).chain(real.ancestors().skip(1)) {
        let found = folder.metadata()?;
        let mode = found.mode() & 0o7777;
        let folder = folder.visible();
        if mode & EVERYBODY_WRITES != 0 && mode & STICKY == 0 {
            return Ok(Some(format!("everybody may replace {shown}: {folder} has mode {mode:04o}")));
        }
        if !trusted.contains(&found.uid()) {
            return Ok(Some(format!(
                "user {} may replace {shown}, and is the owner of {folder}",
                found.uid()
            )));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::super::tests::key_file;
    use super::*;

    #[test]
    fn a_key_that_others_may_exchange_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).expect("a folder");
        let (path, link) = (inner.join("key"), folder.path().join("link"));
        let key = key_file(&path, "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:");
        symlink(&path, &link).expect("a link");
        let trusted = [0, geteuid().as_raw()];
        let said = |path: &Path, trusted: &[u32]| exchangeable(path, trusted).expect("looked at");
        assert_eq!(said(&path, &trusted), None);
        let owner = geteuid().as_raw();
        assert_eq!(
            said(&path, &[owner + 1]),
            Some(format!("user {owner} may change {}, and is its owner", path.display()))
        );
        fs::set_permissions(&inner, Permissions::from_mode(0o1777)).expect("changed");
        assert_eq!(said(&path, &trusted), None, "as /tmp is");
        fs::set_permissions(&inner, Permissions::from_mode(0o777)).expect("changed");
        for path in [&path, &link] {
            let expected = format!("{}: {} has mode 0777", path.display(), inner.display());
            assert_eq!(said(path, &trusted), Some(format!("everybody may replace {expected}")));
        }
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2026-11.org.ringfab:a\"\n\
             allow_any_host = true\n[[subsystem.namespace]]\nnull = \"1MiB\"\n\
             [[host]]\nnqn = \"nqn.2026-11.org.ringfab:h\"\ntls_key = {key}\n\
             [[host]]\nnqn = \"nqn.2026-11.org.ringfab:i\"\ntls_key = {key}\n"
        );
        let config = Config::parse(&text, "test").unwrap_or_else(|error| panic!("{error}"));
        let found = findings(&config);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0]
                .to_string()
                .starts_with("the tls_key of host nqn.2026-11.org.ringfab:h: everybody may replace"),
            "{found:?}"
        );
    }
}
