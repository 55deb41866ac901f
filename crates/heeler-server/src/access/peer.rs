//! Whose process is at the other end of a connection over TCP.
//!
//! An agent may find a token, since it runs as the same user. So where something is to be changed
//! from this machine, the process is looked for that holds the other end. What another user's
//! process holds cannot be seen; that user's it is then, and no agent's. Whoever hides is unknown.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use heeler_engine::Origin;

use crate::caller::Peer;

/// The kernel's tables of connections.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// Says who is at the other end. It reads much of `/proc`.
pub(super) fn origin(peer: Peer) -> Origin {
    let address = canonical(peer.address);
    if !is_of_this_machine(address.ip()) {
        return Origin::Person;
    }
    let tables = TABLES.iter().filter_map(|table| fs::read_to_string(table).ok());
    let wanted = names(address, canonical(peer.local));
    let Some(socket) = tables.filter_map(|table| find(&table, &wanted)).next() else {
        return Origin::Unknown;
    };
    of_holders(&socket, &holders(socket.inode), rustix::process::geteuid().as_raw())
}

/// A socket, as the kernel's table has it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Socket {
    user: u32,
    /// None has 0 once its process has closed it.
    inode: u64,
}

/// Says who holds a socket, by the processes that were found to.
fn of_holders(socket: &Socket, holders: &[u32], own_user: u32) -> Origin {
    let mut found = holders.iter().map(|pid| Origin::of_process(*pid)).collect::<Vec<_>>();
    // A run that shares it with others is enough.
    found.sort_by_key(|origin| match origin {
        Origin::Run(_) => 0,
        Origin::Unknown => 1,
        Origin::Person => 2,
    });
    match found.first() {
        Some(origin) => *origin,
        None if socket.inode != 0 && socket.user != own_user => Origin::Person,
        None => Origin::Unknown,
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Says whether an address is one of this machine's: only then can something be bound to it.
fn is_of_this_machine(address: IpAddr) -> bool {
    address.is_loopback() || UdpSocket::bind((address, 0)).is_ok()
}

/// Returns how the kernel writes a connection from one address to another, in either table.
fn names(from: SocketAddr, to: SocketAddr) -> Vec<[String; 2]> {
    let mut names = vec![[name(from), name(to)]];
    if let (IpAddr::V4(one), IpAddr::V4(other)) = (from.ip(), to.ip()) {
        let mapped = |ip: std::net::Ipv4Addr, port| {
            name(SocketAddr::new(IpAddr::V6(ip.to_ipv6_mapped()), port))
        };
        names.push([mapped(one, from.port()), mapped(other, to.port())]);
    }
    names
}

/// Writes an address as the kernel does: words of four bytes in the machine's order.
fn name(address: SocketAddr) -> String {
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

/// Finds a connection in a table: its other end is the one that has our address as its own.
fn find(table: &str, wanted: &[[String; 2]]) -> Option<Socket> {
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, remote) = (fields.get(1)?, fields.get(2)?);
        let is_it = wanted.iter().any(|[from, to]| from == local && to == remote);
        let socket = || {
            let user = fields.get(7)?.parse().ok()?;
            Some(Socket { user, inode: fields.get(9)?.parse().ok()? })
        };
        if is_it { socket() } else { None }
    })
}

/// Returns the processes that have a socket open, of those that we may look at.
fn holders(inode: u64) -> Vec<u32> {
    let wanted = format!("socket:[{inode}]");
    let is_it = |path: fs::DirEntry| {
        fs::read_link(path.path()).is_ok_and(|target| target.as_os_str() == wanted.as_str())
    };
    let has_it = |pid: &u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd"));
        open.is_ok_and(|open| open.filter_map(Result::ok).any(is_it))
    };
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let names = processes.filter_map(Result::ok).map(|process| process.file_name());
    names.filter_map(|name| name.to_str()?.parse().ok()).filter(has_it).collect()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn pair(address: &str) -> (TcpStream, Peer) {
        let listener = TcpListener::bind(address).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, address) = listener.accept().unwrap();
        (client, Peer { address, local: server.local_addr().unwrap() })
    }

    #[test]
    fn the_process_at_the_other_end_is_found() {
        let (client, peer) = pair("127.0.0.1:0");
        assert_eq!(origin(peer), Origin::of_process(std::process::id()));
        // The kernel still knows of the connection, and nobody holds it.
        drop(client);
        assert_eq!(origin(peer), Origin::Unknown);
    }

    #[test]
    fn whoever_is_gone_without_a_trace_is_unknown_and_whoever_is_elsewhere_is_a_person() {
        let local = "127.0.0.1:9".parse().unwrap();
        let from = |address: &str| origin(Peer { address: address.parse().unwrap(), local });
        assert_eq!(from("127.0.0.1:1"), Origin::Unknown);
        assert_eq!(from("[::1]:1"), Origin::Unknown);
        // Kept for documents: nobody has it.
        assert_eq!(from("192.0.2.1:1"), Origin::Person);
        assert_eq!(from("[::ffff:192.0.2.1]:1"), Origin::Person);
    }

    #[test]
    fn what_another_user_holds_is_no_agents_and_what_nobody_holds_is_unknown() {
        let socket = |user, inode| Socket { user, inode };
        assert_eq!(of_holders(&socket(1001, 5), &[], 1000), Origin::Person);
        assert_eq!(of_holders(&socket(1000, 5), &[], 1000), Origin::Unknown);
        // The kernel says root of what was closed.
        assert_eq!(of_holders(&socket(0, 0), &[], 1000), Origin::Unknown);
        let own = std::process::id();
        assert_eq!(of_holders(&socket(1000, 5), &[own], 1000), Origin::of_process(own));
        assert_eq!(of_holders(&socket(1000, 5), &[own, u32::MAX], 1000), Origin::Unknown);
    }

    #[test]
    fn connections_are_named_as_the_kernel_does() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            \u{20}  0: 0100007F:1EC6 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 11 1\n\
            \u{20}  1: 0100007F:D431 0100007F:1EC6 01 00000000:00000000 00:00000000 00000000  1000        0 12 1\n\
            \u{20}  2: short\n";
        let (from, to) = ("127.0.0.1:54321".parse().unwrap(), "127.0.0.1:7878".parse().unwrap());
        if cfg!(target_endian = "little") {
            assert_eq!(find(table, &names(from, to)), Some(Socket { user: 1000, inode: 12 }));
            assert_eq!(find(table, &names(to, to)), None);
            let mapped = "0000000000000000FFFF00000100007F:D431";
            assert_eq!(names(from, to)[1][0], mapped);
        }
    }
}
