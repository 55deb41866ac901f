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
};
use heeler_model::job_row::JobRow;
use heeler_model::redact::SecretRedactor;
use heeler_model::{Job, JobId, JobStatus, error_chain};
use heeler_store::{InboxRecord, StoreReader};
use heeler_transcript::{FollowStart, FollowUpdate, TranscriptFollower};

use super::live_lane::{LiveJob, WaitingJobs, lock};
use super::{EffectExecutor, ExecutorContext};
use crate::chat::{RunCard, RunCardChange, event_place, find_credential, note_rate_limit};
use crate::dispatch_input::DispatchInput;

/// Interval at which the jobs are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Time after which a job that still runs gets a card.
const CARD_DELAY: Duration = Duration::from_secs(3);

/// Least time between two changes of a card.
const CARD_EDIT_INTERVAL: Duration = Duration::from_secs(3);

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
}

/// A job with live output.
struct LiveView {
    job: JobId,
    is_resumed: bool,
    event: Option<InboxRecord>,
    /// The posted card.
    message: Option<String>,
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
        LiveThread { shared, waiting, views: Vec::new(), call_at: HashMap::new() }
    }

    /// Serves jobs until none is left.
    fn run(mut self) {
        while self.take_waiting() {
            match StoreReader::open(&self.shared.fleet.dir) {
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
        if is_final && view.message.is_none() {
            return Ok(LiveProgress::Ended);
        }
        if self.call_at.get(&at.key).is_some_and(|free_at| *free_at > now) {
            return Ok(LiveProgress::Continues);
        }
        let note_call = |this: &mut LiveThread| {
            this.call_at.insert(at.key.clone(), Instant::now() + CALL_INTERVAL);
        };
        if !std::mem::replace(&mut view.is_acknowledged, true)
            && let (Some(emoji), Some(message), false) =
                (at.output.acknowledge, &at.event.message_id, view.is_resumed)
        {
            note_call(self);
            at.bot.react(&at.place, message, emoji)?;
            return Ok(LiveProgress::Continues);
        }
        if is_final {
            note_call(self);
            self.finish_card(view, at, &clean(view.card.final_text(job)))?;
            return Ok(LiveProgress::Ended);
        }
        if job.head.status != JobStatus::Running {
            return Ok(LiveProgress::Continues);
        }
        let since = *view.running_since.get_or_insert(now);
        if at.output.shows_card && now >= view.edit_at && now >= since + CARD_DELAY {
            let text = clean(view.card.running_text(job, at.output));
            if text != view.shown {
                note_call(self);
                view.edit_at = now + CARD_EDIT_INTERVAL;
                self.show_card(view, job, at, text)?;
                return Ok(LiveProgress::Continues);
            }
        }
        if at.output.shows_typing && now >= view.typing_at {
            note_call(self);
            view.typing_at = now + TYPING_INTERVAL;
            at.bot.show_typing(&at.place)?;
        }
        Ok(LiveProgress::Continues)
    }

    fn show_card(
        &self,
        view: &mut LiveView,
        job: &Job,
        at: &LivePlace<'_>,
        text: String,
    ) -> Result<(), ChatApiError> {
        match &view.message {
            Some(message) => at.bot.edit(&at.place, message, &text)?,
            None => {
                let id = format!("card {}", view.job);
                let created = job.head.started_at.as_second();
                let maybe_made_since = view.is_resumed.then_some(created);
                let mark = PostMark { id: &id, maybe_made_since };
                let reply_to = at.event.message_id.clone().filter(|_| !at.place.is_direct);
                let post = OutgoingPost { text: text.clone(), buttons: Vec::new(), reply_to };
                let message = at.bot.send(&at.place, &post, mark)?;
                self.report(RunCardChange::Posted {
                    job: view.job.clone(),
                    channel: at.event.channel.clone(),
                    message: message.clone(),
                });
                view.message = Some(message);
            }
        }
        view.failures = 0;
        view.shown = text;
        Ok(())
    }

    fn finish_card(
        &self,
        view: &LiveView,
        at: &LivePlace<'_>,
        text: &str,
    ) -> Result<(), ChatApiError> {
        if let Some(message) = &view.message {
            match at.bot.edit(&at.place, message, text) {
                Err(error) if error.is_transient() => return Err(error),
                // A person may have deleted it.
                _ => {}
            }
            self.report(RunCardChange::Finished { job: view.job.clone() });
        }
        Ok(())
    }

    fn report(&self, change: RunCardChange) {
        self.shared.send_input(DispatchInput::RunCardChanged(change));
    }
}

impl LiveView {
    fn new(live: LiveJob) -> LiveView {
        let now = Instant::now();
        LiveView {
            job: live.job,
            is_resumed: live.is_resumed,
            event: None,
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
