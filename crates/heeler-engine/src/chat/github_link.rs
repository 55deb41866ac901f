//! Link to GitHub: looks at the messages of repositories, at intervals and when a webhook tells of a change.
//!
//! GitHub keeps all messages, so they are read, and a webhook only says when. The time up to which a
//! repository was read is on record. Start at [`run_github`].

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use heeler_connect::{ChatApiError, ChatEvent, ChatPlatform};
use heeler_github::{GithubError, GithubMessage, GithubMessageKind, GithubMessageList, GithubRepo};
use heeler_store::{ChatGapMark, StoreReader};
use jiff::{SignedDuration, Timestamp};

use super::channel_gap::recorded_marks;
use super::credential::{ChatCredential, account_policies};
use super::earlier_messages::{last_messages, new_conversation};
use super::github_event::{github_event, subject};
use super::link_worker::{EventReply, LinkWorker, wait_for_record};
use crate::fault::{self, FaultPoint};
use crate::github::{GithubConnection, GithubConnections};

/// Age of the oldest message that is read.
const AGE_MAX: SignedDuration = SignedDuration::from_hours(24);

/// Time before the last message that is read again: GitHub may list a message late.
const MARGIN: SignedDuration = SignedDuration::from_mins(5);

/// Movement of the time up to which a repository was read that is recorded.
const MARK_INTERVAL: SignedDuration = SignedDuration::from_mins(10);

/// Most messages of each kind that are read in one look. The next look reads the following ones.
const MESSAGES_MAX: usize = 1_000;

/// Most calls within an hour, of the 5,000 that GitHub allows. More repositories are read less often.
const CALLS_PER_HOUR: u32 = 2_000;

/// Time between two looks if no agent answers any more, in seconds.
const POLL_SECONDS_MAX: u32 = 60;

/// Most IDs of recorded messages that are remembered.
const SEEN_MAX: usize = 20_000;

/// Age of the oldest earlier comment of a conversation.
const EARLIER_AGE_MAX: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Most earlier comments that are read.
const EARLIER_MAX: usize = 1_000;

/// Looks at the repositories until the link is stopped.
pub(super) fn run_github(worker: LinkWorker, credential: &ChatCredential) {
    GithubLink {
        worker,
        account: credential.account.clone(),
        connections: GithubConnections::default(),
        cursors: BTreeMap::new(),
        are_marks_loaded: false,
        seen: HashSet::new(),
    }
    .run();
}

struct GithubLink {
    worker: LinkWorker,
    account: String,
    connections: GithubConnections,
    /// Time up to which each repository was read.
    cursors: BTreeMap<String, ReadCursor>,
    are_marks_loaded: bool,
    /// Messages that are on record.
    seen: HashSet<String>,
}

/// Progress in one repository.
#[derive(Debug, Clone, Copy)]
struct ReadCursor {
    /// The next look reads what changed since then.
    since: Timestamp,
    /// The same time, as it is on record.
    recorded: Timestamp,
}

/// Result of a look at all repositories.
struct LookOutcome {
    /// Time before the next look.
    pause: Duration,
    /// Reason why some repositories were not read.
    problem: Option<String>,
}

/// A message that was passed to the dispatcher.
struct PassedMessage {
    event_id: String,
    reply: EventReply,
}

impl GithubLink {
    fn run(mut self) {
        while !self.worker.is_stopped() {
            match self.look() {
                Ok(LookOutcome { pause, problem }) => {
                    self.worker.note_contact();
                    if let Some(problem) = problem {
                        self.worker.note_limitation(problem);
                    }
                    self.worker.rest_until_woken(pause);
                }
                Err(error) => self.worker.pause_after(&error),
            }
        }
    }

    /// Reads all repositories. One that GitHub refuses to show does not keep the others from being read.
    fn look(&mut self) -> Result<LookOutcome, ChatApiError> {
        let setup = self.worker.setup();
        let connection = self.connections.get(&setup, self.worker.clock());
        let connection = connection.map_err(|reason| unreachable("connect to GitHub", reason))?;
        let policies =
            account_policies(&setup.loaded, &setup.env, ChatPlatform::Github, &self.account);
        let mut chats: Vec<&str> =
            policies.iter().flat_map(|policy| &policy.chats).map(|chat| chat.id).collect();
        chats.sort_unstable();
        chats.dedup();
        self.load_marks(&chats)?;
        let (mut problem, mut is_any_read) = (None, chats.is_empty());
        for chat in &chats {
            match self.look_at(&connection, chat) {
                Ok(()) => is_any_read = true,
                Err(error @ ChatApiError::Refused { .. }) => problem = Some(error),
                Err(error) => return Err(error),
            }
        }
        if let (Some(error), false) = (&problem, is_any_read) {
            return Err(error.clone());
        }
        self.record_marks()?;
        let lists = u32::try_from(chats.len() * GithubMessageList::ALL.len()).unwrap_or(u32::MAX);
        let affordable = Duration::from_secs(3600) * lists / CALLS_PER_HOUR;
        let seconds = policies.iter().filter_map(|policy| {
            Some(policy.agent.chat.as_ref()?.github.as_ref()?.poll_seconds.get())
        });
        let wanted = Duration::from_secs(seconds.min().unwrap_or(POLL_SECONDS_MAX).into());
        let problem = problem.map(|error| error.to_string());
        Ok(LookOutcome { pause: wanted.max(affordable), problem })
    }

    /// Loads the times up to which repositories were read. A new repository is read from now on.
    fn load_marks(&mut self, chats: &[&str]) -> Result<(), ChatApiError> {
        if !self.are_marks_loaded {
            let marks = StoreReader::open(self.worker.dir())
                .map_err(|error| heeler_model::error_chain(&error))
                .and_then(|reader| recorded_marks(&reader, ChatPlatform::Github, &self.account));
            let marks = marks.map_err(|reason| unreachable("read the state", reason))?;
            for mark in marks {
                let Ok(since) = Timestamp::from_millisecond(mark.since_ms) else { continue };
                self.cursors.insert(mark.chat, ReadCursor { since, recorded: since });
            }
            self.are_marks_loaded = true;
        }
        let now = self.worker.now();
        let mut is_new = false;
        for chat in chats {
            self.cursors.entry((*chat).to_owned()).or_insert_with(|| {
                is_new = true;
                ReadCursor { since: now, recorded: now }
            });
        }
        // Before the first look: a daemon that is killed after it leaves the time to the next one.
        if is_new { self.write_marks() } else { Ok(()) }
    }

    /// Records the times up to which repositories were read, if one has moved.
    fn record_marks(&mut self) -> Result<(), ChatApiError> {
        let has_moved =
            |it: &ReadCursor| it.since.duration_since(it.recorded).abs() > MARK_INTERVAL;
        if self.cursors.values().any(has_moved) { self.write_marks() } else { Ok(()) }
    }

    fn write_marks(&mut self) -> Result<(), ChatApiError> {
        let marks = self.cursors.iter().map(|(chat, cursor)| ChatGapMark {
            chat: chat.clone(),
            thread: None,
            since_ms: cursor.since.as_millisecond(),
            is_unlisted: false,
        });
        let written = self.worker.begin_gap(ChatPlatform::Github, &self.account, marks.collect());
        written.map_err(|reason| unreachable("record what was read", reason))?;
        self.cursors.values_mut().for_each(|cursor| cursor.recorded = cursor.since);
        Ok(())
    }

    /// Passes the new messages of a repository to the dispatcher.
    fn look_at(&mut self, connection: &GithubConnection, chat: &str) -> Result<(), ChatApiError> {
        let Some(cursor) = self.cursors.get(chat).copied() else { return Ok(()) };
        let Ok(repo) = chat.replacen(':', "/", 1).parse::<GithubRepo>() else { return Ok(()) };
        let oldest = self.worker.now().checked_sub(AGE_MAX).unwrap_or(cursor.since);
        let since = before(cursor.since.max(oldest), MARGIN);
        let (mut messages, mut read_to) = (Vec::new(), None);
        let mut newest = cursor.since;
        for list in GithubMessageList::ALL {
            let listed = connection.client.changed_messages(&repo, list, since, MESSAGES_MAX);
            let listed = listed.map_err(|error| self.api_error(&error))?;
            let last = listed.iter().map(|message| message.updated_at).max();
            newest = newest.max(last.unwrap_or(newest));
            if listed.len() >= MESSAGES_MAX {
                read_to = read_to.min(last).or(last);
            }
            messages.extend(listed);
        }
        // An old message that was edited is no new one.
        messages.retain(|message| message.created_at >= since);
        messages.sort_by_key(|message| message.created_at);
        let passed = self.pass_messages(connection, (&repo, chat), &messages)?;
        self.wait_for_records(passed)?;
        // Of a list that is not complete, the rest is read next, and nothing twice.
        let next = read_to.and_then(|at| at.checked_add(MARGIN).ok()).unwrap_or(newest);
        if let Some(cursor) = self.cursors.get_mut(chat) {
            cursor.since = next.max(cursor.since);
        }
        Ok(())
    }

    fn pass_messages(
        &mut self,
        connection: &GithubConnection,
        (repo, chat): (&GithubRepo, &str),
        messages: &[GithubMessage],
    ) -> Result<Vec<PassedMessage>, ChatApiError> {
        let mut passed = Vec::new();
        for message in messages {
            let mut event = github_event(message, chat, &self.account);
            // Posts of the fleet itself are no news.
            let is_own = message.author.login.eq_ignore_ascii_case(&self.account);
            if is_own || self.seen.contains(&event.event_id) {
                continue;
            }
            self.add_context(connection, (repo, chat), message, &mut event)?;
            let event_id = event.event_id.clone();
            passed.push(PassedMessage { event_id, reply: self.worker.pass_event(event) });
        }
        Ok(passed)
    }

    fn wait_for_records(&mut self, passed: Vec<PassedMessage>) -> Result<(), ChatApiError> {
        if passed.is_empty() {
            return Ok(());
        }
        if self.seen.len() > SEEN_MAX {
            self.seen.clear();
        }
        let mut refused = None;
        for PassedMessage { event_id, reply } in passed {
            match wait_for_record(&reply) {
                Ok(_) => {
                    self.seen.insert(event_id);
                }
                Err(error) => refused = Some(error.message),
            }
        }
        fault::reach(FaultPoint::ChatRecorded);
        // They are read again.
        refused.map_or(Ok(()), |reason| Err(unreachable("record a message", reason)))
    }

    /// Adds the issue and its last comments to a message that begins a conversation.
    fn add_context(
        &self,
        connection: &GithubConnection,
        (repo, chat): (&GithubRepo, &str),
        message: &GithubMessage,
        event: &mut ChatEvent,
    ) -> Result<(), ChatApiError> {
        let mut failure = None;
        let earlier = new_conversation(&self.worker, event, |policy, count| {
            let mut earlier = Vec::new();
            let number = message.number;
            if !matches!(message.kind, GithubMessageKind::Description { .. }) {
                match connection.client.description(repo, number) {
                    Ok(description) => earlier.push(subject(&description, chat)),
                    Err(error) => failure = Some(error),
                }
            }
            if count > 0 {
                let since = before(message.created_at, EARLIER_AGE_MAX);
                match connection.client.issue_messages(repo, number, since, EARLIER_MAX) {
                    Ok(mut comments) => {
                        comments.retain(|it| it.created_at < message.created_at);
                        let events =
                            comments.iter().map(|it| github_event(it, chat, &self.account));
                        earlier.extend(last_messages(policy, count, events.collect()));
                    }
                    Err(error) => failure = Some(error),
                }
            }
            earlier
        });
        match failure {
            // The next look tries again.
            Some(error) if error.is_transient() => Err(self.api_error(&error)),
            Some(error) => {
                tracing::info!(%error, "a conversation begins without earlier messages");
                event.earlier = earlier;
                Ok(())
            }
            None => {
                event.earlier = earlier;
                Ok(())
            }
        }
    }

    fn api_error(&self, error: &GithubError) -> ChatApiError {
        match error {
            GithubError::RateLimited { until, .. } => ChatApiError::RateLimited {
                platform: "GitHub",
                attempt: "read messages",
                retry_after: Duration::try_from(until.duration_since(self.worker.now()))
                    .unwrap_or_default(),
            },
            error if error.is_transient() => unreachable("read messages", error.to_string()),
            error => ChatApiError::Refused {
                platform: "GitHub",
                attempt: "list messages",
                said: error.to_string(),
            },
        }
    }
}

fn before(at: Timestamp, span: SignedDuration) -> Timestamp {
    at.checked_sub(span).unwrap_or(Timestamp::MIN)
}

fn unreachable(attempt: &'static str, reason: String) -> ChatApiError {
    ChatApiError::Unreachable { attempt, reason }
}
