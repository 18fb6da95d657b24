//! The field of a Connect that a controller refuses, by its name and with what we sent in it.

use std::borrow::Cow;
use std::fmt;
use std::mem::offset_of;

use ringfab_base::shell_word;
use ringfab_spec::cqe::ConnectParameter;
use ringfab_spec::nqn::DISCOVERY_NQN;
use ringfab_spec::sqe::{ConnectCommand, ConnectData};
use ringfab_spec::{FromBytes as _, IntoBytes as _, SubmissionEntry};
use uuid::Uuid;

use crate::wire::answers;

/// The field, its value and what to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedField {
    name: &'static str,
    value: String,
    hint: Cow<'static, str>,
}

impl RefusedField {
    /// The field that a completion with Connect Invalid Parameters points at (Base 2.0, section 6.3), in the Connect
    /// that was sent; `None` when it points at nothing that has a name.
    pub(crate) fn new(parameter: ConnectParameter, sent: &SubmissionEntry, data: &[u8]) -> Option<Self> {
        match parameter {
            ConnectParameter::Command(offset) => Self::of_command(usize::from(offset), sent),
            ConnectParameter::Data(offset) => {
                let (data, _) = ConnectData::read_from_prefix(data).ok()?;
                Self::of_data(usize::from(offset), &data)
            }
        }
    }

    /// The name of this host, which a controller refuses with Connect Invalid Host.
    pub(crate) fn host(data: &[u8]) -> Option<Self> {
        let (data, _) = ConnectData::read_from_prefix(data).ok()?;
        let [host, subsystem] = [&data.hostnqn, &data.subnqn].map(answers::nqn_text);
        let allow = if subsystem == DISCOVERY_NQN {
            format!("`ringfab-target host allow {}`", shell_word(&host))
        } else {
            format!(
                "`ringfab-target host allow {} --subsystem {}`",
                shell_word(&host),
                shell_word(&subsystem)
            )
        };
        let hint = format!(
            "allow this host there ({allow}), or use TLS (--tls-key) if the target requires it; the target's log has \
             the reason"
        );
        Some(Self { name: "HOSTNQN", value: host, hint: hint.into() })
    }

    fn of_command(offset: usize, sent: &SubmissionEntry) -> Option<Self> {
        const RECFMT: usize = offset_of!(ConnectCommand, recfmt);
        const QID: usize = offset_of!(ConnectCommand, qid);
        const SQSIZE: usize = offset_of!(ConnectCommand, sqsize_z);
        const CATTR: usize = offset_of!(ConnectCommand, cattr);
        const KATO: usize = offset_of!(ConnectCommand, kato);
        let command = ConnectCommand::read_from_bytes(sent.as_bytes()).ok()?;
        let (name, value, hint) = match offset {
            RECFMT => ("RECFMT", "0".to_owned(), "the target speaks another version of Fabrics"),
            QID => ("QID", command.qid.get().to_string(), "ask for fewer queues (queues=)"),
            SQSIZE => {
                let entries = u32::from(command.sqsize_z.get()) + 1;
                ("SQSIZE", format!("{entries} entries"), "try a smaller queue depth (depth=)")
            }
            CATTR => {
                let hint = "the target cannot go without flow control of submission queues";
                ("CATTR", format!("{:#04x}", command.cattr), hint)
            }
            KATO => {
                let hint = "try another keep-alive timeout (keepalive=)";
                ("KATO", format!("{} ms", command.kato.get()), hint)
            }
            _ => return None,
        };
        Some(Self { name, value, hint: hint.into() })
    }

    fn of_data(offset: usize, data: &ConnectData) -> Option<Self> {
        const HOSTID: usize = offset_of!(ConnectData, hostid);
        const CNTLID: usize = offset_of!(ConnectData, cntlid);
        const SUBNQN: usize = offset_of!(ConnectData, subnqn);
        const HOSTNQN: usize = offset_of!(ConnectData, hostnqn);
        let (name, value, hint) = match offset {
            HOSTID => {
                let hint = "a host has one identifier for all that it attaches (hostid=)";
                ("HOSTID", Uuid::from_bytes(data.hostid).to_string(), hint)
            }
            CNTLID => {
                let hint = "the target has given the controller up; attach it again";
                ("CNTLID", format!("{:#x}", data.cntlid.get()), hint)
            }
            SUBNQN => {
                let hint = "check the subsystem NQN with `ringfab discover`";
                ("SUBNQN", answers::nqn_text(&data.subnqn), hint)
            }
            HOSTNQN => ("HOSTNQN", answers::nqn_text(&data.hostnqn), "check the NQN of this host (hostnqn=)"),
            _ => return None,
        };
        Some(Self { name, value, hint: hint.into() })
    }

    /// Whether it is the controller that is refused.
    pub(crate) fn is_controller(&self) -> bool {
        self.name == "CNTLID"
    }

    /// What to try.
    pub fn hint(&self) -> &str {
        &self.hint
    }
}

impl fmt::Display for RefusedField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, which is {}", self.name, self.value)
    }
}

#[cfg(test)]
mod tests {
    use ringfab_spec::Nqn;

    use super::*;

    #[test]
    fn a_refused_field_has_its_name_our_value_and_a_hint() {
        let sent = SubmissionEntry::connect(0, 3, 129, 5_000, false);
        let name = |text| Nqn::new(text).expect("a name");
        let data = ConnectData::new(
            [0x11; 16],
            7,
            name("nqn.2026-11.org.ringfab:disk"),
            name("nqn.2026-11.org.ringfab:me"),
        );
        let refused = |parameter| RefusedField::new(parameter, &sent, data.as_bytes());
        for (parameter, said, hint) in [
            (ConnectParameter::Command(44), "SQSIZE, which is 129 entries", "depth="),
            (ConnectParameter::Command(42), "QID, which is 3", "queues="),
            (ConnectParameter::Command(48), "KATO, which is 5000 ms", "keepalive="),
            (ConnectParameter::Data(256), "SUBNQN, which is nqn.2026-11.org.ringfab:disk", "discover"),
            (ConnectParameter::Data(512), "HOSTNQN, which is nqn.2026-11.org.ringfab:me", "hostnqn="),
            (ConnectParameter::Data(0), "HOSTID, which is 11111111-1111-1111-1111-111111111111", "hostid="),
            (ConnectParameter::Data(16), "CNTLID, which is 0x7", "attach it again"),
        ] {
            let field = refused(parameter).expect("a field");
            assert_eq!(field.to_string(), said);
            assert!(field.hint().contains(hint), "{}", field.hint());
        }
        assert_eq!(refused(ConnectParameter::Command(0)), None);
        assert_eq!(refused(ConnectParameter::Data(900)), None);
    }
}
