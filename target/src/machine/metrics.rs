//! Whether there can be metrics: their address, and the folder of their file.

use std::path::Path;
use std::time::Duration;

use ringfab_base::VisiblePath as _;
use ringfab_process::made_file;

use super::{Finding, folder, listeners};
use crate::config::MetricsConfig;
use crate::metrics::file::KIND;
use crate::worker;

/// How long a look at the file may take.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// What is in the way of the metrics.
pub(super) fn findings(config: &MetricsConfig, serving: Option<u32>) -> Vec<Finding> {
    let unbound = config.address.and_then(|address| listeners::unbound(address, serving, false));
    let what = || "metrics.address".to_owned();
    let address = unbound.map(|(message, advice)| Finding { what: what(), message, advice: advice.into() });
    let file =
        config.file.as_deref().and_then(|file| folder::finding("metrics.file", file).or_else(|| kept(file)));
    address.into_iter().chain(file).collect()
}

/// What is there and is not replaced.
fn kept(file: &Path) -> Option<Finding> {
    let at = file.to_owned();
    let looks = move || {
        let why = made_file::may_replace(&at, &KIND).err()?;
        Some(format!("{}: {why}", at.visible()))
    };
    let message = worker::within("looking at", file, LOOK_LIMIT, looks).ok()??;
    Some(Finding {
        what: "metrics.file".to_owned(),
        message,
        advice: "remove it, or name another file".into(),
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_address_in_use_and_a_missing_folder_are_reported() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = tempfile::tempdir().expect("a folder");
        let of = |file: &str| MetricsConfig {
            address: taken.local_addr().ok(),
            file: Some(place.path().join(file)),
            file_interval: Duration::from_secs(15),
            queues: false,
        };
        let said = |file: &str, serving| -> Vec<String> {
            findings(&of(file), serving).iter().map(ToString::to_string).collect()
        };
        let found = said("missing/ringfab.prom", None);
        assert!(found[0].starts_with("metrics.address: the port is in use by process "), "{found:?}");
        assert!(found[1].starts_with("metrics.file: ") && found[1].contains("No such file"), "{found:?}");
        assert_eq!(said("ringfab.prom", Some(std::process::id())), [""; 0]);
        std::fs::write(place.path().join("file"), "").expect("a file");
        assert!(said("file/ringfab.prom", None)[1].contains("is not a directory"));
        std::fs::write(place.path().join("precious"), [0; 512]).expect("a file");
        let found = said("precious", None);
        assert!(
            found[1].contains("what is there has no metrics of a target, and is not replaced"),
            "{found:?}"
        );
    }
}
