//! Host names to addresses, without blocking the engine.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use crate::messages::{Mailbox, Message, Resolved};
use crate::request::ControllerId;
use crate::url::{HostName, Url};

/// The address of a URL that has one; for a name, asks in a thread that sends the answer to `mailbox`. The system's
/// resolver cannot be interrupted, so the thread may outlive the question; it holds nothing but the mailbox.
pub(crate) fn resolve(
    url: &Url,
    controller: ControllerId,
    question: u32,
    mailbox: &Mailbox,
) -> io::Result<Option<SocketAddr>> {
    let port = url.port;
    let name = match &url.host {
        HostName::Address(address) => return address.socket_address(port).map(Some),
        HostName::Name(name) => name.clone(),
    };
    let mailbox = mailbox.clone();
    std::thread::Builder::new().name("resolve".to_owned()).spawn(move || {
        let result = (name.as_str(), port).to_socket_addrs();
        let result = result.map(Iterator::collect).map_err(|error| error.to_string());
        let answer = Message::Resolved(Resolved { controller, question, result });
        if !mailbox.send(answer) {
            tracing::debug!(name, "the host ended before its question was answered");
        }
    })?;
    Ok(None)
}
