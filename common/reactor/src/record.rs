//! Records of TLS 1.3 that the kernel seals and opens on a socket (kTLS).

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::ptr;
use std::sync::OnceLock;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{TcpTlsRx, TcpTlsTx, TcpUlp, TlsCryptoInfo};
use zeroize::Zeroize;

/// The content type of what an application sends.
pub(crate) const APPLICATION_DATA: u8 = 23;

/// How the kernel protects one direction of a connection.
#[derive(Clone, Copy)]
pub struct TlsKeys<'a> {
    /// The key: 16 bytes for `TLS_AES_128_GCM_SHA256`, 32 bytes for `TLS_AES_256_GCM_SHA384`.
    pub key: &'a [u8],
    /// The initialization vector.
    pub iv: [u8; 12],
    /// The number of the next record.
    pub sequence: u64,
}

impl fmt::Debug for TlsKeys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsKeys").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

/// Why the kernel does not protect a connection.
#[derive(Debug)]
pub enum TlsRefusal {
    /// It has no TLS, or not this cipher. The socket is as it was.
    Unavailable(io::Error),
    /// It protects one direction and refuses the other: the connection is of no use any more.
    Half(io::Error),
}

/// How long a connection to this machine itself may take. Somebody may filter them.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// Whether [`prepare_kernel_tls`] has tried.
static TRIED: OnceLock<()> = OnceLock::new();

/// Has the kernel load its TLS and both ciphers, and test them, if it has not done so: a connection to this machine
/// itself is protected for that. It may take seconds, which a core would have to wait for when the first connection is
/// protected. So a thread that may wait calls this before. Only the first call does anything.
pub fn prepare_kernel_tls() {
    TRIED.get_or_init(|| {
        if let Err(error) = try_ciphers() {
            tracing::debug!(%error, "the kernel's TLS could not be tried");
        }
    });
}

/// Whether [`prepare_kernel_tls`] would do nothing.
pub fn kernel_tls_is_prepared() -> bool {
    TRIED.get().is_some()
}

fn try_ciphers() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    for length in [16, 32] {
        let one = TcpStream::connect_timeout(&listener.local_addr()?, CONNECT_LIMIT)?;
        let key = vec![0; length];
        let keys = TlsKeys { key: &key, iv: [0; 12], sequence: 0 };
        match protect(&one, &keys, &keys) {
            Ok(()) => {}
            Err(TlsRefusal::Unavailable(error) | TlsRefusal::Half(error)) => return Err(error),
        }
    }
    Ok(())
}

/// Has the kernel protect a socket.
pub(crate) fn protect(
    socket: &impl AsFd,
    send: &TlsKeys<'_>,
    receive: &TlsKeys<'_>,
) -> Result<(), TlsRefusal> {
    let unavailable = |errno: Errno| TlsRefusal::Unavailable(errno.into());
    match setsockopt(socket, TcpUlp::default(), b"tls") {
        // It was refused the keys before: only the keys are missing.
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(unavailable(errno)),
    }
    with_keys(send, |keys| setsockopt(socket, TcpTlsTx, keys)).map_err(unavailable)?;
    let received = with_keys(receive, |keys| setsockopt(socket, TcpTlsRx, keys));
    received.map_err(|errno| TlsRefusal::Half(errno.into()))
}

fn with_keys(keys: &TlsKeys<'_>, set: impl FnOnce(&TlsCryptoInfo) -> nix::Result<()>) -> Result<(), Errno> {
    let head = |cipher_type| libc::tls_crypto_info { version: libc::TLS_1_3_VERSION, cipher_type };
    let ([salt @ .., _, _, _, _, _, _, _, _], [_, _, _, _, iv @ ..]) = (keys.iv, keys.iv);
    let rec_seq = keys.sequence.to_be_bytes();
    if let Ok(key) = keys.key.try_into() {
        let info = head(libc::TLS_CIPHER_AES_GCM_128);
        let mut info =
            TlsCryptoInfo::Aes128Gcm(libc::tls12_crypto_info_aes_gcm_128 { info, iv, key, salt, rec_seq });
        let set = set(&info);
        if let TlsCryptoInfo::Aes128Gcm(info) = &mut info {
            info.key.zeroize();
        }
        return set;
    }
    let key = keys.key.try_into().map_err(|_| Errno::EINVAL)?;
    let info = head(libc::TLS_CIPHER_AES_GCM_256);
    let mut info =
        TlsCryptoInfo::Aes256Gcm(libc::tls12_crypto_info_aes_gcm_256 { info, iv, key, salt, rec_seq });
    let set = set(&info);
    if let TlsCryptoInfo::Aes256Gcm(info) = &mut info {
        info.key.zeroize();
    }
    set
}

/// Bytes of a control message with one byte.
// SAFETY: it computes.
const CONTROL_BYTES: usize = unsafe { libc::CMSG_SPACE(1) } as usize;

/// The control message that says what a record is. It lies on the heap with what it belongs to, and is aligned as its
/// header must be.
#[derive(Default)]
pub(crate) struct RecordControl([u64; CONTROL_BYTES.div_ceil(8)]);

/// `TLS_SET_RECORD_TYPE` and `TLS_GET_RECORD_TYPE`.
const SET_TYPE: libc::c_int = 1;
const GET_TYPE: libc::c_int = 2;

impl RecordControl {
    /// Where the kernel writes a type, as a message header has it.
    pub(crate) fn room(&mut self) -> (*mut libc::c_void, usize) {
        (self.0.as_mut_ptr().cast(), CONTROL_BYTES)
    }

    /// A message that says what is sent, as a message header has it.
    pub(crate) fn sent(&mut self, content_type: u8) -> (*mut libc::c_void, usize) {
        let (place, bytes) = self.room();
        // SAFETY: as above.
        let length = unsafe { libc::CMSG_LEN(1) } as usize;
        let header = libc::cmsghdr { cmsg_len: length, cmsg_level: libc::SOL_TLS, cmsg_type: SET_TYPE };
        // SAFETY: the room is for a header and the data behind it, and aligned for the header.
        unsafe {
            ptr::write(place.cast(), header);
            libc::CMSG_DATA(place.cast()).write(content_type);
        }
        (place, bytes)
    }

    /// What the kernel wrote into it, with the message header that it was given.
    pub(crate) fn received(&self, message: &libc::msghdr) -> Option<u8> {
        if message.msg_controllen < CONTROL_BYTES {
            return None;
        }
        let place = self.0.as_ptr();
        // SAFETY: the room is ours, initialized, aligned for a header, and long enough for it and a byte behind it.
        let (header, kind) = unsafe {
            let header = ptr::read(place.cast::<libc::cmsghdr>());
            (header, libc::CMSG_DATA(place.cast()).read())
        };
        (header.cmsg_level == libc::SOL_TLS && header.cmsg_type == GET_TYPE).then_some(kind)
    }
}
