//! A target with keys of a host.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use ringfab_auth::{
    CipherSuite, ConfiguredPsk, Derivation, DhchapKey, Hash, IdentityVersion, Names, TlsPsk, system_random,
};
use ringfab_spec::nqn::Nqn;
use ringfab_tests::TestTarget;
use ringfab_tests::raw_tcp::HOST_NQN;
use tempfile::TempDir;

pub(crate) const MEMORY: &str = "[[subsystem.namespace]]\nmemory = \"1MiB\"\n";

/// A target with keys of a host, and the folder with these.
pub(crate) struct Guarded {
    pub(crate) target: TestTarget,
    pub(crate) folder: TempDir,
    pub(crate) psk: ConfiguredPsk,
    pub(crate) dhchap: DhchapKey,
    pub(crate) controller: DhchapKey,
}

pub(crate) fn write_key(path: &Path, text: &str) {
    fs::write(path, text).expect("a key");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("for few eyes");
}

impl Guarded {
    /// With this in `[[listener]]`, this in `[[subsystem]]`, and this of `[[host]]`.
    pub(crate) fn start(listener: &str, subsystem: &str, keys: &[&str]) -> Self {
        Self::on_cores(1, CipherSuite::Aes128GcmSha256, listener, subsystem, keys)
    }

    /// The same on so many cores, with a key for this suite.
    pub(crate) fn on_cores(
        cores: usize,
        suite: CipherSuite,
        listener: &str,
        subsystem: &str,
        keys: &[&str],
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let psk = ConfiguredPsk::generate(suite, &mut system_random());
        let dhchap = DhchapKey::generate(Hash::Sha256, None, &mut system_random());
        write_key(&folder.path().join("tls_key"), psk.to_text().expose());
        write_key(&folder.path().join("dhchap_key"), dhchap.to_text().expose());
        let controller = DhchapKey::generate(Hash::Sha256, None, &mut system_random());
        write_key(&folder.path().join("dhchap_controller_key"), controller.to_text().expose());
        let keys: String = keys
            .iter()
            .map(|key| format!("{key} = \"file:{}\"\n", folder.path().join(key).display()))
            .collect();
        let tables = format!("{subsystem}\n{MEMORY}[[host]]\nnqn = {HOST_NQN:?}\n{keys}");
        let listener = format!("transport = \"tcp\"\ntls = {listener:?}");
        Self { target: TestTarget::on_cores(cores, &listener, &tables), folder, psk, dhchap, controller }
    }

    /// The key of a connection.
    pub(crate) fn tls(&self, version: IdentityVersion, subsystem: &str) -> TlsPsk {
        let names = Names { host: name(HOST_NQN), subsystem: name(subsystem) };
        let retained = self.psk.retained(names.host, Derivation::Specified);
        retained.tls(version, self.psk.suite(), names, Derivation::Specified).expect("a key")
    }

    /// Where the key for TLS is.
    pub(crate) fn key_file(&self) -> PathBuf {
        self.folder.path().join("tls_key")
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.target.address()
    }

    /// The target has another key for the host.
    pub(crate) fn change_key(&self, psk: &ConfiguredPsk) {
        let mut manager = self.target.manager();
        let mut host = manager.configured().running.host(HOST_NQN);
        host.tls.as_mut().expect("a key").key.key = psk.clone();
        manager.set_host(host).expect("another key");
    }
}

pub(crate) fn name(text: &str) -> Nqn<'_> {
    Nqn::new(text).expect("a name")
}
