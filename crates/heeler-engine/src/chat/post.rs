//! Posts to chat platforms, as they are recorded, and their execution.
//!
//! Start at [`ChatPost`] and [`execute_post`].

use std::borrow::Cow;
use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;

use heeler_connect::{
    ButtonClaim, ButtonSeal, ButtonVerdict, ChatApiError, ChatBot, ChatButton, ChatPlace,
    ChatPlatform, ChatPolicy, OutgoingPost, PostMark, PostedFile, post_parts, posted_file_name,
};
use heeler_model::redact::SecretRedactor;
use heeler_model::{
    Approval, ApprovalId, ApprovalKind, ApprovalStatus, JobId, question, reveal_line,
};
use heeler_store::{EffectRecord, InboxRecord, StateDatabase, StateDir};
use jiff::{SignedDuration, Timestamp};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::credential::{find_bot_of_variable, find_credential};
use super::github_post::attempt_github_post;
use super::rate_limits::note_rate_limit;
use crate::github::GithubConnections;
use crate::setup::DaemonSetup;

/// Age at which a post that the platform does not accept is given up.
const POST_AGE_MAX: SignedDuration = SignedDuration::from_hours(24);

/// Delay after the first failed attempt. Each further delay is twice as long.
const RETRY_FIRST: SignedDuration = SignedDuration::from_secs(1);

/// Longest delay.
const RETRY_MAX: SignedDuration = SignedDuration::from_mins(5);

/// Most options of a question that become buttons.
const OPTIONS_MAX: usize = 6;

/// Longest label of a button, in characters.
const LABEL_CHARS_MAX: usize = 30;

/// Most bytes in the value of a button.
const VALUE_BYTES_MAX: usize = 64;

/// Text above a file with a long answer.
const FILE_HEADING: &str = "The whole answer:";

/// Largest file of an agent that is posted. All platforms accept it.
const SENT_BYTES_MAX: u64 = 10 << 20;

/// A post to a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ChatPost {
    pub(crate) platform: ChatPlatform,
    /// Account of the bot that posts.
    pub(crate) account: String,
    pub(crate) place: ChatPlace,
    /// Agent that takes part in the conversation.
    pub(crate) agent: Option<String>,
    /// Channel of `notify` that names the place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) notify: Option<String>,
    pub(crate) action: ChatPostAction,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub(crate) enum ChatPostAction {
    /// Posts an answer of an agent, or a part of it.
    Say { text: String, reply_to: Option<String> },
    /// Posts a long answer of an agent as a file.
    File { name: String, content: String },
    /// Posts a file that an agent sent.
    SentFile {
        job: JobId,
        /// Name of the copy in the job's directory.
        copy: String,
        /// Name that the agent gave.
        name: String,
        /// Number of the file among those of the job, counted from one, and their count. Absent for the only
        /// file, and in posts of earlier versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        position: Option<(usize, usize)>,
    },
    /// Answers a person who may not talk to an agent, or a command.
    Notice { text: String, reply_to: Option<String> },
    /// Posts a question with buttons.
    Ask { approval: ApprovalId, text: String, is_complete: bool },
    /// Replaces the question by its outcome.
    Close { approval: ApprovalId, text: String },
}

/// Result of an attempt at a post.
#[derive(Debug, Clone)]
pub(crate) struct ChatPostResult {
    /// ID of the effect.
    pub(crate) effect: String,
    pub(crate) post: ChatPost,
    pub(crate) outcome: ChatPostOutcome,
}

#[derive(Debug, Clone)]
pub(crate) enum ChatPostOutcome {
    /// It was made, with the ID of the message if there is a new one.
    Posted(Option<String>),
    /// It failed finally.
    Failed(String),
    /// It is tried again.
    Postponed { error: String, until: Timestamp },
}

/// Returns the kind of the effects that are posts to a platform. Each platform has its own, so that
/// none waits for another.
pub(crate) fn post_effect_kind(platform: ChatPlatform) -> &'static str {
    match platform {
        ChatPlatform::Telegram => "chat_telegram",
        ChatPlatform::Slack => "chat_slack",
        ChatPlatform::Discord => "chat_discord",
        ChatPlatform::Github => "chat_github",
    }
}

/// Returns the place of a conversation: `platform/chat[/thread]`. `person` is the person of a direct
/// conversation.
pub(crate) fn channel_place(channel: &str, person: Option<&str>) -> Option<ChatPlace> {
    let mut parts = channel.split('/').skip(1);
    let chat = parts.next()?.to_owned();
    let thread = parts.next().map(str::to_owned);
    let (is_direct, person) = (person.is_some(), person.map(str::to_owned));
    Some(ChatPlace { chat, thread, is_direct, person, server: None })
}

/// Returns the place of a received event.
pub(crate) fn event_place(event: &InboxRecord) -> Option<ChatPlace> {
    channel_place(&event.channel, event.is_direct.then_some(event.sender.as_str()))
}

impl ChatPost {
    pub(crate) fn channel(&self) -> String {
        self.place.channel(self.platform)
    }

    /// Returns the effect that records the post. Posts of one conversation are made in the order of
    /// their times and IDs.
    pub(crate) fn to_effect(&self, id: String, now: Timestamp) -> EffectRecord {
        EffectRecord {
            id,
            kind: post_effect_kind(self.platform).to_owned(),
            key: self.channel(),
            payload: serde_json::to_string(self).expect("a post is JSON"),
            created_at: now,
            attempts: 0,
            last_error: None,
        }
    }
}

/// Config, records and connections that posts need.
pub(crate) struct PostContext<'a> {
    pub(crate) setup: &'a Arc<DaemonSetup>,
    pub(crate) db: &'a StateDatabase,
    pub(crate) connections: &'a GithubConnections,
    pub(crate) dir: &'a StateDir,
    pub(crate) now: fn() -> Timestamp,
}

/// Makes a post once. It may wait for the platform. `is_first` is false if an earlier attempt may have
/// made it.
pub(crate) fn execute_post(
    context: &PostContext<'_>,
    (effect, post): (&EffectRecord, &ChatPost),
    is_first: bool,
) -> ChatPostOutcome {
    let maybe_made_since = (!is_first).then(|| effect.created_at.as_second());
    let mark = PostMark { id: &effect.id, maybe_made_since };
    let outcome = match post.platform {
        ChatPlatform::Github => check_place(context.setup, post)
            .and_then(|()| attempt_github_post(context, effect, post)),
        _ => attempt(context, post, mark),
    };
    let failure = match outcome {
        Ok(message) => return ChatPostOutcome::Posted(message),
        Err(failure) => failure,
    };
    if failure.retry_after.is_some() {
        note_rate_limit(post.platform.as_str(), &post.account);
    }
    // Pauses count from the answer of the platform.
    let now = (context.now)();
    let is_old = now.duration_since(effect.created_at) > POST_AGE_MAX;
    if !failure.is_transient || is_old {
        return ChatPostOutcome::Failed(failure.message);
    }
    let factor = 1_i32 << effect.attempts.clamp(0, 20);
    let delay = RETRY_FIRST.checked_mul(factor).map_or(RETRY_MAX, |delay| delay.min(RETRY_MAX));
    let delay = failure.retry_after.map_or(delay, |demanded| demanded.max(RETRY_FIRST));
    let until = now.checked_add(delay).unwrap_or(Timestamp::MAX);
    ChatPostOutcome::Postponed { error: failure.message, until }
}

pub(super) struct PostFailure {
    pub(super) message: String,
    pub(super) is_transient: bool,
    pub(super) retry_after: Option<SignedDuration>,
}

impl PostFailure {
    pub(super) fn permanent(message: String) -> PostFailure {
        PostFailure { message, is_transient: false, retry_after: None }
    }
}

impl From<ChatApiError> for PostFailure {
    fn from(error: ChatApiError) -> PostFailure {
        let retry_after = error.retry_after().and_then(|it| SignedDuration::try_from(it).ok());
        PostFailure { message: error.to_string(), is_transient: error.is_transient(), retry_after }
    }
}

fn attempt(
    context: &PostContext<'_>,
    post: &ChatPost,
    mark: PostMark<'_>,
) -> Result<Option<String>, PostFailure> {
    let PostContext { setup, db, .. } = *context;
    let credential = find_credential(&setup.loaded, &setup.env, post.platform, &post.account);
    let credential = credential.ok_or_else(|| {
        PostFailure::permanent(format!(
            "no agent of the config uses the {} bot {} any more",
            post.platform.title(),
            post.account
        ))
    })?;
    check_place(setup, post)?;
    let bot = credential.bot()?;
    let say = |text: &str, reply_to: &Option<String>, buttons| {
        let outgoing = OutgoingPost { text: text.to_owned(), buttons, reply_to: reply_to.clone() };
        bot.send(&post.place, &outgoing, mark)
    };
    match &post.action {
        ChatPostAction::Say { text, reply_to } | ChatPostAction::Notice { text, reply_to } => {
            Ok(Some(say(text, reply_to, Vec::new())?))
        }
        ChatPostAction::File { name, content } => {
            let file = PostedFile {
                name: name.clone(),
                media_type: "text/markdown; charset=utf-8",
                content: content.clone().into_bytes(),
                heading: FILE_HEADING.to_owned(),
            };
            match bot.send_file(&post.place, &file, mark) {
                // The answer is posted all the same, for example if the app lacks the scope.
                Err(error @ ChatApiError::Refused { .. }) => {
                    tracing::warn!(%error, "a long answer is posted as text");
                    post_text(&bot, post, content, mark)
                }
                outcome => Ok(Some(outcome?)),
            }
        }
        ChatPostAction::SentFile { job, copy, name, position } => {
            let redactor = SecretRedactor::new(&setup.secrets());
            let refused = match read_sent_file(context.dir, &redactor, job, copy) {
                Ok(content) => {
                    let heading = sent_file_heading(job, name, *position);
                    let (name, media_type) = (posted_file_name(name), "application/octet-stream");
                    let file = PostedFile { name, media_type, content, heading };
                    match bot.send_file(&post.place, &file, mark) {
                        Err(error @ ChatApiError::Refused { .. }) => error.to_string(),
                        outcome => return Ok(Some(outcome?)),
                    }
                }
                Err(reason) => reason,
            };
            tracing::warn!(refused, "a file of an agent is not posted");
            Ok(Some(say(&unposted_file(job, name, &refused), &None, Vec::new())?))
        }
        ChatPostAction::Ask { approval, text, is_complete } => {
            let read = |error| unreadable(&error);
            let approval = db.approval(approval).map_err(read)?;
            // It may have been answered before it was posted.
            let pending = approval.filter(|it| it.status == ApprovalStatus::Pending);
            let Some(approval) = pending else { return Ok(None) };
            let buttons =
                question_buttons(&credential.token, &approval, &post.channel(), *is_complete);
            Ok(Some(say(text, &None, buttons)?))
        }
        ChatPostAction::Close { approval, text } => {
            let read = |error| unreadable(&error);
            let posted = db.chat_question(approval, &post.channel()).map_err(read)?;
            if let Some(message) = posted.and_then(|posted| posted.message_id) {
                bot.edit(&post.place, &message, text)?;
            }
            Ok(None)
        }
    }
}

/// Returns the text above a file that an agent sent. Two files of a job have different headings, also if
/// they have the same name, because Slack recognizes the post of a file by its heading.
fn sent_file_heading(job: &JobId, name: &str, position: Option<(usize, usize)>) -> String {
    let name = posted_file_name(name);
    match position {
        Some((number, count)) => format!("`{name}` of `{job}` ({number} of {count}):"),
        None => format!("`{name}` of `{job}`:"),
    }
}

/// Reads the copy of a file that an agent sent. No link is followed. An agent without a sandbox may have
/// replaced the copy after it was searched for secrets, so the content is searched again.
fn read_sent_file(
    dir: &StateDir,
    redactor: &SecretRedactor,
    job: &JobId,
    copy: &str,
) -> Result<Vec<u8>, String> {
    let sent = dir.sent_files(job).into_iter().find(|sent| sent.path.file_name() == Some(copy));
    let sent = sent.ok_or("its copy is gone")?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(sent.path.as_std_path(), flags, Mode::empty());
    let opened = opened.map_err(|error| format!("it cannot be read: {error}"))?;
    let mut content = Vec::new();
    // It may have grown since it was copied.
    let read = File::from(opened).take(SENT_BYTES_MAX + 1).read_to_end(&mut content);
    read.map_err(|error| format!("it cannot be read: {error}"))?;
    if content.is_empty() {
        return Err("it is empty".to_owned());
    }
    if !u64::try_from(content.len()).is_ok_and(|bytes| bytes <= SENT_BYTES_MAX) {
        return Err(format!("it has more than {} MB", SENT_BYTES_MAX >> 20));
    }
    match redactor.redact_bytes(&content) {
        Cow::Borrowed(_) => Ok(content),
        Cow::Owned(_) => Err("it holds a secret".to_owned()),
    }
}

/// Returns the text that stands for a file that is not posted.
pub(super) fn unposted_file(job: &JobId, name: &str, reason: &str) -> String {
    let name = posted_file_name(name);
    format!("The file `{name}` is not posted: {reason}. `heeler jobs show {job}` has its path.")
}

/// Posts a long text in parts. Each is recognized if an earlier attempt made it.
fn post_text(
    bot: &ChatBot,
    post: &ChatPost,
    text: &str,
    mark: PostMark<'_>,
) -> Result<Option<String>, PostFailure> {
    let mut last = None;
    for (number, text) in post_parts(post.platform, text).into_iter().enumerate() {
        let id = format!("{} {number:06}", mark.id);
        let mark = PostMark { id: &id, ..mark };
        let outgoing = OutgoingPost { text, buttons: Vec::new(), reply_to: None };
        last = Some(bot.send(&post.place, &outgoing, mark)?);
    }
    Ok(last)
}

pub(super) fn unreadable(error: &heeler_store::DatabaseError) -> PostFailure {
    let message = heeler_model::error_chain(error);
    PostFailure { message, is_transient: true, retry_after: None }
}

/// Refuses a place that the config does not name, also if it named it when the post was recorded.
fn check_place(setup: &DaemonSetup, post: &ChatPost) -> Result<(), PostFailure> {
    // A notice answers a message that was received at this place.
    if matches!(post.action, ChatPostAction::Notice { .. } | ChatPostAction::Close { .. }) {
        return Ok(());
    }
    if let Some(name) = &post.notify {
        return check_notify_place(setup, post, name);
    }
    let agent = post.agent.as_deref().and_then(|name| setup.agent(name));
    let policy = agent.and_then(|agent| ChatPolicy::of_agent(agent, post.platform));
    match policy.is_some_and(|policy| policy.may_post_to(&post.place)) {
        true => Ok(()),
        false => Err(PostFailure::permanent(format!(
            "{} is not in the config of {} any more",
            post.channel(),
            post.agent.as_deref().unwrap_or("any agent")
        ))),
    }
}

/// Refuses a place that `notify` does not name any more.
fn check_notify_place(setup: &DaemonSetup, post: &ChatPost, name: &str) -> Result<(), PostFailure> {
    let config = setup.root().and_then(|root| root.notify.as_ref());
    let chat = config.and_then(|config| config.channel(name)?.target.chat());
    let is_named = chat.is_some_and(|chat| {
        let bot =
            find_bot_of_variable(&setup.loaded, &setup.env, post.platform, chat.token_variable);
        chat.platform == post.platform.as_str()
            && chat.chat == post.place.chat
            && bot.is_some_and(|bot| bot.account == post.account)
    });
    match is_named {
        true => Ok(()),
        false => Err(PostFailure::permanent(format!(
            "{} is not in the channel `{name}` of `notify` any more",
            post.channel()
        ))),
    }
}

/// Returns the buttons of a question. A request that is not shown completely cannot be allowed here.
fn question_buttons(
    token: &str,
    approval: &Approval,
    channel: &str,
    is_complete: bool,
) -> Vec<ChatButton> {
    let seal = ButtonSeal::from_token(token);
    let shown = approval.shown_hash().unwrap_or_default();
    let button = |label: &str, verdict: ButtonVerdict| {
        let claim = ButtonClaim { question: approval.id.to_string(), verdict };
        // Labels of options are texts of an agent.
        let label: String = reveal_line(label).chars().take(LABEL_CHARS_MAX).collect();
        ChatButton { label, value: seal.value(&claim, &shown, channel) }
    };
    let buttons: Vec<ChatButton> = match approval.kind {
        ApprovalKind::Approve | ApprovalKind::Permission => {
            let (yes, no) = match approval.kind {
                ApprovalKind::Approve => ("Approve", "Reject"),
                _ => ("Allow", "Deny"),
            };
            let allow = is_complete.then(|| button(yes, ButtonVerdict::Allow));
            allow.into_iter().chain([button(no, ButtonVerdict::Deny)]).collect()
        }
        ApprovalKind::Question | ApprovalKind::Reply => {
            let labels = question_options(approval);
            let numbered = labels.iter().zip(1..).filter(|_| is_complete);
            numbered.map(|(label, n)| button(label, ButtonVerdict::Choose(n))).collect()
        }
    };
    // A value that has no room would be refused with the whole post.
    let fits = |buttons: &[ChatButton]| buttons.iter().all(|it| it.value.len() <= VALUE_BYTES_MAX);
    if fits(&buttons) { buttons } else { Vec::new() }
}

/// Returns the options of a question that is answered by choosing one.
pub(crate) fn question_options(approval: &Approval) -> Vec<String> {
    let input = approval.detail.as_ref().map_or(&Json::Null, |detail| &detail["input"]);
    let [only] = question::questions(input) else { return Vec::new() };
    let options = question::options(only);
    if question::allows_multiple(only) || options.len() > OPTIONS_MAX {
        return Vec::new();
    }
    options.iter().filter_map(|option| Some(option["label"].as_str()?.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use camino::Utf8Path;

    use super::*;

    const JOB: &str = "job-2026-11-14-abcdef";

    /// ID of a copy, with the dash that follows it.
    const ID: &str = "0123456789abcdef0123456789abcdef-";

    #[test]
    fn two_files_of_a_job_have_different_headings_also_if_they_have_the_same_name() {
        let job: JobId = JOB.parse().unwrap();
        let heading = |name, position| sent_file_heading(&job, name, position);
        assert_eq!(heading("a.md", Some((1, 2))), format!("`a.md` of `{JOB}` (1 of 2):"));
        assert_ne!(heading("a.md", Some((1, 2))), heading("a.md", Some((2, 2))));
        // Both names are posted as `a_b`.
        assert_ne!(heading("a(b", Some((1, 2))), heading("a)b", Some((2, 2))));
        assert_eq!(heading("a.md", None), format!("`a.md` of `{JOB}`:"));
    }

    #[test]
    fn a_recorded_post_of_a_file_without_its_position_is_read() {
        let text =
            format!(r#"{{"action":"sent_file","job":"{JOB}","copy":"{ID}a.md","name":"a.md"}}"#);
        let action: ChatPostAction = serde_json::from_str(&text).unwrap();
        assert!(matches!(&action, ChatPostAction::SentFile { position: None, .. }), "{action:?}");
        assert_eq!(serde_json::to_string(&action).unwrap(), text);
        let ChatPostAction::SentFile { job, copy, name, .. } = action else { unreachable!() };
        let action = ChatPostAction::SentFile { job, copy, name, position: Some((2, 3)) };
        let text = serde_json::to_string(&action).unwrap();
        assert_eq!(serde_json::from_str::<ChatPostAction>(&text).unwrap(), action);
    }

    #[test]
    fn a_copy_that_holds_a_secret_by_now_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let dir = StateDir::create(Utf8Path::from_path(folder.path()).unwrap()).unwrap();
        let job: JobId = JOB.parse().unwrap();
        let files = dir.sent_files_folder(&job);
        std::fs::create_dir_all(&files).unwrap();
        let redactor = SecretRedactor::new(&["hunter2hunter2".to_owned()]);
        let copy = format!("{ID}a.bin");
        let read = |content: &[u8]| {
            std::fs::write(files.join(&copy), content).unwrap();
            read_sent_file(&dir, &redactor, &job, &copy)
        };
        assert_eq!(read(b"\xff\0hunter2").unwrap(), b"\xff\0hunter2");
        assert_eq!(read(b"\xff\0hunter2hunter2\xff").unwrap_err(), "it holds a secret");
        // `hunter2hunter2` in Base64.
        assert_eq!(read(b"aHVudGVyMmh1bnRlcjI=").unwrap_err(), "it holds a secret");
        let token = format!("heeler_{}", "0".repeat(64));
        assert_eq!(read(token.as_bytes()).unwrap_err(), "it holds a secret");
        assert_eq!(read(b"").unwrap_err(), "it is empty");
        let large = vec![b'a'; 1 + usize::try_from(SENT_BYTES_MAX).unwrap()];
        assert_eq!(read(&large).unwrap_err(), "it has more than 10 MB");
    }
}
