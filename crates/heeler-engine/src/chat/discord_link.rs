//! Link to Discord: its gateway.
//!
//! Discord does not wait for acknowledgements. A lost connection is resumed after the last event that
//! is recorded, so the gateway delivers the others again. If the session cannot be resumed, the
//! messages of the gap are read from the channels. Start at [`run_discord`].

use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use heeler_config::{ActivityType, CommandScope, PresenceConfig};
use heeler_connect::{
    ChatPlatform, ChatPolicy, ChatSocket, DiscordBot, DiscordCommands, DiscordDirectory,
    DiscordDispatch, DiscordFrame, DiscordUser, SocketInput,
};
use serde_json::{Value as Json, json};

use super::credential::{ChatCredential, account_policies};
use super::discord_catch_up::{DiscordCatchUp, DiscordGap, add_earlier, find_channel};
use super::link_worker::{
    EventReply, LinkTasks, LinkWorker, PAUSE_MAX, done_message, wait_for_record,
};
use crate::command::{CommandReply, DaemonCommandError};
use crate::fault::{self, FaultPoint};
use crate::setup::DaemonSetup;

/// Longest wait for a frame.
const IDLE_WAIT: Duration = Duration::from_millis(200);

/// Wait for a frame while replies are awaited.
const BUSY_WAIT: Duration = Duration::from_millis(3);

/// Time in which the gateway must greet and accept the session.
const GREETING_MAX: Duration = Duration::from_secs(20);

/// Time in which the gateway must acknowledge a heartbeat. Heartbeats are 41 s apart, so a dead connection
/// is noticed within 60 s.
const BEAT_ANSWER_MAX: Duration = Duration::from_secs(15);

/// Pause after a refusal that only a person can end. Each attempt counts against a daily limit.
const REFUSED_PAUSE: Duration = Duration::from_secs(300);

/// Sessions of the daily limit that are left for people.
const STARTS_KEPT: u64 = 20;

/// Failed attempts after which the address of the session is not used any more.
const RESUMES_MAX: u32 = 5;

/// Close code with which a session can be resumed.
const RESUMABLE: u16 = 4000;

/// Receives events until the link is stopped.
pub(super) fn run_discord(mut worker: LinkWorker, credential: &ChatCredential) {
    let ChatCredential { api_url, token, variable, account, .. } = credential;
    // The form of the token was checked with the credential.
    let Ok(bot) = DiscordBot::new(api_url, token, variable) else { return };
    let own = loop {
        if worker.is_stopped() {
            return;
        }
        match bot.own_user() {
            Ok(own) => break own,
            Err(error) => worker.pause_after(&error),
        }
    };
    let directory = DiscordDirectory::new(&own.id);
    let tasks = match LinkTasks::new() {
        Ok(tasks) => tasks,
        Err(error) => return worker.note_problem(format!("cannot start a thread: {error}")),
    };
    let link = DiscordLink {
        worker,
        tasks,
        failed_resumes: 0,
        bot,
        own,
        account: account.clone(),
        directory,
        session: None,
        received: None,
        recorded: None,
        pending: Vec::new(),
        gap: None,
        offered_for: None,
    };
    link.run();
}

struct DiscordLink {
    worker: LinkWorker,
    tasks: LinkTasks,
    /// Attempts to resume since the last contact.
    failed_resumes: u32,
    bot: DiscordBot,
    own: DiscordUser,
    account: String,
    directory: DiscordDirectory,
    session: Option<GatewaySession>,
    /// Number of the last event that was received.
    received: Option<u64>,
    /// Number of the last event before which all are recorded.
    recorded: Option<u64>,
    pending: Vec<PendingEvent>,
    /// Set while there is no session: the gap, which is on record.
    gap: Option<DiscordGap>,
    /// Config of which the commands were registered.
    offered_for: Option<Arc<DaemonSetup>>,
}

struct GatewaySession {
    id: String,
    resume_url: String,
}

struct PendingEvent {
    seq: u64,
    reply: EventReply,
    /// ID by which a click or command is answered.
    callback: Option<String>,
}

/// End of a connection.
enum ConnectionEnd {
    /// The session can be resumed at once.
    Resume(String),
    /// A session must be started, after a pause.
    Restart { reason: String, pause: Duration },
}

/// A connection and its heartbeat.
struct GatewayConnection {
    socket: ChatSocket,
    interval: Duration,
    beat_at: Instant,
    /// Time of the last heartbeat, until it is acknowledged.
    beat_sent_at: Option<Instant>,
    opened_at: Instant,
    is_ready: bool,
}

impl DiscordLink {
    fn run(mut self) {
        while !self.worker.is_stopped() {
            let end = match self.connect() {
                Ok(mut connection) => {
                    let end = self.serve(&mut connection);
                    // Any other code ends the session.
                    connection.socket.close(RESUMABLE);
                    end
                }
                Err(end) => end,
            };
            self.finish_pending();
            if self.worker.is_stopped() {
                return;
            }
            match end {
                ConnectionEnd::Resume(reason) => {
                    self.failed_resumes = self.failed_resumes.saturating_add(1);
                    self.worker.note_problem(reason);
                    self.worker.rest();
                }
                ConnectionEnd::Restart { reason, pause } => {
                    self.session = None;
                    self.worker.note_problem(reason);
                    self.worker.rest_for(pause);
                }
            }
        }
    }

    /// Opens a connection and starts or resumes a session.
    fn connect(&mut self) -> Result<GatewayConnection, ConnectionEnd> {
        let address = match &self.session {
            Some(session) if self.failed_resumes <= RESUMES_MAX => session.resume_url.clone(),
            // The address of the session may be gone; the session may still exist.
            Some(_) => self.gateway_address()?,
            None => {
                self.begin_gap()?;
                self.gateway_address()?
            }
        };
        let address = format!("{}/?v=10&encoding=json", address.trim_end_matches('/'));
        let mut socket = ChatSocket::connect(&address).map_err(ConnectionEnd::Resume)?;
        let interval = greeting(&mut socket)?;
        let first = match (&self.session, self.recorded) {
            (Some(session), Some(seq)) => self.bot.resume_frame(&session.id, seq),
            _ => {
                self.session = None;
                self.bot.identify_frame(self.presence().as_ref())
            }
        };
        socket.send_text(first).map_err(ConnectionEnd::Resume)?;
        let now = Instant::now();
        // Bots that begin at the same time must not beat at the same time.
        let beat_at = now + interval.mul_f64(fastrand::f64());
        Ok(GatewayConnection {
            socket,
            interval,
            beat_at,
            beat_sent_at: None,
            opened_at: now,
            is_ready: false,
        })
    }

    /// Records the gap, before a session exists.
    fn begin_gap(&mut self) -> Result<(), ConnectionEnd> {
        if self.gap.is_none() {
            let gap = DiscordGap::begin(&self.worker, &self.account).map_err(|reason| {
                let reason = format!("cannot record the time without a session: {reason}");
                ConnectionEnd::Restart { reason, pause: PAUSE_MAX }
            })?;
            self.gap = Some(gap);
        }
        Ok(())
    }

    fn gateway_address(&mut self) -> Result<String, ConnectionEnd> {
        let gateway = self.bot.gateway().map_err(|error| {
            let pause = self.worker.next_pause(&error);
            ConnectionEnd::Restart { reason: error.to_string(), pause }
        })?;
        if gateway.starts_left < STARTS_KEPT {
            let reason = format!(
                "Discord allows {} more sessions today, so no session is started",
                gateway.starts_left
            );
            let pause = gateway.reset_after.clamp(PAUSE_MAX, Duration::from_secs(24 * 3600));
            return Err(ConnectionEnd::Restart { reason, pause });
        }
        Ok(gateway.url)
    }

    /// Returns the activity that the bot shows: that of the first agent with one.
    fn presence(&self) -> Option<Json> {
        let setup = self.worker.setup();
        let policies =
            account_policies(&setup.loaded, &setup.env, ChatPlatform::Discord, &self.account);
        let presences = policies
            .iter()
            .filter_map(|policy| policy.agent.chat.as_ref()?.discord.as_ref()?.presence.as_ref());
        presences.filter_map(presence_data).next()
    }

    /// Serves a connection until it ends.
    fn serve(&mut self, connection: &mut GatewayConnection) -> ConnectionEnd {
        while !self.worker.is_stopped() {
            if let Err(end) = self.beat(connection) {
                return end;
            }
            let until_beat = connection.beat_at.saturating_duration_since(Instant::now());
            let most = if self.pending.is_empty() { IDLE_WAIT } else { BUSY_WAIT };
            match connection.socket.receive(until_beat.min(most)) {
                SocketInput::Text(text) => {
                    if let Err(end) = self.take_frame(connection, &text) {
                        return end;
                    }
                }
                SocketInput::Contact | SocketInput::Silence => {}
                SocketInput::Closed { code, reason } => return self.closed(code, reason),
            }
            self.settle();
            if connection.is_ready {
                self.offer_commands();
            }
        }
        ConnectionEnd::Resume(String::new())
    }

    /// Sends a heartbeat if it is due. The one before must have been acknowledged.
    fn beat(&self, connection: &mut GatewayConnection) -> Result<(), ConnectionEnd> {
        if !connection.is_ready && connection.opened_at.elapsed() > GREETING_MAX {
            let reason = "Discord does not accept the session in time".to_owned();
            return Err(ConnectionEnd::Resume(reason));
        }
        let is_late = |sent_at: Instant| sent_at.elapsed() > BEAT_ANSWER_MAX;
        let is_due = Instant::now() >= connection.beat_at;
        if connection.beat_sent_at.is_some_and(|sent_at| is_due || is_late(sent_at)) {
            let reason = "Discord gives no sign of life".to_owned();
            return Err(ConnectionEnd::Resume(reason));
        }
        if !is_due {
            return Ok(());
        }
        self.send_beat(connection)?;
        connection.beat_sent_at = Some(Instant::now());
        connection.beat_at = Instant::now() + connection.interval;
        Ok(())
    }

    fn send_beat(&self, connection: &mut GatewayConnection) -> Result<(), ConnectionEnd> {
        let frame = DiscordFrame::heartbeat(self.received);
        connection.socket.send_text(frame).map_err(ConnectionEnd::Resume)
    }

    fn take_frame(
        &mut self,
        connection: &mut GatewayConnection,
        text: &str,
    ) -> Result<(), ConnectionEnd> {
        match DiscordFrame::parse(text) {
            DiscordFrame::HeartbeatAck => connection.beat_sent_at = None,
            DiscordFrame::HeartbeatRequest => self.send_beat(connection)?,
            DiscordFrame::Reconnect => {
                let reason = "Discord wants a new connection".to_owned();
                return Err(ConnectionEnd::Resume(reason));
            }
            DiscordFrame::InvalidSession { may_resume: true } => {
                let reason = "Discord refused the session for now".to_owned();
                return Err(ConnectionEnd::Resume(reason));
            }
            DiscordFrame::InvalidSession { may_resume: false } => {
                // Discord wants a pause of one to five seconds.
                let pause = Duration::from_millis(fastrand::u64(1_000..5_000));
                let reason = "Discord does not know the session any more".to_owned();
                return Err(ConnectionEnd::Restart { reason, pause });
            }
            DiscordFrame::Dispatch { seq, event } => {
                self.received = Some(seq);
                self.take_event(connection, seq, event);
            }
            DiscordFrame::Hello { .. } | DiscordFrame::Other => {}
        }
        Ok(())
    }

    fn take_event(&mut self, connection: &mut GatewayConnection, seq: u64, event: DiscordDispatch) {
        match event {
            DiscordDispatch::Ready { session, resume_url } => {
                self.session = Some(GatewaySession { id: session, resume_url });
                connection.is_ready = true;
                self.failed_resumes = 0;
                self.worker.note_contact();
                self.catch_up();
            }
            DiscordDispatch::Resumed => {
                connection.is_ready = true;
                self.failed_resumes = 0;
                self.worker.note_contact();
            }
            DiscordDispatch::Directory(data) => self.directory.add(&data),
            DiscordDispatch::Message(message) => {
                find_channel(&self.bot, &mut self.directory, &message);
                if let Some(mut event) = self.directory.message_event(&message) {
                    add_earlier(&self.worker, &self.bot, &self.directory, &mut event);
                    let reply = self.worker.pass_event(event);
                    self.pending.push(PendingEvent { seq, reply, callback: None });
                }
            }
            DiscordDispatch::Interaction(interaction) => {
                find_channel(&self.bot, &mut self.directory, &interaction);
                if let Some(event) = self.directory.interaction_event(&interaction) {
                    let callback = event.content.callback().map(str::to_owned);
                    let reply = self.worker.pass_event(event);
                    self.pending.push(PendingEvent { seq, reply, callback });
                }
            }
            DiscordDispatch::Other => {}
        }
        if self.pending.is_empty() {
            self.recorded = Some(seq);
        }
    }

    /// Reads the messages of the time without a session, on another thread.
    fn catch_up(&mut self) {
        let Some(gap) = self.gap.take() else { return };
        let catch_up = DiscordCatchUp {
            worker: self.worker.clone(),
            bot: self.bot.clone(),
            account: self.account.clone(),
            directory: DiscordDirectory::new(&self.own.id),
        };
        let thread = std::thread::Builder::new().name("heeler-catch-up".to_owned());
        if let Err(error) = thread.spawn(move || catch_up.run(&gap)) {
            self.worker.note_limitation(format!("cannot start a thread: {error}"));
        }
    }

    /// Registers the commands of a changed config, on another thread.
    fn offer_commands(&mut self) {
        let setup = self.worker.setup();
        if self.offered_for.as_ref().is_some_and(|offered| Arc::ptr_eq(offered, &setup)) {
            return;
        }
        let commands = offered_commands(&account_policies(
            &setup.loaded,
            &setup.env,
            ChatPlatform::Discord,
            &self.account,
        ));
        self.offered_for = Some(setup);
        let (bot, worker) = (self.bot.clone(), self.worker.clone());
        let register = move || match bot.register_commands(&commands) {
            Ok(is_new) => tracing::debug!(is_new, "the commands of the bot are registered"),
            // Commands are written as words too.
            Err(error) => worker.note_limitation(error.to_string()),
        };
        let thread = std::thread::Builder::new().name("heeler-commands".to_owned());
        if let Err(error) = thread.spawn(register) {
            self.worker.note_limitation(format!("cannot start a thread: {error}"));
        }
    }

    /// Notes which events are recorded.
    fn settle(&mut self) {
        let mut settled = 0;
        for place in 0..self.pending.len() {
            let answer = match self.pending[place].reply.try_recv() {
                Err(TryRecvError::Empty) => break,
                Ok(answer) => answer,
                Err(TryRecvError::Disconnected) => wait_for_record(&self.pending[place].reply)
                    .map(|message| CommandReply::Done { message }),
            };
            settled += 1;
            self.settle_event(place, answer);
        }
        if settled > 0 {
            fault::reach(FaultPoint::ChatRecorded);
            self.pending.drain(..settled);
            if self.pending.is_empty() {
                self.recorded = self.received;
            }
        }
    }

    fn settle_event(&mut self, place: usize, answer: Result<CommandReply, DaemonCommandError>) {
        let PendingEvent { seq, callback, .. } = &self.pending[place];
        match answer.map(done_message) {
            Ok(text) => {
                self.recorded = Some(*seq);
                if let Some(callback) = callback.clone() {
                    let bot = self.bot.clone();
                    self.tasks.start(move || {
                        // Only the person's screen waits for it.
                        if let Err(error) = bot.answer_click(&callback, &text) {
                            tracing::debug!(%error, "a click was not answered");
                        }
                    });
                }
            }
            Err(refused) => {
                let problem = format!("a message is not recorded yet: {}", refused.message);
                self.worker.note_limitation(problem);
            }
        }
    }

    /// Waits for the events of a connection that has ended, so that a resumed one continues after
    /// them.
    fn finish_pending(&mut self) {
        for event in std::mem::take(&mut self.pending) {
            match wait_for_record(&event.reply) {
                Ok(_) => self.recorded = Some(event.seq),
                // Discord delivers it again.
                Err(_) => break,
            }
        }
    }

    /// Returns what follows from a close code.
    fn closed(&self, code: Option<u16>, reason: String) -> ConnectionEnd {
        let refused = |reason: &str| ConnectionEnd::Restart {
            reason: reason.to_owned(),
            pause: REFUSED_PAUSE,
        };
        match code {
            Some(4004) => refused(
                "Discord does not accept the token: create a new one in the Developer Portal",
            ),
            Some(4014) => refused(
                "Discord refused the session: turn on \"Message Content Intent\" of the bot in the \
                 Developer Portal",
            ),
            Some(4013) => refused("Discord refused the session: the bot asks for unknown events"),
            Some(4010 | 4011) => {
                refused("Discord refused the session: the bot is in too many servers")
            }
            Some(4012) => refused("Discord does not offer this version of its gateway any more"),
            // The session is over; the next one begins at once.
            Some(4007 | 4009 | 1000 | 1001) => {
                ConnectionEnd::Restart { reason, pause: Duration::from_secs(1) }
            }
            _ => ConnectionEnd::Resume(reason),
        }
    }
}

/// Waits for the first frame; returns the interval of heartbeats.
fn greeting(socket: &mut ChatSocket) -> Result<Duration, ConnectionEnd> {
    let until = Instant::now() + GREETING_MAX;
    while Instant::now() < until {
        match socket.receive(IDLE_WAIT) {
            SocketInput::Text(text) => {
                if let DiscordFrame::Hello { heartbeat_ms } = DiscordFrame::parse(&text) {
                    return Ok(Duration::from_millis(heartbeat_ms));
                }
            }
            SocketInput::Closed { reason, .. } => return Err(ConnectionEnd::Resume(reason)),
            SocketInput::Contact | SocketInput::Silence => {}
        }
    }
    Err(ConnectionEnd::Resume("Discord does not greet".to_owned()))
}

/// Returns the commands that a bot offers for its agents.
fn offered_commands(policies: &[ChatPolicy<'_>]) -> DiscordCommands {
    let discords =
        policies.iter().filter_map(|policy| policy.agent.chat.as_ref()?.discord.as_ref());
    let agents = policies.iter().map(|policy| policy.agent.name.to_string()).collect();
    let mut commands = DiscordCommands { agents, ..DiscordCommands::default() };
    for discord in discords {
        discord.skills.iter().for_each(|skill| commands.add_skill(skill));
        let scope = discord.command_registration.as_ref();
        let server = scope.filter(|it| it.scope == CommandScope::Guild);
        let server = server.and_then(|it| it.guild_id.clone());
        commands.server = commands.server.or(server);
    }
    commands
}

fn presence_data(presence: &PresenceConfig) -> Option<Json> {
    let message = presence.activity_message.as_ref()?;
    let kind = match presence.activity_type.unwrap_or(ActivityType::Playing) {
        ActivityType::Playing => 0,
        ActivityType::Listening => 2,
        ActivityType::Watching => 3,
        ActivityType::Competing => 5,
    };
    let activity = json!({"name": message, "type": kind});
    Some(json!({"since": null, "activities": [activity], "status": "online", "afk": false}))
}
