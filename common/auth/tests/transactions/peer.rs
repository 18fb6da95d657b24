//! Our ends against an implementation in Python, which shares nothing with them: `peer.py` and `exchange.py`
//! beside this file.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use ringfab_auth::{Authenticated, Channel, Concatenation, Group, Hash, Parties};
use ringfab_spec::Nqn;
use ringfab_spec::auth::SecureChannel;

use crate::support::{Controller, HOST, Host, SUBSYSTEM, Sent, key, only};

/// What both ends are told.
#[derive(Clone, Copy, Debug)]
struct Case {
    hash: Hash,
    group: Group,
    both_ways: bool,
    secure_channel: SecureChannel,
}

/// The end in Python.
struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Case {
    fn host_key(self) -> ringfab_auth::DhchapKey {
        key(0x5a, Some(self.hash))
    }

    fn controller_key(self) -> Option<ringfab_auth::DhchapKey> {
        self.both_ways.then(|| key(0xa5, None))
    }

    fn parties(self) -> Arc<Parties> {
        let (host, subsystem) = (Nqn::new(HOST).unwrap(), Nqn::new(SUBSYSTEM).unwrap());
        Parties::new(host, subsystem, &self.host_key(), self.controller_key().as_ref())
    }

    fn peer(self, role: &str) -> Peer {
        let controller_key = self.controller_key().map(|key| key.to_text().expose().to_owned());
        let mut child = Command::new("python3")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/transactions/peer.py"))
            .args([role, HOST, SUBSYSTEM, self.host_key().to_text().expose()])
            .arg(controller_key.as_deref().unwrap_or("-"))
            .args(
                [self.hash.id().0, self.group.id().0, self.secure_channel.0].map(|number| number.to_string()),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Peer { child, input, output }
    }

    /// What the peer says at its end is what our end has.
    fn compare(self, authenticated: &Authenticated, said: &str) {
        let mut parts = said.split('\t');
        assert_eq!(parts.next(), Some("done"));
        let Some(psk) = &authenticated.generated_psk else {
            assert_eq!((parts.next(), self.secure_channel), (None, SecureChannel::NONE));
            return;
        };
        let tls = authenticated.tls_psk(self.parties().names()).expect("a key for TLS");
        let ours = [hex(psk.secret().expose()), tls.identity().to_owned(), hex(tls.secret().expose())];
        assert_eq!(parts.collect::<Vec<_>>(), ours);
    }
}

impl Peer {
    fn send(&mut self, message: &[u8]) {
        writeln!(self.input, "{}", hex(message)).expect("the peer listens");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("text");
        assert!(!line.is_empty(), "the peer has found something wrong");
        line.trim_end().to_owned()
    }

    fn receive(&mut self) -> Vec<u8> {
        let line = self.line();
        let byte = |at| u8::from_str_radix(&line[at..at + 2], 16).expect("hexadecimal digits");
        (0..line.len()).step_by(2).map(byte).collect()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Every hash with some group and every group with some hash, both ways and one way, and keys for TLS.
fn cases() -> Vec<Case> {
    let none = SecureChannel::NONE;
    let mut cases = Vec::new();
    for both_ways in [false, true] {
        for hash in Hash::ALL {
            cases.push(Case { hash, group: Group::Null, both_ways, secure_channel: none });
            cases.push(Case { hash, group: Group::Ffdhe2048, both_ways, secure_channel: none });
        }
        for hash in [Hash::Sha256, Hash::Sha384] {
            let secure_channel = SecureChannel::NEW_TLS_PSK;
            cases.push(Case { hash, group: Group::Ffdhe3072, both_ways, secure_channel });
        }
    }
    let large = [Group::Ffdhe4096, Group::Ffdhe6144, Group::Ffdhe8192];
    let others = Group::ALL.into_iter().filter(|group| *group > Group::Ffdhe8192);
    for group in large.into_iter().chain(others) {
        cases.push(Case { hash: Hash::Sha512, group, both_ways: true, secure_channel: none });
    }
    for group in [Group::Secp256r1, Group::MlKem1024, Group::Secp384r1MlKem1024] {
        let secure_channel = SecureChannel::NEW_TLS_PSK;
        cases.push(Case { hash: Hash::Sha384, group, both_ways: false, secure_channel });
    }
    cases
}

#[test]
fn our_controller_and_another_host_agree() {
    for case in cases() {
        let concatenation = match case.secure_channel {
            SecureChannel::NONE => Concatenation::Refused,
            _ => Concatenation::Required(Channel::Clear),
        };
        let mut controller =
            Controller::new(Some(case.parties()), only(case.hash, case.group), concatenation);
        let mut peer = case.peer("host");
        controller.send(&peer.receive());
        peer.send(&controller.receive());
        controller.send(&peer.receive());
        peer.send(&controller.receive());
        if case.both_ways {
            controller.send(&peer.receive());
        }
        let said = peer.line();
        let outcome = controller.outcome().expect("it is over");
        case.compare(&outcome.unwrap_or_else(|refusal| panic!("{case:?}: {refusal}")), &said);
    }
}

#[test]
fn our_host_and_another_controller_agree() {
    for case in cases() {
        let (mut host, negotiate) =
            Host::new(case.parties(), only(case.hash, case.group), case.secure_channel);
        let mut peer = case.peer("controller");
        peer.send(&negotiate);
        let Sent::Exchange(reply) = host.receive(&peer.receive()) else { panic!("{case:?}: no reply") };
        peer.send(&reply);
        match (host.receive(&peer.receive()), case.both_ways) {
            (Sent::Last(success2), true) => peer.send(&success2),
            (Sent::Nothing, false) => {}
            (other, _) => panic!("{case:?}: {other:?}"),
        }
        let said = peer.line();
        let outcome = host.outcome().expect("it is over");
        case.compare(&outcome.unwrap_or_else(|refusal| panic!("{case:?}: {refusal}")), &said);
    }
}
