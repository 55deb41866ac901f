//! A mail server: it speaks SMTP without TLS, checks a login, and records messages.
//!
//! Start at [`FakeSmtp`].

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::WAIT_MAX;

/// A running server; dropping it stops it.
#[derive(Debug)]
pub struct FakeSmtp {
    port: u16,
    shared: Arc<SharedSmtp>,
    thread: Option<JoinHandle<()>>,
}

/// A message that was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReceivedMail {
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
    /// Starts a server on a free local port.
    pub fn start() -> Self {
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
                    drop(serve(&served, stream));
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
    fn lock(&self) -> MutexGuard<'_, SmtpState> {
        self.state.lock().unwrap()
    }
}

fn serve(shared: &SharedSmtp, stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut writer = stream.try_clone()?;
    let mut lines = BufReader::new(stream).lines();
    let mut reply = |text: &str| writer.write_all(format!("{text}\r\n").as_bytes());
    reply("220 fake ESMTP")?;
    let mut mail = ReceivedMail::default();
    while let Some(line) = lines.next().transpose()? {
        let (command, rest) = line.split_at(line.find([' ', ':']).unwrap_or(line.len()));
        shared.lock().commands.push(command.to_ascii_uppercase());
        match command.to_ascii_uppercase().as_str() {
            "EHLO" | "HELO" => reply("250-fake\r\n250-8BITMIME\r\n250 AUTH PLAIN LOGIN")?,
            "AUTH" => {
                mail.login = Some(rest.trim().to_owned());
                reply("235 ok")?;
            }
            "MAIL" => {
                let refusal = {
                    let mut state = shared.lock();
                    (!state.refusals.is_empty()).then(|| state.refusals.remove(0))
                };
                mail.sender = address(rest);
                reply(refusal.unwrap_or("250 ok"))?;
            }
            "RCPT" => {
                mail.receivers.push(address(rest));
                reply("250 ok")?;
            }
            "DATA" => {
                reply("354 go on")?;
                let mut content = Vec::new();
                for line in lines.by_ref() {
                    let line = line?;
                    if line == "." {
                        break;
                    }
                    // A dot at the start of a line is doubled.
                    content.push(line.strip_prefix('.').unwrap_or(&line).to_owned());
                }
                mail.content = content.join("\n");
                shared.lock().received.push(std::mem::take(&mut mail));
                shared.changed.notify_all();
                reply("250 accepted")?;
            }
            "RSET" | "NOOP" => reply("250 ok")?,
            "QUIT" => return reply("221 bye"),
            _ => reply("500 unknown")?,
        }
    }
    Ok(())
}

/// Returns the address between angle brackets.
fn address(text: &str) -> String {
    let start = text.split_once('<').map_or(text, |(_, rest)| rest);
    start.split('>').next().unwrap_or_default().to_owned()
}
