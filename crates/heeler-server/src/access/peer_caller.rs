//! Process at the other end of a TCP connection.
//!
//! An agent runs as the same user as the daemon and may find a token. So for a request from this
//! machine that changes state, the process that holds the other end is determined. A process of
//! another user cannot be inspected; the request then counts as that user's, not as an agent's. If
//! no process is found, the caller is unknown.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use heeler_engine::{Caller, PeerIdentity};

use crate::caller::TcpPeer;
use crate::tcp_table::{self, TcpSocketEntry};

/// Returns the caller at the other end of a request with a valid credential. Reads much of `/proc`.
pub(super) fn find_caller(peer: TcpPeer) -> Caller {
    let address = canonical(peer.address);
    // Agents run on this machine only.
    if !is_local_address(address.ip()) {
        return Caller::Person;
    }
    match tcp_table::find_peer_socket(address, canonical(peer.local)) {
        Some(socket) => {
            let own_user = rustix::process::geteuid().as_raw();
            caller_of_socket(&socket, &tcp_table::socket_holders(socket.inode), own_user)
        }
        None => Caller::Unknown,
    }
}

/// Returns the caller of a socket, given the processes that hold it.
fn caller_of_socket(socket: &TcpSocketEntry, holders: &[u32], own_user: u32) -> Caller {
    let found = holders.iter().map(|pid| PeerIdentity::of_process(*pid, socket.user));
    // An agent decides, even if it shares the socket with other processes.
    match found.reduce(PeerIdentity::least_trusted) {
        Some(identity) => identity.caller_with_token(),
        // The kernel reports root for a closed socket, so without an inode the user means nothing.
        None if socket.inode != 0 && socket.user != own_user => Caller::Person,
        None => Caller::Unknown,
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Returns true if an address belongs to this machine: only then can a socket be bound to it.
fn is_local_address(address: IpAddr) -> bool {
    // A client on this machine may also use the address of another interface.
    address.is_loopback() || UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn pair(address: &str) -> (TcpStream, TcpPeer) {
        let listener = TcpListener::bind(address).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, address) = listener.accept().unwrap();
        (client, TcpPeer { address, local: server.local_addr().unwrap() })
    }

    #[test]
    fn the_process_at_the_other_end_is_found() {
        let (client, peer) = pair("127.0.0.1:0");
        assert_eq!(find_caller(peer), Caller::Person);
        // The kernel still lists the connection, but no process holds it.
        drop(client);
        assert_eq!(find_caller(peer), Caller::Unknown);
    }

    #[test]
    fn whoever_is_gone_without_a_trace_is_unknown_and_whoever_is_elsewhere_is_a_person() {
        let local = "127.0.0.1:9".parse().unwrap();
        let from =
            |address: &str| find_caller(TcpPeer { address: address.parse().unwrap(), local });
        assert_eq!(from("127.0.0.1:1"), Caller::Unknown);
        assert_eq!(from("[::1]:1"), Caller::Unknown);
        // Reserved for documentation, so it is not a local address.
        assert_eq!(from("192.0.2.1:1"), Caller::Person);
        assert_eq!(from("[::ffff:192.0.2.1]:1"), Caller::Person);
    }

    #[test]
    fn what_another_user_holds_is_no_agents_and_what_nobody_holds_is_unknown() {
        let socket = |user, inode| TcpSocketEntry { user, inode };
        assert_eq!(caller_of_socket(&socket(1001, 5), &[], 1000), Caller::Person);
        assert_eq!(caller_of_socket(&socket(1000, 5), &[], 1000), Caller::Unknown);
        // The kernel reports root for closed sockets.
        assert_eq!(caller_of_socket(&socket(0, 0), &[], 1000), Caller::Unknown);
        let own = std::process::id();
        assert_eq!(caller_of_socket(&socket(1000, 5), &[own], 1000), Caller::Person);
        assert_eq!(caller_of_socket(&socket(1000, 5), &[own, u32::MAX], 1000), Caller::Unknown);
    }
}
