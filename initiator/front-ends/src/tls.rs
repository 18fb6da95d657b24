//! The options for connections over TLS.

use anyhow::Result;
use clap::{Args, ValueEnum};
use ringfab_auth::{CipherSuite, Derivation, Group, KeyRole};
use ringfab_initiator::{ConnectOptions, Tls, Transport, Url};

use crate::context::Usage;
use crate::keys::{KeyText, KeysOfHost, Places};
use crate::precedence::{self, Twin};

/// In the environment: what the option for the key says.
pub(crate) const KEY_VARIABLE: &str = "RINGFAB_TLS_KEY";

/// How connections over NVMe/TCP are protected.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "TLS")]
pub(crate) struct TlsArgs {
    /// Use TLS 1.3. A key implies it, unless the key is in the address or the environment and the address has
    /// `tls=off`
    #[arg(long)]
    tls: bool,
    /// The key of this host for TLS over NVMe/TCP: file:/path, credential:NAME of the service, or
    /// keyring:DESCRIPTION of the kernel. The key itself,
    /// NVMeTLSkey-1:..., is taken, too, but others see command lines. Without it, $RINGFAB_TLS_KEY
    #[arg(long, value_name = "KEY")]
    tls_key: Option<KeyText>,
    /// How keys are derived: as specified, or as libnvme did before July 2025, for targets with keys from there
    #[arg(long, value_name = "NAME", default_value = "specified")]
    tls_derivation: DerivationName,
    /// Derive the key for TLS from authentication, a new one for each connection (secure channel concatenation). It
    /// needs a key for authentication, and none for TLS
    #[arg(long, conflicts_with = "tls_key")]
    concat: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DerivationName {
    Specified,
    #[value(name = "libnvme-before-2025-07")]
    LibnvmeBefore202507,
}

impl TlsArgs {
    /// Takes out of an address what these options say otherwise: whether there is TLS, and whose key it has.
    pub(crate) fn settle(&self, url: &mut Url) {
        let shown = |is_on: &bool| if *is_on { "on" } else { "off" }.to_owned();
        let asks = [("tls", self.tls), ("concat", self.concat), ("tls-key", self.tls_key.is_some())];
        if let Some((option, _)) = asks.into_iter().find(|(_, is_given)| *is_given) {
            if url.tls == Some(false) {
                precedence::say(format_args!("--{option}"), "tls=off of the address");
                url.tls = None;
            }
            url.tls = url.tls.or(self.tls.then_some(true));
        }
        if self.concat {
            Twin::new("concat", "concat").settle(Some(true), url.concatenation.take(), shown);
            if url.tls_key.take().is_some() {
                precedence::say("--concat", "tls_key of the address");
            }
        }
        if self.tls_key.is_some() && url.concatenation.take() == Some(true) {
            precedence::say("--tls-key", "concat=on of the address");
        }
    }

    /// The option that asks for TLS, if one does.
    pub(crate) fn asked_for(&self) -> Option<&'static str> {
        if self.concat { Some("--concat") } else { self.tls.then_some("--tls") }
    }

    /// Sets what these options, the address, the file with all keys and the environment say of TLS.
    ///
    /// # Errors
    /// What is wrong with an option, or a key that cannot be read.
    pub(crate) fn apply(&self, options: &mut ConnectOptions, file: Option<&KeysOfHost>) -> Result<()> {
        options.concatenation = self.concat || options.concatenation;
        if options.concatenates() {
            return Ok(check_concatenation(options)?);
        }
        options.tls = self.tls(&options.url, file)?;
        if options.tls.is_some() && options.url.transport != Transport::Tcp {
            let url = &options.url;
            tracing::warn!(
                "{url}: NVMe/RDMA has no TLS, so the key for TLS is not used, and all is in clear text"
            );
        }
        Ok(())
    }

    /// What the library needs; none without a key.
    ///
    /// # Errors
    /// What is wrong with an option, or a key that cannot be read.
    fn tls(&self, url: &Url, file: Option<&KeysOfHost>) -> Result<Option<Tls>> {
        let places = Places {
            file,
            role: KeyRole::Tls,
            address: url.tls_key.as_ref(),
            option: self.tls_key.as_ref(),
            name: "tls-key",
            variable: KEY_VARIABLE,
        };
        let Some(key) = places.find()? else { return Ok(None) };
        let derivation = match self.tls_derivation {
            DerivationName::Specified => Derivation::Specified,
            DerivationName::LibnvmeBefore202507 => Derivation::LibnvmeBefore202507,
        };
        Ok(Some(Tls { key, derivation }))
    }
}

/// Whether authentication can make a key for TLS.
fn check_concatenation(options: &ConnectOptions) -> Result<(), Usage> {
    let wrong = |why: &str| Err(Usage(format!("secure channel concatenation (--concat) {why}")));
    let Some(authentication) = &options.authentication else {
        return wrong("makes the key for TLS of a key for authentication: give --keys, or --dhchap-key");
    };
    if authentication.policy.accepted_hashes().iter().all(|hash| CipherSuite::of_hash(*hash).is_none()) {
        return wrong("cannot make a key with sha512: add sha256 or sha384 to --dhchap-hashes");
    }
    if authentication.policy.accepted_groups() == [Group::Null] {
        return wrong("cannot make a key without a DH group: add one to --dhchap-groups");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use ringfab_auth::{Hash, KeySource, Policy};
    use ringfab_initiator::TlsKey;

    use super::*;

    const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

    #[derive(Parser, Debug)]
    struct Cli {
        #[command(flatten)]
        tls: TlsArgs,
    }

    fn parsed(arguments: &[&str], parameters: &str) -> Result<Option<Tls>> {
        let cli = Cli::try_parse_from([&["test"], arguments].concat()).expect("valid options");
        assert!(!format!("{cli:?}").contains("VRL"));
        cli.tls.tls(&format!("nvme+tcp://192.0.2.1/a{parameters}").parse().expect("an address"), None)
    }

    #[test]
    fn a_key_is_the_key_or_where_it_is_and_the_command_line_wins() {
        assert!(parsed(&[], "").expect("nothing to do").is_none());
        let tls = parsed(&["--tls-key", KEY], "").expect("a key").expect("a key");
        assert!(matches!(tls.key, TlsKey::Known(_)) && tls.derivation == Derivation::Specified);
        assert!(!format!("{tls:?}").contains("VRL"));
        let old = parsed(&["--tls-key", KEY, "--tls-derivation=libnvme-before-2025-07"], "");
        assert_eq!(old.expect("a key").expect("a key").derivation, Derivation::LibnvmeBefore202507);
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), KEY).expect("written");
        let at = format!("?tls_key=file:{}", file.path().display());
        let tls = parsed(&["--tls-key", KEY], &at).expect("a key").expect("a key");
        assert!(matches!(tls.key, TlsKey::Known(_)));
        let tls = parsed(&[], &at).expect("a key").expect("a key");
        assert_eq!(tls.key, TlsKey::At(KeySource::File(file.path().into())));
    }

    #[test]
    fn concatenation_is_asked_for_and_needs_what_makes_a_key() {
        use ringfab_initiator::{Authentication, HostIdentity, Key, Keys};

        const DHCHAP: &str = "DHHC-1:00:ycnJycnJycnJycnJycnJycnJycnJycnJycnJycnJyclx132H:";
        let applied = |arguments: &[&str], parameters: &str, prepare: Prepare| {
            let cli = Cli::try_parse_from([&["test"], arguments].concat()).expect("valid options");
            let mut url = format!("nvme+tcp://192.0.2.1/a{parameters}").parse().expect("an address");
            cli.tls.settle(&mut url);
            let host = HostIdentity { nqn: "nqn.test".to_owned(), id: uuid::Uuid::from_u128(1) };
            let mut options = ConnectOptions::new(url, host);
            let key = Key::Known(ringfab_auth::DhchapKey::parse(DHCHAP).expect("a key"));
            options.authentication = Some(Authentication::new(Keys { host: key, controller: None }));
            prepare(&mut options);
            cli.tls.apply(&mut options, None).map(|()| (options.concatenates(), options.uses_tls()))
        };
        let with =
            |arguments: &[&str], parameters: &str| applied(arguments, parameters, |_| {}).expect("valid");
        assert_eq!(with(&[], ""), (false, false));
        assert_eq!(with(&["--concat"], ""), (true, true));
        assert_eq!(with(&["--concat"], "?concat=off"), (true, true), "the command line wins");
        assert_eq!(with(&["--concat"], "?tls=off"), (true, true));
        assert_eq!(with(&["--concat"], "?tls_key=file:/k"), (true, true));
        assert_eq!(with(&["--tls-key", KEY], "?concat=on"), (false, true));
        assert_eq!(with(&["--tls-key", KEY], "?tls=off"), (false, true));
        assert_eq!(with(&["--tls"], "?tls=off&concat=off"), (false, true));
        assert_eq!(with(&[], "?concat=on"), (true, true));
        assert!(Cli::try_parse_from(["test", "--concat", "--tls-key", KEY]).is_err());
        let rows: [(Prepare, &str); 3] = [
            (|options| options.authentication = None, "give --keys, or --dhchap-key"),
            (|options| set_policy(options, &[Hash::Sha512], &[Group::Ffdhe2048]), "add sha256 or sha384"),
            (|options| set_policy(options, &[Hash::Sha256], &[Group::Null]), "without a DH group"),
        ];
        for (prepare, said) in rows {
            let error = applied(&["--concat"], "", prepare).expect_err("refused").to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    type Prepare = fn(&mut ConnectOptions);

    fn set_policy(options: &mut ConnectOptions, hashes: &[Hash], groups: &[Group]) {
        let policy = Policy::new(hashes, groups).expect("a policy");
        options.authentication.as_mut().expect("keys").policy = policy;
    }

    #[test]
    fn what_is_wrong_with_a_key_is_said_without_it() {
        for (text, said) in [
            (KEY.replace("VRL", "WRL"), "the checksum of the key is wrong"),
            ("DHHC-1:00:VRLbtn:".to_owned(), "this is a key for authentication (DHHC-1)"),
            ("/etc/key".to_owned(), "must be \"file:/path\", \"credential:NAME\" or \"keyring:DESCRIPTION\""),
            ("file:/nowhere".to_owned(), "cannot read /nowhere"),
        ] {
            let error = format!("{:#}", parsed(&["--tls-key", &text], "").expect_err("refused"));
            assert!(error.contains(said) && error.starts_with("--tls-key: "), "{error}");
            assert!(!error.contains("VRL") && !error.contains("WRL"), "{error}");
        }
    }
}
