//! Keys in the kernel's keyrings: no file has them, and what the kernel keeps is never written to a disk.

use std::io;

use linux_keyutils::{Key, KeyError, KeyRing, KeyRingIdentifier};
use zeroize::Zeroizing;

use crate::secret::SecretText;

/// Bytes of a text with a key, which has a hundred or so.
const KEY_BYTES_MAX: usize = 4096;

/// Where a key is looked for, in this order. Each is searched with all keyrings that are linked to it.
const PLACES: [(KeyRingIdentifier, &str); 4] = [
    (KeyRingIdentifier::Thread, "thread"),
    (KeyRingIdentifier::Process, "process"),
    (KeyRingIdentifier::Session, "session"),
    (KeyRingIdentifier::User, "user"),
];

/// The text of the key of type `user` with a description.
///
/// # Errors
/// That there is none, or why it cannot be read. Nothing of its text is in them.
pub(crate) fn read_keyring(description: &str) -> io::Result<SecretText> {
    let mut hindrance = None;
    for (place, name) in PLACES {
        let searched = KeyRing::from_special_id(place, false).and_then(|ring| ring.search(description));
        match searched {
            Ok(key) => return text(key).map_err(|error| refused(name, error)),
            // This keyring is not there, or the key is not in it.
            Err(KeyError::KeyDoesNotExist | KeyError::KeyringDoesNotExist) => {}
            Err(error) => hindrance = hindrance.or(Some(refused(name, error))),
        }
    }
    Err(hindrance.unwrap_or_else(|| {
        let names = PLACES.map(|(_, name)| name).join(", ");
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("no key of type user has this description ({names} keyring)"),
        )
    }))
}

fn refused(place: &str, error: KeyError) -> io::Error {
    let (kind, what) = match error {
        KeyError::AccessDenied | KeyError::PermissionDenied => (
            io::ErrorKind::PermissionDenied,
            "its permissions do not let this process read it, or the user's keyring is not linked to the session's",
        ),
        KeyError::KeyExpired => (io::ErrorKind::InvalidData, "it has expired"),
        KeyError::KeyRevoked => (io::ErrorKind::InvalidData, "it was revoked"),
        KeyError::WriteError => (io::ErrorKind::InvalidData, "it is not the text of a key"),
        KeyError::OperationNotSupported => (io::ErrorKind::Unsupported, "the kernel has no keyrings"),
        other => return io::Error::other(format!("the {place} keyring: {other}")),
    };
    io::Error::new(kind, format!("the {place} keyring: {what}"))
}

fn text(key: Key) -> Result<SecretText, KeyError> {
    // One byte more shows that there is too much: the kernel says how long a key is, whatever it has written.
    let mut bytes = Zeroizing::new([0; KEY_BYTES_MAX + 1]);
    let length = key.read(&mut *bytes)?;
    let known = bytes.get(..length).filter(|bytes| bytes.len() <= KEY_BYTES_MAX);
    let read = known.and_then(|bytes| std::str::from_utf8(bytes).ok()).ok_or(KeyError::WriteError)?;
    let mut text = SecretText::with_capacity(read.len());
    text.expose_mut().push_str(read);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "DHHC-1:00:ycnJycnJycnJycnJycnJycnJycnJycnJycnJycnJyclx132H:";

    fn add(place: KeyRingIdentifier, description: &str, bytes: &[u8]) -> Key {
        let ring = KeyRing::from_special_id(place, true).expect("a keyring");
        ring.add_key(description, bytes).expect("a key")
    }

    fn why(description: &str) -> String {
        read_keyring(description).expect_err("no key").to_string()
    }

    #[test]
    fn a_key_is_found_in_the_process_or_the_user_keyring_and_its_end_is_told() {
        let name = |what: &str| format!("ringfab-test-{}-{what}", std::process::id());
        let of_process = add(KeyRingIdentifier::Process, &name("process"), TEXT.as_bytes());
        assert_eq!(read_keyring(&name("process")).expect("a key").expose(), TEXT);
        assert!(why(&name("other")).starts_with("no key of type user has this description"));
        let of_thread = add(KeyRingIdentifier::Thread, &name("process"), b"nearer");
        assert_eq!(read_keyring(&name("process")).expect("a key").expose(), "nearer");
        of_thread.invalidate().expect("gone");
        of_process.revoke().expect("revoked");
        assert!(why(&name("process")).ends_with(" keyring: it was revoked"), "{}", why(&name("process")));

        let long = add(KeyRingIdentifier::Process, &name("long"), &[b'x'; KEY_BYTES_MAX + 1]);
        let binary = add(KeyRingIdentifier::Process, &name("binary"), &[0xff; 32]);
        for what in ["long", "binary"] {
            assert_eq!(why(&name(what)), "the process keyring: it is not the text of a key");
        }
        [long, binary].into_iter().for_each(|key| key.invalidate().expect("gone"));
    }

    #[test]
    fn a_key_of_the_user_is_read_when_its_permissions_or_a_link_allow_it() {
        use linux_keyutils::{KeyPermissionsBuilder, Permission};
        let name = format!("ringfab-test-{}-user", std::process::id());
        let key = add(KeyRingIdentifier::User, &name, TEXT.as_bytes());
        let permissions =
            KeyPermissionsBuilder::builder().posessor(Permission::ALL).user(Permission::ALL).build();
        key.set_perms(permissions).expect("changed");
        assert_eq!(read_keyring(&name).expect("a key").expose(), TEXT);
        let permissions = KeyPermissionsBuilder::builder().posessor(Permission::VIEW).build();
        key.set_perms(permissions).expect("changed");
        assert!(why(&name).contains(" keyring: its permissions"), "{}", why(&name));
        key.invalidate()
            .or_else(|_| KeyRing::from_special_id(KeyRingIdentifier::User, false)?.unlink_key(key))
            .expect("gone");
    }
}
