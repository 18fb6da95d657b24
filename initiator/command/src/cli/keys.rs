//! `ringfab keys`: keys for authentication and for TLS, in the texts that nvme-cli and Linux use.

mod pair;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::{Args, Subcommand, ValueEnum};
use ringfab_auth::{
    CipherSuite, ConfiguredPsk, Derivation, DhchapKey, Hash, HostKeys, IdentityVersion, KeyRole, Names,
    system_random,
};
use ringfab_base::{VisiblePath as _, visible};
use ringfab_front_ends::context::{Context, Usage};
use ringfab_front_ends::output;
use ringfab_spec::Nqn;
use serde_json::json;

use super::examples;
use pair::PairArgs;

/// No key is longer, and no other file is read to its end.
const FILE_BYTES_MAX: u64 = 4096;

const NO_KEY: &str =
    "this is not a key: one for authentication begins with \"DHHC-1:\", one for TLS with \"NVMeTLSkey-1:\"";

#[derive(Subcommand)]
pub(crate) enum KeysCommand {
    /// Print a new key
    #[command(after_help = examples::KEYS_GENERATE)]
    Generate(GenerateArgs),
    /// Say what a key is, or what is wrong with it
    #[command(after_help = examples::KEYS_CHECK)]
    Check(KeyFile),
    /// Print the name by which the ends of a TLS connection know a key
    #[command(after_help = examples::KEYS_IDENTITY)]
    Identity(IdentityArgs),
    /// Print new keys for a host and a subsystem, and where they go
    #[command(after_help = examples::KEYS_PAIR)]
    Pair(PairArgs),
}

#[derive(Args)]
pub(crate) struct GenerateArgs {
    /// For authentication (DHHC-1); this is the default
    #[arg(long, conflicts_with = "tls")]
    dhchap: bool,
    /// For TLS (NVMeTLSkey-1)
    #[arg(long)]
    tls: bool,
    /// Hash by which both ends transform the key: none, sha256, sha384 or, without --tls, sha512. The key gets as many
    /// bytes as the hash has. By default none for authentication, and sha256 for TLS
    #[arg(long, value_name = "HASH")]
    hmac: Option<Hmac>,
}

/// A hash by its name, or by its number in keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Hmac {
    #[value(alias = "0")]
    None,
    #[value(alias = "1")]
    Sha256,
    #[value(alias = "2")]
    Sha384,
    #[value(alias = "3")]
    Sha512,
}

#[derive(Args)]
pub(crate) struct KeyFile {
    /// File with the key; without it, or with "-", the standard input. Not the key itself: others see command lines
    file: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct IdentityArgs {
    #[command(flatten)]
    names: NameArgs,
    #[command(flatten)]
    key: KeyFile,
    /// Version of the identity: 0 has the names alone, 1 a digest of the key as well
    #[arg(long, value_name = "VERSION", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    identity_version: u8,
    /// Derive the key as libnvme did before July 2025, for peers with keys from such a version
    #[arg(long)]
    libnvme_before_2025_07: bool,
}

#[derive(Args)]
struct NameArgs {
    /// The host's NQN
    #[arg(long, value_name = "NQN")]
    host: String,
    /// The subsystem's NQN
    #[arg(long, value_name = "NQN")]
    subsystem: String,
}

pub(crate) fn run(command: &KeysCommand, context: &Context) -> Result<()> {
    match command {
        KeysCommand::Generate(args) => generate(args, context),
        KeysCommand::Check(file) => check(file, context),
        KeysCommand::Identity(args) => identity(args, context),
        KeysCommand::Pair(args) => pair::pair(args, context),
    }
}

impl Hmac {
    fn hash(self) -> Option<Hash> {
        match self {
            Self::None => None,
            Self::Sha256 => Some(Hash::Sha256),
            Self::Sha384 => Some(Hash::Sha384),
            Self::Sha512 => Some(Hash::Sha512),
        }
    }
}

impl NameArgs {
    fn names(&self) -> Result<Names<'_>> {
        let name = |text, whose| Nqn::new(text).map_err(|error| Usage(format!("the {whose}: {error}")));
        Ok(Names { host: name(&self.host, "host")?, subsystem: name(&self.subsystem, "subsystem")? })
    }
}

impl KeyFile {
    fn read(&self) -> Result<String> {
        let mut bytes = Vec::new();
        let path = self.file.as_deref().filter(|path| *path != Path::new("-"));
        match path {
            None => {
                io::stdin().take(FILE_BYTES_MAX).read_to_end(&mut bytes).context("read the standard input")?
            }
            Some(path) => {
                let name = path.as_os_str().as_bytes();
                if name.starts_with(b"DHHC-") || name.starts_with(b"NVMeTLSkey-") {
                    let why = "this is a key, and not the file of one: others see command lines, so give it on the \
                               standard input";
                    return Err(Usage(why.to_owned()).into());
                }
                // As the configuration and the options name it.
                let path = Path::new(OsStr::from_bytes(name.strip_prefix(b"file:").unwrap_or(name)));
                let mut open = || -> io::Result<usize> {
                    let file = File::open(path)?;
                    warn_of_mode(path, &file)?;
                    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)
                };
                open().with_context(|| format!("read {}", path.visible()))?
            }
        };
        String::from_utf8(bytes).map_err(|_| anyhow!(NO_KEY))
    }
}

/// Neither end takes a key from a file that everybody may read.
fn warn_of_mode(path: &Path, file: &File) -> io::Result<()> {
    let metadata = file.metadata()?;
    let mode = metadata.mode() & 0o777;
    if metadata.is_file() && mode & 0o007 != 0 {
        let path = path.visible();
        tracing::warn!(
            "everybody may read or change {path} (mode {mode:04o}), so that neither end takes the key: chmod o= {path}"
        );
    }
    Ok(())
}

fn generate(args: &GenerateArgs, context: &Context) -> Result<()> {
    let key = if args.tls { new_psk(args.hmac)?.to_text() } else { new_key(args.hmac).to_text() };
    output::either(context.json, || json!({ "key": key.expose() }), || format!("{}\n", key.expose()))
}

fn new_key(hmac: Option<Hmac>) -> DhchapKey {
    let transformation = hmac.and_then(Hmac::hash);
    DhchapKey::generate(transformation.unwrap_or(Hash::Sha256), transformation, &mut system_random())
}

fn new_psk(hmac: Option<Hmac>) -> Result<ConfiguredPsk> {
    let random = &mut system_random();
    match hmac.unwrap_or(Hmac::Sha256) {
        Hmac::None => Ok(ConfiguredPsk::generate_plain(CipherSuite::Aes128GcmSha256, random)),
        Hmac::Sha256 => Ok(ConfiguredPsk::generate(CipherSuite::Aes128GcmSha256, random)),
        Hmac::Sha384 => Ok(ConfiguredPsk::generate(CipherSuite::Aes256GcmSha384, random)),
        Hmac::Sha512 => Err(Usage("no cipher suite of NVMe/TCP has SHA-512".to_owned()).into()),
    }
}

fn check(file: &KeyFile, context: &Context) -> Result<()> {
    let text = file.read()?;
    if HostKeys::is_file(&text) {
        return check_all(&HostKeys::parse(&text)?, context);
    }
    let begin = text.trim_start_matches('\u{feff}').trim_ascii_start();
    let (kind, length, transformation) = if begin.starts_with("NVMe") {
        let key = ConfiguredPsk::parse(&text)?;
        ("TLS", key.length(), key.transformation())
    } else {
        ensure!(begin.starts_with("DHHC"), NO_KEY);
        let key = DhchapKey::parse(&text)?;
        ("authentication", key.length(), key.transformation())
    };
    let hash = transformation.map_or("none".to_owned(), |hash| hash.to_string());
    output::either(
        context.json,
        || json!({ "for": kind, "bytes": length, "hash": hash }),
        || format!("a valid key for {kind}: {length} bytes, hash {hash}\n"),
    )
}

/// All keys of a host.
fn check_all(keys: &HostKeys, context: &Context) -> Result<()> {
    let all = [KeyRole::Host, KeyRole::Controller, KeyRole::Tls].into_iter().filter(|role| keys.has(*role));
    let names: Vec<&str> = all.map(KeyRole::name).collect();
    output::either(
        context.json,
        || json!({ "host": keys.host(), "keys": names }),
        || format!("valid keys of host {}: {}\n", visible(keys.host()), names.join(", ")),
    )
}

fn identity(args: &IdentityArgs, context: &Context) -> Result<()> {
    let names = args.names.names()?;
    let text = args.key.read()?;
    let key = match HostKeys::find(&text, KeyRole::Tls)? {
        Some((_, key)) => ConfiguredPsk::parse(key.expose())?,
        None => ConfiguredPsk::parse(&text)?,
    };
    let derivation = match args.libnvme_before_2025_07 {
        false => Derivation::Specified,
        true => Derivation::LibnvmeBefore202507,
    };
    let version = match args.identity_version {
        0 => IdentityVersion::Zero,
        _ => IdentityVersion::One,
    };
    let identity = key.retained(names.host, derivation).identity(version, key.suite(), names);
    output::either(
        context.json,
        || json!({ "identity": identity, "suite": key.suite().to_string() }),
        || format!("{identity}\n"),
    )
}
