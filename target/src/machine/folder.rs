//! Whether a file can be made: its folder.

use std::path::Path;
use std::time::Duration;

use ringfab_base::{VisiblePath as _, shell_word};

use super::Finding;
use crate::worker;

/// How long a folder may take to be looked at.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// What is wrong with the folder of a file that the target makes. `what` is the key that names the file.
pub(super) fn finding(what: &str, file: &Path) -> Option<Finding> {
    let folder = file.parent()?.to_owned();
    let at = folder.clone();
    let look = move || at.metadata().map(|found| found.is_dir());
    let message = match worker::within("looking at", &folder, LOOK_LIMIT, look) {
        Ok(Ok(true)) | Err(_) => return None,
        Ok(Ok(false)) => format!("{} is not a directory", folder.visible()),
        Ok(Err(error)) => format!("{}: {error}", folder.visible()),
    };
    let advice = format!("`mkdir -p {}`, or name another file", shell_word(folder.to_string_lossy()));
    Some(Finding { what: what.to_owned(), message, advice: advice.into() })
}
