//! GnuTLS: `gnutls-serv` and `gnutls-cli`. Version 3.7 makes binders with SHA-256 alone, so keys for
//! TLS_AES_256_GCM_SHA384 need a later one.

use std::process::Command;
use std::slice::from_ref;
use std::sync::atomic::{AtomicU32, Ordering};

use ringfab_auth::CipherSuite;
use ringfab_tls::{Alert, Psk, Role, TlsError};

use crate::support::{
    End, IDENTITY, Program, SUITES, accept, assert_alert, check, connect, have, hex, listen, named, psk,
};

const SUITE: CipherSuite = CipherSuite::Aes128GcmSha256;

/// As `tlshd` of Linux asks for it, with one group or with all of them.
fn priority(group: Option<&str>) -> String {
    let base =
        "NORMAL:-VERS-ALL:+VERS-TLS1.3:-KX-ALL:+ECDHE-PSK:+DHE-PSK:-CIPHER-ALL:+AES-128-GCM:+AES-256-GCM";
    match group {
        None => base.to_owned(),
        Some(groups) => format!("{base}:-GROUP-ALL:{groups}"),
    }
}

/// A server that sends back what it gets.
fn server(psk: &Psk, group: Option<&str>) -> (Program, u16, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    // In the form with a number sign, names may have colons.
    std::fs::write(&keys, format!("#{}:{}\n", hex(&psk.identity), hex(psk.secret.expose()))).unwrap();
    for _ in 0..20 {
        let port = unusual_port();
        let mut command = Command::new("gnutls-serv");
        command.args(["--port", &port.to_string(), "--echo", "--priority", &priority(group), "--pskpasswd"]);
        let mut program = Program::start(command.arg(&keys));
        let (done, refused) = (format!("0.0.0.0 port {port}...done"), "...bind() failed");
        if program.expect_any(&[&done, refused]).contains(&done) {
            return (program, port, folder);
        }
    }
    panic!("gnutls-serv was refused twenty ports");
}

/// A port that most likely nobody has. The server binds to every address, and is refused a port that a connection from
/// any of them has. Other tests make so many connections that no port of those that the system gives out is left.
fn unusual_port() -> u16 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    const FIRST: u32 = 6000;
    const PORTS: u32 = 4000;
    let number = std::process::id().wrapping_mul(31).wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed));
    (FIRST + number % PORTS) as u16
}

fn client(psk: &Psk, group: Option<&str>, port: u16, more: &[&str]) -> Program {
    let mut command = Command::new("gnutls-cli");
    command.args(["--port", &port.to_string(), "127.0.0.1", "--priority", &priority(group)]);
    command.args([
        "--pskusername",
        str::from_utf8(&psk.identity).unwrap(),
        "--pskkey",
        &hex(psk.secret.expose()),
    ]);
    Program::start(command.args(more))
}

fn serve(
    offered: &Psk,
    group: Option<&str>,
    more: &[&str],
    known: &[Psk],
) -> (Program, Result<End, TlsError>) {
    let (listener, port) = listen();
    let program = client(offered, group, port, more);
    let end = accept(&listener, known);
    (program, end)
}

#[test]
fn our_host_talks_to_gnutls_serv() {
    if !have("gnutls-serv") {
        return;
    }
    let psk = psk(7, SUITE);
    for group in [None, Some("+GROUP-X25519"), Some("+GROUP-SECP256R1"), Some("+GROUP-SECP384R1")] {
        let (_program, port, _folder) = server(&psk, group);
        let mut end = connect(port, from_ref(&psk)).unwrap();
        check(&end, SUITE);
        end.send(b"hello from this end\n");
        end.expect(b"hello from this end\n");
        // It reads and writes in turns: as much as the socket holds.
        for _ in 0..20 {
            let data = [&[b'#'; 50_000][..], b"\n"].concat();
            end.send(&data);
            end.expect_bytes(data.len());
            assert_eq!(std::mem::take(&mut end.received), data);
        }
        end.close();
    }
}

#[test]
fn gnutls_cli_talks_to_our_controller() {
    if !have("gnutls-cli") {
        return;
    }
    let psk = psk(7, SUITE);
    for group in [None, Some("+GROUP-X25519"), Some("+GROUP-SECP256R1"), Some("+GROUP-SECP384R1")] {
        let (mut program, end) = serve(&psk, group, &[], from_ref(&psk));
        let mut end = end.unwrap();
        check(&end, SUITE);
        program.expect("Handshake was completed");
        end.send(b"hello from this end\n");
        program.expect("hello from this end");
        program.write(b"and from the other one\n");
        end.expect(b"and from the other one\n");
        // It writes byte by byte.
        end.send(&[b'#'; 40_000]);
        program.expect_count(b'#', 40_000);
        end.close();
        program.expect("Peer has closed the GnuTLS connection");
    }
}

#[test]
fn gnutls_cli_is_asked_for_a_share_of_another_group() {
    if !have("gnutls-cli") {
        return;
    }
    let psk = psk(7, SUITE);
    for group in ["X25519", "SECP256R1", "SECP384R1"] {
        let groups = format!("+GROUP-SECP521R1:+GROUP-{group}");
        let (mut program, end) = serve(&psk, Some(&groups), &["--single-key-share"], from_ref(&psk));
        let mut end = end.unwrap();
        end.send(b"hello\n");
        program.expect("hello");
    }
}

#[test]
fn gnutls_updates_keys() {
    if !have("gnutls-cli") {
        return;
    }
    let psk = psk(7, SUITE);
    let (mut program, end) = serve(&psk, None, &["--inline-commands"], from_ref(&psk));
    let mut end = end.unwrap();
    program.expect("Handshake was completed");
    for number in 0..3 {
        program.write(b"^rekey^\n");
        end.expect_updates(number + 1);
        program.write(format!("after update {number}\n").as_bytes());
        end.expect(format!("after update {number}\n").as_bytes());
        let text = format!("this end has updated {number}\n");
        end.send(text.as_bytes());
        program.expect(&text);
    }
}

#[test]
fn gnutls_and_our_ends_tell_a_wrong_key_from_an_unknown_identity() {
    if !have("gnutls-serv") || !have("gnutls-cli") {
        return;
    }
    let (right, wrong, unknown) = (psk(7, SUITE), psk(8, SUITE), named("NVMe0R01 unknown", 7, SUITE));
    let (_program, port, _folder) = server(&right, None);
    let error = connect(port, from_ref(&wrong)).err().unwrap();
    assert_alert(&error, Role::Server, &[Alert::DECRYPT_ERROR, Alert::ILLEGAL_PARAMETER]);
    assert!(error.to_string().contains(IDENTITY), "{error}");
    let error = connect(port, from_ref(&unknown)).err().unwrap();
    assert!(matches!(error, TlsError::PeerAlert { peer: Role::Server, .. }), "{error}");
    // And goes on with the next one.
    connect(port, from_ref(&right)).unwrap().send(b"hello\n");

    let (mut program, end) = serve(&wrong, None, &[], from_ref(&right));
    assert!(matches!(end.err(), Some(TlsError::BinderDiffers(_))));
    program.expect("rror");
    let (_program, end) = serve(&unknown, None, &[], from_ref(&right));
    assert!(matches!(end.err(), Some(TlsError::UnknownKeys(..))));
}

#[test]
fn a_binder_of_another_hash_function_is_named() {
    if !have("gnutls-cli") {
        return;
    }
    // Whatever its version: one that makes binders with SHA-384 succeeds.
    let psk = psk(7, SUITES[1]);
    let (_program, end) = serve(&psk, None, &[], from_ref(&psk));
    match end {
        Ok(end) => check(&end, SUITES[1]),
        Err(error) => assert_eq!(
            error.to_string(),
            format!(
                "the host uses a key for TLS_AES_256_GCM_SHA384 with another hash function (the binder has a wrong \
                 length): identity \"{IDENTITY}\""
            )
        ),
    }
}
