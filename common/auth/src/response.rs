//! Who the two ends are, and the responses with which they prove it (NVM Express Base 2.2, section 8.3.4.5).

use std::sync::Arc;

use ringfab_spec::Nqn;
use ringfab_spec::auth::SecureChannel;

use crate::dhchap_key::DhchapKey;
use crate::fingerprint::KeyFingerprint;
use crate::hash::Hash;
use crate::psk::Names;
use crate::secret::Secret;

/// A host and a subsystem, with the keys by which they authenticate each other. Connections share them.
#[derive(Debug)]
pub struct Parties {
    host: String,
    subsystem: String,
    host_key: Secret,
    controller_key: Option<Secret>,
    key: KeyFingerprint,
}

impl Parties {
    /// `controller_key`: by which the host authenticates the controller, if it does.
    pub fn new(
        host: Nqn<'_>,
        subsystem: Nqn<'_>,
        host_key: &DhchapKey,
        controller_key: Option<&DhchapKey>,
    ) -> Arc<Self> {
        Arc::new(Self {
            host: host.as_str().to_owned(),
            subsystem: subsystem.as_str().to_owned(),
            host_key: host_key.transformed(host),
            controller_key: controller_key.map(|key| key.transformed(subsystem)),
            key: host_key.fingerprint(),
        })
    }

    /// The host's name.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The subsystem's name.
    pub fn subsystem(&self) -> &str {
        &self.subsystem
    }

    /// Both names.
    pub fn names(&self) -> Names<'_> {
        let name = |text| Nqn::new(text).expect("it was one");
        Names { host: name(&self.host), subsystem: name(&self.subsystem) }
    }

    /// Which key of the host it is.
    pub fn key(&self) -> KeyFingerprint {
        self.key
    }

    /// Whether there is a key for the controller.
    pub fn has_controller_key(&self) -> bool {
        self.controller_key.is_some()
    }

    /// R1: the host's answer to the controller's challenge.
    pub(crate) fn host_response(&self, terms: &Terms, challenge: &[u8], seqnum: u32) -> Secret {
        let prover =
            Prover { role: b"HostHost", key: &self.host_key, name: &self.host, peer: &self.subsystem };
        prover.respond(terms, terms.secure_channel, challenge, seqnum)
    }

    /// R2: the controller's answer to the host's challenge. None without a key for the controller.
    pub(crate) fn controller_response(&self, terms: &Terms, challenge: &[u8], seqnum: u32) -> Option<Secret> {
        let key = self.controller_key.as_ref()?;
        let prover = Prover { role: b"Controller", key, name: &self.subsystem, peer: &self.host };
        Some(prover.respond(terms, terms.controller_secure_channel(), challenge, seqnum))
    }
}

/// What both ends have agreed on.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) t_id: u16,
    pub(crate) secure_channel: SecureChannel,
    pub(crate) hash: Hash,
    /// Ks, the hash of the shared secret. None with the null group.
    pub(crate) session_key: Option<Secret>,
    /// The controller's response says SC_C 0 whatever it is.
    pub(crate) controller_response_without_sc_c: bool,
}

impl Terms {
    fn controller_secure_channel(&self) -> SecureChannel {
        if self.controller_response_without_sc_c { SecureChannel::NONE } else { self.secure_channel }
    }

    /// The PSK that secure channel concatenation makes.
    pub(crate) fn generated_psk(&self, c1: &[u8], c2: &[u8]) -> Option<Secret> {
        self.session_key.as_ref().map(|key| self.hash.hmac(key, &[c1, c2]))
    }
}

/// Who responds.
struct Prover<'a> {
    role: &'static [u8],
    key: &'a Secret,
    name: &'a str,
    peer: &'a str,
}

impl Prover<'_> {
    fn respond(&self, terms: &Terms, secure_channel: SecureChannel, challenge: &[u8], seqnum: u32) -> Secret {
        let augmented = terms.session_key.as_ref().map(|key| terms.hash.hmac(key, &[challenge]));
        let challenge = augmented.as_ref().map_or(challenge, Secret::expose);
        let parts: [&[u8]; 8] = [
            challenge,
            &seqnum.to_le_bytes(),
            &terms.t_id.to_le_bytes(),
            &[secure_channel.0],
            self.role,
            self.name.as_bytes(),
            &[0],
            self.peer.as_bytes(),
        ];
        terms.hash.hmac(self.key, &parts)
    }
}
