//! A mail server: it speaks SMTP, with TLS or without it, takes a login, and records messages.
//!
//! Start at [`FakeSmtp`].

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::WAIT_MAX;
use crate::test_certificates::TestCertificates;

/// A running server; dropping it stops it.
#[derive(Debug)]
pub struct FakeSmtp {
    port: u16,
    shared: Arc<SharedSmtp>,
    thread: Option<JoinHandle<()>>,
}

/// Way in which a connection is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SmtpEncryption {
    /// By the command `STARTTLS`. Before it, the server takes no login and no mail.
    StartTls,
    /// From the first byte on.
    Implicit,
}

/// A message that was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReceivedMail {
    /// True if it came over TLS.
    pub is_encrypted: bool,
    /// Argument of `AUTH`, such as `PLAIN` with the login in base 64.
    pub login: Option<String>,
    pub sender: String,
    pub receivers: Vec<String>,
    /// Headers and text, with lines that end with a line feed.
    pub content: String,
}

impl ReceivedMail {
    /// Returns the value of a header on one line.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (head, _) = self.content.split_once("\n\n")?;
        head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

#[derive(Debug, Default)]
struct SharedSmtp {
    state: Mutex<SmtpState>,
    changed: Condvar,
    is_stopped: AtomicBool,
}

#[derive(Debug, Default)]
struct SmtpState {
    received: Vec<ReceivedMail>,
    /// Names of all commands, in order.
    commands: Vec<String>,
    /// Replies to the next `MAIL` commands.
    refusals: Vec<&'static str>,
}

impl FakeSmtp {
    /// Starts a server without TLS on a free local port.
    pub fn start() -> Self {
        FakeSmtp::serve(None)
    }

    /// Starts a server with TLS on a free local port.
    pub fn start_encrypted(encryption: SmtpEncryption, certificates: &TestCertificates) -> Self {
        FakeSmtp::serve(Some((encryption, certificates.server_config())))
    }

    fn serve(tls: Option<(SmtpEncryption, Arc<ServerConfig>)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::<SharedSmtp>::default();
        let served = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if served.is_stopped.load(Ordering::SeqCst) {
                    return;
                }
                // A client that goes away is no fault of the test.
                if let Ok(stream) = stream {
                    drop(serve(&served, stream, tls.as_ref()));
                }
            }
        });
        FakeSmtp { port, shared, thread: Some(thread) }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Refuses the next message with a reply such as `451 later`.
    pub fn refuse_next(&self, reply: &'static str) {
        self.shared.lock().refusals.push(reply);
    }

    /// Returns the names of all commands that were received, in order.
    pub fn commands(&self) -> Vec<String> {
        self.shared.lock().commands.clone()
    }

    /// Waits until so many messages were accepted.
    #[track_caller]
    pub fn wait_for(&self, count: usize) -> Vec<ReceivedMail> {
        let deadline = Instant::now() + WAIT_MAX;
        let mut state = self.shared.lock();
        while state.received.len() < count {
            assert!(Instant::now() < deadline, "waited in vain: {:#?}", state.received);
            state = self.shared.changed.wait_timeout(state, Duration::from_millis(100)).unwrap().0;
        }
        state.received.clone()
    }
}

impl Drop for FakeSmtp {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        // Wakes the thread.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl SharedSmtp {
    /// Takes the next reply to a `MAIL` command that is refused.
    fn refusal(&self) -> Option<&'static str> {
        let mut state = self.lock();
        (!state.refusals.is_empty()).then(|| state.refusals.remove(0))
    }

    fn lock(&self) -> MutexGuard<'_, SmtpState> {
        self.state.lock().unwrap()
    }
}

/// A connection, with TLS or without it.
trait SmtpStream: Read + Write {}

impl<S: Read + Write> SmtpStream for S {}

/// A connection that is read line by line.
struct SmtpConnection(BufReader<Box<dyn SmtpStream>>);

impl SmtpConnection {
    fn new(stream: Box<dyn SmtpStream>) -> Self {
        SmtpConnection(BufReader::new(stream))
    }

    /// Makes the server's side of a TLS connection. The handshake is made with the first bytes.
    fn encrypted(stream: TcpStream, config: &Arc<ServerConfig>) -> std::io::Result<Self> {
        let tls = ServerConnection::new(Arc::clone(config)).map_err(std::io::Error::other)?;
        Ok(SmtpConnection::new(Box::new(StreamOwned::new(tls, stream))))
    }

    fn reply(&mut self, text: &str) -> std::io::Result<()> {
        let stream = self.0.get_mut();
        stream.write_all(format!("{text}\r\n").as_bytes())?;
        stream.flush()
    }

    /// Returns the next line, or `None` at the end.
    fn line(&mut self) -> std::io::Result<Option<String>> {
        let mut line = String::new();
        let count = self.0.read_line(&mut line)?;
        Ok((count > 0).then(|| line.trim_end_matches(['\r', '\n']).to_owned()))
    }
}

fn serve(
    shared: &SharedSmtp,
    stream: TcpStream,
    tls: Option<&(SmtpEncryption, Arc<ServerConfig>)>,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let raw = stream.try_clone()?;
    let mut connection = match tls {
        Some((SmtpEncryption::Implicit, config)) => SmtpConnection::encrypted(stream, config)?,
        _ => SmtpConnection::new(Box::new(stream)),
    };
    let is_implicit = matches!(tls, Some((SmtpEncryption::Implicit, _)));
    connection.reply("220 fake ESMTP")?;
    let Some((SmtpEncryption::StartTls, config)) = tls else {
        return converse(
            shared,
            &mut connection,
            SmtpOffer { is_encrypted: is_implicit, starttls: false },
        )
        .map(drop);
    };
    let offer = SmtpOffer { is_encrypted: false, starttls: true };
    if converse(shared, &mut connection, offer)? == ConversationEnd::StartTls {
        // Bytes that came before the handshake do not count: they are dropped with the buffer.
        let mut connection = SmtpConnection::encrypted(raw, config)?;
        converse(shared, &mut connection, SmtpOffer { is_encrypted: true, starttls: false })?;
    }
    Ok(())
}

/// State of the encryption, and whether the client can change it.
#[derive(Clone, Copy)]
struct SmtpOffer {
    is_encrypted: bool,
    starttls: bool,
}

#[derive(PartialEq, Eq)]
enum ConversationEnd {
    Quit,
    StartTls,
}

/// Answers commands until the client leaves or begins TLS.
fn converse(
    shared: &SharedSmtp,
    connection: &mut SmtpConnection,
    offer: SmtpOffer,
) -> std::io::Result<ConversationEnd> {
    let mut mail = ReceivedMail::default();
    while let Some(line) = connection.line()? {
        let (command, rest) = line.split_at(line.find([' ', ':']).unwrap_or(line.len()));
        let command = command.to_ascii_uppercase();
        shared.lock().commands.push(command.clone());
        match command.as_str() {
            "EHLO" | "HELO" if offer.starttls => {
                connection.reply("250-fake\r\n250-8BITMIME\r\n250 STARTTLS")?;
            }
            "EHLO" | "HELO" => {
                connection.reply("250-fake\r\n250-8BITMIME\r\n250 AUTH PLAIN LOGIN")?;
            }
            "STARTTLS" if offer.starttls => {
                connection.reply("220 ready")?;
                return Ok(ConversationEnd::StartTls);
            }
            "AUTH" | "MAIL" | "RCPT" | "DATA" if offer.starttls => {
                connection.reply("530 Must issue a STARTTLS command first")?;
            }
            "AUTH" => {
                mail.login = Some(rest.trim().to_owned());
                connection.reply("235 ok")?;
            }
            "MAIL" => {
                mail.sender = address(rest);
                connection.reply(shared.refusal().unwrap_or("250 ok"))?;
            }
            "RCPT" => {
                mail.receivers.push(address(rest));
                connection.reply("250 ok")?;
            }
            "DATA" => {
                connection.reply("354 go on")?;
                mail.content = read_content(connection)?;
                mail.is_encrypted = offer.is_encrypted;
                shared.lock().received.push(std::mem::take(&mut mail));
                shared.changed.notify_all();
                connection.reply("250 accepted")?;
            }
            "RSET" | "NOOP" => connection.reply("250 ok")?,
            "QUIT" => {
                connection.reply("221 bye")?;
                return Ok(ConversationEnd::Quit);
            }
            _ => connection.reply("500 unknown")?,
        }
    }
    Ok(ConversationEnd::Quit)
}

/// Reads a message up to the line with a dot.
fn read_content(connection: &mut SmtpConnection) -> std::io::Result<String> {
    let mut content = Vec::new();
    while let Some(line) = connection.line()?
        && line != "."
    {
        // A dot at the start of a line is doubled.
        content.push(line.strip_prefix('.').unwrap_or(&line).to_owned());
    }
    Ok(content.join("\n"))
}

/// Returns the address between angle brackets.
fn address(text: &str) -> String {
    let start = text.split_once('<').map_or(text, |(_, rest)| rest);
    start.split('>').next().unwrap_or_default().to_owned()
}
