//! A host's TLS that is not ours: `openssl s_client`, with a socket of the test on its other side.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;

use ringfab_auth::TlsPsk;

/// An `openssl s_client`, which ends with this.
#[derive(Debug)]
pub struct Client {
    child: Child,
    /// What is sent here goes through TLS, and comes from there.
    pub stream: TcpStream,
}

impl Client {
    /// Connects over TLS with a key of SHA-256, the only ones that the program takes. Whether that succeeds is seen by
    /// what comes.
    ///
    /// # Panics
    /// When the program cannot be started.
    pub fn connect(address: SocketAddr, psk: &TlsPsk) -> Self {
        let key: String = psk.secret().expose().iter().map(|byte| format!("{byte:02x}")).collect();
        Self::connect_as(address, psk.identity(), &key)
    }

    /// The same with any identity and any key, in hexadecimal digits.
    ///
    /// # Panics
    /// When the program cannot be started.
    pub fn connect_as(address: SocketAddr, identity: &str, key: &str) -> Self {
        let mut child = Command::new("openssl")
            .args(["s_client", "-quiet", "-tls1_3", "-ciphersuites", "TLS_AES_128_GCM_SHA256", "-connect"])
            .args([&address.to_string(), "-psk_identity", identity, "-psk", key])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("openssl starts");
        let (mut to, mut from) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("its address")).expect("connected");
        let (mut other, _) = listener.accept().expect("a connection");
        let mut back = other.try_clone().expect("the same connection");
        // Each ends with its side of the connection.
        thread::spawn(move || copy(&mut |bytes| other.read(bytes), &mut |bytes| to.write_all(bytes)));
        thread::spawn(move || {
            copy(&mut |bytes| from.read(bytes), &mut |bytes| back.write_all(bytes));
            // It may be gone already.
            let _gone = back.shutdown(Shutdown::Both);
        });
        Self { child, stream }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

fn copy(
    read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>,
    write: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) {
    let mut buffer = [0; 16 << 10];
    while let Ok(length @ 1..) = read(&mut buffer) {
        if write(&buffer[..length]).is_err() {
            return;
        }
    }
}
