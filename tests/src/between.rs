//! Who sits between a host and a target of NVMe/TCP: passes everything on, but answers some commands itself.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use ringfab_spec::tcp::{CapsuleCmd, CapsuleResp, CommonHeader, Digests, PduFlags, PduType};
use ringfab_spec::{CompletionEntry, FromBytes, IntoBytes, Status, SubmissionEntry};

use crate::raw_tcp::pdu;

/// What is answered to a command with its data instead of the target's answer, if anything.
pub type Answer = fn(&SubmissionEntry, &[u8]) -> Option<Status>;

/// Sits in front of a target, for as long as the process lives. Returns where hosts connect.
///
/// # Panics
/// When there is no port.
pub fn between(target: SocketAddr, answer: Answer) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    thread::spawn(move || {
        for host in listener.incoming().map_while(Result::ok) {
            // Either end may go at any time.
            thread::spawn(move || drop(pass_on(host, target, answer)));
        }
    });
    address
}

fn pass_on(mut host: TcpStream, target: SocketAddr, answer: Answer) -> io::Result<()> {
    let mut target = TcpStream::connect(target)?;
    let (mut from_target, mut to_host) = (target.try_clone()?, host.try_clone()?);
    thread::spawn(move || {
        let _gone = io::copy(&mut from_target, &mut to_host);
        to_host.shutdown(std::net::Shutdown::Both)
    });
    loop {
        let mut all = vec![0; CommonHeader::SIZE];
        host.read_exact(&mut all)?;
        let header = CommonHeader::read_from_bytes(&all).map_err(|_| io::ErrorKind::InvalidData)?;
        all.resize(header.plen.get() as usize, 0);
        host.read_exact(&mut all[CommonHeader::SIZE..])?;
        let command =
            (header.pdu_type == PduType::CAPSULE_CMD).then(|| CapsuleCmd::read_from_prefix(&all).ok());
        let Some((CapsuleCmd { sqe, .. }, _)) = command.flatten() else {
            target.write_all(&all)?;
            continue;
        };
        let data = if header.pdo == 0 { &[] } else { &all[usize::from(header.pdo)..] };
        match answer(&sqe, data) {
            Some(status) => {
                let ch = CommonHeader::new(PduType::CAPSULE_RESP, PduFlags::default(), 0, 0, 0);
                let cqe = CompletionEntry::new(sqe.cid.get(), 0, status);
                host.write_all(&pdu(Digests::default(), CapsuleResp { ch, cqe }.as_bytes(), &[]))?;
            }
            None => target.write_all(&all)?,
        }
    }
}
