//! The field of a Connect that a controller refuses, by its name and with what we sent in it.

use std::fmt;
use std::mem::offset_of;

use ringfab_spec::cqe::ConnectParameter;
use ringfab_spec::sqe::{ConnectCommand, ConnectData};
use ringfab_spec::{FromBytes as _, IntoBytes as _, SubmissionEntry};
use uuid::Uuid;

use crate::wire::answers;

/// The field of a Connect that a controller refuses: its name in the specification, and what we sent in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedField {
    name: &'static str,
    value: String,
    subsystem: Option<String>,
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
        Some(Self::known("HOSTNQN", host, Some(subsystem)))
    }

    fn of_command(offset: usize, sent: &SubmissionEntry) -> Option<Self> {
        const RECFMT: usize = offset_of!(ConnectCommand, recfmt);
        const QID: usize = offset_of!(ConnectCommand, qid);
        const SQSIZE: usize = offset_of!(ConnectCommand, sqsize_z);
        const CATTR: usize = offset_of!(ConnectCommand, cattr);
        const KATO: usize = offset_of!(ConnectCommand, kato);
        let command = ConnectCommand::read_from_bytes(sent.as_bytes()).ok()?;
        let (name, value) = match offset {
            RECFMT => ("RECFMT", "0".to_owned()),
            QID => ("QID", command.qid.get().to_string()),
            SQSIZE => ("SQSIZE", format!("{} entries", u32::from(command.sqsize_z.get()) + 1)),
            CATTR => ("CATTR", format!("{:#04x}", command.cattr)),
            KATO => ("KATO", format!("{} ms", command.kato.get())),
            _ => return None,
        };
        Some(Self::known(name, value, None))
    }

    fn of_data(offset: usize, data: &ConnectData) -> Option<Self> {
        const HOSTID: usize = offset_of!(ConnectData, hostid);
        const CNTLID: usize = offset_of!(ConnectData, cntlid);
        const SUBNQN: usize = offset_of!(ConnectData, subnqn);
        const HOSTNQN: usize = offset_of!(ConnectData, hostnqn);
        let (name, value) = match offset {
            HOSTID => ("HOSTID", Uuid::from_bytes(data.hostid).to_string()),
            CNTLID => ("CNTLID", format!("{:#x}", data.cntlid.get())),
            SUBNQN => ("SUBNQN", answers::nqn_text(&data.subnqn)),
            HOSTNQN => ("HOSTNQN", answers::nqn_text(&data.hostnqn)),
            _ => return None,
        };
        Some(Self::known(name, value, None))
    }

    /// Whether it is the controller that is refused.
    pub(crate) fn is_controller(&self) -> bool {
        self.name == "CNTLID"
    }

    /// A field by its name, such as `HOSTNQN`, with the value that was sent. `subsystem` is the one that refuses a
    /// host.
    pub fn known(name: &'static str, value: String, subsystem: Option<String>) -> Self {
        Self { name, value, subsystem }
    }

    /// Its name in the specification (Base 2.0, section 6.3).
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What was sent in it, as text.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// The NQN of the subsystem that does not allow this host, where that is why.
    pub fn subsystem(&self) -> Option<&str> {
        self.subsystem.as_deref()
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
    fn a_refused_field_has_its_name_and_our_value() {
        let sent = SubmissionEntry::connect(0, 3, 129, 5_000, false);
        let name = |text| Nqn::new(text).expect("a name");
        let data = ConnectData::new(
            [0x11; 16],
            7,
            name("nqn.2026-11.org.ringfab:disk"),
            name("nqn.2026-11.org.ringfab:me"),
        );
        let refused = |parameter| RefusedField::new(parameter, &sent, data.as_bytes());
        for (parameter, said) in [
            (ConnectParameter::Command(44), "SQSIZE, which is 129 entries"),
            (ConnectParameter::Command(42), "QID, which is 3"),
            (ConnectParameter::Command(48), "KATO, which is 5000 ms"),
            (ConnectParameter::Data(256), "SUBNQN, which is nqn.2026-11.org.ringfab:disk"),
            (ConnectParameter::Data(512), "HOSTNQN, which is nqn.2026-11.org.ringfab:me"),
            (ConnectParameter::Data(0), "HOSTID, which is 11111111-1111-1111-1111-111111111111"),
            (ConnectParameter::Data(16), "CNTLID, which is 0x7"),
        ] {
            let field = refused(parameter).expect("a field");
            assert_eq!(field.to_string(), said);
            assert!(said.starts_with(field.name()) && said.ends_with(field.value()), "{said}");
        }
        let host = RefusedField::host(data.as_bytes()).expect("a field");
        assert_eq!(host.to_string(), "HOSTNQN, which is nqn.2026-11.org.ringfab:me");
        assert_eq!(host.subsystem(), Some("nqn.2026-11.org.ringfab:disk"));
        assert_eq!(refused(ConnectParameter::Command(0)), None);
        assert_eq!(refused(ConnectParameter::Data(900)), None);
    }
}
