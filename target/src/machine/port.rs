//! Which process listens on a TCP port, as far as /proc tells.

use std::fs;

/// The process that listens on a port, whatever its address. Only root sees those of other users.
pub(super) fn listener_of(port: u16) -> Option<u32> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let inodes: Vec<u64> = tables.iter().flat_map(|table| listening_inodes(table, port)).collect();
    if inodes.is_empty() {
        return None;
    }
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    processes.find(|process| has_socket(*process, &inodes))
}

/// The inodes of sockets of a table that listen on a port: `0: 0100007F:1144 00000000:0000 0A ... inode ...`.
fn listening_inodes(table: &str, port: u16) -> Vec<u64> {
    const LISTEN: &str = "0A";
    let listening = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let local = words.get(1)?.rsplit_once(':')?.1;
        let here = u16::from_str_radix(local, 16).ok()? == port && *words.get(3)? == LISTEN;
        here.then(|| words.get(9)?.parse().ok()).flatten()
    };
    table.lines().skip(1).filter_map(listening).collect()
}

fn has_socket(process: u32, inodes: &[u64]) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    files.flatten().filter_map(|file| fs::read_link(file.path()).ok()).any(|link| {
        let inode =
            link.to_str().and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
        inode.is_some_and(|inode| inodes.contains(&inode))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        assert_eq!(listener_of(port), Some(std::process::id()));
        drop(listener);
        assert_eq!(listener_of(port), None);
    }
}
