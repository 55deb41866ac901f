//! Live output of chats: run cards, typing indicators and reactions of the jobs that messages created.
//!
//! One thread serves all of them while there are any. It never writes the database: the ID of a posted card
//! goes to the dispatcher, so that the next daemon can finish the card. Everything here is best effort; the
//! answer itself is a recorded post. Start at [`EffectExecutor::show_chat_job`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use heeler_connect::{
    ChatApiError, ChatBot, ChatPlace, ChatPlatform, ChatPolicy, LiveOutput, OutgoingPost, PostMark,
    StreamRecipient, StreamStart,
};
use heeler_model::job_row::JobRow;
use heeler_model::redact::SecretRedactor;
use heeler_model::{Job, JobId, JobStatus, error_chain};
use heeler_store::{InboxRecord, StoreReader};
use heeler_transcript::{FollowStart, FollowUpdate, TranscriptFollower};

use super::card_stream::CardStream;
use super::live_lane::{LiveJob, WaitingJobs, lock};
use super::{EffectExecutor, ExecutorContext};
use crate::chat::{RunCard, RunCardChange, event_place, find_credential, note_rate_limit};
use crate::dispatch_input::DispatchInput;
use crate::fault::{self, FaultPoint};

/// Interval at which the jobs are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Time after which a job that still runs gets a card.
const CARD_DELAY: Duration = Duration::from_secs(3);

/// Least time between two changes of a card.
const CARD_EDIT_INTERVAL: Duration = Duration::from_secs(3);

/// Least time between two additions to a card that grows.
const CARD_APPEND_INTERVAL: Duration = Duration::from_secs(1);

/// Least time between two calls for live output as one bot. Answers are not delayed by it.
const CALL_INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which the typing indicator is renewed. Telegram shows it for five seconds.
const TYPING_INTERVAL: Duration = Duration::from_secs(4);

/// Most jobs with live output at a time. Further ones have none.
const LIVE_JOBS_MAX: usize = 200;

/// Most rows of one job that are read in one look.
const ROWS_MAX: usize = 500;

/// Failures after which a job has no live output any more.
const FAILURES_MAX: u32 = 10;

impl EffectExecutor {
    /// Shows live output of a job that a message in a chat created.
    pub(crate) fn show_chat_job(&self, job: JobId) {
        self.add_live_job(LiveJob { job, card: None, is_resumed: false });
    }

    /// Continues the live output of an earlier daemon. `card` is the posted card, if it is known.
    pub(crate) fn resume_chat_job(&self, job: JobId, card: Option<String>) {
        self.add_live_job(LiveJob { job, card, is_resumed: true });
    }

    fn add_live_job(&self, job: LiveJob) {
        let mut waiting = lock(&self.live.waiting);
        if waiting.jobs.len() + waiting.served >= LIVE_JOBS_MAX {
            return tracing::debug!(job = %job.job, "no live output: {LIVE_JOBS_MAX} jobs have some");
        }
        waiting.jobs.push(job);
        if std::mem::replace(&mut waiting.is_served, true) {
            return;
        }
        let (shared, waiting) = (Arc::clone(&self.shared), Arc::clone(&self.live.waiting));
        self.live.pool.submit(move || LiveThread::new(shared, waiting).run());
    }
}

/// The thread, with the jobs that it serves.
struct LiveThread {
    shared: Arc<ExecutorContext>,
    waiting: Arc<Mutex<WaitingJobs>>,
    views: Vec<LiveView>,
    /// Times before which no call is made, by platform and account.
    call_at: HashMap<(ChatPlatform, String), Instant>,
    /// IDs of the workspaces of Slack apps, by account.
    teams: HashMap<String, String>,
}

/// A job with live output.
struct LiveView {
    job: JobId,
    is_resumed: bool,
    event: Option<InboxRecord>,
    /// The posted card.
    message: Option<String>,
    /// True if there may be a card that `message` does not name.
    is_maybe_posted: bool,
    stream: CardStream,
    card: RunCard,
    rows: Option<TranscriptFollower>,
    /// Text that the card shows.
    shown: String,
    running_since: Option<Instant>,
    edit_at: Instant,
    typing_at: Instant,
    is_acknowledged: bool,
    failures: u32,
}

/// Bot and place of a view, with the settings of its agent.
struct LivePlace<'a> {
    bot: ChatBot,
    key: (ChatPlatform, String),
    place: ChatPlace,
    event: &'a InboxRecord,
    output: LiveOutput<'a>,
}

/// Result of one look at a job.
#[derive(PartialEq, Eq)]
enum LiveProgress {
    Continues,
    Ended,
}

impl LiveThread {
    fn new(shared: Arc<ExecutorContext>, waiting: Arc<Mutex<WaitingJobs>>) -> LiveThread {
        let (call_at, teams) = (HashMap::new(), HashMap::new());
        LiveThread { shared, waiting, views: Vec::new(), call_at, teams }
    }

    /// Serves jobs until none is left.
    fn run(mut self) {
        while self.take_waiting() {
            let shared = Arc::clone(&self.shared);
            match shared.readers.reader() {
                Ok(reader) => self.look(&reader),
                Err(error) => {
                    tracing::debug!(reason = error_chain(&error), "no live output for now");
                }
            }
            std::thread::park_timeout(LOOK_INTERVAL);
        }
    }

    /// Takes new jobs; returns false if there are none to serve.
    fn take_waiting(&mut self) -> bool {
        let mut waiting = lock(&self.waiting);
        self.views.extend(waiting.jobs.drain(..).map(LiveView::new));
        waiting.served = self.views.len();
        waiting.is_served = !self.views.is_empty();
        waiting.is_served
    }

    fn look(&mut self, reader: &StoreReader) {
        let setup = self.shared.setup();
        let redactor = SecretRedactor::new(&setup.secrets());
        let mut views = std::mem::take(&mut self.views);
        views.retain_mut(|view| {
            let Ok(Some(job)) = reader.job(&view.job) else { return false };
            if view.event.is_none() {
                view.event = reader.inbox_event_of_job(&view.job).ok().flatten();
            }
            let Some(event) = view.event.clone() else { return false };
            let platform = event.platform.parse::<ChatPlatform>().ok();
            let agent = setup.agent(&job.head.agent);
            let policy = agent.zip(platform).and_then(|(it, on)| ChatPolicy::of_agent(it, on));
            let credential = platform.and_then(|platform| {
                find_credential(&setup.loaded, &setup.env, platform, &event.account)
            });
            let bot = credential.and_then(|credential| credential.bot().ok());
            let (Some(policy), Some(bot), Some(platform), Some(place)) =
                (policy, bot, platform, event_place(&event))
            else {
                return false;
            };
            if !policy.may_post_to(&place) {
                return false;
            }
            let key = (platform, event.account.clone());
            let at = LivePlace { bot, key, place, event: &event, output: policy.live };
            let clean = |text: String| redactor.redact_text(&text).into_owned();
            view.read_rows(&self.shared);
            if !at.output.streams || !view.stream.may_grow() {
                view.card.forget_news(usize::MAX);
            }
            match self.serve(view, &job, &at, clean) {
                Ok(progress) => progress == LiveProgress::Continues,
                Err(error) => self.note_failure(view, &at, &error),
            }
        });
        self.views = views;
    }

    /// Waits after a failed call; returns false if the live output of the job is given up.
    fn note_failure(
        &mut self,
        view: &mut LiveView,
        at: &LivePlace<'_>,
        error: &ChatApiError,
    ) -> bool {
        tracing::debug!(job = %view.job, %error, "live output failed");
        view.failures += 1;
        if error.retry_after().is_some() {
            note_rate_limit(at.key.0.as_str(), &at.key.1);
        }
        let pause = error.retry_after().unwrap_or(CARD_EDIT_INTERVAL).max(CALL_INTERVAL);
        self.call_at.insert(at.key.clone(), Instant::now() + pause);
        view.failures < FAILURES_MAX && error.is_transient()
    }

    /// Makes at most one call for a job.
    fn serve(
        &mut self,
        view: &mut LiveView,
        job: &Job,
        at: &LivePlace<'_>,
        clean: impl Fn(String) -> String,
    ) -> Result<LiveProgress, ChatApiError> {
        let now = Instant::now();
        let is_final = job.head.status.is_final();
        if is_final && view.message.is_none() && !view.is_maybe_posted {
            return Ok(LiveProgress::Ended);
        }
        if self.call_at.get(&at.key).is_some_and(|free_at| *free_at > now) {
            return Ok(LiveProgress::Continues);
        }
        if !std::mem::replace(&mut view.is_acknowledged, true)
            && let (Some(emoji), Some(message), false) =
                (at.output.acknowledge, &at.event.message_id, view.is_resumed)
        {
            self.note_call(at);
            match at.bot.react(&at.place, message, emoji) {
                // The card does not depend on the right to react.
                Err(error) if !error.is_transient() => {
                    tracing::info!(job = %view.job, %error, "a message has no reaction");
                }
                outcome => outcome?,
            }
            return Ok(LiveProgress::Continues);
        }
        if is_final {
            self.note_call(at);
            return self.finish_card(view, job, at, &clean(view.card.final_text(job)));
        }
        if job.head.status != JobStatus::Running {
            return Ok(LiveProgress::Continues);
        }
        let since = *view.running_since.get_or_insert(now);
        if at.output.shows_card
            && now >= view.edit_at
            && now >= since + CARD_DELAY
            && self.show_card(view, job, at, &clean)?
        {
            return Ok(LiveProgress::Continues);
        }
        if at.output.shows_typing && now >= view.typing_at {
            self.note_call(at);
            view.typing_at = now + TYPING_INTERVAL;
            at.bot.show_typing(&at.place)?;
        }
        Ok(LiveProgress::Continues)
    }

    fn note_call(&mut self, at: &LivePlace<'_>) {
        self.call_at.insert(at.key.clone(), Instant::now() + CALL_INTERVAL);
    }

    /// Posts the card, or shows in it what is new; returns true if a call was made.
    fn show_card(
        &mut self,
        view: &mut LiveView,
        job: &Job,
        at: &LivePlace<'_>,
        clean: &impl Fn(String) -> String,
    ) -> Result<bool, ChatApiError> {
        let now = Instant::now();
        let Some(message) = view.message.clone() else {
            self.note_call(at);
            view.edit_at = now + CARD_EDIT_INTERVAL;
            return self.post_card(view, job, at, clean).map(|()| true);
        };
        if view.stream.must_end(&at.bot, now) {
            self.note_call(at);
            view.stream.end(&at.bot, &at.place, &message)?;
            return Ok(true);
        }
        if view.stream.is_open() {
            let (news, count) = view.card.news_text(at.output);
            if news.is_empty() {
                view.card.forget_news(count);
                return Ok(false);
            }
            self.note_call(at);
            view.edit_at = now + CARD_APPEND_INTERVAL;
            view.stream.append(&at.bot, (&at.place, &message), &clean(news))?;
            view.card.forget_news(count);
            view.failures = 0;
            return Ok(true);
        }
        let text = clean(view.card.running_text(job, at.output));
        if text == view.shown {
            return Ok(false);
        }
        self.note_call(at);
        view.edit_at = now + CARD_EDIT_INTERVAL;
        at.bot.edit(&at.place, &message, &text)?;
        (view.failures, view.shown) = (0, text);
        Ok(true)
    }

    /// Posts the card, unless an earlier attempt has posted it.
    fn post_card(
        &mut self,
        view: &mut LiveView,
        job: &Job,
        at: &LivePlace<'_>,
        clean: &impl Fn(String) -> String,
    ) -> Result<(), ChatApiError> {
        if let Some(message) = find_card(view, job, at)? {
            self.note_card(view, at, message);
            return Ok(());
        }
        let is_tried = view.is_maybe_posted || !view.stream.is_untried();
        if !is_tried && at.output.streams && self.may_stream(at) {
            return self.start_stream(view, job, at, clean);
        }
        let text = clean(view.card.running_text(job, at.output));
        let id = card_mark(job);
        let created = job.head.started_at.as_second();
        let maybe_made_since = view.is_maybe_posted.then_some(created);
        let mark = PostMark { id: &id, maybe_made_since };
        let reply_to = at.event.message_id.clone().filter(|_| !at.place.is_direct);
        let post = OutgoingPost { text: text.clone(), buttons: Vec::new(), reply_to };
        let sent = at.bot.send(&at.place, &post, mark);
        view.is_maybe_posted |= is_unclear(&sent);
        let message = sent?;
        view.stream = CardStream::Ended;
        self.note_card(view, at, message);
        view.shown = text;
        Ok(())
    }

    /// Returns true for a thread, unless Slack has refused streams to the app since the start of the daemon.
    fn may_stream(&self, at: &LivePlace<'_>) -> bool {
        at.place.thread.is_some() && !lock(&self.waiting).without_stream.contains(&at.key.1)
    }

    /// Posts the card as a message that grows. If Slack offers none here, nothing is posted, and the card is an
    /// ordinary post from then on.
    fn start_stream(
        &mut self,
        view: &mut LiveView,
        job: &Job,
        at: &LivePlace<'_>,
        clean: &impl Fn(String) -> String,
    ) -> Result<(), ChatApiError> {
        let ChatBot::Slack(slack) = &at.bot else {
            view.stream = CardStream::Ended;
            return Ok(());
        };
        let account = &at.key.1;
        let team = match self.teams.get(account) {
            Some(team) => team.clone(),
            None => slack.team_id()?,
        };
        self.teams.insert(account.clone(), team.clone());
        let (news, count) = view.card.news_text(at.output);
        let text = clean(format!("{}\n{news}", RunCard::heading(job)));
        let recipient = StreamRecipient { user: &at.event.sender, team: &team };
        let started = slack.start_stream(&at.place, recipient, &text);
        if is_unclear(&started) {
            (view.is_maybe_posted, view.stream) = (true, CardStream::Unknown);
        }
        match started? {
            StreamStart::Started(message) => {
                view.stream = CardStream::open(&text);
                view.card.forget_news(count);
                self.note_card(view, at, message);
            }
            StreamStart::NotOffered { reason, is_of_app } => {
                tracing::info!(job = %view.job, account, reason, "no stream: the run card is changed instead");
                // The card is posted by the next look.
                (view.stream, view.edit_at) = (CardStream::Ended, Instant::now());
                if is_of_app {
                    lock(&self.waiting).without_stream.insert(account.clone());
                }
            }
        }
        Ok(())
    }

    /// Records the posted card.
    fn note_card(&self, view: &mut LiveView, at: &LivePlace<'_>, message: String) {
        fault::reach(FaultPoint::CardPosted);
        self.report(RunCardChange::Posted {
            job: view.job.clone(),
            channel: at.event.channel.clone(),
            message: message.clone(),
        });
        (view.message, view.failures) = (Some(message), 0);
    }

    /// Shows the end of the job in the card. A card that grows is ended first.
    fn finish_card(
        &self,
        view: &mut LiveView,
        job: &Job,
        at: &LivePlace<'_>,
        text: &str,
    ) -> Result<LiveProgress, ChatApiError> {
        let Some(message) = view.message.clone() else {
            view.message = find_card(view, job, at)?;
            view.is_maybe_posted = false;
            return Ok(LiveProgress::Continues);
        };
        if !view.stream.is_ended(&at.bot) {
            view.stream.end(&at.bot, &at.place, &message)?;
            return Ok(LiveProgress::Continues);
        }
        match at.bot.edit(&at.place, &message, text) {
            Err(error) if error.is_transient() => return Err(error),
            // A person may have deleted it.
            _ => {}
        }
        self.report(RunCardChange::Finished { job: view.job.clone() });
        Ok(LiveProgress::Ended)
    }

    fn report(&self, change: RunCardChange) {
        self.shared.send_input(DispatchInput::RunCardChanged(change));
    }
}

/// Identity of a card among the posts of the fleet.
fn card_mark(job: &Job) -> String {
    format!("card {}", job.head.id)
}

/// Returns the card that an earlier attempt may have posted, where the platform can tell.
fn find_card(
    view: &LiveView,
    job: &Job,
    at: &LivePlace<'_>,
) -> Result<Option<String>, ChatApiError> {
    let ChatBot::Slack(slack) = &at.bot else { return Ok(None) };
    if !view.is_maybe_posted {
        return Ok(None);
    }
    let (mark, since) = (card_mark(job), job.head.started_at.as_second());
    slack.find_live_post(&at.place, (&mark, job.head.id.as_str()), since)
}

/// Returns true if the platform may have executed a call that failed.
fn is_unclear<T>(outcome: &Result<T, ChatApiError>) -> bool {
    matches!(outcome, Err(ChatApiError::Unreachable { .. }))
}

impl LiveView {
    fn new(live: LiveJob) -> LiveView {
        let now = Instant::now();
        LiveView {
            job: live.job,
            is_resumed: live.is_resumed,
            event: None,
            stream: CardStream::of_card(live.is_resumed),
            is_maybe_posted: live.is_resumed,
            message: live.card,
            card: RunCard::default(),
            rows: None,
            shown: String::new(),
            running_since: None,
            edit_at: now,
            typing_at: now,
            is_acknowledged: false,
            failures: 0,
        }
    }

    /// Reads the new rows of the job's transcript.
    fn read_rows(&mut self, shared: &ExecutorContext) {
        let rows = self.rows.get_or_insert_with(|| {
            let mut rows = TranscriptFollower::new();
            rows.add(&shared.fleet.dir.job_transcript(&self.job), FollowStart::Beginning);
            rows
        });
        for _ in 0..ROWS_MAX {
            match rows.next(Duration::ZERO) {
                Ok(Some(FollowUpdate::Record { record, .. })) => {
                    if let Ok(row) = JobRow::parse(record.text.as_bytes()) {
                        self.card.add_row(&row);
                    }
                }
                Ok(Some(FollowUpdate::Restarted { .. })) => self.card = RunCard::default(),
                Ok(Some(FollowUpdate::Fault { .. })) => {}
                Ok(None) => return,
                Err(error) => {
                    return tracing::debug!(reason = error_chain(&error), "no rows of a job");
                }
            }
        }
    }
}
