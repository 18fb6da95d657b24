//! Addresses as clients take them: the NBD URI specification.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use ringfab_reactor::ListenAddr;

/// The scheme of a Unix socket.
const UNIX: &str = "nbd+unix://";
/// The parameter with its path.
const SOCKET: &str = "socket=";
/// What stays as it is in a name. Parsers differ in what else they take.
const NAME: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The same in a path.
const PATH: &AsciiSet = &NAME.remove(b'/').remove(b':');

/// The address of an export, or of the first one without a name. It is the same in each directory.
pub(super) fn of(address: &ListenAddr, export: Option<&str>) -> String {
    let name = percent_encode(export.unwrap_or_default().as_bytes(), NAME);
    match address {
        ListenAddr::Tcp(address) => {
            let slash = if export.is_some() { "/" } else { "" };
            format!("nbd://{}{slash}{name}", address.to_string().replace('%', "%25"))
        }
        ListenAddr::Unix(path) => {
            // It fails without a current directory; then nobody can say more.
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            format!("{UNIX}/{name}?{SOCKET}{}", percent_encode(path.as_os_str().as_bytes(), PATH))
        }
    }
}

/// The socket of an address, if it has one.
pub(crate) fn socket(uri: &str) -> Option<PathBuf> {
    let (_, query) = uri.strip_prefix(UNIX)?.split_once('?')?;
    let socket = query.split('&').find_map(|parameter| parameter.strip_prefix(SOCKET))?;
    let bytes: Vec<u8> = percent_decode_str(socket).collect();
    Some(PathBuf::from(OsString::from_vec(bytes)))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::path::Path;

    use super::*;

    #[test]
    fn an_address_is_the_same_in_each_directory_and_has_no_special_characters() {
        let here = std::env::current_dir().expect("a directory");
        let of_path = |path: &[u8], export| of(&ListenAddr::Unix(OsStr::from_bytes(path).into()), export);
        for (path, export, uri) in [
            (&b"/run/nqn.a:b.sock"[..], None, "nbd+unix:///?socket=/run/nqn.a:b.sock"),
            (b"/a b&c%41?\xff#.sock", None, "nbd+unix:///?socket=/a%20b%26c%2541%3F%FF%23.sock"),
            (b"/x", Some("a b/c"), "nbd+unix:///a%20b%2Fc?socket=/x"),
        ] {
            assert_eq!(of_path(path, export), uri);
            assert_eq!(socket(uri).as_deref(), Some(Path::new(OsStr::from_bytes(path))));
        }
        assert_eq!(socket(&of_path(b"rel.sock", None)), Some(here.join("rel.sock")));
        assert_eq!(socket("nbd://127.0.0.1:10809"), None);
        let address = "[::1]:10809".parse().expect("an address");
        assert_eq!(of(&ListenAddr::Tcp(address), None), "nbd://[::1]:10809");
        assert_eq!(of(&ListenAddr::Tcp(address), Some("\u{fc}")), "nbd://[::1]:10809/%C3%BC");
    }
}
