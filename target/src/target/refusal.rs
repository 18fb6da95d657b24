//! Why a Connect was refused, for the log.

use std::fmt;

use ringfab_base::shell_quoted;
use ringfab_spec::{NqnError, Status};

use super::Target;
use super::connect::{self, ConnectRequest};
use crate::command::{Command, connect_data, connect_field};
use crate::failure::Failure;

/// Bytes of a field of the Connect data that holds a name.
const NAME_BYTES: usize = 256;

/// A Connect that was refused.
#[derive(Debug)]
pub(crate) struct Refusal<'a> {
    target: &'a Target,
    request: &'a ConnectRequest<'a>,
    failure: Failure,
}

impl<'a> Refusal<'a> {
    pub(crate) fn new(target: &'a Target, request: &'a ConnectRequest<'a>, failure: Failure) -> Self {
        Self { target, request, failure }
    }

    /// The name that the host gives itself, whatever it is.
    pub(crate) fn host(&self) -> String {
        self.name(connect_data::HOSTNQN)
    }

    /// The subsystem that it wants.
    pub(crate) fn subsystem(&self) -> String {
        self.name(connect_data::SUBNQN)
    }

    /// A field up to its first zero; what is not text is shown as such. The log escapes what could forge a line.
    fn name(&self, offset: u16) -> String {
        let begin = usize::from(offset);
        let field = self.request.data.get(begin..begin + NAME_BYTES).unwrap_or_default();
        let length = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
        String::from_utf8_lossy(&field[..length]).into_owned()
    }

    fn of_command(&self, offset: u16) -> Option<String> {
        use connect_field::{CATTR, KATO, QID, SQSIZE};
        let command = Command::new(self.request.command);
        let wire = self.request.queue_entries;
        Some(match offset {
            SQSIZE if command.u16(SQSIZE) == 0 => "SQSIZE is 0: a queue has two entries at least".to_owned(),
            SQSIZE => {
                format!("SQSIZE is {}, but may be {} at most", command.u16(SQSIZE), wire.saturating_sub(1))
            }
            QID if command.u16(QID) != self.request.queue_id => {
                format!(
                    "QID is {}, but the connection is for queue {}",
                    command.u16(QID),
                    self.request.queue_id
                )
            }
            QID => format!("the controller has no queue {}", command.u16(QID)),
            CATTR => format!("CATTR is {:#04x}, with bits that are not defined", command.u8(CATTR)),
            KATO => format!("KATO is {} ms", command.u32(KATO)),
            _ => return None,
        })
    }

    fn of_data(&self, offset: u16) -> Option<String> {
        use connect_data::{CNTLID, HOSTID, HOSTNQN, SUBNQN};
        let admin = self.request.queue_id == 0;
        let reason = match offset {
            SUBNQN | HOSTNQN if self.trouble(offset).is_some() => {
                let field = if offset == SUBNQN { "SUBNQN" } else { "HOSTNQN" };
                return self.trouble(offset).map(|why| format!("{field} is not a name: {why}"));
            }
            SUBNQN => "there is no such subsystem at this listener",
            HOSTNQN => "HOSTNQN is not that of the host that made the controller",
            HOSTID => "HOSTID is not that of the host that made the controller",
            CNTLID if admin => "CNTLID must be FFFFh: there are only dynamic controllers",
            CNTLID => "there is no such controller in this subsystem",
            _ => return None,
        };
        Some(reason.to_owned())
    }

    /// Why it is not for this host.
    fn of_host(&self) -> String {
        let (host, subsystem) = (self.host(), self.subsystem());
        if self.request.served.find(&subsystem).is_some_and(|one| !one.allows(&host)) {
            return format!(
                "the host is not among the allowed_hosts; `ringfab-target host allow {} --subsystem {}` lets it in",
                shell_quoted(&host),
                shell_quoted(&subsystem)
            );
        }
        let trouble = self.target.channel_trouble(self.request, &host, &subsystem);
        trouble.unwrap_or_else(|| {
            let [this, others] = match self.request.tls.is_some() {
                true => ["over TLS", "in clear text"],
                false => ["in clear text", "over TLS"],
            };
            format!("the connection is {this}, and the other queues of the controller are {others}")
        })
    }

    /// What is wrong with a name.
    fn trouble(&self, offset: u16) -> Option<NqnError> {
        connect::nqn(self.request.data, offset).err()
    }
}

impl fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (status, dw0) = (self.failure.status.code(), self.failure.dw0);
        // IATTR says whether the offset is one of the data.
        let (offset, of_data) = ((dw0 & 0xffff) as u16, dw0 >> 16 & 1 == 1);
        let reason = match status {
            Status::CONNECT_INVALID_PARAMETERS if of_data => self.of_data(offset),
            Status::CONNECT_INVALID_PARAMETERS => self.of_command(offset),
            Status::CONNECT_INVALID_HOST => Some(self.of_host()),
            Status::AUTHENTICATION_REQUIRED => {
                Some("the subsystem requires authentication, and the host has no dhchap_key".to_owned())
            }
            Status::CONNECT_CONTROLLER_BUSY => Some("there is no free controller".to_owned()),
            Status::COMMAND_SEQUENCE_ERROR => {
                Some("the queue is connected already, or its controller is not enabled".to_owned())
            }
            _ => None,
        };
        match reason {
            Some(reason) => f.write_str(&reason),
            None => f.write_str(self.failure.status.name_in_fabrics().unwrap_or("an unknown status")),
        }
    }
}
