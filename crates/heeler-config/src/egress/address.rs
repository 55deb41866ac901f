//! Classes of IP addresses: which ones a name may resolve to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Class of an IP address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressClass {
    /// Address of the internet.
    Public,
    /// This machine or a private network: only with `allow_local`.
    Local,
    /// Never allowed; the text says what the address is.
    Refused(&'static str),
}

/// Addresses of cloud metadata services outside of the link-local range. They hand out credentials
/// of the machine.
const METADATA: [Ipv4Addr; 2] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16)];

/// Returns the class of an address. An IPv4 address inside of an IPv6 address counts as itself.
pub fn classify_address(ip: IpAddr) -> AddressClass {
    match ip {
        IpAddr::V4(ip) => classify_v4(ip),
        IpAddr::V6(ip) => classify_v6(ip),
    }
}

fn classify_v4(ip: Ipv4Addr) -> AddressClass {
    let [a, b, c, _] = ip.octets();
    if METADATA.contains(&ip) {
        return AddressClass::Refused("the address of a cloud metadata service");
    }
    match (a, b, c) {
        (0, ..) => AddressClass::Refused("an unspecified address"),
        (169, 254, _) => AddressClass::Refused("a link-local address"),
        (127 | 10, ..) | (192, 168, _) => AddressClass::Local,
        (172, 16..=31, _) => AddressClass::Local,
        // Shared by carriers and by overlay networks.
        (100, 64..=127, _) => AddressClass::Local,
        (192, 0, 0 | 2) | (198, 51, 100) | (203, 0, 113) | (198, 18..=19, _) | (192, 88, 99) => {
            AddressClass::Refused("a reserved address")
        }
        (224..=239, ..) => AddressClass::Refused("a multicast address"),
        (240..=255, ..) => AddressClass::Refused("a reserved address"),
        _ => AddressClass::Public,
    }
}

fn classify_v6(ip: Ipv6Addr) -> AddressClass {
    if let Some(inner) = ip.to_ipv4_mapped() {
        return classify_v4(inner);
    }
    let [a, b, c, d, e, f, g, h] = ip.segments();
    let inner = || {
        let ([high, low], [third, fourth]) = (g.to_be_bytes(), h.to_be_bytes());
        Ipv4Addr::new(high, low, third, fourth)
    };
    match (a, b) {
        _ if ip == Ipv6Addr::LOCALHOST => AddressClass::Local,
        // The translator of the network sends it on to the inner address.
        (0x64, 0xff9b) if [c, d, e, f] == [0; 4] => classify_v4(inner()),
        // The address of a metadata service in a range that is otherwise private.
        (0xfd00, 0x0ec2) => AddressClass::Refused("the address of a cloud metadata service"),
        (0xfc00..=0xfdff, _) => AddressClass::Local,
        (0xfe80..=0xfebf, _) => AddressClass::Refused("a link-local address"),
        (0xff00..=0xffff, _) => AddressClass::Refused("a multicast address"),
        // Tunnels carry an IPv4 address that nobody has checked.
        (0x2002, _) | (0x2001, 0) => AddressClass::Refused("the address of a tunnel"),
        (0x2001, 0x0db8) | (0x2001, 0x0001..=0x01ff) | (0x3fff, 0..=0x0fff) => {
            AddressClass::Refused("a reserved address")
        }
        (0x2000..=0x3fff, _) => AddressClass::Public,
        _ => AddressClass::Refused("a reserved address"),
    }
}
