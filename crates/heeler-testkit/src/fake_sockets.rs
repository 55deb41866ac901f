//! WebSockets of a fake service: a thread for each connection.
//!
//! Start at [`FakeSockets::start`].

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tungstenite::protocol::frame::CloseFrame;
use tungstenite::{Error as WireError, Message, WebSocket};

/// Time in which a client must complete its handshake.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(30);

/// Time for which a thread waits for a frame before it looks for other work.
const TURN: Duration = Duration::from_millis(4);

/// Behaviour of a fake service on its sockets.
pub(crate) trait SocketService: Send + Sync + 'static {
    /// Admits a connection to a path with its query; returns its number.
    fn admit(&self, path: &str) -> Option<u64>;
    /// Takes a text of the client.
    fn take_text(&self, socket: u64, text: &str);
    /// Returns what happens next on the socket.
    fn next_action(&self, socket: u64) -> SocketAction;
    /// Learns that a socket has ended.
    fn end(&self, socket: u64);
}

/// Next action on a socket.
#[derive(Debug)]
pub(crate) enum SocketAction {
    Send(String),
    Ping,
    /// Closes with a code and a reason.
    Close(u16, &'static str),
    /// Ends the connection without a word.
    Abort,
    /// Neither reads nor writes.
    Freeze,
    /// Waits for the client.
    Listen,
}

/// The listener and its connections; dropping it ends them.
#[derive(Debug)]
pub(crate) struct FakeSockets {
    url: String,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FakeSockets {
    pub(crate) fn start(service: Arc<impl SocketService>) -> FakeSockets {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let stop = Arc::<AtomicBool>::default();
        let of_thread = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut connections: Vec<JoinHandle<()>> = Vec::new();
            while !of_thread.load(Ordering::Relaxed) {
                let Ok((stream, _)) = listener.accept() else {
                    std::thread::park_timeout(TURN);
                    continue;
                };
                let (service, stop) = (Arc::clone(&service), Arc::clone(&of_thread));
                connections.push(std::thread::spawn(move || serve(stream, &*service, &stop)));
            }
            connections.into_iter().for_each(|connection| drop(connection.join()));
        });
        FakeSockets { url, stop, thread: Some(thread) }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for FakeSockets {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

#[expect(clippy::result_large_err, reason = "the library defines the refusal")]
fn serve(stream: TcpStream, service: &impl SocketService, stop: &AtomicBool) {
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(HANDSHAKE_WAIT)).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut number = None;
    let admit = |request: &Request, response: Response| {
        number = service.admit(request.uri().path_and_query().map_or("/", |path| path.as_str()));
        match number {
            Some(_) => Ok(response),
            None => Err(refusal()),
        }
    };
    let Ok(mut socket) = tungstenite::accept_hdr(stream, admit) else { return };
    let Some(number) = number else { return };
    socket.get_ref().set_read_timeout(Some(TURN)).unwrap();
    while !stop.load(Ordering::Relaxed) && turn(&mut socket, service, number) {}
    service.end(number);
}

fn refusal() -> ErrorResponse {
    let mut refused = ErrorResponse::new(None);
    *refused.status_mut() = tungstenite::http::StatusCode::FORBIDDEN;
    refused
}

/// Does one thing; returns false if the connection has ended.
fn turn(socket: &mut WebSocket<TcpStream>, service: &impl SocketService, number: u64) -> bool {
    match service.next_action(number) {
        SocketAction::Send(text) => return socket.send(Message::text(text)).is_ok(),
        SocketAction::Ping => return socket.send(Message::Ping(Vec::new().into())).is_ok(),
        SocketAction::Close(code, reason) => {
            let frame = CloseFrame { code: code.into(), reason: reason.into() };
            drop(socket.close(Some(frame)));
            drop(socket.flush());
            return false;
        }
        SocketAction::Abort => return false,
        SocketAction::Freeze => {
            std::thread::park_timeout(TURN);
            return true;
        }
        SocketAction::Listen => {}
    }
    match socket.read() {
        Ok(Message::Text(text)) => {
            service.take_text(number, text.as_str());
            true
        }
        Ok(Message::Close(_)) => false,
        Ok(_) => true,
        Err(WireError::Io(error)) => {
            matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
        }
        Err(_) => false,
    }
}
