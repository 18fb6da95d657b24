//! What an end accepts.
//!
//! The lists of a Negotiate are not authenticated: somebody between both ends can take the stronger entries away. So
//! the weakest entries of a policy are what is certain, and lists should have only what is enough.

use ringfab_spec::auth::SecureChannel;
use thiserror::Error;

use crate::group::Group;
use crate::hash::Hash;
use crate::psk::CipherSuite;

/// Hash functions and groups, in the order in which a controller chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    hashes: Vec<Hash>,
    groups: Vec<Group>,
    /// Linux before 7.1 takes SC_C for zero in the controller's response. Only secure channel concatenation together
    /// with authentication of the controller shows it.
    pub controller_response_without_sc_c: bool,
}

/// A policy that accepts nothing, or has an entry twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PolicyError {
    /// There is no hash function.
    #[error("at least one hash function must be accepted")]
    NoHash,
    /// There is no group.
    #[error("at least one group must be accepted")]
    NoGroup,
    /// A hash function is named twice.
    #[error("the hash function {0} is named twice")]
    HashTwice(Hash),
    /// A group is named twice.
    #[error("the group {0} is named twice")]
    GroupTwice(Group),
}

/// A 3072-bit group is as strong as AES-128, and takes a millisecond; larger ones take up to ten. The groups of NVM
/// Express 2.4 are only for ends that name them: the layout of their values is not compared with anybody's.
const GROUPS_PREFERRED: [Group; 6] =
    [Group::Ffdhe3072, Group::Ffdhe4096, Group::Ffdhe6144, Group::Ffdhe8192, Group::Ffdhe2048, Group::Null];

impl Policy {
    /// These hash functions and groups, the preferred ones first.
    ///
    /// # Errors
    /// A list is empty, or has an entry twice.
    pub fn new(hashes: &[Hash], groups: &[Group]) -> Result<Self, PolicyError> {
        if let Some(hash) = repeated(hashes) {
            return Err(PolicyError::HashTwice(hash));
        }
        if let Some(group) = repeated(groups) {
            return Err(PolicyError::GroupTwice(group));
        }
        match (hashes, groups) {
            ([], _) => Err(PolicyError::NoHash),
            (_, []) => Err(PolicyError::NoGroup),
            _ => Ok(Self {
                hashes: hashes.to_vec(),
                groups: groups.to_vec(),
                controller_response_without_sc_c: false,
            }),
        }
    }

    /// Everything that is at least as strong as these. Of the groups of NVM Express 2.4, only this one.
    pub fn at_least(hash: Hash, group: Group) -> Self {
        let hashes: Vec<Hash> = Hash::ALL.into_iter().filter(|one| *one >= hash).collect();
        let mut groups: Vec<Group> = GROUPS_PREFERRED.into_iter().filter(|one| *one >= group).collect();
        if !groups.contains(&group) {
            groups.push(group);
        }
        Self::new(&hashes, &groups).expect("it has these two")
    }

    /// Hash functions that are accepted, the preferred one first.
    pub fn accepted_hashes(&self) -> &[Hash] {
        &self.hashes
    }

    /// Groups that are accepted, the preferred one first.
    pub fn accepted_groups(&self) -> &[Group] {
        &self.groups
    }

    /// Hash functions for a transaction. Only some can make a key for TLS.
    pub(crate) fn hashes(&self, secure_channel: SecureChannel) -> impl Iterator<Item = Hash> {
        let any = secure_channel == SecureChannel::NONE;
        self.hashes.iter().copied().filter(move |hash| any || CipherSuite::of_hash(*hash).is_some())
    }

    /// Groups for a transaction. The null group makes no key.
    pub(crate) fn groups(&self, secure_channel: SecureChannel) -> impl Iterator<Item = Group> {
        let any = secure_channel == SecureChannel::NONE;
        self.groups.iter().copied().filter(move |group| any || *group != Group::Null)
    }
}

/// All that there is, for ends with which nothing else is agreed.
impl Default for Policy {
    fn default() -> Self {
        Self::at_least(Hash::Sha256, Group::Null)
    }
}

fn repeated<T: Copy + PartialEq>(list: &[T]) -> Option<T> {
    (0..).zip(list).find(|(i, one)| list[..*i].contains(one)).map(|(_, one)| *one)
}

/// What a controller's queue allows of secure channel concatenation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concatenation {
    /// It makes no key for TLS: it is an I/O queue, its transport has no TLS, or it is configured so.
    Refused,
    /// It makes a key if the host asks for one.
    Allowed(Channel),
    /// The host has to ask for a key.
    Required(Channel),
}

/// How an admin queue is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// TCP in clear: a key may be made.
    Clear,
    /// TLS: its key may be replaced.
    Tls,
}

impl Concatenation {
    /// Whether a host may say this SC_C.
    pub(crate) fn accepts(self, secure_channel: SecureChannel) -> bool {
        let replaces = |channel| match channel {
            Channel::Clear => SecureChannel::NEW_TLS_PSK,
            Channel::Tls => SecureChannel::REPLACE_TLS_PSK,
        };
        match self {
            Self::Refused => secure_channel == SecureChannel::NONE,
            Self::Allowed(channel) => [SecureChannel::NONE, replaces(channel)].contains(&secure_channel),
            Self::Required(channel) => secure_channel == replaces(channel),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_has_something_and_nothing_twice() {
        use Group::{Ffdhe2048, Null};
        let sha256 = [Hash::Sha256];
        assert_eq!(Policy::new(&[], &[Null]), Err(PolicyError::NoHash));
        assert_eq!(Policy::new(&sha256, &[]), Err(PolicyError::NoGroup));
        assert_eq!(Policy::new(&[Hash::Sha512; 2], &[Null]), Err(PolicyError::HashTwice(Hash::Sha512)));
        let twice = Policy::new(&sha256, &[Null, Ffdhe2048, Null]);
        assert_eq!(twice, Err(PolicyError::GroupTwice(Null)));
        assert_eq!(twice.unwrap_err().to_string(), "the group NULL is named twice");
        assert!(Policy::new(&sha256, &[Null]).is_ok());
    }

    #[test]
    fn at_least_leaves_out_what_is_weaker() {
        let policy = Policy::at_least(Hash::Sha384, Group::Ffdhe4096);
        let none = SecureChannel::NONE;
        assert_eq!(policy.hashes(none).collect::<Vec<_>>(), [Hash::Sha384, Hash::Sha512]);
        let groups = [Group::Ffdhe4096, Group::Ffdhe6144, Group::Ffdhe8192];
        assert_eq!(policy.groups(none).collect::<Vec<_>>(), groups);
        let all = Policy::default();
        assert_eq!((all.hashes(none).count(), all.groups(none).count()), (3, 6));
        let named = Policy::at_least(Hash::Sha512, Group::MlKem768);
        assert_eq!(named.groups(none).collect::<Vec<_>>(), [Group::MlKem768]);
    }

    #[test]
    fn a_key_for_tls_needs_a_group_and_a_hash_of_a_suite() {
        let all = Policy::default();
        let tls = SecureChannel::NEW_TLS_PSK;
        assert_eq!(all.hashes(tls).collect::<Vec<_>>(), [Hash::Sha256, Hash::Sha384]);
        assert!(all.groups(tls).all(|group| group != Group::Null));
    }

    #[test]
    fn a_queue_accepts_only_the_concatenation_that_it_can_have() {
        use Channel::{Clear, Tls};
        let rows = [
            (Concatenation::Refused, [true, false, false, false, false]),
            (Concatenation::Allowed(Clear), [true, false, true, false, false]),
            (Concatenation::Allowed(Tls), [true, false, false, true, false]),
            (Concatenation::Required(Clear), [false, false, true, false, false]),
            (Concatenation::Required(Tls), [false, false, false, true, false]),
        ];
        for (concatenation, accepted) in rows {
            let found = [0, 1, 2, 3, 4].map(|sc_c| concatenation.accepts(SecureChannel(sc_c)));
            assert_eq!(found, accepted, "{concatenation:?}");
        }
    }
}
