//! Link to Slack: Socket Mode.
//!
//! Slack delivers each envelope to one socket, and again if it is not acknowledged within 3 s. An
//! envelope is acknowledged after the commit. Before Slack closes a socket, a second one is opened, and
//! the first is served until it is closed. After a time without any socket, the messages of that time
//! are read from the channels. Start at [`run_slack`].

use std::sync::mpsc::{
    Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel,
};
use std::time::{Duration, Instant};

use heeler_connect::{
    ChatApiError, ChatContent, ChatEvent, ChatPlace, ChatSocket, SlackBot, SlackFrame, SlackUser,
    SocketInput,
};

use super::credential::ChatCredential;
use super::link_worker::{EventReply, LinkTasks, LinkWorker, PAUSE_MAX, wait_for_record};
use super::slack_catch_up::SlackGap;
use super::slack_event_reader::SlackEventReader;
use crate::fault::{self, FaultPoint};

/// Wait for a frame on the only socket while nothing else is to do.
const IDLE_WAIT: Duration = Duration::from_millis(200);

/// Wait for a reply, or for a frame while several sockets are looked at in turn.
const BUSY_WAIT: Duration = Duration::from_millis(3);

/// Silence after which a sign of life is asked for.
const PING_AFTER: Duration = Duration::from_secs(10);

/// Silence after which a socket is given up. Slack sends pings more often.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Time for which a socket that Slack has announced to close is served.
const LEAVING_MAX: Duration = Duration::from_secs(60);

/// Most envelopes of a socket that wait for their commit. Slack keeps the others.
const PENDING_MAX: usize = 256;

/// Receives envelopes until the link is stopped.
pub(super) fn run_slack(mut worker: LinkWorker, credential: &ChatCredential) {
    let bot = credential.slack_bot();
    let Some(own) = ask_own_user(&mut worker, &bot) else { return };
    let reader = SlackEventReader::new(&bot, own, &credential.account);
    let (gaps, tasks) = match (reader.start_catch_up(&worker), LinkTasks::new()) {
        (Ok(gaps), Ok(tasks)) => (gaps, tasks),
        (Err(error), _) | (_, Err(error)) => {
            worker.note_problem(format!("cannot start a thread: {error}"));
            return;
        }
    };
    let open_at = Instant::now();
    let link = SlackLink {
        worker,
        bot,
        reader,
        gaps,
        tasks,
        sockets: Vec::new(),
        opening: None,
        open_at,
        gap: None,
    };
    link.run();
}

/// Asks for the app's own user until Slack answers; returns `None` if the link is stopped.
pub(super) fn ask_own_user(worker: &mut LinkWorker, bot: &SlackBot) -> Option<SlackUser> {
    while !worker.is_stopped() {
        match bot.own_user() {
            Ok(own) => return Some(own),
            Err(error) => worker.pause_after(&error),
        }
    }
    None
}

struct SlackLink {
    worker: LinkWorker,
    bot: SlackBot,
    reader: SlackEventReader,
    /// Gaps that are to be read.
    gaps: SyncSender<SlackGap>,
    tasks: LinkTasks,
    sockets: Vec<SlackSocket>,
    /// A socket that is being opened on another thread.
    opening: Option<Receiver<Result<ChatSocket, ChatApiError>>>,
    /// Time from which the next socket may be opened.
    open_at: Instant,
    /// A gap that is on record and will be read. It begins before the first socket is opened.
    gap: Option<SlackGap>,
}

struct SlackSocket {
    socket: ChatSocket,
    /// True once Slack has greeted.
    is_ready: bool,
    /// Set if Slack will close it.
    leaving_since: Option<Instant>,
    pinged_at: Instant,
    pending: Vec<PendingEnvelope>,
    /// Set if it has ended.
    end: Option<String>,
}

/// An envelope with an event that was passed to the dispatcher.
struct PendingEnvelope {
    id: String,
    reply: EventReply,
    answer: EnvelopeAnswer,
}

/// Way of the short answer to an event.
enum EnvelopeAnswer {
    /// A message has none.
    None,
    /// The answer to a click, for this person at this place.
    Whisper(ChatPlace, String),
    /// The answer to a command is a part of the acknowledgement.
    Acknowledgement,
}

impl EnvelopeAnswer {
    fn of_event(event: &ChatEvent) -> EnvelopeAnswer {
        match &event.content {
            ChatContent::Click { .. } => {
                EnvelopeAnswer::Whisper(event.place.clone(), event.sender.id.clone())
            }
            ChatContent::Command { .. } => EnvelopeAnswer::Acknowledgement,
            ChatContent::Message { .. } | ChatContent::Wordless { .. } => EnvelopeAnswer::None,
        }
    }
}

impl SlackLink {
    fn run(mut self) {
        while !self.worker.is_stopped() {
            self.open_socket();
            self.take_opened();
            let is_busy = self.opening.is_some() || self.sockets.len() > 1;
            let wait = if is_busy { BUSY_WAIT } else { IDLE_WAIT };
            if self.sockets.is_empty() {
                self.worker.rest_for(BUSY_WAIT);
            }
            for place in 0..self.sockets.len() {
                self.serve(place, wait);
                self.settle(place);
                self.check_life(place);
            }
            self.drop_ended();
        }
        for socket in self.sockets {
            socket.socket.close(1000);
        }
    }

    fn has_lasting_socket(&self) -> bool {
        self.sockets.iter().any(|it| it.leaving_since.is_none())
    }

    /// Begins to open a socket if none will last.
    fn open_socket(&mut self) {
        if self.has_lasting_socket() || self.opening.is_some() || Instant::now() < self.open_at {
            return;
        }
        if !self.sockets.iter().any(|it| it.is_ready) && self.gap.is_none() {
            // Before the socket exists: later messages must not hide those of the gap.
            match SlackGap::begin(&self.worker, self.reader.account()) {
                Ok(gap) => self.gap = Some(gap),
                Err(reason) => {
                    self.worker
                        .note_problem(format!("cannot record the time without a socket: {reason}"));
                    self.open_at = Instant::now() + PAUSE_MAX;
                    return;
                }
            }
        }
        let (sender, receiver) = sync_channel(1);
        let bot = self.bot.clone();
        // Opening takes seconds, in which another socket is served.
        let opener = std::thread::Builder::new().name("heeler-socket".to_owned());
        let started = opener.spawn(move || {
            let opened = bot.open_socket().and_then(|address| {
                ChatSocket::connect(&address).map_err(|reason| ChatApiError::Unreachable {
                    attempt: "open a socket",
                    reason,
                })
            });
            // The link may have ended.
            drop(sender.send(opened));
        });
        match started {
            Ok(_) => self.opening = Some(receiver),
            Err(error) => {
                self.worker.note_problem(format!("cannot start a thread: {error}"));
                self.open_at = Instant::now() + PAUSE_MAX;
            }
        }
    }

    fn take_opened(&mut self) {
        let Some(opening) = &self.opening else { return };
        let opened = match opening.try_recv() {
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Disconnected) => None,
            Ok(opened) => Some(opened),
        };
        self.opening = None;
        match opened {
            Some(Ok(socket)) => self.sockets.push(SlackSocket {
                socket,
                is_ready: false,
                leaving_since: None,
                pinged_at: Instant::now(),
                pending: Vec::new(),
                end: None,
            }),
            Some(Err(error)) => self.postpone_opening(&error),
            None => self.open_at = Instant::now() + PAUSE_MAX,
        }
    }

    fn postpone_opening(&mut self, error: &ChatApiError) {
        self.open_at = Instant::now() + self.worker.next_pause(error);
        // A socket that is served keeps the link connected.
        match self.sockets.iter().any(|it| it.is_ready) {
            true => self.worker.note_limitation(error.to_string()),
            false => self.worker.note_problem(error.to_string()),
        }
    }

    /// Reads frames of a socket. Waits for the first one, unless replies are awaited.
    fn serve(&mut self, place: usize, wait: Duration) {
        let mut wait = if self.sockets[place].pending.is_empty() { wait } else { Duration::ZERO };
        while self.sockets[place].pending.len() < PENDING_MAX {
            match self.sockets[place].socket.receive(wait) {
                SocketInput::Text(text) => self.take_frame(place, &text),
                SocketInput::Contact => {}
                SocketInput::Silence => return,
                SocketInput::Closed { reason, .. } => {
                    self.sockets[place].end = Some(reason);
                    return;
                }
            }
            // The first frame may come late; those behind it are here already.
            wait = Duration::ZERO;
        }
    }

    fn take_frame(&mut self, place: usize, text: &str) {
        match self.reader.parse_frame(text) {
            SlackFrame::Hello => {
                self.sockets[place].is_ready = true;
                self.worker.note_contact();
                if let Some(gap) = self.gap.take()
                    && let Err(TrySendError::Full(gap)) = self.gaps.try_send(gap)
                {
                    self.gap = Some(gap);
                }
            }
            SlackFrame::Disconnect { reason } => self.take_disconnect(place, &reason),
            SlackFrame::Envelope { id, event: Some(event), may_lack_files } => {
                let mut event = *event;
                self.reader.complete(&self.worker, &mut event, may_lack_files);
                let answer = EnvelopeAnswer::of_event(&event);
                let reply = self.worker.pass_event(event);
                self.sockets[place].pending.push(PendingEnvelope { id, reply, answer });
            }
            SlackFrame::Envelope { id, event: None, .. } => self.acknowledge(place, &id),
            SlackFrame::Other => {}
        }
    }

    fn take_disconnect(&mut self, place: usize, reason: &str) {
        self.sockets[place].leaving_since.get_or_insert_with(Instant::now);
        let problem = match reason {
            "link_disabled" => {
                "Slack has closed the socket: turn on Socket Mode in the settings of the app"
            }
            "too_many_websockets" => {
                "Slack refused the socket: other programs use the same app token"
            }
            // A routine change of sockets.
            _ => return,
        };
        self.sockets[place].end = Some(problem.to_owned());
        self.open_at = Instant::now() + PAUSE_MAX;
    }

    /// Acknowledges the envelopes with recorded events. Waits a moment for the first one.
    fn settle(&mut self, place: usize) {
        let pending = std::mem::take(&mut self.sockets[place].pending);
        let mut is_recorded = false;
        let mut wait = BUSY_WAIT;
        for envelope in pending {
            let answer = match envelope.reply.recv_timeout(std::mem::take(&mut wait)) {
                Err(RecvTimeoutError::Timeout) => {
                    self.sockets[place].pending.push(envelope);
                    continue;
                }
                Ok(answer) => answer.map(super::link_worker::done_message),
                Err(RecvTimeoutError::Disconnected) => wait_for_record(&envelope.reply),
            };
            if !is_recorded {
                is_recorded = true;
                fault::reach(FaultPoint::ChatRecorded);
            }
            match answer {
                Ok(text) => self.finish(place, envelope, text),
                // Slack delivers it again.
                Err(refused) => self
                    .worker
                    .note_limitation(format!("a message is not recorded yet: {}", refused.message)),
            }
        }
    }

    /// Acknowledges an envelope with a recorded event, and answers the person.
    fn finish(&mut self, place: usize, envelope: PendingEnvelope, text: String) {
        let PendingEnvelope { id, answer, .. } = envelope;
        match answer {
            EnvelopeAnswer::Acknowledgement if !text.is_empty() => {
                self.send(place, SlackFrame::command_answer(&id, &text));
            }
            EnvelopeAnswer::Whisper(chat, user) if !text.is_empty() => {
                self.acknowledge(place, &id);
                let bot = self.bot.clone();
                self.tasks.start(move || {
                    // Only the person's screen waits for it.
                    if let Err(error) = bot.whisper(&chat, &user, &text) {
                        tracing::debug!(%error, "a click was not answered");
                    }
                });
            }
            _ => self.acknowledge(place, &id),
        }
    }

    fn acknowledge(&mut self, place: usize, envelope: &str) {
        self.send(place, SlackFrame::acknowledgement(envelope));
    }

    fn send(&mut self, place: usize, frame: String) {
        let socket = &mut self.sockets[place];
        if let Err(reason) = socket.socket.send_text(frame) {
            socket.end = Some(reason);
        }
    }

    fn check_life(&mut self, place: usize) {
        let socket = &mut self.sockets[place];
        let silence = socket.socket.heard_at().elapsed();
        if silence > SILENCE_MAX {
            socket.end = Some("Slack gives no sign of life".to_owned());
        } else if silence > PING_AFTER && socket.pinged_at.elapsed() > PING_AFTER {
            socket.pinged_at = Instant::now();
            if let Err(reason) = socket.socket.ping() {
                socket.end = Some(reason);
            }
        }
        let is_over = socket.leaving_since.is_some_and(|since| since.elapsed() > LEAVING_MAX);
        if is_over && socket.end.is_none() {
            socket.end = Some("the socket was replaced".to_owned());
        }
    }

    /// Removes the sockets that have ended. Their envelopes are delivered again.
    fn drop_ended(&mut self) {
        let ended: Vec<String> =
            self.sockets.iter_mut().filter_map(|socket| socket.end.clone()).collect();
        self.sockets.retain(|socket| socket.end.is_none());
        let Some(reason) = ended.into_iter().next_back() else { return };
        if !self.sockets.iter().any(|it| it.is_ready) {
            self.worker.note_problem(reason);
        }
    }
}
