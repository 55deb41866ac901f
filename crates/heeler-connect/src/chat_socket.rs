//! A WebSocket to a chat platform, for a thread that has other work between two messages.
//!
//! Only TLS connections are made, except to this machine. No proxy is used, because addresses hold
//! tickets. Errors name only the host. Start at [`ChatSocket::connect`].

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tungstenite::protocol::frame::CloseFrame;
use tungstenite::protocol::{Message, WebSocket, WebSocketConfig};
use tungstenite::{Error as WireError, HandshakeError};
use url::{Host, Url};

use crate::api_call::safe_text;

/// Longest message of a platform, in bytes.
const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// Time limit of a connection attempt, of its handshake and of a write.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// A connected WebSocket.
pub struct ChatSocket {
    socket: WebSocket<SocketStream>,
    host: String,
    /// Read timeout that is set.
    wait: Duration,
    heard_at: Instant,
}

impl std::fmt::Debug for ChatSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ChatSocket({})", self.host)
    }
}

/// Result of a wait for a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SocketInput {
    Text(String),
    /// A sign of life without a message.
    Contact,
    /// Nothing within the time.
    Silence,
    /// The connection has ended, with the code of the platform if it sent one.
    Closed {
        code: Option<u16>,
        reason: String,
    },
}

impl ChatSocket {
    /// Connects to an address that begins with `wss://`, or with `ws://` and a host of this machine.
    pub fn connect(address: &str) -> Result<ChatSocket, String> {
        let url: Url =
            address.parse().map_err(|_| "the address of a socket is invalid".to_owned())?;
        let host = url.host_str().unwrap_or("the address").to_owned();
        let failed = |what: &str| format!("cannot open a socket to {host}: {what}");
        let is_secure = match url.scheme() {
            "wss" => true,
            "ws" if is_local(&url) => false,
            _ => return Err(failed("it is not protected by TLS")),
        };
        let port = url.port().unwrap_or(if is_secure { 443 } else { 80 });
        let tcp = connect_tcp(&host, port).map_err(|error| failed(&error.to_string()))?;
        let stream = match is_secure {
            true => SocketStream::Tls(Box::new(begin_tls(&host, tcp).map_err(|it| failed(&it))?)),
            false => SocketStream::Plain(tcp),
        };
        let config = WebSocketConfig::default()
            .max_message_size(Some(MESSAGE_BYTES_MAX))
            .max_frame_size(Some(MESSAGE_BYTES_MAX));
        let opened = tungstenite::client::client_with_config(address, stream, Some(config));
        let (socket, _) = opened.map_err(|error| failed(&handshake_failure(error)))?;
        let heard_at = Instant::now();
        Ok(ChatSocket { socket, host, wait: STEP_TIMEOUT, heard_at })
    }

    /// Waits for the next message, for about this time.
    pub fn receive(&mut self, wait: Duration) -> SocketInput {
        if let Err(error) = self.set_wait(wait) {
            return self.lost(&error.to_string());
        }
        match self.socket.read() {
            Ok(message) => {
                self.heard_at = Instant::now();
                match message {
                    Message::Text(text) => SocketInput::Text(text.as_str().to_owned()),
                    Message::Close(frame) => self.closed(frame),
                    _ => SocketInput::Contact,
                }
            }
            Err(WireError::Io(error)) if is_timeout(&error) => SocketInput::Silence,
            Err(WireError::ConnectionClosed | WireError::AlreadyClosed) => self.closed(None),
            Err(error) => self.lost(&wire_failure(&error)),
        }
    }

    /// Limits the next reads; zero takes only what is here. The system rounds other limits up to ticks of
    /// its clock, which are several milliseconds.
    fn set_wait(&mut self, wait: Duration) -> io::Result<()> {
        if self.wait != wait {
            let tcp = self.socket.get_ref().tcp();
            tcp.set_nonblocking(wait.is_zero())?;
            if !wait.is_zero() {
                tcp.set_read_timeout(Some(wait))?;
            }
            self.wait = wait;
        }
        Ok(())
    }

    /// Returns the time of the last sign of life.
    pub fn heard_at(&self) -> Instant {
        self.heard_at
    }

    pub fn send_text(&mut self, text: String) -> Result<(), String> {
        self.send(Message::text(text))
    }

    /// Asks for a sign of life.
    pub fn ping(&mut self) -> Result<(), String> {
        self.send(Message::Ping(Vec::new().into()))
    }

    /// Ends the connection with a code. The other side need not agree.
    pub fn close(mut self, code: u16) {
        let frame = CloseFrame { code: code.into(), reason: "".into() };
        // The connection ends in any case.
        drop(self.socket.close(Some(frame)));
        drop(self.socket.flush());
    }

    fn send(&mut self, message: Message) -> Result<(), String> {
        if self.wait.is_zero() {
            // The message waits for space in the system's buffer.
            self.set_wait(STEP_TIMEOUT).map_err(|error| error.to_string())?;
        }
        let host = &self.host;
        self.socket
            .send(message)
            .map_err(|error| format!("cannot send to {host}: {}", wire_failure(&error)))
    }

    fn closed(&self, frame: Option<CloseFrame>) -> SocketInput {
        let code = frame.as_ref().map(|frame| u16::from(frame.code));
        let said = frame.map(|frame| safe_text(&frame.reason)).filter(|said| !said.is_empty());
        let said = said.map(|said| format!(": {said}")).unwrap_or_default();
        SocketInput::Closed { code, reason: format!("{} closed the socket{said}", self.host) }
    }

    fn lost(&self, what: &str) -> SocketInput {
        SocketInput::Closed {
            code: None,
            reason: format!("lost the socket to {}: {what}", self.host),
        }
    }
}

/// Connection below a WebSocket.
enum SocketStream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl SocketStream {
    fn tcp(&self) -> &TcpStream {
        match self {
            SocketStream::Plain(tcp) => tcp,
            SocketStream::Tls(tls) => tls.get_ref(),
        }
    }
}

impl Read for SocketStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            SocketStream::Plain(tcp) => tcp.read(buffer),
            SocketStream::Tls(tls) => tls.read(buffer),
        }
    }
}

impl Write for SocketStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            SocketStream::Plain(tcp) => tcp.write(bytes),
            SocketStream::Tls(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            SocketStream::Plain(tcp) => tcp.flush(),
            SocketStream::Tls(tls) => tls.flush(),
        }
    }
}

fn is_local(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => IpAddr::V4(address).is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::V6(address).is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    // The brackets of an IPv6 address are a part of the URL only.
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in (name, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, STEP_TIMEOUT) {
            Ok(tcp) => {
                tcp.set_read_timeout(Some(STEP_TIMEOUT))?;
                tcp.set_write_timeout(Some(STEP_TIMEOUT))?;
                // Acknowledgements are short, and the platform waits for them.
                tcp.set_nodelay(true)?;
                return Ok(tcp);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn begin_tls(
    host: &str,
    tcp: TcpStream,
) -> Result<StreamOwned<ClientConnection, TcpStream>, String> {
    let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
    let connection =
        ClientConnection::new(Arc::new(config), name).map_err(|error| error.to_string())?;
    Ok(StreamOwned::new(connection, tcp))
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn handshake_failure<R: tungstenite::handshake::HandshakeRole>(error: HandshakeError<R>) -> String {
    match error {
        HandshakeError::Interrupted(_) => "it did not answer in time".to_owned(),
        HandshakeError::Failure(error) => wire_failure(&error),
    }
}

/// Describes a failure, without the address.
fn wire_failure(error: &WireError) -> String {
    match error {
        WireError::Io(error) if is_timeout(error) => "it did not answer in time".to_owned(),
        WireError::Http(answer) => format!("it answered {}", answer.status().as_u16()),
        error => safe_text(&error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_without_tls_stays_within_this_machine() {
        for address in ["ws://slack.example/x", "http://127.0.0.1/", "ws://127.0.0.1.example/"] {
            let error = ChatSocket::connect(address).unwrap_err();
            assert!(error.contains("not protected by TLS"), "{address}: {error}");
        }
        assert!(ChatSocket::connect("no address").unwrap_err().contains("invalid"));
        // Nothing listens there.
        let error = ChatSocket::connect("ws://127.0.0.1:1/?ticket=secret").unwrap_err();
        assert!(error.contains("127.0.0.1") && !error.contains("secret"), "{error}");
    }
    #[test]
    fn without_a_wait_only_messages_that_are_here_are_read() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("ws://{}/", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let mut socket = tungstenite::accept(listener.accept().unwrap().0).unwrap();
            socket.send(Message::text("one")).unwrap();
            let answer = socket.read().unwrap().into_text().unwrap();
            socket.send(Message::text("two")).unwrap();
            assert_eq!(answer.len(), MESSAGE_BYTES_MAX / 2, "larger than the system's buffers");
            socket
        });
        let mut socket = ChatSocket::connect(&address).unwrap();
        let mut received = || socket.receive(Duration::from_secs(10));
        assert!(matches!(received(), SocketInput::Text(text) if text == "one"));
        assert!(matches!(socket.receive(Duration::ZERO), SocketInput::Silence));
        socket.send_text("x".repeat(MESSAGE_BYTES_MAX / 2)).unwrap();
        let _open = server.join().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let text = loop {
            match socket.receive(Duration::ZERO) {
                SocketInput::Text(text) => break text,
                SocketInput::Silence => assert!(Instant::now() < deadline, "nothing came"),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(text, "two");
    }
}
