//! The server name in the first message of TLS, the ClientHello.
//!
//! The parser sees untrusted bytes. It reads only what it needs, with limits, and rejects what servers
//! and this parser could understand differently. Start at [`inspect_hello`].

use heeler_config::HostName;

/// Largest first message, in bytes. Key shares of post-quantum algorithms need a few thousand.
pub(crate) const HELLO_BYTES_MAX: usize = 64 << 10;

/// Largest record of TLS, in bytes.
const RECORD_BYTES_MAX: usize = 16 << 10;

const RECORD_HANDSHAKE: u8 = 22;
const HANDSHAKE_CLIENT_HELLO: u8 = 1;
const EXTENSION_SERVER_NAME: u16 = 0;
const EXTENSION_ENCRYPTED_HELLO: u16 = 0xfe0d;
const NAME_TYPE_HOST: u8 = 0;

/// Finding about the first bytes of a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HelloFinding {
    /// The message is not complete.
    Incomplete,
    /// The bytes are not TLS.
    NotTls,
    Malformed,
    NoServerName,
    /// The real name is encrypted. A placebo extension of browsers looks the same.
    Encrypted,
    ServerName(HostName),
}

/// Looks for the server name in the first bytes that a client sends.
pub(crate) fn inspect_hello(bytes: &[u8]) -> HelloFinding {
    match bytes.first() {
        None => return HelloFinding::Incomplete,
        Some(&RECORD_HANDSHAKE) => {}
        Some(_) => return HelloFinding::NotTls,
    }
    // A large message may be spread over several records.
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        if let Some(finding) = inspect_message(&message) {
            return finding;
        }
        let [kind, major, _, high, low, after @ ..] = rest else { return short(rest) };
        let size = usize::from(u16::from_be_bytes([*high, *low]));
        if *kind != RECORD_HANDSHAKE || *major != 3 || size == 0 || size > RECORD_BYTES_MAX {
            return HelloFinding::Malformed;
        }
        let Some((body, after)) = after.split_at_checked(size) else {
            message.extend_from_slice(after);
            // A wrong beginning is reported at once, and not when the rest has arrived.
            return inspect_message(&message).unwrap_or(HelloFinding::Incomplete);
        };
        message.extend_from_slice(body);
        rest = after;
    }
}

/// Returns the finding about the incomplete head of a record.
fn short(rest: &[u8]) -> HelloFinding {
    let wrong_kind = rest.first().is_some_and(|kind| *kind != RECORD_HANDSHAKE);
    match wrong_kind || rest.get(1).is_some_and(|major| *major != 3) {
        true => HelloFinding::Malformed,
        false => HelloFinding::Incomplete,
    }
}

/// Returns the finding about a handshake message; `None` if it is not complete.
fn inspect_message(message: &[u8]) -> Option<HelloFinding> {
    if message.first().is_some_and(|kind| *kind != HANDSHAKE_CLIENT_HELLO) {
        return Some(HelloFinding::Malformed);
    }
    let [_, high, middle, low, body @ ..] = message else { return None };
    let size = usize::from(*high) << 16 | usize::from(*middle) << 8 | usize::from(*low);
    if size > HELLO_BYTES_MAX {
        return Some(HelloFinding::Malformed);
    }
    let body = body.get(..size)?;
    Some(read_server_name(body).unwrap_or(HelloFinding::Malformed))
}

/// Reads a complete ClientHello; `None` if it is malformed.
fn read_server_name(body: &[u8]) -> Option<HelloFinding> {
    let mut hello = ByteCursor(body);
    // Version and random number.
    hello.take(2 + 32)?;
    let session = hello.take_u8()?;
    hello.take(session.into())?;
    let ciphers = hello.take_u16()?;
    hello.take(ciphers.into())?;
    let compressions = hello.take_u8()?;
    hello.take(compressions.into())?;
    if hello.0.is_empty() {
        return Some(HelloFinding::NoServerName);
    }
    let size = hello.take_u16()?;
    let mut extensions = ByteCursor(hello.take(size.into())?);
    // Servers could read further bytes as something else.
    if !hello.0.is_empty() {
        return None;
    }
    let (mut name, mut is_encrypted) = (None, false);
    while !extensions.0.is_empty() {
        let kind = extensions.take_u16()?;
        let size = extensions.take_u16()?;
        let data = extensions.take(size.into())?;
        match kind {
            // Of two names, a server could take the other one.
            EXTENSION_SERVER_NAME if name.is_some() => return None,
            EXTENSION_SERVER_NAME => name = Some(read_name_list(data)?),
            EXTENSION_ENCRYPTED_HELLO => is_encrypted = true,
            _ => {}
        }
    }
    Some(match name {
        _ if is_encrypted => HelloFinding::Encrypted,
        Some(name) => HelloFinding::ServerName(name),
        None => HelloFinding::NoServerName,
    })
}

fn read_name_list(data: &[u8]) -> Option<HostName> {
    let mut data = ByteCursor(data);
    let size = data.take_u16()?;
    let mut list = ByteCursor(data.take(size.into())?);
    let kind = list.take_u8()?;
    let size = list.take_u16()?;
    let name = list.take(size.into())?;
    // The list has one name, as the standard says.
    let is_whole = data.0.is_empty() && list.0.is_empty() && kind == NAME_TYPE_HOST;
    let name = std::str::from_utf8(name).ok().filter(|name| is_whole && name.is_ascii())?;
    name.parse().ok()
}

struct ByteCursor<'b>(&'b [u8]);

impl<'b> ByteCursor<'b> {
    fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn take_u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn take_u16(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }
}

#[cfg(test)]
pub(crate) mod tests;
