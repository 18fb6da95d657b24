//! Both ends, connected by memory.

use std::sync::Arc;

use ringfab_auth::{
    Authenticated, Computation, Concatenation, ControllerTransaction, DhchapKey, Group, Hash, HostStep,
    HostTransaction, Parties, Policy, Received, Refusal, Secret, SequenceNumbers, system_random,
};
use ringfab_spec::Nqn;
use ringfab_spec::auth::SecureChannel;

pub(crate) const HOST: &str = "nqn.2026-11.com.example:host";
pub(crate) const SUBSYSTEM: &str = "nqn.2026-11.com.example:subsystem";

/// How long a host's buffer is.
pub(crate) const BUFFER: usize = 4096;

/// A key that depends on `fill` alone.
pub(crate) fn key(fill: u8, transformation: Option<Hash>) -> DhchapKey {
    DhchapKey::new(Secret::copy_of(&[fill; 48]), transformation).expect("48 bytes")
}

/// The two names with keys that depend on these numbers; none of the controller's if there is none.
pub(crate) fn parties(host_key: u8, controller_key: Option<u8>) -> Arc<Parties> {
    let (host, subsystem) = (Nqn::new(HOST).unwrap(), Nqn::new(SUBSYSTEM).unwrap());
    let controller_key = controller_key.map(|fill| key(fill, Some(Hash::Sha512)));
    Parties::new(host, subsystem, &key(host_key, Some(Hash::Sha256)), controller_key.as_ref())
}

/// A policy with one hash function and one group.
pub(crate) fn only(hash: Hash, group: Group) -> Arc<Policy> {
    Arc::new(Policy::new(&[hash], &[group]).unwrap())
}

/// A host.
pub(crate) struct Host {
    pub(crate) transaction: HostTransaction,
    sequence: SequenceNumbers,
}

/// What a host has to send; whether something comes back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Exchange(Vec<u8>),
    Last(Vec<u8>),
    Nothing,
}

impl Sent {
    /// The message, whatever follows.
    pub(crate) fn message(self) -> Vec<u8> {
        match self {
            Self::Exchange(message) | Self::Last(message) => message,
            Self::Nothing => panic!("nothing was sent"),
        }
    }
}

impl Host {
    /// A host, and its Negotiate.
    pub(crate) fn new(
        parties: Arc<Parties>,
        policy: Arc<Policy>,
        secure_channel: SecureChannel,
    ) -> (Self, Vec<u8>) {
        let (transaction, negotiate) =
            HostTransaction::start(parties, policy, secure_channel, 0x1234).unwrap();
        (Self { transaction, sequence: SequenceNumbers::new(&mut system_random()) }, negotiate)
    }

    /// A message comes, and computations are done at once.
    pub(crate) fn receive(&mut self, message: &[u8]) -> Sent {
        let mut step = self.transaction.on_message(message, &self.sequence, &mut system_random());
        while let HostStep::Compute(computation) = step {
            step = self.transaction.on_computed(compute(computation));
        }
        match step {
            HostStep::Exchange(message) => Sent::Exchange(message),
            HostStep::SendLast(message) => Sent::Last(message),
            HostStep::Nothing => Sent::Nothing,
            HostStep::Compute(_) => unreachable!(),
        }
    }

    pub(crate) fn outcome(&self) -> Option<Result<Authenticated, Refusal>> {
        self.transaction.outcome().map(|outcome| outcome.cloned())
    }
}

/// A controller.
pub(crate) struct Controller {
    pub(crate) transaction: ControllerTransaction,
    pub(crate) sequence: SequenceNumbers,
}

impl Controller {
    pub(crate) fn new(
        parties: impl IntoIterator<Item = Arc<Parties>>,
        policy: Arc<Policy>,
        concatenation: Concatenation,
    ) -> Self {
        let transaction = ControllerTransaction::new(parties, policy, concatenation);
        Self { transaction, sequence: SequenceNumbers::new(&mut system_random()) }
    }

    /// A message comes, and computations are done at once.
    pub(crate) fn send(&mut self, message: &[u8]) {
        if let Some(computation) = self.transaction.on_send(message, &self.sequence, &mut system_random()) {
            assert_eq!(self.transaction.on_receive(BUFFER), Received::Pending);
            self.transaction.on_computed(compute(computation));
        }
    }

    /// The message for a host's ordinary buffer.
    pub(crate) fn receive(&mut self) -> Vec<u8> {
        match self.transaction.on_receive(BUFFER) {
            Received::Message(message) => message,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn outcome(&self) -> Option<Result<Authenticated, Refusal>> {
        self.transaction.outcome().map(|outcome| outcome.cloned())
    }
}

/// Computes on another thread.
fn compute(computation: Computation) -> ringfab_auth::Computed {
    std::thread::spawn(move || computation.run()).join().expect("it does not panic")
}

/// Lets both run until the host has nothing more to send. `change` sees every message on its way.
pub(crate) fn run(
    host: &mut Host,
    controller: &mut Controller,
    first: Vec<u8>,
    mut change: impl FnMut(&mut Vec<u8>),
) {
    let mut sent = Sent::Exchange(first);
    loop {
        let (mut message, last) = match sent {
            Sent::Exchange(message) => (message, false),
            Sent::Last(message) => (message, true),
            Sent::Nothing => return,
        };
        change(&mut message);
        controller.send(&message);
        if last {
            return;
        }
        let mut message = controller.receive();
        change(&mut message);
        // As in a buffer that is longer than the message.
        message.resize(message.len() + 7, 0);
        sent = host.receive(&message);
    }
}
