//! What there is to know before a connection is made, without blocking the engine: the addresses of a name, and the key
//! for TLS, which may be in a file.

use std::io;
use std::net::ToSocketAddrs;
use std::sync::Arc;

use ringfab_fabric::tcp::{kernel_tls_is_prepared, prepare_kernel_tls};

use crate::authentication::AuthenticationFailure;
use crate::error::Cause;
use crate::messages::{Found, Mailbox, Message, Resolved};
use crate::options::ConnectOptions;
use crate::request::PathHandle;
use crate::tls::{Tls, TlsFailure};
use crate::url::HostName;

/// What is known at once, if nobody has to be waited for. Otherwise a thread asks, and sends the answer to `mailbox`.
/// The system's resolver cannot be interrupted, so the thread may outlive the question; it holds nothing but the
/// mailbox and the options.
pub(crate) fn resolve(
    options: &Arc<ConnectOptions>,
    path: PathHandle,
    question: u32,
    mailbox: &Mailbox,
    is_simulated: bool,
) -> Result<Option<Found>, Cause> {
    let elsewhere = has_key(options) && options.tls.as_ref().is_some_and(Tls::is_elsewhere);
    // What the kernel has to load for TLS, the engine does not wait for.
    let prepares = options.uses_tls() && !is_simulated && !kernel_tls_is_prepared();
    if matches!(options.url.host, HostName::Address(_)) && !elsewhere && !prepares {
        return find(options).map(Some);
    }
    let (mailbox, options) = (mailbox.clone(), Arc::clone(options));
    let started = std::thread::Builder::new().name("resolve".to_owned()).spawn(move || {
        if prepares {
            prepare_kernel_tls();
        }
        let answer = Message::Resolved(Resolved { path, question, result: find(&options) });
        if !mailbox.send(answer) {
            tracing::debug!(host = %options.url.host, "the host ended before its question was answered");
        }
    });
    started.map(|_| None).map_err(|error| local(&error))
}

fn find(options: &ConnectOptions) -> Result<Found, Cause> {
    let port = options.url.port;
    let addresses = match &options.url.host {
        HostName::Address(address) => vec![address.socket_address(port).map_err(|error| local(&error))?],
        HostName::Name(name) => {
            let found = (name.as_str(), port).to_socket_addrs();
            found.map_err(|error| Cause::Name(error.to_string()))?.collect()
        }
    };
    if addresses.is_empty() {
        return Err(Cause::Name("no address".to_owned()));
    }
    if options.concatenates() && options.authentication.is_none() {
        return Err(Cause::Authentication(AuthenticationFailure::NothingToConcatenate));
    }
    let psks = has_key(options).then(|| {
        let tls = options.tls.as_ref().ok_or(TlsFailure::NoKey)?;
        tls.psks(&options.host.nqn, options.url.subsystem_nqn())
    });
    Ok(Found { addresses, psks: psks.transpose().map_err(Cause::Tls)? })
}

/// Whether connections are over TLS from the start.
fn has_key(options: &ConnectOptions) -> bool {
    options.uses_tls() && !options.concatenates()
}

fn local(error: &io::Error) -> Cause {
    Cause::Local(error.to_string())
}
