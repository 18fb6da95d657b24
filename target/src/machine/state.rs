//! Whether there can be a folder for the state.

use std::io;
use std::path::Path;
use std::time::Duration;

use ringfab_base::VisiblePath as _;

use super::Finding;
use crate::worker;

/// How long a look at the folder may take.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// Something else has its place, or that of a folder above it. It is made if there is nothing.
pub(super) fn finding(folder: &Path) -> Option<Finding> {
    let at = folder.to_owned();
    let is_other = move || match at.metadata() {
        Ok(found) => !found.is_dir(),
        Err(error) => error.kind() == io::ErrorKind::NotADirectory,
    };
    let is_other = worker::within("looking at", folder, LOOK_LIMIT, is_other).unwrap_or(false);
    is_other.then(|| Finding {
        what: "target.state_dir".to_owned(),
        message: format!("{} is not a directory", folder.visible()),
        advice: "name a directory, or remove what is there".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_the_place_of_the_folder_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        std::fs::write(&file, "").expect("a file");
        for place in [file.clone(), file.join("state")] {
            let said = finding(&place).expect("no directory").to_string();
            assert_eq!(
                said,
                format!(
                    "target.state_dir: {} is not a directory; name a directory, or remove what is there",
                    place.display()
                )
            );
        }
        assert_eq!(finding(folder.path()), None);
        assert_eq!(finding(&folder.path().join("later")), None);
    }
}
