//! Whether there can be a control socket, and for whom.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::time::Duration;

use nix::unistd::Group;
use ringfab_base::VisiblePath as _;

use super::{Finding, folder};
use crate::config::{CONTROL_SOCKET, ControlConfig};
use crate::worker;

/// How long looking up a group may take.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// What is wrong with the socket's folder, and with who may use it.
pub(super) fn findings(config: &ControlConfig) -> Vec<Finding> {
    if !config.enabled {
        return Vec::new();
    }
    // The service manager makes the folder of the usual socket when it starts the target.
    let is_usual = config.socket == Path::new(CONTROL_SOCKET);
    let folder = if is_usual { None } else { folder::finding("control.socket", &config.socket) };
    let open = config.is_for_everybody().then(|| Finding {
        what: "control.mode".to_owned(),
        message: format!("is \"{:04o}\": every user of this machine may change what is served", config.mode),
        advice: "write \"0660\" and a control.group".into(),
    });
    folder.or_else(|| taken(&config.socket)).into_iter().chain(open).chain(unknown_group(config)).collect()
}

/// What is in the place of the socket. A socket that nobody listens on is replaced.
fn taken(socket: &Path) -> Option<Finding> {
    let at = socket.to_owned();
    let is_other = move || fs::symlink_metadata(at).is_ok_and(|found| !found.file_type().is_socket());
    let is_other = worker::within("looking at", socket, LOOK_LIMIT, is_other).unwrap_or(false);
    is_other.then(|| Finding {
        what: "control.socket".to_owned(),
        message: format!("{} is there, and is not a socket", socket.visible()),
        advice: "name another path, or remove what is there".into(),
    })
}

/// The group that the socket shall have, if there is none of that name.
pub(super) fn unknown_group(config: &ControlConfig) -> Option<Finding> {
    let name = config.group.clone().filter(|_| config.enabled)?;
    let looked_up = name.clone();
    let found =
        worker::within("looking up", Path::new(&name), LOOK_LIMIT, move || Group::from_name(&looked_up));
    // Whoever could not be asked may know it.
    if !matches!(found, Ok(Ok(None))) {
        return None;
    }
    let message = format!("there is no group {name} on this machine");
    Some(Finding { what: "control.group".to_owned(), message, advice: "make it, or name another one".into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_socket_is_in_the_way_and_a_socket_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "").expect("a file");
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).expect("a socket");
        let of = |name| ControlConfig { socket: at(name), ..ControlConfig::default() };
        let said = findings(&of("file"));
        assert!(said.len() == 1 && said[0].to_string().contains("is there, and is not a socket"), "{said:?}");
        assert_eq!(findings(&of("socket")), []);
        assert_eq!(findings(&of("later")), []);
    }

    #[test]
    fn a_socket_for_everybody_and_a_group_that_there_is_not_are_reported() {
        let of = |mode, group: &str| ControlConfig {
            mode,
            group: Some(group.to_owned()),
            ..ControlConfig::default()
        };
        let said = |mode| findings(&of(mode, "root")).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(said(0o660), [""; 0]);
        for mode in [0o666, 0o602] {
            let said = said(mode);
            assert!(said.len() == 1 && said[0].contains("every user of this machine may change"), "{said:?}");
        }
        assert_eq!(unknown_group(&of(0o600, "root")), None);
        let said = unknown_group(&of(0o600, "no-such-group")).expect("unknown").to_string();
        assert!(
            said.starts_with("control.group: there is no group no-such-group on this machine; "),
            "{said}"
        );
        let off = ControlConfig { enabled: false, ..of(0o666, "no-such-group") };
        assert!(unknown_group(&off).is_none() && findings(&off).is_empty());
    }
}
