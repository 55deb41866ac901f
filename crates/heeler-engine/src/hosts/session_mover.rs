//! Part of a host in the moves of sessions: it packs those that leave, and places those that come.
//!
//! The thread sleeps until a sign of life finds a move of this host, and connects only then. Each step is
//! repeated until its end is on record, so it may be interrupted anywhere. Start at
//! [`SessionMover::start`].

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::session_move::SessionMoveState;
use heeler_model::{Session, error_chain};
use heeler_store::bundle::SessionBundle;
use heeler_store::{
    DatabaseError, HostLink, MOVE_PART_BYTES, SESSION_MOVE_BYTES_MAX, SessionMoveRow,
    ShippedBundle, StoreReader,
};
use uuid::Uuid;

use super::part_copy::append_missing_lines;
use crate::fault::{self, FaultPoint};
use crate::fleet::EngineContext;
use crate::fleet_monitor::FleetMonitor;
use crate::sessions::{self, SessionPackError};

/// Time after which a step that failed is repeated.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// File of the state directory in which a bundle is collected. There is one at a time.
const BUNDLE_FILE: &str = "session-move.json";

/// Event for the thread.
enum MoverEvent {
    /// There is a move of this host.
    Wake,
    Stop,
}

/// Handle to the thread.
#[derive(Debug)]
pub(super) struct SessionMover {
    events: SyncSender<MoverEvent>,
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SessionMover {
    pub(super) fn start(fleet: EngineContext, monitor: FleetMonitor) -> io::Result<SessionMover> {
        // A wake-up that finds no room is not needed: another one waits.
        let (events, received) = sync_channel(1);
        let is_stopped = Arc::<AtomicBool>::default();
        let mut mover = MoverThread {
            fleet,
            monitor,
            is_stopped: Arc::clone(&is_stopped),
            failed: HashMap::new(),
        };
        let thread = std::thread::Builder::new()
            .name("heeler-move".to_owned())
            .spawn(move || mover.run(&received))?;
        Ok(SessionMover { events, is_stopped, thread: Some(thread) })
    }

    /// Lets the thread look for moves of this host.
    pub(super) fn wake(&self) {
        let _full = self.events.try_send(MoverEvent::Wake);
    }
}

impl Drop for SessionMover {
    fn drop(&mut self) {
        // A step ends at its next part, so that the end of a daemon does not wait for a large session.
        self.is_stopped.store(true, Ordering::Relaxed);
        // The thread takes what is in the channel before, or has ended.
        let _ended = self.events.send(MoverEvent::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the mover's thread had panicked");
        }
    }
}

/// End of a step before its time.
#[derive(Debug)]
enum MoveFault {
    /// The session cannot be moved.
    Refused(String),
    /// It may succeed later.
    Later(String),
    /// The move is over, or this daemon ends.
    Over,
}

impl From<DatabaseError> for MoveFault {
    fn from(error: DatabaseError) -> MoveFault {
        MoveFault::Later(error_chain(&error))
    }
}

impl From<SessionPackError> for MoveFault {
    fn from(error: SessionPackError) -> MoveFault {
        match error {
            SessionPackError::Refused(reason) => MoveFault::Refused(reason),
            SessionPackError::Later(reason) => MoveFault::Later(reason),
        }
    }
}

fn later(error: &dyn std::error::Error) -> MoveFault {
    MoveFault::Later(error_chain(error))
}

struct MoverThread {
    fleet: EngineContext,
    monitor: FleetMonitor,
    is_stopped: Arc<AtomicBool>,
    /// Moves with a step that failed, and the time.
    failed: HashMap<Uuid, Instant>,
}

impl MoverThread {
    fn run(&mut self, events: &Receiver<MoverEvent>) {
        while let Ok(MoverEvent::Wake) = events.recv() {
            if self.is_stopped.load(Ordering::Relaxed) {
                return;
            }
            self.failed.retain(|_, at| at.elapsed() < RETRY_DELAY);
            if let Err(why) = self.work() {
                tracing::warn!(why, "sessions are moved later");
            }
        }
    }

    fn work(&mut self) -> Result<(), String> {
        let link = HostLink::connect(&self.fleet.dir).map_err(|error| error_chain(&error))?;
        for moved in link.own_moves().map_err(|error| error_chain(&error))? {
            if self.is_stopped.load(Ordering::Relaxed) {
                return Ok(());
            }
            if self.failed.contains_key(&moved.id) {
                continue;
            }
            let session = &moved.session;
            let done = match moved.state {
                SessionMoveState::Packing => self.pack(&link, &moved),
                _ => self.place(&link, &moved),
            };
            match done {
                Ok(()) | Err(MoveFault::Over) => {}
                Err(MoveFault::Refused(reason)) => {
                    let host = self.fleet.dir.host().map(|host| host.name.to_string());
                    let reason = format!("host `{}`: {reason}", host.unwrap_or_default());
                    tracing::warn!(%session, reason, "a session cannot be moved");
                    link.refuse_move(&moved, &reason).map_err(|error| error_chain(&error))?;
                }
                Err(MoveFault::Later(why)) => {
                    tracing::warn!(%session, why, "a session is moved later");
                    self.failed.insert(moved.id, Instant::now());
                }
            }
        }
        Ok(())
    }

    fn read_session(&self, moved: &SessionMoveRow) -> Result<Session, MoveFault> {
        let reader = StoreReader::open(&self.fleet.dir).map_err(|error| later(&error))?;
        let session = reader.session(&moved.session)?;
        session.ok_or_else(|| MoveFault::Refused("the session is not on record".to_owned()))
    }

    /// Ships the bundle of a session that leaves this host.
    fn pack(&self, link: &HostLink, moved: &SessionMoveRow) -> Result<(), MoveFault> {
        // The transcript is at its end on record, so the other hosts know how long it is.
        let unshipped = link.unshipped_runs()?;
        if unshipped.iter().any(|run| run.run.to_string() == moved.after_run) {
            return Err(MoveFault::Later("the rows of its last run are being shipped".to_owned()));
        }
        let session = self.read_session(moved)?;
        let mut out = PartSender {
            link,
            moved,
            is_stopped: &self.is_stopped,
            attempt: Uuid::new_v4(),
            parts: 0,
            bytes: 0,
            buffer: Vec::with_capacity(MOVE_PART_BYTES),
            fault: None,
        };
        let packed = sessions::pack_session(&self.fleet, &self.monitor.setup(), &session, &mut out);
        // The fault of a part comes first: the packing knows only that it could not write.
        if let Some(fault) = out.fault.take() {
            return Err(fault);
        }
        let native_bytes = packed?;
        out.send()?;
        fault::reach(FaultPoint::MovePacked);
        let bundle = ShippedBundle { attempt: out.attempt, parts: out.parts, native_bytes };
        if link.finish_packing(moved, &bundle)? {
            tracing::info!(session = %moved.session, bytes = out.bytes, "a session is packed");
        }
        Ok(())
    }

    /// Places a session that comes to this host.
    fn place(&self, link: &HostLink, moved: &SessionMoveRow) -> Result<(), MoveFault> {
        let session = self.read_session(moved)?;
        let file = self.fleet.dir.root().join(BUNDLE_FILE);
        let fetched = self.fetch(link, moved, &file);
        fault::reach(FaultPoint::MoveFetched);
        let placed = fetched.and_then(|()| {
            let setup = self.monitor.setup();
            let (bundle, report) = sessions::place_session(&setup, &session, moved, &file)?;
            self.place_transcript(link, &session, &bundle)?;
            Ok(report)
        });
        // A file that stays is replaced by the next one.
        let _gone = std::fs::remove_file(&file);
        let report = placed?;
        fault::reach(FaultPoint::MovePlaced);
        if link.finish_placing(moved, &report)? {
            tracing::info!(session = %moved.session, "a session is placed");
        }
        Ok(())
    }

    /// Collects a bundle in a file.
    fn fetch(
        &self,
        link: &HostLink,
        moved: &SessionMoveRow,
        path: &Utf8Path,
    ) -> Result<(), MoveFault> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(later(&error)),
            _ => {}
        }
        // A new file, so no link is followed.
        let file = File::options().write(true).create_new(true).mode(0o600).open(path);
        let mut file = file.map_err(|error| later(&error))?;
        let attempt = moved.attempt.unwrap_or_default();
        let mut total = 0;
        for number in 0..moved.parts {
            if self.is_stopped.load(Ordering::Relaxed) {
                return Err(MoveFault::Over);
            }
            let Some(bytes) = link.move_part(attempt, number)? else {
                return Err(MoveFault::Refused("a part of the bundle is missing".to_owned()));
            };
            total += bytes.len() as u64;
            check_size(total)?;
            file.write_all(&bytes).map_err(|error| later(&error))?;
        }
        Ok(())
    }

    /// Completes this host's copy of the session's transcript.
    fn place_transcript(
        &self,
        link: &HostLink,
        session: &Session,
        bundle: &SessionBundle,
    ) -> Result<(), MoveFault> {
        let Some(path) = self.fleet.dir.session_log_path(None, session) else {
            return Err(MoveFault::Refused("its transcript has no place here".to_owned()));
        };
        let mut lines = BufReader::new(bundle.events().map_err(|error| later(&error))?);
        let mut start = 0;
        let mut is_more = true;
        while is_more {
            let mut bytes = Vec::new();
            while is_more && bytes.len() < MOVE_PART_BYTES {
                let read = lines.read_until(b'\n', &mut bytes);
                is_more = read.map_err(|error| later(&error))? > 0;
            }
            let length = bytes.len() as u64;
            if length > 0 {
                append_missing_lines(&path, start, bytes).map_err(MoveFault::Later)?;
            }
            start += length;
        }
        self.check_length(link, session, &path)
    }

    /// Checks that this host has all rows on record, so that it can continue the transcript.
    fn check_length(
        &self,
        link: &HostLink,
        session: &Session,
        path: &Utf8Path,
    ) -> Result<(), MoveFault> {
        let relative: Utf8PathBuf = session.log_path.clone().unwrap_or_default();
        let Some(owner) = link.file_owner(relative.as_str())? else { return Ok(()) };
        let length = path.symlink_metadata().map_or(0, |found| found.len());
        match length == owner.length {
            true => Ok(()),
            false => Err(MoveFault::Later(format!(
                "its transcript has {length} bytes here and {} on record",
                owner.length
            ))),
        }
    }
}

fn check_size(bytes: u64) -> Result<(), MoveFault> {
    match bytes > SESSION_MOVE_BYTES_MAX {
        true => Err(MoveFault::Refused(format!(
            "the session has more than {SESSION_MOVE_BYTES_MAX} bytes"
        ))),
        false => Ok(()),
    }
}

/// Writer that ships what is written in parts.
struct PartSender<'s> {
    link: &'s HostLink,
    moved: &'s SessionMoveRow,
    is_stopped: &'s AtomicBool,
    attempt: Uuid,
    parts: i64,
    bytes: u64,
    buffer: Vec<u8>,
    /// Reason that a part was not shipped.
    fault: Option<MoveFault>,
}

impl PartSender<'_> {
    /// Ships what is in the buffer.
    fn send(&mut self) -> Result<(), MoveFault> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        if self.is_stopped.load(Ordering::Relaxed) {
            return Err(MoveFault::Over);
        }
        check_size(self.bytes + self.buffer.len() as u64)?;
        let (moved, attempt, parts) = (self.moved, self.attempt, self.parts);
        if !self.link.send_move_part(moved, attempt, parts, &self.buffer)? {
            return Err(MoveFault::Over);
        }
        fault::reach(FaultPoint::MovePartShipped);
        self.bytes += self.buffer.len() as u64;
        self.parts += 1;
        self.buffer.clear();
        Ok(())
    }
}

impl Write for PartSender<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(MOVE_PART_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..taken]);
        if self.buffer.len() == MOVE_PART_BYTES
            && let Err(fault) = self.send()
        {
            // The caller can only return an IO error, so the real one is stored.
            self.fault = Some(fault);
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
