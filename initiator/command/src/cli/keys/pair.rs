//! `ringfab keys pair`: new keys for a host and a subsystem in one file, and what to do with it at each end.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use ringfab_auth::{Derivation, HostKeys, HostSteps, IdentityVersion, KeyRole, Names};
use ringfab_base::{VisiblePath as _, shell_quoted};
use ringfab_front_ends::context::{Context, Usage};
use ringfab_front_ends::output;
use ringfab_initiator::Url;
use ringfab_process::secret_file;
use ringfab_spec::Nqn;
use serde_json::{Value, json};

use super::{NameArgs, new_key, new_psk};

/// Where the lines say that the file is, when it is written nowhere.
const FOLDER: &str = "/etc/ringfab/keys";

#[derive(Args)]
pub(crate) struct PairArgs {
    #[command(flatten)]
    names: NameArgs,
    /// With a key for TLS, and lines that use it
    #[arg(long)]
    tls: bool,
    /// Write the keys to a file in this directory, which is made if it is not there, and print where it is instead of
    /// the keys. The file has the name of the host. None is overwritten
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

/// The keys.
struct Pair<'a> {
    names: Names<'a>,
    keys: HostKeys,
    /// How both ends name the key for TLS.
    identity: Option<String>,
    /// The name of the file on any machine.
    name: String,
}

/// A text for a configuration: a basic string of TOML. Names have no control characters.
fn toml_quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\""))
}

/// Makes keys.
pub(super) fn pair(args: &PairArgs, context: &Context) -> Result<()> {
    let names = args.names.names()?;
    // The name is in the file, from which hosts take it.
    Nqn::with_form(names.host.as_str()).map_err(|error| Usage(format!("the host: {error}")))?;
    let pair = Pair::generate(names, args.tls)?;
    let written = args.directory.as_deref().map(|folder| pair.write(folder)).transpose()?;
    output::either(context.json, || pair.document(written.as_deref()), || pair.text(written.as_deref()))
}

impl<'a> Pair<'a> {
    fn generate(names: Names<'a>, tls: bool) -> Result<Self> {
        let [host, controller] = [new_key(None), new_key(None)].map(|key| Some(key.to_text()));
        let psk = if tls { Some(new_psk(None)?) } else { None };
        let identity = psk.as_ref().map(|psk| {
            let retained = psk.retained(names.host, Derivation::Specified);
            retained.identity(IdentityVersion::One, psk.suite(), names)
        });
        let psk = psk.map(|psk| psk.to_text());
        let keys = HostKeys::new(names.host.as_str(), [host, controller, psk]);
        let name = secret_file::name_of(names.host.as_str()) + HostKeys::FILE_ENDING;
        Ok(Self { names, keys, identity, name })
    }

    /// Writes them for this user alone. Returns where.
    fn write(&self, folder: &Path) -> Result<PathBuf> {
        let folder = std::path::absolute(folder).with_context(|| format!("find {}", folder.visible()))?;
        let (user, text) = (secret_file::this_user(), self.keys.to_text());
        let stem = self.name.trim_end_matches(HostKeys::FILE_ENDING);
        let made = secret_file::folder_of(&folder, user).and_then(|()| {
            secret_file::make(&folder, [stem, HostKeys::FILE_ENDING], user, text.expose().as_bytes())
        });
        let (path, _) = made.with_context(|| format!("make the keys in {}", folder.visible()))?;
        Ok(path)
    }

    /// For programs: the keys, or where they are.
    fn document(&self, written: Option<&Path>) -> Value {
        let path = written.map(Path::to_string_lossy);
        let key = |role| {
            let key = self.keys.key(role)?.expose();
            Some(path.as_ref().map_or_else(|| key.to_owned(), |path| format!("file:{path}")))
        };
        json!({
            "keys": path,
            "host_key": key(KeyRole::Host),
            "controller_key": key(KeyRole::Controller),
            "tls_key": key(KeyRole::Tls),
            "tls_identity": self.identity,
        })
    }

    /// For people: the keys, or where they are, and what to do at each end.
    fn text(&self, written: Option<&Path>) -> String {
        let place = written.map_or_else(|| Path::new(FOLDER).join(&self.name), Path::to_owned);
        let place = place.to_string_lossy();
        let identity = self.identity.as_ref().map(|identity| ("TLS identity", identity.clone()));
        let rows: Vec<_> = [("keys", place.clone().into_owned())].into_iter().chain(identity).collect();
        let content = match written {
            Some(_) => String::new(),
            None => format!(
                "\nWrite this to the file, which nobody else may read (mode 0600):\n{}",
                self.keys.to_text().expose()
            ),
        };
        let steps = HostSteps {
            host: self.names.host.as_str(),
            subsystem: self.names.subsystem.as_str(),
            file: &place,
            name: &self.name,
            transport: "tcp",
            address: None,
            port: Url::PORT,
            dhchap: true,
            tls: self.identity.is_some(),
        };
        format!(
            "{}{content}\n{}\nOn a Linux target:\n{}\nFor a host:\n{}",
            output::pairs(&rows),
            self.target(&place),
            steps.linux_target(),
            steps.text(),
        )
    }

    /// Lines for the configuration of our target.
    fn target(&self, place: &str) -> String {
        let [host, subsystem] =
            [self.names.host, self.names.subsystem].map(|name| toml_quoted(name.as_str()));
        let file = toml_quoted(&format!("file:{place}"));
        let mut lines = format!(
            "In the target's configuration, which `ringfab-target host add` changes by itself:\n\
             [[host]]\nnqn = {host}\ndhchap_key = {file}\ndhchap_controller_key = {file}\n"
        );
        if self.identity.is_some() {
            lines += &format!(
                "tls_key = {file}\n\
                 # and in [[listener]] with transport = \"tcp\":\n# tls = \"allowed\"\n\
                 # and in [[subsystem]] with nqn = {subsystem}:\n# tls = \"required\"\n"
            );
        }
        let chown = shell_quoted(place);
        lines
            + &format!(
                "# Then, as the service reads the file as its user:\n# chown ringfab {chown} && ringfab-target reload\n"
            )
    }
}
