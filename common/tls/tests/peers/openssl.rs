//! OpenSSL: `s_server` and `s_client`.

use std::process::Command;
use std::slice::from_ref;

use ringfab_auth::CipherSuite;
use ringfab_tls::{Alert, Psk, Role, TlsError};

use crate::support::{
    End, IDENTITY, Program, SUITES, accept, assert_alert, check, connect, have, hex, listen, named, psk,
};

/// What a program of OpenSSL is started with.
struct Options<'a> {
    psk: &'a Psk,
    more: &'a [&'a str],
}

fn suite_name(suite: CipherSuite) -> String {
    suite.to_string()
}

impl Options<'_> {
    /// `-psk` is for SHA-256. For SHA-384, a session with the key is made.
    fn add(&self, command: &mut Command, folder: &std::path::Path) {
        let Psk { identity, secret, suite } = self.psk;
        command.args(["-tls1_3", "-psk_identity", str::from_utf8(identity).unwrap()]);
        command.args(["-ciphersuites", &suite_name(*suite)]).args(self.more);
        match suite {
            CipherSuite::Aes128GcmSha256 => command.args(["-psk", &hex(secret.expose())]),
            CipherSuite::Aes256GcmSha384 => {
                let path = folder.join("session.pem");
                std::fs::write(&path, session(secret.expose())).unwrap();
                command.arg("-psk_session").arg(path)
            }
        };
    }
}

/// A session of OpenSSL with this key, for TLS_AES_256_GCM_SHA384.
fn session(key: &[u8]) -> String {
    let element = |tag: u8, content: &[u8]| [&[tag, u8::try_from(content.len()).unwrap()], content].concat();
    let fields = [
        element(0x02, &[1]),
        element(0x02, &[3, 4]),
        element(0x04, &[0x13, 0x02]),
        element(0x04, &[]),
        element(0x04, key),
    ];
    let der = element(0x30, &fields.concat());
    format!(
        "-----BEGIN SSL SESSION PARAMETERS-----\n{}\n-----END SSL SESSION PARAMETERS-----\n",
        base64(&der)
    )
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |three: &[u8]| {
        let number = (0..3).fold(0, |number, at| number << 8 | usize::from(*three.get(at).unwrap_or(&0)));
        let digit = |at: usize| if at <= three.len() { DIGITS[number >> (18 - 6 * at) & 63] } else { b'=' };
        (0..4).map(digit).map(char::from).collect::<String>()
    };
    let text: String = bytes.chunks(3).map(group).collect();
    text.as_bytes().chunks(64).map(|line| str::from_utf8(line).unwrap()).collect::<Vec<_>>().join("\n")
}

fn server(psk: &Psk, more: &[&str]) -> (Program, u16) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("openssl");
    command.args(["s_server", "-accept", "127.0.0.1:0", "-nocert", "-naccept", "1"]);
    Options { psk, more }.add(&mut command, folder.path());
    let mut program = Program::start(&mut command);
    program.expect("ACCEPT 127.0.0.1:");
    let said = program.expect("\n");
    let port = said.split("ACCEPT 127.0.0.1:").nth(1).unwrap().lines().next().unwrap().trim();
    (program, port.parse().unwrap())
}

/// Our server, and what `s_client` has come to it with.
fn serve(offered: &Psk, more: &[&str], known: &[Psk]) -> (Program, Result<End, TlsError>) {
    let folder = tempfile::tempdir().unwrap();
    let (listener, port) = listen();
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &format!("127.0.0.1:{port}")]);
    Options { psk: offered, more }.add(&mut command, folder.path());
    let program = Program::start(&mut command);
    let end = accept(&listener, known);
    (program, end)
}

/// Data in both directions, and the end of both.
fn talk(end: &mut End, program: &mut Program) {
    end.send(b"hello from this end\n");
    program.expect("hello from this end\n");
    program.write(b"and from the other one\n");
    end.expect(b"and from the other one\n");
    // Records of full length, and one that is not.
    let mut data = vec![b'#'; (1 << 20) + 100];
    data.push(b'\n');
    end.send(&data);
    program.expect_count(b'#', (1 << 20) + 100);
    program.write(&data);
    end.expect_bytes(data.len());
    assert_eq!(end.received, data);
}

#[test]
fn our_host_talks_to_s_server() {
    if !have("openssl") {
        return;
    }
    for suite in SUITES {
        let psk = psk(7, suite);
        let (mut program, port) = server(&psk, &[]);
        let mut end = connect(port, &[psk]).unwrap();
        check(&end, suite);
        talk(&mut end, &mut program);
        end.close();
        program.expect("DONE");
    }
}

#[test]
fn s_client_talks_to_our_controller() {
    if !have("openssl") {
        return;
    }
    for suite in SUITES {
        let psk = psk(7, suite);
        let (mut program, end) = serve(&psk, &[], from_ref(&psk));
        let mut end = end.unwrap();
        check(&end, suite);
        talk(&mut end, &mut program);
        program.write(b"Q\n");
        end.expect_close();
    }
}

#[test]
fn every_group_is_agreed_on_with_a_second_hello_where_needed() {
    if !have("openssl") {
        return;
    }
    for suite in SUITES {
        let psk = psk(7, suite);
        for group in ["X25519", "P-256", "P-384"] {
            // The server has no other group than this one, and our first share is x25519.
            let (mut program, port) = server(&psk, &["-groups", group]);
            let mut end = connect(port, from_ref(&psk)).unwrap();
            end.send(b"hello\n");
            program.expect("hello\n");
            // The client's first group is that of its share.
            let (mut program, end) = serve(&psk, &["-groups", group], from_ref(&psk));
            let mut end = end.unwrap();
            end.send(b"hello\n");
            program.expect("hello\n");
            // A share that is of no use here, so that our end asks for another one.
            let (mut program, end) = serve(&psk, &["-groups", &format!("P-521:{group}")], from_ref(&psk));
            match (suite, end) {
                (_, Ok(mut end)) => {
                    end.send(b"hello\n");
                    program.expect("hello\n");
                }
                // OpenSSL 3.0 does not offer the key of a session again, to no server.
                (CipherSuite::Aes256GcmSha384, Err(error)) => assert_eq!(error, TlsError::NoKeyOffered),
                (_, Err(error)) => panic!("{group}: {error}"),
            }
        }
    }
    let (_program, end) = serve(&psk(7, SUITES[0]), &["-groups", "P-521"], &[psk(7, SUITES[0])]);
    assert_eq!(end.err(), Some(TlsError::NoGroup));
}

#[test]
fn our_host_offers_several_keys_and_s_server_takes_the_one_that_it_knows() {
    if !have("openssl") {
        return;
    }
    for suite in SUITES {
        let known = psk(7, suite);
        let offered = [
            named("NVMe1R02 another", 1, SUITES[1]),
            named("NVMe1R01 another", 2, SUITES[0]),
            known.clone(),
            named("NVMe1G01 another", 3, SUITES[0]),
        ];
        for groups in [&[][..], &["-groups", "P-256"]] {
            let (mut program, port) = server(&known, groups);
            let mut end = connect(port, &offered).unwrap();
            check(&end, suite);
            end.send(b"hello\n");
            program.expect("hello\n");
        }
    }
}

#[test]
fn a_wrong_key_and_an_unknown_identity_are_told_apart() {
    if !have("openssl") {
        return;
    }
    for suite in SUITES {
        let (right, wrong) = (psk(7, suite), psk(8, suite));
        let (mut program, port) = server(&right, &[]);
        let error = connect(port, from_ref(&wrong)).err().unwrap();
        assert_alert(&error, Role::Server, &[Alert::DECRYPT_ERROR, Alert::ILLEGAL_PARAMETER]);
        assert!(error.to_string().contains(IDENTITY), "{error}");
        program.expect("rror");

        let (mut program, end) = serve(&wrong, &[], from_ref(&right));
        let error = end.err().unwrap();
        assert!(error.to_string().starts_with("the key of the host and the key here differ"), "{error}");
        program.expect("alert decrypt error");

        let unknown = named("NVMe0R01 unknown", 7, suite);
        let (_program, port) = server(&right, &[]);
        let error = connect(port, from_ref(&unknown)).err().unwrap();
        assert_alert(&error, Role::Server, &[Alert::HANDSHAKE_FAILURE, Alert::MISSING_EXTENSION]);
        let (mut program, end) = serve(&unknown, &[], &[right]);
        let error = end.err().unwrap().to_string();
        let expected =
            "the host offers no key that is known here (nobody has it): identity \"NVMe0R01 unknown\"";
        assert_eq!(error, expected);
        program.expect("alert unknown psk identity");
    }
}

#[test]
fn a_key_update_of_either_kind_is_followed_and_answered() {
    if !have("openssl") {
        return;
    }
    for suite in SUITES {
        let psk = psk(7, suite);
        let (mut server_program, port) = server(&psk, &[]);
        let mut host = connect(port, from_ref(&psk)).unwrap();
        let (mut client_program, controller) = serve(&psk, &[], from_ref(&psk));
        let mut controller = controller.unwrap();
        for (number, command) in ["k\n", "K\n", "K\n"].into_iter().enumerate() {
            // A command is the whole of what they read at once. The server sends at once, the client before its next
            // data.
            server_program.write(command.as_bytes());
            host.expect_updates(number + 1);
            client_program.write(command.as_bytes());
            client_program.expect_times("KEYUPDATE", number + 1);
            let pairs = [(&mut host, &mut server_program), (&mut controller, &mut client_program)];
            for (end, program) in pairs {
                let text = format!("after update {number}\n");
                program.write(text.as_bytes());
                end.expect(text.as_bytes());
                assert_eq!(end.updates, number + 1);
                let text = format!("this end has updated {number}\n");
                end.send(text.as_bytes());
                program.expect(&text);
            }
        }
    }
}

#[test]
fn who_speaks_an_older_version_or_has_no_key_is_told_so() {
    if !have("openssl") {
        return;
    }
    let known = psk(7, SUITES[0]);
    for (arguments, said) in [
        (&["-tls1_2"][..], "the host does not speak TLS 1.3"),
        (&["-tls1_3"], "the host offers no pre-shared key"),
    ] {
        let (listener, port) = listen();
        let mut command = Command::new("openssl");
        command.args(["s_client", "-connect", &format!("127.0.0.1:{port}")]).args(arguments);
        let _program = Program::start(&mut command);
        assert_eq!(accept(&listener, from_ref(&known)).err().unwrap().to_string(), said);
    }
    let (_program, port) = old_server();
    let error = connect(port, &[known]).err().unwrap();
    assert_alert(&error, Role::Server, &[Alert::PROTOCOL_VERSION, Alert::HANDSHAKE_FAILURE]);
}

fn old_server() -> (Program, u16) {
    let mut command = Command::new("openssl");
    command.args(["s_server", "-accept", "127.0.0.1:0", "-nocert", "-tls1_2", "-psk", "0707"]);
    let mut program = Program::start(&mut command);
    program.expect("ACCEPT 127.0.0.1:");
    let said = program.expect("\n");
    let port = said.split("ACCEPT 127.0.0.1:").nth(1).unwrap().lines().next().unwrap().trim();
    let port = port.parse().unwrap();
    (program, port)
}

#[test]
fn a_record_that_is_changed_on_its_way_ends_the_connection() {
    use std::io::Write;
    if !have("openssl") {
        return;
    }
    let psk = psk(7, SUITES[0]);
    let (mut program, end) = serve(&psk, &[], from_ref(&psk));
    let mut end = end.unwrap();
    end.send(b"hello\n");
    program.expect("hello\n");
    let forged = [&[23, 3, 3, 0, 40][..], &[0x5a; 40]].concat();
    end.stream().write_all(&forged).unwrap();
    let error = loop {
        if let Err(error) = end.receive() {
            break error;
        }
    };
    assert_alert(&error, Role::Client, &[Alert::BAD_RECORD_MAC]);
}
