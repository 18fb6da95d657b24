//! What both ends know once they have agreed on a key and a shared secret.

use ringfab_auth::{CipherSuite, Hash, Secret};

use crate::keys::{Schedule, TrafficKeys, finished};
use crate::wire::Role;

/// The messages so far, for hashes of them. They are no more than a few KiB beside the hellos, and the function is not
/// known before the server has chosen: so they are kept, not hashed as they come.
#[derive(Debug, Default)]
pub(crate) struct Transcript(Vec<u8>);

impl Transcript {
    pub(crate) fn push(&mut self, message: &[u8]) {
        self.0.extend_from_slice(message);
    }

    /// With the beginning of one more message.
    pub(crate) fn with(&self, beginning: &[u8]) -> Vec<u8> {
        [&self.0[..], beginning].concat()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// A HelloRetryRequest follows: the ClientHello before it is replaced by its hash (RFC 8446, section 4.4.1).
    pub(crate) fn retry(&mut self, hash: Hash, request: &[u8]) {
        const MESSAGE_HASH: u8 = 254;
        let digest = hash.of(&self.0);
        let length = u8::try_from(hash.length()).expect("hashes are short");
        self.0 = [&[MESSAGE_HASH, 0, 0, length], digest.expose(), request].concat();
    }
}

/// What both ends know.
#[derive(Debug)]
pub(crate) struct Agreed {
    pub(crate) suite: CipherSuite,
    pub(crate) identity: Vec<u8>,
    pub(crate) psk: Secret,
    /// The Handshake Secret.
    schedule: Schedule,
    client: Secret,
    server: Secret,
}

impl Agreed {
    /// From a key, what key agreement has led to, and the messages up to ServerHello.
    pub(crate) fn new(
        identity: Vec<u8>,
        key: &Secret,
        suite: CipherSuite,
        shared: &Secret,
        transcript: &Transcript,
    ) -> Self {
        let schedule = Schedule::early(suite.hash(), key).handshake(shared);
        let client = schedule.derive("c hs traffic", transcript.bytes());
        let server = schedule.derive("s hs traffic", transcript.bytes());
        Self { suite, identity, psk: key.clone(), schedule, client, server }
    }

    fn secret_of(&self, sender: Role) -> &Secret {
        match sender {
            Role::Client => &self.client,
            Role::Server => &self.server,
        }
    }

    /// The keys of the handshake of an end that sends.
    pub(crate) fn keys_of(&self, sender: Role) -> TrafficKeys {
        TrafficKeys::new(self.suite, self.secret_of(sender).clone())
    }

    /// The value of the Finished message of an end, with the messages before it.
    pub(crate) fn finished_of(&self, sender: Role, transcript: &Transcript) -> Secret {
        finished(self.suite.hash(), self.secret_of(sender), transcript.bytes())
    }

    /// The keys for data, with the messages up to the server's Finished.
    pub(crate) fn application(&self, transcript: &Transcript) -> ApplicationKeys {
        let main = self.schedule.main();
        let keys = |label| TrafficKeys::new(self.suite, main.derive(label, transcript.bytes()));
        ApplicationKeys { client: keys("c ap traffic"), server: keys("s ap traffic") }
    }
}

/// The keys for data.
#[derive(Debug)]
pub(crate) struct ApplicationKeys {
    pub(crate) client: TrafficKeys,
    pub(crate) server: TrafficKeys,
}
