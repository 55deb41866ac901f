//! A fake Slack: the Web API and Socket Mode over a small model.
//!
//! It keeps the semantics that matter for an app: the address of a socket works once, an event goes to
//! one of the sockets and again to another if it is not acknowledged in time, after four attempts it is
//! only in the history, a mention is delivered as two events, clicks are delivered once, blocks have
//! limits, and a stream has a recipient and cannot be changed before it ends. Start at [`FakeSlack`].

mod api;
mod delivery;
mod stream;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use serde_json::{Value as Json, json};

pub use self::delivery::SlackHttpCall;
use self::delivery::{CalledApp, SlackDelivery};
use crate::WAIT_MAX;
use crate::fake_files::FakeFiles;
use crate::fake_server::FakeServer;
use crate::fake_sockets::FakeSockets;

/// Scopes of the bot token, unless a test sets others.
const SCOPES: &str =
    "app_mentions:read,chat:write,files:read,im:history,channels:history,groups:history,users:read";

/// ID of the app's user.
const BOT_USER: &str = "UBOT";

/// Time in which Slack wants an acknowledgement.
const ACK_TIME: Duration = Duration::from_secs(3);

/// A running server; dropping it stops it.
#[derive(Debug)]
pub struct FakeSlack {
    server: FakeServer,
    shared: Arc<SharedSlack>,
    stop: Arc<AtomicBool>,
    deliverer: Option<JoinHandle<()>>,
    _sockets: FakeSockets,
}

/// A message that the app has posted.
#[derive(Debug, Clone, PartialEq)]
pub struct SlackPost {
    pub ts: String,
    pub channel: String,
    pub thread: Option<String>,
    /// Visible text.
    pub text: String,
    /// Text as it was sent, with Slack's markup.
    pub raw: String,
    /// Values of the buttons.
    pub buttons: Vec<String>,
    /// True if the text was changed after it was posted.
    pub is_edited: bool,
    /// True if it is a stream that has not ended.
    pub is_open: bool,
    /// Content of the file in it.
    pub file: Option<String>,
}

/// A failure of the next call of a method.
#[derive(Debug, Clone)]
pub struct SlackFailure {
    pub method: &'static str,
    pub status: u16,
    pub error: &'static str,
    pub retry_after: Option<u64>,
    /// True if the call is executed before it fails, as when a response is lost.
    pub is_executed: bool,
}

#[derive(Debug)]
struct SharedSlack {
    state: Mutex<SlackState>,
    changed: Condvar,
}

#[derive(Debug)]
struct SlackState {
    bot_token: String,
    app_token: String,
    socket_url: String,
    http_url: String,
    /// Files that are being posted: name and content.
    uploads: BTreeMap<String, (String, Option<String>)>,
    ack_time: Duration,
    started_at: i64,
    began: Instant,
    last_id: u64,
    tickets: BTreeSet<String>,
    /// Sockets by number.
    sockets: BTreeMap<u64, SlackSocketState>,
    deliveries: Vec<SlackDelivery>,
    /// Times at which envelopes with messages of people were sent that are not acknowledged.
    sent: BTreeMap<String, Instant>,
    /// Times from the sending of such an envelope to its acknowledgement.
    ack_times: Vec<Duration>,
    /// All messages of people and of the app.
    messages: Vec<Json>,
    posts: Vec<SlackPost>,
    /// Texts that only one person sees.
    whispers: Vec<(String, String)>,
    /// Threads below which the app has shown that it works.
    statuses: Vec<(String, String)>,
    /// Reactions of the app: ID of the message and name of the emoji.
    reactions: Vec<(String, String)>,
    /// Answers to commands, which are parts of acknowledgements.
    command_answers: Vec<String>,
    failures: VecDeque<SlackFailure>,
    /// Methods of all calls, with the time of each.
    calls: Vec<(String, Instant)>,
    /// Set if the app takes events by HTTP.
    called: Option<CalledApp>,
    /// Scopes of the bot token.
    scopes: String,
    /// Channels of which the app is no member.
    foreign_channels: BTreeSet<String>,
    /// Number of acknowledgements that get lost.
    lost_acks: usize,
    is_frozen: bool,
    /// Seconds by which IDs of messages are later than the clock.
    time_shift: i64,
    files: FakeFiles,
    /// Method of which each call fails.
    failing: Option<&'static str>,
    /// True if the first page of a channel is shown and others are refused.
    refuses_later_pages: bool,
    /// False if the app gets no streams.
    offers_streams: bool,
}

#[derive(Debug, Default)]
struct SlackSocketState {
    frames: VecDeque<String>,
    is_greeted: bool,
    is_aborted: bool,
    is_leaving: bool,
    pinged_at: Option<Instant>,
}

impl FakeSlack {
    /// Starts a server for an app with these tokens. The ID of the app's user is `UBOT`.
    pub fn start(bot_token: &str, app_token: &str) -> Self {
        #[expect(clippy::disallowed_methods, reason = "IDs of messages are times")]
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let state = SlackState {
            bot_token: bot_token.to_owned(),
            app_token: app_token.to_owned(),
            socket_url: String::new(),
            http_url: String::new(),
            uploads: BTreeMap::new(),
            ack_time: ACK_TIME,
            started_at: i64::try_from(now.as_secs()).unwrap(),
            began: Instant::now(),
            last_id: 0,
            tickets: BTreeSet::new(),
            sockets: BTreeMap::new(),
            deliveries: Vec::new(),
            sent: BTreeMap::new(),
            ack_times: Vec::new(),
            messages: Vec::new(),
            posts: Vec::new(),
            whispers: Vec::new(),
            statuses: Vec::new(),
            reactions: Vec::new(),
            command_answers: Vec::new(),
            failures: VecDeque::new(),
            calls: Vec::new(),
            called: None,
            scopes: SCOPES.to_owned(),
            foreign_channels: BTreeSet::new(),
            lost_acks: 0,
            is_frozen: false,
            time_shift: 0,
            files: FakeFiles::default(),
            failing: None,
            refuses_later_pages: false,
            offers_streams: true,
        };
        let shared = Arc::new(SharedSlack { state: Mutex::new(state), changed: Condvar::new() });
        let sockets = FakeSockets::start(Arc::clone(&shared));
        sockets.url().clone_into(&mut shared.lock().socket_url);
        let router = Router::new().fallback(api::handle).with_state(Arc::clone(&shared));
        let (server, stop) = (FakeServer::start(router), Arc::<AtomicBool>::default());
        server.url().clone_into(&mut shared.lock().http_url);
        let (of_thread, stopped) = (Arc::clone(&shared), Arc::clone(&stop));
        let deliverer = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                deliver_all(&of_thread);
                of_thread.changed.notify_all();
                std::thread::park_timeout(Duration::from_millis(4));
            }
        });
        Self { server, shared, stop, deliverer: Some(deliverer), _sockets: sockets }
    }

    /// Returns the address of the Web API.
    pub fn url(&self) -> String {
        format!("{}/api", self.server.url())
    }

    /// Delivers events by HTTP from now on, signed with this secret. `make_call` returns status and body of
    /// the response, or `None` without one.
    pub fn deliver_by_http(
        &self,
        secret: &str,
        make_call: impl Fn(&SlackHttpCall) -> Option<(u16, String)> + Send + Sync + 'static,
    ) {
        let app = CalledApp { secret: secret.to_owned(), make_call: Arc::new(make_call) };
        self.shared.lock().called = Some(app);
    }

    /// Returns a call with an event that was signed so many seconds ago.
    pub fn signed_event(&self, event: &Json, age: i64) -> SlackHttpCall {
        self.shared.lock().http_call(("events_api", event, 0), age)
    }

    /// Sets the scopes of the bot token, separated by commas.
    pub fn set_scopes(&self, scopes: &str) {
        scopes.clone_into(&mut self.shared.lock().scopes);
    }

    /// Removes the app from a channel.
    pub fn leave_channel(&self, channel: &str) {
        self.shared.lock().foreign_channels.insert(channel.to_owned());
    }

    /// Sets the time in which acknowledgements are awaited.
    pub fn set_ack_time(&self, time: Duration) {
        self.shared.lock().ack_time = time;
    }

    /// Lets a person write to a channel; returns the ID of the message. Channels with `D` are direct.
    pub fn say(&self, channel: &str, user: &str, text: &str) -> String {
        self.write(channel, user, text, &json!({}))
    }

    /// Lets a person reply in a thread.
    pub fn reply(&self, channel: &str, thread: &str, user: &str, text: &str) -> String {
        self.write(channel, user, text, &json!({"thread_ts": thread}))
    }

    /// Lets a person write a message with further fields.
    pub fn write(&self, channel: &str, user: &str, text: &str, fields: &Json) -> String {
        let mut state = self.shared.lock();
        let ts = state.new_ts();
        let mut message = json!({
            "type": "message", "user": user, "text": text, "ts": ts, "channel": channel,
            "channel_type": if channel.starts_with('D') { "im" } else { "channel" },
        });
        for (key, value) in fields.as_object().unwrap() {
            message[key] = value.clone();
        }
        state.messages.push(message.clone());
        let is_mention = text.contains(&format!("<@{BOT_USER}>")) && !channel.starts_with('D');
        state.add_event(message.clone());
        if is_mention {
            message["type"] = json!("app_mention");
            message.as_object_mut().unwrap().remove("channel_type");
            state.add_event(message);
        }
        ts
    }

    /// Lets a person mention the app in a message with files. The event of the mention comes first, and does
    /// not have the files.
    pub fn mention_with_files(
        &self,
        channel: &str,
        user: &str,
        text: &str,
        files: &Json,
    ) -> String {
        let mut state = self.shared.lock();
        let ts = state.new_ts();
        let mention = json!({
            "type": "app_mention", "user": user, "text": text, "ts": ts, "channel": channel,
        });
        let mut message = mention.clone();
        message["type"] = json!("message");
        message["subtype"] = json!("file_share");
        message["channel_type"] = json!("channel");
        message["files"] = files.clone();
        state.messages.push(message.clone());
        state.add_event(mention);
        state.add_event(message);
        ts
    }

    /// Adds a file; returns its description in a message. Its address needs the bot token and the scope
    /// `files:read`.
    pub fn add_file(&self, name: &str, media_type: &str, content: &[u8]) -> Json {
        let mut state = self.shared.lock();
        let number = state.files.add(content);
        json!({
            "id": format!("F{number}"), "name": name, "mimetype": media_type, "size": content.len(),
            "url_private_download": format!("{}/files/{number}", state.http_url),
        })
    }

    /// Returns the number of downloads of files.
    pub fn file_fetches(&self) -> usize {
        self.shared.lock().files.fetch_count()
    }

    /// Lets a person click on a button of a post, with this value; returns the ID of the click.
    pub fn click(&self, user: &str, post: &SlackPost, value: &str) -> String {
        let mut state = self.shared.lock();
        let trigger = format!("trigger.{}", state.new_id());
        let mut message = json!({"ts": post.ts, "type": "message"});
        if let Some(thread) = &post.thread {
            message["thread_ts"] = json!(thread);
        }
        state.add_click(json!({
            "type": "block_actions", "trigger_id": trigger, "api_app_id": "A0TEST",
            "user": {"id": user, "username": user.to_lowercase(), "name": user.to_lowercase()},
            "channel": {"id": post.channel, "name": "a-channel"}, "message": message,
            "actions": [{"type": "button", "action_id": "heeler_0", "value": value}],
        }));
        trigger
    }

    /// Lets a person use a command in a channel; returns the ID of the use.
    pub fn command(&self, channel: &str, user: &str, command: &str, text: &str) -> String {
        let mut state = self.shared.lock();
        let trigger = format!("trigger.{}", state.new_id());
        state.add_command(command_payload(&trigger, (channel, user), command, text));
        trigger
    }

    /// Waits until so many commands are answered; returns the texts.
    #[track_caller]
    pub fn wait_for_command_answers(&self, count: usize) -> Vec<String> {
        self.wait("answers to commands", |state| {
            (state.command_answers.len() >= count).then(|| state.command_answers.clone())
        })
    }

    /// Makes the next call of a method fail.
    pub fn fail_next(&self, failure: SlackFailure) {
        self.shared.lock().failures.push_back(failure);
    }

    /// Makes every call of a method fail, as if Slack had a failure; `None` ends that.
    pub fn set_failing(&self, method: Option<&'static str>) {
        self.shared.lock().failing = method;
    }

    /// Sets whether pages of a channel after the first are refused.
    pub fn refuse_later_pages(&self, refuses: bool) {
        self.shared.lock().refuses_later_pages = refuses;
    }

    /// Dates further messages so many seconds later than the clock.
    pub fn set_time_shift(&self, seconds: i64) {
        self.shared.lock().time_shift = seconds;
    }

    /// Announces on all sockets that they will be closed.
    pub fn announce_disconnect(&self, reason: &str) {
        let mut state = self.shared.lock();
        let frame = json!({"type": "disconnect", "reason": reason, "debug_info": {}}).to_string();
        for socket in state.sockets.values_mut().filter(|socket| socket.is_greeted) {
            socket.frames.push_back(frame.clone());
            socket.is_leaving = true;
        }
    }

    /// Ends the sockets that were announced to be closed.
    pub fn close_leaving(&self) {
        let mut state = self.shared.lock();
        state.sockets.values_mut().filter(|it| it.is_leaving).for_each(|it| it.is_aborted = true);
    }

    /// Ends all sockets without a word.
    pub fn abort_sockets(&self) {
        self.shared.lock().sockets.values_mut().for_each(|socket| socket.is_aborted = true);
    }

    /// Stops all traffic of the sockets that exist, without closing them.
    pub fn set_frozen(&self, is_frozen: bool) {
        self.shared.lock().is_frozen = is_frozen;
    }

    /// Loses this many acknowledgements.
    pub fn lose_acks(&self, count: usize) {
        self.shared.lock().lost_acks += count;
    }

    /// Delivers a message again, as if its acknowledgement had been lost.
    pub fn redeliver(&self, ts: &str) {
        let mut state = self.shared.lock();
        let message = state.messages.iter().find(|message| message["ts"] == ts).cloned().unwrap();
        state.add_event(message);
    }

    /// Refuses streams from now on, as Slack did before it had some.
    pub fn refuse_streams(&self) {
        self.shared.lock().offers_streams = false;
    }

    /// Ends all streams, as Slack does some minutes after their beginning.
    pub fn end_streams(&self) {
        self.shared.lock().posts.iter_mut().for_each(|post| post.is_open = false);
    }

    /// Returns all posts, in order.
    pub fn posts(&self) -> Vec<SlackPost> {
        self.shared.lock().posts.clone()
    }

    /// Returns the texts that only one person saw, with the person.
    pub fn whispers(&self) -> Vec<(String, String)> {
        self.shared.lock().whispers.clone()
    }

    /// Returns the channels and threads below which the app has shown that it works.
    pub fn statuses(&self) -> Vec<(String, String)> {
        self.shared.lock().statuses.clone()
    }

    /// Returns the reactions of the app: IDs of messages and names of emoji.
    pub fn reactions(&self) -> Vec<(String, String)> {
        self.shared.lock().reactions.clone()
    }

    /// Returns the times of all calls of a method.
    pub fn calls(&self, method: &str) -> Vec<Instant> {
        let state = self.shared.lock();
        state.calls.iter().filter(|(name, _)| name == method).map(|(_, at)| *at).collect()
    }

    /// Returns the times from the sending of a message of a person to its acknowledgement, and forgets
    /// them.
    pub fn take_ack_times(&self) -> Vec<Duration> {
        std::mem::take(&mut self.shared.lock().ack_times)
    }

    /// Returns the number of sockets that Slack has greeted.
    pub fn socket_count(&self) -> usize {
        self.shared.lock().sockets.values().filter(|socket| socket.is_greeted).count()
    }

    /// Waits until a function of the posts returns a value.
    #[track_caller]
    pub fn wait_for<T>(&self, what: &str, mut look: impl FnMut(&[SlackPost]) -> Option<T>) -> T {
        self.wait(what, |state| look(&state.posts))
    }

    /// Waits until there are so many sockets that will last.
    #[track_caller]
    pub fn wait_for_sockets(&self, count: usize) {
        self.wait("sockets", |state| {
            let lasting = state.sockets.values().filter(|it| it.is_greeted && !it.is_leaving);
            (lasting.count() == count).then_some(())
        });
    }

    /// Waits until all events are acknowledged, or given up.
    #[track_caller]
    pub fn wait_until_delivered(&self) {
        self.wait("the end of all deliveries", |state| {
            state.deliveries.iter().all(SlackDelivery::has_ended).then_some(())
        });
    }

    #[track_caller]
    fn wait<T>(&self, what: &str, mut look: impl FnMut(&SlackState) -> Option<T>) -> T {
        let deadline = Instant::now() + WAIT_MAX;
        let mut state = self.shared.lock();
        loop {
            if let Some(found) = look(&state) {
                return found;
            }
            assert!(Instant::now() < deadline, "waited in vain for {what}: {:#?}", state.posts);
            state = self.shared.changed.wait_timeout(state, Duration::from_millis(100)).unwrap().0;
        }
    }
}

/// Delivers what is due.
fn deliver_all(shared: &Arc<SharedSlack>) {
    let calls = {
        let mut state = shared.lock();
        if state.called.is_none() {
            state.deliver();
        }
        state.take_calls()
    };
    for (app, envelope, call) in calls {
        let shared = Arc::clone(shared);
        // A call may take long; others are made meanwhile.
        std::thread::spawn(move || {
            let response = (app.make_call)(&call);
            shared.lock().take_response(&envelope, response);
            shared.changed.notify_all();
        });
    }
}

/// Returns the payload of a command.
fn command_payload(
    trigger: &str,
    (channel, user): (&str, &str),
    command: &str,
    text: &str,
) -> Json {
    json!({
        "api_app_id": "A0TEST", "team_id": "T1", "channel_id": channel, "user_id": user,
        "user_name": user.to_lowercase(), "command": command, "text": text, "trigger_id": trigger,
        "response_url": "https://hooks.slack.com/commands/1",
    })
}

impl Drop for FakeSlack {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.deliverer.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the fake Slack panicked");
        }
    }
}

impl SharedSlack {
    fn lock(&self) -> MutexGuard<'_, SlackState> {
        self.state.lock().unwrap()
    }
}

impl SlackState {
    fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Returns the ID of a new message: the time, with a number that makes it unique.
    fn new_ts(&mut self) -> String {
        let number = self.new_id();
        let seconds = self.started_at
            + self.time_shift
            + i64::try_from(self.began.elapsed().as_secs()).unwrap();
        format!("{seconds}.{:06}", number % 1_000_000)
    }
}
