//! Alerts (RFC 8446, section 6).

use std::fmt;

/// How an alert names what is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Alert(pub u8);

/// Declares the alerts, with their names on the wire and what they mean from a peer.
macro_rules! alerts {
    ($($constant:ident = $value:literal, $name:literal, $sentence:literal;)+) => {
        impl Alert {
            $(
                #[doc = $name]
                pub const $constant: Self = Self($value);
            )+

            /// The name in RFC 8446.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$constant => Some($name),)+
                    _ => None,
                }
            }

            /// What a peer means by it.
            pub const fn sentence(self) -> &'static str {
                match self {
                    $(Self::$constant => $sentence,)+
                    _ => "this alert is not known",
                }
            }
        }
    };
}

alerts! {
    CLOSE_NOTIFY = 0, "close_notify", "it has closed the connection";
    UNEXPECTED_MESSAGE = 10, "unexpected_message", "it did not expect a message that it got";
    BAD_RECORD_MAC = 20, "bad_record_mac", "it could not decrypt a record, which was changed or has another key";
    RECORD_OVERFLOW = 22, "record_overflow", "it got a record that is too long";
    HANDSHAKE_FAILURE = 40, "handshake_failure", "no cipher suite, group or key is acceptable to both ends";
    BAD_CERTIFICATE = 42, "bad_certificate", "it wants certificates, and there are none here";
    CERTIFICATE_UNKNOWN = 46, "certificate_unknown", "it wants certificates, and there are none here";
    ILLEGAL_PARAMETER = 47, "illegal_parameter", "a field has a value that it does not allow";
    ACCESS_DENIED = 49, "access_denied", "it does not give access to this key";
    DECODE_ERROR = 50, "decode_error", "it could not parse a message";
    DECRYPT_ERROR = 51, "decrypt_error", "it has another key for this identity, or a message was changed";
    PROTOCOL_VERSION = 70, "protocol_version", "it does not speak TLS 1.3";
    INSUFFICIENT_SECURITY = 71, "insufficient_security", "it wants stronger cipher suites or groups";
    INTERNAL_ERROR = 80, "internal_error", "it has failed for a reason of its own";
    USER_CANCELED = 90, "user_canceled", "it was told to stop";
    MISSING_EXTENSION = 109, "missing_extension", "it misses an extension, as one does that has certificates alone";
    UNSUPPORTED_EXTENSION = 110, "unsupported_extension", "it got an extension that it did not ask for";
    UNRECOGNIZED_NAME = 112, "unrecognized_name", "it does not know the name of the server";
    UNKNOWN_PSK_IDENTITY = 115, "unknown_psk_identity", "it has no key with an identity that was offered";
    CERTIFICATE_REQUIRED = 116, "certificate_required", "it wants certificates, and there are none here";
    NO_APPLICATION_PROTOCOL = 120, "no_application_protocol", "it wants an application protocol to be named";
}

impl Alert {
    /// The alert, and its level: 2 says that it is fatal, which all but two are.
    pub const fn to_bytes(self) -> [u8; 2] {
        match self {
            Self::CLOSE_NOTIFY | Self::USER_CANCELED => [1, self.0],
            _ => [2, self.0],
        }
    }

    /// Reads an alert. Its level means nothing in version 1.3.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        match *bytes {
            [_level, alert] => Some(Self(alert)),
            _ => None,
        }
    }
}

impl fmt::Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "alert {}", self.0),
        }
    }
}

impl fmt::Debug for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
