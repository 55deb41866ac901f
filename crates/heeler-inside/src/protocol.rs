//! Messages between a runner and the first process of its sandbox.
//!
//! A message is a frame: its length as four bytes, little-endian, then JSON. The first frame goes
//! to the sandbox and carries the agent's descriptors. Start at [`InsideRequest`].

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Maximum number of descriptors in a request: pipes, the session's lock and in-memory files.
pub const DESCRIPTORS_MAX: usize = 32;

/// Maximum length of a frame. The kernel accepts no larger arguments and environment.
const FRAME_BYTES_MAX: u32 = 16 << 20;

/// Everything that the first process needs to start an agent. May hold secrets.
///
/// The descriptors that come with it are standard input, output and error of the agent, then
/// `kept` descriptors that only the first process keeps open, then the files of `args`.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InsideRequest {
    pub program: String,
    pub args: Vec<InsideArgument>,
    pub cwd: String,
    /// Complete environment of the agent.
    pub env: Vec<(String, String)>,
    /// Number of descriptors to keep open: the session's lock.
    pub kept: usize,
    pub forwards: Vec<LoopbackForward>,
    /// Paths that must be the files that the runner found there.
    pub checks: Vec<MountCheck>,
    /// Value of `oom_score_adj` for the agent.
    pub oom_score: Option<String>,
    /// True if the agent may create unix sockets.
    pub allows_unix_sockets: bool,
    /// Files to create before the agent starts.
    #[serde(default)]
    pub copies: Vec<InsideFile>,
    /// True if the control group of this process is that of the agent alone, so that its count of
    /// processes killed for memory is that of the agent.
    #[serde(default)]
    pub has_own_cgroup: bool,
}

/// File that the first process creates for its own user. It is lost with the sandbox.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InsideFile {
    pub path: String,
    pub text: String,
}

impl fmt::Debug for InsideRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The environment and the arguments may hold secrets.
        f.debug_struct("InsideRequest").field("program", &self.program).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InsideArgument {
    Text(String),
    /// Path of a file among the descriptors, by its index among the files.
    File(usize),
}

/// TCP port of the sandbox's loopback interface that leads to a socket of the runner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoopbackForward {
    pub port: u16,
    pub socket: String,
}

/// Identity of a file that a mount must show. Another process can replace a path between the
/// runner's look at it and the mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountCheck {
    pub path: String,
    pub device: u64,
    pub inode: u64,
}

/// Message of the first process to the runner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InsideReport {
    /// The agent executes its program.
    Started,
    /// The agent's program could not be executed; this is the error number of the system.
    NotStarted { errno: i32 },
    /// The sandbox is not as requested, so the agent was not started.
    Refused { reason: String },
    /// The agent has ended with this wait status. All other processes end with this one.
    Ended {
        status: i32,
        /// True if the kernel killed a process of the control group because its memory was used up.
        #[serde(default)]
        out_of_memory: bool,
    },
}

/// Message of the runner to the first process, after the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InsideCommand {
    /// Send this signal to the agent.
    Signal { number: i32 },
}

/// Writes one message.
pub fn write_frame(mut to: impl Write, message: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let mut frame = frame_header(&body)?.to_vec();
    frame.extend(body);
    to.write_all(&frame)
}

/// Reads one message. Returns `None` if the other end has closed the connection.
pub fn read_frame<M: DeserializeOwned>(mut from: impl Read) -> io::Result<Option<M>> {
    let mut header = [0; 4];
    match from.read_exact(&mut header) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        result => result?,
    }
    read_body(header, from).map(Some)
}

/// Sends a request with its descriptors.
pub fn send_request(
    socket: impl AsFd + Write,
    request: &InsideRequest,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let body = serde_json::to_vec(request)?;
    let header = frame_header(&body)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    if !rights.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "there are too many descriptors"));
    }
    // The header is a few bytes, which a socket accepts at once or not at all.
    sendmsg(&socket, &[IoSlice::new(&header)], &mut rights, SendFlags::NOSIGNAL)?;
    let mut socket = socket;
    socket.write_all(&body)
}

/// Receives a request with its descriptors.
pub fn receive_request(
    socket: impl AsFd + Read,
) -> io::Result<Option<(InsideRequest, Vec<OwnedFd>)>> {
    let mut header = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    let received = recvmsg(&socket, &mut [IoSliceMut::new(&mut header)], &mut rights, flags)?;
    if received.bytes < header.len() {
        return Ok(None);
    }
    let mut descriptors = Vec::new();
    for message in rights.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    Ok(Some((read_body(header, socket)?, descriptors)))
}

fn frame_header(body: &[u8]) -> io::Result<[u8; 4]> {
    let length = u32::try_from(body.len()).ok().filter(|length| *length <= FRAME_BYTES_MAX);
    // The kernel's own message for this case.
    let length = length.ok_or(io::Error::from(io::ErrorKind::ArgumentListTooLong))?;
    Ok(length.to_le_bytes())
}

fn read_body<M: DeserializeOwned>(header: [u8; 4], mut from: impl Read) -> io::Result<M> {
    let length = u32::from_le_bytes(header);
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
    }
    let mut body = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    from.read_exact(&mut body)?;
    Ok(serde_json::from_slice(&body)?)
}
