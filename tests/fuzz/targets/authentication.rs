//! Messages of authentication from a hostile peer, at every step of a transaction: noise, or what an honest peer would
//! have sent with some bits changed.
#![cfg_attr(feature = "libfuzzer", no_main)]

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use ringfab_auth::{
    Concatenation, ControllerTransaction, DhchapKey, Group, Hash, HostStep, HostTransaction, Message,
    ParsedIdentity, Parties, Policy, Received, Secret, SequenceNumbers,
};
use ringfab_fuzz::fuzz_target;
use ringfab_spec::Nqn;
use ringfab_spec::auth::SecureChannel;

fuzz_target!(|input: &[u8]| {
    let [flags, step, noise @ ..] = input else { return };
    parse(noise);
    // The identity of a key for TLS is what a stranger says first.
    if let Ok(identity) = ParsedIdentity::parse(noise) {
        let (host, subsystem) = (identity.names.host.as_str(), identity.names.subsystem.as_str());
        assert!(host.len() + subsystem.len() < noise.len());
    }
    let mut session = Session::new(*flags);
    let mut message = session.first.clone();
    for number in 0..4 {
        let hostile = number == step % 4;
        let honest = message.clone();
        if hostile {
            message = changed(&honest, noise, flags & 1 != 0);
        }
        let Some(next) = session.deliver(number, &message) else { break };
        // A proof that was changed proves nothing.
        let proof = 16..48;
        if hostile && number == 2 && message.get(proof.clone()) != honest.get(proof) {
            assert!(
                !matches!(session.controller.outcome(), Some(Ok(_))),
                "the controller takes a wrong response"
            );
        }
        message = next;
    }
    session.finish(noise);
});

/// A message that is parsed is the same when it is printed and parsed again.
fn parse(bytes: &[u8]) {
    if let Ok((message, rest)) = Message::parse(bytes) {
        let printed = message.to_bytes();
        assert!(printed.len() <= bytes.len() - rest.len());
        assert_eq!(Message::parse_exact(&printed), Ok(message));
    }
}

fn changed(honest: &[u8], noise: &[u8], flip: bool) -> Vec<u8> {
    if !flip {
        return noise.to_vec();
    }
    let mut message = honest.to_vec();
    for (byte, flipped) in message.iter_mut().zip(noise) {
        *byte ^= flipped;
    }
    message
}

/// Both ends, of which the peer of each may be replaced by noise.
struct Session {
    host: HostTransaction,
    controller: ControllerTransaction,
    sequence: SequenceNumbers,
    random: ChaCha8Rng,
    first: Vec<u8>,
}

impl Session {
    fn new(flags: u8) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let groups = [Group::Null, Group::Ffdhe2048, Group::MlKem768, Group::Secp256r1MlKem768];
        let group = groups[usize::from(flags >> 1 & 1 | flags >> 2 & 2)];
        let policy = Arc::new(Policy::new(&[Hash::Sha256], &[group]).expect("a policy"));
        let key = DhchapKey::new(Secret::copy_of(&[7; 32]), Some(Hash::Sha256)).expect("a key");
        let (host, subsystem) = (Nqn::new("host").expect("a name"), Nqn::new("subsystem").expect("a name"));
        let parties = Parties::new(host, subsystem, &key, (flags & 4 == 0).then_some(&key));
        let (host, first) = HostTransaction::start(parties.clone(), policy.clone(), SecureChannel::NONE, 1)
            .expect("the policy has what is needed");
        let controller = ControllerTransaction::new(Some(parties), policy, Concatenation::Refused);
        Self { host, controller, sequence: SequenceNumbers::new(&mut random), random, first }
    }

    /// Message `number` comes to its end, which answers: those of the host have even numbers.
    fn deliver(&mut self, number: u8, message: &[u8]) -> Option<Vec<u8>> {
        if number.is_multiple_of(2) { self.controller_takes(message) } else { self.host_takes(message) }
    }

    fn controller_takes(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        if let Some(computation) = self.controller.on_send(message, &self.sequence, &mut self.random) {
            assert_eq!(self.controller.on_receive(4096), Received::Pending);
            self.controller.on_computed(computation.run());
        }
        match self.controller.on_receive(4096) {
            Received::Message(message) => {
                assert!(Message::parse_exact(&message).is_ok());
                Some(message)
            }
            other => panic!("{other:?} after a computation"),
        }
    }

    fn host_takes(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        let mut step = self.host.on_message(message, &self.sequence, &mut self.random);
        while let HostStep::Compute(computation) = step {
            step = self.host.on_computed(computation.run());
        }
        match step {
            HostStep::Exchange(message) | HostStep::SendLast(message) => {
                assert!(Message::parse_exact(&message).is_ok());
                Some(message)
            }
            HostStep::Nothing => None,
            HostStep::Compute(_) => unreachable!(),
        }
    }

    /// What comes after a refusal changes nothing of it.
    fn finish(&mut self, noise: &[u8]) {
        let (host, controller) = (self.host.state(), self.controller.state());
        if host.is_over() {
            self.host_takes(noise);
            assert_eq!(self.host.state(), host);
        }
        if controller == ringfab_auth::ControllerState::Refused {
            self.controller_takes(noise);
            assert_eq!(self.controller.state(), controller);
        }
    }
}
