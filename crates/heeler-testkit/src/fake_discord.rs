//! A fake Discord: the REST API and the gateway, version 10, over a small model.
//!
//! It keeps the semantics that matter for a bot: sessions with numbered events that can be resumed,
//! sessions that are forgotten, heartbeats that are acknowledged, close codes, limits of routes, and
//! posts that are recognized by their nonce. Start at [`FakeDiscord`].

mod api;
mod gateway;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use serde_json::{Value as Json, json};

use self::gateway::{GatewaySessionState, GatewaySocketState};
use crate::WAIT_MAX;
use crate::fake_files::FakeFiles;
use crate::fake_server::FakeServer;
use crate::fake_sockets::FakeSockets;

/// ID of the server in which channels are.
const GUILD: &str = "1";

/// Beginning of Discord's time, in milliseconds since 1970.
const EPOCH: u128 = 1_420_070_400_000;

/// A running server; dropping it stops it.
#[derive(Debug)]
pub struct FakeDiscord {
    server: FakeServer,
    shared: Arc<SharedDiscord>,
    _sockets: FakeSockets,
}

/// A message that the bot has posted.
#[derive(Debug, Clone, PartialEq)]
pub struct DiscordPost {
    pub id: String,
    pub channel: String,
    pub text: String,
    /// Values of the buttons.
    pub buttons: Vec<String>,
    /// Message that it answers.
    pub reply_to: Option<String>,
    /// True if the text was changed after it was posted.
    pub is_edited: bool,
    /// Content of the file in it.
    pub file: Option<String>,
}

/// A failure of the next call.
#[derive(Debug, Clone)]
pub struct DiscordFailure {
    /// Method and beginning of the path: `POST /channels/5/messages`.
    pub call: &'static str,
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Json,
    /// True if the call is executed before it fails, as when a response is lost.
    pub is_executed: bool,
}

#[derive(Debug)]
struct SharedDiscord {
    state: Mutex<DiscordState>,
    changed: Condvar,
}

#[derive(Debug)]
struct DiscordState {
    token: String,
    /// ID of the bot's user.
    bot: String,
    gateway_url: String,
    heartbeat_ms: u64,
    last_id: u64,
    began: Instant,
    began_ms: u128,
    sockets: BTreeMap<u64, GatewaySocketState>,
    sessions: BTreeMap<String, GatewaySessionState>,
    /// Number of sessions that were started, and that were resumed.
    starts: usize,
    resumes: usize,
    /// Close code with which the next session is refused.
    refusal: Option<u16>,
    is_frozen: bool,
    /// Threads by ID, with the channels that they belong to.
    threads: BTreeMap<String, String>,
    messages: Vec<Json>,
    posts: Vec<DiscordPost>,
    /// IDs of posts by channel and nonce.
    nonces: BTreeMap<(String, String), String>,
    click_answers: Vec<String>,
    /// Registered commands by scope: empty for all servers, else `guilds/ID`.
    commands: BTreeMap<String, Vec<Json>>,
    /// True if the application may read the content of messages.
    reads_content: bool,
    /// IDs of messages, with their reactions in the form of addresses.
    reactions: Vec<(String, String)>,
    failures: VecDeque<DiscordFailure>,
    /// Calls, with the time of each.
    calls: Vec<(String, Instant)>,
    /// Milliseconds by which IDs of messages are later than the clock.
    time_shift: i128,
    files: FakeFiles,
    /// Beginning of the calls of which each fails.
    failing: Option<&'static str>,
}

impl FakeDiscord {
    /// Starts a server for a bot with this token and user.
    pub fn start(token: &str, bot: &str) -> Self {
        #[expect(clippy::disallowed_methods, reason = "IDs of messages are times")]
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let state = DiscordState {
            token: token.to_owned(),
            bot: bot.to_owned(),
            gateway_url: String::new(),
            heartbeat_ms: 2_000,
            last_id: 0,
            began: Instant::now(),
            began_ms: now.as_millis(),
            sockets: BTreeMap::new(),
            sessions: BTreeMap::new(),
            starts: 0,
            resumes: 0,
            refusal: None,
            is_frozen: false,
            threads: BTreeMap::new(),
            messages: Vec::new(),
            posts: Vec::new(),
            nonces: BTreeMap::new(),
            click_answers: Vec::new(),
            commands: BTreeMap::new(),
            reads_content: true,
            reactions: Vec::new(),
            failures: VecDeque::new(),
            calls: Vec::new(),
            time_shift: 0,
            files: FakeFiles::default(),
            failing: None,
        };
        let shared = Arc::new(SharedDiscord { state: Mutex::new(state), changed: Condvar::new() });
        let sockets = FakeSockets::start(Arc::clone(&shared));
        sockets.url().clone_into(&mut shared.lock().gateway_url);
        let router = Router::new().fallback(api::handle).with_state(Arc::clone(&shared));
        Self { server: FakeServer::start(router), shared, _sockets: sockets }
    }

    /// Returns the address of the REST API.
    pub fn url(&self) -> String {
        format!("{}/api/v10", self.server.url())
    }

    /// Sets whether the application may read the content of messages.
    pub fn set_reads_content(&self, reads_content: bool) {
        self.shared.lock().reads_content = reads_content;
    }

    /// Lets a person write to a channel; returns the ID of the message. Channels below 100 are direct.
    pub fn say(&self, channel: &str, user: &str, text: &str) -> String {
        self.write(channel, user, text, &json!({}))
    }

    /// Lets a person write a message with further fields.
    pub fn write(&self, channel: &str, user: &str, text: &str, fields: &Json) -> String {
        let mut state = self.shared.lock();
        let id = state.new_snowflake();
        let mut message = json!({
            "id": id, "type": 0, "channel_id": channel, "content": text, "mentions": [],
            "mention_roles": [], "author": {"id": user, "username": format!("user{user}")},
        });
        for (key, value) in fields.as_object().unwrap() {
            message[key] = value.clone();
        }
        state.messages.push(message.clone());
        // Only the gateway names the server.
        if !is_direct(channel) {
            message["guild_id"] = json!(GUILD);
        }
        state.add_event("MESSAGE_CREATE", message);
        drop(state);
        self.shared.changed.notify_all();
        id
    }

    /// Creates a thread of a channel, of which the gateway does not tell.
    pub fn add_thread(&self, thread: &str, channel: &str) {
        self.shared.lock().threads.insert(thread.to_owned(), channel.to_owned());
    }

    /// Adds a file; returns its description in a message. Its address is refused if a token is sent to it.
    pub fn add_file(&self, name: &str, media_type: &str, content: &[u8]) -> Json {
        let number = self.shared.lock().files.add(content);
        json!({
            "id": number.to_string(), "filename": name, "content_type": media_type,
            "size": content.len(), "url": format!("{}/attachments/{number}?ex=1&hm=2", self.server.url()),
        })
    }

    /// Lets a person click on a button of a post, with this value; returns the ID of the click.
    pub fn click(&self, user: &str, post: &DiscordPost, value: &str) -> String {
        let mut state = self.shared.lock();
        let id = state.new_snowflake();
        let person = json!({"id": user, "username": format!("user{user}")});
        let mut click = json!({
            "id": id, "type": 3, "token": format!("token-{id}"), "channel_id": post.channel,
            "message": {"id": post.id}, "data": {"custom_id": value, "component_type": 2},
        });
        match is_direct(&post.channel) {
            true => click["user"] = person,
            false => {
                click["member"] = json!({"user": person});
                click["guild_id"] = json!(GUILD);
            }
        }
        state.add_event("INTERACTION_CREATE", click);
        id
    }

    /// Lets a person use a command with these options; returns the ID of the use.
    pub fn command(
        &self,
        channel: &str,
        user: &str,
        name: &str,
        options: &[(&str, &str)],
    ) -> String {
        let mut state = self.shared.lock();
        let id = state.new_snowflake();
        let person = json!({"id": user, "username": format!("user{user}")});
        let options: Vec<Json> = options
            .iter()
            .map(|(name, value)| json!({"name": name, "type": 3, "value": value}))
            .collect();
        let mut used = json!({
            "id": id, "type": 2, "token": format!("token-{id}"), "channel_id": channel,
            "data": {"id": "1", "type": 1, "name": name, "options": options},
        });
        match is_direct(channel) {
            true => used["user"] = person,
            false => {
                used["member"] = json!({"user": person});
                used["guild_id"] = json!(GUILD);
            }
        }
        state.add_event("INTERACTION_CREATE", used);
        drop(state);
        self.shared.changed.notify_all();
        id
    }

    /// Returns the registered commands of a scope: empty for all servers, else `guilds/ID`.
    pub fn commands(&self, scope: &str) -> Vec<Json> {
        self.shared.lock().commands.get(scope).cloned().unwrap_or_default()
    }

    /// Waits until so many clicks and commands are answered; returns the texts.
    #[track_caller]
    pub fn wait_for_answers(&self, count: usize) -> Vec<String> {
        self.wait("answers to clicks", |state| {
            (state.click_answers.len() >= count).then(|| state.click_answers.clone())
        })
    }

    /// Makes the next call of this kind fail.
    pub fn fail_next(&self, failure: DiscordFailure) {
        self.shared.lock().failures.push_back(failure);
    }

    /// Makes every call that begins so fail, as if Discord had a failure; `None` ends that.
    pub fn set_failing(&self, call: Option<&'static str>) {
        self.shared.lock().failing = call;
    }

    /// Dates further messages so many seconds later than the clock.
    pub fn set_time_shift(&self, seconds: i64) {
        self.shared.lock().time_shift = i128::from(seconds) * 1_000;
    }

    /// Ends all connections without a word. Sessions are kept.
    pub fn abort_sockets(&self) {
        self.shared.lock().sockets.values_mut().for_each(|socket| socket.is_aborted = true);
    }

    /// Wants new connections (op 7).
    pub fn request_reconnect(&self) {
        self.shared.lock().send_to_all(&json!({"op": 7, "d": null}));
    }

    /// Forgets all sessions, so that they cannot be resumed, and ends the connections. Events until
    /// the next session are never delivered by the gateway.
    pub fn forget_sessions(&self) {
        let mut state = self.shared.lock();
        state.sessions.clear();
        state.sockets.values_mut().for_each(|socket| socket.is_aborted = true);
    }

    /// Refuses sessions with a close code; `None` accepts them.
    pub fn refuse_sessions(&self, code: Option<u16>) {
        self.shared.lock().refusal = code;
    }

    /// Stops all traffic of the connections, without closing them.
    pub fn set_frozen(&self, is_frozen: bool) {
        self.shared.lock().is_frozen = is_frozen;
    }

    /// Returns how many sessions were started, and how many were resumed.
    pub fn session_counts(&self) -> (usize, usize) {
        let state = self.shared.lock();
        (state.starts, state.resumes)
    }

    /// Returns all posts, in order.
    pub fn posts(&self) -> Vec<DiscordPost> {
        self.shared.lock().posts.clone()
    }

    /// Returns the messages with reactions of the bot.
    pub fn reactions(&self) -> Vec<(String, String)> {
        self.shared.lock().reactions.clone()
    }

    /// Returns the texts that answered clicks.
    pub fn click_answers(&self) -> Vec<String> {
        self.shared.lock().click_answers.clone()
    }

    /// Returns the times of all calls that begin with a text: `POST /channels/5/messages`.
    pub fn calls(&self, call: &str) -> Vec<Instant> {
        let state = self.shared.lock();
        state.calls.iter().filter(|(name, _)| name.starts_with(call)).map(|(_, at)| *at).collect()
    }

    /// Waits until a function of the posts returns a value.
    #[track_caller]
    pub fn wait_for<T>(&self, what: &str, mut look: impl FnMut(&[DiscordPost]) -> Option<T>) -> T {
        self.wait(what, |state| look(&state.posts))
    }

    /// Waits until a session is connected.
    #[track_caller]
    pub fn wait_until_connected(&self) {
        self.wait("a session", |state| {
            state.sockets.values().any(GatewaySocketState::is_connected).then_some(())
        });
    }

    #[track_caller]
    fn wait<T>(&self, what: &str, mut look: impl FnMut(&DiscordState) -> Option<T>) -> T {
        let deadline = Instant::now() + WAIT_MAX;
        let mut state = self.shared.lock();
        loop {
            if let Some(found) = look(&state) {
                return found;
            }
            assert!(Instant::now() < deadline, "waited in vain for {what}: {:#?}", state.posts);
            state = self.shared.changed.wait_timeout(state, Duration::from_millis(50)).unwrap().0;
        }
    }
}

impl SharedDiscord {
    fn lock(&self) -> MutexGuard<'_, DiscordState> {
        self.state.lock().unwrap()
    }
}

impl DiscordState {
    /// Returns a new ID: the time in milliseconds, and a number.
    fn new_snowflake(&mut self) -> String {
        self.last_id += 1;
        let ms = self.began_ms + self.began.elapsed().as_millis() - EPOCH;
        let ms = i128::try_from(ms).unwrap() + self.time_shift;
        ((u64::try_from(ms).unwrap() << 22) | (self.last_id & 0x3f_ffff)).to_string()
    }
}

fn is_direct(channel: &str) -> bool {
    channel.len() < 3
}
