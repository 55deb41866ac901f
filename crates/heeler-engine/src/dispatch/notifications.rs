//! Notifications: people get a notice when they are needed.
//!
//! A notice is recorded in the commit of its event, under an ID that follows from the event and the
//! channel. So an event that is applied again causes no second notice. A notice may quote an agent, which may
//! be hostile; everything else in it is text of Heeler. Start at
//! [`DispatchTransaction::record_notices`].

use std::sync::Arc;

use heeler_config::{NotifyConfig, NotifyEvent};
use heeler_model::budget_ledger::{BudgetAccount, RESERVATION_MIN, is_in_fleet};
use heeler_model::fleet::ParkedCredentialRecord;
use heeler_model::format_micros;
use heeler_model::{
    Approval, ApprovalId, ApprovalKind, ApprovalStatus, Job, JobId, JobStatus, TriggerType,
    iso_millis,
};
use heeler_notify::{AgentQuote, PersonNotice};
use heeler_store::{DatabaseError, NoticeEnd, NoticeRecord};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value as Json;

use super::event::DispatchEffect;
use super::transaction::DispatchTransaction;
use crate::notices::{
    LinkNotice, NoticeOutcome, NoticePlan, NoticeResult, page_link, plan_notices,
};
use crate::setup::DaemonSetup;

/// Most notices that wait. Further events cause no notice; they stay on record.
pub(super) const WAITING_MAX: usize = 1_000;

/// Most notices of a channel within an hour that are sent one by one. Further ones are collected, so that
/// a fleet in trouble does not send hundreds of messages.
const SINGLE_PER_HOUR_MAX: usize = 60;

/// Time for which notices beyond that are collected.
const FLOOD_DIGEST: SignedDuration = SignedDuration::from_mins(15);

/// Most open notices that are looked at in one turn.
const OPEN_MAX: usize = 2_048;

/// Time for which a question of a job that a person follows causes no notice.
const ATTENDED_WAIT: SignedDuration = SignedDuration::from_secs(30);

/// Time at which the daemon started that runs; empty if it ended in order.
pub(super) const ALIVE_SINCE: &str = "daemon_alive_since";

/// An event that causes notices.
struct NoticeDraft<'d> {
    event: NotifyEvent,
    /// Identifies the event among those of its kind.
    subject: String,
    /// Agent that is concerned.
    agent: Option<&'d str>,
    title: String,
    text: String,
    /// Text of the agent.
    quote: Option<String>,
    /// Path of its page on the dashboard.
    page: String,
    /// Delay of all channels.
    wait: SignedDuration,
    /// True if the subject is closed by a later notice.
    is_open: bool,
    /// Question that can be answered in the channel itself.
    question: Option<&'d Approval>,
}

impl DispatchTransaction<'_, '_> {
    /// Tells that a question waits. `job` is the job of the agent that asks.
    pub(super) fn notify_question(
        &mut self,
        job: Option<&Job>,
        approval: &Approval,
    ) -> Result<(), DatabaseError> {
        if approval.status != ApprovalStatus::Pending || self.notify_config().is_none() {
            return Ok(());
        }
        let id = &approval.id;
        let workflow_agent = self.state.setup.workflow_agent().map(|name| name.to_string());
        let agent = match job {
            Some(job) => Some(job.head.agent.clone()),
            None => workflow_agent,
        };
        let asker = agent.clone().unwrap_or_else(|| "A workflow".to_owned());
        let title = match (job, approval.kind) {
            (None, _) => format!("The gate `{}` waits for an answer", approval.gate),
            (Some(_), ApprovalKind::Permission) => format!("{asker} asks for permission"),
            (Some(_), _) => format!("{asker} asks a question"),
        };
        let mut text = format!("Answer on the page or with: heeler approvals show {id}");
        if let Some(at) = approval.expires_at {
            text.push_str(&format!("\nIt expires at {}.", at.strftime("%Y-%m-%d %H:%M UTC")));
        }
        let is_attended = job.is_some_and(|job| self.is_attended(&job.head.id));
        self.record_notices(NoticeDraft {
            event: NotifyEvent::Question,
            subject: id.to_string(),
            agent: agent.as_deref(),
            title,
            text,
            quote: Some(question_quote(approval)),
            page: format!("/approvals/{id}"),
            wait: if is_attended { ATTENDED_WAIT } else { SignedDuration::ZERO },
            is_open: true,
            question: Some(approval),
        })
    }

    /// Returns true if a person follows a job that has not ended.
    pub(super) fn is_attended(&self, job: &JobId) -> bool {
        self.state.fleet.job(job).is_some_and(|job| job.request.attended)
    }

    /// Tells that a job failed, and of budgets that it spent.
    pub(super) fn notify_job_end(&mut self, job: &Job) -> Result<(), DatabaseError> {
        if self.notify_config().is_none() {
            return Ok(());
        }
        let (agent, id) = (job.head.agent.as_str(), &job.head.id);
        // The job that started it receives the result, and a person in a conversation sees it.
        let is_known_otherwise =
            matches!(job.head.trigger_type, TriggerType::Spawned | TriggerType::Chat);
        if job.head.status == JobStatus::Failed && !is_known_otherwise {
            let at = job.head.finished_at.unwrap_or(self.now).as_millisecond();
            self.record_notices(NoticeDraft {
                event: NotifyEvent::Failed,
                // A job that is resumed may fail again.
                subject: format!("{id} {at}"),
                agent: Some(agent),
                title: format!("A job of {agent} failed"),
                text: format!("heeler jobs show {id}"),
                quote: job.error.clone(),
                page: format!("/jobs/{id}"),
                wait: SignedDuration::ZERO,
                is_open: false,
                question: None,
            })?;
        }
        self.notify_budgets(agent)
    }

    /// Tells that an agent was denied tools in a job that no person follows.
    pub(super) fn notify_denied(&mut self, job: &Job, denied: &str) -> Result<(), DatabaseError> {
        if self.notify_config().is_none() {
            return Ok(());
        }
        let (agent, id) = (job.head.agent.as_str(), &job.head.id);
        self.record_notices(NoticeDraft {
            event: NotifyEvent::Denied,
            subject: id.to_string(),
            agent: Some(agent),
            title: format!("{agent} was denied a tool"),
            text: format!(
                "It may have worked around it. If it needs the tool, change its permissions.\n\
                 heeler jobs show {id}"
            ),
            quote: Some(denied.to_owned()),
            page: format!("/jobs/{id}"),
            wait: SignedDuration::ZERO,
            is_open: false,
            question: None,
        })
    }

    /// Tells that an agent is parked.
    pub(super) fn notify_parked(
        &mut self,
        record: &ParkedCredentialRecord,
    ) -> Result<(), DatabaseError> {
        if self.notify_config().is_none() {
            return Ok(());
        }
        let Some(job) = self.tx.job(&record.job)? else { return Ok(()) };
        let agent = job.head.agent.as_str();
        let until = record.until.strftime("%Y-%m-%d %H:%M UTC");
        // Each job that reaches the limit parks the same credential again.
        let hour = record.until.as_second() / 3600;
        self.record_notices(NoticeDraft {
            event: NotifyEvent::Parked,
            subject: format!("{} {hour}", record.credential),
            agent: Some(agent),
            title: format!("{agent} is parked until {until}"),
            text: "A usage limit was reached. The jobs of all agents with the same login wait.\n\
                   heeler status"
                .to_owned(),
            quote: Some(record.reason.clone()),
            page: "/".to_owned(),
            wait: SignedDuration::ZERO,
            is_open: false,
            question: None,
        })
    }

    /// Notes that a daemon runs, and tells that an earlier one did not end in order.
    pub(super) fn note_daemon_start(&mut self, is_permanent: bool) -> Result<(), DatabaseError> {
        let before = self.tx.meta(ALIVE_SINCE)?.filter(|since| !since.is_empty());
        if let Some(since) = &before {
            self.record_notices(NoticeDraft {
                event: NotifyEvent::Takeover,
                subject: since.clone(),
                agent: None,
                title: "The daemon was restarted after an unexpected end".to_owned(),
                text: format!(
                    "The daemon of {since} did not end in order. A new one has taken over its jobs.\n\
                     heeler status"
                ),
                quote: None,
                page: "/".to_owned(),
                wait: SignedDuration::ZERO,
                is_open: false,
                question: None,
            })?;
        }
        match (is_permanent, before) {
            (true, _) => self.tx.set_meta(ALIVE_SINCE, &iso_millis(self.now)),
            (false, Some(_)) => self.tx.set_meta(ALIVE_SINCE, ""),
            (false, None) => Ok(()),
        }
    }

    /// Tells that a chat platform cannot be reached, or that it can be again.
    pub(super) fn notify_link(&mut self, link: &LinkNotice) -> Result<(), DatabaseError> {
        let LinkNotice { platform, account, down_since, problem } = link;
        let subject = format!("{platform} {account}");
        let Some(since) = down_since else {
            return self.close_subject(NotifyEvent::LinkDown, &subject, |_| {
                format!("The link to {platform} works again")
            });
        };
        self.record_notices(NoticeDraft {
            event: NotifyEvent::LinkDown,
            subject: format!("{subject} {}", since.as_millisecond()),
            agent: None,
            title: format!("The link to {platform} is down"),
            text: format!(
                "Messages to the bot {account} are not received since {}. Heeler tries again.\n\
                 heeler doctor chat",
                since.strftime("%Y-%m-%d %H:%M UTC")
            ),
            quote: Some(problem.clone()),
            page: "/".to_owned(),
            wait: SignedDuration::ZERO,
            is_open: true,
            question: None,
        })
    }

    /// Tells of budgets that are nearly spent, or spent: that of an agent, of its fleets and of the whole
    /// fleet.
    fn notify_budgets(&mut self, agent: &str) -> Result<(), DatabaseError> {
        let Some(config) = self.notify_config() else { return Ok(()) };
        let (ledger, percent) = (self.state.fleet.ledger(), i64::from(config.budget_percent));
        let day = ledger.day().to_string();
        let inner = self.state.setup.loaded.fleets.iter().skip(1);
        let inner = inner.filter(|fleet| is_in_fleet(agent, &fleet.path));
        let mut accounts = vec![(Some(agent), agent.to_owned(), ledger.agent(agent))];
        accounts.push((None, "the fleet".to_owned(), *ledger.fleet()));
        accounts.extend(inner.map(|fleet| {
            (None, format!("the fleet {}", fleet.path), ledger.subfleet(&fleet.path))
        }));
        let mut drafts = Vec::new();
        for (agent, owner, account) in accounts {
            let BudgetAccount { limits, today, total, .. } = account;
            let figures = [("day", limits.day, today, &day), ("total", limits.total, total, &day)];
            for (period, limit, spent, day) in figures {
                let Some(limit) = limit else { continue };
                let is_spent = limit.saturating_sub(spent) < RESERVATION_MIN;
                let is_near = spent.saturating_mul(100) >= limit.saturating_mul(percent);
                if !is_spent && !is_near {
                    continue;
                }
                let (level, how) =
                    if is_spent { ("spent", "spent") } else { ("near", "nearly spent") };
                // A daily budget is new each day, and a total one when its limit is raised.
                let since = if period == "day" { day.clone() } else { limit.to_string() };
                let (spent, limit) = (format_micros(spent), format_micros(limit));
                let of_day = if period == "day" { " of the day" } else { "" };
                let effect = match is_spent {
                    true => "Jobs do not start until there is budget again.",
                    false => "Jobs stop when it is spent.",
                };
                drafts.push(NoticeDraft {
                    event: NotifyEvent::Budget,
                    subject: format!("{owner} {period} {level} {since}"),
                    agent,
                    title: format!("The budget{of_day} of {owner} is {how}"),
                    text: format!("{spent} of {limit} are spent. {effect}\nheeler costs"),
                    quote: None,
                    page: "/".to_owned(),
                    wait: SignedDuration::ZERO,
                    is_open: false,
                    question: None,
                });
            }
        }
        drafts.into_iter().try_for_each(|draft| self.record_notices(draft))
    }

    fn notify_config(&self) -> Option<&NotifyConfig> {
        let config = self.state.setup.root()?.notify.as_ref()?;
        (!config.channels.is_empty()).then_some(config)
    }

    /// Records the notices of an event, one for each channel that receives it.
    fn record_notices(&mut self, draft: NoticeDraft<'_>) -> Result<(), DatabaseError> {
        let setup = Arc::clone(&self.state.setup);
        let Some(root) = setup.root() else { return Ok(()) };
        let Some(config) = &root.notify else { return Ok(()) };
        let agent = draft.agent.and_then(|name| setup.agent(name));
        let start = self.now.checked_add(draft.wait).unwrap_or(self.now);
        let plans = plan_notices(config, agent, draft.event, (start, &setup.zone));
        let plans = self.expand_plans(config, plans)?;
        let quote = draft.quote.as_deref().map(|text| self.redact_text(text));
        let notice = PersonNotice {
            event: draft.event,
            agent: draft.agent.map(str::to_owned),
            title: self.redact_text(&draft.title),
            text: self.redact_text(&draft.text),
            quote: quote.as_deref().and_then(AgentQuote::new),
            link: page_link(root, &draft.page),
            page: Some(draft.page.clone()),
            is_closing: false,
            subject: draft.subject.clone(),
            at: self.now,
        };
        for plan in plans {
            if let Some(question) = draft.question
                && self.ask_in_chat(config, agent, &plan, question)?
            {
                continue;
            }
            let id = format!("{} {} {}", draft.event, draft.subject, plan.channel);
            let closed_at = (!draft.is_open).then_some(self.now);
            self.add_notice(id, plan, &notice, (closed_at, None))?;
        }
        if draft.is_open {
            self.state.has_open_notices = true;
        }
        Ok(())
    }

    /// Records a notice for a channel, unless it is recorded already.
    fn add_notice(
        &mut self,
        id: String,
        plan: NoticePlan,
        notice: &PersonNotice,
        (closed_at, message_id): (Option<Timestamp>, Option<String>),
    ) -> Result<(), DatabaseError> {
        let NoticePlan { channel, mut due_at, mut in_digest } = plan;
        if self.tx.count_waiting_notices(WAITING_MAX)? >= WAITING_MAX {
            tracing::warn!(channel, notice = id, "a notice is dropped: {WAITING_MAX} others wait");
            return Ok(());
        }
        let hour_ago = self.now.checked_sub(SignedDuration::from_hours(1)).unwrap_or(self.now);
        let max = SINGLE_PER_HOUR_MAX;
        if self.tx.count_notices_since(&channel, hour_ago, max)? >= max {
            let later = self.now.checked_add(FLOOD_DIGEST).unwrap_or(self.now);
            (due_at, in_digest) = (due_at.max(later), true);
        }
        let is_new = self.tx.add_notice(&NoticeRecord {
            id,
            channel,
            event: notice.event.to_string(),
            subject: notice.subject.clone(),
            agent: notice.agent.clone(),
            created_at: self.now,
            due_at,
            in_digest,
            attempts: 0,
            last_error: None,
            message_id,
            outcome: None,
            ended_at: None,
            closed_at,
            payload: serde_json::to_string(notice).expect("a notice is JSON"),
        })?;
        if is_new {
            self.effects.push(DispatchEffect::RunNotices);
        }
        Ok(())
    }

    /// Records the result of an attempt.
    pub(super) fn apply_notice_result(
        &mut self,
        result: &NoticeResult,
    ) -> Result<(), DatabaseError> {
        for id in &result.notices {
            let end = match &result.outcome {
                NoticeOutcome::Postponed { error, until } => {
                    let error = self.redact_text(error);
                    tracing::warn!(notice = id, error, "a notice is tried again");
                    self.tx.postpone_notice(id, &error, *until)?;
                    continue;
                }
                NoticeOutcome::Sent(message) => {
                    NoticeEnd { outcome: "sent", reason: None, message_id: message.as_deref() }
                }
                NoticeOutcome::Dropped(reason) => {
                    NoticeEnd { outcome: "dropped", reason: Some(reason), message_id: None }
                }
                NoticeOutcome::Failed(reason) | NoticeOutcome::BrowserGone { reason, .. } => {
                    let reason = self.redact_text(reason);
                    tracing::warn!(notice = id, reason, "a notice was not sent");
                    let end =
                        NoticeEnd { outcome: "failed", reason: Some(&reason), message_id: None };
                    self.tx.end_notice(id, end, self.now)?;
                    continue;
                }
            };
            self.tx.end_notice(id, end, self.now)?;
        }
        if let NoticeOutcome::BrowserGone { browser, .. } = &result.outcome
            && self.tx.remove_push_browser(browser)?
        {
            tracing::info!(browser, "a browser that is gone receives no notices any more");
        }
        // The channel may have more.
        self.effects.push(DispatchEffect::RunNotices);
        Ok(())
    }

    /// Tells of questions that were answered, wherever that was.
    pub(crate) fn close_notices(&mut self) -> Result<(), DatabaseError> {
        if !self.state.has_open_notices {
            return Ok(());
        }
        let open = self.tx.open_notices(OPEN_MAX)?;
        self.state.has_open_notices = !open.is_empty();
        for record in open.iter().filter(|it| it.event == NotifyEvent::Question.as_str()) {
            let approval = match record.subject.parse::<ApprovalId>() {
                Ok(id) => self.tx.approval(&id)?,
                Err(_) => None,
            };
            let Some(approval) = approval else {
                self.tx.close_notice(&record.id, self.now)?;
                continue;
            };
            if approval.status != ApprovalStatus::Pending {
                self.close_record(record, outcome_title(&approval))?;
            }
        }
        Ok(())
    }

    /// Closes the open notices of an event whose subject begins with a text.
    fn close_subject(
        &mut self,
        event: NotifyEvent,
        subject: &str,
        title: impl Fn(&NoticeRecord) -> String,
    ) -> Result<(), DatabaseError> {
        let open = self.tx.open_notices(OPEN_MAX)?;
        let start = format!("{subject} ");
        for record in open {
            if record.event == event.as_str() && record.subject.starts_with(&start) {
                let title = title(&record);
                self.close_record(&record, title)?;
            }
        }
        Ok(())
    }

    /// Closes a notice. If it was sent, its channel receives the outcome.
    fn close_record(&mut self, record: &NoticeRecord, title: String) -> Result<(), DatabaseError> {
        if record.ended_at.is_none() {
            // One that is due may be on its way. It ends first, by being sent or dropped.
            if record.due_at <= self.now || record.in_digest || record.attempts > 0 {
                return Ok(());
            }
            let reason = Some("it was answered before the notice was due");
            let end = NoticeEnd { outcome: "dropped", reason, message_id: None };
            self.tx.end_notice(&record.id, end, self.now)?;
            return self.tx.close_notice(&record.id, self.now);
        }
        self.tx.close_notice(&record.id, self.now)?;
        let setup = Arc::clone(&self.state.setup);
        let config = setup.root().and_then(|root| root.notify.as_ref());
        let is_sent = record.outcome.as_deref() == Some("sent");
        let (true, Some(config)) = (is_sent, config) else { return Ok(()) };
        let Some(plan) = closing_plan(config, record, self.now, &setup) else { return Ok(()) };
        let Ok(event) = record.event.parse::<NotifyEvent>() else { return Ok(()) };
        let earlier = serde_json::from_str::<PersonNotice>(&record.payload).ok();
        let notice = PersonNotice {
            event,
            agent: record.agent.clone(),
            title: self.redact_text(&title),
            text: "Nothing is left to do.".to_owned(),
            quote: None,
            link: earlier.as_ref().and_then(|notice| notice.link.clone()),
            page: earlier.and_then(|notice| notice.page),
            is_closing: true,
            subject: record.subject.clone(),
            at: self.now,
        };
        let message = record.message_id.clone();
        self.add_notice(format!("{} closed", record.id), plan, &notice, (Some(self.now), message))
    }
}

/// Returns the time at which a channel receives the outcome of a notice; `None` if the config has no such
/// channel any more.
fn closing_plan(
    config: &NotifyConfig,
    record: &NoticeRecord,
    now: Timestamp,
    setup: &DaemonSetup,
) -> Option<NoticePlan> {
    let event = record.event.parse::<NotifyEvent>().ok()?;
    let only = NotifyConfig {
        channels: config
            .channels
            .iter()
            .filter(|it| it.name == record.channel_name())
            .cloned()
            .collect(),
        ..config.clone()
    };
    // A channel that received it by escalation may not list the event.
    let now_plan = NoticePlan { channel: record.channel.clone(), due_at: now, in_digest: false };
    only.channels.first()?;
    let plans = plan_notices(&only, None, event, (now, &setup.zone));
    let plan = plans.into_iter().next().unwrap_or(now_plan);
    // One browser of the channel, if the channel has several.
    Some(NoticePlan { channel: record.channel.clone(), ..plan })
}

/// Returns the words of an agent's question, or of a gate.
fn question_quote(approval: &Approval) -> String {
    let input = approval.detail.as_ref().map_or(&Json::Null, |detail| &detail["input"]);
    match (approval.kind, input) {
        (ApprovalKind::Permission, Json::Null) => {
            format!("{}: {}", approval.gate, approval.summary)
        }
        (ApprovalKind::Permission, input) => {
            let input = serde_json::to_string_pretty(input).unwrap_or_default();
            format!("{}: {input}", approval.gate)
        }
        _ => approval.summary.clone(),
    }
}

/// Returns the title that tells how a question ended.
fn outcome_title(approval: &Approval) -> String {
    let by = approval.responded_by.as_deref().unwrap_or("an unknown person");
    let by = heeler_config::reveal_line(by);
    let asker = approval.requested_by.as_deref().unwrap_or("The workflow");
    match (approval.status, approval.kind.expects_text()) {
        (ApprovalStatus::Approved, true) => format!("{asker}: answered by {by}"),
        (ApprovalStatus::Approved, false) => format!("{asker}: allowed by {by}"),
        (ApprovalStatus::Rejected, _) => format!("{asker}: denied by {by}"),
        (ApprovalStatus::Expired, _) => format!("{asker}: expired without an answer"),
        (ApprovalStatus::Withdrawn, _) => format!("{asker}: withdrawn, nothing waits for it"),
        (ApprovalStatus::Pending, _) => format!("{asker}: open"),
    }
}
