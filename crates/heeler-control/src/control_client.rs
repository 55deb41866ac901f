//! Client of a run's control socket. It blocks, with timeouts: a runner that hangs must not hang
//! its callers.
//!
//! A connection either sends requests ([`ControlClient::request`]) or receives events
//! ([`ControlClient::subscribe`]), not both.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::run::{
    ControlEvent, ControlOperation, ControlReply, ControlReplyBody, ControlRequest, PROTOCOL,
    PROTOCOL_MIN, RunStartRecord, file, is_readable_protocol,
};
use heeler_process::SocketPeerProcess;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::Value as Json;
use thiserror::Error;

use crate::run_file::{RunFileReadError, read_run_file};

/// Maximum length of a line from a runner. It exceeds the size of all questions that can be open at
/// once.
pub const LINE_BYTES_MAX: u64 = 64 << 20;

/// Time limit of a reply.
pub const REPLY_WAIT: Duration = Duration::from_secs(10);

/// Failure to talk to a run.
#[derive(Debug, Error)]
pub enum ControlError {
    /// The run has not started, or its directory was removed.
    #[error("{path} does not exist: the run has not started yet, or its folder is gone")]
    NotStarted {
        /// Path of its `started.json`.
        path: Utf8PathBuf,
    },
    /// Its `started.json` cannot be read.
    #[error(transparent)]
    Unreadable(RunFileReadError),
    /// Nothing listens on the socket: the run has ended, or its runner has died.
    #[error("nothing listens on {socket}: the run has ended")]
    Gone {
        socket: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    /// Another process than the run's runner listens on the socket.
    #[error(
        "{socket} is not served by the runner of {folder}: an agent may have changed {}; nothing was sent",
        file::STARTED
    )]
    Imposter { socket: Utf8PathBuf, folder: Utf8PathBuf },
    /// The connection failed.
    #[error("cannot {attempt} the run at {socket}")]
    Io {
        /// The attempted operation.
        attempt: &'static str,
        socket: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    /// The runner uses an unsupported protocol version.
    #[error(
        "the run at {socket} speaks protocol {found}, and this heeler reads {PROTOCOL_MIN} to {PROTOCOL}"
    )]
    Protocol { socket: Utf8PathBuf, found: u32 },
}

/// Reads the `started.json` of a run directory.
pub fn read_started_file(folder: &Utf8Path) -> Result<RunStartRecord, ControlError> {
    let path = folder.join(file::STARTED);
    match read_run_file(&path) {
        Ok(Some(started)) => Ok(started),
        Ok(None) => Err(ControlError::NotStarted { path }),
        Err(source) => Err(ControlError::Unreadable(source)),
    }
}

/// Connection to a run's control socket.
#[derive(Debug)]
pub struct ControlClient {
    socket: Utf8PathBuf,
    stream: BufReader<UnixStream>,
    last_request_id: u64,
    /// Time limit of one request. Each read and write has it too.
    reply_timeout: Duration,
    /// Protocol version of the runner, which may be of the previous release.
    protocol: u32,
}

impl ControlClient {
    /// Connects to the run of a run directory.
    pub fn connect_to_run(folder: &Utf8Path) -> Result<ControlClient, ControlError> {
        let started = read_started_file(folder)?;
        ControlClient::connect(&started.socket, folder, started.protocol)
    }

    fn connect(
        socket: &Utf8Path,
        folder: &Utf8Path,
        protocol: u32,
    ) -> Result<ControlClient, ControlError> {
        // The version is checked with each reply, because the socket itself has none.
        let stream = connect_to_socket(socket, folder, SocketFlags::CLOEXEC, REPLY_WAIT)?;
        let (socket, stream) = (socket.to_owned(), BufReader::new(stream));
        let (last_request_id, reply_timeout) = (0, REPLY_WAIT);
        let mut control =
            ControlClient { socket, stream, last_request_id, reply_timeout, protocol };
        control.set_reply_timeout(REPLY_WAIT)?;
        Ok(control)
    }

    /// Sets the time limit of replies.
    pub fn set_reply_timeout(&mut self, wait: Duration) -> Result<(), ControlError> {
        self.reply_timeout = wait;
        let stream = self.stream.get_ref();
        stream
            // A runner that hangs must not block its caller in a write either.
            .set_read_timeout(Some(wait))
            .and_then(|()| stream.set_write_timeout(Some(wait)))
            .map_err(|source| self.io_error("talk to", source))
    }

    /// Sends a request and returns the reply.
    pub fn request(&mut self, op: ControlOperation) -> Result<ControlReplyBody, ControlError> {
        self.last_request_id += 1;
        let deadline = Instant::now() + self.reply_timeout;
        // The request has the version of the runner, which may be of an earlier release.
        let line = request_line(self.protocol, self.last_request_id, op);
        self.stream.get_mut().write_all(&line).map_err(|source| self.io_error("ask", source))?;
        loop {
            let line = self.read_line()?;
            // A late reply to an earlier request has another number and is skipped.
            if let Some(reply) = parse_reply(&line, self.last_request_id, &self.socket) {
                return reply;
            }
            // Each line has the whole time, so lines without end must not extend it.
            if Instant::now() > deadline {
                return Err(self.io_error("hear", io::ErrorKind::TimedOut.into()));
            }
        }
    }

    /// Turns the connection into an event stream. It contains every event after the reply.
    pub fn subscribe(mut self) -> Result<RunEventStream, ControlError> {
        self.request(ControlOperation::Subscribe)?;
        // No timeout from now on: the agent may think for an hour.
        self.stream
            .get_ref()
            .set_read_timeout(None)
            .map_err(|source| self.io_error("listen to", source))?;
        Ok(RunEventStream { control: self })
    }

    fn read_line(&mut self) -> Result<Vec<u8>, ControlError> {
        let mut line = Vec::new();
        // Without the limit a faulty runner could fill the memory.
        match (&mut self.stream).take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(_) if line.ends_with(b"\n") => Ok(line),
            Ok(_) if line.len() as u64 == LINE_BYTES_MAX => {
                let reason = format!("it sent more than {LINE_BYTES_MAX} bytes in one line");
                Err(self.io_error("hear", io::Error::new(io::ErrorKind::InvalidData, reason)))
            }
            // The runner closed the connection in the middle of a line, or before one.
            Ok(_) => Err(self.io_error("hear", io::ErrorKind::UnexpectedEof.into())),
            Err(source) => Err(self.io_error("hear", source)),
        }
    }

    fn io_error(&self, attempt: &'static str, source: io::Error) -> ControlError {
        ControlError::Io { attempt, socket: self.socket.clone(), source }
    }
}

/// Connects to the control socket of the run in `folder`. Agents can change the record that names the
/// socket, so the kernel is asked who listens there. A runner that hangs accepts nothing: once its
/// backlog is full, the attempt fails with [`ControlError::Io`] after `wait`, or at once if the
/// socket does not block.
pub fn connect_to_socket(
    socket: &Utf8Path,
    folder: &Utf8Path,
    flags: SocketFlags,
    wait: Duration,
) -> Result<UnixStream, ControlError> {
    let connected = SocketAddrUnix::new(socket.as_std_path()).and_then(|address| {
        let stream =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // It limits the time of `connect` too.
        set_socket_timeout(&stream, Timeout::Send, Some(wait))?;
        rustix::net::connect(&stream, &address)?;
        Ok(stream)
    });
    let socket = socket.to_owned();
    match connected {
        Ok(stream) => match is_runner(&stream, folder) {
            Ok(true) => Ok(UnixStream::from(stream)),
            Ok(false) => Err(ControlError::Imposter { socket, folder: folder.to_owned() }),
            Err(source) => Err(ControlError::Io { attempt: "identify", socket, source }),
        },
        Err(error) if tells_nothing(error) => {
            Err(ControlError::Io { attempt: "reach", socket, source: error.into() })
        }
        Err(error) => Err(ControlError::Gone { socket, source: error.into() }),
    }
}

/// Returns true if the runner of a run listens at the other end of a socket.
fn is_runner(stream: &OwnedFd, folder: &Utf8Path) -> io::Result<bool> {
    let peer = SocketPeerProcess::of(stream)?;
    // Tests run runners in their own process, and this process does not deceive itself.
    match peer.pid == std::process::id() {
        true => Ok(true),
        false => peer.is_runner_of(folder),
    }
}

/// Returns true if the failure of an attempt to connect says nothing about the process at the other
/// end: it hangs, or this process or the system has run out of something.
fn tells_nothing(error: Errno) -> bool {
    use Errno as E;
    matches!(error, E::AGAIN | E::INTR | E::MFILE | E::NFILE | E::NOMEM | E::NOBUFS)
}

/// Returns the line of a request.
pub fn request_line(protocol: u32, id: u64, op: ControlOperation) -> Vec<u8> {
    let request = ControlRequest { protocol, id, op };
    let mut line = serde_json::to_vec(&request).expect("a request is JSON");
    line.push(b'\n');
    line
}

/// Returns the reply to request `id`, or `None` if the line is something else: an event, or a
/// message of a later version.
pub fn parse_reply(
    line: &[u8],
    id: u64,
    socket: &Utf8Path,
) -> Option<Result<ControlReplyBody, ControlError>> {
    let reply = serde_json::from_slice::<ControlReply>(line).ok()?;
    if !is_readable_protocol(reply.protocol) {
        let (socket, found) = (socket.to_owned(), reply.protocol);
        return Some(Err(ControlError::Protocol { socket, found }));
    }
    (reply.id == id).then_some(Ok(reply.body))
}

/// Live events of a run. The stream ends with the run.
#[derive(Debug)]
pub struct RunEventStream {
    control: ControlClient,
}

/// Closes a [`RunEventStream`] from another thread.
#[derive(Debug)]
pub struct EventStreamCloser(UnixStream);

impl EventStreamCloser {
    /// Closes the stream: a pending read returns its end.
    pub fn close(&self) {
        // An error means that the connection is already closed.
        drop(self.0.shutdown(std::net::Shutdown::Both));
    }
}

impl RunEventStream {
    /// Returns a handle that closes this stream from another thread.
    pub fn closer(&self) -> io::Result<EventStreamCloser> {
        self.control.stream.get_ref().try_clone().map(EventStreamCloser)
    }
}

impl Iterator for RunEventStream {
    type Item = Result<ControlEvent, ControlError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let line = match self.control.read_line() {
                Ok(line) => line,
                Err(ControlError::Io { source, .. })
                    // The runner closes the stream when its run ends.
                    if source.kind() == io::ErrorKind::UnexpectedEof =>
                {
                    return None;
                }
                Err(error) => return Some(Err(error)),
            };
            match serde_json::from_slice::<ControlEvent>(&line) {
                Ok(happening) => return Some(Ok(happening)),
                Err(error) => {
                    // A later release may send events that this one does not know.
                    let kind = serde_json::from_slice::<Json>(&line).ok();
                    let kind = kind.as_ref().and_then(|line| line["event"].as_str());
                    tracing::debug!(?kind, %error, "ignored an unknown event of a runner");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread::JoinHandle;

    use super::*;

    /// Starts a runner that sends these lines to each client, after each request.
    fn runner(
        lines: &'static [&'static str],
    ) -> (tempfile::TempDir, Utf8PathBuf, JoinHandle<String>) {
        let temp = tempfile::tempdir().unwrap();
        let socket = Utf8Path::from_path(temp.path()).unwrap().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let heard = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut stream = BufReader::new(stream);
            let mut heard = String::new();
            stream.read_line(&mut heard).unwrap();
            for line in lines {
                stream.get_mut().write_all(line.as_bytes()).unwrap();
            }
            heard
        });
        (temp, socket, heard)
    }

    #[test]
    fn a_request_gets_its_own_reply() {
        let (_temp, socket, heard) = runner(&[
            "{\"event\":\"lagged\"}\n",
            "{\"protocol\":1,\"id\":7,\"reply\":\"done\"}\n",
            "{\"protocol\":1,\"id\":1,\"reply\":\"refused\",\"reason\":\"no\"}\n",
        ]);
        let mut control = ControlClient::connect(&socket, Utf8Path::new("/"), PROTOCOL).unwrap();
        let reply =
            control.request(ControlOperation::Cancel { now: true, by: "me".to_owned() }).unwrap();
        assert_eq!(reply, ControlReplyBody::Refused { reason: "no".to_owned() });
        let heard = heard.join().unwrap();
        assert_eq!(
            heard,
            "{\"protocol\":1,\"id\":1,\"op\":\"cancel\",\"now\":true,\"by\":\"me\"}\n"
        );
    }

    #[test]
    fn what_happens_is_told_until_the_run_ends_and_the_unknown_is_skipped() {
        let (_temp, socket, _heard) = runner(&[
            "{\"protocol\":1,\"id\":1,\"reply\":\"done\"}\n",
            "{\"event\":\"delta\",\"text\":\"a\"}\n{\"event\":\"of the future\"}\nnot json\n",
            "{\"event\":\"row\",\"at\":3,\"row\":{}}\n{\"event\":\"delta\",\"te",
        ]);
        let happenings = ControlClient::connect(&socket, Utf8Path::new("/"), PROTOCOL)
            .unwrap()
            .subscribe()
            .unwrap();
        let told: Vec<ControlEvent> = happenings.map(Result::unwrap).collect();
        let row = ControlEvent::Row {
            at: 3,
            row: heeler_model::job_row::JobRow::new(serde_json::json!({})),
        };
        assert_eq!(told, [ControlEvent::Delta { text: "a".to_owned(), from: None }, row]);
    }

    #[test]
    fn whoever_listens_can_be_made_to_stop_by_another_thread() {
        let temp = tempfile::tempdir().unwrap();
        let socket = Utf8Path::from_path(temp.path()).unwrap().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let runner = std::thread::spawn(move || {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            stream.read_line(&mut String::new()).unwrap();
            stream.get_mut().write_all(b"{\"protocol\":1,\"id\":1,\"reply\":\"done\"}\n").unwrap();
            // The runner sends nothing more and does not close the connection.
            stream.read_line(&mut String::new()).unwrap()
        });
        let happenings = ControlClient::connect(&socket, Utf8Path::new("/"), PROTOCOL)
            .unwrap()
            .subscribe()
            .unwrap();
        let hang_up = happenings.closer().unwrap();
        let listening = std::thread::spawn(move || happenings.count());
        hang_up.close();
        assert_eq!(listening.join().unwrap(), 0);
        assert_eq!(runner.join().unwrap(), 0);
    }

    #[test]
    fn a_runner_of_a_protocol_that_is_not_read_is_refused() {
        for (line, number) in [
            ("{\"protocol\":9,\"id\":1,\"reply\":\"done\"}\n", 9),
            ("{\"protocol\":0,\"id\":1,\"reply\":\"done\"}\n", 0),
        ] {
            let (_temp, socket, _heard) = runner(Vec::leak(vec![line]));
            let error = ControlClient::connect(&socket, Utf8Path::new("/"), PROTOCOL)
                .unwrap()
                .request(ControlOperation::Status)
                .unwrap_err();
            assert!(
                matches!(error, ControlError::Protocol { found, .. } if found == number),
                "{error}"
            );
        }
    }

    #[test]
    fn a_line_without_end_is_not_listened_to() {
        let temp = tempfile::tempdir().unwrap();
        let socket = Utf8Path::from_path(temp.path()).unwrap().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let runner = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.write_all(&[b'x'; 1 << 16]).is_ok() {}
        });
        let mut control = ControlClient::connect(&socket, Utf8Path::new("/"), PROTOCOL).unwrap();
        let error = control.request(ControlOperation::Status).unwrap_err();
        let ControlError::Io { source, .. } = error else { panic!("{error}") };
        assert_eq!(source.kind(), io::ErrorKind::InvalidData);
        drop(control);
        runner.join().unwrap();
    }

    #[test]
    fn what_a_clone_has_instead_of_a_run_is_not_waited_for() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(temp.path()).unwrap();
        let path = folder.join("started.json");
        mknodat(CWD, path.as_std_path(), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(matches!(ControlClient::connect_to_run(folder), Err(ControlError::Unreadable(_))));
    }

    #[test]
    fn a_runner_is_not_gone_because_this_process_can_open_nothing_more() {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let (_temp, socket, _heard) = runner(&[]);
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, rustix::process::Rlimit { current: Some(0), ..before })
            .unwrap();
        let connected = connect_to_socket(
            &socket,
            Utf8Path::new("/"),
            SocketFlags::CLOEXEC,
            Duration::from_secs(1),
        );
        setrlimit(Resource::Nofile, before).unwrap();
        assert!(matches!(connected, Err(ControlError::Io { .. })), "{connected:?}");
    }

    #[test]
    fn a_runner_that_is_gone_or_has_not_started_is_told_apart() {
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(temp.path()).unwrap();
        assert!(matches!(
            ControlClient::connect_to_run(folder),
            Err(ControlError::NotStarted { .. })
        ));
        std::fs::write(folder.join("started.json"), "{").unwrap();
        assert!(matches!(ControlClient::connect_to_run(folder), Err(ControlError::Unreadable(_))));
        let error = ControlClient::connect(&folder.join("none"), folder, PROTOCOL).unwrap_err();
        assert!(matches!(error, ControlError::Gone { .. }));
        let (_temp, socket, _heard) = runner(&[]);
        let error = ControlClient::connect(&socket, Utf8Path::new("/"), PROTOCOL)
            .unwrap()
            .request(ControlOperation::Status)
            .unwrap_err();
        assert!(matches!(error, ControlError::Io { .. }), "{error}");
    }
}
