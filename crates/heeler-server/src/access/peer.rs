//! Whose process is at the other end of a connection over TCP.
//!
//! An agent may find a token, since it runs as the same user. So where something is to be changed
//! from this machine, the process is looked for that holds the other end. What another user's
//! process holds cannot be seen; that user's it is then, and no agent's. Whoever hides is unknown.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use heeler_engine::Origin;

use crate::caller::Peer;
use crate::tcp_table::{self, Socket};

/// Says who is at the other end. It reads much of `/proc`.
pub(super) fn origin(peer: Peer) -> Origin {
    let address = canonical(peer.address);
    if !is_of_this_machine(address.ip()) {
        return Origin::Person;
    }
    match tcp_table::connection(address, canonical(peer.local)) {
        Some(socket) => {
            let own_user = rustix::process::geteuid().as_raw();
            of_holders(&socket, &tcp_table::holders(socket.inode), own_user)
        }
        None => Origin::Unknown,
    }
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
}
