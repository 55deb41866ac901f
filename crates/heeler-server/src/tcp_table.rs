//! The kernel's tables of TCP sockets, and the processes that hold a socket. Without `/proc`,
//! nothing is found.

use std::fs;
use std::net::{IpAddr, SocketAddr};

/// Tables of IPv4 and IPv6 sockets.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// State code of a listening socket.
const LISTEN_STATE: &str = "0A";

/// Entry of a socket table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TcpSocketEntry {
    /// Owner; the kernel reports root for a closed socket.
    pub(crate) user: u32,
    /// Inode; 0 once the process has closed the socket.
    pub(crate) inode: u64,
}

/// Process that listens on a port.
#[derive(Debug, Clone, PartialEq)]
pub struct PortHolder {
    pub pid: u32,
    /// Arguments, including the program.
    pub arguments: Vec<String>,
}

/// Returns the process that listens on a port, if it can be inspected.
pub fn port_holder(port: u16) -> Option<PortHolder> {
    // The kernel writes a port as four hex digits.
    let port = format!(":{port:04X}");
    let listens = |fields: &[&str]| {
        fields.get(3) == Some(&LISTEN_STATE) && fields.get(1).is_some_and(|it| it.ends_with(&port))
    };
    let sockets = tables().into_iter().filter_map(|table| find_socket(&table, listens));
    let pid = sockets.flat_map(|socket| socket_holders(socket.inode)).next()?;
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let line = String::from_utf8_lossy(&line);
    let arguments = line.trim_end_matches('\0').split('\0').map(str::to_owned).collect();
    Some(PortHolder { pid, arguments })
}

/// Finds the socket whose local address is `from` and remote address is `to`.
pub(crate) fn find_peer_socket(from: SocketAddr, to: SocketAddr) -> Option<TcpSocketEntry> {
    let wanted = connection_keys(from, to);
    tables().into_iter().find_map(|table| find_connection(&table, &wanted))
}

fn tables() -> Vec<String> {
    // Without IPv6 the second table is missing.
    TABLES.iter().filter_map(|table| fs::read_to_string(table).ok()).collect()
}

fn find_connection(table: &str, wanted: &[[String; 2]]) -> Option<TcpSocketEntry> {
    find_socket(table, |fields| match fields {
        [_, local, remote, ..] => wanted.iter().any(|[from, to]| from == local && to == remote),
        _ => false,
    })
}

fn find_socket(table: &str, is_it: impl Fn(&[&str]) -> bool) -> Option<TcpSocketEntry> {
    // The first line has the titles of the columns.
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let socket = || {
            let user = fields.get(7)?.parse().ok()?;
            Some(TcpSocketEntry { user, inode: fields.get(9)?.parse().ok()? })
        };
        if is_it(&fields) { socket() } else { None }
    })
}

/// Returns the forms in which the kernel writes a connection, for both tables.
fn connection_keys(from: SocketAddr, to: SocketAddr) -> Vec<[String; 2]> {
    let mut names = vec![[kernel_address(from), kernel_address(to)]];
    // A dual-stack socket is in the IPv6 table, with mapped addresses.
    if let (IpAddr::V4(one), IpAddr::V4(other)) = (from.ip(), to.ip()) {
        let mapped = |ip: std::net::Ipv4Addr, port| {
            kernel_address(SocketAddr::new(IpAddr::V6(ip.to_ipv6_mapped()), port))
        };
        names.push([mapped(one, from.port()), mapped(other, to.port())]);
    }
    names
}

/// Formats an address as the kernel does: words of four bytes in native byte order.
fn kernel_address(address: SocketAddr) -> String {
    let bytes = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = bytes.chunks_exact(4).map(|word| {
        let word: [u8; 4] = word.try_into().expect("chunks have four bytes");
        format!("{:08X}", u32::from_ne_bytes(word))
    });
    format!("{}:{:04X}", words.collect::<String>(), address.port())
}

/// Returns the processes that hold a socket, among those that can be inspected.
pub(crate) fn socket_holders(inode: u64) -> Vec<u32> {
    let wanted = format!("socket:[{inode}]");
    let is_it = |path: fs::DirEntry| {
        fs::read_link(path.path()).is_ok_and(|target| target.as_os_str() == wanted.as_str())
    };
    let has_it = |pid: &u32| {
        // This fails for processes of other users and for those that have just ended.
        let open = fs::read_dir(format!("/proc/{pid}/fd"));
        open.is_ok_and(|open| open.filter_map(Result::ok).any(is_it))
    };
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let names = processes.filter_map(Result::ok).map(|process| process.file_name());
    names.filter_map(|name| name.to_str()?.parse().ok()).filter(has_it).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn connections_are_named_as_the_kernel_does() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            \u{20}  0: 0100007F:1EC6 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 11 1\n\
            \u{20}  1: 0100007F:D431 0100007F:1EC6 01 00000000:00000000 00:00000000 00000000  1000        0 12 1\n\
            \u{20}  2: short\n";
        let (from, to) = ("127.0.0.1:54321".parse().unwrap(), "127.0.0.1:7878".parse().unwrap());
        if cfg!(target_endian = "little") {
            let found = Some(TcpSocketEntry { user: 1000, inode: 12 });
            assert_eq!(find_connection(table, &connection_keys(from, to)), found);
            assert_eq!(find_connection(table, &connection_keys(to, to)), None);
            assert_eq!(connection_keys(from, to)[1][0], "0000000000000000FFFF00000100007F:D431");
        }
    }

    #[test]
    fn the_process_that_listens_on_a_port_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let holder = port_holder(port).unwrap();
        assert_eq!(holder.pid, std::process::id());
        assert_eq!(holder.arguments, std::env::args().collect::<Vec<String>>());
        drop(listener);
        assert_eq!(port_holder(port), None);
    }
}
