//! `ringfab keys pair`: new keys for a host and a subsystem, and the lines for each end.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use ringfab_auth::{ConfiguredPsk, Derivation, DhchapKey, IdentityVersion, Names, SecretText};
use ringfab_base::{VisiblePath as _, shell_quoted};
use ringfab_front_ends::context::Context;
use ringfab_front_ends::output;
use ringfab_initiator::{HostName, Transport, Url};
use serde_json::{Value, json};

use super::{NameArgs, new_key, new_psk};

/// Where the lines say that keys are, when they are written nowhere.
const FOLDER: &str = "/etc/ringfab/keys";

#[derive(Args)]
pub(crate) struct PairArgs {
    #[command(flatten)]
    names: NameArgs,
    /// The lines for both ends use TLS, too
    #[arg(long)]
    tls: bool,
    /// Write the keys to files in this directory, which is made if it is not there, and print where they are instead
    /// of the keys. No file is overwritten
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

/// The keys.
struct Pair<'a> {
    names: Names<'a>,
    host: SecretText,
    controller: SecretText,
    tls: SecretText,
    identity: String,
}

/// Where they are, as both ends are told.
struct Places {
    folder: String,
    host: String,
    controller: String,
    tls: String,
}

/// The keys for a shell: themselves, or what reads them.
struct Shown {
    host: String,
    controller: String,
    /// None without TLS.
    tls: Option<String>,
}

/// What a shell puts the content of a file in place of.
fn file_content(place: &str) -> String {
    format!("\"$(cat {})\"", shell_quoted(place.trim_start_matches("file:")))
}

/// A text for a configuration: a basic string of TOML. Names have no control characters.
fn toml_quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\""))
}

/// Makes keys of both kinds.
pub(super) fn pair(args: &PairArgs, context: &Context) -> Result<()> {
    let names = args.names.names()?;
    let pair = Pair::generate(names)?;
    let folder = args.directory.as_deref();
    let places = Places::in_folder(folder.unwrap_or(Path::new(FOLDER)))?;
    if let Some(folder) = folder {
        write_all(folder, &pair)?;
    }
    output::either(
        context.json,
        || pair.document(folder.map(|_| &places)),
        || pair.text(&places, folder.is_some(), args.tls),
    )
}

impl Places {
    fn in_folder(folder: &Path) -> Result<Self> {
        let folder = std::path::absolute(folder).with_context(|| format!("find {}", folder.visible()))?;
        let place = |name: &str| format!("file:{}", folder.join(name).to_string_lossy());
        let folder_name = folder.to_string_lossy().into_owned();
        Ok(Self {
            folder: folder_name,
            host: place("host"),
            controller: place("controller"),
            tls: place("tls"),
        })
    }

    /// Who has to read the files.
    fn owner(&self) -> String {
        format!(
            "# The service reads them as its user, with mode 0600: chown -R ringfab {}\n",
            shell_quoted(&self.folder)
        )
    }
}

/// Writes each key to a file that only its owner may read.
fn write_all(folder: &Path, pair: &Pair<'_>) -> Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.with_context(|| format!("make {}", folder.visible()))?;
    let keys = [("host", &pair.host), ("controller", &pair.controller), ("tls", &pair.tls)];
    // All or none: the files of two pairs do not fit.
    if let Some(there) = keys.iter().map(|(name, _)| folder.join(name)).find(|path| path.exists()) {
        bail!(
            "{} is there already, and no key is overwritten: name another directory, or remove its old keys",
            there.visible()
        );
    }
    for (name, key) in keys {
        let path = folder.join(name);
        let write = || -> io::Result<()> {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all(key.expose().as_bytes())?;
            file.write_all(b"\n")?;
            file.sync_all()
        };
        write().with_context(|| format!("write {}", path.visible()))?;
    }
    Ok(())
}

impl<'a> Pair<'a> {
    fn generate(names: Names<'a>) -> Result<Self> {
        let [host, controller]: [DhchapKey; 2] = [new_key(None), new_key(None)];
        let psk: ConfiguredPsk = new_psk(None)?;
        let retained = psk.retained(names.host, Derivation::Specified);
        let identity = retained.identity(IdentityVersion::One, psk.suite(), names);
        Ok(Self {
            names,
            host: host.to_text(),
            controller: controller.to_text(),
            tls: psk.to_text(),
            identity,
        })
    }

    /// Of the host and of the subsystem.
    fn names(&self) -> [&str; 2] {
        [self.names.host.as_str(), self.names.subsystem.as_str()]
    }

    /// For programs: the keys, or where they are.
    fn document(&self, written: Option<&Places>) -> Value {
        match written {
            None => json!({
                "host_key": self.host.expose(),
                "controller_key": self.controller.expose(),
                "tls_key": self.tls.expose(),
                "tls_identity": self.identity,
            }),
            Some(places) => json!({
                "host_key": places.host,
                "controller_key": places.controller,
                "tls_key": places.tls,
                "tls_identity": self.identity,
            }),
        }
    }

    /// For people: the keys, or where they are, and the lines for each end.
    fn text(&self, places: &Places, written: bool, tls: bool) -> String {
        let of =
            |key: &SecretText, place: &String| if written { place.clone() } else { key.expose().to_owned() };
        let keys = output::pairs(&[
            ("host key", of(&self.host, &places.host)),
            ("controller key", of(&self.controller, &places.controller)),
            ("TLS key", of(&self.tls, &places.tls)),
            ("TLS identity", self.identity.clone()),
        ]);
        let of = |key: &SecretText, place: &String| {
            if written { file_content(place) } else { key.expose().to_owned() }
        };
        let shown = Shown {
            host: of(&self.host, &places.host),
            controller: of(&self.controller, &places.controller),
            tls: tls.then(|| of(&self.tls, &places.tls)),
        };
        format!(
            "{keys}\n{}{}\n{}\n{}\n{}",
            self.target(places, tls),
            if written { places.owner() } else { String::new() },
            self.host(places, tls),
            self.linux_host(&shown),
            self.linux_target(&shown)
        )
    }

    /// Lines for the configuration of our target.
    fn target(&self, places: &Places, tls: bool) -> String {
        let [host, subsystem] = self.names().map(toml_quoted);
        let Places { host: host_key, controller, tls: tls_key, .. } = places;
        let [host_key, controller, tls_key] = [host_key, controller, tls_key].map(|place| toml_quoted(place));
        let mut lines = format!(
            "In the target's configuration, with the keys in these files:\n\
             [[host]]\nnqn = {host}\ndhchap_key = {host_key}\ndhchap_controller_key = {controller}\n"
        );
        if tls {
            lines += &format!(
                "tls_key = {tls_key}\n\
                 # and in [[listener]] with transport = \"tcp\":\n# tls = \"allowed\"\n\
                 # and in [[subsystem]] with nqn = {subsystem}:\n# tls = \"required\"\n"
            );
        }
        lines
    }

    /// The command of our initiator.
    fn host(&self, places: &Places, tls: bool) -> String {
        let [host, subsystem] = self.names();
        let url = Url::new(HostName::Name("ADDRESS".to_owned()), 4420, Some(subsystem.to_owned()))
            .with_transport(Transport::Tcp);
        let (url, host) = (url.to_string(), shell_quoted(host));
        let mut line = format!(
            "On a host with the same files, with the address of the target:\n\
             ringfab list {} --hostnqn={host} \\\n  \
             --dhchap-key={} \\\n  --dhchap-controller-key={}",
            shell_quoted(&url),
            shell_quoted(&places.host),
            shell_quoted(&places.controller)
        );
        if tls {
            line += &format!(" \\\n  --tls-key={}", shell_quoted(&places.tls));
        }
        line + "\n"
    }

    /// Its programs take keys on their command lines, which others see while they run.
    fn linux_host(&self, shown: &Shown) -> String {
        let [host, subsystem] = self.names().map(shell_quoted);
        let Shown { host: host_key, controller, tls } = shown;
        let (insert, option) = match tls {
            Some(_) => {
                (self.insert_psk(shown), " \\\n  --transport=tcp --traddr=ADDRESS --trsvcid=4420 --tls")
            }
            None => (String::new(), ""),
        };
        format!(
            "On a Linux host, with the address of the target:\n{insert}\
             nvme connect --hostnqn={host} --nqn={subsystem} \\\n  \
             --dhchap-secret={host_key} \\\n  --dhchap-ctrl-secret={controller}{option}\n"
        )
    }

    fn linux_target(&self, shown: &Shown) -> String {
        let Shown { host, controller, .. } = shown;
        let place = |name: &str| format!("/sys/kernel/config/nvmet/hosts/{}/{name}", self.names.host);
        let [host_place, controller_place] = ["dhchap_key", "dhchap_ctrl_key"].map(place);
        format!(
            "On a Linux target:\n{}echo {host} > {}\necho {controller} > {}\n",
            self.insert_psk(shown),
            shell_quoted(&host_place),
            shell_quoted(&controller_place)
        )
    }

    /// The kernel has the key for TLS in a keyring, where tlshd finds it, until the machine ends.
    fn insert_psk(&self, shown: &Shown) -> String {
        let [host, subsystem] = self.names().map(shell_quoted);
        let Some(tls) = &shown.tls else { return String::new() };
        format!(
            "modprobe -a nvme-keyring tls && systemctl start tlshd\n\
             nvme check-tls-key --hostnqn={host} --subsysnqn={subsystem} \\\n  \
             --keydata={tls} --identity=1 --insert\n"
        )
    }
}
