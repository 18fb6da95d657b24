//! The options with which a host proves who it is.

use anyhow::Result;
use clap::Args;
use ringfab_auth::{Group, Hash, KeyRole, KeySource, Policy};
use ringfab_initiator::{Authentication, Key, Keys, Url};

use crate::context::Usage;
use crate::keys::{KeyText, KeysOfHost, KeysText, Places, place_of_keys};
use crate::quantity::Span;

/// In the environment: what the option for the key of this host says.
pub(crate) const HOST_KEY_VARIABLE: &str = "RINGFAB_DHCHAP_KEY";
/// The same for the key of the controller.
pub(crate) const CONTROLLER_KEY_VARIABLE: &str = "RINGFAB_DHCHAP_CONTROLLER_KEY";

/// How this host proves who it is, and controllers do.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Authentication")]
pub struct AuthenticationArgs {
    /// The file with the name and all keys of this host, for authentication and for TLS, as `ringfab-target host add`
    /// and `ringfab keys pair` make it: a path, credential:NAME of the service, or keyring:DESCRIPTION of the kernel. A
    /// file must be this user's own, with mode 0600. An option for one of the keys goes before it. Without it,
    /// $RINGFAB_KEYS
    #[arg(long, value_name = "FILE")]
    keys: Option<KeysText>,
    /// The key of this host, for targets that ask for it (DH-HMAC-CHAP): file:/path, credential:NAME of the service, or
    /// keyring:DESCRIPTION of the kernel.
    /// The key itself, DHHC-1:..., is taken, too, but others see command lines. Without it,
    /// $RINGFAB_DHCHAP_KEY
    #[arg(long, alias = "dhchap-secret", value_name = "KEY")]
    dhchap_key: Option<KeyText>,
    /// The key of the controller, given in the same ways, or $RINGFAB_DHCHAP_CONTROLLER_KEY. With it, the target has to
    /// prove who it is
    #[arg(long, alias = "dhchap-ctrl-secret", alias = "dhchap-ctrl-key", value_name = "KEY")]
    dhchap_controller_key: Option<KeyText>,
    /// Hash functions to offer
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "sha256,sha384,sha512")]
    dhchap_hashes: Vec<Hash>,
    /// DH groups to offer. The null group is offered only if it is named here
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "ffdhe3072,ffdhe4096,ffdhe6144,ffdhe8192,ffdhe2048"
    )]
    dhchap_groups: Vec<Group>,
    /// Authenticate again after this time, and again. I/O goes on meanwhile
    #[arg(long, value_name = "TIME")]
    reauthenticate: Option<Span>,
}

impl AuthenticationArgs {
    /// Where the file with all keys of this host is.
    ///
    /// # Errors
    /// What is wrong with the place.
    pub(crate) fn place_of_keys(&self, url: &Url) -> Result<Option<KeySource>> {
        place_of_keys(self.keys.as_ref(), url)
    }

    /// What the library needs; none without a key. What the options say of keys wins, and `file` has what they do not
    /// say.
    ///
    /// # Errors
    /// What is wrong with an option, or a key that cannot be read.
    pub(crate) fn authentication(
        &self,
        url: &Url,
        file: Option<&KeysOfHost>,
    ) -> Result<Option<Authentication>> {
        let controller = Places {
            file,
            role: KeyRole::Controller,
            address: url.dhchap_controller_key.as_ref(),
            option: self.dhchap_controller_key.as_ref(),
            name: "dhchap-controller-key",
            variable: CONTROLLER_KEY_VARIABLE,
        };
        let host = Places {
            file,
            role: KeyRole::Host,
            address: url.dhchap_key.as_ref(),
            option: self.dhchap_key.as_ref(),
            name: "dhchap-key",
            variable: HOST_KEY_VARIABLE,
        };
        let (controller, host) = (controller.find::<Key>()?, host.find::<Key>()?);
        let Some(host) = host else {
            return match controller {
                Some(_) => Err(Usage(
                    "--dhchap-controller-key has no meaning without --dhchap-key: a host that asks a target who it \
                     is has to prove who it is itself"
                        .to_owned(),
                )
                .into()),
                None => Ok(None),
            };
        };
        ringfab_process::limits::forbid_core_files();
        let policy = Policy::new(&self.dhchap_hashes, &self.dhchap_groups);
        let mut authentication = Authentication::new(Keys { host, controller });
        authentication.policy = policy.map_err(|error| Usage(error.to_string()))?;
        authentication.repeat = self.reauthenticate.map(|span| span.0.max(std::time::Duration::from_secs(1)));
        Ok(Some(authentication))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    const KEY: &str = "DHHC-1:00:ycnJycnJycnJycnJycnJycnJycnJycnJycnJycnJyclx132H:";

    #[derive(Parser, Debug)]
    struct Cli {
        #[command(flatten)]
        authentication: AuthenticationArgs,
    }

    fn parsed(arguments: &[&str]) -> Result<Option<Authentication>> {
        let cli = Cli::try_parse_from([&["test"], arguments].concat()).expect("valid options");
        assert!(!format!("{cli:?}").contains("ycnJ"));
        cli.authentication.authentication(&"nvme+tcp://192.0.2.1/a".parse().expect("an address"), None)
    }

    #[test]
    fn a_key_is_taken_by_each_of_its_names_and_never_printed() {
        assert!(parsed(&[]).expect("nothing to do").is_none());
        for name in ["--dhchap-key", "--dhchap-secret"] {
            let authentication = parsed(&[name, KEY]).expect("a key").expect("a key");
            assert!(authentication.keys.controller.is_none() && authentication.repeat.is_none());
            assert!(!format!("{authentication:?}").contains("ycnJ"));
        }
        for name in ["--dhchap-controller-key", "--dhchap-ctrl-secret", "--dhchap-ctrl-key"] {
            let both = parsed(&["--dhchap-key", KEY, name, KEY]).expect("keys").expect("keys");
            assert!(both.keys.controller.is_some());
            assert!(parsed(&[name, KEY]).expect_err("refused").to_string().contains("no meaning without"));
        }
    }

    #[test]
    fn what_is_wrong_with_a_key_is_said_without_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        std::fs::write(&path, KEY).expect("a file");
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("open");
        for (text, said) in [
            (KEY.replace('y', "z"), "the checksum of the key is wrong"),
            ("NVMeTLSkey-1:01:ycnJ:".to_owned(), "is a key for TLS"),
            ("/etc/key".to_owned(), "must be \"file:/path\", \"credential:NAME\" or \"keyring:DESCRIPTION\""),
            ("file:/nowhere".to_owned(), "cannot read /nowhere"),
            ("credential:key".to_owned(), "is a credential"),
            (format!("file:{}", path.display()), "everybody may read or change it"),
        ] {
            let error = format!("{:#}", parsed(&["--dhchap-key", &text]).expect_err("refused"));
            assert!(error.contains(said) && error.starts_with("--dhchap-key: "), "{error}");
            assert!(!error.contains("ycnJ") && !error.contains("zcnJ"), "{error}");
        }
    }

    #[test]
    fn hashes_and_groups_are_lists_of_names() {
        let arguments = ["--dhchap-key", KEY, "--dhchap-hashes=sha512", "--dhchap-groups=null,ffdhe2048"];
        let policy = parsed(&arguments).expect("valid").expect("a key").policy;
        assert_eq!(policy.accepted_hashes(), [Hash::Sha512]);
        assert_eq!(policy.accepted_groups(), [Group::Null, Group::Ffdhe2048]);
        let twice = parsed(&["--dhchap-key", KEY, "--dhchap-hashes=sha512,sha512"]).expect_err("refused");
        assert!(twice.to_string().contains("named twice"), "{twice}");
        assert!(Cli::try_parse_from(["test", "--dhchap-groups=modp"]).is_err());
        let again = parsed(&["--dhchap-key", KEY, "--reauthenticate=1h"]).expect("valid").expect("a key");
        assert_eq!(again.repeat, Some(std::time::Duration::from_secs(3600)));
    }
}
