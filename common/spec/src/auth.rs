//! Messages of in-band authentication, DH-HMAC-CHAP (NVM Express Base 2.2, section 8.3.4; since 2.4 it is named
//! KX-HMAC-CHAP).
//!
//! These are the fixed parts. Challenges, responses and key exchange values follow them, with lengths that the fixed
//! part says.

use zerocopy::little_endian::{U16, U32};

use crate::macros::{open_enum, wire};

/// SECP of Authentication Send and Receive: the NVMe authentication protocols.
pub const SECP_NVME: u8 = 0xe9;

/// SPSP0 and SPSP1 of Authentication Send and Receive.
pub const SPSP_NVME: u8 = 0x01;

open_enum! {
    /// Authentication Type: which protocol a message belongs to.
    pub struct AuthType(u8) {
        COMMON = 0x00 => "Common messages";
        DH_HMAC_CHAP = 0x01 => "DH-HMAC-CHAP";
    }
}

open_enum! {
    /// Authentication Identifier: which message of its type it is.
    pub struct AuthId(u8) {
        NEGOTIATE = 0x00 => "AUTH_Negotiate";
        CHALLENGE = 0x01 => "DH-HMAC-CHAP_Challenge";
        REPLY = 0x02 => "DH-HMAC-CHAP_Reply";
        SUCCESS1 = 0x03 => "DH-HMAC-CHAP_Success1";
        SUCCESS2 = 0x04 => "DH-HMAC-CHAP_Success2";
        FAILURE2 = 0xf0 => "AUTH_Failure2";
        FAILURE1 = 0xf1 => "AUTH_Failure1";
    }
}

open_enum! {
    /// Hash Function Identifier.
    pub struct HashId(u8) {
        SHA256 = 0x01 => "SHA-256";
        SHA384 = 0x02 => "SHA-384";
        SHA512 = 0x03 => "SHA-512";
    }
}

open_enum! {
    /// Diffie-Hellman Group Identifier, since NVM Express 2.4 Key Exchange Group Identifier.
    pub struct GroupId(u8) {
        NULL = 0x00 => "NULL";
        FFDHE2048 = 0x01 => "ffdhe2048";
        FFDHE3072 = 0x02 => "ffdhe3072";
        FFDHE4096 = 0x03 => "ffdhe4096";
        FFDHE6144 = 0x04 => "ffdhe6144";
        FFDHE8192 = 0x05 => "ffdhe8192";
        SECP256R1 = 0x10 => "secp256r1";
        SECP384R1 = 0x11 => "secp384r1";
        MLKEM768 = 0x20 => "ML-KEM-768";
        MLKEM1024 = 0x21 => "ML-KEM-1024";
        SECP256R1_MLKEM768 = 0x30 => "secp256r1 with ML-KEM-768";
        SECP384R1_MLKEM1024 = 0x31 => "secp384r1 with ML-KEM-1024";
    }
}

open_enum! {
    /// Secure Channel Concatenation (SC_C): whether the transaction makes a pre-shared key for TLS.
    pub struct SecureChannel(u8) {
        NONE = 0x00 => "no secure channel";
        OBSOLETE = 0x01 => "obsolete";
        NEW_TLS_PSK = 0x02 => "a new PSK for TLS";
        REPLACE_TLS_PSK = 0x03 => "a PSK that replaces the one of this TLS channel";
    }
}

open_enum! {
    /// Reason Code of AUTH_Failure1 and AUTH_Failure2.
    pub struct FailureReason(u8) {
        AUTHENTICATION_FAILURE = 0x01 => "Authentication failure";
    }
}

open_enum! {
    /// Reason Code Explanation of AUTH_Failure1 and AUTH_Failure2.
    pub struct FailureExplanation(u8) {
        AUTHENTICATION_FAILED = 0x01 => "Authentication failed";
        PROTOCOL_NOT_USABLE = 0x02 => "Authentication protocol not usable";
        SECURE_CHANNEL_MISMATCH = 0x03 => "Secure channel concatenation mismatch";
        HASH_NOT_USABLE = 0x04 => "Hash function not usable";
        GROUP_NOT_USABLE = 0x05 => "DH group not usable";
        INCORRECT_PAYLOAD = 0x06 => "Incorrect payload";
        INCORRECT_MESSAGE = 0x07 => "Incorrect protocol message";
    }
}

wire! {
    /// How every message begins.
    #[derive(Copy)]
    pub struct AuthHeader[6] {
        /// Authentication Type.
        0 => pub auth_type: AuthType,
        /// Authentication Identifier.
        1 => pub auth_id: AuthId,
        2 => reserved2: [u8; 2],
        /// Transaction Identifier.
        4 => pub t_id: U16,
    }
}

wire! {
    /// AUTH_Negotiate, from the host. Protocol descriptors follow.
    #[derive(Copy)]
    pub struct Negotiate[8] {
        /// Its beginning.
        0 => pub header: AuthHeader,
        /// Secure Channel Concatenation.
        6 => pub sc_c: SecureChannel,
        /// Number of Authentication Protocol Descriptors.
        7 => pub napd: u8,
    }
}

wire! {
    /// The protocol descriptor of DH-HMAC-CHAP: what the host offers.
    #[derive(Copy)]
    pub struct ProtocolDescriptor[64] {
        /// Authentication Protocol Identifier.
        0 => pub authid: AuthType,
        1 => reserved1: u8,
        /// How many entries of `hash_ids` count.
        2 => pub halen: u8,
        /// How many entries of `group_ids` count.
        3 => pub dhlen: u8,
        /// Hash functions.
        4 => pub hash_ids: [HashId; 30],
        /// Groups.
        34 => pub group_ids: [GroupId; 30],
    }
}

wire! {
    /// DH-HMAC-CHAP_Challenge, from the controller. The challenge C1 and the controller's DH value follow.
    #[derive(Copy)]
    pub struct Challenge[16] {
        /// Its beginning.
        0 => pub header: AuthHeader,
        /// Hash Length: the size of C1.
        6 => pub hl: u8,
        7 => reserved7: u8,
        /// The hash function that the controller has chosen.
        8 => pub hash_id: HashId,
        /// The group that the controller has chosen.
        9 => pub group_id: GroupId,
        /// DH Value Length.
        10 => pub dhvlen: U16,
        /// Sequence Number S1, never zero.
        12 => pub seqnum: U32,
    }
}

wire! {
    /// DH-HMAC-CHAP_Reply, from the host. The response R1, the challenge C2 and the host's DH value follow.
    #[derive(Copy)]
    pub struct Reply[16] {
        /// Its beginning.
        0 => pub header: AuthHeader,
        /// Hash Length: the size of R1, and that of C2.
        6 => pub hl: u8,
        7 => reserved7: u8,
        /// Challenge Valid: 1 if C2 is a challenge.
        8 => pub cvalid: u8,
        9 => reserved9: u8,
        /// DH Value Length.
        10 => pub dhvlen: U16,
        /// Sequence Number S2. Zero: the host does not authenticate the controller.
        12 => pub seqnum: U32,
    }
}

wire! {
    /// DH-HMAC-CHAP_Success1, from the controller. The response R2 follows.
    #[derive(Copy)]
    pub struct Success1[16] {
        /// Its beginning.
        0 => pub header: AuthHeader,
        /// Hash Length: the size of R2.
        6 => pub hl: u8,
        7 => reserved7: u8,
        /// Response Valid: 1 if R2 is a response.
        8 => pub rvalid: u8,
        9 => reserved9: [u8; 7],
    }
}

wire! {
    /// DH-HMAC-CHAP_Success2, from the host.
    #[derive(Copy)]
    pub struct Success2[16] {
        /// Its beginning.
        0 => pub header: AuthHeader,
        6 => reserved6: [u8; 10],
    }
}

wire! {
    /// AUTH_Failure1, from the controller, or AUTH_Failure2, from the host.
    #[derive(Copy)]
    pub struct Failure[8] {
        /// Its beginning.
        0 => pub header: AuthHeader,
        /// Reason Code.
        6 => pub reason: FailureReason,
        /// Reason Code Explanation.
        7 => pub explanation: FailureExplanation,
    }
}

impl AuthHeader {
    /// The beginning of a message.
    pub fn new(auth_type: AuthType, auth_id: AuthId, t_id: u16) -> Self {
        Self { auth_type, auth_id, t_id: U16::new(t_id), ..Self::zeroed() }
    }
}

impl ProtocolDescriptor {
    /// How many hash functions, or groups, fit.
    pub const IDS_MAX: usize = 30;
}

impl FailureExplanation {
    /// What it means, in a sentence for people.
    pub const fn sentence(self) -> Option<&'static str> {
        Some(match self {
            Self::AUTHENTICATION_FAILED => {
                "the response was not the expected one, so the two ends have different keys, or the key belongs to \
                 another name"
            }
            Self::PROTOCOL_NOT_USABLE => {
                "the host offered no authentication protocol that the controller accepts"
            }
            Self::SECURE_CHANNEL_MISMATCH => {
                "the host and the controller do not agree on whether the authentication makes a key for TLS"
            }
            Self::HASH_NOT_USABLE => "the host offered no hash function that the controller accepts",
            Self::GROUP_NOT_USABLE => "the host offered no Diffie-Hellman group that the controller accepts",
            Self::INCORRECT_PAYLOAD => "a message had a wrong length or a wrong value",
            Self::INCORRECT_MESSAGE => "a message came that was not the next one of the protocol",
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    #[test]
    fn a_negotiate_has_its_golden_bytes() {
        let header = AuthHeader::new(AuthType::COMMON, AuthId::NEGOTIATE, 0x1234);
        let negotiate = Negotiate { header, sc_c: SecureChannel::NEW_TLS_PSK, napd: 1 };
        assert_eq!(negotiate.as_bytes(), [0, 0, 0, 0, 0x34, 0x12, 2, 1]);
        let mut descriptor =
            ProtocolDescriptor { authid: AuthType::DH_HMAC_CHAP, halen: 2, dhlen: 1, ..Default::default() };
        descriptor.hash_ids[1] = HashId::SHA384;
        descriptor.group_ids[0] = GroupId::FFDHE8192;
        let mut bytes = [0; 64];
        (bytes[0], bytes[2], bytes[3], bytes[5], bytes[34]) = (1, 2, 1, 2, 5);
        assert_eq!(descriptor.as_bytes(), bytes);
    }

    #[test]
    fn a_challenge_and_a_reply_have_their_golden_bytes() {
        let bytes = [1, 1, 0, 0, 7, 0, 48, 0, 2, 3, 0, 2, 0x44, 0x33, 0x22, 0x11];
        let challenge = Challenge::read_from_bytes(&bytes).unwrap();
        assert_eq!(challenge.header, AuthHeader::new(AuthType::DH_HMAC_CHAP, AuthId::CHALLENGE, 7));
        assert_eq!(
            (challenge.hl, challenge.hash_id, challenge.group_id),
            (48, HashId::SHA384, GroupId::FFDHE4096)
        );
        assert_eq!((challenge.dhvlen.get(), challenge.seqnum.get()), (512, 0x1122_3344));

        let bytes = [1, 2, 0, 0, 7, 0, 32, 0, 1, 0, 0, 1, 5, 0, 0, 0];
        let reply = Reply::read_from_bytes(&bytes).unwrap();
        assert_eq!((reply.hl, reply.cvalid, reply.dhvlen.get(), reply.seqnum.get()), (32, 1, 256, 5));
    }

    #[test]
    fn an_end_has_its_golden_bytes() {
        let success1 = Success1::read_from_bytes(&[1, 3, 0, 0, 7, 0, 64, 0, 1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        assert_eq!((success1.hl, success1.rvalid), (64, 1));
        let header = AuthHeader::new(AuthType::DH_HMAC_CHAP, AuthId::SUCCESS2, 7);
        let success2 = Success2 { header, ..Default::default() };
        assert_eq!(success2.as_bytes(), [1, 4, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let failure = Failure {
            header: AuthHeader::new(AuthType::COMMON, AuthId::FAILURE1, 7),
            reason: FailureReason::AUTHENTICATION_FAILURE,
            explanation: FailureExplanation::GROUP_NOT_USABLE,
        };
        assert_eq!(failure.as_bytes(), [0, 0xf1, 0, 0, 7, 0, 1, 5]);
    }

    #[test]
    fn every_explanation_that_has_a_name_has_a_sentence() {
        for value in 0..=u8::MAX {
            let explanation = FailureExplanation(value);
            assert_eq!(explanation.name().is_some(), explanation.sentence().is_some(), "{explanation}");
        }
        assert_eq!(FailureExplanation::HASH_NOT_USABLE.to_string(), "Hash function not usable");
    }
}
