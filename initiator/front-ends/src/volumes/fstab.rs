//! Lines of fstab for file systems of the type `ringfab`.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use ringfab_base::VisiblePath as _;

use crate::fuse::mount_point;
use crate::mounts::holders::unescape;

/// Where it is.
const PATH: &str = "/etc/fstab";
/// In the environment: another file, for mount(8), too.
const VARIABLE: &str = "LIBMOUNT_FSTAB";
/// Their type.
const TYPE: &str = "ringfab";
/// What says that it needs the network.
const NETDEV: &str = "_netdev";

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The file, and the number of the line, for people.
    pub place: String,
    /// The address, or the name of a volume.
    pub source: String,
    /// Where to mount.
    pub directory: PathBuf,
    /// The mount options.
    pub options: String,
}

/// The lines of this machine's fstab that are for us. Without the file there are none.
///
/// # Errors
/// When it cannot be read.
pub fn lines() -> Result<Vec<Line>> {
    let named = env::var_os(VARIABLE).filter(|path| !path.is_empty());
    let path = named.map_or_else(|| PathBuf::from(PATH), PathBuf::from);
    match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        text => {
            let text = text.with_context(|| format!("read {}", path.visible()))?;
            Ok(parse(&String::from_utf8_lossy(&text), &path))
        }
    }
}

fn parse(text: &str, path: &Path) -> Vec<Line> {
    let line = |(number, line): (usize, &str)| {
        let mut fields =
            line.split_ascii_whitespace().take_while(|field| !field.starts_with('#')).map(unescape);
        let (source, directory, kind) = (fields.next()?, fields.next()?, fields.next()?);
        let options = fields.next().unwrap_or_default();
        let place = format!("{}:{}", path.visible(), number + 1);
        (kind == TYPE).then(|| Line { place, source, directory: directory.into(), options })
    };
    text.lines().enumerate().filter_map(line).collect()
}

impl Line {
    /// Whether the line itself keeps a machine from booting.
    ///
    /// # Errors
    /// What is missing.
    pub fn check(&self) -> Result<()> {
        ensure!(
            self.options.split(',').any(|option| option == NETDEV),
            "{}: {} has no {NETDEV} among its options, so it would be mounted before there is a network, and the boot \
             would fail; add {NETDEV}",
            self.place,
            self.directory.visible()
        );
        Ok(())
    }
}

/// Warns of a line for this directory that has a mistake.
pub(super) fn warn(directory: &Path) {
    let is_of = |line: &Line| mount_point::absolute(&line.directory).is_ok_and(|place| place == directory);
    for line in lines().into_iter().flatten().filter(is_of) {
        if let Err(error) = line.check() {
            tracing::warn!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_fields_and_needs_the_network() {
        let text = "# a comment\n/dev/sda1 / ext4 defaults 0 1\n\n\
                    nvme+tcp://a/b\t/srv/my\\040disk ringfab noatime,_netdev 0 0\n \
                    data /srv/data ringfab # nothing else\n#data /srv/data ringfab x\n";
        let lines = parse(text, Path::new("/etc/fstab"));
        let places: Vec<_> =
            lines.iter().map(|line| (line.place.as_str(), line.directory.as_path())).collect();
        let expected =
            [("/etc/fstab:4", Path::new("/srv/my disk")), ("/etc/fstab:5", Path::new("/srv/data"))];
        assert_eq!(places, expected);
        assert_eq!(
            (lines[0].source.as_str(), lines[0].options.as_str()),
            ("nvme+tcp://a/b", "noatime,_netdev")
        );
        assert!(lines[0].check().is_ok());
        let error = lines[1].check().expect_err("no network").to_string();
        assert!(error.starts_with("/etc/fstab:5: /srv/data has no _netdev among its options"), "{error}");
        let like = Line { options: "my_netdev,nofail".to_owned(), ..lines[0].clone() };
        assert!(like.check().is_err());
    }
}
