//! What a user can do about a controller that is not attached. The library says what has happened, and knows nothing of
//! the options of a command.

use std::borrow::Cow;
use std::fmt;

use ringfab_base::shell_word;
use ringfab_initiator::{
    AuthenticationFailure, Cause, ConnectError, FailureExplanation, Refusal, RefusedBy, RefusedField, Status,
    Step, TlsFailure,
};
use ringfab_spec::nqn::DISCOVERY_NQN;

/// The key of this host is missing.
const NO_KEY: &str = "give the key that the target has for this host NQN (--keys, or --dhchap-key)";
/// The target's log knows more.
const SEE_LOG: &str = "see the target's log, which names the reason";

/// An error with what to do about it, as commands tell it and services log it.
#[derive(Debug)]
pub struct Advised(pub ConnectError);

impl fmt::Display for Advised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match advice(&self.0) {
            Some(advice) => write!(f, "{}; {advice}", self.0),
            None => self.0.fmt(f),
        }
    }
}

impl std::error::Error for Advised {}

/// What to try, if anything.
pub fn advice(error: &ConnectError) -> Option<Cow<'static, str>> {
    let advice = match (error.step, &error.cause) {
        (_, Cause::Field { field, status }) => return Some(of_field(field, *status)),
        (_, Cause::Authentication(failure)) => of_authentication(failure),
        (_, Cause::Tls(failure)) => of_tls(failure),
        (Step::Tls, _) => "check that the target's listener has TLS",
        (_, Cause::NotReady { .. }) => "see the target's status and log; it is served as soon as its disk is",
        (_, Cause::Status { command: "Connect", status }) => of_connect(*status)?,
        (Step::Resolve, Cause::Name(_)) => "check the host name, or give the address as a number",
        // What this machine lacks has nothing to do with the way to the target.
        (_, Cause::Local(_)) => return None,
        (Step::Connect, _) => "check that a target listens there and that no firewall is in between",
        (Step::Mpa | Step::Initialize, Cause::Unanswered(_)) => {
            "the target may be starting or stopping, so try again. If that does not help, the port is for the other \
             transport (nvme+rdma:// or nvme+tcp://), or requires TLS (--tls-key)"
        }
        (Step::Mpa, Cause::Rejected(_)) => "try a smaller queue depth, and see the target's log",
        (Step::Mpa, _) => {
            "check that the port is for NVMe/RDMA over iWARP, not RoCE; for NVMe/TCP write nvme+tcp://"
        }
        (Step::Initialize, Cause::TimedOut { .. } | Cause::Disconnected(_) | Cause::Fabric(_)) => {
            "check that the port is for NVMe/TCP (for NVMe/RDMA write nvme+rdma://), and does not require TLS (for \
             that, give --tls-key)"
        }
        // One that refuses may be gone before it has said so.
        (Step::Authenticate, Cause::Disconnected(_)) => {
            "the target may refuse the key of this host; its log names the reason"
        }
        (Step::Authenticate, Cause::Status { .. } | Cause::TimedOut { .. }) => SEE_LOG,
        (Step::Ready, Cause::TimedOut { .. }) => "see the target's log; its namespaces may be busy",
        (_, Cause::Changed { .. }) => "detach, check the target's configuration, and attach again",
        _ => return None,
    };
    Some(advice.into())
}

fn of_connect(status: Status) -> Option<&'static str> {
    match status.code() {
        Status::CONNECT_INVALID_PARAMETERS => Some("see the target's log, which has the reason"),
        Status::CONNECT_CONTROLLER_BUSY => {
            Some("the target has no controller left; detach another host or try later")
        }
        Status::CONNECT_INCOMPATIBLE_FORMAT => Some("the target speaks another version of Fabrics"),
        Status::AUTHENTICATION_REQUIRED => Some(
            "the target requires a key of this host and has none: give it one there, and give that here, too",
        ),
        _ => None,
    }
}

fn of_field(field: &RefusedField, status: Status) -> Cow<'static, str> {
    if status.code() == Status::CONNECT_INVALID_HOST {
        return of_host(field).into();
    }
    let advice = match field.name() {
        "RECFMT" => "the target speaks another version of Fabrics",
        "QID" => "ask for fewer queues (queues=)",
        "SQSIZE" => "try a smaller queue depth (depth=)",
        "CATTR" => "the target cannot go without flow control of submission queues",
        "KATO" => "try another keep-alive timeout (keepalive=)",
        "HOSTID" => "a host has one identifier for all that it attaches (hostid=)",
        "CNTLID" => "the target has given the controller up; attach it again",
        "SUBNQN" => "check the subsystem NQN with `ringfab discover`",
        "HOSTNQN" => "check the NQN of this host (hostnqn=)",
        _ => SEE_LOG,
    };
    advice.into()
}

/// The target does not allow this host.
fn of_host(field: &RefusedField) -> String {
    let mut allow = format!("ringfab-target host allow {}", shell_word(field.value()));
    if let Some(subsystem) = field.subsystem().filter(|subsystem| *subsystem != DISCOVERY_NQN) {
        allow = format!("{allow} --subsystem {}", shell_word(subsystem));
    }
    format!(
        "allow this host there (`{allow}`), or use TLS (--tls-key) if the target requires it; the target's log has the \
         reason"
    )
}

fn of_tls(failure: &TlsFailure) -> &'static str {
    match failure {
        TlsFailure::NoKey => "give the key that the target has for this host NQN (--keys, or --tls-key)",
        TlsFailure::Key(_) => "correct the file, or name another one",
        TlsFailure::Handshake(_) => {
            "compare the key and both NQNs with the target's (`ringfab keys identity` shows what this host offers), \
             and see its log; its listener may have no TLS"
        }
        _ => SEE_LOG,
    }
}

fn of_authentication(failure: &AuthenticationFailure) -> &'static str {
    match failure {
        AuthenticationFailure::NoKey | AuthenticationFailure::NothingToConcatenate => NO_KEY,
        AuthenticationFailure::NotAsked => {
            "give the target a key for this host NQN, or leave the controller key out if that is not wanted"
        }
        AuthenticationFailure::NoKeyForTls => {
            "give the key for TLS that the target has for this host NQN (--tls-key), and the one for authentication \
             if it has one (--dhchap-key)"
        }
        AuthenticationFailure::SecureChannel => {
            "give the key for TLS that the target has for this host NQN (--tls-key); if it has none, use --concat, \
             which has authentication make one"
        }
        AuthenticationFailure::OnlyOnce => "reset the controller to authenticate anew (`ringfab reset`)",
        AuthenticationFailure::NoConcatenation => {
            "give the target a key for this host NQN (dhchap_key), or connect without --concat"
        }
        AuthenticationFailure::MakesNoKey(_) => "offer another one (--dhchap-hashes, --dhchap-groups)",
        AuthenticationFailure::HostKey(_) | AuthenticationFailure::ControllerKey(_) => {
            "correct the file, or name another one"
        }
        AuthenticationFailure::Refused(refusal) => of_refusal(refusal),
        _ => SEE_LOG,
    }
}

fn of_refusal(refusal: &Refusal) -> &'static str {
    match (refusal.by, refusal.explanation) {
        (RefusedBy::Peer, FailureExplanation::AUTHENTICATION_FAILED) => {
            "compare the key with the one that the target has for this host NQN; if a controller key is given here, \
             the target needs one, too"
        }
        (RefusedBy::Us, FailureExplanation::AUTHENTICATION_FAILED) => {
            "compare the controller key with the target's, and see who answers at this address"
        }
        (_, FailureExplanation::SECURE_CHANNEL_MISMATCH) => {
            "for --concat the target's listener needs TLS beside clear text (tls = \"allowed\"), and its subsystem \
             must not refuse concatenation"
        }
        (_, FailureExplanation::HASH_NOT_USABLE) => {
            "allow one that the target allows (--dhchap-hashes here, dhchap_hashes there)"
        }
        (_, FailureExplanation::GROUP_NOT_USABLE) => {
            "allow one that the target allows (--dhchap-groups here, dhchap_groups there)"
        }
        (RefusedBy::Us, _) => "see the target's log; it may have no controller key for this host NQN",
        (RefusedBy::Peer, _) => SEE_LOG,
    }
}

#[cfg(test)]
mod tests {
    use ringfab_spec::auth::FailureReason;

    use super::*;

    fn said(step: Step, cause: Cause) -> String {
        Advised(ConnectError::new("there".to_owned(), step, cause)).to_string()
    }

    #[test]
    fn a_lack_of_this_machine_is_no_reason_to_look_at_firewalls() {
        let local = Cause::Local("this machine has no network interface eth7".to_owned());
        assert_eq!(
            said(Step::Resolve, local.clone()),
            "there: resolve: this machine has no network interface eth7"
        );
        assert!(!said(Step::Connect, local).contains("firewall"));
        let refused = Cause::Fabric("Connection refused".to_owned());
        assert!(said(Step::Connect, refused).contains("; check that a target listens there"));
    }

    #[test]
    fn a_target_that_has_just_gone_is_not_taken_for_something_else() {
        for step in [Step::Initialize, Step::Mpa] {
            let said = said(step, Cause::Unanswered("Broken pipe".to_owned()));
            let first =
                format!("there: {step}: the connection ended before the target answered: Broken pipe; ");
            assert!(said.starts_with(&(first + "the target may be starting or stopping")), "{said}");
        }
    }

    #[test]
    fn the_other_transport_is_named() {
        let other = Cause::Fabric("no PDU of NVMe/TCP".to_owned());
        assert!(said(Step::Initialize, other).contains("for NVMe/RDMA write nvme+rdma://"));
        let other = Cause::Fabric("the peer speaks NVMe/TCP".to_owned());
        assert!(said(Step::Mpa, other).contains("for NVMe/TCP write nvme+tcp://"));
    }

    #[test]
    fn the_option_that_helps_is_named() {
        let refused = |by, explanation| {
            let (explanation, reason) =
                (FailureExplanation(explanation), FailureReason::AUTHENTICATION_FAILURE);
            let refusal = Refusal { by, reason, explanation, detail: None };
            Cause::Authentication(AuthenticationFailure::Refused(refusal))
        };
        for (cause, option) in [
            (refused(RefusedBy::Peer, 4), "--dhchap-hashes"),
            (refused(RefusedBy::Us, 5), "--dhchap-groups"),
            (Cause::Tls(TlsFailure::NoKey), "--tls-key"),
            (Cause::Authentication(AuthenticationFailure::NoKey), "--keys"),
            (
                Cause::Authentication(AuthenticationFailure::SecureChannel),
                "(--tls-key); if it has none, use --concat",
            ),
        ] {
            let said = said(Step::Authenticate, cause);
            assert!(said.contains(option), "{said}");
        }
    }

    #[test]
    fn a_field_that_is_refused_has_advice_for_it() {
        let advice = |name, subsystem: Option<&str>, status| {
            let field = RefusedField::known(name, "nqn.test:me".to_owned(), subsystem.map(str::to_owned));
            said(Step::FabricsConnect, Cause::Field { field, status })
        };
        let parameter = |name| advice(name, None, Status::CONNECT_INVALID_PARAMETERS);
        for (name, hint) in [
            ("SQSIZE", "depth="),
            ("QID", "queues="),
            ("KATO", "keepalive="),
            ("SUBNQN", "`ringfab discover`"),
            ("HOSTNQN", "hostnqn="),
            ("HOSTID", "hostid="),
            ("CNTLID", "attach it again"),
        ] {
            assert!(parameter(name).contains(hint), "{}", parameter(name));
        }
        let disk = advice("HOSTNQN", Some("nqn.test:disk"), Status::CONNECT_INVALID_HOST);
        assert!(
            disk.contains("(`ringfab-target host allow nqn.test:me --subsystem nqn.test:disk`)"),
            "{disk}"
        );
        let all = advice("HOSTNQN", Some(DISCOVERY_NQN), Status::CONNECT_INVALID_HOST);
        assert!(all.contains("(`ringfab-target host allow nqn.test:me`)"), "{all}");
    }
}
