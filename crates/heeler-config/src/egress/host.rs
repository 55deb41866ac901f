//! Names and patterns of hosts.
//!
//! [`HostName`] holds only normalized DNS names: lower case, punycode, without the trailing dot. No
//! spelling of an IP address is a name, also not `127.1`, `0x7f000001` or `2130706433`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU16;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;
use url::Host;

use super::address::{AddressClass, classify_address};

/// Longest DNS name, in bytes.
const NAME_BYTES_MAX: usize = 253;

/// Longest label of a DNS name, in bytes.
const LABEL_BYTES_MAX: usize = 63;

/// Reason that a text is not accepted as a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HostNameError {
    #[error("it is not a host name")]
    Malformed,
    #[error("it is too long for a host name")]
    TooLong,
    #[error("it is an IP address; write the host's name")]
    IpAddress,
    #[error(
        "write `*.example.com`: a wildcard covers the names below a domain of two labels or more"
    )]
    Wildcard,
    #[error("the port is not a number from 1 to 65535")]
    Port,
    #[error("it needs a port, as in `localhost:5432`")]
    NoPort,
    #[error("this address is never allowed: it is {0}")]
    NeverAllowed(&'static str),
    #[error("it is a public address; write the host's name under `allow`")]
    PublicAddress,
}

/// Normalized DNS name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostName(String);

impl HostName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for HostName {
    type Err = HostNameError;
    fn from_str(text: &str) -> Result<HostName, HostNameError> {
        // The URL parser decodes `%`. Another program could read the same text as another name.
        if text.is_empty() || text.contains(['%', '[', ']', ':', '*']) {
            return Err(HostNameError::Malformed);
        }
        if text.len() > 4 * NAME_BYTES_MAX {
            return Err(HostNameError::TooLong);
        }
        let name = match Host::parse(text) {
            Ok(Host::Domain(name)) => name,
            Ok(Host::Ipv4(_) | Host::Ipv6(_)) => return Err(HostNameError::IpAddress),
            Err(_) => return Err(HostNameError::Malformed),
        };
        let name = name.strip_suffix('.').unwrap_or(&name);
        if name.len() > NAME_BYTES_MAX || name.split('.').any(|label| label.len() > LABEL_BYTES_MAX)
        {
            return Err(HostNameError::TooLong);
        }
        let fits = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-_".contains(&c);
        match name.split('.').all(|label| !label.is_empty() && label.bytes().all(fits)) {
            true => Ok(HostName(name.to_owned())),
            false => Err(HostNameError::Malformed),
        }
    }
}

/// Host of a request: a name, or an IP address in any spelling.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RequestHost {
    Name(HostName),
    Ip(IpAddr),
}

impl fmt::Display for RequestHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestHost::Name(name) => name.fmt(f),
            RequestHost::Ip(IpAddr::V4(ip)) => ip.fmt(f),
            RequestHost::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
        }
    }
}

impl FromStr for RequestHost {
    type Err = HostNameError;
    /// Parses a host as it is written in a URL. An IPv6 address may lack its brackets.
    fn from_str(text: &str) -> Result<RequestHost, HostNameError> {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        if let Ok(ip) = bare.parse::<Ipv6Addr>() {
            return Ok(RequestHost::Ip(ip.into()));
        }
        match text.parse::<HostName>() {
            Ok(name) => Ok(RequestHost::Name(name)),
            Err(HostNameError::IpAddress) => match Host::parse(text) {
                Ok(Host::Ipv4(ip)) => Ok(RequestHost::Ip(ip.into())),
                _ => Err(HostNameError::Malformed),
            },
            Err(error) => Err(error),
        }
    }
}

/// Host name or wildcard that the agent may reach, optionally with a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPattern {
    name: HostName,
    /// True for `*.name`: the names below it, without the name itself.
    is_wildcard: bool,
    port: Option<NonZeroU16>,
}

impl HostPattern {
    /// Returns the pattern of one host at one port.
    pub fn exact(name: HostName, port: NonZeroU16) -> HostPattern {
        HostPattern { name, is_wildcard: false, port: Some(port) }
    }

    pub fn port(&self) -> Option<NonZeroU16> {
        self.port
    }

    /// Returns true if the pattern matches the name, whatever the port.
    pub fn matches(&self, host: &HostName) -> bool {
        match self.is_wildcard {
            // The dot makes it a match of whole labels: `evilexample.com` is not below `example.com`.
            true => host.0.strip_suffix(&self.name.0).is_some_and(|rest| rest.ends_with('.')),
            false => self.name == *host,
        }
    }

    /// Returns true if this pattern allows all that the other one allows. `ports` are those of this
    /// pattern if it has none of its own.
    pub(crate) fn covers(&self, other: &HostPattern, ports: &[NonZeroU16]) -> bool {
        let names = match other.is_wildcard {
            true => self.is_wildcard && (self.name == other.name || self.matches(&other.name)),
            false => self.matches(&other.name),
        };
        let port = match (self.port, other.port) {
            (None, Some(port)) => ports.contains(&port),
            (None, None) => true,
            (Some(own), port) => port == Some(own),
        };
        names && port
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.is_wildcard { "*." } else { "" };
        write!(f, "{star}{}", self.name)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl FromStr for HostPattern {
    type Err = HostNameError;
    fn from_str(text: &str) -> Result<HostPattern, HostNameError> {
        // A bare IPv6 address would otherwise be a host with a port.
        if let Ok(RequestHost::Ip(_)) = text.parse() {
            return Err(HostNameError::IpAddress);
        }
        let (host, port) = split_port(text)?;
        let (is_wildcard, name) = match host.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None if host.contains('*') => return Err(HostNameError::Wildcard),
            None => (false, host),
        };
        let name = match name.parse::<RequestHost>()? {
            RequestHost::Name(name) => name,
            RequestHost::Ip(_) => return Err(HostNameError::IpAddress),
        };
        // `*.com` would be half of the internet.
        if is_wildcard && !name.0.contains('.') {
            return Err(HostNameError::Wildcard);
        }
        Ok(HostPattern { name, is_wildcard, port })
    }
}

/// Address of this machine or of a private network that the agent may reach.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LocalAddress {
    pub host: RequestHost,
    pub port: NonZeroU16,
}

impl fmt::Display for LocalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl FromStr for LocalAddress {
    type Err = HostNameError;
    fn from_str(text: &str) -> Result<LocalAddress, HostNameError> {
        if text.parse::<Ipv6Addr>().is_ok() {
            return Err(HostNameError::NoPort);
        }
        let (host, port) = split_port(text)?;
        let host: RequestHost = host.parse()?;
        let port = port.ok_or(HostNameError::NoPort)?;
        if let RequestHost::Ip(ip) = host {
            match classify_address(ip) {
                AddressClass::Local => {}
                AddressClass::Public => return Err(HostNameError::PublicAddress),
                AddressClass::Refused(what) => return Err(HostNameError::NeverAllowed(what)),
            }
        }
        Ok(LocalAddress { host, port })
    }
}

/// Splits `host:port`. The brackets of an IPv6 address stay with the host.
fn split_port(text: &str) -> Result<(&str, Option<NonZeroU16>), HostNameError> {
    let after_address = text.rfind(']').map_or(0, |end| end + 1);
    match text[after_address..].rfind(':') {
        None => Ok((text, None)),
        Some(colon) => {
            let (host, port) = text.split_at(after_address + colon);
            let digits = &port[1..];
            // The number parser accepts a sign.
            if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
                return Err(HostNameError::Port);
            }
            Ok((host, Some(digits.parse().map_err(|_| HostNameError::Port)?)))
        }
    }
}

/// Stores a type as the text from which it is parsed.
macro_rules! serde_text {
    ($($name:ident),*) => { $(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
            }
        }
    )* };
}

serde_text!(HostName, HostPattern, LocalAddress);
